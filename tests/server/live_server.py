"""The real server on a free port, in a thread of the test's process, and ways to talk to it."""

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from prony_server.app import Stop, run
from prony_server.config import ServeConfig
from prony_server.trace_ring import TraceRing

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The stream's events, decoded but for the end mark."""
        assert self.headers["content-type"].startswith("text/event-stream")
        assert self.body.endswith(b"\n\n")
        lines = self.body.decode().strip("\n").split("\n\n")
        data = [line.removeprefix("data: ") for line in lines]
        return [each if each == "[DONE]" else json.loads(each) for each in data]


class LiveServer:
    """`spans` holds what was traced; `signal` does what SIGTERM does, `code` is the exit code."""

    def __init__(
        self,
        url: str,
        registry: CollectorRegistry,
        spans: InMemorySpanExporter,
        signal: Callable[[], None],
        code: Future[int],
        tasks: Callable[[], int] = lambda: 0,
    ) -> None:
        self.url = url
        self.signal = signal
        self.code = code
        self.tasks = tasks  # how many the server's event loop has
        self.registry = registry
        self.spans = spans
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self.address = (parts.hostname, parts.port)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        return self.ask("POST", path, json.dumps(body).encode(), {**JSON, **(headers or {})})

    def chat(self, content: Any = "hello", **body: Any) -> Answer:
        messages = [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"model": "tiny", "messages": messages, **body})

    def complete(self, prompt: Any = "hello", **body: Any) -> Answer:
        return self.post("/v1/completions", {"model": "tiny", "prompt": prompt, **body})

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def wait_for(self, name: str, value: float, **labels: str) -> None:
        """Until a metric shows the value: a request is accounted for just after its answer."""
        until(lambda: self.metric(name, **labels) == value, f"{name} is {value}")

    def wait_for_spans(self, last: str) -> dict[str, ReadableSpan]:
        """All finished spans by name, once the one named `last` is among them."""

        def spans() -> dict[str, ReadableSpan]:
            return {span.name: span for span in self.spans.get_finished_spans()}

        until(lambda: last in spans(), f"the span {last} has ended")
        return spans()


def until(true: Callable[[], bool], what: str) -> None:
    moment = threading.Event()
    for _ in range(4000):
        if true():
            return
        moment.wait(0.005)
    raise AssertionError(f"after 20 s it is not so that {what}")


@contextmanager
def live_server(**settings: Any) -> Iterator[LiveServer]:
    """Serves the tiny model until the block ends; `settings` are ServeConfig's."""
    config = ServeConfig(**{"model": "tiny", "port": 0, "torch_threads": 1, **settings})
    registry, spans, tracers = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    ring = TraceRing()
    tracers.add_span_processor(SimpleSpanProcessor(ring))
    started: Future[LiveServer] = Future()
    code: Future[int] = Future()

    async def serve() -> int:
        stop, loop = Stop(), asyncio.get_running_loop()

        def signal() -> None:
            with suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(stop.signalled)

        def tasks() -> int:
            counted: Future[int] = Future()
            loop.call_soon_threadsafe(lambda: counted.set_result(len(asyncio.all_tasks(loop))))
            return counted.result(timeout=60)

        def ready(url: str) -> None:
            started.set_result(LiveServer(url, registry, spans, signal, code, tasks))

        tracer = tracers.get_tracer("test")
        return await run(
            config, registry=registry, tracer=tracer, ready=ready, stop=stop, traces=ring
        )

    def main() -> None:
        try:
            code.set_result(asyncio.run(serve()))
        except BaseException as error:
            (code if started.done() else started).set_exception(error)

    thread = threading.Thread(target=main)
    thread.start()
    server = started.result(timeout=120)
    try:
        yield server
    finally:
        server.signal()
        assert code.result(timeout=60) == 0
        thread.join()
