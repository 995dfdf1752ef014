"""A run's numbers: its records go in, exact percentiles, rates and counts come out as plain JSON.

Each latency is summed up twice: `ok` over the requests that succeeded, `all` over every attempt
with failures as +infinity. The gate judges on all attempts, because a server that refuses half
of its load has fast successes. Definitions: docs/design.md.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from prony_loadgen.quality import shares
from prony_loadgen.record import RequestRecord

METRICS = ("ttft", "ttft_from_send", "ttfo", "e2e", "tpot", "max_gap", "send_lag")
# What a request that was cut by the end of the run has already shown.
KNOWN_OF_INCOMPLETE = frozenset({"ttft", "ttft_from_send", "ttfo", "send_lag"})
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
CHECK_CLASS = "check-"  # the start of the classes of what checks.py asks
NO_ANSWER = "the target stopped answering"  # the start of why a run was stopped early
STALL = 0.2  # seconds; a longer gap between two arrivals of a request is a stall

Samples = list[tuple[float, float]]  # (seconds, weight)


class Stage(NamedTuple):
    """A part of the run's schedule with a name, in seconds on the run's clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The part of a run that counts, and what is needed to judge it."""

    records: tuple[RequestRecord, ...]  # intended inside the window
    # Warm-up, what was intended after the window, and what was in flight while it was profiled.
    outside: tuple[RequestRecord, ...]
    window: tuple[float, float]  # seconds on the run's clock
    loop: Literal["open", "closed"]
    dropped: int = 0  # arrivals that the generator could not send; bad for every objective
    interrupted: bool = False
    ended: bool = True  # whether the folder tells of an end: not while it runs, nor of a killed run
    stopped_early: str | None = None
    scenario: str | None = None
    gauges: Mapping[str, float] | None = None  # means over the window, "gpu_utilization" among them
    stages: tuple[Stage, ...] = ()
    origin_unix: float | None = None  # Unix time of the run's second 0
    quality: frozenset[str] = frozenset()  # "truncated_share", ...: what records were looked at for
    # Parts of the window in which a profiler disturbed the target: in no figure.
    profiled: tuple[tuple[float, float], ...] = ()

    @property
    def seconds(self) -> float:
        """How long was measured: the window without what was profiled of it."""
        start, end = self.window
        cut = sum(max(0.0, min(b, end) - max(a, start)) for a, b in self.profiled)
        return max(0.0, end - start - cut)

    def holds(self, at: float) -> bool:
        """Whether a moment counts: inside the window, and no profiler was at work."""
        start, end = self.window
        return start <= at < end and not any(a <= at < b for a, b in self.profiled)

    def finished(self) -> list[RequestRecord]:
        """Answers that ended while it was measured, whenever their request was sent.

        What rates count: by when they were asked for, an overloaded server would seem to do more.
        """
        return [r for r in self.records + self.outside if r.ok and self.holds(r.ended)]

    def tokens(self) -> float:
        """Output tokens that arrived while it was measured, whenever their request was sent."""
        return tokens_inside(self.records + self.outside, self.window, self.profiled)

    @property
    def attempts(self) -> int:
        """Requests that should have been answered: those sent, and those dropped."""
        return len(self.records) + self.dropped

    @property
    def cut_short(self) -> bool:
        return self.interrupted or self.stopped_early is not None


def measured(
    run: Mapping[str, Any], records: Iterable[RequestRecord], *, warmup: float | None = None
) -> Measured:
    """The requests of a run (run.json and its records) that lie in its measurement window.

    A request belongs to the window by when it was intended, so that a slow one is not lost at the
    end. `warmup` is the SLO file's, in seconds; the scenario's own wins over it.
    """
    start, end = (float(edge) for edge in run["window"])
    if warmup is not None and run.get("scenario", {}).get("warmup") is None:
        start = min(max(start, warmup), end)
    inside: list[RequestRecord] = []
    outside: list[RequestRecord] = []
    disturbed = profiled(run)
    for record in records:
        counts = start <= record.intended < end and not in_flight(record, disturbed)
        (inside if counts else outside).append(record)
    interrupted, stopped_early = bool(run.get("interrupted")), run.get("stopped_early")
    # Where a run was cut, what was due but unsent was cancelled: nobody failed to send it.
    cut_short = interrupted or stopped_early is not None
    return Measured(
        records=tuple(inside),
        outside=tuple(outside),
        window=(start, end),
        loop=run["loop"],
        dropped=0 if cut_short else run.get("schedule", {}).get("dropped") or 0,
        interrupted=interrupted,
        ended=run.get("ended_at", "") is not None,
        stopped_early=stopped_early,
        scenario=run.get("scenario", {}).get("name"),
        gauges=run.get("gauges"),
        stages=tuple(Stage(str(n), float(a), float(b)) for n, a, b in run.get("stages") or ()),
        origin_unix=run.get("origin_unix"),
        quality=frozenset(run.get("quality") or ()),
        profiled=disturbed,
    )


def profiled(run: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    """The spans of a run (run.json) in which a profiler disturbed the target, without overlaps.

    Each ends a moment after its capture, which the target needs to catch up.
    """
    told = ((run.get("profile") or {}).get("captures")) or ()
    spans = sorted((float(a), float(b)) for a, b in (each["left_out"] for each in told))
    apart: list[tuple[float, float]] = []
    for start, end in spans:
        if apart and start <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end))
        else:
            apart.append((start, end))
    return tuple(apart)


def in_flight(record: RequestRecord, spans: Iterable[tuple[float, float]]) -> bool:
    """Whether a request was waited for at any time within the spans."""
    return any(record.intended < end and record.ended > start for start, end in spans)


def is_empty(record: RequestRecord) -> bool:
    """Whether it finished without any output: ok, counted, and out of every latency."""
    return record.ok and (not record.arrivals or "empty" in record.flags)


def is_check(record: RequestRecord) -> bool:
    """Whether it was asked before or after the load to see if the answers are right."""
    return record.cls.startswith(CHECK_CLASS)


def failed(record: RequestRecord) -> bool:
    """Whether the target failed it; cut by the end of the run is not failed."""
    return not record.ok and record.outcome != "incomplete"


def value(record: RequestRecord, metric: str) -> float | None:
    """Seconds of one of METRICS; +infinity for a failed request.

    None where it is undefined: no output, TPOT of one token, an answer that was not streamed, or
    a request that the end of the run cut before it was known. A failure has no latency because
    its user never got the answer, however fast the refusal came. `send_lag` is ours, not the
    target's, so a failed request keeps its own.
    """
    if metric == "send_lag":
        return record.send_lag
    if failed(record):
        return math.inf
    if is_empty(record):
        return None
    if record.outcome == "incomplete" and metric not in KNOWN_OF_INCOMPLETE:
        return None
    seconds: float | None = getattr(record, metric)
    # A negative latency is a broken clock, never a sample; doubts.py counts them.
    return None if seconds is not None and seconds < 0 else seconds


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile: the smallest value that `share` of all values do not exceed.

    It is always one of the values, never between two or beyond the largest. None of no values.
    """
    if not values:
        return None
    return sorted(values)[_rank(len(values), share)]


