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
from prony_slo.promise import Floor, Measure, Objective, Share, SloFile
from prony_slo.slo_model import DefaultsModel, ObjectiveModel, SloModel


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
    return SloFile(
        name=" + ".join(file.name for file in files),
        objectives=objectives,
        measure=Measure(
            warmup=max(
                (f.measure.warmup for f in files if f.measure.warmup is not None), default=None
            ),
            unfinished_is_bad=any(file.measure.unfinished_is_bad for file in files),
            stop_on_breach=any(file.measure.stop_on_breach for file in files),
        ),
    )


def read_slo(path: Path) -> SloFile:
    """The SLO of one file. Raises FileError with every problem in it."""
    spec = load(path, SloModel)
    lines = _lines(path.read_text(encoding="utf-8-sig"))
    objectives = tuple(
        _objective(entry, spec.defaults, f"{path.name}:{line}")
        for entry, line in zip(spec.objectives, lines, strict=True)
    )
    _refuse_shared_ids(objectives)
    _refuse_unknown_references(objectives)
    return SloFile(
        name=path.stem,
        objectives=objectives,
        measure=Measure(
            warmup=spec.measure.warmup,
            unfinished_is_bad="unfinished" in spec.measure.violations,
            stop_on_breach=spec.measure.stop_on_breach,
        ),
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
    )


def _named(arg: str) -> SloFile:
    path = shipped.find("objectives", arg)
    if path is None and ("/" in arg or arg.endswith((".yaml", ".yml"))):
        raise FileError([f"--slo {arg}: no such file"])
    if path is None:
        known = shipped.names("objectives")
        raise FileError(
            [
                f"--slo {arg}: no file, and no SLO that ships with Prony{nearest(arg, known)} "
                f"(shipped: {', '.join(known)}; inline: 'ttft p99 < 500ms')"
            ]
        )
    return read_slo(path)


def _lines(text: str) -> list[int]:
    """The line of each objective in the text of a valid SLO file."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in root.value if root is not None else []:
        if key.value == "objectives":
            return [item.start_mark.line + 1 for item in value.value]
    return []


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
