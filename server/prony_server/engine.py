"""Requests come in from any thread; their tokens go out as they are made, from one engine thread.

Each iteration takes in what was submitted or aborted, schedules, runs the model once, and hands
every new token to its request's `emit`. A step that fails ends that step's requests and no other.
"""

import collections.abc
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prony_server.blocks import BlockPool
from prony_server.intake import EngineStopped, Intake, Message, QueueFull, RequestTooLong
from prony_server.limits import EngineConfig, Limits, resolve
from prony_server.memory import memory_of
from prony_server.reserve import largest_step
from prony_server.runner import Computed, Runner, context_length, free_unused_memory, out_of_memory
from prony_server.sampler import NOT_A_NUMBER
from prony_server.scheduler import Batch, Scheduler
from prony_server.sequence import FinishReason, Output, SamplingParams, Sequence, TokenLogprobs
from prony_server.stages import ADMIT, BUILD, EMIT, FORWARD, IDLE, SAMPLE, SCHEDULE, StageClock

__all__ = [
    "Engine",
    "EngineConfig",
    "EngineStopped",
    "Limits",
    "QueueFull",
    "RequestTooLong",
    "Stats",
    "Step",
]

log = logging.getLogger(__name__)

# Steps without trouble before a budget halved for lack of memory is doubled again.
CALM_STEPS = 100


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration, told to on_step after the iteration's outputs were emitted."""

    started: float
    seconds: float
    model_seconds: float  # forward and sampling; the rest of `seconds` is the engine's own
    batch_size: int
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    blocks_used: int
    preemptions: int  # in this step
    stages: tuple[float, ...]  # seconds of each of STAGES since the step before was told


@dataclass(frozen=True, slots=True)
class Stats:
    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    preemptions: int  # this and the other counts: since the start
    prefix_queries: int  # prompt tokens of which the prefix cache was asked
    prefix_hits: int  # of these, the tokens that it had
    blocks_cached: int  # held by the prefix cache alone; not among blocks_used
    out_of_memory: int  # steps that found no memory, and were tried again with half the tokens
    max_num_seqs: int
    max_num_batched_tokens: int
    stage_seconds: tuple[float, ...]  # of each of STAGES


