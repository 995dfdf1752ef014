"""What each engine exports of what one wants to know: an engine and a concept in, PromQL out.

Names as documented and read in the engines' sources: vLLM 0.33, SGLang 0.5.23, text-generation-
inference 3, TensorRT-LLM's `trtllm-serve`. Where an engine has no metric for a concept, its entry
says so in words, and the panel shows the words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from prony_dashboards import promql
from prony_server import telemetry as server

Concept = Literal[
    "running", "waiting", "kv_usage",
    "ttft", "itl", "tpot", "e2e", "queue_time", "prefill_time", "decode_time",
    "prompt_tokens", "generation_tokens", "preemptions", "prefix_hits",
    "requests", "failures", "finish_reasons",
    "batch_size", "iteration_time", "iteration_tokens",
    "scheduler_stages", "host_share", "memory", "cpu",
    "slots", "token_budget", "rejected", "out_of_memory", "tokenize_time", "detokenize_time",
    "write_wait", "loop_lag", "engine_cpu", "loop_cpu", "gpu_active", "gpu_dram", "gpu_throttled",
    "device_retries", "kv_cached", "prompt_length", "output_length",
]  # fmt: skip
CONCEPTS: Final[tuple[Concept, ...]] = get_args(Concept)

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Source:
    """The metric that an engine tells a concept by."""

    metric: str  # as Prometheus stores it: a counter with its _total, a histogram without _bucket
    kind: Kind
    only: str = ""  # matchers that it needs besides the board's, such as method="prefill"
    by: str = ""  # the label that tells its kinds apart
    of: str = ""  # the counter, or of a gauge the gauge, that it is a share of
    less: str = ""  # matchers of the part of `of` that does not count
    model: bool = True  # whether it carries the engine's label of the model
    note: str = ""  # what a reader must know before trusting it


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of inference server."""

    name: str
    title: str
    model_label: str | None  # None: its metrics do not say which model
    sources: Mapping[Concept, Source]
    absent: Mapping[Concept, str]  # why a concept has no source

    @property
    def slug(self) -> str:
        """What the uids of its boards begin with."""
        return "prony" if self.name == "prony" else f"prony-{self.name}"

    def labels(self, source: Source, more: str = "") -> str:
        """The matchers of a source under the board's variables."""
        model = f'{self.model_label}=~"$model"' if self.model_label and source.model else ""
        return ", ".join(part for part in (model, 'instance=~"$instance"', source.only, more)
                         if part)  # fmt: skip

    def level(self, concept: Concept, how: str = "sum", by: str = "") -> str:
        """A gauge now, over all chosen instances (`how`: sum, max or avg)."""
        source = self.sources[concept]
        group = f" by ({by}) " if by else ""
        return f"{how}{group}({source.metric}{{{self.labels(source)}}})"

    def rate(self, concept: Concept, by: str = "") -> str:
        """How much of it a second: of a counter, or of a histogram's observed sum."""
        source = self.sources[concept]
        name = source.metric + ("_sum" if source.kind == "histogram" else "")
        return promql.rate(name, self.labels(source), by or source.by)

    def count(self, concept: Concept) -> str:
        """How many of it a second: events of a counter, or observations of a histogram."""
        source = self.sources[concept]
        name = source.metric + ("_count" if source.kind == "histogram" else "")
        return promql.rate(name, self.labels(source))

    def parts(self, concept: Concept) -> str:
        """What part of all of it each kind is: they sum to 1."""
        source = self.sources[concept]
        labels = self.labels(source)
        whole = promql.rate(source.metric, labels)
        return (
            f"{promql.rate(source.metric, labels, source.by)} / on () group_left () ({whole} > 0)"
        )

    def quantile(self, q: float, concept: Concept) -> str:
        """A quantile of all of it; of each kind by itself, where it has kinds."""
        source = self.sources[concept]
        return promql.quantile(q, source.metric, self.labels(source), source.by)

    def mean(self, concept: Concept) -> str:
        source = self.sources[concept]
        return promql.mean(source.metric, self.labels(source))

    def buckets(self, concept: Concept) -> str:
        source = self.sources[concept]
        return promql.buckets(source.metric, self.labels(source))

    def share(self, concept: Concept) -> str:
        """A share of 0..1: a gauge that is one already, or something over what it is a part of."""
        source = self.sources[concept]
        if not source.of:
            return self.level(concept, "avg")
        if source.kind == "gauge":
            return promql.ratio(self.level(concept), f"sum({source.of}{{{self.labels(source)}}})")
        every = replace(source, only="")
        whole = promql.rate(source.of, self.labels(every))
        if source.less:
            whole = f"({whole} - {promql.rate(source.of, self.labels(every, source.less))})"
        return promql.share(promql.rate(source.metric, self.labels(source)), whole)

    def has(self, concept: Concept) -> bool:
        return concept in self.sources

    def says(self, *concepts: Concept) -> str:
        """What a panel's description must add on these concepts: what is missing, what differs."""
        said = [self.absent[c] if c in self.absent else self.sources[c].note for c in concepts]
        return " ".join(dict.fromkeys(sentence for sentence in said if sentence))

    def names(self) -> set[str]:
        """Every metric that the map reads."""
        return {name for s in self.sources.values() for name in (s.metric, s.of) if name}


