"""Student's t and Fisher's F: probabilities and degrees of freedom go in, quantiles come out.

Both follow from the beta distribution (Abramowitz and Stegun, 26.5.27 and 26.5.28). Degrees of
freedom need not be whole, so that a variance which is pooled of several sources can go in.
"""

import math
from functools import lru_cache

from prony_slo import beta


def t_cdf(t: float, df: float) -> float:
    """P(T <= t) of Student's t with `df` degrees of freedom (Abramowitz and Stegun, 26.5.27)."""
    if math.isinf(t):
        return 1.0 if t > 0 else 0.0
    if t * t < df:  # near 0 the tail's argument rounds to 1, and the middle must be taken
        middle = beta.cdf(0.5, df / 2, t * t / (df + t * t)) / 2
        return 0.5 + math.copysign(middle, t)
    tail = beta.cdf(df / 2, 0.5, df / (df + t * t)) / 2
    return tail if t < 0 else 1 - tail


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The t below which T falls with probability `p`; infinite without degrees of freedom."""
    if p < 0.5:
        return -t_quantile(1 - p, df)
    if df <= 0:
        return math.inf
    x = beta.quantile(2 * (1 - p), df / 2, 0.5)
    return math.sqrt(df * (1 - x) / x) if x > 0 else math.inf


@lru_cache(maxsize=4096)
def f_quantile(p: float, df1: float, df2: float) -> float:
    """The ratio of two variance estimates that chance exceeds with probability 1 - `p`.

    Abramowitz and Stegun, 26.5.28: df1 F / (df1 F + df2) is Beta(df1 / 2, df2 / 2).
    """
    x = beta.quantile(p, df1 / 2, df2 / 2)
    return df2 * x / (df1 * (1 - x)) if x < 1 else math.inf
