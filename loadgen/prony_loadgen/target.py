"""Where to send requests and how: a URL as people type it goes in, a Target comes out."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from prony_loadgen.proxy import Proxy, ProxyError, parse_proxy, proxy_for
from prony_loadgen.tls import TlsOptions

# What people paste although only what stands before it is asked for.
ENDPOINTS = (
    "/chat/completions",
    "/completions",
    "/models",
    "/responses",
    "/messages",
    "/api/chat",
    "/api/generate",
    "/api/tags",
    "/generate_stream",
    "/generate",
)
# Every request has these from us; a second one would tell the server otherwise.
OUR_HEADERS = frozenset({"content-length", "transfer-encoding", "traceparent"})
EXPECTED = "http://HOST:PORT, https://HOST or unix:///PATH"


class TargetError(ValueError):
    """The target cannot be used as named: one line that says what is wrong and what would help."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds, each counted from when we set out to send the request.

    `between_tokens` counts from one token to the next.
    """

    connect: float = 5.0
    first_token: float | None = None
    total: float = 300.0
    between_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Whether a request that a target refused for now (429, 503), or that found no connection, is
    sent again. All tries together have the time of one request, `Timeouts.total`.
    """

    most: int  # tries after the first
    honour_retry_after: bool = True  # wait as long as the server asks, where it does


@dataclass(frozen=True, slots=True)
class Target:
    """A server that speaks one of the dialects."""

    url: str  # the base URL as the user named it, without a trailing slash
    host: str  # an IPv6 address without its brackets
    port: int
    base_path: str  # what stands before "/chat/completions": "/v1", "/openai/v1" or ""
    # Secrets are among them: never printed, never written to a file.
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeouts: Timeouts = Timeouts()
    retry: Retry | None = None  # None: each request is sent once
    tls: TlsOptions | None = None  # None: plain HTTP
    proxy: Proxy | None = None
    unix: str | None = None  # the path of a Unix socket, in place of host and port
    given_path: str = ""  # the path of the URL as the user named it
    api_key: str | None = field(default=None, repr=False)
    # What the probe found out.
    left_out: tuple[str, ...] = ()  # fields of a body that the server refuses
    renamed: tuple[tuple[str, str], ...] = ()  # fields that it takes under another name
    context: int | None = None  # tokens of a prompt and its answer together, where it tells
    notes: tuple[str, ...] = ()  # lines for people, printed before load

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @property
    def authority(self) -> str:
        """Host and port as a URL holds them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def host_header(self) -> str:
        """The value of the header Host."""
        if self.unix is not None:
            return "localhost"
        return self.authority.removesuffix(":80" if self.tls is None else ":443")

    def route(self) -> str:
        """How it is reached, for people: "directly", or what stands in between."""
        ways = [] if self.proxy is None else [f"through the proxy {self.proxy.url}"]
        if self.tls is not None and self.tls.insecure:
            ways.append("without checking its certificate")
        return ", ".join(ways) or "directly"

    def path(self, path: str, *, versioned: bool = True) -> str:
        """The full path of one that lies below the API's version, or beside it."""
        if versioned:
            return f"{self.base_path}{path}"
        base = re.sub(r"/v\d+\w*$", "", self.base_path)
        # Ollama's users name its /api, which its paths begin with.
        return f"{base.removesuffix('/api')}{path}"

    def fitted(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body without what the server refuses, by the names that it takes."""
        return fitted(body, self.left_out, self.renamed)

    def endpoint(self, path: str, *, versioned: bool = True) -> str:
        """The full URL of such a path, for people to read."""
        full = self.path(path, versioned=versioned)
        if self.unix is not None:
            return f"unix://{self.unix} {full}"
        return f"{self.scheme}://{self.authority}{full}"


def fitted(
    body: Mapping[str, Any], left_out: Iterable[str], renamed: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """A body without some fields, and with others under another name."""
    names = dict(renamed)
    return {names.get(k, k): v for k, v in body.items() if k not in left_out}


def parse_target(
    url: str,
    *,
    headers: Iterable[tuple[str, str]] = (),
    api_key: str | None = None,
    timeouts: Timeouts = Timeouts(),
    retry: Retry | None = None,
    tls: TlsOptions | None = None,
    proxy: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Target:
    """The target that `url` names: host:port, a base URL with or without /v1, or a full endpoint.

    Where the URL names no API version, /v1 is assumed; probe() looks whether the server agrees.
    `proxy` is one that is to be used whatever the target is; else `environ` names one, or not.
    """
    text = url.strip()
    if not text:
        raise TargetError("no target given; name one as --target http://HOST:PORT")
    if "://" not in text:
        text = f"http://{text}"
    scheme = text.split("://", 1)[0].lower()
    common = {
        "headers": _checked_headers(headers, api_key),
        "api_key": api_key,
        "timeouts": timeouts,
        "retry": retry,
    }
    if scheme == "unix":
        path = text.split("://", 1)[1]
        if not path.startswith("/") or path.endswith("/") or "\0" in path:
            raise TargetError(f"{_shown(url)}: expected the path of a socket, as unix:///run/llm")
        return Target(
            url=f"unix://{path}",
            host="localhost",
            port=80,
            base_path="/v1",
            unix=path,
            **common,  # type: ignore[arg-type]
        )
    if scheme not in ("http", "https"):
        raise TargetError(f"{_shown(url)}: unknown scheme {scheme!r}; expected {EXPECTED}")
    host, port, path = _split(text, url, 443 if scheme == "https" else 80)
    given = _without_endpoint(path)
    try:
        through = (
            proxy_for(scheme, host, port, environ or {})
            if proxy is None
            else parse_proxy(proxy, "--proxy")
        )
    except ProxyError as error:
        raise TargetError(str(error)) from None
    return Target(
        url=f"{scheme}://{urlsplit(text).netloc}{given}",
        host=host,
        port=port,
        base_path=given if given != path.rstrip("/") or _versioned(given) else f"{given}/v1",
        tls=(tls or TlsOptions()) if scheme == "https" else None,
        proxy=through,
        given_path=given,
        **common,  # type: ignore[arg-type]
    )


def _split(text: str, url: str, default_port: int) -> tuple[str, int, str]:
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
    return host, port or default_port, quote(parts.path, safe="/%:@!$&'()*+,;=~")


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
        if name.lower() in OUR_HEADERS:
            raise TargetError(f"header {name}: Prony sets it itself; leave it out")
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
