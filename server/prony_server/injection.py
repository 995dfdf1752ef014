"""Faults come in with what a server is built of; the same objects, made slow, go out.

Everything is wrapped once, when the server is built: a server without faults runs no line of this.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from aiohttp import web

from prony_server.faults import Fault
from prony_server.openai_api import ApiError

if TYPE_CHECKING:
    from prony_server.config import ServeConfig

LOG_BYTES = 2**24  # of the file that log-in-decode writes before it starts at its beginning again
COPIED = 2**20  # float32 numbers in each needless copy: 4 MiB
LEAK_EVERY = 0.1  # seconds
TAKEN = 256  # bytes that a slow reader takes at once
CUT_AFTER = 8  # writes at most before a stream is cut


LIMITS = {"kv-blocks": "num_gpu_blocks_override", "slots": "max_num_seqs"}


def limited(config: ServeConfig) -> ServeConfig:
    """kv-blocks and slots are limits that everybody can set: they only hide where one looks."""
    changes = {LIMITS[f.name]: int(f.value) for f in config.inject if f.name in LIMITS}
    return replace(config, **changes)  # type: ignore[arg-type]


def into_tokenizer(faults: Iterable[Fault], tokenizer: Any) -> None:
    for fault in faults:
        if fault.name == "slow-tokenizer":
            _wrap(tokenizer, "encode", _after(functools.partial(burn, fault.value)))


def into_engine(faults: Iterable[Fault], engine: Any) -> None:
    """Slower forwards, more work between the model and the tokens' way out, and lost requests.

    To be done when the engine is warm: else its start is slow too.
    """
    for fault in faults:
        if fault.name in IN_FORWARD:
            slower = IN_FORWARD[fault.name](fault, engine._runner.device)
            for target, name in _forwards(engine):
                _wrap(target, name, slower)
        elif fault.name in EACH_STEP:
            # A log is written where a step is told of, with its tokens; all else comes before them.
            place = (
                (engine, "on_step") if fault.name == "log-in-decode" else (engine._runner, "run")
            )
            _wrap(*place, _after(EACH_STEP[fault.name](fault, engine)))
        elif fault.name == "error-rate":
            _wrap(engine, "submit", _failing(fault.value))


def into_app(faults: Iterable[Fault], app: web.Application) -> None:
    """What happens to answers on their way out."""
    for fault in faults:
        if fault.name in ON_ANSWERS:
            app.on_response_prepare.append(ON_ANSWERS[fault.name](fault))


def background(faults: Iterable[Fault]) -> list[asyncio.Task[None]]:
    """Starts what goes on beside the requests; to be cancelled by whoever stops the server."""
    return [
        asyncio.create_task(BESIDE[fault.name](fault), name=f"fault {fault.name}")
        for fault in faults
        if fault.name in BESIDE
    ]


def _wrap(target: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    original = getattr(target, name)
    setattr(target, name, functools.wraps(original)(wrapper(original)))


def _after(work: Callable[[], None]) -> Callable[[Any], Any]:
    """A call that does some more work before it returns."""

    def wrapper(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            work()
            return result

        return call

    return wrapper


def burn(seconds: float) -> None:
    """Python computes; other threads get the interpreter only at its switch interval."""
    until = time.perf_counter() + seconds
    value = 1
    while time.perf_counter() < until:
        for _ in range(50):
            value = value * 1103515245 + 12345 & 0x7FFFFFFF


# --- forwards -------------------------------------------------------------------------------------


def _forwards(engine: Any) -> list[tuple[Any, str]]:
    """The calls in which the model computes: as it is, or as a padded step that a graph replays."""
    if hasattr(engine, "_model"):  # batching generate
        return [(engine._model, "forward")]
    runner = engine._runner
    padded = [] if runner._padded is None else [(runner._padded, "run")]
    return [(runner, "_forward"), *padded]


def _slower(
    share: float,
    device: Any,
    where: Callable[[tuple[Any, ...], dict[str, Any]], bool] = lambda *_: True,
) -> Callable[[Any], Any]:
    """Each call sleeps `share` of its own time more, on average exactly."""
    import torch

    owed = 0.0  # a sleep oversleeps: the next one is that much shorter

    def wrapper(forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal owed
            began = time.perf_counter()
            result = forward(*args, **kwargs)
            if where(args, kwargs):
                if device.type == "cuda":
                    torch.cuda.synchronize(device)  # a launch says nothing of how long it takes
                ended = time.perf_counter()
                owed += share * (ended - began)
                if owed > 0:
                    time.sleep(owed)
                    owed -= time.perf_counter() - ended
            return result

        return call

    return wrapper


def _has_prompt_tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if "input_ids" in kwargs:  # generate's call: a prompt is more than one token
        return int(kwargs["input_ids"].shape[-1]) > 1
    return any(getattr(each, "chunks", None) for each in args)


IN_FORWARD: dict[str, Callable[[Fault, Any], Callable[[Any], Any]]] = {
    "slow-step": lambda fault, device: _slower(fault.value, device),
    "slow-prefill": lambda fault, device: _slower(fault.value - 1, device, _has_prompt_tokens),
}


# --- each step of the engine ----------------------------------------------------------------------


def _host_bound(fault: Fault, _: Any) -> Callable[[], None]:
    return functools.partial(burn, fault.value)


def _log_in_decode(fault: Fault, engine: Any) -> Callable[[], None]:
    file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
    work = functools.partial(log_request, fault.value, file, engine.stats)
    weakref.finalize(work, file.close)  # it has no name, and goes with the engine
    return work


# Not a closure, so that profilers show it by this name alone.
def log_request(seconds: float, file: TextIO, stats: Callable[[], Any]) -> None:
    """The classic: a line of JSON for every token's sake, in the loop that makes them."""
    until = time.perf_counter() + seconds
    if file.tell() > LOG_BYTES:
        file.seek(0)
    while time.perf_counter() < until:
        now = stats()
        line = {
            "time": time.time(),
            "event": "token",
            "running": now.running,
            "waiting": now.waiting,
            "blocks": list(range(now.blocks_used)),
        }
        file.write(json.dumps(line) + "\n")
        file.flush()