def weighted_percentiles(samples: Samples, shares: Sequence[float]) -> list[float | None]:
    """Nearest-rank percentiles where a sample counts as often as its weight, above 0, says."""
    if not samples:
        return [None] * len(shares)
    pairs = np.array(samples)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reached = np.cumsum(pairs[:, 1])
    # As in _rank: what a float's last digit adds must not move to the next sample.
    wanted = np.array(shares) * reached[-1] * (1 - 1e-12)
    ranks = np.minimum(np.searchsorted(reached, wanted), len(pairs) - 1)
    return [float(seconds) for seconds in pairs[ranks, 0]]


def summarise(measured: Measured) -> dict[str, Any]:
    """The summary of run.json. Infinity is the string "inf"; what is unknown is None, never 0."""
    summary = _summary_of(measured)
    by_class: dict[str, list[RequestRecord]] = {}
    for record in measured.records:
        by_class.setdefault(record.cls, []).append(record)
    if len(by_class) > 1:
        summary["classes"] = {
            cls: {
                "requests": _counts(records, dropped=0),
                **{m: latency(records, m) for m in METRICS},
                "itl": inter_token_latency(records),
            }
            for cls, records in sorted(by_class.items())
        }
    return summary


def latency(records: Sequence[RequestRecord], metric: str, dropped: int = 0) -> dict[str, Any]:
    """`all` and `ok` of one per-request metric."""
    ok = [v for r in records if r.ok and (v := value(r, metric)) is not None]
    lost = [v for r in records if failed(r) and (v := value(r, metric)) is not None]
    if metric != "send_lag":
        lost += [math.inf] * dropped
    return {"all": _statistics(ok + lost), "ok": _statistics(ok)}


