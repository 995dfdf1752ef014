"""The schedule of an open-loop scenario: its arrivals and shape in, due times and stages out."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice

from prony_loadgen.arrivals import bounded, offsets
from prony_loadgen.prompts import trace_of
from prony_loadgen.scenario import MOST_REQUESTS, Arrivals, Scenario
from prony_loadgen.shaping import Piece, at_rate, rate_at, stages
from prony_loadgen.strict_yaml import LONGEST, FileError
from prony_loadgen.summary import Stage

_MOST_TURNS = 100_000  # of on and off: each is a stage of its own


def schedule(scenario: Scenario, limit: float | None = None) -> list[float]:
    """The open-loop scenario's offsets, up to `limit` seconds where something else ends the run.

    Raises FileError for a bad trace.
    """
    arrivals, warmup = scenario.arrivals, scenario.set_warmup
    if arrivals.trace is not None:
        trace = trace_of(scenario)
        times: Iterator[float] = trace.offsets(arrivals.trace.speed_up)
        if scenario.duration is None and scenario.requests is None:
            times = islice(times, len(trace.rows))
        due = bounded(times, warmup=warmup, duration=scenario.duration, requests=scenario.requests)
    else:
        pieces = _pieces(scenario)
        _refuse_too_many(scenario, pieces)
        due = offsets(
            arrivals.process,
            pieces,
            random.Random(f"{scenario.seed} arrivals"),
            warmup=warmup,
            duration=scenario.duration,
            requests=scenario.requests,
            cv=arrivals.cv or 1.0,
        )
    return due if limit is None else [at for at in due if at < limit]


def end_of(scenario: Scenario, due: Sequence[float], limit: float | None) -> float:
    """When the last request's turn is over: the end of what is measured."""
    arrivals, warmup = scenario.arrivals, scenario.set_warmup
    ends = [] if limit is None else [limit]
    if scenario.duration is not None:
        ends.append(warmup + scenario.duration)
    if arrivals.trace is not None:
        if due:
            gap = trace_of(scenario).mean_gap / arrivals.trace.speed_up
            ends.append(due[-1] + gap)
    elif due and sum(at >= warmup for at in due) == scenario.requests:
        rate = rate_at(_pieces(scenario), due[-1])
        ends.append(due[-1] + (1 / rate if rate else 0.0))
    if not ends:
        ends.append(sum(piece.seconds for piece in _pieces(scenario)))
    return min(ends)


def stages_of(scenario: Scenario, end: float) -> list[Stage]:
    """The named parts of the schedule, for run.json."""
    arrivals = scenario.arrivals
    if not arrivals.open_loop or arrivals.trace is not None:
        return []
    return stages(_pieces(scenario), end)


def _pieces(scenario: Scenario) -> list[Piece]:
    """The rate over time, with the warm-up before it at the rate that comes first."""
    arrivals, warmup = scenario.arrivals, scenario.set_warmup
    shape = _shape(arrivals, _horizon(scenario))
    if shape is None:
        assert arrivals.rate is not None
        return [at_rate(arrivals.rate)]
    first = next((rate for piece in shape for rate in (piece.start, piece.end) if rate), 0.0)
    pieces = [at_rate(first, seconds=warmup), *shape] if warmup else shape
    if scenario.duration is None and scenario.requests is None:
        return pieces
    # Asked for longer than the shape lasts: its last rate goes on, if it is one.
    last = pieces[-1]
    if math.isinf(last.seconds) or not last.end:
        return pieces
    if last.start == last.end:
        return [*pieces[:-1], last._replace(seconds=math.inf)]
    return [*pieces, at_rate(last.end, "after")]


def _refuse_too_many(scenario: Scenario, pieces: Sequence[Piece]) -> None:
    """Raises FileError before a schedule is made that nobody means."""
    warmup = scenario.set_warmup
    due = _expected(pieces, warmup + (math.inf if scenario.duration is None else scenario.duration))
    if scenario.requests is not None:
        due = min(due, _expected(pieces, warmup) + scenario.requests)
    if due > 1.01 * MOST_REQUESTS:
        raise FileError(
            [f"arrivals, duration: about {due:,.0f} requests would be sent, and {MOST_REQUESTS:,} "
             "are the most: a lower rate, or a shorter duration or warm-up"]
        )  # fmt: skip


def _expected(pieces: Sequence[Piece], until: float) -> float:
    """How many arrivals these rates make before `until`, on average."""
    began, total = 0.0, 0.0
    for piece in pieces:
        seconds = min(piece.seconds, max(0.0, until - began))
        rate = (piece.start + piece.end) / 2
        total += rate * seconds if rate else 0.0
        began += piece.seconds
    return total


def _horizon(scenario: Scenario) -> float:
    """Seconds that a shape without an end has to cover."""
    if scenario.duration is not None:
        return scenario.duration
    rate = scenario.arrivals.rate or 1.0
    # Twice what is needed on average, and some: a schedule of so many requests ends before.
    return min(4 * (scenario.requests or 0) / rate + 3600, LONGEST)


def _shape(arrivals: Arrivals, horizon: float) -> list[Piece] | None:
    rate = arrivals.rate or 0.0
    if arrivals.ramp is not None:
        ramp = arrivals.ramp
        return [Piece("ramp", ramp.over, ramp.start, ramp.end)]
    if arrivals.steps is not None:
        return [at_rate(r, f"{r:g}/s", arrivals.steps.each) for r in arrivals.steps.rates]
    if arrivals.stages is not None:
        return [
            Piece(s.name, s.length, s.rate, s.rate if s.to is None else s.to)
            for s in arrivals.stages
        ]
    if arrivals.spike is not None:
        spike = arrivals.spike
        before = [at_rate(rate, "before", spike.at)] if spike.at else []
        return [*before, at_rate(spike.rate, "spike", spike.length), at_rate(rate, "after")]
    if arrivals.on_off is not None:
        on, off = arrivals.on_off.on, arrivals.on_off.off
        turns = math.ceil(horizon / on) + 1
        if turns > _MOST_TURNS:
            raise FileError([f"arrivals.on_off: more than {_MOST_TURNS:,} turns: a longer on"])
        return [
            piece
            for turn in range(1, turns + 1)
            for piece in (at_rate(rate, f"on {turn}", on), at_rate(0.0, f"off {turn}", off))
        ]
    return None
