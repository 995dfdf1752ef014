"""Runs that nobody measured: an SLO goes in, runs that keep it, or break one objective, come out.

They are made from the SLO's own limits, for the gate's proof on itself.
"""

import math
import random
from collections.abc import Iterator, Sequence

from prony_loadgen.quality import FLAGS
from prony_loadgen.record import Arrival, RequestRecord
from prony_loadgen.summary import Measured, Stage
from prony_slo.ahead import fewest
from prony_slo.pairs import Pair
from prony_slo.promise import (
    Band,
    Condition,
    Floor,
    Marked,
    Objective,
    Quality,
    Query,
    Regression,
    Share,
    SloFile,
)
from prony_slo.promql import Reader

TOKENS = 16  # of each answer
MARGIN = 3.0  # times as many requests as could decide it, since a made run has its own scatter
FAST, SLOW = 0.5, 2.0  # of a limit
ROOM = 1.5  # times the rates that are promised
LENGTH = 60.0  # seconds of a run that no rate says more about
SHORTEST = 10.0  # seconds of a run with a promised rate
UNLIMITED = 0.1  # seconds of a latency without a limit
PAIRED = 2000  # requests of each run of a pair: a share is then known to a tenth of a point


def runs_for(slo: SloFile, broken: Objective | None = None) -> list[Measured]:
    """A run of each scenario that the SLO speaks of; they keep everything but `broken`."""
    names: list[str | None] = [o.scenario for o in slo.objectives if o.scenario]
    return [_run(slo, broken, name) for name in dict.fromkeys(names or [None])]


def reader_for(slo: SloFile, broken: Objective | None = None) -> Reader:
    """A Prometheus that answers the SLO's queries within every bound, but for `broken`."""
    asked = [(o, o.promise) for o in slo.objectives if isinstance(o.promise, Query)]

    def read(query: str, at: float) -> float | None:
        for objective, promise in asked:
            # What stands before $window is enough to know it by.
            if query.startswith(promise.promql.split("$window")[0]):
                wrong = broken is not None and objective.id == broken.id
                return _outside(promise) if wrong else _between(promise)
        return None

    return read


def pair_for(regression: Regression, rng: random.Random, slower: float) -> Pair:
    """Two runs of one schedule; the second takes `slower` times as long, and fails where over 1."""
    limits = [c.limit for check in regression.checks for c in check.conditions]
    typical = FAST * FAST * min(limits, default=2 * UNLIMITED)
    tolerances = [c.tolerance for c in regression.checks if c.stat != "share"]
    noise = min(tolerances, default=0.05) / 10
    at, schedule = 0.0, []
    for _ in range(PAIRED):
        at += rng.expovariate(10)
        first, span = (typical * rng.lognormvariate(0, 0.2) for _ in range(2))
        schedule.append((at, first, span))
    a, b = (_side(regression, schedule, rng, noise, by) for by in (1.0, slower))
    return Pair(a, b)


