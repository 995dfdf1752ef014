"""SLO files: names, paths or inline objectives come in, one checked SloFile goes out.

Every error names the file, the line, the value and what was expected, before any load is sent.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from prony_loadgen import shipped
from prony_loadgen.strict_yaml import FileError, load, nearest
from prony_slo.inline import looks_inline, parse_inline
from prony_slo.promise import (
    Band,
    Baseline,
    Check,
    Floor,
    Measure,
    Objective,
    Query,
    Regression,
    Share,
    SloFile,
)
from prony_slo.regression_model import CheckModel, RegressionModel
from prony_slo.slo_model import DefaultsModel, MeasureModel, ObjectiveModel, SloModel


def load_slo(args: Sequence[str]) -> SloFile:
    """The SLO of one run: each argument is a shipped name, a path, or an inline objective.

    An id that two files share is told apart by theirs: "chat/errors". Raises FileError where an
    argument is wrong or given twice.
    """
    files = [parse_inline(arg) if looks_inline(arg) else _named(arg) for arg in args]
    if not files:
        raise FileError(["--slo: no objectives were named"])
    objectives = tuple(objective for file in _told_apart(files) for objective in file.objectives)
    _refuse_shared_ids(objectives)
    _refuse_contradictions(objectives)
    return SloFile(
        name=" + ".join(file.name for file in files),
        objectives=objectives,
        measure=_together([file.measure for file in files]),
        regression=_only(files),
        export={key: value for file in files for key, value in file.export.items()},
        metadata={key: value for file in files for key, value in file.metadata.items()},
    )


def read_slo(path: Path) -> SloFile:
    """The SLO of one file. Raises FileError with every problem in it."""
    spec = load(path, SloModel)
    text = path.read_text(encoding="utf-8-sig")
    objectives = tuple(
        _objective(entry, spec.defaults, f"{path.name}:{line}")
        for entry, line in zip(spec.objectives, _lines(text, "objectives"), strict=True)
    )
    _refuse_shared_ids(objectives)
    _refuse_unknown_references(objectives)
    _refuse_contradictions(objectives)
    export = spec.export.model_dump(exclude_none=True) if spec.export else {}
    return SloFile(
        name=path.stem,
        objectives=objectives,
        measure=_measure(spec.measure),
        regression=_regression(spec.regression, objectives, path.name, text),
        export=export,
        metadata=spec.metadata,
    )


def _told_apart(files: Sequence[SloFile]) -> list[SloFile]:
    times = Counter(objective.id for file in files for objective in file.objectives)
    return [
        replace(file, objectives=tuple(_named_by(file, o, times) for o in file.objectives))
        for file in files
    ]


def _named_by(file: SloFile, objective: Objective, times: Mapping[str, int]) -> Objective:
    def name(own: str) -> str:
        return f"{file.name}/{own}" if times[own] > 1 else own

    promise = objective.promise
    if isinstance(promise, Floor) and promise.of is not None:
        promise = replace(promise, of=name(promise.of))
    return replace(objective, id=name(objective.id), promise=promise)


def _objective(entry: ObjectiveModel, defaults: DefaultsModel, place: str) -> Objective:
    def own_or_default(name: str) -> Any:
        own = getattr(entry, name)
        return getattr(defaults, name) if own is None else own

    return Objective(
        id=entry.id,
        promise=entry.promise(),
        place=place,
        severity=own_or_default("severity"),
        confidence=own_or_default("confidence"),
        on_inconclusive=own_or_default("on_inconclusive"),
        min_requests=own_or_default("min_requests"),
        scenario=entry.scenario,
        cls=entry.cls,
        stage=entry.stage,
    )


def _measure(spec: MeasureModel) -> Measure:
    warmup = spec.warmup
    return Measure(
        warmup=warmup.min if warmup else None,
        unfinished_is_bad="unfinished" in spec.violations,
        stop_on_breach=spec.stop_on_breach,
        require_steady=spec.require_steady,
        find_warmup=warmup is not None and warmup.mode == "auto",
        warmup_max=warmup.max if warmup else Measure().warmup_max,
        prometheus=spec.prometheus,
    )


def _together(measures: Sequence[Measure]) -> Measure:
    """What several files ask for, where each adds to the others."""
    return Measure(
        warmup=max((m.warmup for m in measures if m.warmup is not None), default=None),
        unfinished_is_bad=any(m.unfinished_is_bad for m in measures),
        stop_on_breach=any(m.stop_on_breach for m in measures),
        require_steady=any(m.require_steady for m in measures),
        find_warmup=any(m.find_warmup for m in measures),
        warmup_max=max(m.warmup_max for m in measures),
        prometheus=next((m.prometheus for m in measures if m.prometheus is not None), None),
    )


def _only(files: Sequence[SloFile]) -> Regression | None:
    """The one regression section of several files. Raises FileError where there are two."""
    found = [file.regression for file in files if file.regression is not None]
    if len(found) > 1:
        places = " and ".join(regression.place for regression in found)
        raise FileError([f"{places}: only one of several files may have a regression section"])
    return found[0] if found else None


def _regression(
    spec: RegressionModel | None, objectives: Sequence[Objective], name: str, text: str
) -> Regression | None:
    if spec is None:
        return None
    lines = _lines(text, "regression", "checks")
    checks = tuple(
        _check(entry, objectives, f"{name}:{line}")
        for entry, line in zip(spec.checks, lines, strict=True)
    )
    twice = [check for i, check in enumerate(checks) if check.id in {c.id for c in checks[:i]}]
    if twice:
        raise FileError(
            [f"{check.place}: the check '{check.id}' was given before" for check in twice]
        )
    return Regression(
        checks=checks,
        baseline=Baseline(spec.baseline.ref, spec.baseline.mode, spec.baseline.missing),
        min_pairs=spec.pairs.min,
        max_pairs=spec.pairs.max,
        alpha=spec.alpha,
        place=f"{name}:{_line_of(text, 'regression')}",
    )


def _check(entry: CheckModel, objectives: Sequence[Objective], place: str) -> Check:
    good = {o.id: o.promise for o in objectives if isinstance(o.promise, Share)}
    conditions = good[entry.of].conditions if entry.of in good else ()
    if entry.of is not None and not conditions:
        known = [each for each, promise in good.items() if promise.conditions]
        raise FileError(
            [
                f"{place}: regression: `of` must be the id of an objective with `good:`"
                f"{nearest(entry.of, known)} (there are: {', '.join(known) or 'none'}); "
                f"got '{entry.of}'"
            ]
        )
    assert entry.stat is not None
    named = [entry.of or entry.metric, entry.stat]
    where = [f"@{part}" for part in (entry.stage, entry.cls) if part is not None]
    return Check(
        id=" ".join([*named, *where]),
        metric=entry.metric,
        stat=entry.stat,
        tolerance=entry.tolerance,
        place=place,
        severity=entry.severity,
        conditions=conditions,
        cls=entry.cls,
        stage=entry.stage,
    )


def _named(arg: str) -> SloFile:
    path = shipped.find("objectives", arg)
    if path is None and shipped.is_folder(arg):
        raise FileError([f"--slo {arg}: a folder; expected an SLO file"])
    if path is None and ("/" in arg or arg.endswith((".yaml", ".yml"))):
        raise FileError([f"--slo {arg}: no such file"])
    if path is None:
        known, named = shipped.names("objectives"), arg or "''"
        raise FileError(
            [
                f"--slo {named}: no file, and no SLO that ships with Prony{nearest(arg, known)} "
                f"(shipped: {', '.join(known)}; inline: 'ttft p99 < 500ms')"
            ]
        )
    return read_slo(path)


def _lines(text: str, *keys: str) -> list[int]:
    """The line of each entry of the list at `keys` in the text of a valid SLO file."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for name, value in pairs if name.value == key), None)
    return [item.start_mark.line + 1 for item in node.value] if node is not None else []


