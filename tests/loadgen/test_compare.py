"""Runs beside each other: a change that is there is seen, one that is not stays unsettled."""

import math
import random
from dataclasses import replace

import pytest
from scipy import stats
from tests.loadgen.synthetic_run import run_of as facts_of
from tests.loadgen.synthetic_run import synthetic_run

from prony_loadgen import spread
from prony_loadgen.compare import Comparison, Line, compare, comparison_json, run_of
from prony_loadgen.compare_view import comparison_html, comparison_markdown
from prony_loadgen.record import Arrival, RequestRecord


def slower(record: RequestRecord, by: float) -> RequestRecord:
    """The same request where everything after its sending took `by` times as long."""
    start = record.sent or record.intended

    def at(time: float) -> float:
        return start + (time - start) * by

    arrivals = tuple(Arrival(at(a.at), a.tokens, a.channel) for a in record.arrivals)
    return replace(record, arrivals=arrivals, ended=at(record.ended))


def compared(by: float, seed: int = 8, requests: int = 400) -> Comparison:
    base, records = synthetic_run(seed=7, requests=requests)
    _, others = synthetic_run(seed=seed, requests=requests)
    others = [slower(record, by) for record in others]
    return compare(
        [run_of("before", base, records), run_of("after", facts_of(others, seed=seed), others)]
    )


def line(comparison: Comparison, name: str) -> Line:
    return next(line for line in comparison.lines if line.name == name)


def test_the_constants_are_those_of_student_and_the_normal() -> None:
    tail = 1 - (1 - spread.EACH) / 2
    assert stats.t.ppf(tail, spread.BATCHES - 1) == pytest.approx(spread.T, abs=1e-4)
    assert stats.norm.ppf(tail) == pytest.approx(spread.Z, abs=1e-4)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [40, 300, 1000, 19_999])
def test_ranks_are_the_binomials(n: int, share: float) -> None:
    low, high = spread._ranks(n, share)
    tail = (1 - spread.EACH) / 2
    assert stats.binom.cdf(low - 1, n, share) <= tail < stats.binom.cdf(low, n, share)
    assert stats.binom.cdf(high - 1, n, share) >= 1 - tail > stats.binom.cdf(high - 2, n, share)


def test_a_median_lies_in_its_interval_as_often_as_it_says() -> None:
    rng = random.Random(3)
    inside = 0
    for _ in range(300):
        found = spread.quantile_interval([rng.expovariate(1) for _ in range(200)], 0.5)
        assert found is not None
        inside += found[0] <= math.log(2) <= found[1]
    assert inside >= 0.94 * 300  # 97.5 % are meant; 282 of 300 is under that by 4 sigma


def test_a_p99_of_a_few_requests_has_no_upper_end() -> None:
    found = spread.quantile_interval([i / 100 for i in range(100)], 0.99)
    assert found is not None and math.isinf(found[1])


def test_requests_that_are_alike_for_a_while_say_less_than_independent_ones() -> None:
    rng = random.Random(4)
    independent = [rng.random() for _ in range(1000)]
    in_bursts = [value for value in independent[:40] for _ in range(25)]
    assert spread.inflation(independent) < 3 < spread.inflation(in_bursts)


def test_a_tpot_that_is_30_percent_longer_is_surely_worse() -> None:
    found = line(compared(by=1.3), "TPOT p50")
    assert found.settled(1) == -1
    low, high = found.cells[1].interval or (0, 0)
    assert 1.1 < low < 1.3 < high < 1.5


def test_the_same_server_under_another_seed_is_not_settled() -> None:
    comparison = compared(by=1.0)
    assert line(comparison, "TTFT p50").settled(1) == 0
    assert line(comparison, "TTFT p99").settled(1) == 0
    assert line(comparison, "errors").settled(1) == 0
    assert any("seeds differ" in note for note in comparison.notes)


def test_goodput_is_what_the_runs_own_summary_says() -> None:
    base, records = synthetic_run(slo=("ttft p95 < 60ms", "tpot p99 < 30ms"))
    run = run_of("run", base, records)
    good = sum(r.ok and (r.ttft or 0) <= 0.06 and (r.tpot or 0) <= 0.03 for r in run.part.records)
    found = line(compare([run, run]), "goodput requests/s")
    assert found.cells[0].value == pytest.approx(good / run.part.seconds)
    assert found.cells[1].change == 1


