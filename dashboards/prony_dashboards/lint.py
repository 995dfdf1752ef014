"""What is wrong with a dashboard as it stands: a board goes in, findings come out, nothing runs."""

import re
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any, Final

import promql_parser

from prony_dashboards.check import BUILT_IN, fill_in
from prony_dashboards.findings import Finding, panels_of, targets_of
from prony_dashboards.panels import COLUMNS
from prony_loadgen import telemetry as load
from prony_server import telemetry as server

HISTOGRAM_PARTS: Final = ("_bucket", "_count", "_sum")


def lint(board: dict[str, Any]) -> list[Finding]:
    """Everything that is wrong with the board's structure, its expressions and their names."""
    return [*_structure(board), *_expressions(board)]


def exported_names() -> set[str]:
    """Every metric name that the server's and the load generator's telemetry know."""
    return _constants(server) | _constants(load)


def _constants(module: ModuleType) -> set[str]:
    # Names are the module's upper-case strings that could be one: "prony" and "run_id" could too,
    # but no query selects those.
    found = (value for name, value in vars(module).items() if name.isupper())
    return {value for value in found if isinstance(value, str) and value.count("_") >= 2}


def _structure(board: dict[str, Any]) -> Iterator[Finding]:
    ids = [panel["id"] for panel in panels_of(board, rows=True)]
    if len(ids) != len(set(ids)):
        yield Finding("(board)", "", "two panels have one id")
    if not board.get("uid"):
        yield Finding("(board)", "", "no uid: links to it would break with every import")
    taken: dict[tuple[int, int], str] = {}
    for panel in panels_of(board, rows=True):
        title, at = panel["title"], panel["gridPos"]
        if at["x"] + at["w"] > COLUMNS:
            yield Finding(title, "", "it reaches over the grid's right edge")
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        covered = {taken[cell] for cell in cells if cell in taken}
        if covered:
            yield Finding(title, "", f"it lies over {', '.join(sorted(covered))}")
        taken.update(dict.fromkeys(cells, title))
    titles: set[str] = set()
    for panel in panels_of(board):
        title = panel["title"]
        if title in titles:
            yield Finding(title, "", "two panels have this title")
        titles.add(title)
        if not panel.get("description"):
            yield Finding(title, "", "no description")
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield Finding(title, "", "no unit")
        for where in (panel, *panel["targets"]):
            if where["datasource"].get("uid") != "${datasource}":
                yield Finding(title, "", "a fixed data source; use ${datasource}")


def _expressions(board: dict[str, Any]) -> Iterator[Finding]:
    known = exported_names()
    variables = {each["name"] for each in board["templating"]["list"]}
    for panel, target in targets_of(board):
        title, expr = panel["title"], target["expr"]
        for name in re.findall(r"\$\{?(\w+)", expr):
            if name not in variables and name not in BUILT_IN:
                yield Finding(title, expr, f"the board has no variable ${name}")
        if re.search(r"\[\$__interval\]", expr):
            yield Finding(title, expr, "a rate over $__interval is empty in short ranges")
        try:
            names = selected_names(expr)
        except ValueError as error:
            yield Finding(title, expr, f"it does not parse: {error}")
            continue
        yield from (
            Finding(title, expr, f"nothing exports {name}")
            for name in sorted(names)
            if not _is_known(name, known)
        )
    for each in board["templating"]["list"]:
        match = re.fullmatch(r"label_values\((\w+), \w+\)", each.get("definition", ""))
        if match and not _is_known(match[1], known):
            yield Finding(f"variable {each['name']}", match[0], f"nothing exports {match[1]}")


def selected_names(expr: str) -> set[str]:
    """The metric names that an expression reads. Raises ValueError where it is not PromQL."""
    filled = re.sub(r"\$\{?\w+\}?", "x", fill_in(expr, BUILT_IN))
    return set(_walk(promql_parser.parse(filled)))


def _walk(node: Any) -> Iterator[str]:
    """The names of all vector selectors below a node of promql_parser's tree."""
    if isinstance(node, promql_parser.VectorSelector):
        if node.name:
            yield node.name
        return
    for part in ("expr", "lhs", "rhs", "param", "vector_selector"):
        below = getattr(node, part, None)
        if below is not None:
            yield from _walk(below)
    for argument in getattr(node, "args", None) or ():
        yield from _walk(argument)


def _is_known(name: str, known: Collection[str]) -> bool:
    parts = (name.removesuffix(part) for part in HISTOGRAM_PARTS if name.endswith(part))
    return name in known or any(part in known for part in parts)
