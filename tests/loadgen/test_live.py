"""What is watched while a run goes on."""

from dataclasses import replace

import pytest
from tests.loadgen.test_recorder import record

from prony_loadgen.live import Live, Timeline
from prony_loadgen.sketch import ERROR


def test_the_watched_line_shows_what_went_on_lately() -> None:
    timeline = Timeline()
    assert " ".join(timeline.line(0.0).split()) == "0 s 0.0/s 0 in flight TTFT – 0 errors"
    for second in range(100):
        timeline.add(record(second))
        timeline.add(record(second))
        timeline.tick(second + 1.0, in_flight=3)
    timeline.add(replace(record(100), outcome="timeout"))
    timeline.tick(101.0, in_flight=3)
    line = " ".join(timeline.line(101.0).split())
    assert line == "101 s 1.8/s 3 in flight TTFT p50 20.0 ms p99 20.0 ms 1 error"


def test_a_point_is_of_the_last_five_seconds_and_an_idle_one_has_no_latency() -> None:
    timeline = Timeline()
    for second in range(20):
        if second < 10:
            timeline.add(replace(record(second), output_tokens=7))
        timeline.tick(second + 1.0, in_flight=second)
    busy, idle = timeline.points[8], timeline.points[19]
    assert busy["ttft"] == pytest.approx([0.02] * 3, rel=ERROR)
    assert (busy["requests_per_s"], busy["tokens_per_s"]) == pytest.approx((1.0, 7.0))
    assert (idle["ttft"], idle["requests_per_s"], idle["in_flight"]) == (None, 0.0, 19)
    assert timeline.total().finished == 10


def test_the_first_second_is_not_spread_over_five() -> None:
    timeline = Timeline()
    timeline.add(record(0))
    timeline.tick(1.0, in_flight=0)
    assert timeline.points[0]["requests_per_s"] == pytest.approx(1.0)


def test_two_workers_seconds_add_up_to_the_run() -> None:
    whole, one, other = Live(gaps=True), Live(gaps=True), Live(gaps=True)
    records = [record(n) for n in range(9)] + [replace(record(9), outcome="http_error", cls="b")]
    for number, each in enumerate(records):
        whole.add(each)
        (one if number % 2 else other).add(each)
    merged = Live()
    for part in (one, other):
        merged.merge(Live.from_json(part.to_json()))
    assert merged.outcomes == whole.outcomes
    assert (merged.failed, merged.tokens) == (1, whole.tokens)
    for name, sketch in merged.sketches.items():
        assert sketch.bins == whole.sketches[name].bins, name
    assert merged.sketches["itl"].count == 9