class Engine:
    """`emit` and `on_step` are called in the engine thread: they must be quick and never block.

    on_step follows the emits of its step, so a caller can gather outputs and pass them on once a
    step. An `emit` that raises loses its request; an `on_step` that raises ends the engine.
    """

    def __init__(
        self,
        model: Any,
        eos_ids: frozenset[int],
        config: EngineConfig,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        """The model is the engine's from now on: its attention is replaced. Takes the KV memory."""
        self._runner = Runner(model)
        memory = memory_of(self._runner.device)
        self.limits = limits = resolve(
            config,
            context=context_length(model),
            bytes_per_token=self._runner.bytes_per_token,
            free_memory=memory.free,
            total_memory=memory.total,
            on_gpu=self._runner.device.type != "cpu",
            reserve=functools.partial(self._reserve, block_size=config.block_size),
        )
        self._eos_ids = eos_ids
        self._decode = config.decode
        self._pool = BlockPool(
            limits.num_blocks,
            limits.block_size,
            limits.max_num_seqs,
            limits.max_model_len,
            limits.prefix_caching,
        )
        self._allocate()
        self._scheduler = Scheduler(
            self._pool, limits.max_num_seqs, limits.max_num_batched_tokens, limits.batching
        )
        self.on_step = on_step  # the engine thread's: to be changed between steps only
        self._preemptions = self._prefix_queries = self._prefix_hits = self._out_of_memory = 0
        self._calm_steps = 0
        self._clock = StageClock()
        self._intake = Intake(limits, self._runner.vocabulary)
        self._live = self._intake.live
        self._thread = threading.Thread(target=self._main, name="prony-engine", daemon=True)

    @property
    def failed(self) -> BaseException | None:
        """Why the engine's thread died."""
        return self._intake.failed

    def start(self) -> None:
        self._thread.start()

    def stop(self, drain: float) -> None:
        """Takes no more requests; those it has may go on for `drain` seconds, then are aborted.

        Model and KV cache are let go, whoever still knows the engine.
        """
        self._intake.stop(drain)
        if self._thread.ident is not None:
            self._thread.join()
        self._runner.release()

    def submit(
        self,
        request_id: str,
        prompt: collections.abc.Sequence[int],
        params: SamplingParams,
        emit: Callable[[Output], None],
    ) -> None:
        """From any thread. RequestTooLong, ValueError (a bad prompt), QueueFull, EngineStopped."""
        self._intake.submit(request_id, prompt, params, emit)

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """From any thread. The request ends with this finish_reason unless it has ended.

        The reason is another where its receiver has all it wanted (a stop string, say).
        """
        self._intake.abort(request_id, reason)

    def between_steps(self, call: Callable[[], None]) -> None:
        """From any thread: the engine's thread makes this call before its next step, idle or not.

        One that raises ends the engine. Raises EngineStopped.
        """
        self._intake.call(call)

    def stats(self) -> Stats:
        """From any thread."""
        now = time.monotonic()
        pool = self._pool
        return Stats(
            len(self._scheduler.running),
            self._intake.waiting,
            pool.num_blocks - pool.num_free,
            pool.num_blocks,
            self._preemptions,
            self._prefix_queries,
            self._prefix_hits,
            pool.num_cached,
            self._out_of_memory,
            self.limits.max_num_seqs,
            self.limits.max_num_batched_tokens,
            self._clock.total(now),
        )

    def _reserve(self, seqs: int, tokens: int, max_model_len: int, *, block_size: int) -> int:
        return largest_step(self._runner, seqs, tokens, max_model_len, block_size)

    def _allocate(self) -> None:
        self._runner.allocate(self._pool, self.limits.max_num_seqs, self._eos_ids, self._decode)

    # The rest runs in the engine thread.

    def _main(self) -> None:
        self._clock.start(time.monotonic())
        try:
            while self._take_in():
                self._iterate()
        except BaseException as error:
            log.exception("the engine thread died")
            self._die(error)

    def _take_in(self) -> bool:
        """Waits until there may be something to do; False when it is time to end."""
        scheduler = self._scheduler
        if scheduler.running:
            messages, stop_at = self._intake.take(0)
        else:
            messages, stop_at = self._wait()
        for message in messages:
            if isinstance(message, Sequence):
                scheduler.add(message)
            elif not isinstance(message, tuple):
                message()
            elif message[0] in self._live:
                self._finish(self._live[message[0]], (), message[1])
        goes_on = stop_at is None or self._goes_on_until(stop_at)
        self._clock.ended(ADMIT, time.monotonic())
        return goes_on

    def _wait(self) -> tuple[list[Message], float | None]:
        if not self._scheduler.waiting:
            self._pool.check_all_free()
        now = time.monotonic()
        wake = self._scheduler.wake_at(now)
        self._clock.ended(ADMIT, now)
        self._clock.publish(idle=True)
        taken = self._intake.take(None if wake is None else wake - now)
        self._clock.ended(IDLE, time.monotonic())
        self._clock.publish()
        return taken

    def _goes_on_until(self, stop_at: float) -> bool:
        scheduler = self._scheduler
        if time.monotonic() >= stop_at:
            for sequence in [*scheduler.running, *scheduler.waiting]:
                self._finish(sequence, (), "abort")
        if scheduler.running or scheduler.waiting:
            return True
        self._pool.check_all_free()
        return False

    def _iterate(self) -> None:
        started = time.monotonic()
        before = self._preemptions
        batch = self._schedule(started)
        if not batch:
            return
        result = self._attempt(batch)
        while isinstance(result, Exception) and out_of_memory(result) and batch.tokens > 1:
            log.warning("out of memory in a step of %d tokens: trying half of it", batch.tokens)
            free_unused_memory()
            self._scheduler.budget = batch.tokens // 2
            self._calm_steps = 0
            batch = self._schedule(started)
            result = self._attempt(batch)
        self._settle(batch, result, started, self._preemptions - before)

    def _schedule(self, now: float) -> Batch:
        scheduler = self._scheduler
        batch = scheduler.schedule(now)
        running = len(scheduler.running)
        self._intake.places = running if scheduler.waiting else scheduler.max_num_seqs
        self._preemptions += batch.preempted
        if self.limits.prefix_caching:
            for sequence in batch.entered:
                self._prefix_queries += sequence.prompt_length
                self._prefix_hits += sequence.phases.cached_tokens
        self._clock.ended(SCHEDULE, time.monotonic())
        return batch

    def _attempt(self, batch: Batch) -> Computed | Exception:
        pool = self._pool
        try:
            if pool.suspects:
                self._runner.clear(pool.suspects)
                pool.suspects.clear()
            result = self._runner.run(batch)
        except Exception as error:
            self._clock.ended(FORWARD, time.monotonic())
            for sequence in batch.sequences:
                sequence.sound = -1  # who knows what has been written
            if not out_of_memory(error):
                return error
            self._out_of_memory += 1
            # The traceback's frames hold the tensors that a second try needs the room of.
            return error.with_traceback(None)
        self._clock.ended(BUILD, result.built)
        self._clock.ended(FORWARD, result.forwarded)
        self._clock.ended(SAMPLE, time.monotonic())
        return result

    def _settle(
        self, batch: Batch, result: Computed | Exception, started: float, preemptions: int
    ) -> None:
        """Hands out what the step gave, and tells of the step."""
        scheduler = self._scheduler
        ran = time.monotonic()
        decodes = sum(s.computed >= s.prompt_length for s in batch.singles)
        if isinstance(result, Exception):
            self._fail(batch, result)
        else:
            self._advance(batch, result, ran)
            self._calm_steps += 1
            if self._calm_steps % CALM_STEPS == 0:
                scheduler.budget = min(2 * scheduler.budget, self.limits.max_num_batched_tokens)
        ended = time.monotonic()
        self._clock.ended(EMIT, ended)
        if self.on_step is not None:
            self.on_step(
                Step(
                    started,
                    ended - started,
                    ran - started,
                    len(batch.singles) + len(batch.chunks),
                    batch.tokens - decodes,
                    decodes,
                    len(scheduler.running),
                    len(scheduler.waiting),
                    self._pool.num_blocks - self._pool.num_free,
                    preemptions,
                    self._clock.lap(),
                )
            )
            self._clock.ended(EMIT, time.monotonic())
        self._clock.publish()

    def _fail(self, batch: Batch, error: Exception) -> None:
        log.error("a step of %d tokens failed", batch.tokens, exc_info=error)
        for sequence in batch.sequences:
            self._finish(sequence, (), "error", f"the step failed: {_one_line(error)}")

    def _advance(self, batch: Batch, result: Computed, now: float) -> None:
        for sequence in batch.singles:
            sequence.computed += 1
        for sequence, length in batch.chunks:
            sequence.computed += length
        pool, eos_ids = self._pool, self._eos_ids
        nothing = itertools.repeat(None, len(result.tokens))
        told_of_all = nothing if result.logprobs is None else result.logprobs
        chosen = zip(result.sampled, result.tokens, told_of_all, strict=True)
        for sequence, token, told in chosen:
            params = sequence.params
            if token == NOT_A_NUMBER:
                self._finish(sequence, (), "error", "the model gave NaN or infinite logits")
                continue
            sequence.sound = sequence.computed
            pool.keep(sequence)
            if (token in eos_ids and not params.ignore_eos) or token in params.stop_token_ids:
                self._finish(sequence, (), "stop")
                continue
            phases = sequence.phases
            phases.last_token = now
            if phases.first_token is None:
                phases.first_token = now
            sequence.tokens.append(token)
            logprobs = () if told is None else (told,)
            if len(sequence.tokens) - sequence.prompt_length >= params.max_tokens:
                self._finish(sequence, (token,), "length", logprobs=logprobs)
                continue
            try:
                output = Output(sequence.request_id, (token,), None, None, phases, logprobs)
                sequence.emit(output)
            except Exception:
                log.exception("the receiver of request %s failed", sequence.request_id)
                self._scheduler.remove(sequence)
                del self._live[sequence.request_id]

    def _finish(
        self,
        sequence: Sequence,
        tokens: tuple[int, ...],
        reason: FinishReason,
        error: str | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> None:
        """Frees all it holds, then tells its receiver, which may use the id anew at once."""
        self._scheduler.remove(sequence)
        del self._live[sequence.request_id]
        self._emit_last(sequence, tokens, reason, error, logprobs)

    def _die(self, error: BaseException) -> None:
        left = self._intake.fail(error)
        for sequence in left:
            self._emit_last(sequence, (), "error", f"the engine failed: {_one_line(error)}")

    def _emit_last(
        self,
        sequence: Sequence,
        tokens: tuple[int, ...],
        reason: FinishReason,
        error: str | None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> None:
        try:
            phases = sequence.phases
            sequence.emit(Output(sequence.request_id, tokens, reason, error, phases, logprobs))
        except Exception:
            log.exception("the receiver of request %s failed", sequence.request_id)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
