"""Objectives on the command line: 'ttft p99 < 500ms' comes in, an SloFile of one goes out."""

import re

from prony_loadgen.strict_yaml import FileError, nearest, parse_duration, parse_ratio
from prony_slo.promise import Condition, Floor, Latency, Objective, Rate, Share, SloFile

EXAMPLES = "'ttft p99 < 500ms', 'tpot p95 <= 50ms', 'errors < 1%', 'throughput > 100'"

EXPRESSION = re.compile(
    r"(?P<metric>\w+)(?: p(?P<percentile>[\d.]+))? ?"
    r"(?P<op>[<>=!≤≥]+) ?(?P<limit>\S+(?: [a-z%]+)?)"
)
LATENCIES: dict[str, Latency] = {
    "ttft": "ttft",
    "ttft_from_send": "ttft_from_send",
    "ttfo": "ttfo",
    "e2e": "e2e",
    "latency": "e2e",
    "tpot": "tpot",
    "max_gap": "max_gap",
}
ERRORS = ("errors", "error_rate")
RATES: dict[str, Rate] = {
    "throughput": "output_tokens_per_s",
    "output_tokens_per_s": "output_tokens_per_s",
    "requests_per_s": "requests_per_s",
}
INSTEAD = {
    "itl": "itl is a latency of tokens, not of requests; use tpot or max_gap",
    "goodput": (
        "goodput needs its conditions; write a file with "
        "good: {ttft: '<= 500ms', tpot: '<= 50ms'} and at_least: 95%"
    ),
}


def looks_inline(arg: str) -> bool:
    """Whether `--slo ARG` means an objective rather than a name or a path."""
    if arg.endswith((".yaml", ".yml")):
        return False
    return re.search(r"[<>=≤≥]|\w\s+\w", arg) is not None


def parse_inline(text: str) -> SloFile:
    """The one objective of an expression. Raises FileError that shows what would be right."""
    expression = " ".join(text.split())
    try:
        return SloFile(expression, (Objective(expression, _promise(expression), place="--slo"),))
    except ValueError as error:
        raise FileError([f"--slo '{text}': {error}"]) from None


def _promise(expression: str) -> Share | Floor:
    match = EXPRESSION.fullmatch(expression)
    if match is None:
        several = " (one --slo each)" if "," in expression or " and " in expression else ""
        raise ValueError(f"is not an objective; expected one{several} like {EXAMPLES}")
    metric, percentile, op, limit = match.group("metric", "percentile", "op", "limit")
    if metric not in {*LATENCIES, *ERRORS, *RATES}:
        known = [*LATENCIES, *ERRORS, *RATES]
        raise ValueError(
            INSTEAD.get(metric)
            or f"unknown metric '{metric}'{nearest(metric, known)} (known: {', '.join(known)})"
        )
    wanted = (">", ">=", "≥") if metric in RATES else ("<", "<=", "≤")
    if op not in wanted:
        raise ValueError(f"{metric} needs {wanted[0]} or {wanted[1]}, got '{op}'")
    if metric in RATES:
        _refuse_percentile(metric, percentile)
        return Floor(RATES[metric], _rate(limit))
    if metric in ERRORS:
        _refuse_percentile(metric, percentile)
        return Share((), _errors(limit))
    if limit.replace(".", "", 1).isdigit():
        raise ValueError(f"the limit needs a unit: {limit}ms or {limit}s")
    try:
        seconds = parse_duration(limit)
    except ValueError as error:
        raise ValueError(f"the limit {error}") from None
    if seconds <= 0:
        raise ValueError(f"the limit must be above 0, got '{limit}'")
    condition = Condition(LATENCIES[metric], seconds, inclusive=op != "<")
    return Share((condition,), _allowed(metric, percentile, op, limit))


def _allowed(metric: str, percentile: str | None, op: str, limit: str) -> float:
    """The share of requests above a percentile: 0.01 for 99."""
    if percentile is None:
        raise ValueError(f"needs a percentile: '{metric} p99 {op} {limit}'")
    try:
        wanted = float(percentile)
    except ValueError:
        raise ValueError(f"the percentile must be a number (p99), got p{percentile}") from None
    # 1 - 0.99 is 0.010000000000000009 in floats; a limit of 1 % must be 0.01.
    allowed = round(1 - wanted / 100, 12)
    if not 0 < allowed < 1:
        raise ValueError(
            f"the percentile must be above 0 and under 100, got p{percentile}: no number of "
            "requests can show what all requests do"
        )
    return allowed


def _errors(limit: str) -> float:
    share = parse_ratio(limit)
    if not limit.endswith("%") and "." not in limit:
        raise ValueError(f"errors are a share such as 1% or 0.01, got '{limit}'")
    if share in (0, 1):
        raise ValueError(
            f"the limit must be above 0% and under 100%, got '{limit}': no number of requests can "
            "show that none will ever fail; 0.1% needs 2,995 of them"
        )
    return share


def _rate(limit: str) -> float:
    try:
        number = float(limit)
    except ValueError:
        raise ValueError(f"the limit must be a number per second, got '{limit}'") from None
    if not 0 < number < float("inf"):
        raise ValueError(f"the limit must be above 0, got '{limit}'")
    return number


def _refuse_percentile(metric: str, percentile: str | None) -> None:
    if percentile is not None:
        raise ValueError(f"{metric} has no percentiles; write '{metric}' alone")
