"""When requests come: a rate and chance in, offsets in seconds from the schedule's start out.

Offsets are absolute, so that being late once never makes what follows later still.
"""

import random
from collections.abc import Callable, Iterator
from itertools import count, takewhile

Process = Callable[[float, random.Random], Iterator[float]]


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    """Independent arrivals: exponential gaps with a mean of 1 / rate."""
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


def constant(rate: float, rng: random.Random) -> Iterator[float]:
    """One arrival every 1 / rate seconds, the first at 0."""
    return (number / rate for number in count())


ARRIVALS: dict[str, Process] = {"poisson": poisson, "constant": constant}


def offsets(
    process: str,
    rate: float,
    rng: random.Random,
    *,
    warmup: float,
    duration: float | None,
    requests: int | None,
) -> list[float]:
    """The schedule: a warm-up, then `duration` seconds or `requests`, whichever ends first."""
    times = ARRIVALS[process](rate, rng)
    # A nanosecond less: a sum of decimal fractions may lie a bit above what it means.
    end = float("inf") if duration is None else warmup + duration - 1e-9
    schedule: list[float] = []
    measured = 0
    for at in takewhile(lambda at: at < end, times):
        schedule.append(at)
        measured += at >= warmup
        if measured == requests:
            break
    return schedule
