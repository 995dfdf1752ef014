"""A server that knows when it really wrote each token: what any load tester can be measured by.

It answers chat and completions requests with as many tokens as they ask for, at a given pace, and
notes the clock just before each send. `GET /truth` gives what it noted, by the trace id of the
request's traceparent, and forgets it. It runs in its own process, which can be kept on one
processor: `with GroundTruth(Pace(ttft=0.1, itl=0.02), cpu=1) as server: ... server.truth()`.
"""

import argparse
import contextlib
import gc
import heapq
import itertools
import json
import os
import random
import re
import select
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Self

MODEL = "ground-truth"
# So many sends before sockets are looked at again.
SENDS_A_TURN = 64
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_TRACE = re.compile(rb"\r\ntraceparent: *00-([0-9a-f]{32})-", re.I)
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Pace:
    """How the server answers. All times in seconds."""

    ttft: float = 0.0  # from the request's arrival to the first write
    jitter: float = 0.0  # the first write comes up to so much sooner or later
    itl: float = 0.0  # from write to write, at absolute times: lateness does not add up
    tokens: int = 100  # where a request asks for no number
    per_write: int = 1  # tokens; each has an HTTP chunk and an event of its own


class Truth(NamedTuple):
    """What really happened to one request, on the machine's monotonic clock."""

    id: str | None  # the trace id; None where the request brought none
    read: float  # when the request had arrived
    writes: tuple[float, ...]  # just before each send
    tokens: int

    @property
    def ttft(self) -> float:
        return self.writes[0] - self.read


class GroundTruthError(RuntimeError):
    """The server did not start or has died."""


class GroundTruth:
    """The server in a process of its own, from `with` to its end."""

    def __init__(self, pace: Pace, *, cpu: int | None = None, seed: int = 0) -> None:
        facts = asdict(pace).items()
        self._options = [f"--{key.replace('_', '-')}={value}" for key, value in facts]
        self._options.append(f"--seed={seed}")
        if cpu is not None:
            self._options.append(f"--cpu={cpu}")
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "prony_loadgen.ground_truth", *self._options]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.__exit__()
            raise GroundTruthError("the ground-truth server did not start")
        self.port = int(line)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # which ends it
        self._process.stdout.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def truth(self) -> list[Truth]:
        """What was answered since the last call, in order of the answers' ends."""
        noted = self._told("/truth")["requests"]
        return [Truth(id, read, tuple(writes), tokens) for id, read, writes, tokens in noted]

    def cpu_seconds(self) -> float:
        """Processor time that the server has used."""
        return float(self._told("/cpu")["seconds"])

    def _told(self, path: str) -> dict[str, Any]:
        with sockets.create_connection(("127.0.0.1", self.port), timeout=30) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: sock.recv(1 << 20), b""))
        if not answer:
            raise GroundTruthError("the ground-truth server has died")
        told: dict[str, Any] = json.loads(answer.split(b"\r\n\r\n", 1)[1])
        return told


class _Stream:
    """A connection, and the answer that it is being given."""

    __slots__ = (
        "first",
        "id",
        "left",
        "next_due",
        "read",
        "received",
        "sock",
        "tail",
        "token",
        "tokens",
        "unsent",
        "writes",
    )

    def __init__(self, sock: sockets.socket) -> None:
        self.sock = sock
        self.received = b""
        self.unsent = b""
        # Of the answer under way:
        self.id: str | None = None
        self.first = self.token = self.tail = b""
        self.tokens = 0
        self.left = 0  # writes
        self.next_due = self.read = 0.0
        self.writes: list[float] = []


