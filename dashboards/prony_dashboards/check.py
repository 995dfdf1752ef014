"""A dashboard against the real thing: a board and live /metrics pages go in, findings come out.

A real Prometheus scrapes the pages each second, and every query of every panel is run as Grafana
would run it. A query that fails, finds nothing, or finds only NaN is a finding.
"""

import math
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from prony_dashboards.findings import Finding, targets_of
from prony_dashboards.prometheus import Prometheus

RANGE: Final = 60  # seconds that a query looks back over
STEP: Final = 1
# What Grafana puts in for its own variables: a rate's window is four scrapes, or it sees nothing.
BUILT_IN: Final = {"__rate_interval": "4s", "__interval": "1s", "__range": f"{RANGE}s"}


def check_live(
    board: dict[str, Any], targets: Mapping[str, str], prometheus: str, patience: float = 30.0
) -> list[Finding]:
    """What is wrong with a board whose data are there to be scraped now.

    `targets` maps a job's name to its "host:port". Requests should be under way while this runs:
    it waits up to `patience` seconds until every query has found something. Raises
    PrometheusError where Prometheus itself does not run or a target cannot be scraped.
    """
    with Prometheus.running(prometheus, targets) as server:
        server.wait_for_scrapes(patience)
        deadline = time.monotonic() + patience
        while True:
            findings = query_all(board, server)
            if not findings or time.monotonic() > deadline:
                return findings
            time.sleep(STEP)


def query_all(board: dict[str, Any], server: Prometheus) -> list[Finding]:
    """Runs every query of the board once; returns those that found nothing to draw."""
    values, findings = resolve(board, server)
    for panel, target in targets_of(board):
        expr = fill_in(target["expr"], values)
        if left := re.search(r"\$\{?\w+", expr):
            findings.append(Finding(panel["title"], expr, f"{left[0]} is not resolved"))
        elif problem := _problem(server, expr):
            findings.append(Finding(panel["title"], expr, problem))
    return findings


def resolve(board: dict[str, Any], server: Prometheus) -> tuple[dict[str, str], list[Finding]]:
    """The value of each variable with everything chosen, and the variables that have none."""
    values = dict(BUILT_IN)
    findings = []
    for variable in board["templating"]["list"]:
        name, definition = variable["name"], variable.get("definition", "")
        if variable["type"] == "datasource":
            continue
        match = re.fullmatch(r"label_values\((.+), *(\w+)\)", definition)
        if match is None:
            findings.append(Finding(f"variable {name}", definition, "not a label_values() query"))
            continue
        found = server.label_values(fill_in(match[1], values), match[2])
        if not found:
            findings.append(Finding(f"variable {name}", definition, "it has no value"))
        # As Grafana: the board's own word for All, else every value as one pattern.
        values[name] = variable.get("allValue") or f"({'|'.join(re.escape(v) for v in found)})"
    return values, findings


def fill_in(expr: str, values: Mapping[str, str]) -> str:
    """The expression with each $name and ${name} replaced, as far as it is known."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: values.get(m[1] or m[2], m[0]), expr)


def _problem(server: Prometheus, expr: str) -> str | None:
    found = server.query_range(expr, RANGE, STEP)
    if isinstance(found, str):
        return f"Prometheus refuses it: {found}"
    if not found:
        return "it finds nothing"
    samples = (float(value) for series in found for _, value in series["values"])
    return "it finds only NaN" if all(math.isnan(sample) for sample in samples) else None
