"""One streaming client at work, in a process and on a processor of its own: what it saw, as JSON.

Used by client.py and fidelity.py. Each client keeps `streams` connections alive, one request after
another on each, as its users would write it:

* prony: the load generator's client, as every run uses it;
* fasthttp: Locust's FastHttpUser, one user a stream, reading the answer's lines;
* aiohttp: one session on asyncio's default loop, one task a stream, reading the answer's lines.

All note the time of every token themselves, and decode the JSON of the first and last events only,
or of all (`--json all`).
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

CLIENTS = ("prony", "fasthttp", "aiohttp")
PATH = "/v1/chat/completions"


class Load(NamedTuple):
    """What to do: a warm-up request on each stream, then `seconds` of load."""

    url: str
    streams: int
    tokens: int
    seconds: float
    cycle: float  # starts are spread evenly over so many seconds
    json: Literal["ends", "all"]
    times: bool  # whether to tell the time of every token


class Seen(NamedTuple):
    """One request: trace id, when it was sent, when each token came."""

    id: str
    sent: float
    arrivals: list[float]
    tokens: int
    connect: float | None = None  # seconds that connecting took, where the client says it


class Schedule:
    """When each stream begins, and what it sends: the same for every client."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.body = json.dumps(
            {
                "model": "ground-truth",
                "messages": [{"role": "user", "content": "Hello"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": load.tokens,
            }
        ).encode()
        self.begins = float("inf")
        self.seen: list[Seen] = []

    def begin(self) -> None:
        """All streams are warm."""
        self.seen.clear()
        gc.collect()
        gc.freeze()
        self.begins = time.monotonic() + 0.1

    @property
    def ends(self) -> float:
        return self.begins + self.load.seconds

    def start_of(self, stream: int) -> float:
        return self.begins + self.load.cycle * stream / self.load.streams


def trace_id(stream: int, number: int) -> str:
    return f"{stream + 1:016x}{number:016x}"


class Lines:
    """What a user's loop over the lines of an answer does with each of them."""

    def __init__(self, schedule: Schedule) -> None:
        self._all = schedule.load.json == "all"
        self.arrivals: list[float] = []
        self._last = self._before = b""
        self.tokens = 0

    def take(self, line: bytes) -> bool:
        """Whether it was the last."""
        if not line.startswith(b"data: "):
            return False
        data = line[6:]
        if data.startswith(b"[DONE]"):
            for each in (self._before, self._last):
                if usage := json.loads(each).get("usage"):
                    self.tokens = usage["completion_tokens"]
            return True
        if self._all or not self.arrivals:
            choices = json.loads(data)["choices"]
            content = bool(choices) and bool(choices[0]["delta"].get("content"))
        else:
            # The two events before [DONE] are no tokens; what they are shows only after them.
            content = True
        if content:
            self.arrivals.append(time.monotonic())
        self._before, self._last = self._last, data
        return False

    def whole(self) -> list[float]:
        """The times of the tokens alone."""
        return self.arrivals[: self.tokens]


def prony(schedule: Schedule, ready: Callable[[], None]) -> None:
    from prony_loadgen.client import Client, Request
    from prony_loadgen.record import RequestRecord
    from prony_loadgen.target import parse_target

    if schedule.load.json == "all":
        from prony_loadgen.shortcut import Shortcuts

        # Without what it learned, every event is decoded.
        Shortcuts.learn = lambda *_: None  # type: ignore[method-assign]
    sys.setswitchinterval(0.0005)  # as a run does
    counts = [0] * schedule.load.streams
    warm = threading.Semaphore(0)
    over = threading.Semaphore(0)
    origin = 0.0

    def request(stream: int, at: float) -> Request:
        counts[stream] += 1
        trace = trace_id(stream, counts[stream])
        return Request(
            id=str(stream),
            cls="chat",
            dialect="openai-chat",
            body=schedule.body,
            intended=at,
            trace_id=trace,
            span_id=trace[:16],
        )

    def on_record(record: RequestRecord) -> None:
        if not record.ok:
            raise RuntimeError(f"{record.outcome}: {record.error}")
        assert record.sent is not None and record.trace_id is not None
        stream = int(record.id)
        if counts[stream] == 1:
            connect = None if record.connected is None else record.connected - record.sent
            connects.append(connect)
            warm.release()
            return
        times = [a.at for a in record.arrivals] if schedule.load.times else []
        seen = Seen(record.trace_id, record.sent, times, record.output_tokens or 0)
        schedule.seen.append(seen)
        if time.monotonic() < schedule.ends:
            client.submit(request(stream, time.monotonic()))
        else:
            over.release()

    connects: list[float | None] = []
    client = Client(parse_target(schedule.load.url), origin=origin, on_record=on_record)
    client.start()
    now = time.monotonic()
    # A whole burst of connects would be a test of the server's backlog.
    for stream in range(schedule.load.streams):
        client.submit(request(stream, now + stream * 0.001))
    for _ in range(schedule.load.streams):
        warm.acquire(timeout=30)
    ready()
    for stream in range(schedule.load.streams):
        client.submit(request(stream, schedule.start_of(stream)))
    for _ in range(schedule.load.streams):
        over.acquire(timeout=30 + schedule.load.seconds)
    client.close(5.0)
    known = [connect for connect in connects if connect is not None]
    schedule.seen.append(Seen("", 0.0, known, 0))


def fasthttp(schedule: Schedule, ready: Callable[[], None]) -> None:
    import gevent
    from gevent.event import Event
    from locust import FastHttpUser, task
    from locust.env import Environment

    warm, go = [0], Event()
    streams = iter(range(schedule.load.streams))

    class Reader(FastHttpUser):
        host = schedule.load.url
        stream = 0

        def on_start(self) -> None:
            self.stream, self.count = next(streams), 0
            self.ask()
            warm[0] += 1

        def ask(self) -> None:
            self.count += 1
            trace = trace_id(self.stream, self.count)
            headers = {
                "Content-Type": "application/json",
                "traceparent": f"00-{trace}-{trace[:16]}-01",
            }
            lines = Lines(schedule)
            sent = time.monotonic()
            with self.client.post(
                PATH, data=schedule.body.decode(), headers=headers, stream=True, catch_response=True
            ) as response:
                read = response.stream.readline
                while not lines.take(read(b"\n")):
                    pass
                response.stream.read()  # the end of the body, so that the connection is kept
                response.success()
            times = lines.whole() if schedule.load.times else []
            schedule.seen.append(Seen(trace, sent, times, lines.tokens))

        @task
        def drive(self) -> None:
            go.wait()
            gevent.sleep(max(0.0, schedule.start_of(self.stream) - time.monotonic()))
            while time.monotonic() < schedule.ends:
                self.ask()
            gevent.sleep(3600)

    runner = Environment(user_classes=[Reader]).create_local_runner()
    runner.start(schedule.load.streams, spawn_rate=schedule.load.streams)
    while warm[0] < schedule.load.streams:
        gevent.sleep(0.05)
    ready()
    go.set()
    gevent.sleep(max(0.0, schedule.ends - time.monotonic()) + 3 * schedule.load.cycle + 0.2)
    runner.quit()


def aiohttp(schedule: Schedule, ready: Callable[[], None]) -> None:
    import asyncio

    import aiohttp

    async def ask(session: aiohttp.ClientSession, stream: int, number: int) -> None:
        trace = trace_id(stream, number)
        headers = {
            "Content-Type": "application/json",
            "traceparent": f"00-{trace}-{trace[:16]}-01",
        }
        lines = Lines(schedule)
        sent = time.monotonic()
        url = schedule.load.url + PATH
        async with session.post(url, data=schedule.body, headers=headers) as response:
            async for line in response.content:
                lines.take(line)
        times = lines.whole() if schedule.load.times else []
        schedule.seen.append(Seen(trace, sent, times, lines.tokens))

    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            streams = range(schedule.load.streams)
            await asyncio.gather(*(ask(session, stream, 1) for stream in streams))
            ready()

            async def drive(stream: int) -> None:
                number = 1
                await asyncio.sleep(max(0.0, schedule.start_of(stream) - time.monotonic()))
                while time.monotonic() < schedule.ends:
                    number += 1
                    await ask(session, stream, number)

            await asyncio.gather(*(drive(stream) for stream in streams))

    asyncio.run(main())


def run_client(client: str, load: dict[str, Any], cpu: int) -> dict[str, Any]:
    """What one run of one client saw, in a process of its own; `load` is a Load."""
    command = [sys.executable, __file__, client, json.dumps(load), f"--cpu={cpu}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{client} failed:\n{done.stderr}")
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def processors() -> tuple[int, int]:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("needs two processors: one for the client, one for the server")
    return usable[0], usable[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("load", help="a Load as JSON")
    parser.add_argument("--cpu", type=int, default=0)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.cpu})
    schedule = Schedule(Load(**json.loads(options.load)))
    cpu = 0.0

    def ready() -> None:
        nonlocal cpu
        schedule.begin()
        cpu = time.process_time()

    {"prony": prony, "fasthttp": fasthttp, "aiohttp": aiohttp}[options.client](schedule, ready)
    used = time.process_time() - cpu
    connects: list[float] = []
    if schedule.seen and not schedule.seen[-1].id:
        connects = schedule.seen.pop().arrivals
    seen = schedule.seen
    report = {
        "tokens": sum(each.tokens for each in seen),
        "cpu": used,
        "seconds": schedule.load.seconds,
        "connects": connects,
        "seen": seen if schedule.load.times else [],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
