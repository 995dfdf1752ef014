"""The SLOs that ship, judged against the runs that they were made for."""

from tests.slo.runs import many, refused, run_of, with_slow

from prony_loadgen import shipped
from prony_slo.ahead import BreachWatch, undecidable
from prony_slo.gate import judge
from prony_slo.objective import load_slo


def test_these_ship_and_all_of_them_can_be_read() -> None:
    names = ["chat", "first-look", "impossible", "sanity", "tutorial"]
    assert shipped.names("objectives") == names
    for name in shipped.names("objectives"):
        assert load_slo([name]).objectives


def test_300_requests_decide_chat_and_a_few_slow_ones_do_not_change_it() -> None:
    chat = load_slo(["chat"])
    assert undecidable(chat, 300) == []
    assert judge(chat, run_of(with_slow(320, 0)), []).exit_code == 0
    assert judge(chat, run_of(with_slow(320, 9)), []).exit_code == 0
    assert judge(chat, run_of(with_slow(320, 10)), []).exit_code == 3
    assert judge(chat, run_of(with_slow(320, 40)), []).exit_code == 1


def test_50_requests_decide_the_first_look_with_one_of_them_slow() -> None:
    first_look = load_slo(["first-look"])
    assert undecidable(first_look, 50) == []
    assert judge(first_look, run_of(with_slow(50, 1, slowly=5.0)), []).exit_code == 0
    assert judge(first_look, run_of(with_slow(50, 20, slowly=5.0)), []).exit_code == 1


def test_one_failure_of_320_leaves_chats_error_rate_open() -> None:
    judgement = judge(load_slo(["chat"]), run_of([*many(319), refused(5.0)]), [])
    assert {r.id: r.verdict for r in judgement.objectives}["errors"] == "inconclusive"
    assert judgement.exit_code == 3


def test_tutorial_is_open_at_320_requests_and_met_at_2995_without_a_gpu() -> None:
    tutorial = load_slo(["tutorial"])
    short = judge(tutorial, run_of(many(320)), [])
    assert [r.verdict for r in short.objectives] == ["pass", "inconclusive", "inconclusive"]
    assert short.exit_code == 3
    assert short.objectives[1].needed_more == 2995 - 320
    assert short.objectives[2].text.startswith("not collected")
    assert judge(tutorial, run_of(many(2995)), []).exit_code == 0


def test_tutorials_gpu_target_warns_and_never_fails() -> None:
    judgement = judge(
        load_slo(["tutorial"]), run_of(many(2995), gauges={"gpu_utilization": 0.99}), []
    )
    assert judgement.objectives[2].verdict == "breach"
    assert judgement.exit_code == 0


def test_impossible_stops_a_run_of_320_after_7_requests_and_is_a_breach() -> None:
    impossible = load_slo(["impossible"])
    watch = BreachWatch(impossible, 320, (0.0, 60.0))
    records = many(320, ttft=0.004)
    stopped_at = next(i for i, record in enumerate(records) if watch.add(record))
    assert stopped_at == 6
    early = run_of(records[: stopped_at + 1], stopped_early=watch.reason)
    assert judge(impossible, early, []).exit_code == 1
