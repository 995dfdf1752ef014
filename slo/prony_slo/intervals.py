"""How sure a count makes us: bad requests of all requests go in, bounds of the true share come out.

The bounds are those of Clopper and Pearson ("The use of confidence or fiducial limits illustrated
in the case of the binomial", Biometrika 26, 1934, 404-413), one-sided, as quantiles of the beta
distribution (Brown, Cai and DasGupta, "Interval estimation for a binomial proportion",
Statistical Science 16, 2001, section 4.2.1). They are exact for independent requests: at 95 %
confidence a bound is wrong at most once in 20 runs, whatever the true share.
"""

import math
from collections.abc import Callable

from prony_slo import beta

# More requests than this to settle an objective is no advice.
TOO_MANY = 10_000_000


def upper(bad: float, n: float, confidence: float) -> float:
    """The largest true share of bad requests that `bad` of `n` leave possible.

    Clopper and Pearson 1934: the `confidence` quantile of Beta(bad + 1, n - bad). Counts need not
    be whole, so that an effective sample size can go in.
    """
    if n <= 0 or bad >= n:
        return 1.0
    return beta.quantile(confidence, bad + 1, n - bad)


def lower(bad: float, n: float, confidence: float) -> float:
    """The smallest true share of bad requests that `bad` of `n` leave possible.

    Clopper and Pearson 1934: the `1 - confidence` quantile of Beta(bad, n - bad + 1).
    """
    if n <= 0 or bad <= 0:
        return 0.0
    return beta.quantile(1 - confidence, bad, n - bad + 1)


def needed(limit: float, confidence: float, bad: int = 0) -> int:
    """The fewest requests that show "at most `limit` are bad" when `bad` of them are.

    With none bad it is ln(1 - confidence) / ln(1 - limit) rounded up, from the binomial
    (1 - limit)^n <= 1 - confidence (Hahn and Meeker, "Statistical Intervals", 1991, section 9.4);
    else the smallest n whose upper bound is within the limit. 0/1/2/3 bad at 1 % and 95 %:
    299/473/628/773.
    """
    if not 0 < limit < 1:
        raise ValueError(f"limit must lie between 0 and 1, got {limit!r}")
    if bad == 0:
        return math.ceil(math.log(1 - confidence) / math.log1p(-limit))
    return _smallest(bad + 1, lambda n: upper(bad, n, confidence) <= limit)


def allowed(limit: float, confidence: float, n: int) -> int | None:
    """The most bad requests of `n` that still show "at most `limit` are bad".

    None where not even zero would do. By bisection on the upper bound, which grows with `bad`.
    """
    if upper(0, n, confidence) > limit:
        return None
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if upper(middle, n, confidence) <= limit else (low, middle)
    return low


def certain_breach(limit: float, confidence: float, n: int) -> int | None:
    """The fewest bad requests of `n` that show that more than `limit` are bad.

    None where not even all of them would do. By bisection on the lower bound, which grows
    with `bad`.
    """
    if lower(n, n, confidence) <= limit:
        return None
    return _smallest(1, lambda bad: bad >= n or lower(bad, n, confidence) > limit)


def settles_at(limit: float, confidence: float, bad: float, n: float) -> int | None:
    """How many requests in all would decide the objective if the share stayed what it is.

    None where the observed share lies on the limit, or so close that no run could tell. From the
    bounds above at `share * m` bad of `m`. Counts may be effective ones.
    """
    share = bad / n if n else 0.0

    def decided(m: int) -> bool:
        if share < limit:
            return upper(share * m, m, confidence) <= limit
        return lower(share * m, m, confidence) > limit

    return _smallest(max(math.ceil(n), 1), decided) if decided(TOO_MANY) else None


def _smallest(start: int, holds: Callable[[int], bool]) -> int:
    """The smallest whole number from `start` for which `holds`, which stays true once true."""
    if holds(start):
        return start
    low, high = start, start * 2
    while not holds(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
