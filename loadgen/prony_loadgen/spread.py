"""How far a figure of one run may be off: samples in order of time in, an interval out.

Requests that share a queue are alike, so n of them say less than n independent ones. Batch means
(Law and Kelton, "Simulation Modeling and Analysis", 1991, section 9.5.3) measure by how much.
What differs between two days or two machines is not in one run, so it is in no interval here.
"""

import math
from collections.abc import Sequence

import numpy as np

BATCHES = 20
# Two intervals that each hold with 97.5 % both hold with at least 95 %, and so does their ratio.
EACH = 0.975
# Student's t with BATCHES - 1 degrees of freedom at 1 - (1 - EACH) / 2, and the normal's.
T = 2.4334
Z = 2.2414
# Up to here the binomial is summed; beyond it the normal is as good.
EXACT = 20_000

Interval = tuple[float, float]


def quantile_interval(values: Sequence[float], share: float) -> Interval | None:
    """Where the true quantile lies: between two order statistics (David and Nagaraja, "Order
    Statistics", 2003, section 7.1), at ranks of the binomial with the effective sample size.

    `values` in order of time, infinity for a failure. The upper end is infinite where so few
    samples cannot bound it. None of under 2 * BATCHES samples.
    """
    n = len(values)
    if n < 2 * BATCHES:
        return None
    ranked = sorted(values)
    at = ranked[max(0, math.ceil(share * n - 1e-9) - 1)]
    effective = max(1, round(n / inflation([float(value > at) for value in values])))
    below, above = _ranks(effective, share)
    # Ranks of the smaller sample, as shares of the larger one.
    low = ranked[max(0, math.floor(below / effective * n) - 1)] if below > 0 else 0.0
    high = ranked[min(n, math.ceil(above / effective * n)) - 1] if above <= effective else math.inf
    return low, high


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Where the true mean lies: Student's t over the means of BATCHES equal parts in time order.

    None of under 2 * BATCHES samples, or where one is infinite.
    """
    if len(values) < 2 * BATCHES or not all(map(math.isfinite, values)):
        return None
    means = _batch_means(values)
    middle = float(np.mean(means))
    half = T * float(np.std(means, ddof=1)) / math.sqrt(BATCHES)
    return middle - half, middle + half


def share_interval(bad: int, n: int, order: Sequence[bool]) -> Interval | None:
    """Where the true share lies: Wilson's score interval (1927) with the effective sample size."""
    if n < 2 * BATCHES:
        return None
    effective = n / inflation([float(each) for each in order])
    p = bad / n
    middle = (p + Z * Z / (2 * effective)) / (1 + Z * Z / effective)
    half = (
        Z
        * math.sqrt(p * (1 - p) / effective + Z * Z / (4 * effective**2))
        / (1 + Z * Z / effective)
    )
    return max(0.0, middle - half), min(1.0, middle + half)


def ratio_interval(base: Interval | None, other: Interval | None) -> Interval | None:
    """Where other / base lies when each lies in its interval; the upper end may be infinite."""
    if base is None or other is None or base[1] <= 0:
        return None
    low = 0.0 if math.isinf(base[1]) else max(0.0, other[0]) / base[1]
    high = other[1] / base[0] if base[0] > 0 else math.inf
    return low, high


def difference_interval(base: Interval | None, other: Interval | None) -> Interval | None:
    """Where other - base lies when each lies in its interval."""
    return None if base is None or other is None else (other[0] - base[1], other[1] - base[0])


def inflation(series: Sequence[float]) -> float:
    """By how much the series' mean varies more than that of independent samples; at least 1."""
    if len(series) < 2 * BATCHES:
        return 1.0
    expected = float(np.var(series)) / (len(series) / BATCHES)
    return max(1.0, float(np.var(_batch_means(series), ddof=1)) / expected) if expected else 1.0


def _batch_means(values: Sequence[float]) -> list[float]:
    return [float(np.mean(part)) for part in np.array_split(np.asarray(values, float), BATCHES)]


def _ranks(n: int, share: float) -> tuple[int, int]:
    """The ranks l and u for which x(l) < true quantile <= x(u) holds with EACH; u may be n + 1."""
    tail = (1 - EACH) / 2
    if n > EXACT:
        spread = Z * math.sqrt(n * share * (1 - share))
        return max(0, math.floor(n * share - spread)), math.ceil(n * share + spread) + 1
    # P(Bin(n, share) <= k), summed from logarithms so that nothing underflows.
    log_odds = math.log(share) - math.log1p(-share)
    log_p, total, low = n * math.log1p(-share), 0.0, 0
    for k in range(n + 1):
        if k:
            log_p += math.log(n - k + 1) - math.log(k) + log_odds
        total += math.exp(log_p)
        if total <= tail:
            low = k + 1
        if total >= 1 - tail - 1e-12:
            return low, k + 1
    return low, n + 1
