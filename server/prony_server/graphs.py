"""Decode steps on buffers that never move: sequences come in, logits go out.

A step in which every sequence computes one token is padded to a bucket: so many rows, block tables
so wide. Its inputs are copied into that bucket's buffers, so the same work on the same addresses
follows, which a CUDA graph replays without the host launching it kernel by kernel. Graphs are
captured when a bucket is first met, all in one memory pool; where the capture fails the step runs
as it is. Without a GPU the same padded step runs uncaptured, which is how it is tested.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prony_server.attention import KVCache, PagedStep, SinglesView

log = logging.getLogger(__name__)

WARM_UPS = 2  # runs before a capture: libraries choose and allocate what a graph must not hold

Forward = Callable[[Tensor, Tensor, PagedStep], Tensor]


def bucket(wanted: int, most: int) -> int:
    """The least of 2, 3, 4, 6, 8, 12, 16, 24, ... that holds `wanted`, and at most `most`.

    Not 1: a compiler takes that for a constant, and would compile anew for it.
    """
    power = 1 << max(1, (wanted - 1).bit_length())
    between = power * 3 // 4
    return min(most, between if power >= 4 and wanted <= between else power)


@dataclass(slots=True)
class Bucket:
    """Buffers of one shape: `numbers` holds ids, positions, slots, lengths, then the tables."""

    rows: int
    width: int
    numbers: Tensor
    graph: Any = None  # a torch.cuda.CUDAGraph, once captured

    def row(self, at: int) -> Tensor:
        return self.numbers[at * self.rows : (at + 1) * self.rows]

    @property
    def table(self) -> Tensor:
        return self.numbers[4 * self.rows :].view(self.rows, self.width)


class PaddedDecode:
    def __init__(
        self, forward: Forward, cache: KVCache, tables: Tensor, spare_block: int, capture: bool
    ) -> None:
        """`tables`: of all rows, on the host. Padding rows write to `spare_block`, nobody's."""
        self.cache = cache
        self.tables = tables
        self.spare_block = spare_block
        self._forward = forward
        self._capture = capture
        keys = next(iter(cache.keys.values()))
        self._device, self.dtype = keys.device, keys.dtype
        self._buckets: dict[tuple[int, int], Bucket] = {}
        self._memory: Any = None
        self._logits: Tensor | None = None  # [rows, vocabulary], of all graphs: one runs at a time
        most_rows, most_width = tables.shape
        numbers = most_rows * (4 + most_width)
        # Pinned: a copy from it goes on by itself, and is over before the step's tokens are here.
        self._host = torch.zeros(numbers, dtype=torch.long, pin_memory=self._device.type == "cuda")

    def fill(self, ids: list[int], places: list[int], rows: list[int]) -> Bucket:
        """Copies a step into its bucket's buffers: tokens, their positions, rows of the tables."""
        token, place, which = torch.tensor([ids, places, rows])
        size, count = self.cache.block_size, len(ids)
        most_rows, most_width = self.tables.shape
        shape = bucket(count, most_rows), bucket(max(places) // size + 1, most_width)
        host = Bucket(*shape, self._host[: shape[0] * (4 + shape[1])])
        slot = self.tables[which, place // size] * size + place % size
        inputs = (token, 0), (place, 0), (slot, self.spare_block * size), (place + 1, 1)
        for at, (values, padding) in enumerate(inputs):
            host.row(at)[:count], host.row(at)[count:] = values, padding
        host.table[:count], host.table[count:] = self.tables[which, : shape[1]], self.spare_block
        mine = self._buckets.get(shape)
        if mine is None:
            buffer = torch.zeros(host.numbers.shape, dtype=torch.long, device=self._device)
            mine = self._buckets[shape] = Bucket(*shape, buffer)
        mine.numbers.copy_(host.numbers, non_blocking=True)
        return mine

    def run(self, bucket: Bucket) -> Tensor:
        """Logits of the bucket's rows, those of padding too; overwritten by the next run."""
        if bucket.graph is None and self._capture:
            self._record(bucket)
        if bucket.graph is None:
            return self.step(bucket, self._forward)
        bucket.graph.replay()
        assert self._logits is not None
        return self._logits[: bucket.rows]

    def step(self, bucket: Bucket, forward: Forward) -> Tensor:
        view = SinglesView(0, bucket.table, bucket.row(3))
        step = PagedStep(self.cache, bucket.row(2), [view], [])
        return forward(bucket.row(0)[None], bucket.row(1)[None], step)

    def _record(self, bucket: Bucket) -> None:
        try:
            side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    logits = self.step(bucket, self._forward)
            torch.cuda.current_stream().wait_stream(side)
            if self._logits is None:
                shape = (self.tables.shape[0], logits.shape[1])
                self._logits = torch.empty(shape, dtype=logits.dtype, device=self._device)
            del logits
            graph = torch.cuda.CUDAGraph()
            # Other threads (metrics, say) may use CUDA meanwhile.
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                self._logits[: bucket.rows].copy_(self.step(bucket, self._forward))
        except Exception as error:  # out of memory too: what follows is slower, not wrong
            self._capture = False
            log.warning("no more CUDA graphs: a decode step cannot be captured: %s", error)
        else:
            bucket.graph = graph
            self._memory = graph.pool()
