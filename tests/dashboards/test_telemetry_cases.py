"""What goes wrong with metrics elsewhere, asked of ours: buckets, label values, formats."""

import dataclasses
import gzip
import http.client
import json
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.loadgen.synthetic_run import synthetic_run
from tests.needs import needs_program
from tests.server.live_server import JSON, LiveServer, live_server, until

from prony.observability import write_client_spans
from prony.openmetrics import as_openmetrics
from prony.replay import replayed
from prony.traces import read_spans
from prony_dashboards import promql
from prony_loadgen import telemetry as load
from prony_loadgen.folder import RunFolder
from prony_loadgen.live import Timeline
from prony_server.telemetry import FINISH_REASONS

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
SPARED = "# EOF\n"
PRESENCE = Path(__file__).parents[2] / "dashboards/prometheus/rules/presence.yml"
RUNNING = 'prony_requests_running{job="prony", instance="s:1"}'
parse: Any = parse_text
parse_open: Any = parse_openmetrics


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as server:
        yield server


def series(server: LiveServer) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    text = server.get("/metrics", Accept="text/plain").body.decode()
    return {(s.name, tuple(sorted(s.labels.items()))) for f in parse(text) for s in f.samples}


def test_g03_ten_thousand_requests_of_random_models_and_paths_add_no_series(
    server: LiveServer,
) -> None:
    rng = random.Random(7)
    connection = http.client.HTTPConnection(*server.address, timeout=60)

    def ask(number: int) -> None:
        word = f"{rng.getrandbits(64):x}"
        if number % 2:
            body = json.dumps({"model": word, "prompt": word, "user": word})
            connection.request(
                "POST", f"/v1/completions?{word}", body, {**JSON, "X-Request-Id": word}
            )
        else:
            connection.request("GET", f"/{word}/{number}", headers={"X-Request-Id": word})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 404

    server.complete(max_tokens=2)
    for number in range(20):
        ask(number)
    before, size = series(server), len(server.get("/metrics").body)
    for number in range(10_000):
        ask(number)
    connection.close()
    assert series(server) == before
    assert len(before) < 600
    # So a scrape is as much work as before: a page of 600 lines takes some 3 ms.
    assert len(server.get("/metrics").body) < 1.1 * size


def test_g06_exemplars_come_in_openmetrics_and_never_in_the_plain_format(
    server: LiveServer,
) -> None:
    server.complete(max_tokens=2)
    plain = server.get("/metrics", Accept="text/plain").body.decode()
    open_metrics = server.get("/metrics", Accept=OPENMETRICS).body.decode()
    assert "trace_id" not in plain and list(parse(plain))
    assert 'trace_id="' in open_metrics and open_metrics.endswith(SPARED)
    assert list(parse_open(open_metrics))


@pytest.mark.parametrize("escaping", ["underscores", "allow-utf-8"])
def test_g07_our_names_are_the_same_in_every_negotiated_form(
    server: LiveServer, escaping: str
) -> None:
    text = server.get("/metrics", Accept=f"{OPENMETRICS}; escaping={escaping}").body.decode()
    declared = set(re.findall(r"# TYPE (\S+) ", text))
    helped = set(re.findall(r"# HELP (\S+) ", text))
    assert declared == helped
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", name) for name in declared)


def test_g01_a_quantile_of_times_between_12_and_18_ms_is_within_a_tenth_and_the_rest_is_seen(
    tmp_path: Any,
) -> None:
    """1,000 first tokens uniform in 12-18 ms, then 100 of 200 s: beyond the last bucket."""
    for program in ("prometheus", "promtool"):
        needs_program(program)
    rng = random.Random(3)
    run, records = synthetic_run(failures=0.0)
    good = [record for record in records if record.ok and record.arrivals]
    made = [
        _with_ttft(rng.choice(good), at=n * 0.02, ttft=0.012 + 0.006 * rng.random(), number=n)
        for n in range(1000)
    ]
    made += [_with_ttft(good[0], at=n * 0.2, ttft=200.0, number=1000 + n) for n in range(100)]
    folder = RunFolder(tmp_path)
    folder.write_run({**run, "origin_unix": 1_790_000_000.0})
    with gzip.open(folder.requests, "wt") as file:
        file.writelines(record.to_json() + "\n" for record in made)
    assert list(as_openmetrics(folder.read_run(), folder.records(), []))[-1] == SPARED
    with replayed(folder) as (prometheus, _, span):
        early = dataclasses.replace(prometheus, end=span[0] + 25)
        median = promql.quantile(0.5, load.TIME_TO_FIRST_TOKEN, "", window="20s")
        ((_, found),) = [each["value"] for each in early.query(median)]
        assert float(found) == pytest.approx(0.015, rel=0.1)
        within = f'{load.TIME_TO_FIRST_TOKEN}_bucket{{le="100.0"}}'
        beyond = f"sum({load.TIME_TO_FIRST_TOKEN}_count) - sum({within})"
        ((_, late),) = [each["value"] for each in prometheus.query(beyond)]
        assert float(late) == 100


def test_g11_errors_that_never_happened_are_0(server: LiveServer) -> None:
    for reason in FINISH_REASONS:
        assert server.metric("prony_requests_finished_total", finish_reason=reason) is not None
    assert server.metric("prony_requests_rejected_total") == 0


