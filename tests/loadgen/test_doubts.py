"""Each doubt at its threshold."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.slo.runs import cut, many, refused, request, run_of

import prony_loadgen.doubts
from prony_loadgen.doubts import Doubt, find_doubts
from prony_loadgen.record import Arrival, RequestRecord


def doubts(
    records: list[RequestRecord],
    run: dict[str, Any] | None = None,
    tightest_ttft: float | None = None,
    **facts: Any,
) -> dict[str, Doubt]:
    return {d.id: d for d in find_doubts(run or {}, run_of(records, **facts), tightest_ttft)}


def late_by(lag: float, n: int = 100) -> list[RequestRecord]:
    return [request(i / 10, sent=i / 10 + lag) for i in range(n)]


def test_a_clean_run_leaves_no_doubt() -> None:
    assert doubts(many(100)) == {}


@pytest.mark.parametrize(
    ("lag", "tightest_ttft", "doubted"),
    [
        (0.0099, None, False),
        (0.0101, None, True),
        (0.0101, 0.5, True),  # 2 % of 500 ms are 10 ms
        (0.0190, 1.0, False),  # 2 % of 1 s are 20 ms
        (0.0210, 1.0, True),
        (0.0101, 0.001, True),
    ],
)
def test_send_lag_over_10_ms_and_2_percent_of_the_tightest_ttft_is_invalid(
    lag: float, tightest_ttft: float | None, doubted: bool
) -> None:
    found = doubts(late_by(lag), tightest_ttft=tightest_ttft)
    assert ("send_lag" in found) is doubted
    assert not doubted or found["send_lag"].grade == "invalid"


def test_of_twenty_requests_one_late_is_a_hiccup_and_two_are_a_late_client() -> None:
    assert "send_lag" not in doubts([*late_by(0.5, n=1), *many(19)])
    assert doubts([*late_by(0.5, n=2), *many(18)])["send_lag"].grade == "invalid"


def test_one_late_request_of_a_hundred_and_one_is_not_the_p99() -> None:
    assert "send_lag" not in doubts([*late_by(0.5, n=1), *many(100)])


def test_in_closed_loop_there_is_no_schedule_to_be_late_for() -> None:
    found = doubts(late_by(0.5), loop="closed")
    assert "send_lag" not in found and "rate_missed" not in found
    assert found["closed_loop"].grade == "note"


def test_m05_500_a_second_asked_and_300_managed_is_invalid_with_both_rates() -> None:
    records = [request(i / 500, sent=i / 300) for i in range(1000)]
    found = doubts(records)["rate_missed"]
    assert found.grade == "invalid"
    assert found.numbers["asked_per_s"] == pytest.approx(500, rel=0.01)
    assert found.numbers["offered_per_s"] == pytest.approx(300, rel=0.01)
    assert "500" in found.message and "300" in found.message


@pytest.mark.parametrize(("slower", "doubted"), [(1.009, False), (1.011, True)])
def test_a_rate_missed_by_over_1_percent_is_invalid(slower: float, doubted: bool) -> None:
    records = [request(i / 10, sent=i / 10 * slower) for i in range(100)]
    assert ("rate_missed" in doubts(records)) is doubted


def test_dropped_arrivals_are_a_warning_and_from_1_percent_on_a_missed_rate() -> None:
    few = doubts(many(500), dropped=4)
    assert few["dropped"].grade == "warn"
    assert few["dropped"].numbers == {"dropped": 4, "scheduled": 504}
    assert "rate_missed" not in few
    assert "rate_missed" in doubts(many(500), dropped=6)


def test_p99_of_99_requests_is_too_few_and_of_100_is_not() -> None:
    found = doubts(many(99))["few_samples"]
    assert found.grade == "note"
    assert "99 requests are too few for p99" in found.message
    assert "few_samples" not in doubts(many(100))


def test_8_requests_are_too_few_for_p90_too() -> None:
    assert "p99, p95, p90" in doubts(many(8))["few_samples"].message


def test_requests_without_a_latency_are_no_samples() -> None:
    records = [*many(99), request(9.9, ttft=None, flags=("empty",)), cut(9.8, ended=10.0)]
    assert "few_samples" in doubts(records)
    assert "few_samples" not in doubts([*many(99), refused(9.9)])


def test_answers_that_came_whole_are_told() -> None:
    whole = [request(i / 10, tokens=1, flags=("not_streamed",)) for i in range(3)]
    found = doubts([*many(100), *whole])["not_streamed"]
    assert found.grade == "warn"
    assert "3 of 103" in found.message


def test_a_stream_that_arrives_at_one_moment_is_told() -> None:
    records = [request(i / 10, tpot=0.0, flags=("coalesced",)) for i in range(100)]
    found = doubts(records)
    assert found["coalesced"].numbers == {"requests": 100, "of": 100}
    assert "bunched" not in found


def test_chunks_in_bunches_are_told() -> None:
    arrivals = tuple(Arrival(0.1 + (i // 2) / 10, 1, "text") for i in range(10))
    found = doubts([request(i / 10, arrivals=arrivals) for i in range(100)])["bunched"]
    assert found.numbers == {"chunks": 500, "of": 900}


@pytest.mark.parametrize(
    ("usage", "name", "grade"),
    [(10, None, None), (20, "usage_over_chunks", "note"), (5, "usage_under_chunks", "warn")],
)
def test_m13_usage_against_10_chunks(usage: int, name: str | None, grade: str | None) -> None:
    found = doubts([request(i / 10, tokens=10, output_tokens=usage) for i in range(100)])
    assert [d.id for d in found.values()] == ([name] if name else [])
    assert name is None or found[name].grade == grade


def test_counted_chunks_are_an_estimate() -> None:
    records = [request(i / 10, output_tokens_from="chunks") for i in range(100)]
    assert doubts(records)["estimated_tokens"].numbers == {"requests": 100, "of": 100}


@pytest.mark.parametrize(("mode", "grade"), [("forced", "warn"), ("natural", "note")])
def test_outputs_shorter_than_asked_weigh_more_where_they_were_forced(
    mode: str, grade: str
) -> None:
    records = [request(i / 10, tokens=10, asked_output_tokens=20) for i in range(100)]
    found = doubts(records, {"scenario": {"output": {"mode": mode}}})["short_output"]
    assert found.grade == grade
    assert found.numbers == {"asked": 2000, "got": 1000}
    assert "50 %" in found.message


def test_outputs_of_the_length_asked_for_leave_no_doubt() -> None:
    records = [request(i / 10, tokens=10, asked_output_tokens=10) for i in range(100)]
    assert doubts(records) == {}


@pytest.mark.parametrize(("got", "doubted"), [(119, False), (121, True), (81, False), (79, True)])
def test_prompts_that_the_server_counts_by_a_fifth_otherwise(got: int, doubted: bool) -> None:
    records = [request(i / 10, asked_input_tokens=100, prompt_tokens=got) for i in range(100)]
    found = doubts(records)
    assert ("input_differs" in found) is doubted
    assert not doubted or found["input_differs"].numbers == {"asked": 10_000, "got": got * 100}


def test_q09_a_thousand_answers_without_a_token_make_a_run_invalid() -> None:
    found = doubts([request(i / 10, ttft=None, flags=("empty",)) for i in range(1000)])
    assert found["no_output"].grade == "invalid"
    assert found["empty"].numbers == {"requests": 1000, "of": 1000}


@pytest.mark.parametrize(("empty", "doubted"), [(50, False), (51, True), (99, True)])
def test_a_run_of_which_over_half_the_answers_are_empty_is_invalid(
    empty: int, doubted: bool
) -> None:
    nothing = [request(i / 10, ttft=None, flags=("empty",)) for i in range(empty)]
    found = doubts([*nothing, *many(100 - empty), *(refused(i / 10) for i in range(50))])
    assert ("no_output" in found) is doubted
    if doubted:
        assert found["no_output"].grade == "invalid"
        assert f"{empty} ({empty} %) without any output" in found["no_output"].message


@pytest.mark.parametrize(("over", "doubted"), [(1, False), (2, True)])
def test_answers_longer_than_asked_for_are_told_from_over_1_percent_on(
    over: int, doubted: bool
) -> None:
    long = [request(i / 10, tokens=14, asked_output_tokens=10) for i in range(over)]
    found = doubts([*long, *many(100 - over, asked_output_tokens=10)])
    assert ("over_limit" in found) is doubted
    if doubted:
        assert found["over_limit"].grade == "warn"
        assert "the worst 14 for 10" in found["over_limit"].message


@pytest.mark.parametrize(
    ("usage", "asked", "doubted"),
    [
        (1_000_000, 10, True),
        (21, 10, True),
        (20, 10, False),
        (30, 15, False),  # what was asked for, in chunks of three
        (1_000_000, None, False),  # nobody knows what it was to be
    ],
)
def test_counts_over_twice_what_was_asked_for_and_what_came_make_a_run_invalid(
    usage: int, asked: int | None, doubted: bool
) -> None:
    found = doubts(many(100, tokens=10, output_tokens=usage, asked_output_tokens=asked))
    assert ("usage_implausible" in found) is doubted
    assert not doubted or found["usage_implausible"].grade == "invalid"


def test_one_absurd_count_among_a_hundred_makes_a_run_invalid() -> None:
    records = many(99, asked_output_tokens=10)
    records.append(request(9.9, output_tokens=10**9, asked_output_tokens=10))
    assert doubts(records)["usage_implausible"].grade == "invalid"


def test_a_server_that_ignores_the_limit_but_sends_what_it_counts_is_believed() -> None:
    found = doubts(many(100, tokens=50, asked_output_tokens=10))
    assert found["over_limit"].grade == "warn"
    assert "usage_implausible" not in found


@pytest.mark.parametrize(("resent", "grade"), [(0, None), (1, "note"), (2, "warn")])
def test_requests_that_were_sent_again_are_told(resent: int, grade: str | None) -> None:
    again = [request(i / 10, flags=("resent",)) for i in range(resent)]
    found = doubts([*again, *many(100 - resent)])
    assert [d.grade for d in found.values()] == ([grade] if grade else [])
    assert grade is None or found["resent"].numbers == {"requests": resent, "of": 100}


def test_failures_alone_are_data_and_not_a_doubt() -> None:
    assert doubts([refused(i / 10) for i in range(100)]) == {}


def test_a_run_without_requests_says_so() -> None:
    assert doubts([])["no_requests"].grade == "warn"


def test_an_interrupted_run_and_one_that_stopped_itself() -> None:
    cut = doubts(many(100), interrupted=True)["interrupted"]
    assert (cut.grade, cut.message) == (
        "warn", "the run was interrupted; 100 requests were measured"
    )  # fmt: skip
    # The folder of a killed run and that of one that still goes on look alike.
    endless = doubts(many(100), interrupted=True, ended=False)["interrupted"]
    assert endless.message.startswith("the run has not ended: it goes on, or was killed; 100 ")
    found = doubts(many(100), stopped_early="ttft is breached")["stopped_early"]
    assert found.grade == "note"
    assert "ttft is breached" in found.message


def test_requests_cut_by_the_end_are_counted_and_expected_where_the_run_was_cut() -> None:
    running = [cut(9.9, ended=10.0), cut(9.8, ended=10.0, ttft=0.1)]
    assert doubts([*many(100), *running])["incomplete"].numbers == {"requests": 2, "started": 1}
    assert "incomplete" not in doubts([*many(100), *running], interrupted=True)


@pytest.mark.parametrize(("share", "doubted"), [(0.8, False), (0.81, True), (None, False)])
def test_a_client_that_uses_over_80_percent_of_a_core(share: float | None, doubted: bool) -> None:
    found = doubts(many(100), {"client": {"cpu_share": share}})
    assert ("client_cpu" in found) is doubted


def test_a_locustfile_that_raised_makes_a_run_invalid_in_whatever_process() -> None:
    one = {"client": {"task_errors": {"count": 60, "first": "KeyError: 'a'"}}}
    many_of = [{"index": 0, "host": "h", "pid": 1, "lost": None, "ended_early": False,
                "records": 1, "clock_uncertainty": 0.0,
                "task_errors": {"count": n, "first": f"E: {n}"}} for n in (2, 3)]  # fmt: skip
    for run, count in ((one, 60), ({"workers": many_of, "client": {}}, 5)):
        found = doubts(many(100), run)["task_errors"]
        assert (found.grade, found.numbers["count"]) == ("invalid", count)


def test_m07_a_negative_duration_is_a_bug_and_invalid() -> None:
    found = doubts([*many(100), request(5.0, ttft=-3600.0, tokens=1)])
    assert found["negative_duration"].grade == "invalid"


def test_the_gravest_doubt_stands_first_and_all_are_plain_json_with_a_remedy() -> None:
    records = [request(i / 10, sent=i / 10 + 0.5, output_tokens=20) for i in range(50)]
    found = find_doubts({}, run_of(records, dropped=2))
    assert [d.grade for d in found] == sorted(
        (d.grade for d in found), key=["invalid", "warn", "note"].index
    )
    assert len(found) >= 4
    for doubt in found:
        assert doubt.message and doubt.remedy
        assert json.loads(json.dumps(doubt.to_json(), allow_nan=False))["id"] == doubt.id


def test_every_doubt_is_in_the_documentation() -> None:
    source = Path(prony_loadgen.doubts.__file__).read_text()
    ids = set(re.findall(r'Doubt\(\s*"(\w+)"', source))
    documented = (Path(__file__).parents[2] / "docs" / "slo.md").read_text()
    assert len(ids) > 25
    assert {name for name in ids if f"| `{name}` |" not in documented} == set()


@pytest.mark.parametrize(("held", "made"), [(99, 100), (0, 1)])
def test_records_that_the_run_made_and_the_folder_lacks_make_it_invalid(
    held: int, made: int
) -> None:
    doubt = doubts(many(held), {"records": made})["lost_records"]
    assert (doubt.grade, doubt.numbers) == ("invalid", {"records": held, "of": made})
    assert f"holds {held} of the run's {made} records" in doubt.message


@pytest.mark.parametrize("made", [100, None])
def test_a_folder_with_all_its_records_or_of_a_run_without_an_end_lacks_none(
    made: int | None,
) -> None:
    assert "lost_records" not in doubts(many(100), {"records": made})
