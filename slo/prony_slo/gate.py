"""The gate: an SLO, measured runs and their doubts go in; a verdict and an exit code come out.

0 pass, 1 breach, 3 inconclusive, 4 invalid. Never 0 on doubt: without data nothing passes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prony_loadgen.doubts import Doubt
from prony_loadgen.steady import not_steady
from prony_loadgen.summary import Measured, is_empty, json_number
from prony_slo.ahead import BreachWatch, can_decide
from prony_slo.counting import count, good_finished
from prony_slo.promise import Marked, Objective, Share, SloFile
from prony_slo.promql import Reader
from prony_slo.regression import RegressionResult, regression_code
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
    regression: tuple[RegressionResult, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The keys `verdict`, `exit_code`, `objectives` and `regression` of run.json."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "objectives": [result.to_json() for result in self.objectives],
            "regression": [result.to_json() for result in self.regression],
        }


def judge(
    slo: SloFile,
    measured: Measured | Sequence[Measured],
    doubts: Iterable[Doubt],
    *,
    regression: Sequence[RegressionResult] = (),
    baseline_missing: bool = False,
    reader: Reader | None = None,
) -> Judgement:
    """The verdict on a run, or on several together.

    A doubt of grade `invalid` makes every verdict invalid, whatever the numbers say. A run that
    was interrupted can still show a breach, and nothing else. `regression` are the results of the
    SLO's own checks against a baseline; `reader` answers its `promql` objectives.
    """
    runs = (measured,) if isinstance(measured, Measured) else tuple(measured)
    results = tuple(
        judge_objective(o, runs, slo.objectives, slo.measure.unfinished_is_bad, reader)
        for o in slo.objectives
    )
    if slo.measure.require_steady:
        results = _only_where_steady(slo.objectives, results, runs)
    regression = tuple(regression)
    reasons = [doubt.id for doubt in doubts if doubt.grade == "invalid"]
    if reasons:
        invalid = tuple(_invalid(result, reasons) for result in results)
        return Judgement("invalid", 4, invalid, regression)
    codes = {_code(o, result) for o, result in zip(slo.objectives, results, strict=True)}
    if not any(run.attempts for run in runs):
        codes.add(3)
    if any(run.interrupted for run in runs):
        codes = {1} if 1 in codes and _breached(slo.objectives, results) else {4}
    if slo.regression is not None and (regression or baseline_missing):
        codes.add(regression_code(slo.regression, regression, baseline_missing=baseline_missing))
    code = next((code for code in PRECEDENCE if code in codes), 0)
    return Judgement(VERDICTS[code], code, results, regression)


def goodput(slo: SloFile, measured: Measured) -> dict[str, float | str | None]:
    """Requests that met every per-request condition of the SLO: of all attempts, and per second.

    For `summary["rates"]`. Failures, dropped arrivals and empty answers are not good; those that
    the end of the run cut before they could be judged are left out.
    """
    counted = count(slo.goodput, measured, slo.measure.unfinished_is_bad)
    empty = sum(is_empty(record) for record in measured.records)
    # Without conditions an answer without output is among the good: it was answered.
    attempts, good = (
        (counted.n + empty, counted.good) if slo.goodput else (counted.n, counted.good - empty)
    )
    return {
        "goodput_share": json_number(good / attempts) if attempts else None,
        "goodput_per_s": (
            json_number(good_finished(slo.goodput, measured) / measured.seconds)
            if measured.seconds > 0
            else None
        ),
    }


def _code(objective: Objective, result: ObjectiveResult) -> int:
    if objective.severity == "warn" or result.verdict == "pass":
        return 0
    if result.verdict == "breach":
        return 1
    return {"inconclusive": 3, "fail": 1, "warn": 0, "pass": 0}[objective.on_inconclusive]


def _only_where_steady(
    objectives: Sequence[Objective],
    results: Sequence[ObjectiveResult],
    runs: Sequence[Measured],
) -> tuple[ObjectiveResult, ...]:
    """A latency of a run that drifts depends on when one stops looking: it is not met."""
    reason = next((told for run in runs if (told := not_steady(run)) is not None), None)
    if reason is None:
        return tuple(results)
    return tuple(
        replace(result, verdict="inconclusive", text=f"not steady: {reason} | {result.text}")
        if isinstance(o.promise, Share) and o.promise.conditions and result.verdict == "pass"
        else result
        for o, result in zip(objectives, results, strict=True)
    )


def _breached(objectives: Sequence[Objective], results: Sequence[ObjectiveResult]) -> bool:
    """Whether a count of requests, which an early end only makes smaller, shows a breach."""
    return any(
        o.severity == "fail"
        and isinstance(o.promise, Share | Marked)
        and result.verdict == "breach"
        for o, result in zip(objectives, results, strict=True)
    )


def _invalid(result: ObjectiveResult, reasons: Sequence[str]) -> ObjectiveResult:
    text = f"not judged ({', '.join(reasons)}); it would be: {result.verdict}, {result.text}"
    return replace(result, verdict="invalid", text=text)