def _line_of(text: str, key: str) -> int:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((name.start_mark.line + 1 for name, _ in pairs if name.value == key), 1)


def _refuse_shared_ids(objectives: Sequence[Objective]) -> None:
    places: dict[str, str] = {}
    errors = []
    for objective in objectives:
        if objective.id in places:
            errors.append(
                f"{objective.place}: the id '{objective.id}' is taken by {places[objective.id]}"
            )
        places.setdefault(objective.id, objective.place)
    if errors:
        raise FileError(errors)


def _refuse_unknown_references(objectives: Sequence[Objective]) -> None:
    shares = [o.id for o in objectives if isinstance(o.promise, Share) and o.promise.conditions]
    errors = [
        f"{o.place}: {o.id}: `of` must be the id of an objective with `good:`"
        f"{nearest(o.promise.of, shares)} (there are: {', '.join(shares) or 'none'}); "
        f"got '{o.promise.of}'"
        for o in objectives
        if isinstance(o.promise, Floor) and o.promise.of is not None and o.promise.of not in shares
    ]
    if errors:
        raise FileError(errors)


def _refuse_contradictions(objectives: Sequence[Objective]) -> None:
    """Two limits of one gauge or query that no value can keep both."""
    errors = []
    known: dict[tuple[str | None, ...], list[Objective]] = {}
    for objective in objectives:
        promise = objective.promise
        if not isinstance(promise, Band | Query):
            continue
        what = promise.metric if isinstance(promise, Band) else promise.promql
        others = known.setdefault((what, objective.stage, objective.scenario), [])
        for other in others:
            if _exclude(promise, other.promise):
                errors.append(
                    f"{objective.place}: {objective.id} and {other.id} ({other.place}) contradict "
                    f"each other: no value of {what} keeps both"
                )
        others.append(objective)
    if errors:
        raise FileError(errors)


def _exclude(a: Band | Query, b: Any) -> bool:
    least = [bound for bound in (a.at_least, b.at_least) if bound is not None]
    most = [bound for bound in (a.at_most, b.at_most) if bound is not None]
    return bool(least and most) and max(least) > min(most)
