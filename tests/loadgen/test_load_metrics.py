"""The load generator's Prometheus series."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.loadgen.test_recorder import record

from prony_loadgen.live import Timeline
from prony_loadgen.telemetry import LoadMetrics


def watched(registry: CollectorRegistry, run_id: str) -> Timeline:
    timeline = Timeline()
    LoadMetrics(registry, "none yet").watch(timeline, run_id)
    timeline.tick(0.0, in_flight=0)
    return timeline


def test_a_finished_request_is_counted_and_timed() -> None:
    registry = CollectorRegistry()
    timeline = watched(registry, "run-1")
    timeline.offered()
    timeline.tick(1.0, in_flight=3)
    timeline.add(record(1))
    run = {"run_id": "run-1"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"prony_loadgen_{name}", {**run, **labels})

    assert value("requests_total", outcome="ok", **{"class": "chat"}) == 1
    assert value("offered_total") == 1
    assert value("requests_in_flight") == 3
    assert value("output_tokens_total") == 2
    assert value("time_to_first_token_seconds_sum") == pytest.approx(0.02)
    assert value("request_duration_seconds_sum") == pytest.approx(0.03)
    assert value("time_per_output_token_seconds_sum") == pytest.approx(0.01)
    assert value("inter_token_latency_seconds_count") == 1
    assert value("send_lag_seconds_sum") == pytest.approx(0.001)


def test_a_failed_request_is_counted_by_outcome_and_has_no_latency() -> None:
    registry = CollectorRegistry()
    watched(registry, "r").add(replace(record(1), outcome="timeout", output_tokens=None))
    labels = {"run_id": "r", "outcome": "timeout", "class": "chat"}
    assert registry.get_sample_value("prony_loadgen_requests_total", labels) == 1
    name = "prony_loadgen_time_to_first_token_seconds_count"
    assert registry.get_sample_value(name, {"run_id": "r"}) == 0
    assert registry.get_sample_value("prony_loadgen_output_tokens_total", {"run_id": "r"}) == 0


def test_every_metric_is_documented_and_no_other() -> None:
    registry = CollectorRegistry()
    watched(registry, "r").add(record(1))
    exported = {}
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted({key for sample in family.samples for key in sample.labels} - {"le"})
        exported[name] = (family.type, ", ".join(f"`{label}`" for label in labels))
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    section = text.split("\n## Load generator\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]* \| ([^|]*) \|", section, re.MULTILINE)
    assert exported == {name: (kind, labels.strip()) for name, kind, labels in rows}
