"""What goes wrong with metrics elsewhere, asked of ours: buckets, label values, formats."""

import dataclasses
import gzip
import http.client
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.loadgen.synthetic_run import synthetic_run
from tests.needs import needs_program
from tests.server.live_server import JSON, LiveServer, live_server

from prony.openmetrics import as_openmetrics
from prony.replay import replayed
from prony_dashboards import promql
from prony_loadgen import telemetry as load
from prony_loadgen.folder import RunFolder

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
SPARED = "# EOF\n"
parse: Any = parse_text
parse_open: Any = parse_openmetrics


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as server:
        yield server


def series(server: LiveServer) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    text = server.get("/metrics", Accept="text/plain").body.decode()
    return {(s.name, tuple(sorted(s.labels.items()))) for f in parse(text) for s in f.samples}


def test_ten_thousand_requests_of_random_models_and_paths_add_no_series(
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
    before = series(server)
    for number in range(10_000):
        ask(number)
    connection.close()
    assert series(server) == before
    assert len(before) < 500


def test_exemplars_come_in_openmetrics_and_never_in_the_plain_format(server: LiveServer) -> None:
    server.complete(max_tokens=2)
    plain = server.get("/metrics", Accept="text/plain").body.decode()
    open_metrics = server.get("/metrics", Accept=OPENMETRICS).body.decode()
    assert "trace_id" not in plain and list(parse(plain))
    assert 'trace_id="' in open_metrics and open_metrics.endswith(SPARED)
    assert list(parse_open(open_metrics))


@pytest.mark.parametrize("escaping", ["underscores", "allow-utf-8"])
def test_our_names_are_the_same_in_every_negotiated_form(server: LiveServer, escaping: str) -> None:
    text = server.get("/metrics", Accept=f"{OPENMETRICS}; escaping={escaping}").body.decode()
    declared = set(re.findall(r"# TYPE (\S+) ", text))
    helped = set(re.findall(r"# HELP (\S+) ", text))
    assert declared == helped
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", name) for name in declared)


def test_a_quantile_of_times_between_12_and_18_ms_is_within_a_tenth_and_the_rest_is_seen(
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
