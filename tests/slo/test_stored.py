"""New runs against a stored baseline of other days."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from tests.slo.runs import request, run_of

from prony_loadgen.summary import Measured
from prony_slo.promise import Baseline, Check, Regression
from prony_slo.regression import RegressionResult
from prony_slo.stored import StoredRun, judge_stored, stored_run

P50 = Check("ttft p50", "ttft", "p50", 0.10, "gate.yaml:9")
TOKENS = Check("output_tokens_per_s rate", "output_tokens_per_s", "rate", 0.10, "gate.yaml:10")
GATE = Regression((P50,), Baseline("v1.2", mode="stored"))


def run(ttft: float, n: int = 100) -> Measured:
    return run_of([request(i / 10, ttft=ttft) for i in range(n)])


def baseline(*sessions: Sequence[float]) -> list[StoredRun]:
    """Runs by session, of these median TTFTs in seconds."""
    return [
        stored_run(GATE, run(ttft), f"day {day}")
        for day, ttfts in enumerate(sessions)
        for ttft in ttfts
    ]


STEADY = baseline((0.100, 0.101), (0.099, 0.100), (0.101, 0.102), (0.100, 0.099))


def one(history: Sequence[StoredRun], *new: Measured) -> RegressionResult:
    return judge_stored(GATE, history, new)[0]


def test_a_run_within_the_scatter_passes_and_one_far_beyond_it_does_not() -> None:
    assert one(STEADY, run(0.101)).verdict == "pass"
    worse = one(STEADY, run(0.130))
    assert worse.verdict == "breach"
    assert worse.text.startswith("+29.7 % [+")
    assert "against v1.2 of 4 sessions, tolerance +10.0 %" in worse.text


@pytest.mark.parametrize(
    "sessions",
    [
        (),
        ((0.1,) * 7,),
        ((0.1, 0.1), (0.1, 0.1), (0.1, 0.1, 0.1, 0.1)),  # 8 runs of 3 sessions
        ((0.1,), (0.1,), (0.1, 0.1), (0.1, 0.1, 0.1)),  # 7 runs of 4
    ],
)
def test_under_8_runs_of_4_sessions_nothing_is_decided(sessions: tuple[Sequence[float]]) -> None:
    result = one(baseline(*sessions), run(0.2), run(0.2))
    assert result.verdict == "inconclusive"
    assert "8 runs of 4 sessions" in result.text


def test_days_that_differ_leave_a_change_of_their_size_open() -> None:
    days = baseline((0.09, 0.09), (0.10, 0.10), (0.11, 0.11), (0.12, 0.12))
    result = one(days, run(0.125))
    assert result.verdict == "inconclusive"
    assert "interleaved pairs would" in result.text


def test_q07_a_figure_that_is_missing_on_either_side_is_inconclusive() -> None:
    whole = run_of([request(i / 10, tokens=1, flags=("not_streamed",)) for i in range(100)])
    assert one(STEADY, run(0.1), whole).verdict == "inconclusive"
    without = [StoredRun(stored.session, {}, 100) for stored in STEADY]
    assert "0 runs of 0 sessions" in one(without, run(0.1)).text
    assert one(STEADY, run(0.1, n=50)).verdict == "inconclusive"
    assert judge_stored(GATE, STEADY, [])[0].verdict == "inconclusive"


def test_fewer_tokens_a_second_are_worse() -> None:
    gate = Regression((TOKENS,))
    old = [stored_run(gate, run(0.1), f"day {i % 4}") for i in range(8)]
    slow = run_of([request(i / 10, tokens=5) for i in range(100)])
    assert judge_stored(gate, old, [slow])[0].verdict == "breach"
    assert judge_stored(gate, old, [run(0.1)])[0].verdict == "pass"


def test_of_400_unchanged_builds_about_one_in_a_hundred_is_failed() -> None:
    rng = np.random.default_rng(1)
    failed = 0
    for _ in range(400):
        days = rng.normal(math.log(0.1), 0.03, 6)
        values = [[day + e for e in rng.normal(0, 0.02, 2)] for day in days]
        history = [
            StoredRun(f"{day}", {P50.id: value}, 100)
            for day, each in enumerate(values[:5])
            for value in each
        ]
        new = [run(math.exp(value), n=30) for value in values[5]]
        history = [StoredRun(h.session, h.values, 30) for h in history]
        failed += one(history, *new).verdict == "breach"
    assert failed <= 12  # 4 are expected; 12 is the 99.9 % limit
