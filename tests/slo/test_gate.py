"""Verdicts and exit codes, from runs with their counts in view."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slo.runs import (
    cut,
    errors_under,
    many,
    refused,
    request,
    run_of,
    slo_of,
    ttft_under,
    with_burst,
    with_slow,
)

from prony_loadgen.doubts import Doubt, find_doubts
from prony_loadgen.record import Outcome, RequestRecord
from prony_loadgen.summary import Stage
from prony_slo.gate import goodput, judge
from prony_slo.intervals import lower, upper
from prony_slo.objective import load_slo
from prony_slo.pairs import Change
from prony_slo.promise import (
    Band,
    Check,
    Condition,
    Floor,
    Marked,
    Measure,
    Objective,
    Regression,
    Share,
)
from prony_slo.regression import judge_changes
from prony_slo.verdicts import ObjectiveResult

INVALID = Doubt("send_lag", "invalid", "sent late", "a lower rate", {})


def judged(
    objective: Objective, records: Sequence[RequestRecord], **facts: object
) -> ObjectiveResult:
    return judge(slo_of(objective), run_of(records, **facts), []).objectives[0]


def code(objective: Objective, records: Sequence[RequestRecord], **facts: object) -> int:
    return judge(slo_of(objective), run_of(records, **facts), []).exit_code


# 99 % of TTFT under 500 ms, at 95 % confidence


@pytest.mark.parametrize(
    ("n", "slow", "verdict"),
    [
        (298, 0, "inconclusive"),
        (299, 0, "pass"),
        (300, 0, "pass"),
        (299, 1, "inconclusive"),
        (472, 1, "inconclusive"),
        (473, 1, "pass"),
        (627, 2, "inconclusive"),
        (628, 2, "pass"),
        (773, 3, "pass"),
        (300, 3, "inconclusive"),
        (300, 6, "inconclusive"),
        (300, 7, "breach"),
        (20, 0, "inconclusive"),
        (20, 1, "inconclusive"),
        (20, 2, "breach"),
    ],
)
def test_the_bound_decides_what_n_requests_with_some_slow_ones_show(
    n: int, slow: int, verdict: str
) -> None:
    result = judged(ttft_under(0.5, 0.01), with_slow(n, slow))
    assert (result.verdict, result.n, result.bad) == (verdict, n, slow)


@given(
    good=st.integers(0, 700),
    slow=st.integers(0, 40),
    lost=st.integers(0, 10),
    dropped=st.integers(0, 10),
    limit=st.sampled_from([0.001, 0.01, 0.05, 0.2, 0.5]),
    confidence=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
@settings(max_examples=80, deadline=None)
def test_nothing_passes_whose_bound_of_bad_requests_lies_above_the_limit(
    good: int, slow: int, lost: int, dropped: int, limit: float, confidence: float
) -> None:
    records = with_slow(good + slow, slow) + [refused(i / 10) for i in range(lost)]
    objective = ttft_under(0.5, limit, confidence=confidence)
    result = judge(slo_of(objective), run_of(records, dropped=dropped), [])
    n, bad = len(records) + dropped, slow + lost + dropped
    if result.exit_code == 0:
        assert n >= 30 and upper(bad, n, confidence) <= limit
    if result.exit_code == 1:
        assert lower(bad, n, confidence) > limit
    assert result.exit_code in (0, 1, 3)


def test_shows_3_twenty_good_requests_under_a_p99_objective_exit_3() -> None:
    judgement = judge(load_slo(["ttft p99 < 500ms"]), run_of(many(20)), [])
    assert (judgement.verdict, judgement.exit_code) == ("inconclusive", 3)
    assert judgement.objectives[0].needed_more == 279
    assert "not enough data, about 279 more" in judgement.objectives[0].text


def test_a_limit_belongs_to_the_good_side_of_at_most_and_the_bad_side_of_below() -> None:
    at_the_limit = [request(0.0, ttft=0.5) for _ in range(300)]
    assert code(ttft_under(0.5, 0.01), at_the_limit) == 0
    below = Objective("ttft", Share((Condition("ttft", 0.5, inclusive=False),), 0.01), "--slo")
    assert code(below, at_the_limit) == 1


@pytest.mark.parametrize(
    "outcome",
    [
        "http_error",
        "redirect",
        "wrong_content_type",
        "stream_error",
        "malformed_event",
        "truncated_transport",
        "truncated_stream",
        "empty_stream",
        "abnormal_finish",
        "timeout",
        "connect_error",
    ],
)
def test_every_kind_of_failure_is_bad_however_fast_its_first_token_came(outcome: Outcome) -> None:
    records = many(300) + [request(i, ttft=0.01, outcome=outcome) for i in range(20)]
    for objective in (ttft_under(0.5, 0.01), errors_under(0.01)):
        result = judged(objective, records)
        assert (result.verdict, result.n, result.bad) == ("breach", 320, 20)


def test_arrivals_that_were_never_sent_are_bad() -> None:
    for objective in (ttft_under(0.5, 0.01), errors_under(0.01)):
        result = judged(objective, many(300), dropped=20)
        assert (result.verdict, result.n, result.bad) == ("breach", 320, 20)


def test_answers_without_output_are_out_of_latency_objectives_and_good_for_errors() -> None:
    records = many(300) + [request(i, ttft=None, flags=("empty",)) for i in range(50)]
    latency = judged(ttft_under(0.5, 0.01), records)
    assert (latency.verdict, latency.n, latency.left_out) == ("pass", 300, {"empty": 50})
    errors = judged(errors_under(0.01), records)
    assert (errors.verdict, errors.n, errors.bad) == ("pass", 350, 0)


@pytest.mark.parametrize(
    ("record", "n", "bad"),
    [
        (cut(10.0, ended=10.4), 300, 0),  # waits for 400 ms: could still become good
        (cut(10.0, ended=10.6), 301, 1),  # waits for 600 ms: can no longer
        (cut(10.0, ended=10.6, ttft=0.1), 301, 0),  # its TTFT is known
        (cut(10.0, ended=12.0, ttft=0.7), 301, 1),
    ],
)
def test_a_request_cut_by_the_end_is_judged_by_what_is_certain(
    record: RequestRecord, n: int, bad: int
) -> None:
    result = judged(ttft_under(0.5, 0.01), [*many(300), record])
    assert (result.n, result.bad) == (n, bad)
    assert result.left_out == ({"still running": 1} if n == 300 else {})


def test_a_request_cut_by_the_end_is_not_an_error_and_its_age_says_nothing_of_its_pace() -> None:
    records = [*many(300), cut(10.0, ended=99.0, ttft=0.1)]
    assert judged(errors_under(0.01), records).n == 300
    tpot = Objective("tpot", Share((Condition("tpot", 0.05),), 0.01), "test.yaml:1")
    result = judged(tpot, records)
    assert (result.n, result.bad, result.left_out) == (300, 0, {"still running": 1})


def test_unfinished_requests_are_bad_where_the_file_says_so() -> None:
    records = many(300) + [cut(1.5 * i, ended=1.5 * i + 0.1) for i in range(20)]
    slo = slo_of(ttft_under(0.5, 0.01), errors_under(0.01), measure=Measure(unfinished_is_bad=True))
    for result in judge(slo, run_of(records), []).objectives:
        assert (result.verdict, result.bad) == ("breach", 20)


# Q01, Q09: without data nothing passes


def test_q01_no_success_breaches_and_never_passes() -> None:
    records = [refused(i / 10) for i in range(50)]
    for objective in (ttft_under(0.5, 0.01), errors_under(0.01)):
        assert code(objective, records) == 1


def test_q01_answers_that_were_not_streamed_have_no_ttft_to_judge() -> None:
    result = judged(ttft_under(0.5, 0.01), many(500, tokens=1, flags=("not_streamed",)))
    assert result.verdict == "inconclusive"
    assert result.text == "no data: no answer has a ttft (500 no ttft)"


def test_no_requests_at_all_never_pass_even_where_all_is_a_warning_or_let_through() -> None:
    for facts in ({}, {"severity": "warn"}, {"on_inconclusive": "pass"}):
        assert code(ttft_under(0.5, 0.01, **facts), []) == 3


@pytest.mark.parametrize(("failures", "wanted"), [(1, 0), (999, 1)])
def test_q09_one_failure_of_a_thousand_and_999_of_a_thousand(failures: int, wanted: int) -> None:
    records = many(1000 - failures) + [refused(i / 10) for i in range(failures)]
    assert code(errors_under(0.01), records) == wanted


def test_q09_a_thousand_answers_with_no_token_do_not_pass() -> None:
    run = run_of([request(i / 10, ttft=None, flags=("empty",)) for i in range(1000)])
    judgement = judge(slo_of(errors_under(0.01)), run, find_doubts({}, run))
    assert (judgement.verdict, judgement.exit_code) == ("invalid", 4)


@pytest.mark.parametrize(("percentile", "n"), [("p99", 8), ("p99.9", 200)])
def test_q06_too_few_requests_for_a_percentile_decide_nothing(percentile: str, n: int) -> None:
    judgement = judge(load_slo([f"ttft {percentile} < 500ms"]), run_of(many(n)), [])
    assert judgement.exit_code == 3
    assert judgement.objectives[0].n == n
    assert judgement.objectives[0].value == pytest.approx(0.1)  # never beyond the largest


# Q11: joint conditions and goodput

JOINT = Share((Condition("ttft", 0.5), Condition("tpot", 0.05)), 0.2)
KINDS = [
    request(0.0),
    request(1.0, ttft=0.9),  # slow to begin
    request(2.0, tpot=0.09),  # slow to go on
    refused(3.0),
    request(4.0, tokens=1),  # no TPOT: judged on TTFT alone
    request(5.0, ttft=None, flags=("empty",)),
]


def test_q11_a_good_request_meets_all_conditions_that_it_has_a_value_for() -> None:
    result = judged(Objective("good", JOINT, "test.yaml:1"), KINDS)
    assert (result.n, result.bad, result.left_out) == (5, 3, {"empty": 1})


def test_q11_goodput_is_over_all_attempts_and_per_second_of_the_window() -> None:
    slo = slo_of(Objective("good", JOINT, "test.yaml:1"))
    assert goodput(slo, run_of(KINDS, window=(0.0, 8.0), dropped=2)) == {
        "goodput_share": 2 / 8,
        "goodput_per_s": 2 / 8,
    }


def test_an_answer_without_output_is_no_goodput_with_conditions_and_without() -> None:
    empty = [request(4.0 + i, ttft=None, flags=("empty",)) for i in range(3)]
    run = run_of([request(0.0), *empty], window=(0.0, 8.0))
    for slo in (slo_of(errors_under(0.01)), slo_of(ttft_under(0.5, 0.01))):
        assert goodput(slo, run) == {"goodput_share": 1 / 4, "goodput_per_s": 1 / 8}


def test_goodput_takes_the_conditions_of_all_objectives_together() -> None:
    slo = load_slo(["ttft p99 < 500ms", "tpot p95 < 50ms", "errors < 1%"])
    assert goodput(slo, run_of(KINDS))["goodput_share"] == pytest.approx(2 / 6)


def test_a_joint_condition_that_no_answer_has_a_value_for_is_no_data() -> None:
    result = judged(Objective("good", JOINT, "test.yaml:1"), many(500, tokens=1))
    assert (result.verdict, result.text[:25]) == ("inconclusive", "no data: no answer has a ")
    assert "tpot" in result.text


def test_answers_of_one_token_are_out_of_a_tpot_objective() -> None:
    tpot = Objective("tpot", Share((Condition("tpot", 0.05),), 0.01), "test.yaml:1")
    result = judged(tpot, many(300) + many(7, tokens=1))
    assert (result.verdict, result.n, result.left_out) == ("pass", 300, {"no tpot": 7})


# Regression


def test_a_regression_changes_the_code_as_an_objective_does() -> None:
    check = Check("ttft p50", "ttft", "p50", 0.05, "test.yaml:9")
    regression = Regression((check,))
    slo = slo_of(ttft_under(0.5, 0.01), regression=regression)
    run = run_of(many(300))

    def code_of(*changes: float, missing: bool = False) -> int:
        results = judge_changes(regression, {check.id: [Change(c, 300) for c in changes]})
        judgement = judge(slo, run, [], regression=results, baseline_missing=missing)
        assert judgement.to_json()["regression"][0]["id"] == "ttft p50"
        return judgement.exit_code

    assert code_of(0.0, 0.0, 0.0) == 0
    assert code_of(0.2, 0.2, 0.2) == 1
    assert code_of(0.2) == 3
    assert code_of(0.2, missing=True) == 3
    assert judge(slo, run, []).exit_code == 0  # nobody compared anything


# Fewest requests


def test_fewer_than_min_requests_are_inconclusive_unless_clearly_broken() -> None:
    easy = ttft_under(0.5, 0.5, min_requests=100)
    assert judged(easy, many(99)).verdict == "inconclusive"
    assert judged(easy, many(99)).needed_more == 1
    assert judged(easy, many(100)).verdict == "pass"
    assert judged(easy, many(99, ttft=2.0)).verdict == "breach"


def test_a_share_that_lies_on_the_limit_says_that_more_will_not_help() -> None:
    result = judged(ttft_under(0.5, 0.01), with_slow(100, 1))
    assert result.needed_more is None
    assert "no number of requests would settle it" in result.text


# Bursts, several runs


def test_slow_requests_in_a_row_are_worth_less_and_the_line_says_so() -> None:
    """7 slow of 300 are a breach where they came one by one, and one event where in a row."""
    result = judged(ttft_under(0.5, 0.01), with_burst(300, 7))
    assert result.verdict == "inconclusive"
    assert result.n_eff is not None and result.n_eff < 60
    assert "of 300 requests miss ttft <= 500 ms (in bursts: worth" in result.text
    assert "bursts decide it: true of this trace of arrivals, maybe not of another" not in (
        judged(ttft_under(0.5, 0.01), with_slow(300, 7)).text
    )


def test_several_runs_are_judged_as_one() -> None:
    slo = slo_of(ttft_under(0.5, 0.01))
    assert judge(slo, [run_of(many(100))] * 2, []).exit_code == 3
    together = judge(slo, [run_of(many(100))] * 3, [])
    assert (together.exit_code, together.objectives[0].n) == (0, 300)
    assert judge(slo, [run_of(many(300)), run_of(with_slow(300, 200))], []).exit_code == 3
    assert judge(slo, [run_of(with_slow(300, 100))] * 3, []).exit_code == 1


def test_one_interrupted_run_of_several_keeps_them_from_passing() -> None:
    runs = [run_of(many(300)), run_of(many(300), interrupted=True)]
    assert judge(slo_of(ttft_under(0.5, 0.01)), runs, []).exit_code == 4


def test_three_runs_give_a_rate_its_interval() -> None:
    floor = Objective("tput", Floor("requests_per_s", 9.0), "test.yaml:1")
    result = judge(slo_of(floor), [run_of(many(300), window=(0.0, 30.0))] * 3, []).objectives[0]
    assert result.bounds is not None and "no uncertainty" not in result.text
    assert result.verdict == "pass"


def test_three_rates_that_differ_leave_a_minimum_between_them_open() -> None:
    runs = [run_of(many(n), window=(0.0, 30.0)) for n in (200, 300, 250)]
    for least, verdict in ((4.0, "pass"), (8.0, "inconclusive"), (12.0, "breach")):
        floor = Objective("tput", Floor("requests_per_s", least), "test.yaml:1")
        assert judge(slo_of(floor), runs, []).objectives[0].verdict == verdict


# Classes, stages, quality

MIXED = [request(i / 10, cls="long" if i % 2 else "short") for i in range(600)]
STAGES = (Stage("ramp", 0.0, 20.0), Stage("steady", 20.0, 60.0))


def test_an_objective_of_a_class_judges_its_requests_only() -> None:
    slow = [request(i / 10, cls="batch", ttft=2.0) for i in range(300)]
    chat = ttft_under(0.5, 0.01, cls="chat")
    result = judged(chat, many(300) + slow)
    assert (result.verdict, result.n) == ("pass", 300)
    assert result.promise.endswith("of requests (class chat)")
    assert judged(ttft_under(0.5, 0.01, cls="batch"), many(300) + slow).verdict == "breach"


def test_q03_a_class_or_stage_that_is_not_there_is_no_data_and_names_the_nearest() -> None:
    text = judged(ttft_under(0.5, 0.01, cls="shrot"), MIXED).text
    assert text == (
        "no data: this run has no class named shrot; did you mean 'short'? (it has: long, short)"
    )
    stage = ttft_under(0.5, 0.01, stage="stedy")
    assert "did you mean 'steady'" in judged(stage, MIXED, stages=STAGES).text
    assert judged(stage, MIXED).verdict == "inconclusive"
    assert judged(stage, MIXED).text.endswith("it has none at all")


def test_an_objective_of_a_stage_judges_what_was_intended_in_it() -> None:
    ramp_is_slow = [request(i / 10, ttft=2.0 if i < 200 else 0.1) for i in range(600)]
    steady = ttft_under(0.5, 0.01, stage="steady")
    result = judged(steady, ramp_is_slow, stages=STAGES)
    assert (result.verdict, result.n) == ("pass", 400)
    rate = Objective("r", Floor("requests_per_s", 9.5), "test.yaml:1", stage="steady")
    assert judged(rate, ramp_is_slow, stages=STAGES).verdict == "pass"


def test_dropped_arrivals_that_might_belong_to_a_class_forbid_its_pass_and_show_no_breach() -> None:
    objective = ttft_under(0.5, 0.01, cls="short")
    assert judged(objective, MIXED).verdict == "pass"
    result = judged(objective, MIXED, dropped=30)
    assert (result.verdict, result.bad) == ("inconclusive", 0)
    assert "30 arrivals were never sent, and might belong here" in result.text


SAME = Objective("same", Marked("mismatch_share", 0.02), "test.yaml:1")
LOOKED_AT = frozenset({"mismatch_share", "truncated_share", "repetition_share"})


def test_quality_that_nobody_looked_at_is_not_collected() -> None:
    result = judged(SAME, many(300))
    assert result.verdict == "inconclusive"
    assert result.text == "not collected: nobody looked at mismatch_share in this run"


def test_answers_that_differ_from_their_reference_are_bad() -> None:
    right = [request(i / 10, flags=("match",)) for i in range(280)]
    wrong = [request(i / 10 + 0.05, flags=("mismatch",)) for i in range(0, 280, 14)]
    free = many(50)
    assert judged(SAME, right + free, quality=LOOKED_AT).verdict == "pass"
    result = judged(SAME, right + wrong + free, quality=LOOKED_AT)
    assert (result.verdict, result.n, result.bad) == ("breach", 300, 20)
    assert result.left_out == {"without a reference": 50}
    assert result.text.startswith("6.67 % of 300 answers (mismatch), limit 2 %")


def test_cut_and_repeating_answers_are_told_by_their_flags() -> None:
    for metric, flag in (("truncated_share", "truncated"), ("repetition_share", "repetition")):
        objective = Objective("q", Marked(metric, 0.02), "test.yaml:1")  # type: ignore[arg-type]
        bad = [request(i / 10, flags=(flag,) if i % 10 == 0 else ()) for i in range(300)]
        assert judged(objective, many(300), quality=LOOKED_AT).verdict == "pass"
        assert judged(objective, bad, quality=LOOKED_AT).verdict == "breach"


def test_no_answer_at_all_is_no_data_for_quality() -> None:
    lost = [refused(i / 10) for i in range(300)]
    assert judged(SAME, lost, quality=LOOKED_AT).verdict == "inconclusive"


# Rates and gauges


@pytest.mark.parametrize(("least", "verdict"), [(99.9, "pass"), (100.1, "breach")])
def test_a_throughput_minimum_is_a_single_measurement_and_says_so(
    least: float, verdict: str
) -> None:
    # 10 requests of 10 tokens a second.
    floor = Objective("tput", Floor("output_tokens_per_s", least), "test.yaml:1")
    result = judged(floor, many(300, ttft=0.05, tpot=0.0), window=(0.0, 30.0))
    assert result.verdict == verdict
    assert result.value == pytest.approx(100)
    assert "no uncertainty is claimed" in result.text


def test_a_throughput_of_29_requests_is_not_enough_data() -> None:
    floor = Objective("tput", Floor("requests_per_s", 1.0), "test.yaml:1")
    result = judged(floor, many(29))
    assert (result.verdict, result.needed_more) == ("inconclusive", 1)
    assert judged(floor, many(30)).verdict == "pass"


def test_good_requests_per_second_are_counted_by_another_objective() -> None:
    good = Objective("good", JOINT, "test.yaml:1")
    floor = Objective("good-rps", Floor("goodput_rps", 8.0, of="good"), "test.yaml:2")
    run = run_of(with_slow(300, 90), window=(0.0, 30.0))
    result = judge(slo_of(good, floor), run, []).objectives[1]
    assert result.verdict == "breach"
    # 210 of the 300 are good; the answer to the last one ended after the window.
    assert result.value == pytest.approx(209 / 30)


@pytest.mark.parametrize(
    ("gauges", "verdict"),
    [
        (None, "inconclusive"),
        ({}, "inconclusive"),
        ({"gpu_utilization": 0.59}, "breach"),
        ({"gpu_utilization": 0.70}, "pass"),
        ({"gpu_utilization": 0.81}, "breach"),
    ],
)
def test_gpu_utilization_between_60_and_80_percent(
    gauges: dict[str, float] | None, verdict: str
) -> None:
    gpu = Objective("gpu", Band("gpu_utilization", 0.6, 0.8), "test.yaml:1")
    result = judged(gpu, many(300), gauges=gauges)
    assert result.verdict == verdict
    assert gauges or "not collected" in result.text


def test_an_objective_of_another_scenario_has_no_data_here() -> None:
    result = judged(ttft_under(0.5, 0.01, scenario="chat"), many(300), scenario="code")
    assert result.verdict == "inconclusive"
    assert "scenario chat" in result.text and "code" in result.text


# Severity, policy, precedence

BROKEN = with_slow(300, 100)


def test_a_warning_never_changes_the_code() -> None:
    judgement = judge(
        slo_of(ttft_under(0.5, 0.01, severity="warn"), errors_under(0.01)), run_of(BROKEN), []
    )
    assert [r.verdict for r in judgement.objectives] == ["breach", "pass"]
    assert (judgement.verdict, judgement.exit_code) == ("pass", 0)


@pytest.mark.parametrize(
    ("policy", "wanted"), [("inconclusive", 3), ("fail", 1), ("warn", 0), ("pass", 0)]
)
def test_what_an_inconclusive_objective_does_is_the_files_choice(policy: str, wanted: int) -> None:
    assert code(ttft_under(0.5, 0.01, on_inconclusive=policy), many(20)) == wanted


def test_a_breach_wins_over_inconclusive_and_both_over_pass() -> None:
    breach, open_, met = ttft_under(0.5, 0.01), errors_under(0.001), errors_under(0.5)
    run = run_of(BROKEN)
    assert judge(slo_of(met), run, []).exit_code == 0
    assert judge(slo_of(met, open_), run, []).exit_code == 3
    assert judge(slo_of(met, open_, breach), run, []).exit_code == 1


def test_an_invalid_run_has_no_other_verdict_not_even_a_breach() -> None:
    judgement = judge(slo_of(ttft_under(0.5, 0.01), errors_under(0.5)), run_of(BROKEN), [INVALID])
    assert (judgement.verdict, judgement.exit_code) == ("invalid", 4)
    assert [r.verdict for r in judgement.objectives] == ["invalid", "invalid"]
    assert "send_lag" in judgement.objectives[0].text
    assert "breach" in judgement.objectives[0].text


def test_notes_and_warnings_leave_the_verdict_alone() -> None:
    doubts = [Doubt("a", "note", "m", "r", {}), Doubt("b", "warn", "m", "r", {})]
    assert judge(slo_of(errors_under(0.5)), run_of(many(300)), doubts).exit_code == 0


@pytest.mark.parametrize(
    ("records", "wanted"), [(BROKEN, 1), (many(300), 4), (many(5), 4), ([], 4)]
)
def test_an_interrupted_run_exits_1_on_a_breach_and_else_4(
    records: list[RequestRecord], wanted: int
) -> None:
    judgement = judge(slo_of(ttft_under(0.5, 0.01)), run_of(records, interrupted=True), [])
    assert judgement.exit_code == wanted
    assert judgement.verdict == {1: "breach", 4: "invalid"}[wanted]


def test_an_interrupted_run_cannot_breach_a_rate() -> None:
    floor = Objective("tput", Floor("requests_per_s", 1000.0), "test.yaml:1")
    assert code(floor, many(300), interrupted=True) == 4


def test_q12_a_run_that_stopped_early_can_show_a_breach_and_no_pass() -> None:
    assert code(ttft_under(0.5, 0.01), BROKEN, stopped_early="ttft") == 1
    assert code(ttft_under(0.5, 0.01), many(300), stopped_early="ttft") == 3


# What is said


def test_the_line_of_a_breach_names_share_bound_limit_and_budget() -> None:
    result = judged(ttft_under(0.5, 0.01), with_slow(4812, 91))
    assert result.text == (
        "1.89 % of 4,812 requests miss ttft <= 500 ms, limit 1 %, at least 1.58 % with 95 % "
        "confidence; p99 is 2,000 ms | budget 48.1 bad requests, 91 used (189 %), at most 108 "
        "(225 %) by chance"
    )


def test_failures_among_the_bad_are_told() -> None:
    result = judged(ttft_under(0.5, 0.01), many(280) + [refused(i) for i in range(20)])
    assert "6.67 % of 300 requests miss ttft <= 500 ms (20 failed), limit 1 %" in result.text
    assert "p99 is never" in result.text


def test_a_judgement_is_plain_json_with_infinity_as_a_string() -> None:
    records = many(280) + [refused(i) for i in range(20)]
    told = judge(slo_of(ttft_under(0.5, 0.01), errors_under(0.01)), run_of(records), []).to_json()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["verdict"] == "breach" and told["exit_code"] == 1
    assert told["objectives"][0]["value"] == "inf"
    assert told["objectives"][0]["place"] == "test.yaml:1"
