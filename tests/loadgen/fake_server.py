"""A small OpenAI-compatible server over real sockets, as a thread or a process of its own.

It answers each request with `max_tokens` words, so what was asked can be compared with what came.
`python -m tests.loadgen.fake_server` prints its port and serves until its stdin is closed.
"""

import json
import re
import socket
import ssl
import sys
import threading
import time
from typing import Any, Self

from prony_loadgen.probe import PROBE_TOKENS

MODEL = "fake"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
_HEADERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class FakeServer:
    """Serves until it leaves its `with` block. `bodies` holds the requests that it has read."""

    def __init__(
        self,
        *,
        first_token: float = 0.0,
        gap: float = 0.0,
        fail_after: int = -1,
        empty: bool = False,
        busy_every: int = 0,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Answers 500 once it has read `fail_after` requests (the probe is not counted).

        `empty` answers all but the probe without any output. Every `busy_every`th request gets a
        503, unless its prompt had one already.
        """
        self.first_token, self.gap, self.fail_after = first_token, gap, fail_after
        self.empty, self.busy_every = empty, busy_every
        self._put_off: set[str] = set()
        self.bodies: list[dict[str, Any]] = []
        self._counting = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.port: int = self._listening.getsockname()[1]
        self._tls = tls
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes the accept, which a close alone does not.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    # What other servers of the tests do otherwise.

    def listed(self) -> dict[str, Any]:
        """Its entry in the list of models."""
        return {"id": MODEL}

    def words(self, asked: dict[str, Any]) -> list[str]:
        """What it says, a token each."""
        return [f"w{number} " for number in range(asked["max_tokens"])]

    def count(self, asked: dict[str, Any]) -> int:
        """The tokens of a prompt."""
        return len((asked.get("prompt") or json.dumps(asked.get("messages"))).split())

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            try:
                connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError:  # a client that trusts nobody hangs up
                return
        received = b""
        with connection:
            try:
                while True:
                    while b"\r\n\r\n" not in received:
                        received += _read(connection)
                    head, _, received = received.partition(b"\r\n\r\n")
                    found = _LENGTH.search(head)
                    length = int(found[1]) if found else 0
                    while len(received) < length:
                        received += _read(connection)
                    body, received = received[:length], received[length:]
                    self._answer(connection, head.split(b" ")[1], body)
            except OSError:
                return

    def _answer(self, connection: socket.socket, path: bytes, body: bytes) -> None:
        if path.endswith(b"/models"):
            connection.sendall(_json({"data": [self.listed()]}))
            return
        if not body:
            connection.sendall(_json({"error": {"message": "not found"}}, 404))
            return
        asked = json.loads(body)
        probe = _is_probe(asked)
        with self._counting:
            self.bodies += [] if probe else [asked]
            number = len(self.bodies)
        prompt = json.dumps(asked.get("messages") or asked.get("prompt"))
        due = self.busy_every and not probe and number % self.busy_every == 0
        if due and prompt not in self._put_off:
            self._put_off.add(prompt)
            connection.sendall(_json({"error": {"message": "busy"}}, 503))
            return
        if 0 <= self.fail_after < number:
            connection.sendall(_json({"error": {"message": "no"}}, 500))
            return
        time.sleep(0 if probe else self.first_token)
        chat = path.endswith(b"/chat/completions")
        pieces = [_event(chat, word) for word in self.words(asked)]
        if self.empty and not probe:
            pieces = []
        usage = {"prompt_tokens": self.count(asked), "completion_tokens": len(pieces)}
        end = [
            _event(chat, "", "length"),
            _data({"choices": [], "usage": usage}),
            b"data: [DONE]\n\n",
        ]
        if self.gap:
            connection.sendall(_HEADERS)
            for piece in pieces:
                connection.sendall(_chunk(piece))
                time.sleep(self.gap)
            connection.sendall(b"".join(map(_chunk, end)) + b"0\r\n\r\n")
        else:
            connection.sendall(_HEADERS + b"".join(map(_chunk, pieces + end)) + b"0\r\n\r\n")


def _is_probe(asked: dict[str, Any]) -> bool:
    """Whether nobody's load is asked: a scenario may draw as few tokens, but not such words."""
    if asked["max_tokens"] != PROBE_TOKENS:
        return False
    text = asked.get("prompt") or asked["messages"][0]["content"]
    return len({len(word) for word in text.split()}) == 1


def _read(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionResetError
    return data


def _event(chat: bool, text: str, finish: str | None = None) -> bytes:
    said = {"delta": {"content": text}} if chat else {"text": text}
    return _data({"choices": [{"index": 0, "finish_reason": finish, **said}]})


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _json(value: dict[str, Any], status: int = 200) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


if __name__ == "__main__":
    with FakeServer(first_token=float(sys.argv[1]), gap=float(sys.argv[2])) as server:
        print(server.port, flush=True)
        sys.stdin.read()
