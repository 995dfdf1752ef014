"""Latencies go in, percentiles come out, each within 1 % of the exact one; sketches add up.

Values are counted in bins that are each 2 % wider than the one before, so that two sketches which
were filled apart and added hold the same as one that was filled with everything. For watching a
run: the figures that count are exact percentiles of its records.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

ERROR = 0.01  # of a percentile, relative to the exact one
# A bin reaches from one power of it to the next, and stands for the value in between that is as
# far, relatively, from both. A little under what ERROR allows: logarithms are rounded.
_GROWTH = (1 + ERROR) / (1 - ERROR) - 1e-9
_LOG = math.log(_GROWTH)
_LEAST = 1e-9  # seconds; no clock here tells less apart from 0


class Sketch:
    """How often values of each size were seen. None is negative."""

    __slots__ = ("bins", "count", "least", "most", "tiny", "total")

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.tiny = 0  # values under a nanosecond
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = -math.inf

    def add(self, value: float, times: int = 1) -> None:
        """Counts `value`, which is finite and not negative."""
        if value < _LEAST:
            self.tiny += times
        else:
            number = math.ceil(math.log(value) / _LOG)
            self.bins[number] = self.bins.get(number, 0) + times
        self.count += times
        self.total += value * times
        if value < self.least:
            self.least = value
        if value > self.most:
            self.most = value

    def merge(self, other: "Sketch") -> None:
        """Counts all that the other one has seen."""
        for number, times in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + times
        self.tiny += other.tiny
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    def percentiles(self, shares: Sequence[float]) -> list[float | None]:
        """Nearest-rank percentiles, within ERROR; `shares` ascend. None where nothing was seen.

        Neither under the least value seen nor over the largest, which is exact.
        """
        if not self.count:
            return [None] * len(shares)
        found: list[float | None] = []
        bins = self._ascending()
        value, reached = next(bins)
        for share in shares:
            # As in summary.py: what a float's last digit adds must not move to the next rank.
            rank = max(1, math.ceil(share * self.count - 1e-9))
            while reached < rank:
                value, more = next(bins)
                reached += more
            # The largest of all is known as it is.
            exact = rank == self.count
            found.append(self.most if exact else min(max(value, self.least), self.most))
        return found

    def up_to(self, edges: Sequence[float]) -> list[int]:
        """How many values lie up to each of the ascending edges, give or take a bin's width."""
        counts, reached = [], 0
        bins = list(self._ascending())
        at = 0
        for edge in edges:
            while at < len(bins) and bins[at][0] <= edge:
                reached += bins[at][1]
                at += 1
            counts.append(reached)
        return counts

    def to_json(self) -> list[Any]:
        """A list of numbers, for a message."""
        ends = [self.least, self.most] if self.count else [0.0, 0.0]
        flat = [part for pair in self.bins.items() for part in pair]
        return [self.tiny, self.count, self.total, *ends, *flat]

    @classmethod
    def from_json(cls, numbers: Sequence[Any]) -> Self:
        """The sketch that to_json gave. Raises ValueError or TypeError for anything else."""
        sketch = cls()
        sketch.tiny, sketch.count, sketch.total, least, most, *flat = numbers
        sketch.bins = dict(zip(flat[::2], flat[1::2], strict=True))
        if sketch.count:
            sketch.least, sketch.most = least, most
        return sketch

    def _ascending(self) -> Iterator[tuple[float, int]]:
        if self.tiny:
            yield 0.0, self.tiny
        for number in sorted(self.bins):
            yield 2 * _GROWTH**number / (1 + _GROWTH), self.bins[number]
