"""Regressions that are really there: false alarms, power, and what is said."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.slo.runs import many, request, run_of

from prony_slo.noise import Noise, NoiseProfile
from prony_slo.pairs import Change, Pair
from prony_slo.promise import Baseline, Check, Regression
from prony_slo.regression import (
    RegressionResult,
    decided,
    judge_changes,
    judge_pairs,
    no_baseline,
    outlook,
    regression_code,
    smallest_seen,
)
from prony_slo.sequential import level_per_look
from prony_slo.student import t_quantile

P50 = Check("ttft p50", "ttft", "p50", 0.05, "gate.yaml:9")
TAIL = Check("ttft tail", "ttft", "tail", 0.10, "gate.yaml:10")
TOKENS = Check("output_tokens_per_s rate", "output_tokens_per_s", "rate", 0.05, "gate.yaml:11")
ERRORS = Check("error_rate share", "error_rate", "share", 0.01, "gate.yaml:12")
GATE = Regression((P50, TAIL, TOKENS))
QUIET = NoiseProfile({}, {c.id: Noise(0.02**2, 20, 1000) for c in GATE.checks})


def alone(check: Check, **facts: Any) -> Regression:
    return Regression((check,), **facts)


def one(
    check: Check, values: Sequence[float | None], profile: NoiseProfile | None = None, **facts: Any
) -> RegressionResult:
    changes = {check.id: [Change(value, 1000) for value in values]}
    return judge_changes(alone(check, **facts), changes, profile)[0]


def gate(
    rng: np.random.Generator, shift: float, sd: float = 0.02, profile: NoiseProfile | None = QUIET
) -> tuple[int, int]:
    """The exit code and the pairs of one whole gate, which stops as soon as it may."""
    drawn = {c.id: [Change(v, 1000) for v in rng.normal(shift, sd, 10)] for c in GATE.checks}
    for pairs in range(3, 11):
        results = judge_changes(GATE, {c: each[:pairs] for c, each in drawn.items()}, profile)
        if decided(results):
            break
    return regression_code(GATE, results), pairs


def test_of_200_unchanged_builds_few_are_failed_and_nearly_all_pass() -> None:
    rng = np.random.default_rng(1)
    codes = [gate(rng, 0.0)[0] for _ in range(200)]
    assert codes.count(1) <= 6  # 1 % are 2; 6 is the binomial limit at 99.5 %
    assert codes.count(0) >= 185


def test_of_200_unchanged_builds_few_are_failed_without_a_profile() -> None:
    rng = np.random.default_rng(2)
    codes = [gate(rng, 0.0, profile=None)[0] for _ in range(200)]
    assert codes.count(1) <= 6


@pytest.mark.parametrize(("shift", "pairs"), [(0.07, 4.5), (0.14, 3.3)])
def test_a_slower_build_fails_within_few_pairs(shift: float, pairs: float) -> None:
    rng = np.random.default_rng(3)
    gates = [gate(rng, shift) for _ in range(100)]
    assert [code for code, _ in gates].count(1) >= 98
    assert np.mean([used for _, used in gates]) < pairs


def test_a_planted_regression_is_seen_in_real_pairs_and_none_where_there_is_none() -> None:
    rng = np.random.default_rng(4)

    def run(slower: float) -> Any:
        machine = math.exp(rng.normal(0, 0.005)) * slower
        return run_of([request(i / 10, ttft=(0.1 + i % 97 / 500) * machine) for i in range(300)])

    same = [Pair(run(1.0), run(1.0)) for _ in range(5)]
    worse = [Pair(run(1.0), run(1.2)) for _ in range(5)]
    assert [r.verdict for r in judge_pairs(Regression((P50, TAIL)), same)] == ["pass", "pass"]
    assert [r.verdict for r in judge_pairs(Regression((P50, TAIL)), worse)] == ["breach", "breach"]


def test_looking_after_every_pair_costs_no_more_than_alpha() -> None:
    for df in (0.0, 20.0):
        level = level_per_look(0.01, 3, 10, df)
        assert 0.01 / 8 <= level < 0.004
    assert level_per_look(0.01, 5, 5, 20.0) == 0.01


def test_a_borrowed_variance_sees_more_than_three_pairs_of_their_own() -> None:
    values = (0.055, 0.075, 0.065)
    assert one(P50, values).verdict == "inconclusive"
    assert one(P50, values, QUIET).verdict == "breach"
    assert (one(P50, values).noise, one(P50, values, QUIET).noise) == ("today", "profile")


def test_a_profile_that_does_not_describe_today_is_left_aside() -> None:
    result = one(P50, (0.2, -0.1, 0.15), QUIET)
    assert (result.verdict, result.noise) == ("inconclusive", "above profile")
    assert "today is noisier than the noise profile" in result.text


def test_a_verdict_that_fell_stays_whatever_comes_after() -> None:
    result = one(P50, [0.0] * 3 + [0.5] * 4, QUIET)
    assert (result.verdict, result.decided_at, result.pairs) == ("pass", 3, 3)


def test_no_more_than_the_most_pairs_are_looked_at() -> None:
    wide = NoiseProfile({}, {P50.id: Noise(0.2**2, 20, 1000)})
    result = one(P50, [0.02] * 30, wide)
    assert (result.verdict, result.pairs) == ("inconclusive", 10)


def test_too_few_pairs_say_how_many_are_missing() -> None:
    result = one(P50, [0.1], QUIET)
    assert (result.verdict, result.pairs_needed_more) == ("inconclusive", 2)
    assert result.text == "1 of at least 3 pairs"
    assert one(P50, []).verdict == "inconclusive"


def test_a_pair_that_cannot_be_compared_decides_nothing() -> None:
    result = one(P50, [0.0, None, 0.0, 0.0], QUIET)
    assert result.verdict == "inconclusive"
    assert result.text.startswith("pair 2 cannot be compared")


def test_the_line_names_change_interval_tolerance_pairs_and_what_they_see() -> None:
    result = one(P50, (0.05, 0.01, 0.02), QUIET, baseline=Baseline(ref="main"))
    assert result.verdict == "inconclusive"
    assert result.text.startswith("+2.7 % [-0.8 %, +6.3 %] against main, tolerance +5.0 %, 3 pairs")
    assert "more pairs would decide it" in result.text
    assert result.estimate == pytest.approx(math.expm1(0.08 / 3))
    assert result.mde is not None and f"see +{result.mde * 100:.1f} %" in result.text


def test_fewer_tokens_a_second_read_as_a_minus() -> None:
    result = one(TOKENS, [math.log(1 / 0.9)] * 3, QUIET)
    assert result.verdict == "breach"
    assert result.estimate == pytest.approx(0.10)
    assert result.text.startswith("-10.0 % [-1")
    assert "tolerance -5.0 %" in result.text


def test_a_difference_of_shares_is_in_points_and_one_failure_is_not_a_regression() -> None:
    gates = Regression((ERRORS,))
    floor = 2 * 0.001 / 1000
    once = [Change(value, 1000, floor=floor) for value in (0.001, 0.001, 0.001)]
    assert judge_changes(gates, {ERRORS.id: once})[0].verdict == "pass"
    many_more = [Change(value, 1000, floor=floor) for value in (0.05, 0.06, 0.05)]
    result = judge_changes(gates, {ERRORS.id: many_more})[0]
    assert result.verdict == "breach"
    assert result.text.startswith("+5.3 pp [")


def test_runs_that_do_not_scatter_at_all_are_judged_by_their_change() -> None:
    assert one(P50, [0.0, 0.0, 0.0]).verdict == "pass"
    assert one(P50, [0.2, 0.2, 0.2]).verdict == "breach"


def test_what_can_be_seen_is_told_before_the_run() -> None:
    assert outlook(alone(P50), None, 1000)[0].startswith("ttft p50: no noise profile")
    line = outlook(alone(P50), QUIET, 1000)[0]
    seen = smallest_seen(alone(P50), P50, QUIET.checks[P50.id])
    level = level_per_look(0.01, 3, 10, 20)
    sds = (t_quantile(1 - level, 20) + t_quantile(0.95, 20)) / math.sqrt(10)
    assert seen == pytest.approx(math.expm1(sds * 0.02))
    assert f"see a change of +{seen * 100:.1f} %" in line
    still = NoiseProfile({}, {P50.id: Noise(0.0, 20, 1000)})
    assert outlook(alone(P50), still, 1000) == [
        "ttft p50: earlier pairs did not differ, so any change will be seen"
    ]
    noisy = NoiseProfile({}, {P50.id: Noise(0.05**2, 20, 1000)})
    assert "too small to be confirmed, it would take about" in outlook(alone(P50), noisy, 1000)[0]


def test_a_warning_never_fails_and_is_never_waited_for() -> None:
    warns = Regression((P50, replace(TAIL, severity="warn")))
    assert warns.alpha_each == 0.01
    changes = {P50.id: [Change(0.0, 1000)] * 3, TAIL.id: [Change(0.5, 1000)] * 3}
    results = judge_changes(warns, changes, QUIET)
    assert [result.verdict for result in results] == ["pass", "breach"]
    assert decided(results) and regression_code(warns, results) == 0
    open_ = judge_changes(warns, {P50.id: changes[P50.id]}, QUIET)
    assert open_[1].verdict == "inconclusive" and decided(open_)


@pytest.mark.parametrize(("missing", "code"), [("inconclusive", 3), ("warn", 0), ("fail", 1)])
def test_q07_without_a_baseline_the_file_says_what_follows(missing: Any, code: int) -> None:
    gates = replace(GATE, baseline=Baseline(missing=missing))
    results = no_baseline(gates, "prony baseline accept runs/latest")
    assert {result.verdict for result in results} == {"inconclusive"}
    assert results[0].text == "no baseline yet: make one with `prony baseline accept runs/latest`"
    assert regression_code(gates, results, baseline_missing=True) == code


def test_a_result_is_plain_json() -> None:
    for values in ([0.06, 0.02, 0.03], [0.1], [None] * 3):
        told = one(P50, values, QUIET).to_json()
        assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_pairs_of_runs_without_the_metric_decide_nothing() -> None:
    whole = run_of(many(200, tokens=1, flags=("not_streamed",)))
    results = judge_pairs(GATE, [Pair(whole, whole)] * 3)
    assert results[0].verdict == "inconclusive"
    assert "no ttft" in results[0].text
