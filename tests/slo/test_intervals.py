"""Bounds of a share against published figures and against the binomial itself."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from prony_slo.intervals import allowed, certain_breach, lower, needed, settles_at, upper


@pytest.mark.parametrize(
    ("limit", "confidence", "wanted"),
    [
        (0.01, 0.95, [299, 473, 628, 773]),
        (0.01, 0.99, [459, 662, 838, 1001]),
        (0.05, 0.95, [59, 93, 124, 153]),
        (0.001, 0.95, [2995, 4742, 6294, 7752]),
    ],
)
def test_requests_needed_with_0_1_2_and_3_bad(
    limit: float, confidence: float, wanted: list[int]
) -> None:
    assert [needed(limit, confidence, bad) for bad in range(4)] == wanted


def test_no_bad_request_of_299_shows_1_percent_and_of_298_does_not() -> None:
    assert upper(0, 299, 0.95) <= 0.01 < upper(0, 298, 0.95)


def test_bounds_of_10_bad_in_100_are_those_of_the_tables() -> None:
    # 90 % two-sided Clopper-Pearson interval of 10/100: 5.526 % to 16.372 %.
    assert lower(10, 100, 0.95) == pytest.approx(0.05526, abs=5e-5)
    assert upper(10, 100, 0.95) == pytest.approx(0.16372, abs=5e-5)


def test_nothing_measured_bounds_nothing() -> None:
    assert (lower(0, 0, 0.95), upper(0, 0, 0.95)) == (0.0, 1.0)
    assert lower(0, 50, 0.95) == 0.0
    assert upper(50, 50, 0.95) == 1.0


@given(n=st.integers(1, 2000), bad=st.integers(0, 2000), confidence=st.floats(0.5, 0.999))
@settings(deadline=None)
def test_a_bound_is_the_share_at_which_the_count_has_just_the_allowed_probability(
    n: int, bad: int, confidence: float
) -> None:
    bad = min(bad, n)
    if bad < n:
        assert binom.cdf(bad, n, upper(bad, n, confidence)) == pytest.approx(1 - confidence)
    if bad > 0:
        assert binom.sf(bad - 1, n, lower(bad, n, confidence)) == pytest.approx(1 - confidence)


@given(n=st.integers(1, 3000), limit=st.floats(0.0005, 0.5), confidence=st.floats(0.5, 0.999))
@settings(deadline=None, max_examples=40)  # each searches for its edges
def test_allowed_and_certain_breach_are_the_edges_of_the_undecided(
    n: int, limit: float, confidence: float
) -> None:
    most, least = allowed(limit, confidence, n), certain_breach(limit, confidence, n)
    assert most is None or upper(most, n, confidence) <= limit < upper(most + 1, n, confidence)
    assert least is None or lower(least - 1, n, confidence) <= limit < lower(least, n, confidence)
    assert most is None or least is None or most < least


def test_the_limit_must_be_a_share_that_can_be_shown() -> None:
    for limit in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            needed(limit, 0.95)


def test_half_the_limit_settles_as_met_and_twice_the_limit_as_breached() -> None:
    as_met = settles_at(0.01, 0.95, bad=2, n=400)
    assert as_met is not None and upper(as_met * 0.005, as_met, 0.95) <= 0.01
    as_breached = settles_at(0.01, 0.95, bad=8, n=400)
    assert as_breached is not None and lower(as_breached * 0.02, as_breached, 0.95) > 0.01


def test_a_share_on_the_limit_is_never_settled() -> None:
    assert settles_at(0.01, 0.95, bad=1, n=100) is None
    assert settles_at(0.01, 0.95, bad=100_001, n=10_000_000) is None


def test_without_a_bad_request_what_settles_is_what_is_needed() -> None:
    assert settles_at(0.01, 0.95, bad=0, n=20) == 299
    assert math.isclose(upper(0, 299, 0.95), 1 - 0.05 ** (1 / 299))
