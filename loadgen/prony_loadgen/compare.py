"""Before and after: run folders' facts and records go in, one table of figures comes out.

Each figure of each run stands beside that of the first one, with their ratio and how sure it is.
The intervals rest on what is inside the runs, so they leave out what differs from one session or
machine to the next; `prony ab` is the test that does not.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from prony_loadgen import spread, words
from prony_loadgen.quality import losses
from prony_loadgen.record import RequestRecord
from prony_loadgen.spread import Interval
from prony_loadgen.summary import (
    Measured,
    failed,
    is_check,
    json_number,
    measured,
    percentile,
    value,
)

LATENCIES: Final = ("ttft", "tpot", "e2e")
METHOD: Final = (
    "95 % intervals: percentiles by order statistics, means and rates over 20 parts of the run, "
    "with the effective number of requests. They leave out what differs between sessions and "
    "machines: `prony ab` tests whether a change is real."
)
QUALITY: Final = {
    "truncated_share": "answers cut short",
    "repetition_share": "answers that repeat themselves",
    "mismatch_share": "answers other than expected",
}
MEMORY: Final = ("peak_memory_bytes", "gpu_memory_bytes", "process_resident_memory_bytes")
# What names a run, or moves with every run, is no difference in configuration.
NOT_CONFIGURATION: Final = frozenset(
    {"run_id", "started_at", "ended_at", "origin_unix", "schema", "window", "planned_window",
     "summary", "doubts", "verdict", "exit_code", "objectives", "schedule", "client",
     "interrupted", "stopped_early", "gauges", "command", "workload", "prompt_count", "checks",
     "regression", "host.load_average", "slo", "scenario.seed", "records"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """One run to compare."""

    name: str  # what people call it: its folder
    facts: Mapping[str, Any]  # run.json
    part: Measured


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one run; None where the run does not have it."""

    value: float | None
    change: float | None = None  # the ratio to the first run, or for shares the difference
    interval: Interval | None = None  # of the change, at 95 %


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table."""

    name: str
    unit: str  # "ms", "/s", "share" or "bytes"
    cells: tuple[Cell, ...]  # the first run's has no change
    better: int  # 1 where more is better, -1 where less is

    def settled(self, index: int) -> int:
        """1 where this run is surely better than the first, -1 where worse, 0 where unsure."""
        found = self.cells[index].interval
        same = 0.0 if self.unit == "share" else 1.0
        if found is None or found[0] <= same <= found[1]:
            return 0
        return self.better if found[0] > same else -self.better


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs beside each other; the first is what the others are compared with."""

    runs: tuple[Run, ...]
    lines: tuple[Line, ...]
    differs: tuple[tuple[str, tuple[str, ...]], ...]  # what of the configuration, and its values
    notes: tuple[str, ...]


def run_of(name: str, facts: Mapping[str, Any], records: Sequence[RequestRecord]) -> Run:
    """The run that a folder's facts and records make, in order of time."""
    return Run(name, facts, measured(facts, sorted(records, key=lambda r: r.intended)))


def compare(runs: Sequence[Run]) -> Comparison:
    """The table of two or more runs."""
    lines = [*_latency_lines(runs), *_rate_lines(runs), _error_line(runs)]
    lines += [*_quality_lines(runs), *_memory_line(runs)]
    return Comparison(tuple(runs), tuple(lines), tuple(_differences(runs)), (METHOD, *_notes(runs)))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison for scripts; infinity is "inf" and unknown is null."""
    return {
        "runs": [run.name for run in comparison.runs],
        "lines": [
            {
                "name": line.name,
                "unit": {"ms": "s", "/s": "1/s", "share": "share", "bytes": "bytes"}[line.unit],
                "cells": [
                    {
                        "value": json_number(cell.value),
                        "change": json_number(cell.change),
                        "interval": None
                        if cell.interval is None
                        else [json_number(edge) for edge in cell.interval],
                        "settled": line.settled(index),
                    }
                    for index, cell in enumerate(line.cells)
                ],
            }
            for line in comparison.lines
        ],
        "differs": {key: list(found) for key, found in comparison.differs},
        "notes": list(comparison.notes),
    }


def _latency_lines(runs: Sequence[Run]) -> Iterator[Line]:
    for metric in LATENCIES:
        name = words.METRICS[metric][0]
        ok = [_values(run, metric, successes=True) for run in runs]
        lost = any(failed(r) for run in runs for r in run.part.records)
        means = [(math.fsum(v) / len(v) if v else None, spread.mean_interval(v)) for v in ok]
        yield _line(f"{name} mean" + (" (of successes)" if lost else ""), "ms", means, -1)
        everything = [_values(run, metric, successes=False) for run in runs]
        for label, q in (("p50", 0.5), ("p99", 0.99)):
            found = [(percentile(v, q), spread.quantile_interval(v, q)) for v in everything]
            yield _line(f"{name} {label}", "ms", found, -1)


def _values(run: Run, metric: str, *, successes: bool) -> list[float]:
    """In order of time; with failures as infinity unless only successes are asked for."""
    found = [
        v
        for r in run.part.records
        if (r.ok or not successes) and (v := value(r, metric)) is not None
    ]
    return found if successes else found + [math.inf] * run.part.dropped


def _rate_lines(runs: Sequence[Run]) -> Iterator[Line]:
    yield _line(
        "output tokens/s", "/s", [_over_slices(run.part, Measured.tokens) for run in runs], 1
    )
    yield _line("requests/s", "/s", [_over_slices(run.part, _finished) for run in runs], 1)
    if all(words.limits(dict(run.facts)) for run in runs):
        yield _line("goodput requests/s", "/s", [_goodput(run) for run in runs], 1)


def _over_slices(
    part: Measured, count: Callable[[Measured], float]
) -> tuple[float | None, Interval | None]:
    """A rate over the window, and its interval from equal slices of it."""
    start, end = part.window
    if part.seconds <= 0:
        return None, None
    width = (end - start) / (2 * spread.BATCHES)
    edges = [start + i * width for i in range(2 * spread.BATCHES + 1)]
    slices = [replace(part, window=edge) for edge in itertools.pairwise(edges)]
    # What little a profiler left of a slice would say little of it.
    rates = [count(each) / each.seconds for each in slices if each.seconds > width / 2]
    return count(part) / part.seconds, spread.mean_interval(rates)


def _finished(part: Measured) -> float:
    return len(part.finished())


def _goodput(run: Run) -> tuple[float | None, Interval | None]:
    found = words.limits(dict(run.facts))
    limits = {metric: min(at for at, _ in each) for metric, each in found.items()}
    return _over_slices(run.part, partial(_good, limits))


def _good(limits: Mapping[str, float], part: Measured) -> float:
    """Finished requests that kept every latency limit of the run's objectives."""
    return sum(
        bool(r.arrivals)
        and all((v := value(r, m)) is None or v <= limit for m, limit in limits.items())
        for r in part.finished()
    )


