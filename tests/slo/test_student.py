"""Student's t and Fisher's F against scipy."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prony_slo.student import f_quantile, t_cdf, t_quantile

DF = st.floats(0.7, 300)


@given(st.floats(-30, 30), DF)
@settings(deadline=None)
def test_the_probability_of_t_is_scipys(t: float, df: float) -> None:
    assert t_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-8)


@given(st.floats(0.0005, 0.9995), DF)
@settings(deadline=None)
def test_the_quantile_of_t_is_scipys(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-6, abs=1e-6)


@given(st.floats(0.01, 0.99), DF, DF)
@settings(deadline=None)
def test_the_quantile_of_f_is_scipys(p: float, df1: float, df2: float) -> None:
    assert f_quantile(p, df1, df2) == pytest.approx(stats.f.ppf(p, df1, df2), rel=1e-6)


def test_without_degrees_of_freedom_nothing_is_certain() -> None:
    assert t_quantile(0.99, 0) == math.inf
    assert (t_cdf(math.inf, 3), t_cdf(-math.inf, 3)) == (1.0, 0.0)
