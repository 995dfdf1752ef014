"""Before and during a run: a plan goes in, out comes what it can decide, and when to stop early."""

from dataclasses import dataclass

from prony_loadgen.record import RequestRecord
from prony_loadgen.words import share
from prony_slo import intervals
from prony_slo.counting import is_bad
from prony_slo.promise import Band, Condition, Floor, Objective, Share, SloFile


def can_decide(slo: SloFile, planned_measured: int | None) -> list[str]:
    """One line an objective: whether a run of so many measured requests can meet it.

    `planned_measured` is None where the plan cannot know it (a closed loop that ends by time).
    """
    return [
        f"{objective.id}: {_outlook(objective, planned_measured)}" for objective in slo.objectives
    ]


def undecidable(slo: SloFile, planned_measured: int) -> list[Objective]:
    """The objectives that so many requests cannot show to be met, even if all were good."""
    return [o for o in slo.objectives if planned_measured < fewest(o)]


def fewest(objective: Objective) -> int:
    """The fewest measured requests that can meet the objective."""
    if isinstance(objective.promise, Band):
        return 0
    if isinstance(objective.promise, Floor):
        return objective.min_requests
    by_bound = intervals.needed(objective.promise.limit, objective.confidence)
    return max(by_bound, objective.min_requests)


@dataclass(frozen=True, slots=True)
class _Certainty:
    """When a breach can no longer be averted."""

    id: str
    conditions: tuple[Condition, ...]
    limit: float
    bad: int  # this many bad requests, and all others good, is still a breach


class BreachWatch:
    """Says when a breach is certain: even if every request still to come were good.

    Only for an SLO that says stop_on_breach, and a plan that knows its number of requests: the
    bound at the end is the one that counts, so looking at it after every request costs no
    confidence. It never stops a run to declare a pass.
    """

    def __init__(
        self, slo: SloFile, planned_measured: int | None, window: tuple[float, float]
    ) -> None:
        self.reason: str | None = None
        self._planned = planned_measured or 0
        self._window = window
        self._certain = _certainties(slo, self._planned) if slo.measure.stop_on_breach else []
        self._bad = [0] * len(self._certain)

    def add(self, record: RequestRecord) -> bool:
        """Counts one finished request; True from the one on that makes a breach certain."""
        start, end = self._window
        if self.reason is None and start <= record.intended < end:
            for i, certain in enumerate(self._certain):
                self._bad[i] += is_bad(record, certain.conditions)
                if self._bad[i] >= certain.bad:
                    self.reason = (
                        f"{certain.id}: {self._bad[i]:,} of {self._planned:,} requests are bad "
                        f"already, so that more than {share(certain.limit)} will be"
                    )
        return self.reason is not None


def _outlook(objective: Objective, planned: int | None) -> str:
    promise = objective.promise
    if isinstance(promise, Band):
        return f"{promise}: judged where it is collected, with no number of requests"
    least = fewest(objective)
    needs = f"needs at least {least:,} measured requests"
    if isinstance(promise, Share):
        needs += f" at {share(objective.confidence)} confidence"
    if planned is None:
        return f"{needs}, the plan does not know how many it will have"
    if planned < least:
        return f"{needs}, the plan has {planned:,}: cannot be decided, unless clearly broken"
    line = f"{needs}, the plan has {planned:,}: can be decided"
    if isinstance(promise, Share):
        bad = intervals.allowed(promise.limit, objective.confidence, planned)
        line += f", with up to {bad:,} bad" if bad else ", if none is bad"
    return line


def _certainties(slo: SloFile, planned: int) -> list[_Certainty]:
    found = []
    for objective in slo.objectives:
        promise = objective.promise
        if isinstance(promise, Share) and objective.severity == "fail" and planned > 0:
            bad = intervals.certain_breach(promise.limit, objective.confidence, planned)
            if bad is not None:
                found.append(_Certainty(objective.id, promise.conditions, promise.limit, bad))
    return found
