"""When a run takes a profile, and what the gate makes of the requests in flight meanwhile."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.loadgen.synthetic_run import run_of, synthetic_run

from prony.profiling.armed import Asked, Profiling, parse_asked
from prony.profiling.hook import Bounds
from prony.profiling.rule import Broken, Rule
from prony_loadgen.doubts import find_doubts
from prony_loadgen.record import Arrival, RequestRecord
from prony_loadgen.settings import NoJudge
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.summary import in_flight, measured, summarise
from prony_loadgen.target import parse_target
from prony_slo.gate import judge
from prony_slo.objective import load_slo

SLO = load_slo(["ttft p99 < 500ms"])


def request(at: float, ttft: float, seconds: float = 1.0) -> RequestRecord:
    return RequestRecord(
        id=f"{at:.3f}", cls="chat", intended=at, sent=at, headers=at,
        arrivals=(Arrival(at + ttft, 1, "text"), Arrival(at + seconds, 1, "text")),
        ended=at + seconds, outcome="ok", output_tokens=2,
    )  # fmt: skip


def seconds_of(rule: Rule, ttfts: Iterator[list[float]]) -> Iterator[Broken | None]:
    """What the rule says after each second in which requests with these TTFTs ended."""
    for second, each in enumerate(ttfts):
        for number, ttft in enumerate(each):
            rule.add(request(10 + second + number / 100, ttft))
        yield rule.tick()


def test_a_rule_is_broken_once_its_objective_was_missed_in_five_seconds_running() -> None:
    rule = Rule(SLO, (0.0, 100.0))
    slow = [0.1] * 9 + [0.9]
    said = list(seconds_of(rule, iter([[0.1] * 10, slow, slow, slow, slow, slow])))
    assert said[:5] == [None] * 5
    broken = said[5]
    assert broken is not None
    assert broken.reason == "ttft p99 < 500ms: 10 % of requests were bad for 5 s, 1 % may be"
    assert broken.since == pytest.approx(10 + 5 + 0.09 + 1.0)  # when the first bad one ended


def test_one_slow_request_in_a_fast_run_sets_nothing_off() -> None:
    rule = Rule(SLO, (0.0, 100.0))
    good, blip = [0.1] * 10, [0.1] * 9 + [3.0]
    assert set(seconds_of(rule, iter([good, good, blip, good, good, blip, good, good]))) == {None}


def test_seconds_without_an_answer_say_nothing_and_two_with_one_are_too_few() -> None:
    rule = Rule(SLO, (0.0, 100.0))
    assert set(seconds_of(rule, iter([[], [0.9], [], [], [0.9], []]))) == {None}
    assert list(seconds_of(rule, iter([[0.9], [0.9]])))[-1] is not None


def test_the_warm_up_and_what_a_capture_slowed_set_nothing_off() -> None:
    rule = Rule(SLO, (50.0, 100.0))
    assert set(seconds_of(rule, iter([[0.9]] * 8))) == {None}
    rule = Rule(SLO, (0.0, 100.0))
    assert list(seconds_of(rule, iter([[0.9]] * 6)))[-1] is not None
    rule.forget()
    assert set(seconds_of(rule, iter([[0.9]] * 4))) == {None}


def test_what_is_asked_for_is_checked_and_an_slo_without_requests_cannot_breach() -> None:
    assert parse_asked("at=1.5m").at == 90.0
    assert parse_asked("on-breach", seconds=2, captures=3).bounds == Bounds(2, None)
    for text in ("breach", "at=", "at=30h", "on-breach "):
        with pytest.raises(FileError, match="--profile"):
            parse_asked(text)
    with pytest.raises(FileError, match=r"--profile-seconds 11: expected 0.1 to 10"):
        parse_asked("on-breach", seconds=11)
    target = parse_target("http://127.0.0.1:9")
    for slo in (None, load_slo(["output_tokens_per_s > 10"])):
        with pytest.raises(FileError, match="needs an SLO"):
            Profiling(NoJudge(), slo, target, parse_asked("on-breach"))


def profiled_run(start: float, end: float) -> tuple[dict[str, object], list[RequestRecord]]:
    """A steady run in which everything in flight from `start` to `end` is five seconds late."""
    _, records = synthetic_run(failures=0.0, requests=800)
    disturbed = [
        replace(
            record,
            arrivals=tuple(Arrival(a.at + 5, a.tokens, a.channel) for a in record.arrivals),
            ended=record.ended + 5,
        )
        if in_flight(record, [(start, end)])
        else record
        for record in records
    ]
    return run_of(records, slo=()), disturbed


def marked(run: dict[str, object], start: float, end: float) -> dict[str, object]:
    capture = {"window": [start, end - 1], "left_out": [start, end]}
    return {**run, "profile": {"captures": [capture]}}


def test_the_gate_says_the_same_of_a_run_with_a_capture_as_of_one_without() -> None:
    slo = load_slo(["ttft p95 < 300ms", "errors < 3%"])
    plain, records = synthetic_run(failures=0.0, requests=800)
    run, disturbed = profiled_run(20.0, 28.0)
    without = judge(slo, measured(plain, records), [])
    unmarked = judge(slo, measured(run, disturbed), [])
    capture = judge(slo, measured(marked(run, 20.0, 28.0), disturbed), [])
    assert without.verdict == capture.verdict == "pass"
    assert unmarked.verdict != "pass"
    lost = sum(in_flight(r, [(20.0, 28.0)]) for r in disturbed)
    assert (without.objectives[0].n or 0) - (capture.objectives[0].n or 0) == lost


def test_what_was_in_flight_is_counted_and_said_and_its_time_is_in_no_rate() -> None:
    run, disturbed = profiled_run(20.0, 28.0)
    part = measured(marked(run, 20.0, 28.0), disturbed)
    lost = sum(in_flight(r, [(20.0, 28.0)]) for r in disturbed)
    summary = summarise(part)
    assert summary["requests"]["profiled"] == lost > 0
    assert len(part.records) + len(part.outside) == len(disturbed)
    assert part.seconds == pytest.approx(part.window[1] - part.window[0] - 8.0)
    (doubt,) = [d for d in find_doubts(run, part) if d.id == "profiled"]
    assert doubt.grade == "note" and doubt.numbers == {"requests": lost, "seconds": 8.0}
    # A capture changes no rate of a steady run by more than its own noise.
    plain, records = synthetic_run(failures=0.0, requests=800)
    before = summarise(measured(plain, records))["rates"]["output_tokens_per_s"]
    assert part.tokens() / part.seconds == pytest.approx(before, rel=0.25)


def test_a_run_without_a_profile_says_nothing_of_one() -> None:
    run, records = synthetic_run()
    assert "profiled" not in summarise(measured(run, records))["requests"]
    assert "profiled" not in [doubt["id"] for doubt in run["doubts"]]


def test_asked_is_plain() -> None:
    assert parse_asked("at=30s") == Asked("at=30s", 30.0, Bounds(5.0, None), 1, 60.0)
