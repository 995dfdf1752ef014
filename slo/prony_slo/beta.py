"""The beta distribution's quantile: shape and probability go in, a share between 0 and 1 comes out.

scipy has it too, in 140 MB; this is all that the gate needs of it. Tests compare the two.
"""

import math

_TINY = 1e-300
_TERMS = 10_000  # of the continued fraction: some sqrt(max(a, b)) are used, so this is a backstop


def cdf(a: float, b: float, x: float) -> float:
    """P(X <= x) of X ~ Beta(a, b): the regularised incomplete beta function I_x(a, b).

    By its continued fraction (Abramowitz and Stegun, 26.5.8; DLMF 8.17.22), evaluated by the
    modified Lentz algorithm (Lentz 1976; Thompson and Barnett 1986).
    """
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, use the other tail
        return 1 - cdf(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front * _fraction(a, b, x) / a


def quantile(p: float, a: float, b: float) -> float:
    """The x at which cdf(a, b, x) is p, by bisection to the last bit."""
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if cdf(a, b, middle) < p else (low, middle)
    return high


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            return value
    raise ArithmeticError(f"the incomplete beta function of a={a}, b={b}, x={x} did not converge")


def _away_from_zero(number: float) -> float:
    return number if abs(number) > _TINY else _TINY
