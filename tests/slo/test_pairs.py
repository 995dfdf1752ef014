"""By how much a run is worse than its partner."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.slo.runs import many, refused, request, run_of

from prony_loadgen.record import RequestRecord
from prony_slo.pairs import Change, Pair, change, matched_shift, run_value
from prony_slo.promise import Check, Condition, Stat


def check(metric: str, stat: Stat, **facts: Any) -> Check:
    return Check(f"{metric} {stat}", metric, stat, 0.05, "gate.yaml:9", **facts)


def of(checked: Check, a: Sequence[RequestRecord], b: Sequence[RequestRecord]) -> Change:
    return change(checked, Pair(run_of(a), run_of(b)))


def slower(records: Sequence[RequestRecord], factor: float) -> list[RequestRecord]:
    """The same requests, their first token later by a factor."""
    return [request(r.intended, ttft=(r.ttft or 0) * factor) for r in records]


# 200 requests of 100 to 299 ms
SPREAD = [request(i / 10, ttft=0.1 + (i * 37 % 200) / 1000) for i in range(200)]


@pytest.mark.parametrize("stat", ["p50", "p90", "p95", "p99", "mean", "tail"])
def test_a_tenth_slower_is_a_tenth_slower_by_every_figure(stat: Stat) -> None:
    found = of(check("ttft", stat), SPREAD, slower(SPREAD, 1.1))
    assert found.value == pytest.approx(math.log(1.1))
    assert (found.requests, found.note) == (200, "")
    assert of(check("ttft", stat), SPREAD, SPREAD).value == 0


def test_faster_is_negative_and_a_lower_rate_positive() -> None:
    assert of(check("ttft", "p50"), SPREAD, slower(SPREAD, 0.8)).value == pytest.approx(
        math.log(0.8)
    )
    half = [r for i, r in enumerate(many(200)) if i % 2 == 0]
    rate = check("output_tokens_per_s", "rate")
    found = change(rate, Pair(run_of(many(200), window=(0, 30)), run_of(half, window=(0, 30))))
    assert found.value == pytest.approx(math.log(2))


def test_the_tail_sees_what_the_median_does_not() -> None:
    tail_only = [
        request(r.intended, ttft=(r.ttft or 0) * (1.1 if (r.ttft or 0) > 0.27 else 1.0))
        for r in SPREAD
    ]
    assert of(check("ttft", "p50"), SPREAD, tail_only).value == 0
    assert of(check("ttft", "tail"), SPREAD, tail_only).value == pytest.approx(math.log(1.1))


def test_without_a_change_the_matched_shift_favours_neither_side() -> None:
    rng = np.random.default_rng(1)
    shifts = []
    for _ in range(300):
        base = rng.lognormal(sigma=0.8, size=400)
        a, b = (base * rng.lognormal(sigma=0.2, size=400) for _ in range(2))
        shifts.append(matched_shift(a, b) or 0.0)
    assert np.mean(shifts) == pytest.approx(0, abs=float(3 * np.std(shifts) / math.sqrt(300)))


def test_a_few_failures_move_the_tail_no_further_than_to_its_neighbours() -> None:
    b = [refused(r.intended) if i % 50 == 0 else r for i, r in enumerate(SPREAD)]
    assert of(check("ttft", "tail"), SPREAD, b).value == 0
    assert of(check("ttft", "p50"), SPREAD, b).value is not None


def test_where_half_the_tail_failed_nothing_is_compared() -> None:
    b = [refused(r.intended) if (r.ttft or 0) > 0.2 else r for r in SPREAD]
    found = of(check("ttft", "tail"), SPREAD, b)
    assert (found.value, found.note) == (None, "ttft tail has no end: so many requests failed")
    assert of(check("ttft", "p99"), SPREAD, b).value is None


def test_runs_of_another_schedule_have_no_matched_tail() -> None:
    others = [request(i / 10 + 0.05) for i in range(200)]
    assert of(check("ttft", "tail"), SPREAD, others).note == "only 0 of 200 requests are the same"
    longer = [request(i / 10, asked_output_tokens=50) for i in range(200)]
    assert "only 0 of 200" in of(check("ttft", "tail"), SPREAD, longer).note


def test_a_share_is_compared_by_its_difference_and_never_claims_no_scatter() -> None:
    good = check("goodput", "share", conditions=(Condition("ttft", 0.2),))
    found = of(good, [request(i / 10) for i in range(200)], SPREAD)
    assert found.value == pytest.approx(0.495)
    errors = check("error_rate", "share")
    none = of(errors, many(1000), many(1000))
    assert none.value == 0 and math.sqrt(none.floor) == pytest.approx(0.001, rel=0.05)
    assert of(errors, many(1000), [*many(990), *map(refused, range(99, 109))]).value == 0.01


def test_q07_a_metric_that_one_side_does_not_have_is_no_data() -> None:
    whole = many(200, tokens=1, flags=("not_streamed",))
    found = of(check("ttft", "p50"), many(200), whole)
    assert (found.value, found.note) == (None, "no data: no ttft in one of the runs")
    assert of(check("ttft", "tail"), many(200), whole).value is None
    assert of(check("ttft", "p50", stage="steady"), SPREAD, SPREAD).note.startswith(
        "baseline: no data: this run has no stage named steady"
    )
    assert of(check("ttft", "p50"), SPREAD, many(29)).note == "29 requests, 30 are the least"


def test_the_value_of_one_run_is_a_log_or_a_share() -> None:
    assert run_value(check("ttft", "p50"), run_of(SPREAD)) == pytest.approx(math.log(0.199))
    tail = run_value(check("ttft", "tail"), run_of(SPREAD))
    assert tail is not None and 0.279 < math.exp(tail) < 0.299
    assert run_value(check("error_rate", "share"), run_of([*many(99), refused(9.9)])) == 0.01
    assert run_value(check("ttft", "p50"), run_of([])) is None
    assert run_value(check("ttft", "tail"), run_of([refused(i) for i in range(50)])) is None