def _gauge(metric: str, **more: str) -> Source:
    return Source(metric, "gauge", **more)  # type: ignore[arg-type]


def _counter(metric: str, **more: str) -> Source:
    return Source(metric, "counter", **more)  # type: ignore[arg-type]


def _histogram(metric: str, **more: str) -> Source:
    return Source(metric, "histogram", **more)  # type: ignore[arg-type]


def _whole_server(source: Source) -> Source:
    """A metric without the model's label."""
    return replace(source, model=False)


_NO_SCHEDULER: Final = "{} does not export how long its scheduler's stages take."
_NO_HOST: Final = "{} does not export how long it waits for the model's forward pass."
_NOT_TOLD: Final[dict[Concept, str]] = {
    "slots": "{} does not export how many requests may run at a time.",
    "token_budget": "{} does not export how many tokens one iteration may hold.",
    "rejected": "{} does not count the requests that it refuses.",
    "out_of_memory": "{} does not count the iterations that ran out of memory.",
    "tokenize_time": "{} does not export how long tokenizing takes.",
    "detokenize_time": "{} does not export how long detokenizing takes.",
    "write_wait": "{} does not export how long it waits for slow readers.",
    "loop_lag": "{} does not export how late its event loop is.",
    "engine_cpu": "{} does not export the processor time of its engine's thread.",
    "loop_cpu": "{} does not export the processor time of its event loop's thread.",
    "gpu_active": "{}'s page has no GPU metrics; see GPU and host for an exporter's.",
    "gpu_dram": "{}'s page has no GPU metrics; see GPU and host for an exporter's.",
    "gpu_throttled": "{}'s page has no GPU metrics; see GPU and host for an exporter's.",
    "device_retries": "{} does not export its allocator's retries.",
    "kv_cached": "{} does not export how much of its cache is only kept for later.",
    "prompt_length": "{} has no histogram of prompt lengths.",
    "output_length": "{} has no histogram of output lengths.",
}


def _not_told(engine: str, *told: Concept) -> dict[Concept, str]:
    """Why an engine has none of these concepts, which hardly any but ours has; `told`: it has."""
    return {c: said.format(engine) for c, said in _NOT_TOLD.items() if c not in told}


_PROCESS: Final[dict[Concept, Source]] = {
    "memory": _whole_server(_gauge("process_resident_memory_bytes")),
    "cpu": _whole_server(_counter("process_cpu_seconds_total")),
}

