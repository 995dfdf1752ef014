"""Our metrics under vLLM's names: a page of ours goes in, such a page as vLLM shows comes out.

For dashboards, autoscalers and load balancers that were made for vLLM 0.33. Names and labels are
vLLM's; the buckets stay ours, whose steps are finer. What vLLM has no name for is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from prony_server import telemetry as ours


@dataclass(frozen=True, slots=True)
class Renaming:
    """Where vLLM's series come from."""

    name: str  # ours
    only: Mapping[str, str] = field(default_factory=dict)  # labels that a sample of ours must have
    labels: Mapping[str, str] = field(default_factory=dict)  # ours that is kept, as vLLM calls it

    def told(self, labels: Mapping[str, str]) -> dict[str, str] | None:
        """What is left of a sample's labels; None where the sample is not among vLLM's."""
        if any(labels.get(label, "") != value for label, value in self.only.items()):
            return None
        kept = {to: labels[label] for label, to in self.labels.items()}
        return kept | {"le": labels["le"]} if "le" in labels else kept


# As Prometheus stores them: a counter with its _total.
VLLM: Final[Mapping[str, Renaming]] = {
    "vllm:num_requests_running": Renaming(ours.REQUESTS_RUNNING),
    "vllm:num_requests_waiting": Renaming(ours.REQUESTS_WAITING),
    "vllm:kv_cache_usage_perc": Renaming(ours.KV_CACHE_USAGE),
    "vllm:num_preemptions_total": Renaming(ours.PREEMPTIONS),
    "vllm:prefix_cache_queries_total": Renaming(ours.PREFIX_CACHE_QUERIES),
    "vllm:prefix_cache_hits_total": Renaming(ours.PREFIX_CACHE_HITS),
    "vllm:prompt_tokens_total": Renaming(ours.PROMPT_TOKENS),
    "vllm:generation_tokens_total": Renaming(ours.GENERATION_TOKENS),
    "vllm:request_success_total": Renaming(
        ours.REQUESTS_FINISHED, labels={"finish_reason": "finished_reason"}
    ),
    "vllm:admission_rejections_total": Renaming(ours.REQUESTS_REJECTED),
    "vllm:iteration_tokens_total": Renaming(ours.ITERATION_TOKENS),  # a histogram, its name aside
    "vllm:time_to_first_token_seconds": Renaming(ours.TIME_TO_FIRST_TOKEN),
    "vllm:inter_token_latency_seconds": Renaming(ours.INTER_TOKEN_LATENCY),
    "vllm:request_time_per_output_token_seconds": Renaming(ours.TIME_PER_OUTPUT_TOKEN),
    "vllm:e2e_request_latency_seconds": Renaming(ours.REQUEST_DURATION, only={"error_type": ""}),
    "vllm:request_queue_time_seconds": Renaming(ours.REQUEST_QUEUE),
    "vllm:request_prefill_time_seconds": Renaming(ours.REQUEST_PREFILL),
    "vllm:request_decode_time_seconds": Renaming(ours.REQUEST_DECODE),
    "vllm:request_prompt_tokens": Renaming(ours.REQUEST_PROMPT_TOKENS),
    "vllm:request_generation_tokens": Renaming(ours.REQUEST_GENERATION_TOKENS),
}


class VllmPage(Collector):
    """What takes the registry's place where a page is made."""

    def __init__(self, registry: Collector, model: str) -> None:
        self._registry = registry
        self._labels = {"model_name": model, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        found = {_stored(family): family for family in self._registry.collect()}
        for name, renaming in VLLM.items():
            if renaming.name in found:
                family = self._renamed(name, renaming, found[renaming.name])
                if family.samples:
                    yield family
        # Of the process itself, which vLLM exports by the same library.
        yield from (family for name, family in found.items() if name.startswith("process_"))

    def _renamed(self, name: str, renaming: Renaming, ours: Metric) -> Metric:
        family = Metric(_told(name, ours), ours.documentation, ours.type)
        summed: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[float, Exemplar | None]] = {}
        for sample in ours.samples:
            kept = renaming.told(sample.labels)
            if kept is None:
                continue
            part = sample.name.removeprefix(ours.name)
            # Labels that vLLM does not have, such as ours of the operation, are summed over.
            key = part, tuple((self._labels | kept).items())
            value, exemplar = summed.get(key, (0.0, None))
            summed[key] = value + sample.value, sample.exemplar or exemplar
        for (part, labels), (value, exemplar) in summed.items():
            if part != "_created":
                family.add_sample(family.name + part, dict(labels), value, exemplar=exemplar)
        return family


def _stored(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _told(name: str, ours: Metric) -> str:
    """A family's own name: of a counter without the _total that its samples get."""
    return name.removesuffix("_total") if ours.type == "counter" else name
