"""The reference server's metrics: facts about requests and iterations in, Prometheus series out.

Imports neither torch nor the engine, since the dashboards read the names from here, those of
collectors.py and gpu.py too. docs/metrics.md explains every series; a test holds that page and a
live server equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from prony_server.tally import Tally

if TYPE_CHECKING:
    from prony_server.engine import Step
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
KV_BLOCKS_CACHED = "prony_kv_blocks_cached"
KV_CACHE_USAGE = "prony_kv_cache_usage_ratio"
MAX_NUM_SEQS = "prony_max_num_seqs"
MAX_NUM_BATCHED_TOKENS = "prony_max_num_batched_tokens"
PREEMPTIONS = "prony_preemptions_total"
PREFIX_CACHE_QUERIES = "prony_prefix_cache_queries_total"
PREFIX_CACHE_HITS = "prony_prefix_cache_hits_total"
OUT_OF_MEMORY = "prony_out_of_memory_total"
STAGE_SECONDS = "prony_engine_stage_seconds_total"
THREAD_CPU = "prony_thread_cpu_seconds_total"

# Counted and observed as requests and iterations go by.
PROMPT_TOKENS = "prony_prompt_tokens_total"
GENERATION_TOKENS = "prony_generation_tokens_total"
REQUESTS_FINISHED = "prony_requests_finished_total"
REQUESTS_REJECTED = "prony_requests_rejected_total"
REQUEST_QUEUE = "prony_request_queue_seconds"
REQUEST_PREFILL = "prony_request_prefill_seconds"
REQUEST_DECODE = "prony_request_decode_seconds"
REQUEST_TOKENIZE = "prony_request_tokenize_seconds"
REQUEST_DETOKENIZE = "prony_request_detokenize_seconds"
REQUEST_WRITE_WAIT = "prony_request_write_wait_seconds"
REQUEST_PROMPT_TOKENS = "prony_request_prompt_tokens"
REQUEST_GENERATION_TOKENS = "prony_request_generation_tokens"
INTER_TOKEN_LATENCY = "prony_inter_token_latency_seconds"
ITERATION_TOKENS = "prony_iteration_tokens"
ITERATION_SECONDS = "prony_iteration_seconds"
BATCH_SIZE = "prony_batch_size"
EVENT_LOOP_LAG = "prony_event_loop_lag_seconds"
REQUEST_LOG_DROPPED = "prony_request_log_dropped_total"

# Only where NVML finds a GPU; SM, DRAM and tensor activity only where it has GPM (Hopper and on).
GPU_UTILIZATION = "prony_gpu_utilization_ratio"
GPU_SM_ACTIVITY = "prony_gpu_sm_activity_ratio"
GPU_TENSOR_ACTIVITY = "prony_gpu_tensor_activity_ratio"
GPU_DRAM_ACTIVITY = "prony_gpu_dram_activity_ratio"
GPU_MEMORY_USED = "prony_gpu_memory_used_bytes"
GPU_POWER = "prony_gpu_power_watts"
GPU_ENERGY = "prony_gpu_energy_joules_total"
GPU_SM_CLOCK = "prony_gpu_sm_clock_hertz"
GPU_TEMPERATURE = "prony_gpu_temperature_celsius"
GPU_THROTTLED = "prony_gpu_throttled"

# torch's allocator, only where the model is on a GPU.
DEVICE_MEMORY_ALLOCATED = "prony_device_memory_allocated_bytes"
DEVICE_MEMORY_RESERVED = "prony_device_memory_reserved_bytes"
DEVICE_ALLOC_RETRIES = "prony_device_alloc_retries_total"

PROVIDER = "prony"  # gen_ai.provider.name
FINISH_REASONS = ("stop", "length", "abort", "error")
ITERATION_KINDS = ("decode", "prefill", "mixed")

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
_GAP_BUCKETS = (*_TPOT_BUCKETS, 5.0, 10.0)
# What the event loop does for a request takes tens of microseconds when all is well.
_LOOP_BUCKETS = (0.0001, 0.00025, *_FINE, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_POWERS_OF_TWO = tuple(float(2**n) for n in range(18))

REJECTED = "429"  # the error_type of a request that the full queue refused
_LENGTHS = (REQUEST_PROMPT_TOKENS, REQUEST_GENERATION_TOKENS)

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
        self._rejected = Counter(
            REQUESTS_REJECTED, "Requests refused because the queue was full", registry=registry
        )
        self._log_dropped = Counter(
            REQUEST_LOG_DROPPED, "Lines of the request log that were not written", registry=registry
        )
        # Written by the engine's thread alone.
        self._iteration_tokens = Tally(_POWERS_OF_TWO[:15])
        self._iteration_seconds = {kind: Tally(_DURATION_BUCKETS) for kind in ITERATION_KINDS}
        self._batch_size = Tally(_POWERS_OF_TWO[:11])
        self._gaps = Tally(_GAP_BUCKETS)
        self._last_step: float | None = None
        # Written by the event loop's thread alone.
        self._tokenize = Tally(_LOOP_BUCKETS)
        self._detokenize = Tally(_LOOP_BUCKETS)
        self._write_wait = Tally(_LOOP_BUCKETS)
        self._loop_lag = Tally(_LOOP_BUCKETS)
        self._lengths = {name: Tally(_POWERS_OF_TWO) for name in _LENGTHS}
        registry.register(_Tallies(self._tallies()))

    def stepped(self, step: Step) -> None:
        """One engine iteration; called in the engine's thread."""
        prefill, decode = step.prefill_tokens, step.decode_tokens
        self._iteration_tokens.observe(prefill + decode)
        kind = "mixed" if prefill and decode else "prefill" if prefill else "decode"
        self._iteration_seconds[kind].observe(step.seconds)
        self._batch_size.observe(step.batch_size)
        ended = step.started + step.seconds
        if decode and self._last_step is not None:
            # Whoever decodes now got a token from the iteration before, too.
            self._gaps.observe(ended - self._last_step, decode)
        self._last_step = ended

    def loop_lagged(self, seconds: float) -> None:
        """How late the event loop came to something; called in the loop's thread."""
        self._loop_lag.observe(seconds)

    def log_dropped(self) -> None:
        self._log_dropped.inc()

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
        tokenize: float | None = None,
        detokenize: float | None = None,
        write_wait: float | None = None,
        tokens: tuple[int, int] | None = None,
    ) -> None:
        """A request got its whole answer, or as much as it will get (`error_type` says why).

        `tokens`: of its prompt, and generated. What a request never came to is None.
        """
        labels = (operation, PROVIDER, self._model)
        self._duration.labels(*labels, error_type).observe(duration, exemplar)
        if ttft is not None:
            self._ttft.labels(*labels).observe(ttft, exemplar)
        if tpot is not None:
            self._tpot.labels(*labels).observe(tpot, exemplar)
        if error_type == REJECTED:
            self._rejected.inc()
        for tally, seconds in (
            (self._tokenize, tokenize),
            (self._detokenize, detokenize),
            (self._write_wait, write_wait),
        ):
            if seconds is not None:
                tally.observe(seconds)
        if tokens is not None:
            for name, length in zip(_LENGTHS, tokens, strict=True):
                self._lengths[name].observe(length)

    def _tallies(self) -> dict[str, tuple[str, dict[str, Tally]]]:
        """Each tallied histogram's text, and its tallies by the label `kind` ("": it has none)."""
        prompt, generated = (self._lengths[name] for name in _LENGTHS)
        return {
            REQUEST_TOKENIZE: ("Making token ids of a request's prompt", {"": self._tokenize}),
            REQUEST_DETOKENIZE: (
                "Making text of a request's tokens, all its pieces together",
                {"": self._detokenize},
            ),
            REQUEST_WRITE_WAIT: (
                "Waiting until the kernel took a streamed answer's bytes, all its writes together",
                {"": self._write_wait},
            ),
            REQUEST_PROMPT_TOKENS: ("Prompt tokens of a request", {"": prompt}),
            REQUEST_GENERATION_TOKENS: ("Tokens generated for a request", {"": generated}),
            INTER_TOKEN_LATENCY: (
                "Between two tokens of a request, in the engine",
                {"": self._gaps},
            ),
            ITERATION_TOKENS: (
                "Tokens that one engine iteration worked on, prefill and decode",
                {"": self._iteration_tokens},
            ),
            ITERATION_SECONDS: ("Length of one engine iteration", self._iteration_seconds),
            BATCH_SIZE: ("Requests in one engine iteration", {"": self._batch_size}),
            EVENT_LOOP_LAG: ("How late the event loop comes to what is due", {"": self._loop_lag}),
        }


class _Tallies(Collector):
    def __init__(self, tallies: Mapping[str, tuple[str, Mapping[str, Tally]]]) -> None:
        self._tallies = tallies

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for name, (text, by_kind) in self._tallies.items():
            family = HistogramMetricFamily(name, text, labels=() if "" in by_kind else ("kind",))
            for kind, tally in by_kind.items():
                family.add_metric((kind,) if kind else (), *tally.read())
            yield family
