"""Whether a gate can fail: an SLO goes in, what the judge made of good and bad runs comes out.

A gate that was never seen to fail is decoration. So each objective gets a run that breaks just it,
the whole SLO one that keeps everything, and the regression checks pairs with and without a change;
the real judge must tell them apart.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prony_slo.gate import judge
from prony_slo.made_runs import pair_for, reader_for, runs_for
from prony_slo.promise import Floor, Objective, Regression, SloFile
from prony_slo.regression import decided, judge_pairs
from prony_slo.verdicts import ObjectiveResult


@dataclass(frozen=True, slots=True)
class Proof:
    """One run of the self-test: what the gate should make of it, and what it made."""

    about: str  # "a run that breaks ttft"
    wanted: str
    got: str
    text: str = ""

    @property
    def holds(self) -> bool:
        return self.wanted == self.got


def prove(slo: SloFile) -> Iterator[Proof]:
    """The runs, judged: one that keeps all, one for each objective, one without data, and pairs."""
    # Made runs are even, and that is not what is proved here.
    slo = replace(slo, measure=replace(slo.measure, require_steady=False))
    kept = judge(slo, runs_for(slo), (), reader=reader_for(slo))
    yield Proof("a run that keeps every objective", "pass", kept.verdict, _why(kept.objectives))
    for objective in slo.objectives:
        yield _broken(slo, objective)
    if any(objective.severity == "fail" for objective in slo.objectives):
        empty = [replace(run, records=()) for run in runs_for(slo)]
        nothing = judge(slo, empty, ())
        wanted = "never a pass"
        got = wanted if nothing.exit_code else "a pass"
        yield Proof("a run without data", wanted, got, _why(nothing.objectives))
    if slo.regression is not None:
        yield from _pairs(slo.regression)


def _broken(slo: SloFile, objective: Objective) -> Proof:
    judged_by = slo
    if objective.severity == "warn":
        # A warning is found and changes nothing, so it is judged without those that would.
        needed = {objective.id}
        if isinstance(objective.promise, Floor) and objective.promise.of:
            needed.add(objective.promise.of)
        judged_by = replace(slo, objectives=tuple(o for o in slo.objectives if o.id in needed))
    judged = judge(
        judged_by, runs_for(slo, objective), (), reader=reader_for(slo, broken=objective)
    )
    result = next(r for r in judged.objectives if r.id == objective.id)
    return Proof(
        f"a run that breaks {objective.id}",
        f"breach, exit {0 if objective.severity == 'warn' else 1}",
        f"{result.verdict}, exit {judged.exit_code}",
        result.text,
    )


def _pairs(regression: Regression) -> Iterator[Proof]:
    much = 1 + 4 * max(check.tolerance for check in regression.checks)
    yield _compared(regression, 1.0, "pass", "pairs of a build with itself")
    if any(check.severity == "fail" for check in regression.checks):
        yield _compared(regression, much, "breach", f"pairs with a build {much:.3g} times as slow")


def _compared(regression: Regression, slower: float, wanted: str, about: str) -> Proof:
    rng = random.Random(1)
    pairs = [pair_for(regression, rng, slower) for _ in range(regression.min_pairs)]
    results = judge_pairs(regression, pairs)
    while not decided(results) and len(pairs) < regression.max_pairs:
        pairs.append(pair_for(regression, rng, slower))
        results = judge_pairs(regression, pairs)
    binding = [r for r in results if r.severity == "fail"] or list(results)
    verdicts = {result.verdict for result in binding}
    got = next(verdict for verdict in ("breach", "inconclusive", "pass") if verdict in verdicts)
    return Proof(about, wanted, got, next(r.text for r in binding if r.verdict == got))


def _why(results: Sequence[ObjectiveResult]) -> str:
    """Of those that did not pass, the first."""
    return next((result.text for result in results if result.verdict != "pass"), "")
