"""A stored baseline: runs that people accepted go in, a file of their figures comes out, and back.

Nothing here is done by a gate: a baseline that moved with every pass would follow a build that
becomes 4 % slower each week. Beside the rolling set stands an anchor, the set as it was at a
release, against just that creeping.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from prony_loadgen.summary import Measured
from prony_slo.fingerprint import differences, fingerprint
from prony_slo.promise import Check, Regression
from prony_slo.stored import FEWEST_RUNS, FEWEST_SESSIONS, StoredRun, stored_run

SCHEMA = 1
# Runs that began within this many seconds of another share its session: its machine and its day.
SESSION_GAP = 3600.0
MOST_SESSIONS = 16  # older ones are let go, but for the anchor's


class BaselineError(ValueError):
    """Why a baseline cannot be used; `missing` where there is none at all."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class KeptRun:
    """What a baseline keeps of one accepted run."""

    run_id: str
    started_at: str  # ISO, UTC
    requests: int
    values: Mapping[str, float | None]  # id of the check -> its figure (stored.run_value)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The set as it was when it was named."""

    label: str
    runs: tuple[KeptRun, ...]


@dataclass(frozen=True, slots=True)
class BaselineFile:
    """The content of a baseline file."""

    fingerprint: Mapping[str, str]
    checks: Mapping[str, str]  # id of the check -> what its figure is
    runs: tuple[KeptRun, ...] = ()
    anchor: Anchor | None = None

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "kind": "prony-baseline", **asdict(self)}


def read(path: Path) -> BaselineFile:
    """The baseline at `path`. Raises BaselineError with the reason it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BaselineError(f"no baseline at {path}", missing=True) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read: {error}") from None
    if not text.strip():
        raise BaselineError(f"{path}: the file is empty")
    try:
        facts = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise BaselineError(f"{path}: not whole JSON ({error}): half-written?") from None
    if not isinstance(facts, dict) or facts.get("kind") != "prony-baseline":
        raise BaselineError(f"{path}: not a baseline of `prony baseline accept`")
    if facts.get("schema") != SCHEMA:
        raise BaselineError(
            f"{path}: schema {facts.get('schema')!r}, this Prony reads {SCHEMA}: accept it anew"
        )
    try:
        anchor = facts["anchor"]
        return BaselineFile(
            {str(k): str(v) for k, v in facts["fingerprint"].items()},
            {str(k): str(v) for k, v in facts["checks"].items()},
            tuple(_kept(run) for run in facts["runs"]),
            anchor and Anchor(str(anchor["label"]), tuple(_kept(run) for run in anchor["runs"])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BaselineError(f"{path}: damaged: {error!r}") from None


def write(path: Path, baseline: BaselineFile) -> None:
    """Replaces the file in one step, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(baseline.to_json(), indent=1, allow_nan=False) + "\n", "utf-8")
    beside.replace(path)


def accept(
    baseline: BaselineFile | None,
    regression: Regression,
    runs: Sequence[tuple[Mapping[str, Any], Measured]],
    *,
    anchor: str | None = None,
) -> BaselineFile:
    """The baseline with these runs (run.json and measured part) in it.

    With `anchor` the whole set becomes the anchor of that name too. Raises BaselineError for a run
    that cannot be trusted, is in it already, or is of another setting than the others.
    """
    kept = list(baseline.runs if baseline else ())
    like = dict(baseline.fingerprint) if baseline and baseline.runs else fingerprint(runs[0][0])
    for facts, part in runs:
        _check_acceptable(facts, part, like, {run.run_id for run in kept})
        kept.append(_of(regression, facts, part))
    kept.sort(key=lambda run: run.started_at)
    recent = {run.run_id for session in sessions(kept)[-MOST_SESSIONS:] for run in session}
    kept = [run for run in kept if run.run_id in recent]
    moved = BaselineFile(
        like,
        {**(baseline.checks if baseline else {}), **definitions(regression)},
        tuple(kept),
        baseline.anchor if baseline else None,
    )
    return replace(moved, anchor=Anchor(anchor, moved.runs)) if anchor else moved


