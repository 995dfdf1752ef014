"""An SLO without a run: is it valid, can it be decided, can it fail? Names in, lines out."""

from collections.abc import Iterator

from prony import noise_store
from prony.errors import UsageError
from prony_loadgen.plan import make_plan
from prony_loadgen.prompts import rows_of
from prony_loadgen.scenario import Scenario, load_scenario
from prony_slo.ahead import fewest, undecidable
from prony_slo.fingerprint import workload
from prony_slo.noise import FEWEST_DF
from prony_slo.objective import load_slo
from prony_slo.promise import Marked, SloFile
from prony_slo.regression import amount, smallest_seen
from prony_slo.selftest import prove

P99_REQUESTS = 5_000  # a run, before a ratio of p99s decides anything


def check(name: str) -> int:
    """Says what the SLO promises; 0. Raises FileError with every problem in it."""
    slo = load_slo([name])
    for objective in slo.objectives:
        note = "  (warning only)" if objective.severity == "warn" else ""
        print(f"{objective.id}: {objective.promise}{note}")
    for each in slo.regression.checks if slo.regression else ():
        note = "  (warning only)" if each.severity == "warn" else ""
        print(f"{each.id}: {each.metric} {each.stat}, tolerance {each.tolerance:.3g}{note}")
    checks = len(slo.regression.checks) if slo.regression else 0
    more = f" and {checks} regression check(s)" if checks else ""
    print(f"ok: {len(slo.objectives)} objective(s){more}")
    return 0


def lint(name: str, scenario: str | None) -> int:
    """Says what the SLO asks for that cannot be decided: 0 where there is nothing, else 2.

    By the requests that `scenario` plans, and by the noise profiles that this machine has of it.
    Raises FileError.
    """
    slo = load_slo([name])
    if scenario is None:
        raise UsageError("--lint: name the --scenario that it is meant for, such as chat")
    loaded = load_scenario(scenario)
    warmup = slo.measure.warmup if loaded.warmup is None else loaded.warmup
    requests = make_plan(loaded.model_copy(update={"warmup": warmup or 0.0})).measured
    found = [
        *_undecidable(slo, loaded, requests),
        *_unexpected(slo, loaded),
        *_unsuitable_checks(slo, loaded, requests),
        *_narrow_tolerances(slo, loaded),
    ]
    if requests is None:
        print(f"{scenario}: a closed loop by time does not know how many requests it will have")
    for line in found:
        print(line)
    print(f"{len(found)} finding(s)" if found else "nothing found")
    return 2 if found else 0


def self_test(names: tuple[str, ...]) -> int:
    """Proves on made runs that the SLO can be met, broken and left undecided: 0, else 4."""
    failed = 0
    for proof in prove(load_slo(names)):
        failed += not proof.holds
        word = "ok    " if proof.holds else "FAILED"
        tail = "" if proof.holds else f", wanted {proof.wanted}: {proof.text}"
        print(f"{word}  {proof.about}: {proof.got}{tail}")
    if failed:
        print(f"{failed} run(s) were not judged as they should be: do not trust this gate")
    return 4 if failed else 0


def _undecidable(slo: SloFile, scenario: Scenario, requests: int | None) -> Iterator[str]:
    if requests is None:
        return
    for objective in undecidable(slo, requests):
        yield (
            f"{objective.place}: {objective.id}: needs at least {fewest(objective):,} measured "
            f"requests to be met, {scenario.name} has {requests:,}"
        )


def _unexpected(slo: SloFile, scenario: Scenario) -> Iterator[str]:
    """Shares of wrong answers where nobody says what a right one is."""
    found = [
        objective
        for objective in slo.objectives
        if isinstance(objective.promise, Marked) and objective.promise.metric == "mismatch_share"
    ]
    if not found or scenario.checks is not None or _expects(scenario):
        return
    for objective in found:
        yield (
            f"{objective.place}: {objective.id}: no prompt of {scenario.name} expects an answer; "
            "give rows of its prompts file a reference (`prony references`), contains or pattern, "
            "or name `checks`"
        )


def _expects(scenario: Scenario) -> bool:
    prompts = [kind.prompts for kind in scenario.classes if kind.prompts and kind.prompts.file]
    return any(row.expect is not None for each in prompts for row in rows_of(scenario, each))


def _unsuitable_checks(slo: SloFile, scenario: Scenario, requests: int | None) -> Iterator[str]:
    for check in slo.regression.checks if slo.regression else ():
        if check.severity == "warn":
            continue
        if check.stat == "rate" and scenario.arrivals.open_loop:
            yield (
                f"{check.place}: {check.id}: in open loop a rate is the schedule's until the "
                "server collapses; compare it in a closed loop"
            )
        if check.stat == "tail" and not scenario.arrivals.open_loop:
            yield (
                f"{check.place}: {check.id}: in closed loop the two builds answer different "
                "requests, so none can be compared with itself; compare the tail in open loop"
            )
        if check.stat == "p99" and requests is not None and requests < P99_REQUESTS:
            yield (
                f"{check.place}: {check.id}: a p99 of {requests:,} requests scatters too much to "
                f"decide ({P99_REQUESTS:,} are needed); use stat: tail, or severity: warn"
            )


def _narrow_tolerances(slo: SloFile, scenario: Scenario) -> Iterator[str]:
    """Tolerances below what the noise profiles of this workload can see."""
    regression = slo.regression
    if regression is None:
        return
    for profile in noise_store.of_workload(workload(scenario.resolved())):
        for check in regression.checks:
            noise = profile.checks.get(check.id)
            if noise is None or noise.df < FEWEST_DF:
                continue
            seen = smallest_seen(regression, check, noise)
            if seen > check.tolerance:
                yield (
                    f"{check.place}: {check.id}: tolerance {amount(check, check.tolerance)}, but "
                    f"{regression.max_pairs} pairs see no less than {amount(check, seen)} here "
                    f"({profile.fingerprint.get('model', 'unknown model')})"
                )
