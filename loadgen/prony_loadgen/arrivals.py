"""When requests come: a process, a rate and chance in, offsets in seconds from the start out.

Offsets are absolute, so that being late once never makes what follows later still.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count, takewhile

from prony_loadgen.scenario import MOST_REQUESTS
from prony_loadgen.shaping import Piece, at_rate, stretched
from prony_loadgen.strict_yaml import LONGEST, FileError

# Arrivals that rise by 1 on average: the rate stretches them.
Process = Callable[[random.Random, float], Iterator[float]]


def poisson(rng: random.Random, cv: float = 1.0) -> Iterator[float]:
    """Independent arrivals: exponential gaps."""
    at = 0.0
    while True:
        at += rng.expovariate(1.0)
        yield at


def constant(rng: random.Random, cv: float = 0.0) -> Iterator[float]:
    """Evenly spaced arrivals, the first at 0."""
    return map(float, count())


def gamma(rng: random.Random, cv: float) -> Iterator[float]:
    """Gamma gaps with a standard deviation of `cv` means: 1 is Poisson, more comes in bursts."""
    shape = 1 / cv**2
    at = 0.0
    while True:
        at += rng.gammavariate(shape, 1 / shape)
        yield at


ARRIVALS: dict[str, Process] = {"poisson": poisson, "constant": constant, "gamma": gamma}


def offsets(
    process: str,
    rate: float | Iterable[Piece],
    rng: random.Random,
    *,
    warmup: float,
    duration: float | None,
    requests: int | None,
    cv: float = 1.0,
) -> list[float]:
    """The schedule: a warm-up, then `duration` seconds or `requests`, whichever ends first.

    `rate` is a number, or pieces that hold the warm-up too and end the schedule where they end.
    """
    pieces = (at_rate(rate),) if isinstance(rate, int | float) else rate
    times = stretched(ARRIVALS[process](rng, cv), pieces)
    return bounded(times, warmup=warmup, duration=duration, requests=requests)


def bounded(
    times: Iterable[float], *, warmup: float, duration: float | None, requests: int | None
) -> list[float]:
    """Those of `times` until `duration` seconds or `requests` of them lie behind the warm-up.

    Raises FileError where that is more than anybody means.
    """
    # A nanosecond less: a sum of decimal fractions may lie a bit above what it means.
    end = float("inf") if duration is None else warmup + duration - 1e-9
    schedule: list[float] = []
    measured = 0
    for at in takewhile(lambda at: at < end, times):
        if at - warmup > LONGEST or warmup > LONGEST:
            raise FileError(
                [f"the schedule would be longer than {LONGEST / 86400:g} days: a higher rate, "
                 "fewer requests or a shorter warm-up"]
            )  # fmt: skip
        if len(schedule) == MOST_REQUESTS:
            raise FileError(
                [f"the schedule would have more than {MOST_REQUESTS:,} requests: a lower rate, or "
                 "a shorter duration or warm-up"]
            )  # fmt: skip
        schedule.append(at)
        measured += at >= warmup
        if measured == requests:
            break
    return schedule
