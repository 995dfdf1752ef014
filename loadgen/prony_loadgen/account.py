"""What became of the schedule: records and due times in, the schedule account out.

offered = on time + late + dropped, over the requests that were due inside the window.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from prony_loadgen.record import RequestRecord

LATE = 0.010  # seconds after its time from which a request was sent late


class Sending(NamedTuple):
    """When one request was due and when it was sent, on the run's clock."""

    intended: float
    sent: float | None  # None: it was tried, but its connection failed

    @classmethod
    def of(cls, record: RequestRecord) -> "Sending":
        # As in the records file, so that both agree on what lies in the window.
        return cls(round(record.intended, 7), record.sent)


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
    due = len(inside) if schedule is None else sum(start <= at < end for at in schedule)
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


class Flow:
    """The last requests, for the progress line: exact figures come from the records later."""

    RECENT = 1000

    def __init__(self) -> None:
        self.finished = 0
        self.failed = 0
        self._ttfts: deque[float] = deque(maxlen=self.RECENT)
        self._ended: deque[float] = deque(maxlen=self.RECENT)

    def add(self, record: RequestRecord) -> None:
        self.finished += 1
        self.failed += not record.ok
        self._ended.append(record.ended)
        if record.ok and record.ttft is not None:
            self._ttfts.append(record.ttft)

    def line(self, now: float, in_flight: int) -> str:
        """ "12 s  8.1/s  5 in flight  TTFT p50 31 ms p99 88 ms  0 errors"; `now` in seconds."""
        ttfts = sorted(self._ttfts)
        p50, p99 = nearest_rank(ttfts, 50), nearest_rank(ttfts, 99)
        ttft = "–" if p50 is None or p99 is None else f"p50 {_ms(p50)}  p99 {_ms(p99)}"
        recent = [ended for ended in self._ended if ended > now - 5]
        rate = len(recent) / min(5, max(now, 1e-3))
        errors = "error" if self.failed == 1 else "errors"
        return (
            f"{max(now, 0):5.0f} s  {rate:6.1f}/s  {in_flight:4d} in flight  "
            f"TTFT {ttft}  {self.failed} {errors}"
        )


def _ms(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"
