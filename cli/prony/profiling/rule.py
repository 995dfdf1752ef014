"""When a run's objective is broken right now: finished requests go in, the moment comes out.

Not a verdict: the gate's is given at the end, with its uncertainty. This says when to look inside
the server, so it must be quick and must not be set off by one slow request.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from prony_loadgen.record import RequestRecord
from prony_loadgen.words import share
from prony_slo.counting import is_bad
from prony_slo.promise import Objective, Share, SloFile

LONG: Final = 5  # seconds, one after the other, that the rule must be broken in
TOLD: Final = 3  # of these, in how many requests must have ended at all


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that is broken now."""

    reason: str
    since: float  # on the run's clock: the end of the request that made it so


@dataclass(slots=True)
class _Second:
    ended: int = 0
    bad: int = 0
    broke: float | None = None  # when the first bad request ended


@dataclass(slots=True)
class _Watched:
    objective: Objective
    promise: Share
    now: _Second = field(default_factory=_Second)
    past: deque[_Second] = field(default_factory=lambda: deque(maxlen=LONG))


class Rule:
    """A share of bad requests over an objective's limit, in each of the last seconds.

    So "ttft p99 < 500ms" is broken where over 1 % of the requests that ended in each of five
    seconds missed it. A second in which nothing ended says nothing; of three something must have.
    """

    def __init__(self, slo: SloFile, window: tuple[float, float]) -> None:
        """`window` is what is measured, on the run's clock: the warm-up may be slow."""
        self._window = window
        self._watched = [
            _Watched(objective, objective.promise)
            for objective in slo.objectives
            if isinstance(objective.promise, Share) and objective.stage is None
        ]

    @property
    def objectives(self) -> list[str]:
        """The ids of those that it watches; none: it can never be broken."""
        return [watched.objective.id for watched in self._watched]

    def add(self, record: RequestRecord) -> None:
        """Counts a request that has ended, in the second under way."""
        if not self._window[0] <= record.intended < self._window[1]:
            return
        for watched in self._watched:
            if watched.objective.cls not in (None, record.cls):
                continue
            bad = is_bad(record, watched.promise.conditions)
            if record.outcome == "incomplete" and not bad:
                continue
            second = watched.now
            second.ended += 1
            if bad:
                second.bad += 1
                if second.broke is None:
                    second.broke = record.ended

    def tick(self) -> Broken | None:
        """Ends the second under way; what is broken now, if anything is."""
        found = None
        for watched in self._watched:
            watched.past.append(watched.now)
            watched.now = _Second()
            found = found or _broken(watched)
        return found

    def forget(self) -> None:
        """Begins anew, such as after a capture, which slows requests itself."""
        for watched in self._watched:
            watched.past.clear()
            watched.now = _Second()


def _broken(watched: _Watched) -> Broken | None:
    told = [second for second in watched.past if second.ended]
    limit = watched.promise.limit
    if len(watched.past) < LONG or len(told) < TOLD:
        return None
    if any(second.bad <= limit * second.ended for second in told):
        return None
    last = told[-1]
    bad, ended = sum(s.bad for s in told), sum(s.ended for s in told)
    assert last.broke is not None
    return Broken(
        f"{watched.objective.id}: {share(bad / ended)} of requests were bad for {LONG} s, "
        f"{share(limit)} may be",
        last.broke,
    )
