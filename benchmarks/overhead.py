"""What metrics, spans and the request log cost the server: processor time a token, on against off.

8 streamed requests at once over HTTP, of 16 prompt tokens each, to one server process that never
stops; between bursts its instruments are put in and taken out. On: all metrics, the event loop's
watch, spans to a file, a line a request to a file. The clients are another process, and torch has
one thread, so that what is counted is the server's and not how long threads wait for each other.
Figures are medians over pairs of bursts, in turn on-off and off-on; the interval holds the median
with 95 %. The second row of each model leaves out the model's own forward pass, which no instrument
touches and which varies most from burst to burst.

    python benchmarks/overhead.py [--quick] [--pairs N] [--tokens N] [--only tiny|smollm2]
"""

import argparse
import asyncio
import http.client
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.smollm2_shape import random_model, wide_tokenizer

from prony.observability import server_tracer
from prony_server.collectors import EngineCollector
from prony_server.engine import Engine, EngineConfig, Step
from prony_server.loop_lag import watch_loop
from prony_server.page import page
from prony_server.products import speed_up
from prony_server.requestlog import request_log
from prony_server.routes import Backend, Service
from prony_server.streams import Bridge
from prony_server.telemetry import ServerMetrics
from prony_server.tiny import tiny_model, tiny_tokenizer
from prony_server.tokenizer import Tokenizer

