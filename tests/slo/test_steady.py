"""Warm-up that is found, and drift that is seen."""

import math

import numpy as np
import pytest
from tests.slo.runs import cut, errors_under, request, run_of, slo_of, ttft_under

from prony_loadgen.record import RequestRecord
from prony_loadgen.steady import not_steady, without_warmup
from prony_loadgen.summary import Measured
from prony_slo.gate import judge
from prony_slo.promise import Measure


def noisy(shape: object, seed: int = 1, n: int = 600) -> Measured:
    """`n` requests, ten a second, TTFT 100 ms times `shape(seconds)` times noise of 20 %."""
    rng = np.random.default_rng(seed)
    noise = np.exp(rng.normal(0, 0.2, n))
    return run_of(
        [request(i / 10, ttft=0.1 * shape(i / 10) * noise[i]) for i in range(n)]  # type: ignore[operator]
    )


def flat(_: float) -> float:
    return 1.0


def cold(at: float) -> float:
    return 1 + 1.5 * math.exp(-at / 5)


def test_a_steady_run_is_steady_nearly_always() -> None:
    cries = [not_steady(noisy(flat, seed)) is not None for seed in range(100)]
    assert sum(cries) <= 6


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (lambda at: 1.0 if at < 30 else 1.25, "TTFT of the second half is +2"),
        (lambda at: 1 + at / 100, "TTFT of the second half is +"),
        (lambda at: 1.25 if at < 30 else 1.0, "TTFT of the second half is -"),
    ],
)
def test_a_run_that_drifts_says_so(shape: object, said: str) -> None:
    assert (not_steady(noisy(shape)) or "").startswith(said)


def test_requests_that_pile_up_are_not_steady() -> None:
    records: list[RequestRecord] = [request(i / 10) for i in range(300)]
    records += [cut(30 + i / 10, ended=60.0) for i in range(300)]
    assert (not_steady(run_of(records)) or "").endswith("they pile up")


def test_fewer_than_a_hundred_requests_cannot_show_a_drift() -> None:
    assert not_steady(noisy(lambda at: 1 + at, n=99)) is None


def test_a_cold_start_is_cut_and_a_steady_run_hardly() -> None:
    starts = [without_warmup(noisy(cold, seed), 0.0, 0.4).window[0] for seed in range(20)]
    assert 5 < np.median(starts) <= 24
    wasted = [without_warmup(noisy(flat, seed), 0.0, 0.4).window[0] for seed in range(20)]
    assert np.median(wasted) <= 3


def test_the_least_and_the_most_of_a_warmup_hold() -> None:
    assert without_warmup(noisy(flat), 10.0, 0.4).window[0] >= 10.0
    assert without_warmup(noisy(lambda at: 3 - at / 30), 0.0, 0.2).window[0] <= 12.0
    part = without_warmup(noisy(flat), 12.0, 0.4)
    assert min(r.intended for r in part.records) >= part.window[0]
    assert len(part.records) + len(part.outside) == 600
    assert without_warmup(run_of([]), 0.0, 0.4).records == ()


def test_a_drifting_run_meets_no_latency_where_steadiness_is_asked_for() -> None:
    run = noisy(lambda at: 1.0 if at < 30 else 1.25)
    objectives = (ttft_under(1.0, 0.05), errors_under(0.05))
    assert judge(slo_of(*objectives), run, []).exit_code == 0
    asked = judge(slo_of(*objectives, measure=Measure(require_steady=True)), run, [])
    assert [r.verdict for r in asked.objectives] == ["inconclusive", "pass"]
    assert asked.objectives[0].text.startswith("not steady: TTFT of the second half")
    broken = slo_of(ttft_under(0.05, 0.05), measure=Measure(require_steady=True))
    assert judge(broken, run, []).exit_code == 1
