"""Requests come in from any thread; their tokens go out as they are made, from one engine thread.

Each iteration takes in what was submitted or aborted, schedules, runs the model once, and hands
every new token to its request's `emit`. A step that fails ends that step's requests and no other.
"""

import collections.abc
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from prony_server.blocks import BlockPool
from prony_server.limits import EngineConfig, Limits, available_memory, resolve
from prony_server.runner import Runner, context_length, free_unused_memory, out_of_memory
from prony_server.sampler import NOT_A_NUMBER
from prony_server.scheduler import Batch, Scheduler
from prony_server.sequence import FinishReason, Output, Phases, SamplingParams, Sequence

__all__ = ["Engine", "EngineConfig", "EngineStopped", "Limits", "RequestTooLong", "Stats", "Step"]

log = logging.getLogger(__name__)

# Steps without trouble before a budget halved for lack of memory is doubled again.
CALM_STEPS = 100


class RequestTooLong(ValueError):
    """prompt + max_tokens is more than the model's context or the KV cache can hold."""

    def __init__(self, prompt_tokens: int, max_tokens: int, limit: int, what: str) -> None:
        super().__init__(
            f"{prompt_tokens} prompt tokens + {max_tokens} max_tokens "
            f"= {prompt_tokens + max_tokens} exceed {what} of {limit} tokens"
        )
        self.prompt_tokens, self.max_tokens, self.limit = prompt_tokens, max_tokens, limit


class EngineStopped(RuntimeError):
    """The engine takes no requests: it was stopped, or it failed (then that is the cause)."""


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


