"""Boards against the real thing: boards and a Prometheus that scrapes go in, findings come out.

Every query of every panel is run as Grafana would run it. A query that fails, finds nothing, or
finds only NaN is a finding, unless its panel says that it needs something which is not there.
"""

import math
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prony_dashboards.findings import Finding, need_of, panels_of, targets_of
from prony_dashboards.prometheus import Prometheus

RANGE: Final = 60  # seconds that a query looks back over
STEP: Final = 1
NOTHING: Final = "it finds nothing"
# What Grafana puts in for its own variables: a rate's window is four scrapes, or it sees nothing.
BUILT_IN: Final = {"__rate_interval": "4s", "__interval": "1s", "__range": f"{RANGE}s"}


@dataclass(frozen=True, slots=True)
class Checked:
    """What a live check of boards saw."""

    boards: int
    panels: int
    queries: int
    empty: tuple[Finding, ...]  # declared: their panels say what they need, and it is not there
    wrong: tuple[Finding, ...]


def check_live(
    boards: Mapping[str, dict[str, Any]],
    server: Prometheus,
    missing: Collection[str],
    patience: float = 15.0,
) -> Checked:
    """What is wrong with boards whose data Prometheus scrapes now, while requests are under way.

    It waits up to `patience` seconds until every query has found something. `missing` are the needs
    (findings.LOAD, ...) that cannot be met here: panels that say they have them may be empty.
    """
    deadline = time.monotonic() + patience
    waiting = dict(boards)
    found: dict[str, list[Finding]] = {}
    while True:
        for name, board in waiting.items():
            found[name] = query_all(board, server)
        waiting = {name: waiting[name] for name in waiting
                   if any(not _excused(boards[name], f, missing) for f in found[name])}  # fmt: skip
        if not waiting or time.monotonic() > deadline:
            break
        time.sleep(STEP)
    every = [(boards[name], finding) for name, findings in found.items() for finding in findings]
    return Checked(
        boards=len(boards),
        panels=sum(len(list(panels_of(board))) for board in boards.values()),
        queries=sum(len(list(targets_of(board))) for board in boards.values()),
        empty=tuple(f for board, f in every if _excused(board, f, missing)),
        wrong=tuple(f for board, f in every if not _excused(board, f, missing)),
    )


def _excused(board: dict[str, Any], finding: Finding, missing: Collection[str]) -> bool:
    """Whether the panel is empty for want of what it says that it needs."""
    if finding.problem != NOTHING:
        return False
    needs = {need_of(panel) for panel in panels_of(board) if panel["title"] == finding.panel}
    return bool(needs & set(missing))


def query_all(board: dict[str, Any], server: Prometheus) -> list[Finding]:
    """Runs every query of the board once; returns those that found nothing to draw."""
    values, findings = resolve(board, server)
    title = board["title"]
    for panel, target in targets_of(board):
        expr = fill_in(target["expr"], values)
        if left := re.search(r"\$\{?\w+", expr):
            problem: str | None = f"{left[0]} is not resolved"
        else:
            problem = _problem(server, expr, instant=target["instant"])
        if problem is not None:
            findings.append(Finding(panel["title"], expr, problem, title))
    return findings


def resolve(board: dict[str, Any], server: Prometheus) -> tuple[dict[str, str], list[Finding]]:
    """The value of each variable with everything chosen, and the variables that have none."""
    values = dict(BUILT_IN)
    findings = []
    title = board["title"]
    for variable in board["templating"]["list"]:
        name, definition = variable["name"], variable.get("definition", "")
        where = f"variable {name}"
        if variable["type"] == "datasource":
            continue
        if variable["type"] == "custom":
            values[name] = variable["current"]["value"]
            continue
        match = re.fullmatch(r"label_values\((.+), *(\w+)\)", definition)
        if match is None:
            findings.append(Finding(where, definition, "not a label_values() query", title))
            continue
        found = server.label_values(fill_in(match[1], values), match[2])
        if not found:
            findings.append(Finding(where, definition, "it has no value", title))
        # As Grafana: the board's own word for All, else every value as one pattern.
        # Its backslashes are doubled because it lands inside a PromQL string.
        every = "|".join(re.escape(value).replace("\\", "\\\\") for value in found)
        values[name] = variable.get("allValue") or f"({every})"
    return values, findings


def fill_in(expr: str, values: Mapping[str, str]) -> str:
    """The expression with each $name and ${name} replaced, as far as it is known."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: values.get(m[1] or m[2], m[0]), expr)


def _problem(server: Prometheus, expr: str, *, instant: bool) -> str | None:
    found = server.query_instant(expr) if instant else server.query_range(expr, RANGE, STEP)
    if isinstance(found, str):
        return f"Prometheus refuses it: {found}"
    if not found:
        return NOTHING
    samples = (float(value) for series in found for _, value in _samples(series))
    return "it finds only NaN" if all(math.isnan(sample) for sample in samples) else None


def _samples(series: dict[str, Any]) -> list[Any]:
    return list(series["values"]) if "values" in series else [series["value"]]
