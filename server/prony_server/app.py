"""The server as a process: a configuration in, an exit code out after the last answer.

The port is bound first, so that a port in use is known at once and probes get answers while the
model loads. SIGTERM or SIGINT: not ready, new requests get 503, running answers may finish within
`drain_seconds`; what is left then ends with an error event. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import errno
import logging
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from opentelemetry.trace import NoOpTracer, Tracer
from prometheus_client import CollectorRegistry, ProcessCollector

from prony_server import injection
from prony_server.collectors import DeviceMemory, EngineCollector, ThreadClocks
from prony_server.config import ServeConfig
from prony_server.connection import Connection
from prony_server.gpu import register_gpus
from prony_server.loop_lag import watch_loop
from prony_server.openai_api import ApiError, Conversation
from prony_server.profile_routes import ProfileRoutes
from prony_server.profiler import Kind, Profiler, ProfilerError, py_spy
from prony_server.requestlog import RequestLog, request_log
from prony_server.routes import Backend, Service
from prony_server.streams import Bridge
from prony_server.telemetry import ServerMetrics
from prony_server.tokenizer import Tokenizer
from prony_server.trace_ring import TraceRing
from prony_server.vllm_names import VllmPage

if TYPE_CHECKING:
    from types import FrameType

    from prony_server.engine import Engine

logger = logging.getLogger(__name__)

BACKLOG = 1024  # a load test opens its connections all at once
# After the drain limit: for error events to be written, and for closing connections.
LAST_WORDS = 5.0


class ServeError(Exception):
    """Why the server could not start: one line that names the thing and the remedy."""


@dataclass(slots=True)
class Stop:
    """What asked the server to stop: `requested` drains, `hurried` ends the draining."""

    requested: asyncio.Event = field(default_factory=asyncio.Event)
    hurried: asyncio.Event = field(default_factory=asyncio.Event)

    def signalled(self) -> None:
        (self.hurried if self.requested.is_set() else self.requested).set()


async def serve(
    config: ServeConfig,
    *,
    registry: CollectorRegistry,
    tracer: Tracer | None,
    ready: Callable[[str], None] | None = None,
    traces: TraceRing | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT; `ready` is told the URL once requests are taken.

    With `traces`, which the tracer's spans must reach, /debug/traces shows the slowest. Raises
    ServeError where it cannot start. Must run in the main thread, where signals arrive.
    """
    stop = Stop()
    with _signals(stop):
        return await run(
            config, registry=registry, tracer=tracer, ready=ready, stop=stop, traces=traces
        )


async def run(
    config: ServeConfig,
    *,
    registry: CollectorRegistry,
    tracer: Tracer | None,
    ready: Callable[[str], None] | None,
    stop: Stop,
    traces: TraceRing | None = None,
) -> int:
    """`serve` for any thread: `stop` takes the signals' place."""
    service = Service(
        name=config.name,
        api_key=config.api_key,
        page=VllmPage(registry, config.name) if config.metric_names == "vllm" else registry,
        metrics=ServerMetrics(registry, config.name),
        tracer=tracer or NoOpTracer(),
        write_timeout=config.write_timeout,
        read_timeout=config.read_timeout,
        sliding_window=config.long_prompts == "sliding-window",
        traces=traces,
        injected=tuple(str(fault) for fault in config.inject),
    )
    app = service.app()
    profiles = ProfileRoutes()
    if config.profile_dir is not None:
        _check_profiling(config.profile_dir, config.profiler)
        profiles.add_to(app)
    injection.into_app(config.inject, app)
    ProcessCollector(registry=registry)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,  # a client that hangs up ends its handler, and so its sequence
        shutdown_timeout=LAST_WORDS,
    )
    await runner.setup()
    beside: list[asyncio.Task[None]] = []
    written, listening = ExitStack(), ExitStack()
    try:
        service.log = _request_log(config, service.metrics, written)
        url = await _listen(runner, config, listening)
        logger.info("listening url=%s model=%s state=loading", url, config.name)
        bridge = Bridge(asyncio.get_running_loop(), service.metrics.generated)
        loading = _in_daemon_thread(lambda: _load(config, service.metrics, bridge))
        await _first_of(loading, stop.requested.wait())
        if stop.requested.is_set():
            return 0
        service.backend = loading.result()
        beside.append(_watch(service.backend, service.metrics, registry))
        _log_limits(url, config, service.backend)
        if config.inject:
            logger.warning("injected faults: %s", ", ".join(service.injected))
        beside += injection.background(config.inject)
        if config.profile_dir is not None:
            engine = service.backend.engine
            profiles.profiler = Profiler(config.profile_dir, config.profiler, engine)
        if ready is not None:
            ready(url)
        await stop.requested.wait()
        await _drain(service, config.drain_seconds, stop.hurried)
        return 0
    finally:
        service.draining = True
        for task in beside:
            task.cancel()
        await profiles.close()
        listening.close()
        await runner.cleanup()
        service.close()
        if service.backend is not None:
            await asyncio.to_thread(service.backend.engine.stop, 0.0)
        await asyncio.to_thread(written.close)  # last, for what the engine ended is logged too


