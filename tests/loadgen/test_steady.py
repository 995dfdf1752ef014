"""Warm-up and steady state, in runs of a queue whose truth is known."""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from scipy import stats
from tests.loadgen.test_recorder import record

from prony_loadgen.doubts import find_doubts
from prony_loadgen.record import Arrival
from prony_loadgen.steady import not_steady, t_quantile, warmup_end, without_warmup
from prony_loadgen.summary import Measured

SERVERS = 8
RUN = 240.0  # seconds

Shape = Callable[[float], float]  # how much slower the server is, by the time


@cache
def queue(seed: int, load: float, slower: Shape = lambda at: 1.0) -> Measured:
    """A run against servers that take about a second each, with Poisson arrivals."""
    rng = random.Random(seed)
    at, free, records = 0.0, [0.0] * SERVERS, []
    while (at := at + rng.expovariate(load * SERVERS)) < RUN:
        begins = max(at, heapq.heappop(free))
        takes = slower(at) * rng.lognormvariate(-0.08, 0.4)
        heapq.heappush(free, begins + takes)
        first = begins + 0.05 * slower(at) * rng.lognormvariate(0, 0.3)
        records.append(
            replace(
                record(0),
                intended=at,
                sent=at,
                arrivals=(Arrival(first, 1, "text"), Arrival(begins + takes, 1, "text")),
                ended=begins + takes,
            )
        )
    return Measured(tuple(records), (), (0.0, RUN), "open")


def flagged(load: float, slower: Shape = lambda at: 1.0, *, cut: bool = True) -> int:
    """How many of 50 runs are said not to be steady."""
    runs = [queue(seed, load, slower) for seed in range(50)]
    return sum(not_steady(without_warmup(run) if cut else run) is not None for run in runs)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.75])
def test_a_steady_run_is_hardly_ever_said_not_to_be(load: float) -> None:
    assert flagged(load, cut=False) <= 4


def test_an_overloaded_server_is_always_seen() -> None:
    assert flagged(1.1) == 50


def test_a_cold_start_is_seen_found_and_gone_once_it_is_cut() -> None:
    def cold(at: float) -> float:
        return 1 + 1.5 * math.exp(-at / 15)

    assert flagged(0.6, cold, cut=False) >= 40
    assert flagged(0.6, cold) <= 6
    cuts = sorted(warmup_end(queue(seed, 0.6, cold)).at for seed in range(50))
    assert 25 <= cuts[25] <= 60


def test_little_is_cut_of_a_run_that_was_steady_from_its_start() -> None:
    cuts = sorted(warmup_end(queue(seed, 0.6)).at for seed in range(50))
    assert cuts[25] <= 12


def test_never_more_than_its_share_of_the_run_is_cut() -> None:
    def late(at: float) -> float:
        return 3.0 if at < 110 else 1.0

    cut = warmup_end(queue(1, 0.2, late))
    assert cut.at == pytest.approx(0.4 * RUN)
    assert cut.by.endswith(", held at 40% of the run")
    assert warmup_end(queue(1, 0.2, late), most=0.6).at == pytest.approx(110, abs=8)


def test_a_change_of_level_is_told_with_its_moment() -> None:
    def later(at: float) -> float:
        return 1.6 if at > 170 else 1.0

    said = not_steady(queue(3, 0.2, later))
    assert said is not None and "TTFT" in said
    doubt = next(d for d in find_doubts({}, queue(3, 0.2, later)) if d.id == "not_steady")
    assert (doubt.grade, doubt.numbers["changed"]) == ("warn", said)


def test_the_least_warm_up_is_kept_and_too_few_requests_show_nothing() -> None:
    run = queue(1, 0.6)
    few = replace(run, records=run.records[:99])
    assert (warmup_end(few, least=30.0).at, warmup_end(few, least=30.0).by) == (
        30.0,
        "the least asked for",
    )
    assert not_steady(few) is None
    assert without_warmup(few, least=30.0).window == (30.0, RUN)


@pytest.mark.parametrize("df", [5.0, 9.7, 18.0, 200.0])
def test_students_t_is_right_to_half_a_percent(df: float) -> None:
    assert t_quantile(df) == pytest.approx(stats.t.ppf(0.995, df), rel=0.005)