BATCH, PROMPT = 8, 16
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Silent:
    """What stands in a server without instruments where ServerMetrics does."""

    def accepted(self, *_: Any) -> None: ...
    def generated(self, *_: Any) -> None: ...
    def left_engine(self, *_: Any) -> None: ...
    def answered(self, *_: Any, **__: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Burst:
    """Processor seconds of the server."""

    all: float
    forward: float  # of them in the model's forward pass

    @property
    def rest(self) -> float:
        return self.all - self.forward


@dataclass(slots=True)
class Served:
    """A server on a loop in a thread of its own."""

    service: Service
    engine: Engine
    forward: "TimedForward"
    loop: asyncio.AbstractEventLoop
    address: tuple[str, int]
    on: ServerMetrics
    tracer: Any
    log: Any
    watch: Any = field(default=None)

    def switch(self, on: bool) -> None:
        """Between bursts: nothing is under way."""
        service, off = self.service, Silent()
        service.metrics = self.on if on else off  # type: ignore[assignment]
        service.tracer = self.tracer if on else NoOpTracer()
        service.log = self.log if on else None
        flush = service.backend.bridge.flush  # type: ignore[union-attr]
        stepped = self.on.stepped

        def told(step: Step) -> None:
            flush()
            stepped(step)

        self.engine.on_step = told if on else lambda _: flush()
        asyncio.run_coroutine_threadsafe(self._watch(on), self.loop).result()

    async def _watch(self, on: bool) -> None:
        if self.watch is not None:
            self.watch.cancel()
        self.watch = asyncio.create_task(watch_loop(self.on.loop_lagged)) if on else None

    def spent(self) -> Burst:
        """Since the process's start, once all spans are written."""
        self.tracer.span_processor.force_flush()
        return Burst(time.process_time(), self.forward.seconds)


class TimedForward:
    """A model's forward, and the processor time of its thread in it."""

    def __init__(self, model: Any) -> None:
        self._forward, self.seconds = model.forward, 0.0
        model.forward = self

    def __call__(self, *args: Any, **named: Any) -> Any:
        start = time.thread_time()
        try:
            return self._forward(*args, **named)
        finally:
            self.seconds += time.thread_time() - start


def main() -> None:
    options = _options()
    if options.client:
        _client(*options.client)
        return
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    print(f"batches of {BATCH}, prompts of {PROMPT} tokens, one torch thread")
    print(f"{'':24}{'tokens':>8}{'pairs':>7}{'µs/token off':>14}{'on':>10}{'cost':>9}{'95 %':>20}")
    for name in ("smollm2", "tiny") if options.only is None else (options.only,):
        tokens = options.tokens or (32 if options.quick else 64)
        pairs = options.pairs or (3 if options.quick else 21)
        if name == "tiny":
            pairs, suffix = 4 * pairs, "_tiny"
            model, tokenizer = tiny_model(), tiny_tokenizer()
        else:
            suffix = ""
            model, tokenizer = random_model(), wide_tokenizer()
            speed_up(model)  # as `prony serve` does
        measured, scrape = _measure(name, model, tokenizer, pairs, tokens)
        generated = BATCH * tokens
        whole = [(on.all, off.all) for on, off in measured]
        outside = [(on.rest - off.rest, off.all) for on, off in measured]
        costs = [on / off - 1 for on, off in whole]
        exact = [more / off for more, off in outside]
        for what, told in (("", costs), (", forward left out", exact)):
            low, high = _interval(told)
            off_us, on_us = (1e6 * statistics.median(each) / generated for each in
                             ([off for _, off in whole], [on for on, _ in whole]))  # fmt: skip
            print(
                f"{name + what:24}{tokens:8}{pairs:7}{off_us:14.1f}{on_us:10.1f}"
                f"{100 * statistics.median(told):8.2f}%{100 * low:9.2f}% ..{100 * high:7.2f}%"
            )
        figures |= {
            f"instrumentation_cost{suffix}": round(statistics.median(costs), 5),
            f"instrumentation_cost_outside_forward{suffix}": round(statistics.median(exact), 5),
            f"instrumentation_us_per_request{suffix}": round(
                1e6 * statistics.median(more for more, _ in outside) / BATCH, 1
            ),
            f"pairs{suffix}": pairs,
            f"scrape_ms{suffix}": round(1e3 * scrape, 2),
        }
    print(f"a scrape with exemplars takes {1e3 * scrape:.1f} ms, not counted above")
    print(json.dumps({**figures, "batch": BATCH, "output_tokens": tokens, "threads": 1}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer pairs: under 50 s")
    parser.add_argument("--pairs", type=int, help="of bursts (21, 3 with --quick; tiny: 4 times)")
    parser.add_argument("--tokens", type=int, help="a request's output (64; 32 with --quick)")
    parser.add_argument("--only", choices=("smollm2", "tiny"))
    parser.add_argument("--client", nargs=2, metavar=("HOST", "PORT"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(
    name: str, model: Any, tokenizer: Any, pairs: int, tokens: int
) -> tuple[list[tuple[Burst, Burst]], float]:
    """The bursts of each pair, on and off; and the seconds of a scrape afterwards."""
    rng = random.Random(7)
    with _serving(name, model, tokenizer) as served, _clients(*served.address) as burst:
        for on in (True, False):  # warm-up
            served.switch(on)
            burst(rng, name, tokens)
        found: list[dict[bool, Burst]] = []
        for pair in range(pairs):
            found.append({})
            for on in (True, False) if pair % 2 else (False, True):
                served.switch(on)
                before = served.spent()
                burst(rng, name, tokens)
                after = served.spent()
                found[-1][on] = Burst(after.all - before.all, after.forward - before.forward)
        served.switch(True)
        times = []
        for _ in range(11):
            start = time.thread_time()
            page(served.service.page, OPENMETRICS)
            times.append(time.thread_time() - start)
        return [(each[True], each[False]) for each in found], statistics.median(times)


@contextmanager
def _serving(name: str, model: Any, tokenizer: Any) -> Iterator[Served]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prony-overhead-")))
        tracer: Any = stack.enter_context(server_tracer(folder / "traces.jsonl"))
        registry = CollectorRegistry()
        metrics = ServerMetrics(registry, name)
        log = stack.enter_context(request_log(str(folder / "requests.jsonl"), metrics.log_dropped))
        forward = TimedForward(model)
        engine = Engine(model, frozenset(), EngineConfig(max_num_seqs=BATCH, max_model_len=1024))
        registry.register(EngineCollector(engine.stats))
        engine.start()
        stack.callback(engine.stop, 0.0)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="loop", daemon=True)
        thread.start()
        service = Service(name, None, registry, metrics, tracer, write_timeout=60.0)

        async def start() -> tuple[web.AppRunner, tuple[str, int]]:
            bridge = Bridge(loop, lambda tokens: service.metrics.generated(tokens))
            service.backend = Backend(engine, Tokenizer(tokenizer), bridge, 0, "cpu", "float32")
            runner = web.AppRunner(service.app(), access_log=None, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return runner, runner.addresses[0][:2]

        runner, address = asyncio.run_coroutine_threadsafe(start(), loop).result()
        served = Served(service, engine, forward, loop, address, metrics, tracer, log)
        yield served
        served.switch(False)
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        service.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@contextmanager
def _clients(host: str, port: int) -> Iterator[Any]:
    """Makes the clients of a burst, in another process, do their work."""
    command = [sys.executable, __file__, "--client", host, str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def burst(rng: random.Random, model: str, tokens: int) -> None:
            bodies = [
                {
                    "model": model,
                    "prompt": "".join(rng.choices("abcdefghijklmnop", k=PROMPT)),
                    "max_tokens": tokens,
                    "stream": True,
                    "ignore_eos": True,
                    "stream_options": {"include_usage": True},
                }
                for _ in range(BATCH)
            ]
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps(bodies) + "\n")
            process.stdin.flush()
            said = process.stdout.readline().split()
            if said != [str(tokens)] * BATCH:
                raise RuntimeError(f"answers of {tokens} tokens were asked for, and {said} came")

        yield burst
        assert process.stdin
        process.stdin.close()


def _client(host: str, port: str) -> None:
    """A line of bodies in, a line of how many tokens each answer had out."""
    with ThreadPoolExecutor(BATCH) as pool:
        for line in sys.stdin:
            counts = pool.map(lambda body: _ask(host, int(port), body), json.loads(line))
            print(*counts, flush=True)


def _ask(host: str, port: int, body: dict[str, Any]) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=300)
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    last = ""
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            last = line.decode()
    connection.close()
    told: int = json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"]
    return told


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values between which the median lies with 95 %, or the widest that there are."""
    ranked = sorted(values)
    n = len(ranked)
    below, cut = 0.0, 0
    while cut < n // 2 and below + math.comb(n, cut) / 2**n < 0.025:
        below += math.comb(n, cut) / 2**n
        cut += 1
    return ranked[max(0, cut - 1)], ranked[min(n - 1, n - cut)]


if __name__ == "__main__":
    main()