@pytest.mark.parametrize(
    ("series", "fires"),
    [
        ({'up{job="prony", instance="s:1"}': "1x120", f"{RUNNING}": "0x120"}, set()),
        ({'up{job="prony", instance="s:1"}': "0x120"}, {"TargetDown"}),
        ({'up{job="prony", instance="s:1"}': "1x120"}, {"ServerMetricsAbsent"}),
        ({'up{job="node", instance="s:2"}': "1x120"}, {"NothingIsScraped"}),
    ],
    ids=["all is well", "the exporter is down", "the metric was renamed", "the target is lost"],
)
def test_g11_an_alert_tells_no_data_from_no_errors(
    series: dict[str, str], fires: set[str], tmp_path: Path
) -> None:
    expected = [
        {"labels": f'{{alertname="{name}", alertstate="firing"}}', "value": 1} for name in fires
    ]
    test = {
        "rule_files": [str(PRESENCE)],
        "evaluation_interval": "10s",
        "tests": [
            {
                "interval": "10s",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname, alertstate) (ALERTS{alertstate="firing"})',
                        "eval_time": "15m",
                        "exp_samples": expected,
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [needs_program("promtool"), "test", "rules", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_g12_after_a_run_its_gauge_is_0_and_the_next_run_starts_series_of_its_own() -> None:
    registry = CollectorRegistry()
    metrics = load.LoadMetrics(registry, "none yet")
    _, records = synthetic_run(requests=20)
    first, second = Timeline(), Timeline()
    metrics.watch(first, "first")
    first.tick(0.0, in_flight=7)
    assert _loads(registry) == {("first", 7.0)}
    for record in records:
        first.add(record)
    first.tick(1.0, in_flight=0)
    assert _loads(registry) == {("first", 0.0)}  # as long as the exporter lives on
    metrics.watch(second, "second")
    second.tick(0.0, in_flight=1)
    assert _loads(registry) == {("second", 1.0)}
    runs = {s.labels["run_id"] for family in registry.collect() for s in family.samples}
    assert runs == {"second"}
    counted = registry.get_sample_value(f"{load.REQUEST_DURATION}_count", {"run_id": "second"})
    assert counted == 0


def test_g14_a_clients_span_and_duration_end_at_the_last_token(tmp_path: Path) -> None:
    """A stream of 2 s, one that breaks after three tokens, one given up before any."""
    run, records = synthetic_run(failures=0.0)
    whole = next(r for r in records if len(r.arrivals) > 4)
    times = [whole.intended + 2.0 * n / 20 for n in range(1, 21)]
    stream = tuple(whole.arrivals[0]._replace(at=at) for at in times)
    good = dataclasses.replace(
        whole, sent=whole.intended, arrivals=stream, ended=times[-1] + 0.5, output_tokens=20
    )
    broken = dataclasses.replace(
        good, id="b", arrivals=stream[:3], outcome="stream_error", error="cut", ended=times[2] + 9,
        trace_id="b" * 32,
    )  # fmt: skip
    given_up = dataclasses.replace(
        broken, id="c", arrivals=(), outcome="timeout", error="no token", trace_id="c" * 32
    )
    made = [good, broken, given_up]
    write_client_spans(tmp_path / "traces.jsonl", {**run, "origin_unix": 1000.0}, made)
    spans = {span.trace_id: span for span in read_spans(tmp_path / "traces.jsonl")}
    lengths = [spans[str(r.trace_id)].end - spans[str(r.trace_id)].start for r in made]
    assert lengths == pytest.approx([2.0, 0.3, given_up.ended - whole.intended], abs=1e-3)
    told = [spans[str(record.trace_id)].attributes for record in made]
    assert [each.get("error.type") for each in told] == [None, "stream_error", "timeout"]
    firsts = [each.get("gen_ai.response.time_to_first_chunk") for each in told]
    assert firsts == [pytest.approx(0.1), pytest.approx(0.1), None]
    timeline = Timeline()
    for record in made:
        timeline.add(record)
    registry = CollectorRegistry()
    load.LoadMetrics(registry, "").watch(timeline, "r")
    total = registry.get_sample_value(f"{load.REQUEST_DURATION}_sum", {"run_id": "r"})
    assert total == pytest.approx(2.0)  # the failed ones are counted by their outcome


def test_g14_a_servers_span_ends_when_its_reader_goes_away(server: LiveServer) -> None:
    trace_id = "e" * 32
    before = server.metric("prony_requests_finished_total", finish_reason="abort") or 0.0
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 500, "ignore_eos": True,
            "stream": True}  # fmt: skip
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    headers = {**JSON, "traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    connection.getresponse().readline()
    connection.close()
    server.wait_for("prony_requests_finished_total", before + 1, finish_reason="abort")
    until(lambda: server.get(f"/debug/traces/{trace_id}").status == 200, "the span ended")
    spans = server.get(f"/debug/traces/{trace_id}?format=json").json
    root = next(span for span in spans if span["name"].endswith(" tiny"))
    assert root["end"] > root["start"] and root["attributes"]["error.type"] == "client_disconnected"


def _loads(registry: CollectorRegistry) -> set[tuple[str, float]]:
    (family,) = (f for f in registry.collect() if f.name == load.REQUESTS_IN_FLIGHT)
    return {(sample.labels["run_id"], sample.value) for sample in family.samples}


def _with_ttft(record: Any, at: float, ttft: float, number: int) -> Any:
    """The record as if it had been sent at `at` and its first token had come `ttft` later."""
    first = record.arrivals[0].at
    moved = tuple(
        arrival._replace(at=at + ttft + (arrival.at - first)) for arrival in record.arrivals
    )
    return dataclasses.replace(
        record, id=f"m{number}", intended=at, sent=at, headers=at, arrivals=moved,
        ended=moved[-1].at,
    )  # fmt: skip
