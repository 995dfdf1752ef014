"""A finished run as Prometheus would have scraped it: its folder in, OpenMetrics with times out.

The load generator's series are made again from the records by the code that exports them live; the
server's are those that the run kept of its pages.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from prony.server_metrics import scraped_labels
from prony_loadgen.live import Timeline
from prony_loadgen.record import RequestRecord
from prony_loadgen.telemetry import LoadMetrics

STEP = 1.0  # seconds between two samples
BEFORE = 2  # samples before the first request: from nothing, so that the first one counts
Page = tuple[float, Sequence[tuple[str, Mapping[str, str], float]]]


def as_openmetrics(
    run: Mapping[str, Any], records: Iterable[RequestRecord], pages: Iterable[Page]
) -> Iterator[str]:
    """The lines of the file, all of one moment together, then the next: `# EOF` ends it."""
    load, server = _load(run, records), _server(run, pages)
    yield from load
    yield from server
    yield "# EOF\n"


def extent(run: Mapping[str, Any], records: Sequence[RequestRecord]) -> tuple[float, float]:
    """When the run began, and when its last sample was taken, Unix seconds."""
    origin = float(run["origin_unix"])
    window = run.get("window") or (0.0, 0.0)
    return origin, origin + max([float(window[1]), *(r.ended for r in records)]) + STEP


def _load(run: Mapping[str, Any], records: Iterable[RequestRecord]) -> Iterator[str]:
    origin, run_id = float(run["origin_unix"]), str(run["run_id"])
    labels = {"job": "prony-loadgen", "instance": "127.0.0.1:9646"}
    timeline = Timeline()
    metrics = LoadMetrics(CollectorRegistry(), run_id)
    metrics.watch(timeline, run_id)
    by_end = sorted(records, key=lambda record: record.ended)
    starts = sorted(record.intended for record in by_end)
    sent = sorted(r.intended if r.sent is None else r.sent for r in by_end)
    last = max([0.0, *(record.ended for record in by_end)])
    done = begun = left = 0
    at = -BEFORE * STEP
    while True:
        while done < len(by_end) and by_end[done].ended <= at:
            timeline.add(by_end[done])
            done += 1
        while begun < len(starts) and starts[begun] <= at:
            timeline.offered()
            begun += 1
        while left < len(sent) and sent[left] <= at:
            left += 1
        timeline.tick(at, max(left - done, 0))
        for family in metrics.collect():
            for sample in family.samples:
                yield _line(sample.name, {**sample.labels, **labels}, sample.value, origin + at)
        if at > last:
            return
        at += STEP


def _server(run: Mapping[str, Any], pages: Iterable[Page]) -> Iterator[str]:
    origin = float(run["origin_unix"])
    labels = scraped_labels(run)
    for at, samples in pages:
        for name, own, value in samples:
            yield _line(name, {**own, **labels}, value, origin + at)


def _line(name: str, labels: Mapping[str, str], value: float, at: float) -> str:
    told = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels.items())
    return f"{name}{{{told}}} {value!r} {at:.3f}\n"