def test_goodput_counts_an_answer_by_when_it_ended_as_throughput_does() -> None:
    base, records = synthetic_run(slo=("ttft p95 < 60s",))
    # Cut where the first request is under way: it came in the window, and ended after it.
    first = min(records, key=lambda record: record.intended)
    edge = (first.intended + first.ended) / 2
    for window in ([0.0, edge], [edge, base["window"][1]]):
        run = run_of("run", base | {"window": window}, records)
        comparison = compare([run, run])
        good, all_of_them = line(comparison, "goodput requests/s"), line(comparison, "requests/s")
        assert good.cells[0].value == all_of_them.cells[0].value


def test_every_row_of_the_issue_is_there_and_memory_only_where_it_is_known() -> None:
    names = [line.name for line in compared(by=1.0).lines]
    for metric in ("TTFT", "TPOT", "E2E"):
        assert {f"{metric} p50", f"{metric} p99"} <= set(names)
        assert any(name.startswith(f"{metric} mean") for name in names)
    assert {"output tokens/s", "goodput requests/s", "errors"} <= set(names)
    assert "peak memory" not in names
    base, records = synthetic_run()
    known = base | {"gauges": {"peak_memory_bytes": 3 * 2**30}}
    runs = [run_of("a", base, records), run_of("b", known, records)]
    assert line(compare(runs), "peak memory").cells[1].value == 3 * 2**30


def test_what_differs_in_configuration_is_named_and_what_names_a_run_is_not() -> None:
    base, records = synthetic_run()
    other = {**base, "run_id": "other", "target": {**base["target"], "model": "tiny-int8"}}
    runs = [run_of("a", base, records), run_of("b", other, records)]
    assert compare(runs).differs == (("target.model", ("tiny", "tiny-int8")),)


def test_failures_are_in_the_percentiles_and_out_of_the_mean() -> None:
    base, records = synthetic_run(failures=0.0)
    cut = [replace(r, outcome="timeout") if i % 20 == 0 else r for i, r in enumerate(records)]
    runs = [run_of("a", base, records), run_of("b", base, cut)]
    comparison = compare(runs)
    assert line(comparison, "TTFT p99").cells[1].value == math.inf
    mean = line(comparison, "TTFT mean (of successes)").cells[1].value
    assert mean is not None and math.isfinite(mean)
    found = line(comparison, "errors").cells[1]
    assert found.change == pytest.approx(0.05, abs=0.01)
    text = comparison_markdown(comparison)
    assert "| TTFT p99 |" in text and "never" in text and " pp" in text
    assert comparison_json(comparison)["lines"][2]["cells"][1]["value"] == "inf"


def test_the_page_holds_every_figure_and_no_script_of_a_run() -> None:
    base, records = synthetic_run()
    evil = {**base, "target": {**base["target"], "model": "<script>alert(1)</script>"}}
    html = comparison_html(compare([run_of("a", base, records), run_of("b", evil, records)]))
    assert "<script>alert(1)" not in html
    for metric in ("ttft", "tpot", "e2e"):
        assert f'id="plot-{metric}"' in html


def test_a_build_that_answers_otherwise_is_surely_worse() -> None:
    base, records = synthetic_run(failures=0.0)
    base = {**base, "quality": ["truncated_share", "repetition_share", "mismatch_share"]}
    right = [replace(r, flags=("match",)) for r in records]
    wrong = [replace(r, flags=("mismatch",)) if i % 10 == 0 else r for i, r in enumerate(right)]
    comparison = compare([run_of("a", base, right), run_of("b", base, wrong)])
    found = line(comparison, "answers other than expected")
    assert found.cells[0].value == 0
    assert found.cells[1].change == pytest.approx(0.1, abs=0.01)
    assert found.settled(1) == -1
    assert line(comparison, "answers cut short").settled(1) == 0
    # No text was kept, so nobody knows which repeat themselves.
    assert "answers that repeat themselves" not in [each.name for each in comparison.lines]


def test_a_rate_is_of_the_time_in_which_no_profiler_disturbed_the_target() -> None:
    base, records = synthetic_run(failures=0.0)
    start, end = base["window"]
    cut = (start + (end - start) / 4, start + (end - start) / 2)
    profiled = {**base, "profile": {"captures": [{"left_out": list(cut)}]}}
    # Nothing came back meanwhile, as from a target that a profiler holds up.
    left = [r for r in records if not cut[0] <= r.intended < cut[1]]
    comparison = compare([run_of("a", base, records), run_of("b", profiled, left)])
    assert line(comparison, "requests/s").cells[1].change == pytest.approx(1, abs=0.1)
    assert line(comparison, "requests/s").settled(1) == 0
    assert line(comparison, "output tokens/s").settled(1) == 0