def history(
    baseline: BaselineFile, regression: Regression, runs: Sequence[KeptRun]
) -> list[StoredRun]:
    """The runs as judge_stored takes them.

    A figure whose check meant something else when it was stored (another condition of "goodput")
    is left out, as if it were missing.
    """
    alike = {
        check_id
        for check_id, meaning in definitions(regression).items()
        if baseline.checks.get(check_id) == meaning
    }
    return [
        StoredRun(
            session=f"{number}",
            values={key: value for key, value in run.values.items() if key in alike},
            requests=run.requests,
        )
        for number, session in enumerate(sessions(runs), start=1)
        for run in session
    ]


def mismatch(baseline: BaselineFile, facts: Mapping[str, Any]) -> str | None:
    """Why a run cannot be compared with the baseline, or None."""
    found = differences(baseline.fingerprint, fingerprint(facts))
    if not found:
        return None
    return f"the baseline is of another setting ({'; '.join(found)})"


def sessions(runs: Sequence[KeptRun]) -> list[list[KeptRun]]:
    """The runs by session, the oldest first."""
    grouped: list[list[KeptRun]] = []
    for run in sorted(runs, key=lambda run: run.started_at):
        if grouped and _seconds(run) - _seconds(grouped[-1][-1]) <= SESSION_GAP:
            grouped[-1].append(run)
        else:
            grouped.append([run])
    return grouped


def short_of(runs: Sequence[KeptRun]) -> str | None:
    """What is missing before a baseline can decide anything, or None."""
    count = len(sessions(runs))
    if len(runs) >= FEWEST_RUNS and count >= FEWEST_SESSIONS:
        return None
    return (
        f"{len(runs)} runs of {count} sessions; it decides from {FEWEST_RUNS} runs of "
        f"{FEWEST_SESSIONS} sessions on (a session is {SESSION_GAP / 3600:g} h apart from others)"
    )


def definitions(regression: Regression) -> dict[str, str]:
    """What the figure of each check is, in words that change when its meaning does."""
    return {check.id: _meaning(check) for check in regression.checks}


def _meaning(check: Check) -> str:
    parts = [check.metric, check.stat, *(str(condition) for condition in check.conditions)]
    parts += [f"class {check.cls}"] if check.cls else []
    parts += [f"stage {check.stage}"] if check.stage else []
    return " | ".join(parts)


def _of(regression: Regression, facts: Mapping[str, Any], part: Measured) -> KeptRun:
    stored = stored_run(regression, part, "")
    return KeptRun(
        str(facts["run_id"]), str(facts["started_at"]), stored.requests, dict(stored.values)
    )


def _check_acceptable(
    facts: Mapping[str, Any], part: Measured, like: Mapping[str, str], known: set[str]
) -> None:
    name = str(facts.get("run_id"))
    if name in known:
        raise BaselineError(f"run {name} is in the baseline already")
    if facts.get("verdict") == "invalid" or part.cut_short:
        raise BaselineError(f"run {name} cannot be trusted or was cut short; accept another one")
    if part.attempts == 0:
        raise BaselineError(f"run {name} measured no request")
    other = differences(like, fingerprint(facts))
    if other:
        raise BaselineError(
            f"run {name} is of another setting ({'; '.join(other)}); name another baseline"
        )


def _kept(run: Mapping[str, Any]) -> KeptRun:
    values = {
        str(key): None if value is None else float(value) for key, value in run["values"].items()
    }
    kept = KeptRun(str(run["run_id"]), str(run["started_at"]), int(run["requests"]), values)
    _seconds(kept)  # raises ValueError where it is no time
    return kept


def _seconds(run: KeptRun) -> float:
    return datetime.fromisoformat(run.started_at.replace("Z", "+00:00")).timestamp()


def _refuse(name: str) -> float:
    raise ValueError(f"{name} has no place in a baseline")
