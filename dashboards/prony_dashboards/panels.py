"""The pieces of a dashboard: queries and words in, Grafana's classic panel JSON out as plain dicts.

Nothing here knows a metric. Every panel has a unit and a description, takes its data source from
the `${datasource}` variable, and shows missing data as missing: no query is filled up with zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

Panel = dict[str, Any]

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24  # of Grafana's grid
RED, AMBER, GREEN = "red", "orange", "green"
NOTHING: Final = "idle or no data"
LIMIT: Final = "limit"  # the legend of a promise's line


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression of a panel, and how its series are called."""

    expr: str
    legend: str = ""
    exemplar: bool = False  # fetch the trace ids that the histogram carries
    heatmap: bool = False
    instant: bool = False  # one value for the whole time shown, not a line over it


@dataclass(frozen=True, slots=True)
class Threshold:
    """From this value on, in this colour."""

    value: float
    colour: str


def timeseries(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    width: int = 8,
    height: int = 8,
    stacked: bool = False,
    minimum: float | None = 0,
    maximum: float | None = None,
    thresholds: Sequence[Threshold] = (),
    limit: str = "",
) -> Panel:
    """Lines over time; thresholds are drawn as dashed lines.

    `limit` is the variable of a promise, such as $slo_ttft, drawn as a line that moves with it.
    """
    if limit:
        queries = [*queries, Query(f"vector({limit})", legend=LIMIT)]
    custom: dict[str, Any] = {
        "drawStyle": "line",
        "lineWidth": 2,
        "fillOpacity": 25 if stacked else 8,
        "showPoints": "auto",
        # A gap is a gap: joining over it would draw data that nobody measured.
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if thresholds else "off"},
    }
    panel = _panel("timeseries", title, description, queries, unit, width, height, thresholds)
    if limit:
        panel["fieldConfig"]["overrides"].append(_dashed(LIMIT))
    defaults = panel["fieldConfig"]["defaults"]
    defaults["custom"] = custom
    defaults["noValue"] = NOTHING
    defaults["color"] = {"mode": "palette-classic"}
    if minimum is not None:
        defaults["min"] = minimum
    if maximum is not None:
        defaults["max"] = maximum
    elif unit != "s":
        # Where all is 0 Grafana's axis goes up to 100, which it writes as 10,000 % of errors.
        custom["axisSoftMax"] = 0.01 if unit == "percentunit" else 1
    panel["options"] = {
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel


def stat(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    width: int = 4,
    height: int = 4,
    decimals: int | None = None,
    thresholds: Sequence[Threshold] = (),
    nothing: str = NOTHING,
) -> Panel:
    """The last value in large digits over a small line; words, never a 0, where there is none."""
    panel = _panel("stat", title, description, queries, unit, width, height, thresholds)
    defaults = panel["fieldConfig"]["defaults"]
    defaults["noValue"] = nothing
    defaults["color"] = {"mode": "thresholds" if thresholds else "fixed"}
    if not thresholds:
        defaults["color"]["fixedColor"] = "text"
    if decimals is not None:
        defaults["decimals"] = decimals
    panel["options"] = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    }
    return panel


def heatmap(
    title: str, description: str, expr: str, *, unit: str, width: int = 12, height: int = 8
) -> Panel:
    """How many observations fell into each bucket of a histogram, over time."""
    query = Query(expr, legend="{{le}}", heatmap=True)
    panel = _panel("heatmap", title, description, [query], unit, width, height, ())
    panel["options"] = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "exponent": 0.5},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }
    # A heatmap's cells count observations; the unit of its buckets is the axis's.
    defaults = {"unit": "short", "custom": {"scaleDistribution": {"type": "linear"}}}
    panel["fieldConfig"]["defaults"] = defaults
    return panel


def words(title: str, text: str, *, width: int = 8, height: int = 8) -> Panel:
    """A place that holds a sentence: why there is nothing to draw."""
    return {
        "type": "text",
        "title": title,
        "description": text,
        "gridPos": {"h": height, "w": width},
        "options": {"mode": "markdown", "content": text},
    }


