"""Objectives that a Prometheus answers: its HTTP API's answers, and a real one."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.needs import needs_program
from tests.slo.runs import many, run_of, slo_of

from prony_slo.gate import judge
from prony_slo.promise import Objective, Query
from prony_slo.promql import QueryError, Reader, fill_in, http_reader, only_value
from prony_slo.verdicts import ObjectiveResult

BUSY = Objective("kv", Query("max_over_time(kv[$window])", None, 0.95), "gate.yaml:5")


def answered(*values: str) -> bytes:
    result = [{"metric": {}, "value": [1.0, value]} for value in values]
    return json.dumps({"data": {"resultType": "vector", "result": result}}).encode()


def judged(reader: Reader | None, objective: Objective = BUSY, **facts: object) -> ObjectiveResult:
    run = run_of(many(100), origin_unix=1000.0, window=(2.0, 12.5), **facts)
    return judge(slo_of(objective), run, [], reader=reader).objectives[0]


def test_the_window_is_written_as_prometheus_writes_durations() -> None:
    assert fill_in("avg(x[$window:5s])", 24.0) == "avg(x[24000ms:5s])"


def test_a_query_is_asked_over_the_window_at_its_end() -> None:
    asked = []

    def reader(query: str, at: float) -> float | None:
        asked.append((query, at))
        return 0.5

    assert judged(reader).verdict == "pass"
    assert asked == [("max_over_time(kv[10500ms])", 1012.5)]


@pytest.mark.parametrize(("value", "verdict"), [(0.95, "pass"), (0.951, "breach")])
def test_a_value_within_its_limits_is_met_without_a_claim_of_certainty(
    value: float, verdict: str
) -> None:
    result = judged(lambda query, at: value)
    assert (result.verdict, result.value) == (verdict, value)
    assert result.text == f"{value:g}, wanted at most 0.95 (no uncertainty is claimed)"


def test_g10_an_empty_answer_and_nan_are_no_data() -> None:
    assert only_value(answered(), "q") is None
    assert only_value(answered("NaN"), "q") is None
    assert only_value(answered("0.5"), "q") == 0.5
    assert only_value(b'{"data": {"resultType": "scalar", "result": [1, "2"]}}', "q") == 2.0
    assert judged(lambda query, at: None).verdict == "inconclusive"
    assert judged(None).text.startswith("not collected: the run kept nothing of its target's")


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"data": {"resultType": "matrix"}}'])
def test_what_is_no_answer_is_said_so(body: bytes) -> None:
    with pytest.raises(QueryError, match="not the answer of a Prometheus"):
        only_value(body, "q")


def test_several_series_are_not_one_number() -> None:
    with pytest.raises(QueryError, match="q has 2 values; aggregate them"):
        only_value(answered("1", "2"), "q")


def test_of_several_runs_the_worst_counts() -> None:
    values = iter([0.5, 0.99, 0.6])
    runs = [run_of(many(100), origin_unix=1000.0 * i) for i in range(1, 4)]
    judgement = judge(slo_of(BUSY), runs, [], reader=lambda query, at: next(values))
    assert judgement.objectives[0].verdict == "breach"
    assert "in the worst of 3 runs" in judgement.objectives[0].text


def test_nobody_there_is_no_data() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    result = judged(http_reader(url))
    assert result.verdict == "inconclusive"
    assert "refused" in result.text


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes itself every 200 ms."""
    program = needs_program("prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: me, static_configs: [{{targets: ['{address}']}}]}}]\n"
    )
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=error"]
    process = subprocess.Popen(command)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(10)


def test_a_real_prometheus_answers(prometheus: str) -> None:
    read = http_reader(prometheus)
    deadline = time.monotonic() + 30
    while True:
        try:
            up = read('sum_over_time(up{job="me"}[10s])', time.time())
        except QueryError:  # not listening yet
            up = None
        if up is not None and up >= 2:
            break
        assert time.monotonic() < deadline, "no scrape within 30 s"
    run = run_of(many(100), origin_unix=time.time() - 10.0, window=(0.0, 10.0))

    def verdict(promql: str, **limits: float) -> ObjectiveResult:
        query = Query(promql, limits.get("at_least"), limits.get("at_most"))
        objective = Objective("q", query, "gate.yaml:5")
        return judge(slo_of(objective), run, [], reader=read).objectives[0]

    assert verdict('max_over_time(up{job="me"}[$window])', at_least=1).verdict == "pass"
    assert verdict('max_over_time(up{job="me"}[$window])', at_least=2).verdict == "breach"
    assert verdict("absent_metric", at_least=1).verdict == "inconclusive"
    wrong = verdict("max_over_time(up[$window]", at_least=1)
    assert wrong.verdict == "inconclusive" and "parse error" in wrong.text
    assert "has 2 values" in verdict('up or label_replace(up, "a", "b", "", "")', at_least=1).text