_PRONY: Final = Engine(
    name="prony",
    title="Prony",
    model_label="gen_ai_request_model",
    sources={
        "running": _whole_server(_gauge(server.REQUESTS_RUNNING)),
        "waiting": _whole_server(_gauge(server.REQUESTS_WAITING)),
        "kv_usage": _whole_server(_gauge(server.KV_CACHE_USAGE)),
        "ttft": _histogram(server.TIME_TO_FIRST_TOKEN),
        "tpot": _histogram(server.TIME_PER_OUTPUT_TOKEN),
        "e2e": _histogram(server.REQUEST_DURATION, only='error_type=""'),
        "queue_time": _whole_server(_histogram(server.REQUEST_QUEUE)),
        "prefill_time": _whole_server(_histogram(server.REQUEST_PREFILL)),
        "decode_time": _whole_server(_histogram(server.REQUEST_DECODE)),
        "prompt_tokens": _whole_server(_counter(server.PROMPT_TOKENS)),
        "generation_tokens": _whole_server(_counter(server.GENERATION_TOKENS)),
        "preemptions": _whole_server(_counter(server.PREEMPTIONS)),
        "requests": _histogram(server.REQUEST_DURATION),
        "failures": _counter(
            server.REQUEST_DURATION + "_count", only='error_type!~"|client_disconnected"',
            of=server.REQUEST_DURATION + "_count",
            note="A client that went away is not a failure of the server.",
        ),
        "finish_reasons": _whole_server(_counter(server.REQUESTS_FINISHED, by="finish_reason")),
        "batch_size": _whole_server(_histogram(server.BATCH_SIZE)),
        "iteration_time": _whole_server(_histogram(server.ITERATION_SECONDS, by="kind")),
        "iteration_tokens": _whole_server(_histogram(server.ITERATION_TOKENS)),
        "itl": _whole_server(_histogram(
            server.INTER_TOKEN_LATENCY,
            note="As the engine makes the tokens, not as the client gets them.",
        )),
        "kv_cached": _whole_server(_gauge(server.KV_BLOCKS_CACHED, of=server.KV_BLOCKS_TOTAL)),
        "prompt_length": _whole_server(_histogram(server.REQUEST_PROMPT_TOKENS)),
        "output_length": _whole_server(_histogram(server.REQUEST_GENERATION_TOKENS)),
        "prefix_hits": _whole_server(
            _counter(server.PREFIX_CACHE_HITS, of=server.PREFIX_CACHE_QUERIES)
        ),
        "scheduler_stages": _whole_server(_counter(server.STAGE_SECONDS, by="stage")),
        "host_share": _whole_server(
            _counter(
                server.STAGE_SECONDS, only='stage="forward"', of=server.STAGE_SECONDS,
                less='stage="idle"',
                note="On a GPU it holds the device's time too, for which the host waits in the "
                "stage sample: see what the GPU says.",
            )
        ),
        "slots": _whole_server(_gauge(server.MAX_NUM_SEQS)),
        "token_budget": _whole_server(_gauge(server.MAX_NUM_BATCHED_TOKENS)),
        "rejected": _whole_server(_counter(server.REQUESTS_REJECTED)),
        "out_of_memory": _whole_server(_counter(server.OUT_OF_MEMORY)),
        "tokenize_time": _whole_server(_histogram(server.REQUEST_TOKENIZE)),
        "detokenize_time": _whole_server(_histogram(server.REQUEST_DETOKENIZE)),
        "write_wait": _whole_server(_histogram(server.REQUEST_WRITE_WAIT)),
        "loop_lag": _whole_server(_histogram(server.EVENT_LOOP_LAG)),
        "engine_cpu": _whole_server(_counter(server.THREAD_CPU, only='thread="engine"')),
        "loop_cpu": _whole_server(_counter(server.THREAD_CPU, only='thread="loop"')),
        "gpu_active": _whole_server(_gauge(server.GPU_SM_ACTIVITY)),
        "gpu_dram": _whole_server(_gauge(server.GPU_DRAM_ACTIVITY)),
        "gpu_throttled": _whole_server(_gauge(server.GPU_THROTTLED)),
        "device_retries": _whole_server(_counter(server.DEVICE_ALLOC_RETRIES)),
        **_PROCESS,
    },
    absent={},
)  # fmt: skip

