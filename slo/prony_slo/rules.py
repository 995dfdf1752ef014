"""An SLO in production: an SLO file goes in, Prometheus recording and alert rules come out.

Burn-rate alerts over two windows each (Google's "The Site Reliability Workbook", 2018, chapter 5):
a page where a budget burns so fast that hours matter, a ticket where it will not last its window.
What Prometheus cannot be asked is left out and named.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from prony_loadgen.strict_yaml import parse_duration
from prony_loadgen.words import share
from prony_slo.engines import ENGINES, Engine, Series
from prony_slo.promise import Condition, Objective, Query, Share, SloFile, short_ms

WINDOWS: Final = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
RECORD: Final = "slo:sli_error:ratio_rate"
DEFAULT_WINDOW: Final = "30d"
# severity, short window, long window, the share of the budget that is burnt within the long one
BURNS: Final = (
    ("page", "5m", "1h", 0.02),
    ("page", "30m", "6h", 0.05),
    ("ticket", "2h", "1d", 0.10),
    ("ticket", "6h", "3d", 0.10),
)


@dataclass(frozen=True, slots=True)
class Indicator:
    """One error ratio in production: bad of all, where `$window` stands for the time."""

    id: str
    objective: Objective
    good: str | None  # a counter's selector, or None where `bad` is what is counted
    bad: str | None
    total: str
    allowed: float  # the share of bad requests
    limit: float | None = None  # seconds: the bucket bound that is asked
    wanted: float | None = None  # seconds: what the objective says, where that is another

    def ratio(self, window: str) -> str:
        """The PromQL of the bad share over a window."""
        total = f"sum(rate({self.total}[{window}]))"
        if self.bad is not None:
            return f"sum(rate({self.bad}[{window}])) / {total}"
        return f"1 - sum(rate({self.good}[{window}])) / {total}"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules file, and what has to be said about it."""

    groups: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    def to_yaml(self) -> str:
        """The file for Prometheus, its notes as comments on top."""
        head = "".join(f"# {note}\n" for note in ("Made by `prony rules`.", *self.notes))
        return head + _yaml({"groups": list(self.groups)})


@dataclass(frozen=True, slots=True)
class Exported:
    """What of an SLO has a form in production."""

    indicators: tuple[Indicator, ...]
    queries: tuple[Objective, ...]
    kept: tuple[Objective, ...]  # what has none
    notes: tuple[str, ...]


def rules(slo: SloFile, engine: str | None = None) -> Rules:
    """The rules of `slo` under the metric names of `engine` (prony, vllm, sglang).

    Without `engine` the file's `export.prometheus.profile` counts, else prony. Raises ValueError
    for one that is unknown, or where nothing in the file can become a rule.
    """
    found = exported(slo, engine)
    if not found.indicators and not found.queries:
        raise ValueError("nothing in it can become a rule: " + "; ".join(found.notes))
    service = str(slo.metadata.get("service") or slo.name)
    window = _window(slo)
    groups: list[dict[str, Any]] = []
    notes = list(found.notes)
    for indicator in found.indicators:
        group, said = _group(indicator, service, window)
        groups.append(group)
        notes += said
    if found.queries:
        groups.append(_query_group(found.queries, service))
    return Rules(tuple(groups), tuple(dict.fromkeys(notes)))


def exported(slo: SloFile, engine: str | None = None) -> Exported:
    """The indicators of an SLO file, and notes on what differs from it or is missing."""
    names, selector = _selectors(slo, engine)
    indicators: list[Indicator] = []
    queries: list[Objective] = []
    kept: list[Objective] = []
    notes: list[str] = []
    for objective in slo.objectives:
        promise = objective.promise
        if isinstance(promise, Query):
            queries.append(objective)
        elif isinstance(promise, Share) and not promise.conditions:
            indicators.append(_of_errors(objective, promise, names, selector))
            notes.append(f"{objective.id}: {names.bad_note}")
        elif isinstance(promise, Share):
            made = list(_of_conditions(slo, objective, promise, names, selector, notes))
            indicators += made
            if not made:
                kept.append(objective)
        else:
            kept.append(objective)
            notes.append(f"{objective.id}: {promise} has no form as an error budget; left out")
        if objective.scenario or objective.stage or objective.cls:
            notes.append(
                f"{objective.id}: production knows no scenario, stage or class; the rule is about "
                "all requests"
            )
    if slo.regression is not None:
        notes.append("regression: builds are compared before production; left out")
    return Exported(tuple(indicators), tuple(queries), tuple(kept), tuple(notes))


