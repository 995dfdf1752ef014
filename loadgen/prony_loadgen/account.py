"""What became of the schedule: records and due times in, the schedule account out.

offered = on time + late + dropped, over the requests that were due inside the window.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from prony_loadgen.record import FOLLOWS, RequestRecord

LATE = 0.010  # seconds after its time from which a request was sent late


class Sending(NamedTuple):
    """When one request was due and when it was sent, on the run's clock."""

    intended: float
    sent: float | None  # None: it was tried, but its connection failed
    # A later turn of a conversation: due when the one before was answered, in no schedule.
    follows: bool = False

    @classmethod
    def of(cls, record: RequestRecord) -> "Sending":
        # As in the records file, so that both agree on what lies in the window.
        return cls(round(record.intended, 7), record.sent, FOLLOWS in record.id)


def account(
    sendings: Sequence[Sending],
    window: tuple[float, float],
    *,
    schedule: Sequence[float] | None,
    planned: int | None,
) -> dict[str, Any]:
    """The schedule account of run.json. `schedule` is None in closed loop: nothing can be dropped.

    A request that was tried without a connection is not late: its lateness is the target's.
    """
    start, end = window
    seconds = end - start
    inside = [sending for sending in sendings if start <= sending.intended < end]
    due = len(inside)
    if schedule is not None:
        due = sum(start <= at < end for at in schedule) + sum(each.follows for each in inside)
    lags = sorted(each.sent - each.intended for each in inside if each.sent is not None)
    late = sum(lag > LATE for lag in lags)
    sent = sum((each.intended if each.sent is None else each.sent) < end + LATE for each in inside)
    return {
        "planned": planned,
        "offered": due,
        "on_time": len(inside) - late,
        "late": late,
        "dropped": due - len(inside),
        "send_lag_p50": nearest_rank(lags, 50),
        "send_lag_p99": nearest_rank(lags, 99),
        "asked_rate": due / seconds if schedule is not None and seconds > 0 else None,
        "offered_rate": sent / seconds if seconds > 0 else None,
    }


def nearest_rank(ordered: Sequence[float], percent: int) -> float | None:
    """The nearest-rank percentile of sorted values; None of none."""
    if not ordered:
        return None
    return ordered[-(-len(ordered) * percent // 100) - 1]
