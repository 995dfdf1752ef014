"""Which requests are bad: measured requests and conditions go in, counts of good and bad come out.

Failures of every kind and arrivals that were never sent are bad. A finished answer without output
is in neither count, nor is one whose latency cannot be known.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prony_loadgen.quality import FLAGS
from prony_loadgen.record import RequestRecord
from prony_loadgen.summary import Measured, failed, is_check, is_empty, value
from prony_slo.effective import Bad
from prony_slo.promise import Condition, Quality


@dataclass(frozen=True, slots=True)
class Counted:
    """Good and bad requests by some conditions."""

    n: int  # judged: good and bad ones
    bad: int
    failed: int  # of the bad ones: answered wrongly or not at all, and dropped arrivals
    left_out: dict[str, int]  # why not judged -> how many
    unknown: tuple[str, ...]  # metrics that not one answer has a value of
    values: tuple[float, ...]  # of a single condition: what its judged requests took, inf if lost
    # Of each run: its judged requests in order of time, True for bad; dropped arrivals have none.
    runs: tuple[Bad, ...] = ()

    @property
    def good(self) -> int:
        return self.n - self.bad

    @property
    def share(self) -> float | None:
        return self.bad / self.n if self.n else None


def count(
    conditions: Sequence[Condition], measured: Measured, unfinished_is_bad: bool = False
) -> Counted:
    """The judged requests of the window; without conditions a request is good if answered."""
    n = bad = measured.dropped
    lost = measured.dropped
    series: list[tuple[float, bool]] = []
    left_out: Counter[str] = Counter()
    known: set[str] = set()
    values = [math.inf] * measured.dropped if len(conditions) == 1 else []
    for record in measured.records:
        if not failed(record):
            known |= {c.metric for c in conditions if value(record, c.metric) is not None}
        judged = _judge(record, conditions, unfinished_is_bad)
        if isinstance(judged, str):
            left_out[judged] += 1
            continue
        n += 1
        bad += not judged
        series.append((record.intended, not judged))
        lost += failed(record)
        if len(conditions) == 1:
            seconds = value(record, conditions[0].metric)
            values.append(math.inf if seconds is None else seconds)
    return Counted(
        n=n,
        bad=bad,
        failed=lost,
        left_out=dict(left_out),
        unknown=tuple(c.metric for c in conditions if c.metric not in known),
        values=tuple(values),
        runs=(_in_order(series),),
    )


def good_finished(conditions: Sequence[Condition], measured: Measured) -> int:
    """Good requests of those that finished: the numerator of goodput a second."""
    return sum(
        not is_empty(record) and _judge(record, conditions, False) is True
        for record in measured.finished()
    )


def count_marked(metric: Quality, measured: Measured) -> Counted:
    """The answers that carry the flag of a loss of quality, of those that were looked at."""
    flag, looked_at = FLAGS[metric]
    left_out: Counter[str] = Counter()
    series: list[tuple[float, bool]] = []
    # What was asked before and after the load to check the answers counts, wherever it lies.
    checks = () if looked_at is None else [r for r in measured.outside if is_check(r)]
    for record in (*measured.records, *checks):
        if not record.ok or is_empty(record):
            left_out["no answer"] += 1
        elif looked_at is not None and looked_at.isdisjoint(record.flags):
            left_out["without a reference"] += 1
        else:
            series.append((record.intended, flag in record.flags))
    return Counted(
        n=len(series),
        bad=sum(bad for _, bad in series),
        failed=0,
        left_out=dict(left_out),
        unknown=(),
        values=(),
        runs=(_in_order(series),),
    )


def together(parts: Sequence[Counted]) -> Counted:
    """The counts of several runs as one."""
    left_out: Counter[str] = Counter()
    for part in parts:
        left_out.update(part.left_out)
    return Counted(
        n=sum(part.n for part in parts),
        bad=sum(part.bad for part in parts),
        failed=sum(part.failed for part in parts),
        left_out=dict(left_out),
        unknown=tuple(dict.fromkeys(metric for part in parts for metric in part.unknown)),
        values=tuple(value for part in parts for value in part.values),
        runs=tuple(run for part in parts for run in part.runs),
    )


def is_bad(record: RequestRecord, conditions: Sequence[Condition]) -> bool:
    """Whether the record alone, whatever else the run brings, counts as bad."""
    return _judge(record, conditions, unfinished_is_bad=False) is False


def _in_order(series: list[tuple[float, bool]]) -> Bad:
    series.sort(key=lambda one: one[0])
    return np.array([bad for _, bad in series], dtype=bool)


def _judge(
    record: RequestRecord, conditions: Sequence[Condition], unfinished_is_bad: bool
) -> bool | str:
    """True for good, False for bad, or why the request is left out."""
    if failed(record):
        return False
    if record.outcome == "incomplete":
        return False if unfinished_is_bad else _judge_incomplete(record, conditions)
    if not conditions:
        return True
    if is_empty(record):
        return "empty"
    # What is undefined does not count against a request: one token has a TTFT, but no TPOT.
    known = [(c, s) for c in conditions if (s := value(record, c.metric)) is not None]
    if not known:
        return f"no {conditions[0].metric}" if len(conditions) == 1 else "no latency"
    return all(condition.holds(seconds) for condition, seconds in known)


def _judge_incomplete(record: RequestRecord, conditions: Sequence[Condition]) -> bool | str:
    known = [value(record, condition.metric) for condition in conditions]
    for condition, seconds in zip(conditions, known, strict=True):
        if seconds is not None and not condition.holds(seconds):
            return False
        if seconds is None and _at_least(record, condition.metric) > condition.limit:
            return False
    # Leaving out those that are already too old would lose exactly the slow ones.
    return "still running" if not known or None in known else True


def _at_least(record: RequestRecord, metric: str) -> float:
    """What an unknown latency of a request that was cut had already reached."""
    if metric in ("ttft", "ttfo", "e2e"):
        return record.ended - record.intended
    if metric == "ttft_from_send" and record.sent is not None:
        return record.ended - record.sent
    if metric == "max_gap" and record.arrivals:
        return max(record.max_gap or 0.0, record.ended - record.arrivals[-1].at)
    return 0.0