def snapped(series: Series, limit: float) -> float | None:
    """The largest bucket bound up to `limit`; None where there is none.

    Stricter than asked, never laxer: the histogram that watches a promise must not weaken it.
    """
    below = [bound for bound in series.buckets if bound <= limit * (1 + 1e-9)]
    return max(below, default=None)


def le(bound: float) -> str:
    """The matcher of a bucket. Prometheus 3 writes le="1.0" where older clients wrote le="1"."""
    text = f"{bound:g}"
    return f'le=~"{text}|{text}[.]0"' if float(bound).is_integer() else f'le="{text}"'


def _of_errors(objective: Objective, promise: Share, names: Engine, selector: str) -> Indicator:
    return Indicator(
        id=objective.id,
        objective=objective,
        good=None,
        bad=_with(names.bad, selector),
        total=_with(names.all, selector),
        allowed=promise.limit,
    )


def _of_conditions(
    slo: SloFile,
    objective: Objective,
    promise: Share,
    names: Engine,
    selector: str,
    notes: list[str],
) -> Iterator[Indicator]:
    if len(promise.conditions) > 1:
        notes.append(
            f"{objective.id}: separate histograms cannot tell which requests met all conditions, "
            "so each is watched alone: necessary, not sufficient"
        )
    for condition in promise.conditions:
        series = _series(slo, names, condition)
        if series is None:
            notes.append(f"{objective.id}: no histogram of {condition.metric} exists; left out")
            continue
        bound = snapped(series, condition.limit)
        if bound is None:
            notes.append(
                f"{objective.id}: {condition} lies below the first bucket of {series.name} "
                f"({short_ms(series.buckets[0])}); left out"
            )
            continue
        if abs(bound - condition.limit) > 1e-9:
            notes.append(
                f"{objective.id}: {series.name} has no bucket at {short_ms(condition.limit)}; "
                f"{short_ms(bound)} is watched, which is stricter"
            )
        if series.note:
            notes.append(f"{objective.id}: {series.note}")
        only = ",".join(part for part in (selector, series.selector) if part)
        several = len(promise.conditions) > 1
        yield Indicator(
            id=f"{objective.id}-{condition.metric}" if several else objective.id,
            objective=objective,
            good=f"{series.name}_bucket{{{','.join(p for p in (only, le(bound)) if p)}}}",
            bad=None,
            total=f"{series.name}_count{{{only}}}",
            allowed=promise.limit,
            limit=bound,
            wanted=condition.limit,
        )


def _series(slo: SloFile, names: Engine, condition: Condition) -> Series | None:
    series = names.latencies.get(condition.metric)
    own = (_prometheus(slo).get("buckets") or {}).get(condition.metric)
    if series is None or not own:
        return series
    # A server may be started with buckets of its own.
    return Series(series.name, tuple(sorted(float(bound) for bound in own)), series.selector)