def rows(sections: Sequence[tuple[str, Sequence[Panel]]]) -> list[Panel]:
    """The panels of all sections under their headings, placed on the grid, with stable ids."""
    placed: list[Panel] = []
    y = 0
    for title, panels in sections:
        placed.append(_row(len(placed) + 1, title, y))
        y += 1
        x = tallest = 0
        for panel in panels:
            size = panel["gridPos"]
            if x + size["w"] > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            position = {"h": size["h"], "w": size["w"], "x": x, "y": y}
            placed.append({**panel, "id": len(placed) + 1, "gridPos": position})
            x, tallest = x + size["w"], max(tallest, size["h"])
        y += tallest
    return placed


def datasource_variable() -> dict[str, Any]:
    """Which Prometheus: never a fixed one, since every Grafana calls its own differently."""
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "current": {},
        "options": [],
    }


def chosen_variable(name: str, label: str, value: str, text: str) -> dict[str, Any]:
    """A variable of one value, which says what the board is about and travels along its links."""
    return {
        "name": name,
        "label": label,
        "type": "custom",
        "query": f"{text} : {value}",
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "current": {"selected": True, "text": text, "value": value},
        "options": [{"selected": True, "text": text, "value": value}],
    }


def number_variable(name: str, label: str, value: str, choices: Sequence[str]) -> dict[str, Any]:
    """A number that a reader may choose, such as the limit of a promise."""
    return {
        "name": name,
        "label": label,
        "type": "custom",
        "query": ", ".join(choices),
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "current": {"selected": True, "text": value, "value": value},
        "options": [{"selected": each == value, "text": each, "value": each} for each in choices],
    }


def link(title: str, uid: str) -> dict[str, Any]:
    """To another board, which shows the same time and the same choice."""
    return {
        "type": "link",
        "title": title,
        "url": f"/d/{uid}",
        "icon": "dashboard",
        "keepTime": True,
        "includeVars": True,
        "targetBlank": False,
        "asDropdown": False,
        "tags": [],
        "tooltip": "",
    }


def links_by_tag(title: str, tag: str) -> dict[str, Any]:
    """A menu of all boards with this tag."""
    return {**link(title, ""), "type": "dashboards", "url": "", "icon": "external link",
            "asDropdown": True, "tags": [tag]}  # fmt: skip


def region_annotation(name: str, colour: str, expr: str, title: str, text: str) -> dict[str, Any]:
    """Marks the times at which a query has a value, with words made of its labels."""
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": expr,
        "step": "5s",
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "",
        "useValueForTime": False,
    }


def tag_annotation(name: str, colour: str, tag: str) -> dict[str, Any]:
    """Marks that were written into Grafana itself, found by their tag."""
    return {
        "name": name,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "target": {"type": "tags", "tags": [tag], "matchAny": False, "limit": 100},
    }


def own_annotations() -> dict[str, Any]:
    """Grafana's own entry, which each board has."""
    return {
        "name": "Annotations & Alerts",
        "type": "dashboard",
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
    }


def label_variable(
    name: str, label: str, metric: str, of: str, *, closed: bool = False
) -> dict[str, Any]:
    """All values that the label `of` has on `metric`; everything is chosen at first.

    `closed`: everything is those values and no others that another metric's label may have.
    """
    query = f"label_values({metric}, {of})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,  # when the time range changes: a run that starts later must appear
        "regex": "",
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": None if closed else ".*",
        "hide": 0,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
    }


def _row(number: int, title: str, y: int) -> Panel:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "panels": [],
        "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
    }


def _panel(
    kind: str,
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    width: int,
    height: int,
    thresholds: Sequence[Threshold],
) -> Panel:
    steps: list[dict[str, Any]] = [{"color": GREEN, "value": None}]
    steps += [{"color": each.colour, "value": each.value} for each in thresholds]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"h": height, "w": width},
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "mappings": [],
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "targets": [_target(query, "ABCDEFGH"[i]) for i, query in enumerate(queries)],
    }


def _dashed(legend: str) -> dict[str, Any]:
    """A promise's line: red, dashed, thin, not filled."""
    return {
        "matcher": {"id": "byName", "options": legend},
        "properties": [
            {"id": "color", "value": {"mode": "fixed", "fixedColor": RED}},
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
            {"id": "custom.lineWidth", "value": 1},
            {"id": "custom.fillOpacity", "value": 0},
        ],
    }


def _target(query: Query, name: str) -> dict[str, Any]:
    return {
        "refId": name,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "range": not query.instant,
        "instant": query.instant,
        "exemplar": query.exemplar,
        "format": "heatmap" if query.heatmap else "time_series",
    }
