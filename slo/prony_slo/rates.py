"""Whether a rate is high enough: the runs go in, a verdict with the rate and its bounds comes out.

One run has one rate, and no sample to take an interval from. From three runs on, the t interval
over the runs says how sure the rate is.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from prony_loadgen.summary import Measured
from prony_loadgen.words import share
from prony_slo.counting import good_finished
from prony_slo.promise import RATE_UNITS, Condition, Floor
from prony_slo.student import t_quantile

FEWEST_RUNS = 3

RateVerdict = Literal["pass", "breach", "inconclusive"]


def judge(
    promise: Floor,
    runs: Sequence[Measured],
    conditions: Sequence[Condition],
    confidence: float,
) -> tuple[RateVerdict, str, float, tuple[float, float] | None]:
    """The verdict on runs of some length, its text, the rate over all of them, and its bounds."""
    counts = [_count(promise, run, conditions) for run in runs]
    seconds = sum(run.seconds for run in runs)
    rate = math.fsum(counts) / seconds
    seen = f"{rate:,.4g} {RATE_UNITS[promise.metric]} over {seconds:,.1f} s"
    wanted = f"at least {promise.at_least:,g} wanted"
    if len(runs) < FEWEST_RUNS or any(run.seconds <= 0 for run in runs):
        return "pass" if rate >= promise.at_least else "breach", f"{seen}, {wanted}", rate, None
    each = [counted / run.seconds for counted, run in zip(counts, runs, strict=True)]
    half = t_quantile(confidence, len(each) - 1) * statistics.stdev(each) / math.sqrt(len(each))
    low, high = rate - half, rate + half
    text = f"{seen} of {len(runs)} runs, {low:,.4g} to {high:,.4g} with {share(confidence)} "
    text += f"confidence, {wanted}"
    if low >= promise.at_least:
        return "pass", text, rate, (low, high)
    if high < promise.at_least:
        return "breach", text, rate, (low, high)
    return "inconclusive", f"{text}: the runs differ too much to decide", rate, (low, high)


def _count(promise: Floor, run: Measured, conditions: Sequence[Condition]) -> float:
    if promise.of is not None:
        return good_finished(conditions, run)
    if promise.metric == "output_tokens_per_s":
        return run.tokens()
    return len(run.finished())