@dataclass(frozen=True, slots=True)
class Stats:
    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    preemptions: int  # since the start


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
        self.limits = resolve(
            config,
            context=context_length(model),
            bytes_per_token=self._runner.bytes_per_token,
            free_memory=_free_memory(self._runner.device),
            on_gpu=self._runner.device.type != "cpu",
        )
        limits = self.limits
        pool = BlockPool(
            limits.num_blocks, limits.block_size, limits.max_num_seqs, limits.max_model_len
        )
        self._runner.allocate(pool, limits.max_num_seqs)
        self._pool = pool
        self._scheduler = Scheduler(
            pool, limits.max_num_seqs, limits.max_num_batched_tokens, limits.batching
        )
        self._eos_ids = eos_ids
        self._on_step = on_step
        self._preemptions = 0
        self._calm_steps = 0

        self.failed: BaseException | None = None
        self._changed = threading.Condition()
        # Shared with callers' threads, under _changed:
        self._inbox: deque[Sequence | str] = deque()  # a new sequence, or the id of one to abort
        self._live: dict[str, Sequence] = {}
        self._submitted = 0
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._main, name="prony-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, drain: float) -> None:
        """Takes no more requests; those it has may go on for `drain` seconds, then are aborted."""
        with self._changed:
            self._stop_at = time.monotonic() + drain
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def submit(
        self,
        request_id: str,
        prompt: collections.abc.Sequence[int],
        params: SamplingParams,
        emit: Callable[[Output], None],
    ) -> None:
        """From any thread. Raises RequestTooLong, ValueError (a bad prompt), or EngineStopped."""
        tokens = list(prompt)
        self._check(tokens, params)
        # Without a seed too: a request has its own generator, in whatever batch it runs.
        seed = random.SystemRandom().getrandbits(64) if params.seed is None else params.seed
        # Random takes -1 as 1; as 64 bits they differ.
        rng = random.Random(seed % 2**64)
        with self._changed:
            if self.failed is not None:
                raise EngineStopped(f"the engine has failed: {self.failed!r}") from self.failed
            if self._stop_at is not None:
                raise EngineStopped("the engine is stopping")
            if request_id in self._live:
                raise ValueError(f"request id {request_id!r} is already in use")
            sequence = Sequence(
                request_id,
                self._submitted,
                tokens,
                len(tokens),
                params,
                emit,
                rng,
                Phases(time.monotonic()),
            )
            self._submitted += 1
            self._live[request_id] = sequence
            self._inbox.append(sequence)
            self._changed.notify()

    def abort(self, request_id: str) -> None:
        """From any thread. The request ends with finish_reason "abort" unless it has ended."""
        with self._changed:
            if request_id in self._live:
                self._inbox.append(request_id)
                self._changed.notify()

    def stats(self) -> Stats:
        pool = self._pool
        running = len(self._scheduler.running)
        return Stats(
            running,
            max(0, len(self._live) - running),  # the engine may finish one between the two counts
            pool.num_blocks - pool.num_free,
            pool.num_blocks,
            self._preemptions,
        )

    def _check(self, tokens: list[int], params: SamplingParams) -> None:
        if not tokens:
            raise ValueError("the prompt has no tokens")
        # An id outside the vocabulary would fail a whole step, and on a GPU the whole process.
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self._runner.vocabulary:
            wrong = low if low < 0 else high
            raise ValueError(
                f"prompt token {wrong} is outside the vocabulary of {self._runner.vocabulary}"
            )
        total = len(tokens) + params.max_tokens
        limits = self.limits
        if total > limits.max_model_len:
            raise RequestTooLong(
                len(tokens), params.max_tokens, limits.max_model_len, "the model's context"
            )
        # The last token is never put in the cache.
        if total - 1 > limits.kv_tokens:
            raise RequestTooLong(len(tokens), params.max_tokens, limits.kv_tokens, "the KV cache")

    # The rest runs in the engine thread.

    def _main(self) -> None:
        try:
            while self._take_in():
                self._iterate()
        except BaseException as error:
            log.exception("the engine thread died")
            self._die(error)

    def _take_in(self) -> bool:
        """Waits until there may be something to do; False when it is time to end."""
        scheduler = self._scheduler
        with self._changed:
            if not self._inbox and self._stop_at is None and not scheduler.running:
                if not scheduler.waiting:
                    self._pool.check_all_free()
                now = time.monotonic()
                wake = scheduler.wake_at(now)
                self._changed.wait(None if wake is None else wake - now)
            arrived = list(self._inbox)
            self._inbox.clear()
            stop_at = self._stop_at
        for message in arrived:
            if isinstance(message, Sequence):
                scheduler.add(message)
            elif message in self._live:
                self._finish(self._live[message], (), "abort")
        if stop_at is None:
            return True
        if time.monotonic() >= stop_at:
            for sequence in [*scheduler.running, *scheduler.waiting]:
                self._finish(sequence, (), "abort")
        if scheduler.running or scheduler.waiting:
            return True
        self._pool.check_all_free()
        return False

    def _iterate(self) -> None:
        scheduler = self._scheduler
        started = time.monotonic()
        batch = scheduler.schedule(started)
        if not batch:
            return
        before = self._preemptions
        self._preemptions += batch.preempted
        result = self._attempt(batch)
        if isinstance(result, Exception) and out_of_memory(result):
            log.warning("out of memory in a step of %d tokens: trying a smaller one", batch.tokens)
            batch = self._smaller_batch(started)
            result = self._attempt(batch)
        ran = time.monotonic()
        decodes = sum(s.computed >= s.prompt_length for s in batch.singles)
        if isinstance(result, Exception):
            self._fail(batch, result)
        else:
            self._advance(batch, *result, ran)
            self._calm_steps += 1
            if self._calm_steps % CALM_STEPS == 0:
                scheduler.budget = min(2 * scheduler.budget, self.limits.max_num_batched_tokens)
        if self._on_step is not None:
            self._on_step(
                Step(
                    started,
                    time.monotonic() - started,
                    ran - started,
                    len(batch.singles) + len(batch.chunks),
                    batch.tokens - decodes,
                    decodes,
                    len(scheduler.running),
                    len(scheduler.waiting),
                    self._pool.num_blocks - self._pool.num_free,
                    self._preemptions - before,
                )
            )

    def _smaller_batch(self, now: float) -> Batch:
        """After running out of memory: half the tokens, one sequence less, nobody new."""
        scheduler = self._scheduler
        free_unused_memory()
        scheduler.budget = max(1, scheduler.budget // 2)
        self._calm_steps = 0
        if len(scheduler.running) > 1:
            scheduler.preempt_youngest()
            self._preemptions += 1
        batch = scheduler.schedule(now, admit=False)
        self._preemptions += batch.preempted
        return batch

    def _fail(self, batch: Batch, error: Exception) -> None:
        log.error("a step of %d tokens failed", batch.tokens, exc_info=error)
        for sequence in batch.sequences:
            self._finish(sequence, (), "error", f"the step failed: {_one_line(error)}")

    def _attempt(self, batch: Batch) -> tuple[list[Sequence], list[int]] | Exception:
        try:
            return self._runner.run(batch)
        except Exception as error:
            if out_of_memory(error):
                # The traceback's frames hold the tensors that a second try needs the room of.
                return error.with_traceback(None)
            return error

    def _advance(
        self, batch: Batch, sampled: list[Sequence], tokens: list[int], now: float
    ) -> None:
        for sequence in batch.singles:
            sequence.computed += 1
        for sequence, length in batch.chunks:
            sequence.computed += length
        eos_ids = self._eos_ids
        for sequence, token in zip(sampled, tokens, strict=True):
            params = sequence.params
            if token == NOT_A_NUMBER:
                self._runner.clear(sequence)
                self._finish(sequence, (), "error", "the model gave NaN or infinite logits")
                continue
            if token in eos_ids and not params.ignore_eos:
                self._finish(sequence, (), "stop")
                continue
            phases = sequence.phases
            phases.last_token = now
            if phases.first_token is None:
                phases.first_token = now
            sequence.tokens.append(token)
            if len(sequence.tokens) - sequence.prompt_length >= params.max_tokens:
                self._finish(sequence, (token,), "length")
                continue
            try:
                sequence.emit(Output(sequence.request_id, (token,), None, None, phases))
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
    ) -> None:
        """Frees all it holds, then tells its receiver, which may use the id anew at once."""
        self._scheduler.remove(sequence)
        del self._live[sequence.request_id]
        self._emit_last(sequence, tokens, reason, error)

    def _die(self, error: BaseException) -> None:
        with self._changed:
            self.failed = error
            left = list(self._live.values())
            self._live.clear()
            self._inbox.clear()
        for sequence in left:
            self._emit_last(sequence, (), "error", f"the engine failed: {_one_line(error)}")

    def _emit_last(
        self,
        sequence: Sequence,
        tokens: tuple[int, ...],
        reason: FinishReason,
        error: str | None,
    ) -> None:
        try:
            sequence.emit(Output(sequence.request_id, tokens, reason, error, sequence.phases))
        except Exception:
            log.exception("the receiver of request %s failed", sequence.request_id)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()
