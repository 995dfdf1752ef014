"""Requests come in, the next step's batch goes out. No torch, no clock, no metric.

Sequences are served in order of arrival. Those with one token left to compute (decodes) go first,
then chunks of prompts, under one token budget. A sequence enters only when the pool has blocks for
all its tokens so far, so a prompt never stops half-way for lack of them; a decode that finds no
block preempts the youngest, which comes back to the head of the queue and is computed anew. The
oldest is never preempted and any request fits the pool alone, so every request finishes.
"""

from collections import deque
from dataclasses import dataclass

from prony_server.blocks import BlockPool
from prony_server.limits import Batching
from prony_server.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work: `singles` compute their last known token, `chunks` the next n of theirs."""

    singles: list[Sequence]
    chunks: list[tuple[Sequence, int]]
    preempted: int

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
        self.batching = batching
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

    def preempt_youngest(self) -> None:
        """The youngest running sequence gives back its blocks and waits, first in the queue."""
        sequence = self.running.pop()
        sequence.phases.preemptions += 1
        self.pool.release(sequence)
        self.waiting.appendleft(sequence)

    def schedule(self, now: float, admit: bool = True) -> Batch:
        """The next step. Room for its tokens is taken; `computed` is moved by who computes them."""
        budget = self.budget
        singles, preempted = self._decodes(budget)
        budget -= len(singles)
        chunks: list[tuple[Sequence, int]] = []
        for sequence in self.running:
            left = len(sequence.tokens) - sequence.computed
            if left > 1 and budget > 0:
                chunks.append((sequence, min(left, budget)))
                budget -= chunks[-1][1]
        if admit and self._admits(now):
            self._admit(now, budget, singles, chunks)
        return Batch(singles, chunks, preempted)

    def wake_at(self, now: float) -> float | None:
        """When to look again though nothing arrives; None if only an arrival can change things."""
        if not self.waiting or self.running:
            return None
        return max(now, self.waiting[0].phases.arrived + self.static_wait)

    def _decodes(self, budget: int) -> tuple[list[Sequence], int]:
        singles: list[Sequence] = []
        preempted = 0
        block_size = self.pool.block_size
        at = 0
        while at < len(self.running) and len(singles) < budget:
            sequence = self.running[at]
            at += 1
            known = len(sequence.tokens)
            if known - sequence.computed != 1:
                continue
            if len(sequence.blocks) * block_size < known:
                while not self.pool.grow(sequence, known):
                    # Oldest first: those preempted here have not been given a place in this step.
                    self.preempt_youngest()
                    preempted += 1
                    if sequence.row < 0:
                        return singles, preempted
            singles.append(sequence)
        return singles, preempted

    def _admits(self, now: float) -> bool:
        if not self.waiting:
            return False
        if self.batching == "continuous":
            return True
        head = self.waiting[0]
        if self.running:
            return head.phases.preemptions > 0  # it belongs to the batch that runs
        full = len(self.waiting) >= self.max_num_seqs
        return full or now >= head.phases.arrived + self.static_wait

    def _admit(
        self,
        now: float,
        budget: int,
        singles: list[Sequence],
        chunks: list[tuple[Sequence, int]],
    ) -> None:
        static = self.batching == "static"
        only_preempted = static and bool(self.running)
        # A static batch starts whole, even where its prompts take several steps' budgets.
        while self.waiting and len(self.running) < self.max_num_seqs and (budget > 0 or static):
            sequence = self.waiting[0]
            if only_preempted and not sequence.phases.preemptions:
                return
            known = len(sequence.tokens)
            # A block for each that runs: else what enters now is preempted again within steps.
            if self.pool.blocks_for(known) + len(self.running) > self.pool.num_free:
                return
            self.pool.grow(sequence, known)
            self.waiting.popleft()
            self.running.append(sequence)
            if sequence.phases.scheduled is None:
                sequence.phases.scheduled = now
            length = min(known, budget)
            if length == known == 1:
                singles.append(sequence)
            elif length:
                chunks.append((sequence, length))
            budget -= length
