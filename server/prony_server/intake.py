"""Requests come in from any thread and are checked; the engine's thread takes them, in order."""

import collections.abc
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from prony_server.limits import Limits
from prony_server.sequence import FinishReason, Output, Phases, SamplingParams, Sequence

# A new request, the id of one that is to end and its finish_reason, or a call to make.
Message = Sequence | tuple[str, FinishReason] | Callable[[], None]


class RequestTooLong(ValueError):
    """prompt + max_tokens is more than the model's context or the KV cache can hold."""

    def __init__(self, prompt_tokens: int, max_tokens: int, limit: int, what: str) -> None:
        super().__init__(
            f"{prompt_tokens} prompt tokens + {max_tokens} max_tokens "
            f"= {prompt_tokens + max_tokens} exceed {what} of {limit} tokens"
        )
        self.prompt_tokens, self.max_tokens, self.limit = prompt_tokens, max_tokens, limit


class QueueFull(RuntimeError):
    """As many requests wait for a place as may wait: try again later."""

    def __init__(self, max_queue: int) -> None:
        super().__init__(f"the queue is full: {max_queue} requests wait already")
        self.max_queue = max_queue


class EngineStopped(RuntimeError):
    """The engine takes no requests: it was stopped, or it failed (then that is the cause)."""


class Intake:
    def __init__(self, limits: Limits, vocabulary: int) -> None:
        self.failed: BaseException | None = None
        self.live: dict[str, Sequence] = {}  # taken and not ended; only submit adds to it
        # How many of these run, or will at the next step; written by the engine's thread.
        self.places = limits.max_num_seqs
        self._limits = limits
        self._vocabulary = vocabulary
        self._changed = threading.Condition()
        self._inbox: deque[Message] = deque()
        self._submitted = 0
        self._stop_at: float | None = None

    @property
    def waiting(self) -> int:
        """Requests for which there is no place; those that enter the next step have one."""
        return max(0, len(self.live) - self.places)

    def submit(
        self,
        request_id: str,
        prompt: collections.abc.Sequence[int],
        params: SamplingParams,
        emit: Callable[[Output], None],
    ) -> None:
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
            if request_id in self.live:
                raise ValueError(f"request id {request_id!r} is already in use")
            self._check_queue()
            phases = Phases(time.monotonic())
            sequence = Sequence(
                request_id, self._submitted, tokens, len(tokens), params, emit, rng, phases
            )
            self._submitted += 1
            self.live[request_id] = sequence
            self._put(sequence)

    def abort(self, request_id: str, reason: FinishReason) -> None:
        with self._changed:
            if request_id in self.live:
                self._put((request_id, reason))

    def call(self, call: Callable[[], None]) -> None:
        with self._changed:
            if self.failed is not None or self._stop_at is not None:
                raise EngineStopped("the engine has stopped or is stopping")
            self._put(call)

    def stop(self, drain: float) -> None:
        with self._changed:
            self._stop_at = time.monotonic() + drain
            self._changed.notify()

    def take(self, patience: float | None) -> tuple[list[Message], float | None]:
        """What came, and when to stop. Waits for it so many seconds at most; None: for ever."""
        with self._changed:
            if patience != 0 and not self._inbox and self._stop_at is None:
                self._changed.wait(patience)
            taken = list(self._inbox)
            self._inbox.clear()
            return taken, self._stop_at

    def fail(self, error: BaseException) -> list[Sequence]:
        """Takes nothing any more; gives those that have not ended."""
        with self._changed:
            self.failed = error
            left = list(self.live.values())
            self.live.clear()
            self._inbox.clear()
        return left

    def _put(self, message: Message) -> None:
        self._inbox.append(message)
        self._changed.notify()

    def _check_queue(self) -> None:
        most = self._limits.max_queue
        if most is None:
            return
        # While a static batch gathers none has a place, yet as many as it holds do not queue.
        places = self.places or self._limits.max_num_seqs
        if len(self.live) >= places + most:
            raise QueueFull(most)

    def _check(self, tokens: list[int], params: SamplingParams) -> None:
        if not tokens:
            raise ValueError("the prompt has no tokens")
        params.check_tokens(self._vocabulary)
        # An id outside the vocabulary would fail a whole step, and on a GPU the whole process.
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self._vocabulary:
            wrong = low if low < 0 else high
            raise ValueError(
                f"prompt token {wrong} is outside the vocabulary of {self._vocabulary}"
            )
        total = len(tokens) + params.max_tokens
        limits = self._limits
        if total > limits.max_model_len:
            raise RequestTooLong(
                len(tokens), params.max_tokens, limits.max_model_len, "the model's context"
            )
        # The last token is never put in the cache.
        if total - 1 > limits.kv_tokens:
            raise RequestTooLong(len(tokens), params.max_tokens, limits.kv_tokens, "the KV cache")
