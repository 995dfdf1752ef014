"""How many independent requests a run is worth: good and bad in order of time in, a size out.

Slow requests come in bursts, because they share a queue: at 60 % load 1,000 requests tell as much
of their tail as some 240 independent ones, at 85 % as 12. The variance inflation factor is the
variance of the share of bad requests over batches of neighbours, divided by what it would be if
each came on its own (batch means: Law, "Simulation Modeling and Analysis", section 9.5). Several
runs are also batches, of the noise between runs. The largest of these factors counts, never one
below 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prony_slo.student import t_quantile

Bad = npt.NDArray[np.bool_]

# More batches see short bursts with more degrees of freedom, fewer see long ones.
BATCHES = (20, 10)
FEWEST = 20  # shorter runs hold no batches


@dataclass(frozen=True, slots=True)
class Effective:
    """Counts that an interval for independent requests may take."""

    n: float
    bad: float
    inflation: float  # requests per independent one; 1 where they are


def effective(runs: Sequence[Bad], confidence: float, unplaced_bad: int = 0) -> Effective:
    """The effective counts of one or more runs of requests in order of time, True for bad.

    `unplaced_bad` bad requests more have no place in time (arrivals that were never sent).
    """
    n = sum(len(run) for run in runs) + unplaced_bad
    bad = sum(int(run.sum()) for run in runs) + unplaced_bad
    factor = inflation(runs, confidence)
    return Effective(n / factor, bad / factor, factor)


def inflation(runs: Sequence[Bad], confidence: float) -> float:
    """The variance inflation factor of the share of bad requests, at least 1.

    Where requests came in bursts, the factor also pays for being an estimate itself, by the ratio
    of squared t quantiles with and without its degrees of freedom (Korn and Graubard, "Confidence
    intervals for proportions with small expected number of positive counts estimated from survey
    data", Survey Methodology 24, 1998).
    """
    runs = [run for run in runs if len(run)]
    n = sum(len(run) for run in runs)
    bad = sum(int(run.sum()) for run in runs)
    if n < FEWEST or min(bad, n - bad) < 2:  # one bad request alone is no burst
        return 1.0
    one = bad / n * (1 - bad / n) * n / (n - 1)  # the variance of a single request
    factors = [_between(runs, bad / n) / one] if len(runs) > 1 else []
    df = 0
    for batches in BATCHES:
        split = [run for run in runs if len(run) >= batches]
        if split:
            factors.append(_within(split, batches) / one)
            df = max(df, (batches - 1) * len(split))
    factor = max(factors)
    if factor <= 1 + 1e-9 or df == 0:
        return max(1.0, factor)
    confidence = max(confidence, 0.6)  # at 50 % both quantiles are 0; their ratio hardly changes
    return factor * (t_quantile(confidence, df) / t_quantile(confidence, n - 1)) ** 2


def _within(runs: Sequence[Bad], batches: int) -> float:
    """The variance of a batch's share times its size, around the share of its own run."""
    return float(np.mean([_variance(np.array_split(run, batches)) for run in runs]))


def _between(runs: Sequence[Bad], share: float) -> float:
    return _variance(runs, share)


def _variance(parts: Sequence[Bad], share: float | None = None) -> float:
    sizes = np.array([len(part) for part in parts], dtype=float)
    bad = np.array([part.sum() for part in parts], dtype=float)
    if share is None:
        share = float(bad.sum() / sizes.sum())
    return float(((bad - sizes * share) ** 2 / sizes).sum() / (len(parts) - 1))
