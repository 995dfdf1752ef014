"""Requests come in, the next step's batch goes out. No torch, no clock, no metric.

Those with one token left to compute (decodes) go first, so each step holds every running decode;
chunks of prompts share what is left of one token budget. A sequence enters in order of arrival, and
only when the pool has blocks for all its tokens so far, so a prompt never stops half-way for lack
of them; a decode that finds no block preempts the youngest, which comes back to the head of the
queue and is computed anew. The oldest is never preempted and any request fits the pool alone, so
every request finishes.

Of the prompts' share half goes to the oldest prompt, the rest to the shortest first. So a long
prompt, once it is the oldest, gets half of every step whatever comes after it, and a short one is
held up by those shorter than itself, and by half of each step, but not by the length of others.
"""

from collections import deque
from dataclasses import dataclass, field

from prony_server.blocks import BlockPool
from prony_server.limits import Batching
from prony_server.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work: `singles` compute their last known token, `chunks` the next n of theirs."""

    singles: list[Sequence]
    chunks: list[tuple[Sequence, int]]
    preempted: int
    entered: list[Sequence] = field(default_factory=list)  # those in a batch for the first time

    def __bool__(self) -> bool:
        return bool(self.singles or self.chunks)

    @property
    def tokens(self) -> int:
        return len(self.singles) + sum(length for _, length in self.chunks)

    @property
    def sequences(self) -> list[Sequence]:
        return self.singles + [sequence for sequence, _ in self.chunks]


def is_last(sequence: Sequence, length: int) -> bool:
    """Whether `length` more tokens reach the end of those known, so that the next is sampled."""
    return sequence.computed + length == len(sequence.tokens)


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        batching: Batching = "continuous",
        static_wait: float = 0.05,
    ) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.budget = max_num_batched_tokens  # the engine lowers it when memory runs out
        self.static = batching == "static"
        self.static_wait = static_wait
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # by age, all older than any that waits

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence has finished, or nobody wants it any more."""
        if sequence.row >= 0:
            self.running.remove(sequence)
            self.pool.release(sequence)
        else:
            self.waiting.remove(sequence)

    def schedule(self, now: float) -> Batch:
        """The next step. Room for its tokens is taken; `computed` is moved by who computes them."""
        singles, preempted = self._decodes()
        if self._admits(now):
            self._admit()
        decodes = len(singles)
        chunks = self._chunks(self.budget - decodes, singles)
        entered = []
        for sequence in (*singles[decodes:], *(sequence for sequence, _ in chunks)):
            phases = sequence.phases
            if phases.scheduled is None:
                phases.scheduled = now
                phases.cached_tokens = sequence.computed
                entered.append(sequence)
        return Batch(singles, chunks, preempted, entered)

    def wake_at(self, now: float) -> float | None:
        """When to look again though nothing arrives; None if only an arrival can change things."""
        if not self.waiting or self.running:
            return None
        return max(now, self.waiting[0].phases.arrived + self.static_wait)

    def _decodes(self) -> tuple[list[Sequence], int]:
        singles: list[Sequence] = []
        preempted = 0
        block_size = self.pool.block_size
        at = 0
        while at < len(self.running) and len(singles) < self.budget:
            sequence = self.running[at]
            at += 1
            known = len(sequence.tokens)
            if known - sequence.computed != 1:
                continue
            if len(sequence.blocks) * block_size < known:
                while not self.pool.grow(sequence, known):
                    # Oldest first: those preempted here have not been given a place in this step.
                    self._preempt_youngest()
                    preempted += 1
                    if sequence.row < 0:
                        return singles, preempted
            singles.append(sequence)
        return singles, preempted

    def _preempt_youngest(self) -> None:
        """The youngest running sequence gives back its blocks and waits, first in the queue."""
        sequence = self.running.pop()
        sequence.phases.preemptions += 1
        self.pool.release(sequence)
        self.waiting.appendleft(sequence)

    def _admits(self, now: float) -> bool:
        if not self.waiting:
            return False
        if not self.static:
            return True
        head = self.waiting[0]
        if self.running:
            return head.phases.preemptions > 0  # it belongs to the batch that runs
        full = len(self.waiting) >= self.max_num_seqs
        return full or now >= head.phases.arrived + self.static_wait

    def _admit(self) -> None:
        only_preempted = self.static and bool(self.running)
        while self.waiting and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            if only_preempted and not sequence.phases.preemptions:
                return
            # A block for each that runs: else what enters now is preempted again within steps.
            if not self.pool.enter(sequence, spare=len(self.running)):
                return
            self.running.append(self.waiting.popleft())

    def _chunks(self, budget: int, singles: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Shares the budget out among unfinished prompts; a last single token joins `singles`."""
        if budget <= 0 or len(singles) == len(self.running):
            return []
        decoding = set(singles)
        left: dict[Sequence, int] = {}
        for sequence in self.running:
            if sequence not in decoding:
                self.pool.reuse(sequence)
                left[sequence] = len(sequence.tokens) - sequence.computed
        oldest = next(iter(left))
        lengths = dict.fromkeys(left, 0)
        lengths[oldest] = min(left[oldest], (budget + 1) // 2)
        budget -= lengths[oldest]
        # Stable: of equally long ones the older goes first.
        for sequence in sorted(left, key=lambda each: left[each] - lengths[each]):
            more = min(left[sequence] - lengths[sequence], budget)
            lengths[sequence] += more
            budget -= more
        chunks = []
        for sequence, length in lengths.items():
            if length == left[sequence] == 1:
                singles.append(sequence)
            elif length:
                chunks.append((sequence, length))
        return chunks