_VLLM: Final = Engine(
    name="vllm",
    title="vLLM",
    model_label="model_name",
    sources={
        "running": _gauge("vllm:num_requests_running"),
        "waiting": _gauge("vllm:num_requests_waiting"),
        "kv_usage": _gauge("vllm:kv_cache_usage_perc"),
        "ttft": _histogram("vllm:time_to_first_token_seconds"),
        "itl": _histogram("vllm:inter_token_latency_seconds"),
        "tpot": _histogram("vllm:request_time_per_output_token_seconds"),
        "e2e": _histogram(
            "vllm:e2e_request_latency_seconds",
            note="vLLM's first bucket ends at 0.3 s: a quantile below it is interpolated.",
        ),
        "queue_time": _histogram("vllm:request_queue_time_seconds"),
        "prefill_time": _histogram("vllm:request_prefill_time_seconds"),
        "decode_time": _histogram("vllm:request_decode_time_seconds"),
        "prompt_tokens": _counter("vllm:prompt_tokens_total"),
        "generation_tokens": _counter("vllm:generation_tokens_total"),
        "preemptions": _counter("vllm:num_preemptions_total"),
        "prefix_hits": _counter(
            "vllm:prefix_cache_hits_total", of="vllm:prefix_cache_queries_total"
        ),
        "requests": _counter("vllm:request_success_total"),
        "failures": _counter(
            "vllm:request_success_total", only='finished_reason="error"',
            of="vllm:request_success_total",
            note="vLLM counts only what reached its engine: refusals are seen in front of it.",
        ),
        "finish_reasons": _counter("vllm:request_success_total", by="finished_reason"),
        "iteration_tokens": _histogram("vllm:iteration_tokens_total"),
        "rejected": _counter("vllm:admission_rejections_total"),
        "prompt_length": _histogram("vllm:request_prompt_tokens"),
        "output_length": _histogram("vllm:request_generation_tokens"),
        **_PROCESS,
    },
    absent={
        "batch_size": "vLLM has no histogram of batch sizes; see running requests.",
        "iteration_time": "vLLM does not export how long an iteration takes.",
        "scheduler_stages": _NO_SCHEDULER.format("vLLM"),
        "host_share": _NO_HOST.format("vLLM"),
        **_not_told("vLLM", "rejected", "prompt_length", "output_length"),
    },
)  # fmt: skip

_SGLANG_STAGE: Final = "sglang:per_stage_req_latency_seconds"
_SGLANG: Final = Engine(
    name="sglang",
    title="SGLang",
    model_label="model_name",
    sources={
        "running": _gauge("sglang:num_running_reqs"),
        "waiting": _gauge("sglang:num_queue_reqs"),
        "kv_usage": _gauge("sglang:token_usage"),
        "ttft": _histogram("sglang:time_to_first_token_seconds"),
        "itl": _histogram("sglang:inter_token_latency_seconds"),
        "tpot": _histogram("sglang:request_time_per_output_token_seconds"),
        "e2e": _histogram("sglang:e2e_request_latency_seconds"),
        "queue_time": _histogram("sglang:queue_time_seconds"),
        "prefill_time": _histogram(
            _SGLANG_STAGE, only='stage=~"prefill_forward|chunked_prefill"',
            note="SGLang observes each stage by itself: a chunked prefill counts once a chunk.",
        ),
        "decode_time": _histogram(_SGLANG_STAGE, only='stage="decode_loop"'),
        "prompt_tokens": _counter("sglang:prompt_tokens_total"),
        "generation_tokens": _counter("sglang:generation_tokens_total"),
        "preemptions": _counter(
            "sglang:num_retracted_requests_total", note="SGLang calls a preemption a retraction."
        ),
        "prefix_hits": _gauge("sglang:cache_hit_rate", note="As SGLang's own gauge tells it."),
        "requests": _counter("sglang:num_requests_total"),
        "failures": _counter(
            "sglang:num_aborted_requests_total", of="sglang:num_requests_total",
            note="SGLang counts aborted requests, those whose client went away among them.",
        ),
        "scheduler_stages": _counter("sglang:scheduler_stage_seconds_total", by="stage"),
        "host_share": _counter(
            "sglang:forward_execution_seconds_total",
            of="sglang:scheduler_stage_seconds_total", less='stage="idle"',
        ),
        "tokenize_time": _histogram(_SGLANG_STAGE, only='stage="tokenize"'),
        "engine_cpu": _counter("sglang:scheduler_process_cpu_seconds_total"),
    },
    absent={
        "finish_reasons": "SGLang does not count requests by how they ended.",
        "batch_size": "SGLang has no histogram of batch sizes; see running requests.",
        "iteration_time": "SGLang has no histogram of iterations; see the scheduler's stages.",
        "iteration_tokens": "SGLang has no histogram of tokens in an iteration.",
        "memory": "SGLang's page has no process metrics; see GPU and host for an exporter's.",
        "cpu": "SGLang's page has no process metrics; see GPU and host for an exporter's.",
        **_not_told("SGLang", "tokenize_time", "engine_cpu"),
    },
)  # fmt: skip