class _Server:
    def __init__(self, pace: Pace, seed: int) -> None:
        self._pace = pace
        self._rng = random.Random(seed)
        self._listener = sockets.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        self._streams: dict[int, _Stream] = {}
        self._due: list[tuple[float, int, _Stream]] = []  # a heap
        self._number = itertools.count()
        self._noted: list[tuple[str | None, float, list[float], int]] = []

    def serve(self) -> None:
        """Until stdin is closed."""
        listener, stdin = self._listener.fileno(), sys.stdin.fileno()
        while True:
            for number, events in self._wait():
                if number == listener:
                    self._accept()
                elif number == stdin:
                    return
                elif events & select.EPOLLOUT:
                    self._resume(self._streams[number])
                else:
                    self._read(self._streams[number])
            now = time.monotonic()
            for _ in range(SENDS_A_TURN):
                if not self._due or self._due[0][0] > now:
                    break
                self._write(heapq.heappop(self._due)[2])

    def _wait(self) -> list[tuple[int, int]]:
        if not self._due:
            return self._poll.poll()
        left = self._due[0][0] - time.monotonic()
        if left > 0:
            # epoll counts whole milliseconds, select() does not.
            select.select([self._poll], [], [], left)
        return self._poll.poll(0)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
            _STAMPS.ask(sock)
            self._streams[sock.fileno()] = _Stream(sock)
            self._poll.register(sock, select.EPOLLIN)

    def _read(self, stream: _Stream) -> None:
        try:
            data, at = _STAMPS.receive(stream.sock)
        except BlockingIOError:
            return
        except OSError:
            data, at = b"", 0.0
        if not data:
            self._close(stream)
            return
        stream.received += data
        head, end, body = stream.received.partition(b"\r\n\r\n")
        if not end:
            return
        found = _LENGTH.search(head)
        length = int(found[1]) if found else 0
        if len(body) < length:
            return
        stream.received = body[length:]
        if head.startswith(b"POST "):
            self._begin(stream, head, body[:length], at)
        else:
            self._tell(stream, head.split(b" ", 2)[1])

    def _begin(self, stream: _Stream, head: bytes, body: bytes, at: float) -> None:
        try:
            asked = json.loads(body)
            tokens = asked.get("max_completion_tokens") or asked.get("max_tokens")
            tokens = int(tokens or self._pace.tokens)
        except (ValueError, AttributeError, TypeError):
            self._answer(stream, {"error": {"message": "not a JSON object"}}, "400 Bad Request")
            return
        pace = self._pace
        found = _TRACE.search(head)
        stream.id = found[1].decode() if found else None
        name = stream.id or f"{next(self._number):032x}"
        chat = b"/chat/" in head.split(b"\r\n", 1)[0]
        token = _chunk(_event(name, chat, " token"))
        stream.tokens = tokens
        per_write = pace.per_write
        stream.left = -(-tokens // per_write)
        last = tokens - per_write * (stream.left - 1)
        stream.token = token * per_write
        usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
        end = [
            _event(name, chat, "", "length"),
            b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n",
            b"data: [DONE]\n\n",
        ]
        stream.tail = token * last + b"".join(map(_chunk, end)) + b"0\r\n\r\n"
        stream.first = _HEAD + (_chunk(_event(name, chat, None)) if chat else b"")
        stream.read, stream.writes = at, []
        jitter = self._rng.uniform(-pace.jitter, pace.jitter) if pace.jitter else 0.0
        stream.next_due = at + pace.ttft + jitter
        self._plan(stream)

    def _plan(self, stream: _Stream) -> None:
        heapq.heappush(self._due, (stream.next_due, next(self._number), stream))

    def _write(self, stream: _Stream) -> None:
        stream.left -= 1
        data = stream.token if stream.left else stream.tail
        if not stream.writes:
            data = stream.first + data
        number = stream.sock.fileno()
        if number < 0:
            return
        stream.writes.append(time.monotonic())
        try:
            sent = stream.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(stream)
            return
        if sent < len(data):
            stream.unsent = data[sent:]
            self._poll.modify(number, select.EPOLLOUT)
        else:
            self._written(stream)

    def _resume(self, stream: _Stream) -> None:
        try:
            sent = stream.sock.send(stream.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._close(stream)
            return
        stream.unsent = stream.unsent[sent:]
        if not stream.unsent:
            self._poll.modify(stream.sock, select.EPOLLIN)
            self._written(stream)

    def _written(self, stream: _Stream) -> None:
        if stream.left:
            stream.next_due += self._pace.itl
            self._plan(stream)
        else:
            self._noted.append((stream.id, stream.read, stream.writes, stream.tokens))

    def _tell(self, stream: _Stream, path: bytes) -> None:
        if path == b"/truth":
            noted, self._noted = self._noted, []
            self._answer(stream, {"requests": noted})
        elif path == b"/cpu":
            self._answer(stream, {"seconds": time.process_time()})
        elif path.endswith(b"/models"):
            self._answer(stream, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            self._answer(stream, {"error": {"message": "not found"}}, "404 Not Found")

    def _answer(self, stream: _Stream, told: dict[str, Any], status: str = "200 OK") -> None:
        body = json.dumps(told).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        with contextlib.suppress(OSError):
            # Nothing is timed while somebody asks for this.
            stream.sock.settimeout(30)
            stream.sock.sendall(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
        self._close(stream)

    def _close(self, stream: _Stream) -> None:
        if stream.sock.fileno() >= 0:
            del self._streams[stream.sock.fileno()]
            self._poll.unregister(stream.sock)
            stream.sock.close()


class _Stamps:
    """The kernel's time for requests, so that a server that is busy does not shorten its truth."""

    def __init__(self) -> None:
        # As the client does it, with the same means.
        from prony_loadgen import timestamps

        self.ask = timestamps.ask_for_stamps
        self._receiver = timestamps.Receiver()
        self._wall = timestamps.WallClock()

    def receive(self, sock: sockets.socket) -> tuple[bytes, float]:
        self._wall.check()
        data, stamp = self._receiver.receive(sock)
        now = time.monotonic()
        at = self._wall.arrival(stamp, 0.0, now)
        return data, now if at is None else at


_STAMPS = _Stamps()


def _event(name: str, chat: bool, text: str | None, finish: str | None = None) -> bytes:
    said: dict[str, Any] = {"text": text}
    if chat:
        delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
        said = {"delta": delta}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
    facts = {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
    }
    return b"data: " + json.dumps(facts, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the port, then serves until stdin is closed."""
    parser = argparse.ArgumentParser(
        prog="python -m prony_loadgen.ground_truth", description=main.__doc__
    )
    for field in fields(Pace):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", type=int, help="the only processor to run on")
    options = parser.parse_args(arguments)
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    pace = Pace(**{field.name: getattr(options, field.name) for field in fields(Pace)})
    server = _Server(pace, options.seed)
    gc.collect()
    gc.disable()  # its pauses would be the server's
    print(server.port, flush=True)
    server.serve()


if __name__ == "__main__":
    main()
