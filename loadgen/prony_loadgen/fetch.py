"""One plain HTTP request to a target: a path goes in, status, headers and body come out.

For what is asked of a target beside the load, such as its list of models. It blocks.
"""

import socket as sockets
import time
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

from prony_loadgen import native
from prony_loadgen.connection import Addresses
from prony_loadgen.http_response import ResponseReader
from prony_loadgen.proxy import ProxyError, Tunnel
from prony_loadgen.target import Target, TargetError
from prony_loadgen.tls import TlsError, TlsFileError, TlsSession, tls_context


class FetchError(Exception):
    """No HTTP answer came; the message says why."""


class Fetched(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def fetch(
    target: Target,
    path: str,
    timeout: float,
    *,
    headers: Iterable[tuple[str, str]] = (),
    most: int | None = None,
    post: bytes | None = None,
    into: BinaryIO | None = None,
) -> Fetched:
    """What the target answers to GET `path`, a full path, within `timeout` and `most` bytes.

    `post` is the body of a POST in its place, JSON; `into` is where the answer's body is written,
    piece by piece, which is then empty here.

    Raises FetchError, and TargetError where the target's name has no address or a certificate
    cannot be used.
    """
    addresses = Addresses(target)
    ends = time.monotonic() + timeout
    failure, asked = "", False
    for index in addresses.order():
        if asked and post is not None:
            break  # it may have been heard: a POST is never said twice
        family, address = addresses.address(index)
        try:
            with native.Socket(family) as sock:
                sock.settimeout(min(timeout, target.timeouts.connect))
                sock.connect(address)
                pipe, asked = _Pipe(sock, target, ends), True
                pipe.send(_head(target, path, headers, post) + (post or b""))
                return _answer(pipe, most, into)
        except TimeoutError:
            failure = f"no answer within {timeout:g} s"
        except (TlsError, ProxyError) as error:
            raise FetchError(str(error)) from None
        except OSError as error:
            failure = (error.strerror or str(error)).lower()
    raise FetchError(failure)


def _head(target: Target, path: str, more: Iterable[tuple[str, str]], post: bytes | None) -> bytes:
    through = target.proxy if target.tls is None else None
    given = {name.lower() for name, _ in target.headers}
    ours = [("Host", target.host_header), ("Accept", "application/json"), *more]
    if post is not None:
        ours += [("Content-Type", "application/json"), ("Content-Length", str(len(post)))]
    headers = [(name, value) for name, value in ours if name.lower() not in given]
    headers += [*target.headers, *(() if through is None else through.headers)]
    whole = "" if through is None else f"http://{target.host_header}"
    method = "GET" if post is None else "POST"
    lines = [f"{method} {whole}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "Connection: close", "\r\n"]).encode("latin-1")


class _Pipe:
    """A connected socket, inside a proxy's tunnel and TLS where the target wants them."""

    def __init__(self, sock: sockets.socket, target: Target, ends: float) -> None:
        self._sock, self._ends = sock, ends
        self._tls: TlsSession | None = None
        if target.tls is None:
            return
        rest: bytes | None = b""
        if target.proxy is not None:
            tunnel = Tunnel(target.proxy, target.authority)
            sock.sendall(tunnel.request)
            rest = None
            while rest is None:
                rest = tunnel.received(self._raw() or _closed())
        try:
            self._tls = TlsSession(tls_context(target.tls), target.host)
        except TlsFileError as error:
            raise TargetError(str(error)) from None
        self._tls.received(rest or b"")
        sock.sendall(self._tls.outgoing())
        while not self._tls.ready:
            self._tls.received(self._raw() or _closed())
            sock.sendall(self._tls.outgoing())

    def send(self, data: bytes) -> None:
        self._sock.sendall(data if self._tls is None else self._tls.encrypt(data))

    def receive(self) -> bytes:
        """The next bytes; none where the other side closed."""
        if self._tls is None:
            return self._raw()
        while True:
            raw = self._raw()
            told = self._tls.received(raw) if raw else b""
            if told or not raw or self._tls.ended:
                return told

    def _raw(self) -> bytes:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock.recv(65536)


def _closed() -> bytes:
    raise FetchError("the server closed the connection before it was set up")


def _answer(pipe: _Pipe, most: int | None, into: BinaryIO | None) -> Fetched:
    reader = ResponseReader()
    body = []
    size = 0
    while not reader.over:
        data = pipe.receive()
        if data:
            size += len(data)
            if most is not None and size > most:
                raise FetchError(f"the answer is larger than {most} bytes")
            piece = b"".join(reader.feed(data))
            if into is None:
                body.append(piece)
            else:
                into.write(piece)
        else:
            reader.end()
    if reader.broken is not None:
        raise FetchError(f"the answer is not HTTP: {reader.broken}")
    if reader.status is None or not reader.complete:
        raise FetchError("the server closed the connection before the end of its answer")
    return Fetched(reader.status, reader.headers, b"".join(body))
