"""What requests in bursts are worth."""

import numpy as np
import pytest

from prony_slo.effective import effective, inflation
from prony_slo.intervals import upper


def bursts(rng: np.random.Generator, n: int, share: float, length: int) -> np.ndarray:
    """`n` requests of which bad ones come `length` in a row."""
    return np.repeat(rng.random(n // length) < share, length)


def test_requests_that_are_bad_on_their_own_are_worth_what_they_are() -> None:
    rng = np.random.default_rng(1)
    factors = [inflation([rng.random(1000) < 0.05], 0.95) for _ in range(300)]
    assert 1.0 <= np.median(factors) < 1.2


@pytest.mark.parametrize("length", [4, 10])
def test_bad_requests_in_rows_are_worth_one_each_row(length: int) -> None:
    rng = np.random.default_rng(2)
    factors = [inflation([bursts(rng, 2000, 0.05, length)], 0.95) for _ in range(300)]
    assert np.mean(factors) == pytest.approx(length, rel=0.35)


def test_evenly_spread_bad_requests_are_not_worth_more_than_they_are() -> None:
    even = np.arange(1000) % 20 == 0
    assert effective([even], 0.95).n == 1000


def test_one_bad_request_alone_is_no_burst() -> None:
    assert inflation([np.arange(473) == 5], 0.95) == 1.0
    assert inflation([np.zeros(473, dtype=bool)], 0.95) == 1.0
    assert inflation([np.ones(473, dtype=bool)], 0.95) == 1.0
    assert inflation([np.arange(19) < 9], 0.95) == 1.0


def test_runs_that_differ_are_worth_less_than_their_requests() -> None:
    """Each of these runs is even in itself; between them the share goes from 0 to 10 %."""
    runs = [np.zeros(1000, dtype=bool), np.arange(1000) % 20 == 0, np.arange(1000) % 10 == 0]
    assert all(inflation([run], 0.95) == 1.0 for run in runs)
    assert inflation(runs, 0.95) > 20


def test_dropped_arrivals_are_bad_without_a_place_in_time() -> None:
    worth = effective([np.zeros(90, dtype=bool)], 0.95, unplaced_bad=10)
    assert (worth.n, worth.bad, worth.inflation) == (100, 10, 1.0)


def test_shows_2_in_small_a_share_just_above_the_limit_is_rarely_met_from_five_runs() -> None:
    """Bursts of four, a true share of 2.02 % against 2 %: independent bounds err three times."""
    rng = np.random.default_rng(3)
    met = {"effective": 0, "independent": 0}
    for _ in range(300):
        runs = [bursts(rng, 1000, 0.0202, 4) for _ in range(5)]
        worth = effective(runs, 0.95)
        met["effective"] += upper(worth.bad, worth.n, 0.95) <= 0.02
        met["independent"] += upper(sum(int(r.sum()) for r in runs), 5000, 0.95) <= 0.02
    assert met["effective"] <= 0.08 * 300 < 0.12 * 300 <= met["independent"]
