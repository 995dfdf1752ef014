"""Which part of a run an objective is about: a measured run, a class and a stage in, a part out."""

from dataclasses import dataclass, replace

from prony_loadgen.strict_yaml import nearest
from prony_loadgen.summary import Measured


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of a run that an objective is about."""

    measured: Measured
    # Arrivals that were never sent, and of which nobody knows whether they belong here. They can
    # forbid a pass, and never show a breach.
    unplaced: int = 0


def select(measured: Measured, cls: str | None, stage: str | None) -> Part | str:
    """The part of `cls` and `stage` (None: all of them), or why there is none."""
    part = measured
    if stage is not None:
        found = next((s for s in measured.stages if s.name == stage), None)
        if found is None:
            return _unknown("stage", stage, [s.name for s in measured.stages])
        start = max(found.start, measured.window[0])
        end = max(start, min(found.end, measured.window[1]))
        inside = tuple(r for r in part.records if start <= r.intended < end)
        others = tuple(r for r in part.records if not start <= r.intended < end)
        part = replace(part, records=inside, outside=part.outside + others, window=(start, end))
    if cls is not None:
        known = sorted({record.cls for record in measured.records})
        if cls not in known:
            return _unknown("class", cls, known)
        mine = tuple(record for record in part.records if record.cls == cls)
        outside = tuple(record for record in part.outside if record.cls == cls)
        part = replace(part, records=mine, outside=outside)
    if part is measured:
        return Part(measured)
    return Part(replace(part, dropped=0), unplaced=measured.dropped)


def _unknown(what: str, name: str, known: list[str]) -> str:
    if not known:
        return f"no data: this run has no {what} named {name}: it has none at all"
    return (
        f"no data: this run has no {what} named {name}{nearest(name, known)} "
        f"(it has: {', '.join(known)})"
    )
