"""The verdict on one objective: it and a measured run go in, a result with its numbers comes out.

Met and breached are claimed only where the data leave no other reading at the objective's
confidence; everything between is inconclusive, and says what would settle it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prony_loadgen.summary import Measured, json_number, percentile, tokens_inside
from prony_loadgen.words import ms, share
from prony_slo import intervals
from prony_slo.counting import Counted, count
from prony_slo.promise import RATE_UNITS, Band, Floor, Objective, Severity, Share

Verdict = Literal["pass", "breach", "inconclusive", "invalid"]


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """One objective, judged. `text` has the numbers for people, without the id and verdict."""

    id: str
    verdict: Verdict
    severity: Severity
    promise: str  # what was promised: "ttft <= 500 ms for 99 % of requests"
    text: str
    place: str
    n: int | None = None  # requests judged
    bad: int | None = None
    share: float | None = None  # bad of judged
    bounds: tuple[float, float] | None = None  # one-sided each, of the true share
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
            "n": self.n,
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
    measured: Measured,
    objectives: Sequence[Objective],
    unfinished_is_bad: bool,
) -> ObjectiveResult:
    """The verdict on `objective`, one of `objectives`, which a goodput minimum may refer to."""
    if objective.scenario is not None and objective.scenario != measured.scenario:
        return _result(
            objective,
            "inconclusive",
            f"no data: it is about the scenario {objective.scenario}, this run is of "
            f"{measured.scenario or 'none'}",
        )
    promise = objective.promise
    if isinstance(promise, Share):
        return _judge_share(objective, promise, measured, unfinished_is_bad)
    if isinstance(promise, Floor):
        return _judge_floor(objective, promise, measured, objectives, unfinished_is_bad)
    return _judge_band(objective, promise, measured)


def _judge_share(
    objective: Objective, promise: Share, measured: Measured, unfinished_is_bad: bool
) -> ObjectiveResult:
    counted = count(promise.conditions, measured, unfinished_is_bad)
    n, bad, limit, confidence = counted.n, counted.bad, promise.limit, objective.confidence
    low = intervals.lower(bad, n, confidence)
    high = intervals.upper(bad, n, confidence)
    seen = f"{_seen(promise, counted)}, limit {share(limit)}"
    sure = f"with {share(confidence)} confidence"
    verdict: Verdict = "inconclusive"
    needed_more = None
    if low > limit:
        verdict = "breach"
        text = f"{seen}, at least {share(low)} {sure}{_quantile(promise, counted)}"
    elif not measured.attempts:
        text = "no data: no requests were measured"
    elif counted.unknown or n == 0:
        missing = " or ".join(counted.unknown) or "result"
        text = f"no data: no answer has a {missing}{_why(counted)}"
    elif measured.cut_short:
        text = f"{seen}: the run was cut short, so it can only show a breach"
    elif high <= limit and n >= objective.min_requests:
        verdict = "pass"
        text = f"{seen}, at most {share(high)} {sure}{_quantile(promise, counted)}"
    else:
        needed_more = _needed_more(objective, promise, counted)
        text = f"{seen}, {share(low)} to {share(high)} are possible: {_more(needed_more)}"
    if n and (verdict == "breach" or not counted.unknown):
        text += f" | {_budget(bad, n, limit)}"
    return _result(
        objective,
        verdict,
        text,
        n=n,
        bad=bad,
        share=counted.share,
        bounds=(low, high) if n else None,
        limit=limit,
        value=percentile(counted.values, 1 - limit),
        needed_more=needed_more,
        left_out=counted.left_out,
    )


def _judge_floor(
    objective: Objective,
    promise: Floor,
    measured: Measured,
    objectives: Sequence[Objective],
    unfinished_is_bad: bool,
) -> ObjectiveResult:
    n = measured.attempts
    least = f"at least {promise.at_least:,g} wanted"
    if measured.seconds <= 0 or n == 0:
        return _result(objective, "inconclusive", "no data: no requests were measured", n=n)
    if promise.of is not None:
        good = next(o.promise for o in objectives if o.id == promise.of)
        assert isinstance(good, Share)
        counted = count(good.conditions, measured, unfinished_is_bad)
        if counted.unknown and counted.bad < counted.n:
            missing = " or ".join(counted.unknown)
            return _result(objective, "inconclusive", f"no data: no answer has a {missing}", n=n)
        rate = counted.good / measured.seconds
    else:
        rate = _rate(promise, measured)
    seen = f"{rate:,.4g} {RATE_UNITS[promise.metric]} over {measured.seconds:,.1f} s, {least}"
    needed_more = max(0, objective.min_requests - n) or None
    verdict: Verdict = "pass" if rate >= promise.at_least else "breach"
    if measured.cut_short:
        verdict, seen = "inconclusive", f"{seen}: the run was cut short"
    elif needed_more:
        verdict = "inconclusive"
        seen = f"{seen}, {n:,} requests: not enough data, {needed_more:,} more are needed"
    else:
        # The rate of one run has no sample to take an interval from.
        seen += " (a single measurement, no uncertainty is claimed)"
    return _result(
        objective,
        verdict,
        seen,
        n=n,
        limit=promise.at_least,
        value=rate,
        needed_more=needed_more,
    )


def _judge_band(objective: Objective, promise: Band, measured: Measured) -> ObjectiveResult:
    value = (measured.gauges or {}).get(promise.metric)
    if value is None:
        return _result(objective, "inconclusive", f"not collected: no {promise.metric} in this run")
    too_low = promise.at_least is not None and value < promise.at_least
    too_high = promise.at_most is not None and value > promise.at_most
    return _result(
        objective,
        "breach" if too_low or too_high else "pass",
        f"{share(value)} on average, wanted {promise} (no uncertainty is claimed)",
        value=value,
    )


def _rate(promise: Floor, measured: Measured) -> float:
    everything = measured.records + measured.outside
    if promise.metric == "output_tokens_per_s":
        return tokens_inside(everything, measured.window) / measured.seconds
    start, end = measured.window
    return sum(r.ok and start <= r.ended < end for r in everything) / measured.seconds


def _result(objective: Objective, verdict: Verdict, text: str, **numbers: Any) -> ObjectiveResult:
    return ObjectiveResult(
        id=objective.id,
        verdict=verdict,
        severity=objective.severity,
        promise=str(objective.promise),
        text=text,
        place=objective.place,
        conditions=_limits(objective),
        **numbers,
    )


def _limits(objective: Objective) -> dict[str, float]:
    """What a drawing of the latencies shows as lines."""
    promise = objective.promise
    return {c.metric: c.limit for c in promise.conditions} if isinstance(promise, Share) else {}


def _needed_more(objective: Objective, promise: Share, counted: Counted) -> int | None:
    total = intervals.settles_at(promise.limit, objective.confidence, counted.bad, counted.n)
    if total is None:
        return None
    return max(total, objective.min_requests) - counted.n


def _more(needed_more: int | None) -> str:
    if needed_more is None:
        return "not enough data, and at this share no number of requests would settle it"
    return f"not enough data, about {needed_more:,} more requests would settle it at this share"


def _seen(promise: Share, counted: Counted) -> str:
    """ "1.9 % of 4,812 requests miss ttft <= 500 ms (12 failed)"."""
    of = f"{share(counted.share)} of {counted.n:,} requests"
    if not promise.conditions:
        return f"{of} failed"
    conditions = " and ".join(str(condition) for condition in promise.conditions)
    lost = f" ({counted.failed:,} failed)" if counted.failed else ""
    return f"{of} miss {conditions}{lost}"


def _quantile(promise: Share, counted: Counted) -> str:
    """ "; p99 is 1,204 ms", where there is one metric to take it of."""
    at = percentile(counted.values, 1 - promise.limit)
    return "" if at is None else f"; p{100 * (1 - promise.limit):.4g} is {ms(at)}"


def _why(counted: Counted) -> str:
    if not counted.left_out:
        return ""
    return f" ({', '.join(f'{n:,} {why}' for why, n in counted.left_out.items())})"


def _budget(bad: int, n: int, limit: float) -> str:
    """The error budget: what the limit allows of these requests, and how much of it is used."""
    budget = limit * n
    return f"budget {budget:,.3g} bad requests, {bad:,} used ({bad / budget * 100:,.0f} %)"
