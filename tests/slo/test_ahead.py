"""What a plan can decide, and when a breach is certain before the end."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slo.runs import (
    cut,
    errors_under,
    refused,
    request,
    run_of,
    slo_of,
    ttft_under,
)

from prony_slo.ahead import BreachWatch, can_decide, undecidable
from prony_slo.gate import judge
from prony_slo.intervals import lower
from prony_slo.objective import load_slo
from prony_slo.promise import Condition, Floor, Measure, Objective, Share

STOPS = Measure(stop_on_breach=True)
ALWAYS = (0.0, 1e9)


def test_a_plan_of_352_requests_decides_1_percent_and_one_of_298_does_not() -> None:
    slo = slo_of(ttft_under(0.5, 0.01))
    assert can_decide(slo, 352) == [
        "ttft: needs at least 299 measured requests at 95 % confidence, the plan has 352: "
        "can be decided, if none is bad"
    ]
    assert can_decide(slo, 298) == [
        "ttft: needs at least 299 measured requests at 95 % confidence, the plan has 298: "
        "cannot be decided, unless clearly broken"
    ]


def test_a_plan_says_how_many_bad_requests_it_can_bear() -> None:
    assert can_decide(slo_of(ttft_under(0.5, 0.05)), 320)[0].endswith("with up to 9 bad")


def test_an_error_rate_of_a_tenth_of_a_percent_needs_2995_requests() -> None:
    lines = can_decide(load_slo(["tutorial"]), 320)
    assert "needs at least 2,995 measured requests" in lines[1]
    assert "cannot be decided" in lines[1]
    assert "no number of requests" in lines[2]


def test_a_plan_that_does_not_know_its_requests_says_so() -> None:
    line = can_decide(slo_of(errors_under(0.01)), None)[0]
    assert line.endswith("the plan does not know how many it will have")


def test_the_objectives_that_a_plan_cannot_decide() -> None:
    floor = Objective("tput", Floor("requests_per_s", 1.0), "test.yaml:1")
    slo = slo_of(ttft_under(0.5, 0.05), errors_under(0.001), floor)
    assert [o.id for o in undecidable(slo, 320)] == ["errors"]
    assert [o.id for o in undecidable(slo, 20)] == ["ttft", "errors", "tput"]


def test_a_breach_is_certain_once_the_rest_could_not_make_up_for_it() -> None:
    # 7 bad of 300 are 1.10 % at least; 6 are 0.87 %.
    assert lower(6, 300, 0.95) <= 0.01 < lower(7, 300, 0.95)
    watch = BreachWatch(slo_of(ttft_under(0.5, 0.01), measure=STOPS), 300, ALWAYS)
    assert [watch.add(request(i, ttft=2.0)) for i in range(7)] == [False] * 6 + [True]
    assert watch.reason == (
        "ttft: 7 of 300 requests are bad already, so that more than 1 % will be"
    )
    assert watch.add(request(7)) is True


def test_good_requests_never_make_a_breach_certain() -> None:
    watch = BreachWatch(slo_of(ttft_under(0.5, 0.01), measure=STOPS), 300, ALWAYS)
    assert not any(watch.add(request(i)) for i in range(300))


@pytest.mark.parametrize(
    ("slo", "planned"),
    [
        (slo_of(ttft_under(0.5, 0.01)), 300),  # the file does not ask for it
        (slo_of(ttft_under(0.5, 0.01), measure=STOPS), 0),
        (slo_of(ttft_under(0.5, 0.01, severity="warn"), measure=STOPS), 300),
        (
            slo_of(Objective("r", Floor("requests_per_s", 1e6), "test.yaml:1"), measure=STOPS),
            300,
        ),
    ],
)
def test_when_a_breach_never_stops_a_run(slo: object, planned: int | None) -> None:
    watch = BreachWatch(slo, planned, ALWAYS)  # type: ignore[arg-type]
    assert not any(watch.add(request(i, ttft=2.0)) for i in range(300))


def test_only_requests_inside_the_window_count() -> None:
    slo = slo_of(ttft_under(0.5, 0.01), measure=STOPS)
    watch = BreachWatch(slo, 300, (10.0, 20.0))
    assert not any(watch.add(request(i, ttft=2.0)) for i in range(10))
    assert not any(watch.add(request(20.0 + i, ttft=2.0)) for i in range(10))
    assert [watch.add(request(10.0 + i, ttft=2.0)) for i in range(7)][-1]


def test_failures_make_a_breach_certain_and_requests_still_running_do_not() -> None:
    slo = slo_of(errors_under(0.01), measure=STOPS)
    assert [BreachWatch(slo, 300, ALWAYS).add(refused(0.0))] == [False]
    watch = BreachWatch(slo, 300, ALWAYS)
    assert not any(watch.add(cut(i, ended=99.0)) for i in range(20))
    assert [watch.add(refused(i)) for i in range(7)][-1]


@given(st.integers(0, 2**32), st.integers(40, 400), st.sampled_from([0.01, 0.05, 0.2]))
@settings(deadline=None)
def test_a_run_that_was_stopped_early_is_a_breach_by_what_it_has(
    seed: int, planned: int, limit: float
) -> None:
    rng = random.Random(seed)
    bad = int(planned * limit * rng.uniform(0, 4))
    slow = [True] * bad + [False] * (planned - bad)
    rng.shuffle(slow)
    records = [request(i / 10, ttft=2.0 if late else 0.1) for i, late in enumerate(slow)]
    slo = slo_of(ttft_under(0.5, limit), measure=STOPS)
    watch = BreachWatch(slo, planned, ALWAYS)
    stopped_at = next((i for i, r in enumerate(records) if watch.add(r)), None)
    if stopped_at is not None:
        early = run_of(records[: stopped_at + 1], stopped_early=watch.reason)
        assert judge(slo, early, []).exit_code == 1


def test_a_plain_breach_stops_a_run_of_unknown_length_soon() -> None:
    rng = random.Random(1)
    slo = slo_of(ttft_under(0.5, 0.01), measure=STOPS)
    watch = BreachWatch(slo, None, ALWAYS)
    records = [request(i / 10, ttft=2.0 if rng.random() < 0.05 else 0.1) for i in range(3000)]
    stopped_at = next(i for i, record in enumerate(records) if watch.add(record))
    assert 20 <= stopped_at < 500
    assert watch.reason is not None and "of the first" in watch.reason
    early = run_of(records[: stopped_at + 1], stopped_early=watch.reason)
    assert judge(slo, early, []).exit_code == 1


def test_a_long_planned_run_stops_on_evidence_before_counting_could() -> None:
    rng = random.Random(2)
    slo = slo_of(ttft_under(0.5, 0.01), measure=STOPS)
    watch = BreachWatch(slo, 100_000, ALWAYS)
    records = (request(i / 10, ttft=2.0 if rng.random() < 0.05 else 0.1) for i in range(3000))
    assert next(i for i, record in enumerate(records) if watch.add(record)) < 500


def test_of_200_runs_that_keep_their_promise_few_are_stopped() -> None:
    rng = random.Random(3)
    slo = slo_of(ttft_under(0.5, 0.05), measure=STOPS)
    stopped = 0
    for _ in range(200):
        watch = BreachWatch(slo, None, ALWAYS)
        stopped += any(
            watch.add(request(i / 10, ttft=2.0 if rng.random() < 0.05 else 0.1)) for i in range(400)
        )
    assert stopped <= 7  # 1 % are 2; 7 is the 99.9 % limit


def test_a_burst_stops_no_run() -> None:
    """30 slow requests in a row of 1,000: one event, whose like may never come again."""
    slo = slo_of(ttft_under(0.5, 0.01), measure=STOPS)
    watch = BreachWatch(slo, None, ALWAYS)
    records = [request(i / 10, ttft=2.0 if 500 <= i < 530 else 0.1) for i in range(1000)]
    assert not any(watch.add(record) for record in records)


def test_a_class_is_watched_alone_and_a_stage_never() -> None:
    slow = [request(i, ttft=2.0, cls="batch") for i in range(60)]
    slo = slo_of(ttft_under(0.5, 0.01, cls="chat"), measure=STOPS)
    assert not any(BreachWatch(slo, None, ALWAYS).add(record) for record in slow)
    for facts, wanted in (({"cls": "batch"}, True), ({"stage": "steady"}, False)):
        watch = BreachWatch(slo_of(ttft_under(0.5, 0.01, **facts), measure=STOPS), None, ALWAYS)
        assert [watch.add(record) for record in slow][-1] is wanted


def test_a_joint_condition_is_watched_as_one() -> None:
    joint = Share((Condition("ttft", 0.5), Condition("tpot", 0.05)), 0.01)
    slo = slo_of(Objective("good", joint, "test.yaml:1"), measure=STOPS)
    watch = BreachWatch(slo, 300, ALWAYS)
    slow = [request(i, ttft=2.0) if i % 2 else request(i, tpot=0.2) for i in range(7)]
    assert [watch.add(record) for record in slow][-1]


def test_of_a_mismatch_share_the_plan_does_not_know_whose_prompts_expect_an_answer() -> None:
    same = load_slo(["sanity"])
    [line] = [line for line in can_decide(same, 320) if line.startswith("right: ")]
    assert line == (
        "right: needs at least 30 measured requests at 95 % confidence whose prompts expect an "
        "answer; the plan has 320, whatever they expect"
    )
