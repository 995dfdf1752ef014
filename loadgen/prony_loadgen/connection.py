"""Non-blocking connections to one target: addresses go in, sockets come out, failures as text.

Names are resolved once. The address that worked is remembered, so that a name with several costs
nothing after the first connection.
"""

import errno
import os
import socket as sockets
from typing import Any

from prony_loadgen import native
from prony_loadgen.target import Target, TargetError
from prony_loadgen.timestamps import ask_for_stamps

# Faults of this machine, not of the target: no run can be trusted after one.
OUR_FAULTS = {
    errno.EMFILE: "this process may open no more files; raise `ulimit -n`",
    errno.ENFILE: "this machine may open no more files",
    errno.ENOBUFS: "this machine has no socket buffers left",
    errno.ENOMEM: "this machine has no memory left",
}


class ClientError(RuntimeError):
    """Our own side failed, so nothing measured can be trusted; the message says what to change."""


class Addresses:
    """Where a target, or the proxy before it, can be reached, best first."""

    def __init__(self, target: Target) -> None:
        """Resolves the name. Raises TargetError where it has no address."""
        self._good: int | None = None
        self._known: list[tuple[int, Any]]
        if target.unix is not None:
            self._known = [(sockets.AF_UNIX, target.unix)]
            return
        host, port = target.host, target.port
        if target.proxy is not None:
            host, port = target.proxy.host, target.proxy.port
        try:
            found = native.getaddrinfo(host, port, type=sockets.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TargetError(f"cannot resolve the host name {host!r}: {reason}") from None
        # In this order by convention; many resolvers leave ::1 out or put it last.
        if host == "localhost":
            found.sort(key=lambda entry: entry[0] != sockets.AF_INET6)
        self._known = [(entry[0], entry[4]) for entry in found]

    @property
    def worked(self) -> bool:
        return self._good is not None

    def order(self) -> list[int]:
        """The indices to try, the one that last worked first."""
        indices = range(len(self._known))
        return sorted(indices, key=lambda index: index != self._good)

    def succeeded(self, index: int) -> None:
        self._good = index

    def address(self, index: int) -> tuple[int, Any]:
        """Socket family and socket address."""
        return self._known[index]

    def shown(self, index: int) -> str:
        family, address = self._known[index]
        if family == sockets.AF_UNIX:
            return str(address)
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def begin_connect(addresses: Addresses, index: int) -> sockets.socket | str:
    """A socket that is connecting to one of the addresses, or why it cannot.

    Raises ClientError where this machine is at fault.
    """
    family, address = addresses.address(index)
    try:
        sock = native.Socket(family, sockets.SOCK_STREAM)
    except OSError as error:
        return _failure(error.errno or 0, addresses, index)
    sock.setblocking(False)
    if family != sockets.AF_UNIX:
        sock.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        ask_for_stamps(sock)
    try:
        code = sock.connect_ex(address)
    except OSError as error:  # the path of a Unix socket is too long
        sock.close()
        return f"{error} ({addresses.shown(index)})"
    # A Unix socket connects at once or not at all.
    if code in (0, errno.EINPROGRESS) or (code == errno.EWOULDBLOCK and family != sockets.AF_UNIX):
        return sock
    sock.close()
    return _failure(code, addresses, index)


def connect_result(sock: sockets.socket, addresses: Addresses, index: int) -> str | None:
    """Once the socket is writable: None where it is connected, else why it is not."""
    code = sock.getsockopt(sockets.SOL_SOCKET, sockets.SO_ERROR)
    return _failure(code, addresses, index) if code else None


def _failure(code: int, addresses: Addresses, index: int) -> str:
    if code in OUR_FAULTS:
        raise ClientError(f"{os.strerror(code)}: {OUR_FAULTS[code]}")
    # Without IPv6, ::1 fails by the same code as a machine without free ports.
    if code == errno.EADDRNOTAVAIL and addresses.worked:
        raise ClientError(
            f"no local port is left for {addresses.shown(index)}: more connections were closed "
            "in the last minute than this machine has ports; lower the rate or keep connections "
            "alive"
        )
    return f"{os.strerror(code)} ({addresses.shown(index)})"
