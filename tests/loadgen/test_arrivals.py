"""When requests come."""

import math
import random
from itertools import pairwise

import pytest
from scipy import stats

from prony_loadgen.arrivals import ARRIVALS, offsets


def schedule(process: str, rate: float = 100.0, seed: int = 1, **bounds: float) -> list[float]:
    limits = {"warmup": 0.0, "duration": None, "requests": None, **bounds}
    return offsets(process, rate, random.Random(seed), **limits)  # type: ignore[arg-type]


def test_constant_arrivals_are_evenly_spaced_from_zero_without_drift() -> None:
    assert schedule("constant", 10, duration=0.5) == [0.0, 0.1, 0.2, 0.3, 0.4]
    # The millionth is where it should be, to the last bit: no sum of gaps lies behind it.
    assert schedule("constant", 3, requests=1_000_000)[-1] == 999_999 / 3


def test_poisson_gaps_are_exponential() -> None:
    times = schedule("poisson", 100, requests=20_000)
    gaps = [after - before for before, after in pairwise([0.0, *times])]
    assert stats.kstest(gaps, "expon", args=(0, 1 / 100)).pvalue > 0.01
    assert sum(gaps) / len(gaps) == pytest.approx(0.01, rel=0.02)


def test_poisson_counts_scatter_as_they_should_over_seeds() -> None:
    counts = [len(schedule("poisson", 50, seed, duration=2.0)) for seed in range(300)]
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert mean == pytest.approx(100, abs=2)
    assert math.sqrt(variance) == pytest.approx(10, abs=1.5)


@pytest.mark.parametrize("process", ARRIVALS)
def test_a_seed_means_one_schedule(process: str) -> None:
    assert schedule(process, requests=500) == schedule(process, requests=500)


def test_another_seed_means_another_schedule() -> None:
    assert schedule("poisson", seed=1, requests=5) != schedule("poisson", seed=2, requests=5)


@pytest.mark.parametrize("process", ARRIVALS)
def test_times_never_go_back(process: str) -> None:
    times = schedule(process, 1000, requests=5000)
    assert all(before <= after for before, after in pairwise(times))


def test_requests_are_counted_after_the_warm_up() -> None:
    times = schedule("constant", 10, warmup=1.0, requests=5)
    assert len([at for at in times if at < 1.0]) == 10
    assert [at for at in times if at >= 1.0] == [1.0, 1.1, 1.2, 1.3, 1.4]


def test_duration_is_counted_after_the_warm_up() -> None:
    times = schedule("constant", 10, warmup=1.0, duration=2.0)
    assert (len(times), times[-1]) == (30, 2.9)


def test_of_duration_and_requests_the_first_to_end_ends_it() -> None:
    assert len(schedule("constant", 10, duration=1.0, requests=100)) == 10
    assert len(schedule("constant", 10, duration=100.0, requests=7)) == 7


def test_a_duration_shorter_than_the_first_gap_sends_nothing() -> None:
    assert schedule("poisson", 0.001, duration=0.01) == []
