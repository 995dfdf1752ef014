"""`promql` objectives of a run that no Prometheus watched: what the run itself kept answers them.

A real Prometheus that was given the same series (as `prony replay` does) must say the same.
"""

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_gate import folder_of, gate, verdict
from tests.loadgen.synthetic_run import synthetic_run
from tests.needs import needs_program

from prony.judging import kept_series
from prony.replay import replayed
from prony.server_metrics import keep
from prony_dashboards.pages import at, page
from prony_loadgen.folder import RunFolder
from prony_loadgen.scrape import Scraped
from prony_slo.own_scrape import own_reader
from prony_slo.promql import QueryError, Reader

SECONDS = 27
ORIGIN = 1_790_000_000.0

QUERIES = [
    "avg_over_time(vllm:kv_cache_usage_perc[20s])",
    'max_over_time(avg(vllm:kv_cache_usage_perc{job="vllm"})[20s:5s])',
    "max(max_over_time(vllm:num_requests_running[15s]))",
    "sum(rate(vllm:generation_tokens_total[10s]))",
    "sum(increase(vllm:generation_tokens_total[9500ms])) / 9.5",
    "histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[20s])))",
    "histogram_quantile(0.99, sum by (le) (vllm:time_to_first_token_seconds_bucket))",
    "sum(vllm:num_requests_running) / (sum(vllm:num_requests_waiting) + 1) * 2 - 1",
    "sum without (instance) (vllm:num_requests_running) > 3",
    'count(vllm:time_to_first_token_seconds_bucket{le!~"0.*"})',
    "quantile_over_time(0.3, vllm:generation_tokens_total[12s])",
    "-min_over_time(vllm:num_requests_running[10s])",
    "vllm:generation_tokens_total - vllm:generation_tokens_total",
    "scalar(sum(vllm:num_requests_running)) + 1",
    "absent_metric",
    "vllm:num_requests_running > 1e9",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of 24 s whose vLLM was scraped once a second."""
    facts, records = synthetic_run(failures=0.0, slo=())
    facts |= {"origin_unix": ORIGIN}
    path = folder_of(tmp_path_factory.mktemp("own") / "run", facts, records)
    pages = [
        (ORIGIN + s + 0.31, zlib.compress(at(page("vllm"), s).encode())) for s in range(SECONDS)
    ]
    facts["server_metrics"] = keep(path, Scraped(tuple(pages), 0, None), origin=ORIGIN)
    RunFolder(path).write_run(facts)
    return RunFolder(path)


@pytest.fixture(scope="module")
def answers(made: RunFolder) -> Reader:
    series = kept_series(made, made.read_run())
    assert series is not None
    return own_reader([series])


@pytest.fixture(scope="module")
def prometheus(made: RunFolder) -> Iterator[Any]:
    for program in ("prometheus", "promtool"):
        needs_program(program)
    with replayed(made) as (server, _, _):
        yield server


def test_it_answers_as_a_prometheus_does(answers: Reader, prometheus: Any) -> None:
    for query in QUERIES:
        found = prometheus._ask("query", {"query": query, "time": f"{ORIGIN + 24.0:.3f}"})
        assert not isinstance(found, str), found
        if found["resultType"] == "scalar":
            theirs: float | None = float(found["result"][1])
        else:
            theirs = float(found["result"][0]["value"][1]) if found["result"] else None
        ours = answers(query, ORIGIN + 24.0)
        if theirs is None or math.isnan(theirs):
            assert ours is None, query
        else:
            assert ours == pytest.approx(theirs, rel=1e-6), query


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("topk(1, vllm:num_requests_running)", "topk"),
        ("vllm:num_requests_running offset 5s", "offset or @"),
        ("deriv(vllm:num_requests_running[5s])", r"deriv\(\)"),
        ("avg(", "unclosed left parenthesis"),
        ("vllm:time_to_first_token_seconds_bucket", "values; aggregate them"),
        ("sum(a) * on(b) sum(c)", "cannot be answered from the run's own scrape"),
    ],
)
def test_what_it_does_not_know_is_said_and_never_guessed(
    query: str, told: str, answers: Reader
) -> None:
    with pytest.raises(QueryError, match=told):
        answers(query, ORIGIN + 24.0)


def test_a_moment_that_no_run_covers_has_no_answer(answers: Reader) -> None:
    with pytest.raises(QueryError, match="the run kept nothing"):
        answers("sum(vllm:num_requests_running)", ORIGIN + 4000.0)


def test_a_gate_needs_no_prometheus_for_an_objective_about_the_server(
    made: RunFolder, tmp_path: Path
) -> None:
    slo = tmp_path / "slo.yaml"
    query = 'max_over_time(avg(vllm:kv_cache_usage_perc{job="vllm"})[$window:5s])'
    slo.write_text(
        f"objectives:\n  - {{id: kv, promql: '{query}', at_most: 95%}}\n"
        "  - id: busy\n    promql: avg_over_time(vllm:num_requests_running[$window])\n"
        "    at_least: 1000000\n"
    )
    code, text = gate("gate", made.path, "--slo", slo, cwd=tmp_path)
    found = {row["id"]: row["verdict"] for row in verdict(made.path)["objectives"]}
    assert found == {"kv": "pass", "busy": "breach"}, text
    assert code == 1
