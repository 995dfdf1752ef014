"""When requests come: processes, and rates that change."""

import math
import random
from collections.abc import Mapping
from itertools import islice, pairwise

import pytest
from scipy import stats

from prony_loadgen.arrivals import ARRIVALS, offsets
from prony_loadgen.scenario import Scenario
from prony_loadgen.schedule import end_of, schedule, stages_of
from prony_loadgen.shaping import Piece, at_rate, stretched


def due(process: str, rate: float = 100.0, seed: int = 1, **bounds: float) -> list[float]:
    limits = {"warmup": 0.0, "duration": None, "requests": None, **bounds}
    return offsets(process, rate, random.Random(seed), **limits)  # type: ignore[arg-type]


def scenario(arrivals: Mapping[str, object], **keys: object) -> Scenario:
    base = {"prompts": {"input_tokens": 8}, "seed": 3, "warmup": "0s", "arrivals": arrivals}
    return Scenario.model_validate(base | keys)


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise([0.0, *times])]


def test_constant_arrivals_are_evenly_spaced_from_zero_without_drift() -> None:
    assert due("constant", 10, duration=0.5) == [0.0, 0.1, 0.2, 0.3, 0.4]
    # The millionth is where it should be, to the last bit: no sum of gaps lies behind it.
    assert due("constant", 3, requests=1_000_000)[-1] == 999_999 / 3


def test_poisson_gaps_are_exponential() -> None:
    times = due("poisson", 100, requests=20_000)
    assert stats.kstest(gaps(times), "expon", args=(0, 1 / 100)).pvalue > 0.01
    assert times[-1] / len(times) == pytest.approx(0.01, rel=0.02)


def test_poisson_counts_scatter_as_they_should_over_seeds() -> None:
    counts = [len(due("poisson", 50, seed, duration=2.0)) for seed in range(300)]
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert mean == pytest.approx(100, abs=2)
    assert math.sqrt(variance) == pytest.approx(10, abs=1.5)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_gaps_have_their_mean_and_scatter(cv: float) -> None:
    times = list(islice(stretched(ARRIVALS["gamma"](random.Random(1), cv), [at_rate(50)]), 40_000))
    found = gaps(times)
    mean = sum(found) / len(found)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in found) / len(found))
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert spread / mean == pytest.approx(cv, rel=0.05)


def test_gamma_with_a_cv_of_one_is_poisson() -> None:
    times = list(islice(stretched(ARRIVALS["gamma"](random.Random(2), 1.0), [at_rate(9)]), 10_000))
    assert stats.kstest(gaps(times), "expon", args=(0, 1 / 9)).pvalue > 0.01


@pytest.mark.parametrize("process", ARRIVALS)
def test_a_seed_means_one_schedule(process: str) -> None:
    assert due(process, requests=500) == due(process, requests=500)


@pytest.mark.parametrize("process", ["poisson", "gamma"])
def test_another_seed_means_another_schedule(process: str) -> None:
    assert due(process, seed=1, requests=5) != due(process, seed=2, requests=5)


@pytest.mark.parametrize("process", ARRIVALS)
def test_times_never_go_back(process: str) -> None:
    times = due(process, 1000, requests=5000)
    assert all(before <= after for before, after in pairwise(times))


def test_requests_are_counted_after_the_warm_up() -> None:
    times = due("constant", 10, warmup=1.0, requests=5)
    assert len([at for at in times if at < 1.0]) == 10
    assert [at for at in times if at >= 1.0] == [1.0, 1.1, 1.2, 1.3, 1.4]


def test_duration_is_counted_after_the_warm_up() -> None:
    times = due("constant", 10, warmup=1.0, duration=2.0)
    assert (len(times), times[-1]) == (30, 2.9)


def test_of_duration_and_requests_the_first_to_end_ends_it() -> None:
    assert len(due("constant", 10, duration=1.0, requests=100)) == 10
    assert len(due("constant", 10, duration=100.0, requests=7)) == 7


def test_a_duration_shorter_than_the_first_gap_sends_nothing() -> None:
    assert due("poisson", 0.001, duration=0.01) == []


def test_an_even_ramp_has_as_many_arrivals_as_the_area_under_it() -> None:
    ramp = [Piece("", 10.0, 0.0, 20.0)]
    times = list(stretched(ARRIVALS["constant"](random.Random(1), 1.0), ramp))
    assert len(times) == 100
    # The area up to t is t²: the n-th lies at its root.
    assert times == pytest.approx([math.sqrt(number) for number in range(100)])