def _run(slo: SloFile, broken: Objective | None, scenario: str | None) -> Measured:
    classes = list(dict.fromkeys(o.cls for o in slo.objectives if o.cls)) or ["self-test"]
    needed = max(100, *(math.ceil(MARGIN * fewest(o)) for o in slo.objectives), _busy(slo))
    n = needed * len(classes)
    seconds = _seconds(slo, n, broken) / len(classes)
    every = _every(broken)
    records = []
    for i in range(n):
        cls = classes[i % len(classes)]
        mine = broken is not None and broken.cls in (None, cls)
        bad = broken if mine and every and (i // len(classes)) % every == 0 else None
        records.append(_request(slo, i, (i + 0.5) * seconds / n, cls, bad))
    return Measured(
        records=tuple(records),
        outside=(),
        window=(0.0, seconds),
        loop="open",
        scenario=scenario,
        stages=_stages((o.stage for o in slo.objectives), seconds),
        gauges=_gauges(slo, broken),
        origin_unix=0.0,
        quality=frozenset(_qualities(slo)),
    )


def _every(broken: Objective | None) -> int:
    """Every how many requests one breaks it: evenly, so that no bound can miss it; 0 for none."""
    if broken is None or not isinstance(broken.promise, Share | Marked):
        return 0
    return 2 if broken.promise.limit < 0.4 else 1


def _request(
    slo: SloFile, index: int, at: float, cls: str, broken: Objective | None
) -> RequestRecord:
    first, span = _latencies(slo, broken)
    promise = None if broken is None else broken.promise
    failed = isinstance(promise, Share) and not promise.conditions
    marks = [FLAGS[promise.metric][0]] if isinstance(promise, Marked) else []
    flags = (*marks, *(seen for metric in _qualities(slo) for seen in _looked_at(metric)))
    return _record(index, at, cls, first, span, failed, flags)


def _record(
    index: int,
    at: float,
    cls: str,
    first: float,
    span: float,
    failed: bool,
    flags: tuple[str, ...] = (),
) -> RequestRecord:
    """One request: its first token after `first`, the last one `span` later."""
    arrivals = (Arrival(at + first, 1, "text"), Arrival(at + first + span, TOKENS - 1, "text"))
    return RequestRecord(
        id=f"r{index}",
        cls=cls,
        intended=at,
        sent=at,
        headers=at,
        arrivals=() if failed else arrivals,
        ended=at + first + span,
        outcome="http_error" if failed else "ok",
        status=500 if failed else 200,
        finish_reason=None if failed else "length",
        output_tokens=None if failed else TOKENS,
        output_tokens_from=None if failed else "usage",
        flags=flags,
    )


def _latencies(slo: SloFile, broken: Objective | None) -> tuple[float, float]:
    """First token and the time from it to the last, within every limit but those of `broken`."""
    limits: dict[str, float] = {}
    for condition in _conditions(slo.objectives):
        limits[condition.metric] = min(limits.get(condition.metric, math.inf), condition.limit)
    e2e = limits.get("e2e", math.inf) / 2
    firsts = [limits.get(m, math.inf) for m in ("ttft", "ttft_from_send", "ttfo")]
    first = FAST * min(*firsts, e2e, 2 * UNLIMITED)
    pace = limits.get("tpot", math.inf) * (TOKENS - 1)
    span = FAST * min(pace, limits.get("max_gap", math.inf), e2e, 2 * UNLIMITED)
    if broken is None or not isinstance(broken.promise, Share) or not broken.promise.conditions:
        return first, span
    condition = broken.promise.conditions[0]
    late = SLOW * condition.limit
    if condition.metric == "tpot":
        return first, late * (TOKENS - 1)
    return (first, late) if condition.metric == "max_gap" else (late, span)


def _conditions(objectives: Sequence[Objective]) -> Iterator[Condition]:
    for objective in objectives:
        if isinstance(objective.promise, Share):
            yield from objective.promise.conditions


def _seconds(slo: SloFile, n: int, broken: Objective | None) -> float:
    """How long the run lasts, so that every promised rate is reached, but not that of `broken`."""
    if broken is not None and isinstance(broken.promise, Floor):
        return 2 * _at_rate(broken.promise, n)
    floors = [o.promise for o in slo.objectives if isinstance(o.promise, Floor)]
    return min((_at_rate(floor, n) / ROOM for floor in floors), default=LENGTH)


def _busy(slo: SloFile) -> int:
    """So many requests that a run at the promised rates is not over before it has begun."""
    floors = [o.promise for o in slo.objectives if isinstance(o.promise, Floor)]
    return max((math.ceil(ROOM * SHORTEST / _at_rate(floor, 1)) for floor in floors), default=0)


def _at_rate(floor: Floor, n: int) -> float:
    """Seconds in which n requests make exactly the promised rate."""
    return n * (TOKENS if floor.metric == "output_tokens_per_s" else 1) / floor.at_least


def _gauges(slo: SloFile, broken: Objective | None) -> dict[str, float]:
    bands = [o.promise for o in slo.objectives if isinstance(o.promise, Band)]
    found = {str(band.metric): _between(band) for band in bands}
    if broken is not None and isinstance(broken.promise, Band):
        found[str(broken.promise.metric)] = _outside(broken.promise)
    return found


def _between(promise: Band | Query) -> float:
    low, high = promise.at_least, promise.at_most
    if low is None:
        return -0.01 if not high else high - abs(high) / 2
    return low + abs(low) / 2 + 0.01 if high is None else (low + high) / 2


def _outside(promise: Band | Query) -> float:
    low, high = promise.at_least, promise.at_most
    if high is not None:
        return high + abs(high) / 2 + 0.01
    return -0.01 if not low else low - abs(low) / 2


def _side(
    regression: Regression,
    schedule: Sequence[tuple[float, float, float]],
    rng: random.Random,
    noise: float,
    slower: float,
) -> Measured:
    """One run of a pair, on a machine that is never quite as fast as a moment ago."""
    classes = list(dict.fromkeys(c.cls for c in regression.checks if c.cls)) or ["self-test"]
    machine = rng.lognormvariate(0, noise) * slower
    records = []
    for i, (at, first, span) in enumerate(schedule):
        took = [time * machine * rng.lognormvariate(0, 0.02) for time in (first, span)]
        # What is slower also fails, for checks of shares.
        lost = slower > 1 and i % 3 == 0
        records.append(_record(i, at, classes[i % len(classes)], took[0], took[1], lost))
    # As in a closed loop: where each answer takes longer, so does the run, at a lower rate.
    end = (schedule[-1][0] + 1) * max(1.0, machine)
    return Measured(
        records=tuple(records),
        outside=(),
        window=(0.0, end),
        loop="open",
        stages=_stages((c.stage for c in regression.checks), end),
    )


def _stages(names: Iterator[str | None], seconds: float) -> tuple[Stage, ...]:
    """Every stage is the whole run, so that each objective sees every request."""
    return tuple(Stage(name, 0.0, seconds) for name in dict.fromkeys(names) if name)


def _qualities(slo: SloFile) -> list[Quality]:
    return [o.promise.metric for o in slo.objectives if isinstance(o.promise, Marked)]


def _looked_at(metric: Quality) -> list[str]:
    """The flags that say that somebody looked, and found nothing."""
    flag, looked_at = FLAGS[metric]
    return [seen for seen in looked_at or () if seen != flag]
