"""The reference server's metrics: facts about requests and iterations in, Prometheus series out.

Imports neither torch nor the engine, since the dashboards read the names from here. docs/metrics.md
explains every series; a test holds that page and a live server equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prony_server.engine import Stats, Step
    from prony_server.sequence import Phases

# OpenTelemetry's GenAI conventions for servers, as Prometheus spells them.
REQUEST_DURATION = "gen_ai_server_request_duration_seconds"
TIME_TO_FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds"
TIME_PER_OUTPUT_TOKEN = "gen_ai_server_time_per_output_token_seconds"

# The engine's state, asked for at scrape time.
REQUESTS_RUNNING = "prony_requests_running"
REQUESTS_WAITING = "prony_requests_waiting"
KV_BLOCKS_USED = "prony_kv_blocks_used"
KV_BLOCKS_TOTAL = "prony_kv_blocks_total"
KV_CACHE_USAGE = "prony_kv_cache_usage_ratio"
PREEMPTIONS = "prony_preemptions_total"

# Counted and observed as requests and iterations go by.
PROMPT_TOKENS = "prony_prompt_tokens_total"
GENERATION_TOKENS = "prony_generation_tokens_total"
REQUESTS_FINISHED = "prony_requests_finished_total"
REQUEST_QUEUE = "prony_request_queue_seconds"
REQUEST_PREFILL = "prony_request_prefill_seconds"
REQUEST_DECODE = "prony_request_decode_seconds"
ITERATION_TOKENS = "prony_iteration_tokens"
ITERATION_SECONDS = "prony_iteration_seconds"
BATCH_SIZE = "prony_batch_size"

# Only where NVML finds a GPU.
GPU_UTILIZATION = "prony_gpu_utilization_ratio"
GPU_MEMORY_USED = "prony_gpu_memory_used_bytes"

PROVIDER = "prony"  # gen_ai.provider.name
FINISH_REASONS = ("stop", "length", "abort", "error")

# The conventions' lists, with finer steps put in front: a tiny model on a CPU takes 0.5-5 ms a
# token, and every quantile would otherwise be interpolation inside one first bucket. Floats, since
# Prometheus 2.42 takes le="1" and le="1.0" for different series.
_FINE = (0.0005, 0.001, 0.0025, 0.005)
_DURATION_BUCKETS = (
    *_FINE,
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
_TTFT_BUCKETS = (
    *_FINE,
    *(0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_TPOT_BUCKETS = (*_FINE, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_POWERS_OF_TWO = tuple(float(2**n) for n in range(15))

Exemplar = dict[str, str]


class ServerMetrics:
    """The instruments of one server process that serves one model."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        gen_ai = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
        self._model = model
        self._duration = Histogram(
            REQUEST_DURATION,
            "From the arrival of a request's headers to the last byte of its answer",
            (*gen_ai, "error_type"),
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._ttft = Histogram(
            TIME_TO_FIRST_TOKEN,
            "From the arrival of a request's headers to its first token leaving for the client",
            gen_ai,
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self._tpot = Histogram(
            TIME_PER_OUTPUT_TOKEN,
            "From first to last token of a request, by the tokens after the first",
            gen_ai,
            buckets=_TPOT_BUCKETS,
            registry=registry,
        )
        self._prompt_tokens = Counter(
            PROMPT_TOKENS, "Prompt tokens of requests that the engine took", registry=registry
        )
        self._generation_tokens = Counter(
            GENERATION_TOKENS, "Tokens generated, those of cut requests too", registry=registry
        )
        finished = Counter(
            REQUESTS_FINISHED,
            "Requests that left the engine, by how they ended",
            ("finish_reason",),
            registry=registry,
        )
        # All exist from the start: a rate misses the first event of a series that begins with it.
        self._finished = {reason: finished.labels(reason) for reason in FINISH_REASONS}
        self._queue = Histogram(
            REQUEST_QUEUE,
            "From reaching the engine to the first batch",
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._prefill = Histogram(
            REQUEST_PREFILL,
            "From the first batch to the first token",
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._decode = Histogram(
            REQUEST_DECODE,
            "From the first token to the last",
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._iteration_tokens = Histogram(
            ITERATION_TOKENS,
            "Tokens that one engine iteration worked on, prefill and decode",
            buckets=_POWERS_OF_TWO,
            registry=registry,
        )
        self._iteration_seconds = Histogram(
            ITERATION_SECONDS,
            "Length of one engine iteration",
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._batch_size = Histogram(
            BATCH_SIZE,
            "Requests in one engine iteration",
            buckets=_POWERS_OF_TWO[:11],
            registry=registry,
        )

    def stepped(self, step: Step) -> None:
        """One engine iteration; called in the engine's thread."""
        self._iteration_tokens.observe(step.prefill_tokens + step.decode_tokens)
        self._iteration_seconds.observe(step.seconds)
        self._batch_size.observe(step.batch_size)

    def accepted(self, prompt_tokens: int) -> None:
        self._prompt_tokens.inc(prompt_tokens)

    def generated(self, tokens: int) -> None:
        self._generation_tokens.inc(tokens)

    def left_engine(self, finish_reason: str, phases: Phases, exemplar: Exemplar | None) -> None:
        """A request's last output came; phases that it never reached are not observed."""
        self._finished[finish_reason].inc()
        for histogram, start, end in (
            (self._queue, phases.arrived, phases.scheduled),
            (self._prefill, phases.scheduled, phases.first_token),
            (self._decode, phases.first_token, phases.last_token),
        ):
            if start is not None and end is not None:
                histogram.observe(end - start, exemplar)

    def answered(
        self,
        operation: str,
        *,
        duration: float,
        ttft: float | None,
        tpot: float | None,
        error_type: str = "",
        exemplar: Exemplar | None = None,
    ) -> None:
        """A request got its whole answer, or as much as it will get (`error_type` says why)."""
        labels = (operation, PROVIDER, self._model)
        self._duration.labels(*labels, error_type).observe(duration, exemplar)
        if ttft is not None:
            self._ttft.labels(*labels).observe(ttft, exemplar)
        if tpot is not None:
            self._tpot.labels(*labels).observe(tpot, exemplar)


class EngineCollector(Collector):
    """Reads the engine when scraped, so that an idle engine never shows its last busy moment."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        return ()  # registering must not read an engine that is still starting

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text, value in (
            (REQUESTS_RUNNING, "Requests in the current batch", stats.running),
            (REQUESTS_WAITING, "Requests waiting for a place in the batch", stats.waiting),
            (KV_BLOCKS_USED, "KV cache blocks in use", stats.blocks_used),
            (KV_BLOCKS_TOTAL, "KV cache blocks that exist", stats.blocks_total),
            (KV_CACHE_USAGE, "Share of KV blocks in use", stats.blocks_used / stats.blocks_total),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily(
            PREEMPTIONS, "Times a running request gave up its KV blocks", value=stats.preemptions
        )


class GpuCollector(Collector):
    """NVML's view of each GPU; what NVML will not give is absent, never 0."""

    def __init__(self, nvml: Any) -> None:
        """Takes the pynvml module, initialised."""
        self._nvml = nvml
        self._gpus = [
            (str(index), nvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(nvml.nvmlDeviceGetCount())
        ]

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        nvml = self._nvml
        utilization = GaugeMetricFamily(
            GPU_UTILIZATION, "Share of time in which a kernel was running", labels=("gpu",)
        )
        memory = GaugeMetricFamily(
            GPU_MEMORY_USED, "Device memory in use by all processes", labels=("gpu",)
        )
        for index, gpu in self._gpus:
            with contextlib.suppress(nvml.NVMLError):
                utilization.add_metric((index,), nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)
            with contextlib.suppress(nvml.NVMLError):
                memory.add_metric((index,), nvml.nvmlDeviceGetMemoryInfo(gpu).used)
        yield from (family for family in (utilization, memory) if family.samples)


def register_gpus(registry: CollectorRegistry) -> bool:
    """Adds the GPU gauges where NVML and a GPU exist; says whether it did."""
    try:
        import pynvml
    except ImportError:
        return False
    try:
        pynvml.nvmlInit()
        collector = GpuCollector(pynvml)
    except pynvml.NVMLError:
        return False
    registry.register(collector)
    return True