_TGI: Final = Engine(
    name="tgi",
    title="TGI",
    model_label=None,
    sources={
        "running": _gauge("tgi_batch_current_size"),
        "waiting": _gauge("tgi_queue_size"),
        "tpot": _histogram("tgi_request_mean_time_per_token_duration"),
        "e2e": _histogram("tgi_request_duration"),
        "queue_time": _histogram("tgi_request_queue_duration"),
        "prefill_time": _histogram(
            "tgi_batch_inference_duration", only='method="prefill"',
            note="TGI times prefill and decode of a batch, not of a request: they do not add up.",
        ),
        "decode_time": _histogram("tgi_batch_inference_duration", only='method="decode"'),
        "prompt_tokens": _histogram("tgi_request_input_length"),
        "generation_tokens": _histogram("tgi_request_generated_tokens"),
        "requests": _counter("tgi_request_count"),
        "failures": _counter("tgi_request_failure", of="tgi_request_count"),
        "batch_size": _histogram("tgi_batch_next_size"),
        "iteration_time": _histogram(
            "tgi_batch_forward_duration", note="TGI times the forward pass of a batch."
        ),
        "tokenize_time": _histogram(
            "tgi_request_validation_duration", note="TGI tokenizes as it validates a request."
        ),
        "prompt_length": _histogram("tgi_request_input_length"),
        "output_length": _histogram("tgi_request_generated_tokens"),
    },
    absent={
        "kv_usage": "TGI does not export how full its KV cache is.",
        "ttft": "TGI does not export the time to first token; the client's is measured.",
        "itl": "TGI has no metric of single token gaps; the client's are measured.",
        "preemptions": "TGI does not preempt: it admits only what its cache can hold to the end.",
        "prefix_hits": "TGI does not export hits of its prefix cache.",
        "finish_reasons": "TGI does not count requests by how they ended.",
        "iteration_tokens": "TGI has no histogram of tokens in an iteration.",
        "scheduler_stages": _NO_SCHEDULER.format("TGI"),
        "host_share": _NO_HOST.format("TGI"),
        "memory": "TGI's page has no process metrics; see GPU and host for an exporter's.",
        "cpu": "TGI's page has no process metrics; see GPU and host for an exporter's.",
        **_not_told("TGI", "tokenize_time", "prompt_length", "output_length"),
    },
)  # fmt: skip

_TRTLLM: Final = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    model_label="model_name",
    sources={
        "running": _whole_server(_gauge("trtllm_num_requests_running")),
        "waiting": _whole_server(_gauge("trtllm_num_requests_waiting")),
        "kv_usage": _whole_server(_gauge("trtllm_kv_cache_utilization")),
        "ttft": _histogram("trtllm_time_to_first_token_seconds"),
        "tpot": _histogram("trtllm_time_per_output_token_seconds"),
        "e2e": _histogram("trtllm_e2e_request_latency_seconds"),
        "queue_time": _histogram("trtllm_request_queue_time_seconds"),
        "prefix_hits": _whole_server(_gauge("trtllm_kv_cache_hit_rate")),
        "requests": _counter("trtllm_request_success_total"),
        "finish_reasons": _counter("trtllm_request_success_total", by="finished_reason"),
    },
    absent={
        "itl": "TensorRT-LLM has no metric of single token gaps; the client's are measured.",
        "prefill_time": "TensorRT-LLM does not export the time in prefill.",
        "decode_time": "TensorRT-LLM does not export the time in decode.",
        "prompt_tokens": "TensorRT-LLM does not count prompt tokens.",
        "generation_tokens": "TensorRT-LLM does not count generated tokens; the client does.",
        "preemptions": "TensorRT-LLM does not count preemptions.",
        "failures": "TensorRT-LLM counts only requests that succeeded; the client sees the rest.",
        "batch_size": "TensorRT-LLM has no histogram of batch sizes; see running requests.",
        "iteration_time": "TensorRT-LLM's /metrics has no histogram of iterations.",
        "iteration_tokens": "TensorRT-LLM has no histogram of tokens in an iteration.",
        "scheduler_stages": _NO_SCHEDULER.format("TensorRT-LLM"),
        "host_share": _NO_HOST.format("TensorRT-LLM"),
        "memory": "TensorRT-LLM's page has no process metrics; see GPU and host.",
        "cpu": "TensorRT-LLM's page has no process metrics; see GPU and host.",
        **_not_told("TensorRT-LLM"),
    },
)

ENGINES: Final = {each.name: each for each in (_PRONY, _VLLM, _SGLANG, _TGI, _TRTLLM)}
