"""A real server on loopback that answers with given bytes: a script goes in, a port comes out.

For tests that need to say exactly what a server does on the socket, and to see what it was sent.
"""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# What a server does with one request: it is given the connection and the request's bytes.
Script = Callable[["Peer", bytes], None]


@dataclass
class Peer:
    """One accepted connection."""

    sock: socket.socket
    number: int  # of the connection, from 0
    closed: bool = False
    _buffer: bytes = field(default=b"", repr=False)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def reset(self) -> None:
        """Closes so that the other side sees a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def request(self) -> bytes | None:
        """The next request, head and body; None where the client closed."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                return None
        head, rest = self._buffer.split(b"\r\n\r\n", 1)
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self._buffer = rest
        while len(self._buffer) < length:
            if not self._more():
                return None
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return head + b"\r\n\r\n" + body

    def _more(self) -> bool:
        try:
            data = self.sock.recv(65536)
        except OSError:
            return False
        self._buffer += data
        return bool(data)


class ReplayServer:
    """Runs `script` for every request on every connection, each connection in its own thread."""

    def __init__(
        self, script: Script, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        """`host` may be the path of a Unix socket to make."""
        self._script, self._tls = script, tls
        if host.startswith("/"):
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(host)
            self._listener.listen(512)
            self.port, self.url = 0, f"unix://{host}"
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, 0), family=family, backlog=512)
            self.port = self._listener.getsockname()[1]
            name = f"[{host}]" if ":" in host else host
            self.url = f"{'https' if tls else 'http'}://{name}:{self.port}"
        self.connections = 0
        self.requests: list[bytes] = []
        self._peers: list[Peer] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(sock, self.connections)
            self._peers.append(peer)
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(peer,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: Peer) -> None:
        with contextlib.suppress(OSError):
            self._serve_requests(peer)
        peer.sock.close()

    def _serve_requests(self, peer: Peer) -> None:
        if self._tls is not None:
            peer.sock = self._tls.wrap_socket(peer.sock, server_side=True)
        with peer.sock:
            while not peer.closed and (request := peer.request()) is not None:
                self.requests.append(request)
                self._script(peer, request)


@contextlib.contextmanager
def serving(
    script: Script, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[ReplayServer]:
    server = ReplayServer(script, host, tls)
    try:
        yield server
    finally:
        server.stop()


def paced(peer: Peer, raw: bytes, plan: list[list[int]], speed: float) -> None:
    """Writes `raw` by its plan of [end offset, delay in ms], with delays scaled by `speed`."""
    position, due = 0, time.monotonic()
    for end, delay in plan:
        due += delay / 1000 * speed
        pause = due - time.monotonic()
        if speed and pause > 0:
            time.sleep(pause)
        if end > position:
            peer.send(raw[position:end])
            position = end


def chunked(*pieces: bytes, content_type: str = "text/event-stream") -> bytes:
    """A whole HTTP answer whose body comes in these chunks."""
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()
    return head + b"".join(chunk(piece) for piece in pieces) + b"0\r\n\r\n"


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def event(text: str) -> bytes:
    """An event of a chat stream with one token of text."""
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()


FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
HELLO = chunked(event("Hel"), event("lo"), FINISH, DONE)
