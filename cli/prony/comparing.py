"""Whether runs are worse than a stored baseline: runs and a file in, the checks' results out.

Where there is nothing to compare with, the results say so with the command that mends it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prony_loadgen.summary import Measured
from prony_slo.baseline_store import BaselineError, BaselineFile, history, mismatch, read
from prony_slo.promise import Regression, SloFile
from prony_slo.regression import (
    RegressionResult,
    RegressionVerdict,
    amount,
    no_baseline,
    regression_verdict,
    undecided,
)
from prony_slo.stored import judge_stored

FOLDER = Path("baselines")


@dataclass(frozen=True, slots=True)
class Compared:
    """The regression checks, judged."""

    results: tuple[RegressionResult, ...]
    mode: str  # "stored" or "interleaved"
    against: str  # what the runs were compared with, for people
    missing: bool = False  # there is no baseline at all: `missing:` of the SLO file counts
    remedy: str | None = None

    def to_json(self, regression: Regression, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The key `regression` of verdict.json; `rows` are its checks."""
        verdict = regression_verdict(self.results)
        return {
            "verdict": verdict,
            "mode": self.mode,
            "against": self.against,
            "missing": self.missing,
            "text": f"{verdict}, against {self.against}",
            "remedy": self.remedy,
            "alpha": regression.alpha,
            "pairs": {"min": regression.min_pairs, "max": regression.max_pairs},
            "checks": [dict(row) for row in rows],
        }


def baseline_path(slo: SloFile) -> Path:
    """Where the baseline of an SLO lies if nobody says otherwise: baselines/main.json."""
    ref = slo.regression.baseline.ref if slo.regression else None
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", ref or slo.name).strip("-.") or "baseline"
    return FOLDER / f"{name}.json"


def compare_with_stored(
    slo: SloFile,
    names: Sequence[str],
    runs: Sequence[tuple[Mapping[str, Any], Measured]],
    path: Path | None,
) -> Compared | None:
    """The results of the SLO's checks for these runs (run.json and measured part).

    None where the SLO has no checks. A baseline that is missing or of another setting makes them
    inconclusive, and one that cannot be read invalid, with the reason; only one that is missing is
    what `missing:` is about.
    """
    regression = slo.regression
    if regression is None or not regression.checks:
        return None
    options = " ".join(f"--slo {_quoted(name)}" for name in names)
    if path is None and regression.baseline.mode == "interleaved":
        command = f"prony ab {_scenario(runs)} --a BASE --b NEW {options}"
        return Compared(
            no_baseline(regression, command), "interleaved", "nothing yet", True, f"`{command}`"
        )
    where = path or baseline_path(slo)
    command = f"prony baseline accept {where_runs(runs)} {options}"
    if path is not None:
        command += f" --baseline {_quoted(str(path))}"
    try:
        baseline = read(where)
    except BaselineError as error:
        if error.missing:
            return Compared(
                no_baseline(regression, command), "stored", "nothing yet", True, f"`{command}`"
            )
        return _unusable(regression, str(where), str(error), "invalid")
    for facts, _ in runs:
        reason = mismatch(baseline, facts)
        if reason is not None:
            return _unusable(regression, str(where), reason)
    parts = [part for _, part in runs]
    results = judge_stored(regression, history(baseline, regression, baseline.runs), parts)
    results += _since_anchor(regression, baseline, parts)
    return Compared(results, "stored", f"{where} ({len(baseline.runs)} runs)")


def promise_of(regression: Regression, result: RegressionResult) -> str:
    """What a check promises, in words: "ttft p50 at most +5.0 % worse than main"."""
    check = next((c for c in regression.checks if result.id.startswith(c.id)), None)
    allowed = "" if check is None else f" by more than {amount(check, check.tolerance)}"
    ref = regression.baseline.ref or "the baseline"
    return f"{result.metric} {result.stat} not worse than {ref}{allowed}"


def where_runs(runs: Sequence[tuple[Mapping[str, Any], Measured]]) -> str:
    return " ".join(["RUN"] * max(1, len(runs)))


def _since_anchor(
    regression: Regression, baseline: BaselineFile, parts: Sequence[Measured]
) -> tuple[RegressionResult, ...]:
    """The same checks against the anchor, so that many small steps do not add up unseen."""
    anchor = baseline.anchor
    if anchor is None or anchor.runs == baseline.runs:
        return ()
    named = replace(regression, baseline=replace(regression.baseline, ref=anchor.label))
    found = judge_stored(named, history(baseline, regression, anchor.runs), parts)
    return tuple(replace(each, id=f"{each.id} since {anchor.label}") for each in found)


def _unusable(
    regression: Regression,
    against: str,
    reason: str,
    verdict: RegressionVerdict = "inconclusive",
) -> Compared:
    results = tuple(replace(undecided(c, reason), verdict=verdict) for c in regression.checks)
    return Compared(results, "stored", against, remedy=reason)


def _scenario(runs: Sequence[tuple[Mapping[str, Any], Measured]]) -> str:
    name = (runs[0][0].get("scenario") or {}).get("name") if runs else None
    return str(name or "SCENARIO")


def _quoted(name: str) -> str:
    return f"'{name}'" if re.search(r"[^\w./-]", name) else name
