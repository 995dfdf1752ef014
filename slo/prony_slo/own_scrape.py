"""PromQL over what a run itself kept of its target's /metrics: series and a query in, a number out.

For objectives of a run that no Prometheus watched. It knows what such objectives need (selectors,
functions over a range, subqueries, rates, aggregations, arithmetic, comparisons and
histogram_quantile) and works as Prometheus does; what it does not know it says, and never guesses.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from prony_slo.promql import QueryError, Reader

LOOKBACK: Final = 300.0  # seconds for which the last sample of a series stands
EVERY: Final = 60.0  # seconds: the step of a subquery that names none
NAME: Final = "__name__"
REMEDY: Final = "name a Prometheus (measure.prometheus) that watched the run"

Labels = tuple[tuple[str, str], ...]  # sorted
Vector = dict[Labels, float]
Points = list[tuple[float, float]]  # Unix time and value
Page = tuple[float, Sequence[tuple[str, Mapping[str, str], float]]]


@dataclass(frozen=True, slots=True)
class Kept:
    """What one run kept."""

    first: float  # Unix times
    last: float
    series: Mapping[str, Mapping[Labels, Points]]  # by the metric's name


def kept(pages: Iterable[Page], origin_unix: float, **more: str) -> Kept | None:
    """The series of a run's pages, whose times are on its clock; None where it has no page.

    `more` are labels that a Prometheus would have added: job and instance.
    """
    series: dict[str, dict[Labels, Points]] = {}
    times: list[float] = []
    for at, samples in pages:
        times.append(at + origin_unix)
        for name, labels, value in samples:
            key = tuple(sorted({**labels, **more, NAME: name}.items()))
            series.setdefault(name, {}).setdefault(key, []).append((times[-1], value))
    return Kept(times[0], times[-1], series) if times else None


def own_reader(runs: Sequence[Kept]) -> Reader:
    """Answers queries from the run that went on at the time asked for."""

    def read(query: str, at: float) -> float | None:
        # Here, for most SLO files have no query.
        import promql_parser

        run = next((run for run in runs if run.first <= at <= run.last + LOOKBACK), None)
        if run is None:
            raise QueryError(f"the run kept nothing of its target's /metrics; {REMEDY}")
        try:
            parsed = promql_parser.parse(query)
        except ValueError as error:
            raise QueryError(f"{query}: {error}") from None
        found = _Evaluation(run, at).value(parsed)
        if isinstance(found, float):
            return None if math.isnan(found) else found
        if len(found) > 1:
            raise QueryError(f"{query} has {len(found)} values; aggregate them, as in sum(...)")
        value = next(iter(found.values()), math.nan)
        return None if math.isnan(value) else value

    return read


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """One query at one moment."""

    run: Kept
    at: float

    def value(self, node: Any) -> float | Vector:
        handler: Callable[[Any], float | Vector] | None = {
            "NumberLiteral": lambda n: float(n.val),
            "ParenExpr": lambda n: self.value(n.expr),
            "UnaryExpr": self._negative,
            "VectorSelector": self._instant,
            "AggregateExpr": self._aggregate,
            "BinaryExpr": self._binary,
            "Call": self._call,
        }.get(type(node).__name__)
        if handler is None:
            raise _unknown(type(node).__name__.removesuffix("Expr").lower())
        return handler(node)

    def _negative(self, node: Any) -> float | Vector:
        value = self.value(node.expr)
        return -value if isinstance(value, float) else {k: -v for k, v in value.items()}

    def _matching(self, node: Any) -> Iterator[tuple[Labels, Points]]:
        if node.offset is not None or node.at is not None:
            raise _unknown("offset or @")
        for labels, points in self.run.series.get(node.name or "", {}).items():
            known = dict(labels)
            if all(_matches(matcher, known) for matcher in node.matchers.matchers):
                yield labels, points

    def _instant(self, node: Any) -> Vector:
        found: Vector = {}
        for labels, points in self._matching(node):
            seen = [(at, v) for at, v in points if self.at - LOOKBACK < at <= self.at]
            if seen:
                found[labels] = seen[-1][1]
        return found

    def _range(self, node: Any) -> tuple[dict[Labels, Points], float]:
        if type(node).__name__ == "SubqueryExpr":
            return self._subquery(node), node.range.total_seconds()
        seconds = node.range.total_seconds()
        found = {}
        for labels, points in self._matching(node.vector_selector):
            inside = [(at, v) for at, v in points if self.at - seconds < at <= self.at]
            if inside:
                found[labels] = inside
        return found, seconds

    def _subquery(self, node: Any) -> dict[Labels, Points]:
        if node.offset is not None or node.at is not None:
            raise _unknown("offset or @")
        step = EVERY if node.step is None else node.step.total_seconds()
        found: dict[Labels, Points] = {}
        start = self.at - node.range.total_seconds()
        # At whole multiples of the step, whenever it is asked.
        for number in range(math.floor(start / step) + 1, math.floor(self.at / step) + 1):
            vector = _Evaluation(self.run, number * step).value(node.expr)
            for labels, value in ({(): vector} if isinstance(vector, float) else vector).items():
                found.setdefault(labels, []).append((number * step, value))
        return found

    def _call(self, node: Any) -> float | Vector:
        name, args = node.func.name, node.args
        if name == "histogram_quantile":
            share, buckets = self.value(args[0]), self.value(args[1])
            assert isinstance(share, float) and not isinstance(buckets, float)
            return _histogram_quantile(share, buckets)
        if name == "scalar":
            vector = self.value(args[0])
            values = [vector] if isinstance(vector, float) else list(vector.values())
            return values[0] if len(values) == 1 else math.nan
        if name == "quantile_over_time":
            share = self.value(args[0])
            assert isinstance(share, float)
            found, _ = self._range(args[1])
            return {_nameless(k): _quantile(share, [v for _, v in p]) for k, p in found.items()}
        if name in _OVER_TIME:
            found, _ = self._range(args[0])
            return {
                k if name == "last_over_time" else _nameless(k): _OVER_TIME[name](
                    [value for _, value in points]
                )
                for k, points in found.items()
            }
        if name in ("rate", "increase", "delta"):
            found, seconds = self._range(args[0])
            changes = {
                _nameless(k): _change(points, self.at - seconds, self.at, counter=name != "delta")
                for k, points in found.items()
                if len(points) > 1
            }
            return {k: v / seconds if name == "rate" else v for k, v in changes.items()}
        raise _unknown(f"{name}()")

    def _aggregate(self, node: Any) -> Vector:
        name = str(node.op)
        if name not in _TOGETHER:
            raise _unknown(f"{name}()")
        vector = self.value(node.expr)
        assert not isinstance(vector, float)
        groups: dict[Labels, list[float]] = {}
        for labels, value in vector.items():
            groups.setdefault(_group(labels, node.modifier), []).append(value)
        return {labels: _TOGETHER[name](values) for labels, values in groups.items()}

    def _binary(self, node: Any) -> float | Vector:
        if node.modifier is not None and str(node.modifier):
            raise _unknown(f"{node.op} {node.modifier}")
        symbol = str(node.op)
        if symbol not in _ARITHMETIC and symbol not in _COMPARING:
            raise _unknown(symbol)
        left, right = self.value(node.lhs), self.value(node.rhs)
        if isinstance(left, float) and isinstance(right, float):
            if symbol in _COMPARING:
                raise _unknown("a comparison of two numbers")
            return _ARITHMETIC[symbol](left, right)
        pairs: dict[Labels, tuple[float, float]]
        if isinstance(left, float):
            assert not isinstance(right, float)
            pairs = {k: (left, v) for k, v in right.items()}
        elif isinstance(right, float):
            pairs = {k: (v, right) for k, v in left.items()}
        else:
            others = {_nameless(k): v for k, v in right.items()}
            both = (k for k in left if _nameless(k) in others)
            pairs = {k: (left[k], others[_nameless(k)]) for k in both}
        if symbol in _COMPARING:  # a filter: what holds keeps its value
            kept = 1 if isinstance(left, float) else 0
            return {k: p[kept] for k, p in pairs.items() if _COMPARING[symbol](*p)}
        return {_nameless(k): _ARITHMETIC[symbol](*p) for k, p in pairs.items()}


def _unknown(what: str) -> QueryError:
    return QueryError(f"{what} cannot be answered from the run's own scrape; {REMEDY}")


def _matches(matcher: Any, labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(matcher.name, ""), str(matcher.value)
    kind = str(matcher.op).rpartition(".")[2]
    if kind in ("Equal", "NotEqual"):
        return (value == wanted) == (kind == "Equal")
    return (re.fullmatch(wanted, value) is not None) == (kind == "Re")


def _nameless(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != NAME)


def _group(labels: Labels, modifier: Any) -> Labels:
    if modifier is None:
        return ()
    by = str(modifier.type).rpartition(".")[2] == "By"
    left_out = {NAME} if not by else set()
    return tuple(p for p in labels if (p[0] in modifier.labels) == by and p[0] not in left_out)


def _change(points: Points, start: float, end: float, *, counter: bool) -> float:
    """By how much a series rose from `start` to `end`, reaching out to both as Prometheus does."""
    rise = points[-1][1] - points[0][1]
    if counter:  # one that fell was reset
        rise += sum(a for (_, a), (_, b) in pairwise(points) if b < a)
    first, last = points[0][0], points[-1][0]
    sampled = last - first
    gap = sampled / (len(points) - 1)
    before, after = (each if each < 1.1 * gap else gap / 2 for each in (first - start, end - last))
    if counter and rise > 0 and points[0][1] >= 0:  # it cannot have been below zero
        before = min(before, sampled * points[0][1] / rise)
    return rise * (sampled + before + after) / sampled


def _quantile(share: float, values: Sequence[float]) -> float:
    if not 0 <= share <= 1:
        return math.inf if share > 1 else -math.inf
    ordered = sorted(values)
    rank = share * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def _histogram_quantile(share: float, vector: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in vector.items():
        known = dict(labels)
        if "le" in known:
            rest = tuple(pair for pair in labels if pair[0] not in (NAME, "le"))
            groups.setdefault(rest, []).append((float(known["le"]), count))
    return {labels: _of_buckets(share, sorted(each)) for labels, each in groups.items()}


def _of_buckets(share: float, buckets: Sequence[tuple[float, float]]) -> float:
    total = buckets[-1][1]
    if not math.isinf(buckets[-1][0]) or len(buckets) < 2 or not total:
        return math.nan
    if not 0 <= share <= 1:
        return math.inf if share > 1 else -math.inf
    rank = share * total
    at = next(n for n, (_, count) in enumerate(buckets) if count >= rank)
    if at == len(buckets) - 1:
        return buckets[-2][0]
    bound, count = buckets[at]
    if at == 0 and bound <= 0:
        return bound
    start, below = (0.0, 0.0) if at == 0 else buckets[at - 1]
    inside = count - below
    return start + (bound - start) * (rank - below) / inside if inside else bound


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _count(values: Sequence[float]) -> float:
    return float(len(values))


def _divided(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if not a or math.isnan(a) else math.copysign(math.inf, a)


_OVER_TIME: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "avg_over_time": _mean,
    "min_over_time": min,
    "max_over_time": max,
    "sum_over_time": math.fsum,
    "count_over_time": _count,
    "last_over_time": lambda values: values[-1],
}
_TOGETHER: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "sum": math.fsum,
    "avg": _mean,
    "min": min,
    "max": max,
    "count": _count,
}
_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
}
_COMPARING: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