def _request_log(
    config: ServeConfig, metrics: ServerMetrics, written: ExitStack
) -> RequestLog | None:
    """The log that was asked for; what it still holds is written when `written` is closed."""
    try:
        return written.enter_context(request_log(config.request_log, metrics.log_dropped))
    except OSError as error:
        raise ServeError(f"--request-log {config.request_log}: {error.strerror}") from None


def _watch(
    backend: Backend, metrics: ServerMetrics, registry: CollectorRegistry
) -> asyncio.Task[None]:
    """Adds what is read when scraped; returns what watches the loop that this is called on."""
    threads = ThreadClocks()
    threads.watch("loop")
    backend.engine.between_steps(lambda: threads.watch("engine"))
    registry.register(threads)
    registry.register(EngineCollector(backend.engine.stats))
    register_gpus(registry)
    if backend.device.startswith("cuda"):
        import torch

        registry.register(DeviceMemory(lambda: torch.cuda.memory_stats(backend.device)))
    return asyncio.create_task(watch_loop(metrics.loop_lagged))


async def _listen(runner: web.AppRunner, config: ServeConfig, listening: ExitStack) -> str:
    """Binds, until `listening` is closed; gives the base URL, with the port really taken."""
    where = f"port {config.port} on {config.host}"
    server, loop = runner.server, asyncio.get_running_loop()
    assert server is not None

    def connection() -> Connection:
        return Connection(server, loop, config.read_timeout)

    try:
        listener = await loop.create_server(connection, config.host, config.port, backlog=BACKLOG)
    except socket.gaierror as error:
        raise ServeError(f"host {config.host!r} is not known here: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServeError(f"{where} is in use; name another with --port (0: any)") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ServeError(f"cannot listen at {where}: {reason}") from None
    listening.callback(listener.close)
    port = listener.sockets[0].getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{port}"


def _check_profiling(folder: Path, kind: Kind) -> None:
    """Finds out now, rather than in the middle of a load test, what a capture would miss."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        if kind == "py-spy":
            py_spy()
    except OSError as error:
        raise ServeError(f"--profile-dir {folder}: {error.strerror}") from None
    except ProfilerError as error:
        raise ServeError(f"--profiler {kind}: {error}") from None


def _load(config: ServeConfig, metrics: ServerMetrics, bridge: Bridge) -> Backend:
    """Imports torch, loads the model and starts its engine: seconds to minutes, off the loop."""
    try:
        import torch

        from prony_server.engine import Engine, Step
        from prony_server.generate_engine import GenerateEngine
        from prony_server.loading import ModelError, load
    except ImportError as error:
        remedy = "pip install 'prony[server]'"
        raise ServeError(f"serving needs torch and transformers ({error}); {remedy}") from None
    # The tiny model's products are too small to share: its threads would only wait for each other.
    threads = config.torch_threads or (1 if config.model == "tiny" else None)
    if threads is not None:
        torch.set_num_threads(threads)

    warm = False

    def on_step(step: Step) -> None:
        bridge.flush()  # first: the clients' tokens before our own book-keeping
        if warm:
            metrics.stepped(step)

    config = injection.limited(config)
    try:
        loaded = load(config.model, config.device, config.dtype, config.quantization)
        kind = GenerateEngine if config.batching == "generate" else Engine
        engine = kind(loaded.model, loaded.eos_ids, config.engine, on_step)
    except (ModelError, ValueError) as error:
        raise ServeError(str(error)) from error
    engine.start()
    tokenizer = Tokenizer(loaded.tokenizer)
    _warm_up(engine, tokenizer, config.model)
    warm = True
    injection.into_tokenizer(config.inject, tokenizer)
    injection.into_engine(config.inject, engine)
    return Backend(
        engine,
        tokenizer,
        bridge,
        created=int(time.time()),
        device=str(loaded.model.device),
        dtype=str(loaded.model.dtype).removeprefix("torch."),
    )


def _warm_up(engine: Engine, tokenizer: Tokenizer, model: str) -> None:
    """One short request, so that the first client does not pay for what is done only once.

    It also finds out whether the model runs at all, before anyone is told that it does.
    """
    from prony_server.sequence import Output, SamplingParams

    last: queue.SimpleQueue[Output] = queue.SimpleQueue()

    def emit(output: Output) -> None:
        if output.finish_reason is not None:
            last.put(output)

    try:
        prompt = tokenizer.encode(Conversation(({"role": "user", "content": "warm-up"},)))
    except ApiError:  # no chat template, or one that wants more
        prompt = tokenizer.encode("warm-up")
    room = engine.limits.room
    tokens = max(1, min(2, room - 1))
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    try:
        engine.submit("warm-up", prompt[: max(1, room - tokens)], params, emit)
    except ValueError as error:
        engine.stop(0.0)
        raise ServeError(f"{model} cannot serve even a short request: {error}") from None
    output = last.get()
    if output.finish_reason != "length":
        engine.stop(0.0)
        raise ServeError(f"{model} was loaded but does not run: {output.error}")


def _log_limits(url: str, config: ServeConfig, backend: Backend) -> None:
    limits = backend.engine.limits
    facts = {
        "url": url,
        "model": config.name,
        "device": backend.device,
        "dtype": backend.dtype,
        "batching": limits.batching,
        "max_model_len": limits.max_model_len,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "block_size": limits.block_size,
        "kv_blocks": limits.num_blocks,
        "kv_tokens": limits.kv_tokens,
        "kv_mib": round(limits.kv_bytes / 2**20),
    }
    logger.info("ready %s", " ".join(f"{name}={value}" for name, value in facts.items()))


async def _drain(service: Service, seconds: float, hurried: asyncio.Event) -> None:
    service.draining = True
    logger.info("draining for up to %g s", seconds)
    await _first_of(service.idle.wait(), hurried.wait(), timeout=seconds)
    if not service.idle.is_set():
        service.end_running()
        await _first_of(service.idle.wait(), timeout=LAST_WORDS)


async def _first_of(*waited: Awaitable[Any], timeout: float | None = None) -> None:
    """Returns once one is done or time is up; those begun here do not outlive the call."""
    tasks = [asyncio.ensure_future(each) for each in waited]
    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for task, each in zip(tasks, waited, strict=True):
        if task is not each:
            task.cancel()


def _in_daemon_thread(call: Callable[[], Backend]) -> asyncio.Future[Backend]:
    """Unlike an executor's, this thread does not hold up the exit of a server told to stop."""
    outcome: concurrent.futures.Future[Backend] = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="load", daemon=True).start()
    return asyncio.wrap_future(outcome)


@contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    both = (signal.SIGTERM, signal.SIGINT)

    def give_back() -> None:
        for number in both:
            loop.remove_signal_handler(number)

    def on_signal() -> None:
        stop.signalled()
        if stop.hurried.is_set():
            give_back()  # a third one then kills, whatever hangs

    for number in both:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        give_back()
        if stop.requested.is_set() and not stop.hurried.is_set():
            for number in both:
                signal.signal(number, _let_pass)
                # The interpreter's own end takes torch a second, and knows no handler any more.
                atexit.register(signal.signal, number, signal.SIG_IGN)


def _let_pass(number: int, frame: FrameType | None) -> None:
    """A second signal when serving has ended: there is nothing to hurry. A third kills."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
