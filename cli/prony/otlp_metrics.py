"""Metrics to a collector: the series of /metrics go in, OTLP over HTTP in its JSON form comes out.

Names stay those of the boards; the GenAI ones are sent as the conventions spell them, with dots,
which Prometheus and collectors turn into the boards' names again.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from prony.otlp import Poster, poster_from

EVERY: Final = 5.0  # seconds between two exports where OTEL_METRIC_EXPORT_INTERVAL says nothing
CUMULATIVE: Final = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE
DOTTED: Final = {
    "gen_ai_server_request_duration_seconds": "gen_ai.server.request.duration",
    "gen_ai_server_time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
    "gen_ai_server_time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
    "gen_ai_operation_name": "gen_ai.operation.name",
    "gen_ai_provider_name": "gen_ai.provider.name",
    "gen_ai_request_model": "gen_ai.request.model",
    "error_type": "error.type",
}


@contextmanager
def exporting(
    series: Collector, resource: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """Exports the series every few seconds and once more at the end; nothing without an endpoint.

    `OTEL_METRICS_EXPORTER=none` leaves it out where traces alone are wanted. Its thread is a
    greenlet in a process that Locust has patched, as that of /metrics is.
    """
    poster = _poster(environ)
    if poster is None:
        yield
        return
    every = _interval(environ)
    began, over = time.time_ns(), threading.Event()

    def export(tries: int) -> None:
        families = [family for family in series.collect() if family.samples]
        if families:  # a server that still loads has none
            body = encode(families, resource, began, time.time_ns())
            poster.post(json.dumps(body).encode(), tries)

    def loop() -> None:
        while not over.wait(every):
            export(tries=1)  # values are running totals: the next export tells what this one would

    thread = threading.Thread(target=loop, name="otlp-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * Poster.TIMEOUT)
        export(tries=2)


def load_exporting() -> Callable[[Collector], AbstractContextManager[None]] | None:
    """What exports the series of a run of this process; None without an endpoint."""
    if _poster(os.environ) is None:
        return None
    about = {"service.name": "prony-loadgen", "service.instance.id": _instance(os.getpid())}
    return lambda series: exporting(series, about)


def server_exporting(series: Collector, port: int) -> AbstractContextManager[None]:
    """Exports a server's series while the block lasts; Prometheus makes its job of the service."""
    about = {"service.name": "prony", "service.instance.id": _instance(port)}
    return exporting(series, about)


def encode(
    families: Iterable[Metric], resource: Mapping[str, str], began: int, now: int
) -> dict[str, Any]:
    """An ExportMetricsServiceRequest; `began` and `now` are Unix nanoseconds."""
    times = {"startTimeUnixNano": str(began), "timeUnixNano": str(now)}
    metrics = [_metric(family, times) for family in families]
    scope = {"scope": {"name": "prony"}, "metrics": metrics}
    about = {"attributes": _attributes(resource)}
    return {"resourceMetrics": [{"resource": about, "scopeMetrics": [scope]}]}


def _metric(family: Metric, times: Mapping[str, str]) -> dict[str, Any]:
    told = {"name": DOTTED.get(family.name, family.name), "description": family.documentation}
    if family.name.endswith("_seconds"):
        told["unit"] = "s"
    if family.type == "histogram":
        points = [_distribution(each, times) for each in _by_labels(family.samples)]
        return {**told, "histogram": {"aggregationTemporality": CUMULATIVE, "dataPoints": points}}
    if family.type == "counter":
        name = f"{family.name}_total"
        points = _numbers((s for s in family.samples if s.name == name), times)
        total = {"aggregationTemporality": CUMULATIVE, "isMonotonic": True, "dataPoints": points}
        return {**told, "name": name, "sum": total}
    return {**told, "gauge": {"dataPoints": _numbers(family.samples, times)}}


def _numbers(samples: Iterable[Sample], times: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"attributes": _attributes(sample.labels), **times, "asDouble": sample.value}
        for sample in samples
    ]


def _by_labels(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """The samples of each histogram, apart from `le` of the same labels."""
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        labels = tuple(sorted(pair for pair in sample.labels.items() if pair[0] != "le"))
        found.setdefault(labels, []).append(sample)
    yield from found.values()


def _distribution(samples: list[Sample], times: Mapping[str, str]) -> dict[str, Any]:
    buckets = [sample for sample in samples if sample.name.endswith("_bucket")]
    upto = [int(sample.value) for sample in buckets]  # the last one is +Inf's
    labels = {name: text for name, text in buckets[0].labels.items() if name != "le"}
    (total,) = (sample.value for sample in samples if sample.name.endswith("_sum"))
    return {
        "attributes": _attributes(labels),
        **times,
        "count": str(upto[-1]),
        "sum": total,
        "explicitBounds": [float(sample.labels["le"]) for sample in buckets[:-1]],
        "bucketCounts": [str(b - a) for a, b in zip([0, *upto], upto, strict=False)],
    }


def _attributes(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"key": DOTTED.get(name, name), "value": {"stringValue": text}}
        for name, text in labels.items()
        if text  # error_type is empty where there was none: then the conventions leave it out
    ]


def _poster(environ: Mapping[str, str]) -> Poster | None:
    return (
        None if environ.get("OTEL_METRICS_EXPORTER") == "none" else poster_from("metrics", environ)
    )


def _instance(number: int) -> str:
    return f"{socket.gethostname()}:{number}"


def _interval(environ: Mapping[str, str]) -> float:
    """Seconds, of OTEL_METRIC_EXPORT_INTERVAL's milliseconds."""
    text = environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    return int(text) / 1000 if text.isdigit() and int(text) else EVERY