def _error_line(runs: Sequence[Run]) -> Line:
    found: list[tuple[float | None, Interval | None]] = []
    for run in runs:
        order = [failed(r) for r in run.part.records if r.outcome != "incomplete"]
        order += [True] * run.part.dropped
        bad, n = sum(order), len(order)
        found.append((bad / n if n else None, spread.share_interval(bad, n, order)))
    return _line("errors", "share", found, -1)


def _quality_lines(runs: Sequence[Run]) -> Iterator[Line]:
    """Each loss of quality that some run can show."""
    for figure, name in QUALITY.items():
        found: list[tuple[float | None, Interval | None]] = []
        for run in runs:
            checks = [r for r in run.part.outside if is_check(r)]
            lost = losses(figure, run.part.records, checks)
            bad, n = sum(lost), len(lost)
            known = n and figure in run.part.quality
            found.append((bad / n, spread.share_interval(bad, n, lost)) if known else (None, None))
        if any(share is not None for share, _ in found):
            yield _line(name, "share", found, -1)


def _memory_line(runs: Sequence[Run]) -> Iterator[Line]:
    for name in MEMORY:
        found = [(run.part.gauges or {}).get(name) for run in runs]
        if any(each is not None for each in found):
            # One number a run: there is nothing to take an interval from.
            yield _line("peak memory", "bytes", [(each, None) for each in found], -1)
            return


def _line(
    name: str, unit: str, found: Sequence[tuple[float | None, Interval | None]], better: int
) -> Line:
    (base, base_interval), *others = found
    cells = [Cell(base)]
    for figure, interval in others:
        change: float | None = None
        if unit == "share":
            between = spread.difference_interval(base_interval, interval)
            if base is not None and figure is not None:
                change = figure - base
        else:
            between = spread.ratio_interval(base_interval, interval)
            if base and figure is not None and math.isfinite(base) and math.isfinite(figure):
                change = figure / base
        cells.append(Cell(figure, change, between))
    return Line(name, unit, tuple(cells), better)


def _differences(runs: Sequence[Run]) -> Iterator[tuple[str, tuple[str, ...]]]:
    flat = [dict(_flat(run.facts)) for run in runs]
    for key in dict.fromkeys(key for each in flat for key in each):
        found = tuple(each.get(key, words.UNKNOWN) for each in flat)
        if len(set(found)) > 1:
            yield key, found


def _flat(facts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, found in facts.items():
        name = f"{before}{key}"
        if name in NOT_CONFIGURATION:
            continue
        if isinstance(found, Mapping):
            yield from _flat(found, f"{name}.")
        else:
            yield name, str(found)


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    loops = {run.part.loop for run in runs}
    if len(loops) > 1:
        yield (
            "One run is open loop and another closed: their latencies do not mean the same, since "
            "a closed loop asks a slow server less often."
        )
    for run in runs:
        if run.facts.get("verdict") == "invalid":
            yield f"{run.name} is INVALID: its figures are partly those of its own client."
        elif run.part.cut_short:
            yield f"{run.name} was cut short."
    if len({run.facts.get("seed") for run in runs}) > 1:
        yield "The seeds differ, so part of each difference is the workload's."
