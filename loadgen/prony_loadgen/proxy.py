"""HTTP proxies: a target's address and the environment go in, which proxy to use comes out.

By the variables that curl and Python know: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in
either case. What runs on this machine is never asked for through a proxy.
"""

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

_LONGEST_HEAD = 65536


class ProxyError(ValueError):
    """A proxy cannot be used as named; the message names the variable."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that speaks plain HTTP to us."""

    host: str
    port: int
    # A secret may be among them: never printed, never written to a file.
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def url(self) -> str:
        """For people: without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def proxy_for(scheme: str, host: str, port: int, environ: Mapping[str, str]) -> Proxy | None:
    """The proxy that the environment names for `scheme://host:port`, if any. Raises ProxyError."""
    if is_loopback(host) or _excepted(host, port, _variable("no_proxy", environ)[1]):
        return None
    for name in (f"{scheme}_proxy", "all_proxy"):
        shown, url = _variable(name, environ)
        if url:
            return parse_proxy(url, shown)
    return None


def parse_proxy(url: str, named: str) -> Proxy:
    """The proxy at `url`, which `named` (a variable or option) holds. Raises ProxyError."""
    text = url if "://" in url else f"http://{url}"
    # The value is not shown where it may hold a password.
    shown = re.sub(r"//[^/@]*@", "//***@", text)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ProxyError(f"{named}={shown}: {error}; expected http://HOST:PORT") from None
    if parts.scheme.lower() != "http":
        raise ProxyError(
            f"{named}={shown}: only proxies that are spoken to by plain http are supported, "
            "as http://HOST:PORT"
        )
    if not host or port == 0:
        raise ProxyError(f"{named}={shown}: expected http://HOST:PORT")
    headers: tuple[tuple[str, str], ...] = ()
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers = (("Proxy-Authorization", f"Basic {base64.b64encode(login).decode()}"),)
    return Proxy(host, port or 80, headers)


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine: localhost, 127.0.0.0/8 or ::1."""
    if host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _variable(name: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The variable's name as it is set, and its value."""
    for spelled in (name, name.upper()):
        if value := environ.get(spelled, "").strip():
            return spelled, value
    return name, ""


def _excepted(host: str, port: int, no_proxy: str) -> bool:
    return any(
        _matches(entry.strip(), host.lower().rstrip("."), port)
        for entry in re.split(r"[,\s]+", no_proxy)
        if entry.strip()
    )


def _matches(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY means `host`: a name and all below, an address, a network."""
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if (found := re.fullmatch(r"(\[.+\]|[^:]+):(\d+)", entry)) is not None:
        if int(found[2]) != port:
            return False
        entry = found[1]
    name = entry.strip("[]").lower().removeprefix("*").removeprefix(".").rstrip(".")
    return host == name or host.endswith(f".{name}")


class Tunnel:
    """A way through a proxy to a host that is spoken to by TLS; without I/O."""

    def __init__(self, proxy: Proxy, authority: str) -> None:
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        lines += [f"{name}: {value}" for name, value in proxy.headers]
        self.request = "\r\n".join([*lines, "\r\n"]).encode("latin-1")
        self._proxy = proxy
        self._head = b""

    def received(self, data: bytes) -> bytes | None:
        """What follows the proxy's answer; None while it is not whole. Raises ProxyError."""
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(self._head) > _LONGEST_HEAD:
                raise ProxyError(f"the proxy {self._proxy.url} does not speak HTTP")
            return None
        line = head.split(b"\r\n")[0].decode("latin-1")
        if (found := re.match(r"HTTP/1\.\d (\d{3})", line)) is None:
            raise ProxyError(f"the proxy {self._proxy.url} does not speak HTTP")
        if not found[1].startswith("2"):
            raise ProxyError(f"the proxy {self._proxy.url} refused: {line[9:]}")
        return rest