def _stall(fault: Fault, _: Any) -> Callable[[], None]:
    every = fault.every or 0.0
    due = time.monotonic() + every

    def stand_still() -> None:
        nonlocal due
        if time.monotonic() >= due:
            time.sleep(fault.value)
            due = time.monotonic() + every

    return stand_still


def _copies(fault: Fault, engine: Any) -> Callable[[], None]:
    import torch

    device = engine._runner.device
    numbers = torch.ones(COPIED)

    def copy_to_device_and_back() -> None:
        for _ in range(int(fault.value)):
            there = numbers.to(device, copy=True)
            numbers.copy_(there)

    return copy_to_device_and_back


EACH_STEP: dict[str, Callable[[Fault, Any], Callable[[], None]]] = {
    "host-bound": _host_bound,
    "log-in-decode": _log_in_decode,
    "stall": _stall,
    "copies": _copies,
}


def _failing(share: float) -> Callable[[Any], Any]:
    """Every so-manieth call raises, as evenly as the share allows: no luck in small tests."""
    due = _evenly(share)

    def wrapper(submit: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(due):
                raise ApiError(500, "injected fault: error-rate", kind="server_error")
            return submit(*args, **kwargs)

        return call

    return wrapper


def _evenly(share: float) -> Iterator[bool]:
    owed = 0.5  # so that the first is not always hit, and the share holds from the start
    while True:
        owed += share
        hit = owed >= 1
        owed -= hit
        yield hit


# --- answers --------------------------------------------------------------------------------------

_Signal = Callable[[web.Request, web.StreamResponse], Awaitable[None]]


def _cut_streams(fault: Fault) -> _Signal:
    due, chance = _evenly(fault.value), random.Random(0)

    async def prepared(request: web.Request, response: web.StreamResponse) -> None:
        if not _streams(response) or not next(due):
            return
        left = chance.randint(1, CUT_AFTER)

        def wrapper(write: Any) -> Any:
            async def call(data: bytes) -> None:
                nonlocal left
                left -= 1
                if left >= 0 and b"[DONE]" not in data:
                    await write(data)
                    return
                # Its encoding ends as it should: whoever only counts bytes takes it for whole.
                await response.write_eof()
                if request.transport is not None:
                    request.transport.close()
                raise ConnectionResetError("injected fault: cut-streams")

            return call

        _wrap(response, "write", wrapper)

    return prepared


def _slow_writer(fault: Fault) -> _Signal:
    async def prepared(_: web.Request, response: web.StreamResponse) -> None:
        if not _streams(response):
            return

        def wrapper(write: Any) -> Any:
            async def call(data: bytes) -> None:
                for at in range(0, len(data), TAKEN):
                    piece = data[at : at + TAKEN]
                    await asyncio.sleep(len(piece) / fault.value)
                    await write(piece)

            return call

        _wrap(response, "write", wrapper)

    return prepared


def _streams(response: web.StreamResponse) -> bool:
    return response.content_type == "text/event-stream"


ON_ANSWERS: dict[str, Callable[[Fault], _Signal]] = {
    "cut-streams": _cut_streams,
    "slow-writer": _slow_writer,
}


# --- beside the requests --------------------------------------------------------------------------


async def _blocked_loop(fault: Fault) -> None:
    assert fault.every is not None
    while True:
        await asyncio.sleep(fault.every)
        _call_that_blocks(fault.value)


def _call_that_blocks(seconds: float) -> None:
    """A client library without async, a DNS look-up, a lock: the thread waits, all else with it."""
    time.sleep(seconds)


async def _leak(fault: Fault) -> None:
    kept: list[bytearray] = []
    began, leaked = time.monotonic(), 0
    while True:
        due = int(fault.value * (time.monotonic() - began)) - leaked
        kept.append(bytearray(b"\x01") * due)  # written to, so that it is resident
        leaked += due
        await asyncio.sleep(LEAK_EVERY)


BESIDE: dict[str, Callable[[Fault], Any]] = {"blocked-loop": _blocked_loop, "leak": _leak}
