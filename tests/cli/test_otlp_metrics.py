"""Metrics posted to a collector: the server's, and a run's while it goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.cli.otlp_collector import Collector, words
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.locust_process import Process, command_of

from prony.otlp_metrics import exporting, load_exporting
from prony_loadgen import telemetry as load
from prony_server.telemetry import ServerMetrics


def by_name(metrics: list[Any]) -> dict[str, Any]:
    return {metric.name: metric for metric in metrics}


def served(environ: dict[str, str]) -> None:
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry, "tiny")
    with exporting(registry, {"service.name": "prony-server"}, environ):
        metrics.answered("chat", duration=0.3, ttft=0.03, tpot=0.002)
        metrics.answered("chat", duration=500.0, ttft=None, tpot=None, error_type="timeout")


def test_the_servers_genai_metrics_arrive_under_the_conventions_names() -> None:
    with Collector().listening() as collector:
        served({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    assert set(collector.paths) == {"/v1/metrics"}
    assert collector.resources[-1] == {"service.name": "prony-server"}
    found = by_name(collector.metrics[-1])
    duration = found["gen_ai.server.request.duration"]
    assert duration.unit == "s" and duration.histogram.aggregation_temporality == 2
    good, bad = sorted(
        duration.histogram.data_points, key=lambda p: "error.type" in words(p.attributes)
    )
    assert words(good.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "prony",
        "gen_ai.request.model": "tiny",
    }
    assert words(bad.attributes)["error.type"] == "timeout"
    assert (good.count, good.sum) == (1, 0.3)
    (bucket,) = [at for at, count in enumerate(good.bucket_counts) if count]
    assert good.explicit_bounds[bucket - 1] < 0.3 <= good.explicit_bounds[bucket]
    assert bad.bucket_counts[-1] == 1 == bad.count  # beyond the last bound
    assert len(bad.bucket_counts) == len(bad.explicit_bounds) + 1
    assert found["gen_ai.server.time_to_first_token"].histogram.data_points[0].count == 1
    finished = found["prony_requests_finished_total"].sum
    assert finished.is_monotonic and {p.as_double for p in finished.data_points} == {0.0}


def test_a_collector_that_refuses_is_told_of_once_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Collector(*[400] * 9).listening() as collector:
        served({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": collector.url + "/v1/metrics"})
    assert [record.message.split(":")[0] for record in caplog.records] == ["metrics are lost"]


@pytest.mark.parametrize("environ", [{}, {"OTEL_METRICS_EXPORTER": "none"}])
def test_nothing_is_exported_where_nobody_asks_for_it(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with Collector().listening() as collector:
        if environ:
            environ = {**environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        served(environ)
        assert load_exporting() is None
    assert collector.paths == []


def test_a_runs_own_series_arrive_before_its_end_and_are_whole_after_it(tmp_path: Path) -> None:
    with FakeServer(first_token=0.05) as server, Collector().listening() as collector:
        command = ["prony", "run", "closed", "--target", server.url, "--slo", "ttft p50 < 60s",
                   "--out", "out", "--requests", "60", "--warmup", "0s", "--concurrency", "2",
                   "--no-server-metrics"]  # fmt: skip
        process = Process(
            command_of(*command), tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_METRIC_EXPORT_INTERVAL="100",
        )  # fmt: skip
        assert process.end() == 0, process.said
    assert len(collector.spans) == 60
    last = by_name(collector.metrics[-1])
    assert set(last) == {
        load.TIME_TO_FIRST_TOKEN, load.TIME_PER_OUTPUT_TOKEN, load.REQUEST_DURATION,
        load.INTER_TOKEN_LATENCY, load.SEND_LAG, load.REQUESTS, load.OUTPUT_TOKENS, load.OFFERED,
        load.REQUESTS_IN_FLIGHT,
    }  # fmt: skip
    (ttft,) = last[load.TIME_TO_FIRST_TOKEN].histogram.data_points
    assert (ttft.count, sum(ttft.bucket_counts)) == (60, 60)
    (ended,) = last[load.REQUESTS].sum.data_points
    assert ended.as_double == 60
    run_id = json.loads((tmp_path / "out/run.json").read_text())["run_id"]
    assert words(ended.attributes) == {"run_id": run_id, "outcome": "ok", "class": "closed"}
    (left,) = last[load.REQUESTS_IN_FLIGHT].gauge.data_points
    assert left.as_double == 0
    counts = [
        point.count
        for export in collector.metrics
        for point in by_name(export)[load.TIME_TO_FIRST_TOKEN].histogram.data_points
    ]
    assert counts == sorted(counts) and counts[0] < 60  # the first one while it went on
    assert collector.resources[-1]["service.name"] == "prony-loadgen"


def test_a_metrics_host_that_is_not_ours_is_refused_before_any_load(tmp_path: Path) -> None:
    with FakeServer() as server:
        command = ["prony", "run", "closed", "--target", server.url, "--metrics-port", "9646",
                   "--metrics-host", "192.0.2.1"]  # fmt: skip
        process = Process(command_of(*command), tmp_path)
        assert process.end() == 2, process.said
    assert "--metrics-port 9646 at 192.0.2.1: " in process.said
