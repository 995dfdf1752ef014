"""Before and during a run: a plan goes in, out comes what it can decide, and when to stop early."""

from prony_loadgen.record import RequestRecord
from prony_loadgen.words import share
from prony_slo import intervals
from prony_slo.early import Breach
from prony_slo.promise import Band, Floor, Marked, Objective, Query, Share, SloFile


def can_decide(slo: SloFile, planned_measured: int | None) -> list[str]:
    """One line an objective: whether a run of so many measured requests can meet it.

    `planned_measured` is None where the plan cannot know it (a closed loop that ends by time).
    """
    return [
        f"{objective.id}: {_outlook(objective, planned_measured)}" for objective in slo.objectives
    ]


def undecidable(slo: SloFile, planned_measured: int) -> list[Objective]:
    """The objectives that so many requests cannot show to be met, even if all were good.

    Of a class or a stage the plan does not say how many there will be; it has at most all of them.
    """
    return [o for o in slo.objectives if planned_measured < fewest(o)]


def fewest(objective: Objective) -> int:
    """The fewest measured requests that can meet the objective."""
    if isinstance(objective.promise, Band | Query):
        return 0
    if isinstance(objective.promise, Floor):
        return objective.min_requests
    by_bound = intervals.needed(objective.promise.limit, objective.confidence)
    return max(by_bound, objective.min_requests)


class BreachWatch:
    """Says when a breach is certain, so that the rest of the run can be spared.

    Only for an SLO that says stop_on_breach. How it is certain, and why looking early costs
    little confidence, is in early.py. It never stops a run to declare a pass.
    """

    def __init__(
        self, slo: SloFile, planned_measured: int | None, window: tuple[float, float]
    ) -> None:
        self.reason: str | None = None
        self._window = window
        self._watched = _watched(slo, planned_measured) if slo.measure.stop_on_breach else []

    def add(self, record: RequestRecord) -> bool:
        """Counts one finished request; True from the one on that makes a breach certain."""
        start, end = self._window
        if self.reason is None and start <= record.intended < end:
            for objective, limit, breach in self._watched:
                if objective.cls in (None, record.cls) and breach.add(record):
                    self.reason = (
                        f"{objective.id}: {breach.how}, so that more than {share(limit)} will be"
                    )
                    break
        return self.reason is not None


def _outlook(objective: Objective, planned: int | None) -> str:
    promise = objective.promise
    if isinstance(promise, Band | Query):
        return f"{promise}: judged where it is collected, with no number of requests"
    least = fewest(objective)
    needs = f"needs at least {least:,} measured requests"
    if isinstance(promise, Share | Marked):
        needs += f" at {share(objective.confidence)} confidence"
    # Of a class or a stage, or of prompts that expect an answer, the plan does not say how many
    # requests there will be.
    expected = isinstance(promise, Marked) and promise.metric == "mismatch_share"
    if expected:
        needs += " whose prompts expect an answer"
        if planned is not None and planned >= least:
            return f"{needs}; the plan has {planned:,}, whatever they expect"
    if objective.cls is not None or objective.stage is not None:
        planned = None if planned is None or planned >= least else planned
    if planned is None:
        return f"{needs}, the plan does not know how many it will have"
    if planned < least:
        return f"{needs}, the plan has {planned:,}: cannot be decided, unless clearly broken"
    line = f"{needs}, the plan has {planned:,}: can be decided"
    if isinstance(promise, Share | Marked):
        bad = intervals.allowed(promise.limit, objective.confidence, planned)
        line += f", with up to {bad:,} bad" if bad else ", if none is bad"
    return line


def _watched(slo: SloFile, planned: int | None) -> list[tuple[Objective, float, Breach]]:
    """The objectives that can end a run.

    One of a stage cannot: the rest of the run has other stages. Of one class nobody knows how many
    requests are planned.
    """
    found = []
    for objective in slo.objectives:
        promise = objective.promise
        if (
            isinstance(promise, Share)
            and objective.severity == "fail"
            and objective.stage is None
            and planned != 0
        ):
            of_all = planned if objective.cls is None else None
            breach = Breach(promise.conditions, promise.limit, objective.confidence, of_all)
            found.append((objective, promise.limit, breach))
    return found
