"""Where to send requests and how: a URL as people type it goes in, a Target comes out."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

ENDPOINTS = ("/chat/completions", "/completions", "/models")


class TargetError(ValueError):
    """The target cannot be used as named: one line that says what is wrong and what would help."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds, each counted from when we set out to send the request."""

    connect: float = 5.0
    first_token: float | None = None
    total: float = 300.0


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server."""

    url: str  # the base URL as the user named it, without a trailing slash
    host: str  # an IPv6 address without its brackets
    port: int
    base_path: str  # what stands before "/chat/completions": "/v1", "/openai/v1" or ""
    # Secrets are among them: never printed, never written to a file.
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeouts: Timeouts = Timeouts()

    @property
    def authority(self) -> str:
        """Host and port as a URL holds them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def endpoint(self, path: str) -> str:
        """The full URL of a path below the base, for people to read."""
        return f"http://{self.authority}{self.base_path}{path}"


def parse_target(
    url: str,
    *,
    headers: Iterable[tuple[str, str]] = (),
    api_key: str | None = None,
    timeouts: Timeouts = Timeouts(),
) -> Target:
    """The target that `url` names: host:port, a base URL with or without /v1, or a full endpoint.

    Where the URL names no API version, /v1 is assumed; probe() looks whether the server agrees.
    """
    text = url.strip()
    if not text:
        raise TargetError("no target given; name one as --target http://HOST:PORT")
    if "://" not in text:
        text = f"http://{text}"
    scheme = text.split("://", 1)[0].lower()
    if scheme == "https":
        raise TargetError(f"TLS is not supported yet: {_shown(url)}; use an http:// address")
    if scheme != "http":
        raise TargetError(f"{_shown(url)}: unknown scheme {scheme!r}; expected http://HOST:PORT")
    host, port, path = _split(text, url)
    given = _without_endpoint(path)
    return Target(
        url=f"http://{urlsplit(text).netloc}{given}",
        host=host,
        port=port,
        base_path=given if given != path.rstrip("/") or _versioned(given) else f"{given}/v1",
        headers=_checked_headers(headers, api_key),
        timeouts=timeouts,
    )


def _split(text: str, url: str) -> tuple[str, int, str]:
    if re.match(r"\w+://[^/@\[]*:[^/@\[]*:[^/@\[]*(/|$)", text):
        raise TargetError(f"{_shown(url)}: an IPv6 address goes in brackets: http://[::1]:8000")
    try:
        parts = urlsplit(text)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError as error:
        raise TargetError(f"{_shown(url)}: {error}; expected http://HOST:PORT") from None
    if parts.username is not None or parts.password is not None:
        raise TargetError(
            f"{_shown(url)}: credentials in the URL are not supported; "
            "give them by --header or --api-key-env"
        )
    if parts.query or parts.fragment:
        raise TargetError(f"{_shown(url)}: a base URL has no query or fragment; leave them out")
    if not host or any(character.isspace() for character in text):
        raise TargetError(f"{_shown(url)}: no host in it; expected http://HOST:PORT")
    if port == 0:
        raise TargetError(f"{_shown(url)}: port 0 cannot be connected to; expected 1..65535")
    return host, port or 80, quote(parts.path, safe="/%:@!$&'()*+,;=~")


def _without_endpoint(path: str) -> str:
    path = path.rstrip("/")
    for endpoint in ENDPOINTS:
        if path.endswith(endpoint):
            return path.removesuffix(endpoint)
    return path


def _versioned(path: str) -> bool:
    return re.search(r"/v\d+\w*$", path) is not None


def _shown(url: str) -> str:
    """The URL for a message, without a password that it may hold."""
    return re.sub(r"//[^/@]*@", "//***@", url.strip())


def _checked_headers(
    headers: Iterable[tuple[str, str]], api_key: str | None
) -> tuple[tuple[str, str], ...]:
    checked = []
    for name, value in headers:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise TargetError(f"header name {name!r} is not valid; expected 'Name: value'")
        checked.append((name, _header_value(value, f"header {name}")))
    if api_key and not any(name.lower() == "authorization" for name, _ in checked):
        checked.append(("Authorization", f"Bearer {_header_value(api_key, 'the API key')}"))
    return tuple(checked)


def _header_value(value: str, what: str) -> str:
    # The value is not shown: it may be a secret.
    value = value.strip()
    if not value.isprintable() or not all(ord(character) < 256 for character in value):
        raise TargetError(f"{what} holds a character that no HTTP header may hold")
    return value
