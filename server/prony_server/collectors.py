"""What is read when it is scraped, and costs nothing between: the engine, threads, the allocator.

So an idle server never shows its last busy moment. The names are in telemetry.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prony_server import telemetry as names
from prony_server.stages import STAGES

if TYPE_CHECKING:
    from prony_server.engine import Stats


class EngineCollector(Collector):
    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        return ()  # registering must not read an engine that is still starting

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text, value in (
            (names.REQUESTS_RUNNING, "Requests in the current batch", stats.running),
            (names.REQUESTS_WAITING, "Requests waiting for a place in the batch", stats.waiting),
            (names.KV_BLOCKS_USED, "KV cache blocks in use", stats.blocks_used),
            (names.KV_BLOCKS_TOTAL, "KV cache blocks that exist", stats.blocks_total),
            (names.KV_BLOCKS_CACHED, "KV cache blocks kept for later only", stats.blocks_cached),
            (names.MAX_NUM_SEQS, "Requests that one batch may hold", stats.max_num_seqs),
            (
                names.MAX_NUM_BATCHED_TOKENS,
                "Tokens that one iteration may work on",
                stats.max_num_batched_tokens,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        if stats.blocks_total:
            share = stats.blocks_used / stats.blocks_total
            yield GaugeMetricFamily(names.KV_CACHE_USAGE, "Share of KV blocks in use", value=share)
        for name, text, value in (
            (names.PREEMPTIONS, "Times a request gave up its KV blocks", stats.preemptions),
            (names.PREFIX_CACHE_QUERIES, "Tokens looked up in the cache", stats.prefix_queries),
            (names.PREFIX_CACHE_HITS, "Tokens found in the cache", stats.prefix_hits),
            (names.OUT_OF_MEMORY, "Iterations that ran out of memory", stats.out_of_memory),
        ):
            yield CounterMetricFamily(name, text, value=value)
        stages = CounterMetricFamily(
            names.STAGE_SECONDS, "What the engine's loop did with its time", labels=("stage",)
        )
        for stage, seconds in zip(STAGES, stats.stage_seconds, strict=True):
            stages.add_metric((stage,), seconds)
        yield stages


class ThreadClocks(Collector):
    """The processor time of the threads that asked to be watched, where the platform tells it."""

    def __init__(self) -> None:
        self._clocks: dict[str, int] = {}

    def watch(self, name: str) -> None:
        """From now on, the calling thread's. The clock of a thread that has ended is absent."""
        if hasattr(time, "pthread_getcpuclockid"):
            self._clocks[name] = time.pthread_getcpuclockid(threading.get_ident())

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            names.THREAD_CPU, "Processor time of one thread, user and system", labels=("thread",)
        )
        for name, clock in tuple(self._clocks.items()):
            try:
                family.add_metric((name,), time.clock_gettime(clock))
            except OSError:
                continue
        if family.samples:
            yield family


class DeviceMemory(Collector):
    """torch's allocator on one device: takes what gives torch.cuda.memory_stats."""

    def __init__(self, memory_stats: Callable[[], Mapping[str, int]]) -> None:
        self._memory_stats = memory_stats

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self._memory_stats()
        for name, text, key in (
            (names.DEVICE_MEMORY_ALLOCATED, "Of tensors", "allocated_bytes.all.current"),
            (names.DEVICE_MEMORY_RESERVED, "Held by the allocator", "reserved_bytes.all.current"),
        ):
            if key in stats:
                yield GaugeMetricFamily(name, text, value=stats[key])
        if "num_alloc_retries" in stats:
            yield CounterMetricFamily(
                names.DEVICE_ALLOC_RETRIES,
                "Times the allocator had to give memory back and try again",
                value=stats["num_alloc_retries"],
            )