def _group(
    indicator: Indicator, service: str, window: float
) -> tuple[dict[str, Any], Iterator[str]]:
    labels = {"service": service, "slo": indicator.id}
    made: list[dict[str, Any]] = [
        {"record": f"{RECORD}{each}", "expr": indicator.ratio(each), "labels": labels}
        for each in WINDOWS
    ]
    notes: list[str] = []
    selector = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
    only_warns = indicator.objective.severity == "warn"
    for severity in ("page", "ticket"):
        if only_warns and severity == "page":
            notes.append(f"{indicator.id}: severity warn, so it makes tickets and no pages")
            continue
        burns = []
        for kind, short, long, part in BURNS:
            factor = part * window / parse_duration(_in_hours(long))
            threshold = factor * indicator.allowed
            if kind != severity:
                continue
            if threshold >= 1:
                notes.append(
                    f"{indicator.id}: a budget of {share(indicator.allowed)} cannot burn "
                    f"{factor:g} times as fast as it may, so the {long} {kind} is left out"
                )
                continue
            burns.append(
                f"({RECORD}{short}{{{selector}}} > {threshold:.6g} "
                f"and {RECORD}{long}{{{selector}}} > {threshold:.6g})"
            )
        if burns:
            made.append(_alert(indicator, service, severity, " or ".join(burns)))
    return {"name": f"prony-slo-{_slug(service)}-{_slug(indicator.id)}", "rules": made}, iter(notes)


def _alert(indicator: Indicator, service: str, severity: str, expr: str) -> dict[str, Any]:
    what = {"page": "fast", "ticket": "faster than it may"}[severity]
    return {
        "alert": "ErrorBudgetBurn",
        "expr": expr,
        "labels": {"service": service, "slo": indicator.id, "severity": severity},
        "annotations": {
            "summary": f"{service}: the error budget of {indicator.id} burns {what}",
            "description": f"{indicator.objective.promise}; now "
            "{{ $value | humanizePercentage }} of requests are bad",
        },
    }


def _query_group(queries: tuple[Objective, ...], service: str) -> dict[str, Any]:
    made = []
    for objective in queries:
        assert isinstance(objective.promise, Query)
        asked = objective.promise.promql.replace("$window", "5m")
        bounds = (("<", objective.promise.at_least), (">", objective.promise.at_most))
        tests = [f"({asked}) {op} {bound:g}" for op, bound in bounds if bound is not None]
        made.append(
            {
                "alert": "ObjectiveMissed",
                "expr": " or ".join(tests),
                "for": "10m",
                "labels": {
                    "service": service,
                    "slo": objective.id,
                    "severity": "page" if objective.severity == "fail" else "ticket",
                },
                "annotations": {
                    "summary": f"{service}: {objective.id} is not what was promised",
                    "description": f"{objective.promise}; now {{{{ $value }}}}",
                },
            }
        )
    return {"name": f"prony-slo-{_slug(service)}-queries", "rules": made}


def _selectors(slo: SloFile, engine: str | None) -> tuple[Engine, str]:
    prometheus = _prometheus(slo)
    name = engine or prometheus.get("profile") or "prony"
    if name not in ENGINES:
        raise ValueError(f"{name}: no engine that is known (known: {', '.join(ENGINES)})")
    job = prometheus.get("job") or ENGINES[name].job
    return ENGINES[name], f"job={json.dumps(str(job))}"


def _prometheus(slo: SloFile) -> Mapping[str, Any]:
    found = slo.export.get("prometheus")
    return found if isinstance(found, Mapping) else {}


def _window(slo: SloFile) -> float:
    return parse_duration(_in_hours(str(_prometheus(slo).get("window") or DEFAULT_WINDOW)))


def _in_hours(text: str) -> str:
    """Prometheus's days and weeks, which our files do not have, as hours."""
    match = re.fullmatch(r"(\d+)([dw])", text)
    return text if match is None else f"{int(match[1]) * {'d': 24, 'w': 168}[match[2]]}h"


def _with(counter: str, selector: str) -> str:
    """`name{a="b"}` with one more matcher."""
    name, _, rest = counter.partition("{")
    own = rest.removesuffix("}")
    return f"{name}{{{','.join(part for part in (selector, own) if part)}}}"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice: people read this file."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(data: Any) -> str:
    return yaml.dump(data, Dumper=_Plain, sort_keys=False, width=1000, allow_unicode=True)
