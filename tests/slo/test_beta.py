"""The beta quantile against scipy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prony_slo import beta

shapes = st.floats(0.5, 1e6)


@given(a=shapes, b=shapes, p=st.floats(0.001, 0.999))
def test_the_quantile_is_scipys_to_nine_digits(a: float, b: float, p: float) -> None:
    # Counts of up to a million requests, whole or (an effective sample size) not.
    assert beta.quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), rel=1e-9)


@given(a=shapes, b=shapes, x=st.floats(0, 1))
def test_the_distribution_function_is_scipys(a: float, b: float, x: float) -> None:
    # At a million requests math.lgamma's own rounding leaves some 1e-9.
    assert beta.cdf(a, b, x) == pytest.approx(stats.beta.cdf(x, a, b), abs=2e-8)


def test_ten_million_requests_converge_too() -> None:
    assert beta.quantile(0.95, 100_001, 9_900_000) == pytest.approx(
        stats.beta.ppf(0.95, 100_001, 9_900_000), rel=1e-9
    )
