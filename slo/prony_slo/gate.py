"""The gate: an SLO, a measured run and its doubts go in; a verdict and an exit code come out.

0 pass, 1 breach, 3 inconclusive, 4 invalid. Never 0 on doubt: without data nothing passes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prony_loadgen.doubts import Doubt
from prony_loadgen.summary import Measured, is_empty, json_number
from prony_slo.ahead import BreachWatch, can_decide
from prony_slo.counting import count
from prony_slo.promise import Objective, Share, SloFile
from prony_slo.verdicts import ObjectiveResult, Verdict, judge_objective

__all__ = ["BreachWatch", "Judgement", "can_decide", "goodput", "judge"]

VERDICTS: dict[int, Verdict] = {0: "pass", 1: "breach", 3: "inconclusive", 4: "invalid"}
PRECEDENCE = (4, 1, 3, 0)  # the first of these that anything asks for; 2 comes before any load


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gate says of a run."""

    verdict: Verdict
    exit_code: int
    objectives: tuple[ObjectiveResult, ...]

    def to_json(self) -> dict[str, Any]:
        """The keys `verdict`, `exit_code` and `objectives` of run.json."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "objectives": [result.to_json() for result in self.objectives],
        }


def judge(slo: SloFile, measured: Measured, doubts: Iterable[Doubt]) -> Judgement:
    """The verdict on a run.

    A doubt of grade `invalid` makes every verdict invalid, whatever the numbers say. A run that
    was interrupted can still show a breach, and nothing else.
    """
    results = tuple(
        judge_objective(objective, measured, slo.objectives, slo.measure.unfinished_is_bad)
        for objective in slo.objectives
    )
    reasons = [doubt.id for doubt in doubts if doubt.grade == "invalid"]
    if reasons:
        return Judgement("invalid", 4, tuple(_invalid(result, reasons) for result in results))
    codes = {_code(o, result) for o, result in zip(slo.objectives, results, strict=True)}
    if measured.attempts == 0:
        codes.add(3)
    if measured.interrupted:
        codes = {1} if 1 in codes and _breached(slo.objectives, results) else {4}
    code = next(code for code in PRECEDENCE if code in codes)
    return Judgement(VERDICTS[code], code, results)


def goodput(slo: SloFile, measured: Measured) -> dict[str, float | str | None]:
    """Requests that met every per-request condition of the SLO: of all attempts, and per second.

    For `summary["rates"]`. Failures, dropped arrivals and empty answers are not good; those that
    the end of the run cut before they could be judged are left out.
    """
    counted = count(slo.goodput, measured, slo.measure.unfinished_is_bad)
    empty = sum(is_empty(record) for record in measured.records) if slo.goodput else 0
    attempts = counted.n + empty
    return {
        "goodput_share": json_number(counted.good / attempts) if attempts else None,
        "goodput_per_s": (
            json_number(counted.good / measured.seconds) if measured.seconds > 0 else None
        ),
    }


def _code(objective: Objective, result: ObjectiveResult) -> int:
    if objective.severity == "warn" or result.verdict == "pass":
        return 0
    if result.verdict == "breach":
        return 1
    return {"inconclusive": 3, "fail": 1, "warn": 0, "pass": 0}[objective.on_inconclusive]


def _breached(objectives: Sequence[Objective], results: Sequence[ObjectiveResult]) -> bool:
    """Whether a count of requests, which an early end only makes smaller, shows a breach."""
    return any(
        o.severity == "fail" and isinstance(o.promise, Share) and result.verdict == "breach"
        for o, result in zip(objectives, results, strict=True)
    )


def _invalid(result: ObjectiveResult, reasons: Sequence[str]) -> ObjectiveResult:
    text = f"not judged ({', '.join(reasons)}); it would be: {result.verdict}, {result.text}"
    return replace(result, verdict="invalid", text=text)
