"""The verdict on one objective: it and measured runs go in, a result with its numbers comes out.

Met and breached are claimed only where the data leave no other reading at the objective's
confidence; everything between is inconclusive, and says what would settle it. Several runs are
judged together, as one longer one whose noise between runs is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prony_loadgen.record import RequestRecord
from prony_loadgen.summary import Measured, json_number, percentile
from prony_loadgen.words import ms, share
from prony_slo import intervals, rates
from prony_slo.counting import Counted, count, count_marked, together
from prony_slo.early import evidence_at
from prony_slo.effective import Effective, effective
from prony_slo.promise import (
    Band,
    Condition,
    Floor,
    Marked,
    Objective,
    OnInconclusive,
    Query,
    Severity,
    Share,
)
from prony_slo.promql import QueryError, Reader, fill_in
from prony_slo.selection import Part, select

Verdict = Literal["pass", "breach", "inconclusive", "invalid"]

# Above so many requests per independent one, bursts decide: another run may hold none, or two.
BURSTS = 10


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """One objective, judged. `text` has the numbers for people, without the id and verdict."""

    id: str
    verdict: Verdict
    severity: Severity
    promise: str  # what was promised: "ttft <= 500 ms for 99 % of requests"
    text: str
    place: str
    on_inconclusive: OnInconclusive = "inconclusive"
    n: int | None = None  # requests judged
    n_eff: float | None = None  # independent requests that they are worth
    bad: int | None = None
    share: float | None = None  # bad of judged
    bounds: tuple[float, float] | None = None  # one-sided each, of the true share or rate
    limit: float | None = None  # a share, a rate, or None for a band
    value: float | None = None  # the percentile in seconds, the rate or the gauge that was seen
    conditions: dict[str, float] = field(default_factory=dict)  # latency -> limit in seconds
    needed_more: int | None = None  # requests that would settle it, if the share stayed
    left_out: dict[str, int] = field(default_factory=dict)  # why not judged -> requests

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "verdict": self.verdict,
            "severity": self.severity,
            "promise": self.promise,
            "text": self.text,
            "place": self.place,
            "on_inconclusive": self.on_inconclusive,
            "n": self.n,
            "n_eff": json_number(self.n_eff),
            "bad": self.bad,
            "share": json_number(self.share),
            "bounds": None if self.bounds is None else [json_number(b) for b in self.bounds],
            "limit": json_number(self.limit),
            "value": json_number(self.value),
            "conditions": self.conditions,
            "needed_more": self.needed_more,
            "left_out": self.left_out,
        }


def judge_objective(
    objective: Objective,
    runs: Sequence[Measured],
    objectives: Sequence[Objective],
    unfinished_is_bad: bool,
    reader: Reader | None = None,
) -> ObjectiveResult:
    """The verdict on `objective`, one of `objectives`, which a goodput minimum may refer to.

    `reader` answers `promql` objectives; without one they are not collected.
    """
    mine = [r for r in runs if objective.scenario in (None, r.scenario)]
    if not mine:
        others = ", ".join(dict.fromkeys(run.scenario or "none" for run in runs))
        return _result(
            objective,
            "inconclusive",
            f"no data: it is about the scenario {objective.scenario}, this run is of {others}",
        )
    parts = []
    for run in mine:
        part = select(run, objective.cls, objective.stage)
        if isinstance(part, str):
            return _result(objective, "inconclusive", part)
        parts.append(part)
    promise = objective.promise
    if isinstance(promise, Share):
        return _judge_share(objective, promise, parts, unfinished_is_bad)
    if isinstance(promise, Marked):
        return _judge_marked(objective, promise, parts)
    if isinstance(promise, Floor):
        return _judge_floor(objective, promise, parts, objectives, unfinished_is_bad)
    if isinstance(promise, Query):
        return _judge_query(objective, promise, parts, reader)
    return _judge_band(objective, promise, parts)


def _judge_share(
    objective: Objective, promise: Share, parts: Sequence[Part], unfinished_is_bad: bool
) -> ObjectiveResult:
    counted = together(
        [count(promise.conditions, part.measured, unfinished_is_bad) for part in parts]
    )
    return _judge_counted(objective, promise.limit, promise.conditions, counted, parts)


def _judge_marked(objective: Objective, promise: Marked, parts: Sequence[Part]) -> ObjectiveResult:
    if any(promise.metric not in part.measured.quality for part in parts):
        return _result(
            objective,
            "inconclusive",
            f"not collected: nobody looked at {promise.metric} in this run",
            limit=promise.limit,
        )
    counted = together([count_marked(promise.metric, part.measured) for part in parts])
    return _judge_counted(objective, promise.limit, (), counted, parts, kind=promise.metric)


def _judge_counted(
    objective: Objective,
    limit: float,
    conditions: tuple[Condition, ...],
    counted: Counted,
    parts: Sequence[Part],
    kind: str | None = None,
) -> ObjectiveResult:
    n, bad, confidence = counted.n, counted.bad, objective.confidence
    without_a_place = n - sum(len(run) for run in counted.runs)
    worth = effective(counted.runs, confidence, without_a_place)
    low = intervals.lower(worth.bad, worth.n, confidence)
    # Dropped arrivals that may belong here forbid a pass as if they did.
    unplaced = sum(part.unplaced for part in parts)
    at_worst = effective(counted.runs, confidence, without_a_place + unplaced)
    high = intervals.upper(at_worst.bad, at_worst.n, confidence)
    seen = f"{_seen(conditions, counted, kind)}{_worth(worth)}, limit {share(limit)}"
    sure = f"with {share(confidence)} confidence"
    verdict: Verdict = "inconclusive"
    needed_more = None
    if low > limit:
        verdict = "breach"
        text = f"{seen}, at least {share(low)} {sure}{_quantile(limit, counted)}"
    elif (early := _stopped_on_evidence(objective, conditions, parts, kind)) is not None:
        verdict = "breach"
        text = f"{seen}: after {early:,} requests it was certain that more are bad"
    elif not any(part.measured.attempts for part in parts):
        text = "no data: no requests were measured"
    elif counted.unknown or n == 0:
        missing = " or ".join(counted.unknown) or "result"
        text = f"no data: no answer has a {missing}{_why(counted)}"
    elif any(part.measured.cut_short for part in parts):
        text = f"{seen}: the run was cut short, so it can only show a breach"
    elif high <= limit and n >= objective.min_requests:
        verdict = "pass"
        text = f"{seen}, at most {share(high)} {sure}{_quantile(limit, counted)}"
    else:
        needed_more = _needed_more(objective, limit, counted, worth)
        text = f"{seen}, {share(low)} to {share(high)} are possible: {_more(needed_more)}"
        if unplaced:
            text += f" ({unplaced:,} arrivals were never sent, and might belong here)"
    if n and (verdict == "breach" or not counted.unknown):
        text += f" | {_budget(bad, n, limit, high)}"
    if worth.inflation > BURSTS:
        text += " | bursts decide it: true of this trace of arrivals, maybe not of another"
    return _result(
        objective,
        verdict,
        text,
        n=n,
        n_eff=worth.n,
        bad=bad,
        share=counted.share,
        bounds=(low, high) if n else None,
        limit=limit,
        value=percentile(counted.values, 1 - limit),
        needed_more=needed_more,
        left_out=counted.left_out,
    )


def _stopped_on_evidence(
    objective: Objective,
    conditions: tuple[Condition, ...],
    parts: Sequence[Part],
    kind: str | None,
) -> int | None:
    """After how many requests a run that was cut short had shown a breach for good."""
    if kind is not None or not isinstance(objective.promise, Share):
        return None
    for part in parts:
        if part.measured.cut_short:
            records = sorted(part.measured.records, key=_ended)
            at = evidence_at(records, conditions, objective.promise.limit, objective.confidence)
            if at is not None:
                return at
    return None


def _ended(record: RequestRecord) -> float:
    return record.ended


def _judge_floor(
    objective: Objective,
    promise: Floor,
    parts: Sequence[Part],
    objectives: Sequence[Objective],
    unfinished_is_bad: bool,
) -> ObjectiveResult:
    runs = [part.measured for part in parts]
    n = sum(run.attempts for run in runs)
    seconds = sum(run.seconds for run in runs)
    if seconds <= 0 or n == 0:
        return _result(objective, "inconclusive", "no data: no requests were measured", n=n)
    conditions: tuple[Condition, ...] = ()
    if promise.of is not None:
        good = next(o.promise for o in objectives if o.id == promise.of)
        assert isinstance(good, Share)
        conditions = good.conditions
        counted = together([count(conditions, run, unfinished_is_bad) for run in runs])
        if counted.unknown and counted.bad < counted.n:
            missing = " or ".join(counted.unknown)
            return _result(objective, "inconclusive", f"no data: no answer has a {missing}", n=n)
    needed_more = max(0, objective.min_requests - n) or None
    verdict, seen, rate, bounds = rates.judge(promise, runs, conditions, objective.confidence)
    if any(run.cut_short for run in runs):
        verdict, seen = "inconclusive", f"{seen}: the run was cut short"
    elif needed_more:
        verdict = "inconclusive"
        seen = f"{seen}, {n:,} requests: not enough data, {needed_more:,} more are needed"
    elif bounds is None:
        # The rate of one run has no sample to take an interval from.
        seen += " (a single measurement, no uncertainty is claimed)"
    return _result(
        objective,
        verdict,
        seen,
        n=n,
        bounds=bounds,
        limit=promise.at_least,
        value=rate,
        needed_more=needed_more,
    )


def _judge_band(objective: Objective, promise: Band, parts: Sequence[Part]) -> ObjectiveResult:
    values = [(part.measured.gauges or {}).get(promise.metric) for part in parts]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return _result(objective, "inconclusive", f"not collected: no {promise.metric} in this run")
    value = sum(known) / len(known)
    return _result(
        objective,
        _between(value, promise.at_least, promise.at_most),
        f"{share(value)} on average, wanted {promise} (no uncertainty is claimed)",
        value=value,
    )


def _judge_query(
    objective: Objective, promise: Query, parts: Sequence[Part], reader: Reader | None
) -> ObjectiveResult:
    """Every run must hold it; the one that is furthest from holding is named."""
    values = []
    for part in parts:
        run = part.measured
        if reader is None:
            text = (
                "not collected: the run kept nothing of its target's /metrics; name a Prometheus "
                "(measure.prometheus) that watched it"
            )
            return _result(objective, "inconclusive", text)
        if run.origin_unix is None or run.seconds <= 0:
            return _result(objective, "inconclusive", "no data: nobody knows when the run was")
        query = fill_in(promise.promql, run.seconds)
        try:
            value = reader(query, run.origin_unix + run.window[1])
        except QueryError as error:
            return _result(objective, "inconclusive", f"no data: {error}")
        if value is None:
            return _result(objective, "inconclusive", f"no data: {query} is empty or NaN")
        values.append(value)
    worst = max(values, key=lambda value: _beyond(value, promise))
    wanted = " and ".join(
        f"{word} {bound:g}"
        for word, bound in (("at least", promise.at_least), ("at most", promise.at_most))
        if bound is not None
    )
    where = f" in the worst of {len(values)} runs" if len(values) > 1 else ""
    return _result(
        objective,
        _between(worst, promise.at_least, promise.at_most),
        f"{worst:,.6g}{where}, wanted {wanted} (no uncertainty is claimed)",
        value=worst,
    )


def _beyond(value: float, promise: Query) -> float:
    low = float("-inf") if promise.at_least is None else promise.at_least - value
    high = float("-inf") if promise.at_most is None else value - promise.at_most
    return max(low, high)


def _between(value: float, at_least: float | None, at_most: float | None) -> Verdict:
    too_low = at_least is not None and value < at_least
    too_high = at_most is not None and value > at_most
    return "breach" if too_low or too_high else "pass"


def _result(objective: Objective, verdict: Verdict, text: str, **numbers: Any) -> ObjectiveResult:
    return ObjectiveResult(
        id=objective.id,
        verdict=verdict,
        severity=objective.severity,
        promise=str(objective.promise) + _where(objective),
        text=text,
        place=objective.place,
        on_inconclusive=objective.on_inconclusive,
        conditions=_limits(objective),
        **numbers,
    )


def _where(objective: Objective) -> str:
    parts: Mapping[str, str | None] = {"class": objective.cls, "stage": objective.stage}
    named = ", ".join(f"{what} {name}" for what, name in parts.items() if name is not None)
    return f" ({named})" if named else ""


def _limits(objective: Objective) -> dict[str, float]:
    """What a drawing of the latencies shows as lines."""
    promise = objective.promise
    return {c.metric: c.limit for c in promise.conditions} if isinstance(promise, Share) else {}


def _needed_more(
    objective: Objective, limit: float, counted: Counted, worth: Effective
) -> int | None:
    total = intervals.settles_at(limit, objective.confidence, worth.bad, worth.n)
    if total is None:
        return None
    return max(round(total * worth.inflation), objective.min_requests, counted.n + 1) - counted.n


def _more(needed_more: int | None) -> str:
    if needed_more is None:
        return "not enough data, and at this share no number of requests would settle it"
    return f"not enough data, about {needed_more:,} more requests would settle it at this share"


def _seen(conditions: tuple[Condition, ...], counted: Counted, kind: str | None) -> str:
    """ "1.9 % of 4,812 requests miss ttft <= 500 ms (12 failed)"."""
    of = f"{share(counted.share)} of {counted.n:,} requests"
    if kind is not None:
        return f"{share(counted.share)} of {counted.n:,} answers ({kind.removesuffix('_share')})"
    if not conditions:
        return f"{of} failed"
    told = " and ".join(str(condition) for condition in conditions)
    lost = f" ({counted.failed:,} failed)" if counted.failed else ""
    return f"{of} miss {told}{lost}"


def _worth(worth: Effective) -> str:
    if worth.inflation < 1.05:
        return ""
    return f" (in bursts: worth {worth.n:,.0f} independent ones)"


def _quantile(limit: float, counted: Counted) -> str:
    """ "; p99 is 1,204 ms", where there is one metric to take it of."""
    at = percentile(counted.values, 1 - limit)
    return "" if at is None else f"; p{100 * (1 - limit):.4g} is {ms(at)}"


def _why(counted: Counted) -> str:
    if not counted.left_out:
        return ""
    return f" ({', '.join(f'{n:,} {why}' for why, n in counted.left_out.items())})"


def _budget(bad: int, n: int, limit: float, high: float) -> str:
    """The error budget: what the limit allows of these requests, and how much of it is used."""
    budget = limit * n
    return (
        f"budget {budget:,.3g} bad requests, {bad:,} used ({bad / budget * 100:,.0f} %), "
        f"at most {high * n:,.0f} ({high / limit * 100:,.0f} %) by chance"
    )