def inter_token_latency(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """`all` and `ok` of the gaps between tokens, each token one sample.

    A failed request counts as the infinite gaps of the tokens that it was asked for, or of as
    many as the others got.
    """
    ok: Samples = [s for r in records if r.ok for s in r.itl if s[0] >= 0]
    got = [r.output_tokens for r in records if r.ok and r.output_tokens]
    typical = sum(got) / len(got) if got else 2
    lost = [
        (math.inf, max(1.0, (r.asked_output_tokens or typical) - 1)) for r in records if failed(r)
    ]
    return {"all": _weighted_statistics(ok + lost), "ok": _weighted_statistics(ok)}


def tokens_inside(
    records: Iterable[RequestRecord],
    window: tuple[float, float],
    without: Sequence[tuple[float, float]] = (),
) -> float:
    """Output tokens that arrived inside the window but `without`, whenever their request was sent.

    Where the stream did not say how many tokens a chunk held, the request's true count is spread
    over its chunks.
    """
    start, end = window
    total = 0.0
    for record in records:
        told = sum(arrival.tokens for arrival in record.arrivals)
        inside = sum(a.tokens for a in record.arrivals if start <= a.at < end)
        for cut_start, cut_end in without:
            first, last = max(start, cut_start), min(end, cut_end)
            inside -= sum(a.tokens for a in record.arrivals if first <= a.at < last)
        if inside:
            total += inside * ((record.output_tokens or told) / told)
    return total


def json_number(number: float | None) -> float | str | None:
    """A number as our files write it: infinity is "inf", and NaN is a bug."""
    if number is None:
        return None
    if math.isnan(number):
        raise ValueError("NaN has no place in a result")
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return round(float(number), 9)


def _summary_of(measured: Measured) -> dict[str, Any]:
    records = measured.records
    return {
        "window": list(measured.window),
        "loop": measured.loop,
        "requests": {
            **_counts(records, measured.dropped),
            "outside_window": len(measured.outside),
            **_profiled(measured),
        },
        **{m: latency(records, m, measured.dropped) for m in METRICS},
        "itl": inter_token_latency(records),
        "rates": _rates(measured),
        "tokens": _tokens(records),
        "stalls": _stalls(records),
        "quality": shares(records, [r for r in measured.outside if is_check(r)]),
        "client_lag": _client_lag(records),
        "model_loads": _model_loads(records),
        "retries": _retries(records),
        "outcomes": _sorted_counts(r.outcome for r in records),
        "errors": _errors(records),
        "finish_reasons": _sorted_counts(r.finish_reason for r in records if r.finish_reason),
        "flags": _sorted_counts(flag for r in records for flag in r.flags),
    }


def _profiled(measured: Measured) -> dict[str, int]:
    """How many requests a profiler took out of the window; nothing where none was at work."""
    if not measured.profiled:
        return {}
    start, end = measured.window
    lost = (r for r in measured.outside if start <= r.intended < end)
    return {"profiled": sum(in_flight(r, measured.profiled) for r in lost)}


def _counts(records: Sequence[RequestRecord], dropped: int) -> dict[str, int]:
    return {
        "attempts": len(records) + dropped,
        "ok": sum(r.ok for r in records),
        "failed": sum(failed(r) for r in records),
        "incomplete": sum(r.outcome == "incomplete" for r in records),
        "dropped": dropped,
        "empty": sum(is_empty(r) for r in records),
    }


def _rates(measured: Measured) -> dict[str, float | None]:
    counts = _counts(measured.records, measured.dropped)
    answered = counts["attempts"] - counts["incomplete"]
    bad = counts["failed"] + counts["dropped"]
    per_second = 1 / measured.seconds if measured.seconds > 0 else None
    tokens = measured.tokens()
    return {
        "requests_per_s": len(measured.finished()) * per_second if per_second else None,
        "output_tokens_per_s": tokens * per_second if per_second else None,
        "error_rate": bad / answered if answered else None,
    }


def _tokens(records: Sequence[RequestRecord]) -> dict[str, Any]:
    ok = [r for r in records if r.ok]
    incomplete = [r for r in records if r.outcome == "incomplete"]
    return {
        "input": _asked_and_got((r.asked_input_tokens, r.prompt_tokens) for r in ok),
        "output": _asked_and_got((r.asked_output_tokens, r.output_tokens) for r in ok),
        # Known from chunks alone, so a chunk of several tokens counted as one.
        "estimated_requests": sum(r.output_tokens_from == "chunks" for r in ok),
        "unknown_requests": sum(r.output_tokens is None for r in ok),
        "of_incomplete": sum(arrival.tokens for r in incomplete for arrival in r.arrivals),
    }


def _asked_and_got(pairs: Iterable[tuple[int | None, int | None]]) -> dict[str, Any]:
    """`got` is over all requests that know it; `asked` compares only those that know both."""
    pairs = list(pairs)
    got = [g for _, g in pairs if g is not None]
    both = [(a, g) for a, g in pairs if a is not None and g is not None]
    return {
        "got": sum(got) if got else None,
        "compared_requests": len(both),
        "compared_asked": sum(a for a, _ in both) if both else None,
        "compared_got": sum(g for _, g in both) if both else None,
    }


def _client_lag(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """How long answers waited for our own client, where the kernel said when they came."""
    lags = [r.client_lag for r in records if r.client_lag is not None]
    answered = sum(bool(r.arrivals) for r in records)
    return {**_statistics(lags), "without_kernel_times": max(0, answered - len(lags))}


def _retries(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """What was sent more than once, as the scenario asks; each counts once in all else."""
    again = [r for r in records if r.earlier]
    tries = [attempt for r in again for attempt in r.earlier]
    waited = [(r.headers or r.ended) - r.earlier[0].ended for r in again]
    return {
        "requests": len(again),
        "attempts": len(tries),
        "ok": sum(r.ok for r in again),
        "reasons": _sorted_counts(str(t.status or t.outcome) for t in tries),
        "longest_s": json_number(max(waited, default=None)),
    }


def _model_loads(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Requests for which the server says that it loaded its model first; out of their TTFT."""
    took = [r.model_load for r in records if r.model_load]
    return {"requests": len(took), "longest_s": json_number(max(took, default=None))}


def _stalls(records: Sequence[RequestRecord]) -> dict[str, Any]:
    gaps = [sum(gap > STALL for gap in _gaps(record)) for record in records]
    return {"over_s": STALL, "gaps": sum(gaps), "requests": sum(n > 0 for n in gaps)}


def _gaps(record: RequestRecord) -> list[float]:
    times = [arrival.at for arrival in record.arrivals]
    return [after - before for before, after in pairwise(times)]


def _errors(records: Sequence[RequestRecord], most: int = 5) -> list[dict[str, Any]]:
    counts = Counter((r.outcome, r.status, r.error) for r in records if failed(r))
    return [
        {"outcome": outcome, "status": status, "error": error, "count": count}
        for (outcome, status, error), count in counts.most_common(most)
    ]


def _sorted_counts(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _rank(n: int, share: float) -> int:
    # 0.07 * 100 is 7.000000000000001 in floats and must still be rank 7.
    return max(0, math.ceil(share * n - 1e-9) - 1)


def _statistics(values: list[float]) -> dict[str, Any]:
    values.sort()
    mean = math.fsum(values) / len(values) if values else None
    found = {name: values[_rank(len(values), q)] for name, q in PERCENTILES.items() if values}
    return {
        "mean": json_number(mean),
        **{name: json_number(found.get(name)) for name in PERCENTILES},
        "min": json_number(values[0] if values else None),
        "max": json_number(values[-1] if values else None),
        "n": len(values),
    }


def _weighted_statistics(samples: Samples) -> dict[str, Any]:
    weight = math.fsum(w for _, w in samples)
    mean = math.fsum(v * w for v, w in samples) / weight if weight else None
    found = weighted_percentiles(samples, list(PERCENTILES.values()))
    return {
        "mean": json_number(mean),
        **dict(zip(PERCENTILES, map(json_number, found), strict=True)),
        "min": json_number(min((v for v, _ in samples), default=None)),
        "max": json_number(max((v for v, _ in samples), default=None)),
        "n": round(weight),
    }
