"""By how much one run is worse than another: a check and a pair of runs in, one number out.

Every change is positive where the second run is worse. Latencies and rates are compared as log
ratios, so that 10 % slower and 10 % faster are equally far from no change; shares of bad requests
by their difference.

The two runs of a pair send the same requests at the same times (one seed), so that each request
can be compared with itself. The tail is compared so: the median log ratio over the requests that
were slowest in both runs. That is far steadier than a ratio of p99s (a standard deviation of
1.4 % instead of 17 % for 1,000 requests at 60 % load), and no change of the build leaves it at 0.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prony_loadgen.record import RequestRecord
from prony_loadgen.summary import Measured, percentile, value
from prony_slo.counting import count
from prony_slo.promise import Check
from prony_slo.selection import select

Values = npt.NDArray[np.float64]

FEWEST_REQUESTS = 30  # of a run; fewer say nothing of a median, let alone of a tail
TAIL = 0.1  # the share of requests that are the tail
SAME_REQUESTS = 0.8  # with fewer in common, two runs are not of one schedule
PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs of one schedule: of the baseline, and of the build on trial."""

    a: Measured
    b: Measured


@dataclass(frozen=True, slots=True)
class Change:
    """By how much `b` of a pair is worse than `a`."""

    value: float | None  # None where they cannot be compared, and `note` says why
    requests: int  # of the smaller run
    note: str = ""
    # The least that the variance of `value` can be, by counting alone: where three pairs happen to
    # agree to the last request, their own variance would be 0.
    floor: float = 0.0


def change(check: Check, pair: Pair) -> Change:
    """The change of the check's figure from `pair.a` to `pair.b`."""
    a, b = (select(run, check.cls, check.stage) for run in (pair.a, pair.b))
    if isinstance(a, str):
        return Change(None, 0, f"baseline: {a}")
    if isinstance(b, str):
        return Change(None, 0, f"build on trial: {b}")
    runs = Pair(a.measured, b.measured)
    requests = min(runs.a.attempts, runs.b.attempts)
    if requests < FEWEST_REQUESTS:
        return Change(None, requests, f"{requests} requests, {FEWEST_REQUESTS} are the least")
    if check.stat == "share":
        return _share_change(check, runs, requests)
    if check.stat == "tail":
        was, now, same = _matched(runs, check.metric)
        if same < SAME_REQUESTS * requests:
            return Change(None, requests, f"only {same:,} of {requests:,} requests are the same")
        return _comparable(matched_shift(was, now), requests, check)
    before, after = _figure(check, runs.a), _figure(check, runs.b)
    if before is None or after is None:
        return Change(None, requests, f"no data: no {check.metric} in one of the runs")
    return _comparable(
        log_ratio(before, after, higher_is_worse=check.stat != "rate"), requests, check
    )


def log_ratio(was: float, now: float, *, higher_is_worse: bool = True) -> float | None:
    """log(now / was), turned so that positive is worse; None where it is not finite."""
    if not (0 < was < math.inf and 0 < now < math.inf):
        return None
    return math.log(now / was) if higher_is_worse else math.log(was / now)


def matched_shift(a: Values, b: Values, slowest: float = TAIL) -> float | None:
    """The median log ratio over the `slowest` share of the requests; `a[i]` and `b[i]` are one.

    Slowest by the geometric mean of both, which is symmetric: without a change no side is favoured.
    Infinity is a failure; one that failed in both runs says nothing.
    """
    known = np.isfinite(a) | np.isfinite(b)
    log_a, log_b = np.log(a[known]), np.log(b[known])
    if not len(log_a):
        return None
    kept = np.argsort(log_a + log_b, kind="stable")[-max(1, round(slowest * len(log_a))) :]
    shift = float(np.median(log_b[kept] - log_a[kept]))
    return shift if math.isfinite(shift) else None


def run_value(check: Check, run: Measured) -> float | None:
    """The figure of one run alone, for a stored baseline: its log, or the share of bad requests.

    The tail without a partner is the mean log latency from p90 to p99.
    """
    part = select(run, check.cls, check.stage)
    if isinstance(part, str) or part.measured.attempts == 0:
        return None
    if check.stat == "share":
        counted = count(check.conditions, part.measured)
        return None if counted.unknown and counted.bad < counted.n else counted.share
    if check.stat == "tail":
        return tail_level(_latencies(part.measured, check.metric))
    figure = _figure(check, part.measured)
    return math.log(figure) if figure is not None and 0 < figure < math.inf else None


def tail_level(values: Values) -> float | None:
    """The mean log latency from the 90th to the 99th percentile; None where it is not finite."""
    ordered = np.sort(values)[math.ceil(0.9 * len(values)) - 1 : math.ceil(0.99 * len(values))]
    if not len(ordered) or not np.isfinite(ordered[-1]):
        return None
    return float(np.log(ordered).mean())


def _share_change(check: Check, runs: Pair, requests: int) -> Change:
    was, now = (count(check.conditions, run) for run in (runs.a, runs.b))
    for counted in (was, now):
        if counted.n == 0 or (counted.unknown and counted.bad < counted.n):
            return Change(None, requests, f"no data: no {' or '.join(counted.unknown) or 'result'}")
    # As if one request more had been bad, so that none of 1,000 does not claim to be never.
    typical = (was.bad + now.bad + 1) / (was.n + now.n + 2)
    floor = typical * (1 - typical) * (1 / was.n + 1 / now.n)
    return Change(now.bad / now.n - was.bad / was.n, requests, floor=floor)


def _comparable(shift: float | None, requests: int, check: Check) -> Change:
    if shift is None:
        return Change(None, requests, f"{check.id} has no end: so many requests failed")
    return Change(shift, requests)


def _figure(check: Check, run: Measured) -> float | None:
    if check.metric == "output_tokens_per_s":
        return run.tokens() / run.seconds if run.seconds > 0 else None
    if check.metric == "requests_per_s":
        return len(run.finished()) / run.seconds if run.seconds > 0 else None
    values = _latencies(run, check.metric)
    if check.stat == "mean":
        answered = values[np.isfinite(values)]
        return float(answered.mean()) if len(answered) else None
    return percentile(values.tolist(), PERCENTILES[check.stat])


def _latencies(run: Measured, metric: str) -> Values:
    """Of every attempt that has one; failures and dropped arrivals are infinite."""
    known = [v for record in run.records if (v := value(record, metric)) is not None]
    return np.array(known + [math.inf] * run.dropped)


def _matched(runs: Pair, metric: str) -> tuple[Values, Values, int]:
    """The latencies of the requests of both runs, in one order, and how many are the same."""
    ours = {record.id: record for record in runs.b.records}
    a, b = [], []
    same = 0
    for record in runs.a.records:
        other = ours.get(record.id)
        if other is None or _asked(record) != _asked(other):
            continue
        same += 1
        was, now = value(record, metric), value(other, metric)
        if was is not None and now is not None and was > 0 and now > 0:
            a.append(was)
            b.append(now)
    return np.array(a), np.array(b), same


def _asked(record: RequestRecord) -> tuple[object, ...]:
    return record.cls, record.asked_input_tokens, record.asked_output_tokens
