"""What is wrong with the boards as they stand: boards go in, findings come out, nothing runs."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import promql_parser

from prony_dashboards.check import BUILT_IN, fill_in
from prony_dashboards.findings import Finding, panels_of, targets_of
from prony_dashboards.names import NOT_SHOWN, exported_names, known_names
from prony_dashboards.panels import COLUMNS

HISTOGRAM_PARTS: Final = ("_bucket", "_count", "_sum")


def lint(boards: Mapping[str, dict[str, Any]]) -> list[Finding]:
    """Everything that is wrong with the boards' structure, expressions, names and links."""
    findings = [
        replace(finding, board=board["title"])
        for board in boards.values()
        for finding in (*_structure(board), *_expressions(board), *_links(board, boards))
    ]
    uids = [board.get("uid") for board in boards.values()]
    findings += [
        Finding("(all boards)", "", f"two boards have the uid {uid}")
        for uid in sorted({uid for uid in uids if uid and uids.count(uid) > 1})
    ]
    return findings


def not_shown(boards: Iterable[dict[str, Any]]) -> list[Finding]:
    """Metrics of ours that no board shows and that no list says why not; and lists out of date."""
    selected = {
        name
        for board in boards
        for _, target in targets_of(board)
        for name in selected_names(target["expr"])
    }
    shown = {family(name) for name in selected} | selected
    exported = exported_names()
    missing = sorted(exported - shown - NOT_SHOWN.keys())
    needless = sorted(NOT_SHOWN.keys() & shown)
    told = [(name, "is exported and shown nowhere") for name in missing]
    told += [(name, "is listed as not shown, but is") for name in needless]
    return [Finding("(all boards)", "", f"{name} {problem}") for name, problem in told]


def family(name: str) -> str:
    """The name of the histogram that a bucket, count or sum belongs to."""
    for part in HISTOGRAM_PARTS:
        if name.endswith(part):
            return name.removesuffix(part)
    return name


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
        if panel["type"] == "text":
            continue
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield Finding(title, "", "no unit")
        for where in (panel, *panel["targets"]):
            if where["datasource"].get("uid") != "${datasource}":
                yield Finding(title, "", "a fixed data source; use ${datasource}")


def _links(board: dict[str, Any], boards: Mapping[str, dict[str, Any]]) -> Iterator[Finding]:
    uids = {each.get("uid") for each in boards.values()}
    tags = {tag for each in boards.values() for tag in each["tags"]}
    for link in board["links"]:
        if link["type"] == "dashboards" and not set(link["tags"]) <= tags:
            yield Finding(f"link {link['title']}", "", f"no board has the tags {link['tags']}")
        if link["type"] == "link" and link["url"].removeprefix("/d/") not in uids:
            yield Finding(f"link {link['title']}", "", f"no board is at {link['url']}")


def _expressions(board: dict[str, Any]) -> Iterator[Finding]:
    known = known_names(_engine(board))
    for panel, expr in _all_expressions(board):
        for name in re.findall(r"\$\{?(\w+)", expr):
            if name not in _variables(board) and name not in BUILT_IN:
                yield Finding(panel, expr, f"the board has no variable ${name}")
        if re.search(r"\[\$__interval\]", expr):
            yield Finding(panel, expr, "a rate over $__interval is empty in short ranges")
        try:
            names = selected_names(expr)
        except ValueError as error:
            yield Finding(panel, expr, f"it does not parse: {error}")
            continue
        yield from (
            Finding(panel, expr, f"nothing exports {name}")
            for name in sorted(names)
            if not _is_known(name, known)
        )


def _variables(board: dict[str, Any]) -> set[str]:
    return {each["name"] for each in board["templating"]["list"]}


def _engine(board: dict[str, Any]) -> str | None:
    """The engine that the board is about; None where it is about all."""
    variables = board["templating"]["list"]
    chosen = [each["current"]["value"] for each in variables if each["name"] == "engine"]
    return str(chosen[0]) if chosen else None


def _all_expressions(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every expression of the board, with the panel, variable or annotation that it is of."""
    yield from ((panel["title"], target["expr"]) for panel, target in targets_of(board))
    for each in board["templating"]["list"]:
        match = re.fullmatch(r"label_values\((.+), *\w+\)", each.get("definition", ""))
        if match:
            yield f"variable {each['name']}", match[1]
    for each in board["annotations"]["list"]:
        if "expr" in each:
            yield f"annotation {each['name']}", each["expr"]


def selected_names(expr: str) -> set[str]:
    """The metric names that an expression reads. Raises ValueError where it is not PromQL."""
    # A number is right in a matcher and as an argument alike.
    filled = re.sub(r"\$\{?\w+\}?", "1", fill_in(expr, BUILT_IN))
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
    return name in known or family(name) in known