def test_a_ramp_down_is_one_too() -> None:
    ramp = [Piece("", 10.0, 20.0, 0.0)]
    times = list(stretched(ARRIVALS["constant"](random.Random(1), 1.0), ramp))
    assert times[1:] == pytest.approx([10 - math.sqrt(100 - n) for n in range(1, 100)])


def test_poisson_arrivals_of_a_ramp_are_spread_like_its_rate() -> None:
    wanted = scenario({"ramp": {"start": 0, "end": 400, "over": "10s"}})
    places = [(at / 10) ** 2 for at in schedule(wanted)]  # even, where the rate is followed
    assert stats.kstest(places, "uniform").pvalue > 0.01


def test_steps_follow_each_other_and_are_the_stages_of_the_run() -> None:
    steps = {"process": "constant", "steps": {"rates": [5, 10], "each": "2s"}}
    wanted = scenario(steps, warmup="1s")
    times = schedule(wanted)
    assert [sum(a <= at < b for at in times) for a, b in ((0, 1), (1, 3), (3, 5))] == [5, 10, 20]
    assert end_of(wanted, times, None) == 5.0
    assert stages_of(wanted, 5.0) == [("5/s", 1.0, 3.0), ("10/s", 3.0, 5.0)]


def test_a_spike_lies_in_what_is_measured() -> None:
    spike = {"process": "constant", "rate": 10, "spike": {"rate": 50, "at": "2s", "length": "1s"}}
    wanted = scenario(spike, duration="5s", warmup="1s")
    times = schedule(wanted)
    assert [sum(a <= at < b for at in times) for a, b in ((0, 3), (3, 4), (4, 6))] == [30, 50, 20]
    assert stages_of(wanted, 6.0) == [
        ("before", 1.0, 3.0),
        ("spike", 3.0, 4.0),
        ("after", 4.0, 6.0),
    ]


def test_nothing_comes_while_it_is_off() -> None:
    wanted = scenario({"rate": 100, "on_off": {"on": "1s", "off": "2s"}}, duration="9s")
    times = schedule(wanted)
    assert 200 < len(times) < 400
    assert all(at % 3 < 1 for at in times)
    assert [stage.name for stage in stages_of(wanted, 9.0)] == [
        f"{what} {turn}" for turn in (1, 2, 3) for what in ("on", "off")
    ]


def test_stages_have_the_names_that_people_gave_them() -> None:
    wanted = scenario(
        {
            "process": "constant",
            "stages": [
                {"name": "calm", "rate": 5, "length": "2s"},
                {"name": "climb", "rate": 5, "to": 15, "length": "2s"},
            ],
        }
    )
    assert len(schedule(wanted)) == 10 + 20
    assert stages_of(wanted, 4.0) == [("calm", 0.0, 2.0), ("climb", 2.0, 4.0)]


def test_with_a_longer_duration_the_last_rate_goes_on() -> None:
    ramp = {"process": "constant", "ramp": {"start": 0, "end": 10, "over": "2s"}}
    wanted = scenario(ramp, duration="5s")
    assert len(schedule(wanted)) == 10 + 30
    assert stages_of(wanted, 5.0) == [("ramp", 0.0, 2.0), ("after", 2.0, 5.0)]


def test_of_many_workers_each_has_every_kth_of_one_schedule() -> None:
    wanted = scenario({"process": "gamma", "cv": 2, "rate": 200}, requests=1000)
    whole = schedule(wanted)
    shards = [whole[index::3] for index in range(3)]
    assert sorted(at for shard in shards for at in shard) == whole
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize(
    ("arrivals", "problem"),
    [
        ({"process": "gamma", "rate": 5}, "gamma needs cv"),
        ({"rate": 5, "cv": 2}, "poisson has no cv"),
        ({"rate": 5, "steps": {"rates": [1], "each": "1s"}}, "steps has its own rates"),
        ({"spike": {"rate": 5, "at": "1s", "length": "1s"}}, "needs a rate"),
        (
            {
                "rate": 5,
                "on_off": {"on": "1s", "off": "1s"},
                "spike": {"rate": 9, "at": "1s", "length": "1s"},
            },
            "one shape at a time",
        ),
        ({"ramp": {"start": 0, "end": 0, "over": "1s"}}, "nothing would be sent"),
        ({"process": "trace"}, "trace needs trace"),
        ({"process": "closed", "users": 2, "cv": 1}, "closed has no cv"),
    ],
)
def test_what_does_not_go_together_is_an_error(arrivals: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        scenario(arrivals, duration="5s")
