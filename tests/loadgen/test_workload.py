"""What is sent, seen by a server: conversations, checks, a limit of tokens, a freeze, traces."""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.test_session import FakeJudge, drive, scenario
from tests.loadgen.test_session import settings as settings_for

from prony_loadgen.drive import Load, LoadOver
from prony_loadgen.endpoint import reach
from prony_loadgen.folder import RunFolder
from prony_loadgen.plan import make_plan
from prony_loadgen.price import Purse, cost
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import Scenario
from prony_loadgen.settings import for_scenario
from prony_loadgen.summary import measured, percentile, summarise, value
from prony_loadgen.token_probe import tokens_at

TALK = {"turns": {"count": 3, "think_time": "20ms", "input_tokens": 5}}


def run(
    server: FakeServer, folder: Path, **keys: object
) -> tuple[Load, dict[str, Any], list[RequestRecord]]:
    """A finished run: the load, run.json, and its records in the order they were due."""
    load = drive(settings_for(server, folder / "out", FakeJudge(), **keys))
    at = RunFolder(folder / "out")
    return load, at.read_run(), sorted(at.records(), key=lambda record: record.intended)


def by_conversation(records: list[RequestRecord]) -> dict[str, list[RequestRecord]]:
    turns: dict[str, list[RequestRecord]] = {}
    for record in records:
        turns.setdefault(record.id.split(".")[0], []).append(record)
    return turns


def test_a_conversation_repeats_all_that_was_said(tmp_path: Path) -> None:
    arrivals = {"process": "constant", "rate": 10}
    with FakeServer() as server:
        _, facts, records = run(
            server, tmp_path, arrivals=arrivals, duration="500ms", warmup="0s", **TALK
        )
    assert len(by_conversation(records)) == 5
    first = by_conversation(records)["000000"]
    assert [record.id for record in first] == ["000000", "000000.2", "000000.3"]
    # A later turn is due when its user has read the answer and thought, and it is not dropped else.
    for before, after in pairwise(first):
        assert after.intended == pytest.approx(before.ended + 0.02, abs=1e-6)
    assert facts["schedule"]["dropped"] == 0
    assert facts["schedule"]["offered"] == len(records)
    bodies = [body["messages"] for body in server.bodies]
    [last] = [m for m in bodies if len(m) == 5 and m[0] == bodies[0][0]]
    said = "w0 w1 w2 w3 w4 "
    assert [(m["role"], m["content"] == said) for m in last[1::2]] == [("assistant", True)] * 2
    assert len(last[4]["content"].split()) == 5
    # Nobody asked to keep the text.
    assert {record.text for record in records} == {None}


def test_a_history_can_be_made_of_asked_lengths(tmp_path: Path) -> None:
    turns = {"turns": {**TALK["turns"], "history": "asked"}}
    arrivals = {"process": "constant", "rate": 10}
    with FakeServer() as server:
        _, _, records = run(
            server, tmp_path, arrivals=arrivals, duration="300ms", warmup="0s", **turns
        )
    assert not any("w0" in json.dumps(body["messages"]) for body in server.bodies)
    first = by_conversation(records)["000000"]
    assert [record.asked_input_tokens for record in first] == [8, 8 + 5 + 5, 8 + 2 * (5 + 5)]


def test_nobody_goes_on_after_a_request_that_failed(tmp_path: Path) -> None:
    arrivals = {"process": "constant", "rate": 10}
    with FakeServer(fail_after=1) as server:
        _, _, records = run(
            server, tmp_path, arrivals=arrivals, duration="500ms", warmup="0s", **TALK
        )
    assert [r.id for r in by_conversation(records)["000001"]] == ["000001"]


def test_in_closed_loop_a_user_ends_its_conversation_before_the_next(tmp_path: Path) -> None:
    keys = {"arrivals": {"process": "closed", "users": 2}, "duration": None, "requests": 4}
    with FakeServer() as server:
        settings = settings_for(server, tmp_path / "out", FakeJudge(), warmup="0s", **keys, **TALK)
        load = drive_conversations(settings)
    records = list(RunFolder(tmp_path / "out").records())
    assert load.exit_code == 0
    assert sorted(len(turns) for turns in by_conversation(records).values()) == [3, 3, 3, 3]


def drive_conversations(settings: Any) -> Load:
    import gevent
    from tests.loadgen.test_session import start

    load, _, over = start(settings)

    def user() -> None:
        try:
            while (draft := load.next_draft()) is not None:
                for _ in load.converse(draft):
                    pass
        except LoadOver:
            return

    users = [gevent.spawn(user) for _ in range(2)]
    assert over.wait(timeout=20)
    gevent.killall(users)
    return load


def test_no_more_tokens_are_spent_than_allowed(tmp_path: Path) -> None:
    wanted = scenario(prompts={"input_tokens": 12}, max_total_tokens=150, warmup="0s")
    with FakeServer() as server:
        target, model = reach(wanted, server.url, None)
        tokens = tokens_at(wanted, target, model)
        out = tmp_path / "out"
        load = drive(for_scenario(wanted, target, model, FakeJudge(), out=out, tokens=tokens))
    facts, records = RunFolder(out).read_run(), list(RunFolder(out).records())
    spent = sum((r.prompt_tokens or 0) + (r.output_tokens or 0) for r in records)
    assert 100 < spent <= 150
    assert facts["stopped_early"] == "max_total_tokens: 150 would have been exceeded"
    assert {record.outcome for record in records} == {"ok"}
    assert load.exit_code == 0


def test_a_purse_takes_the_most_and_gives_back_the_rest() -> None:
    from tests.loadgen.test_dispatch import form, request
    from tests.loadgen.test_quality import record

    from prony_loadgen.prompt import Prompt

    purse = Purse(30)
    asked = form().request(
        Prompt(text="a b", asked_tokens=10), id="1", cls="c", intended=0.0, max_tokens=15
    )
    assert purse.take(asked)
    assert purse.left == 5
    assert not purse.take(asked)
    purse.settle(record(id="1", prompt_tokens=12, output_tokens=4))
    assert purse.left == 14
    # Nobody has counted this one: a word is a token at least, and lately was more.
    assert purse.take(request(3.0))
    assert purse.left == 14 - 2 - 5
    purse.settle(record(id="3", outcome="connect_error", prompt_tokens=None))
    assert purse.left == 14


class Knowing(FakeServer):
    """Knows one answer, until it has been asked for a while."""

    def words(self, asked: dict[str, Any]) -> list[str]:
        if "France" not in json.dumps(asked["messages"]):
            return super().words(asked)
        return ["Paris"] if len(self.bodies) < 10 else ["Paris", " Paris"] * 40


def test_checks_are_asked_before_and_after_the_load_and_outside_of_it(tmp_path: Path) -> None:
    checks = tmp_path / "checks.jsonl"
    checks.write_text('{"prompt": "Capital of France?", "reference": "Paris"}\n')
    with Knowing() as server:
        _, facts, records = run(server, tmp_path, checks=str(checks))
    assert facts["checks"] == {
        "before": {"asked": 1, "failed": 0, "match": 1, "mismatch": 0, "repetition": 0},
        "after": {"asked": 1, "failed": 0, "match": 0, "mismatch": 1, "repetition": 1},
        "changed": 1,
    }
    before, after = records[0], records[-1]
    assert (before.cls, after.cls) == ("check-before", "check-after")
    assert before.ended < 0
    assert after.intended > facts["window"][1]
    part = measured(facts, records)
    assert "check-before" not in {record.cls for record in part.records}
    assert summarise(part)["quality"]["mismatch_share"] == 0.5


def test_a_bad_checks_file_is_an_error_before_load(tmp_path: Path) -> None:
    (tmp_path / "checks.jsonl").write_text('{"prompt": "x", "pattern": "("}\n')
    with FakeServer() as server, pytest.raises(ValueError, match=r"checks.jsonl:1: pattern is no"):
        settings_for(server, tmp_path / "out", FakeJudge(), checks=str(tmp_path / "checks.jsonl"))


def test_references_in_a_prompts_file_mark_their_answers(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a", "contains": "w4"}\n{"prompt": "b", "contains": "no"}\n')
    with FakeServer(gap=0.001) as server:
        _, facts, records = run(server, tmp_path, prompts={"file": str(file)}, warmup="0s")
    assert [record.flags for record in records[:2]] == [("match",), ("mismatch",)]
    assert facts["quality"] == ["truncated_share", "repetition_share", "mismatch_share"]


def test_quality_can_be_left_out(tmp_path: Path) -> None:
    with FakeServer() as server:
        _, facts, records = run(server, tmp_path, quality=False, warmup="0s")
    assert facts["quality"] == ["truncated_share"]
    assert {record.quality for record in records} == {None}


def test_the_stages_of_a_run_stand_in_its_facts(tmp_path: Path) -> None:
    steps = {"process": "constant", "steps": {"rates": [20, 50], "each": "200ms"}}
    with FakeServer() as server:
        _, facts, records = run(server, tmp_path, arrivals=steps, duration=None, warmup="100ms")
    assert facts["stages"] == [["20/s", 0.1, 0.3], ["50/s", 0.3, pytest.approx(0.5)]]
    assert [sum(a <= r.intended < b for r in records) for _, a, b in facts["stages"]] == [4, 10]


class Freezing(FakeServer):
    """Does nothing between two moments, then goes on."""

    freeze = (float("inf"), float("inf"))

    def freezes_after_a_second(self, load: Load) -> None:
        self.freeze = (load.session.origin + 1.0, load.session.origin + 1.5)

    def words(self, asked: dict[str, Any]) -> list[str]:
        start, end = self.freeze
        if start <= time.monotonic() < end:
            time.sleep(end - time.monotonic())
        return super().words(asked)


def test_m04_a_freeze_is_felt_by_all_who_come_meanwhile_in_open_loop(tmp_path: Path) -> None:
    # A twelfth of issue 3's freeze, in 2 s at 50/s.
    arrivals = {"process": "constant", "rate": 50}
    with Freezing() as server:
        wanted = settings_for(
            server, tmp_path / "out", FakeJudge(), arrivals=arrivals, duration="2s", warmup="0s"
        )
        load = drive(wanted, server.freezes_after_a_second)
    folder = RunFolder(tmp_path / "out")
    part = measured(folder.read_run(), folder.records())
    ttfts = [ttft for record in part.records if (ttft := value(record, "ttft")) is not None]
    assert len(ttfts) == 100
    start, end = (moment - load.session.origin for moment in server.freeze)
    # 25 requests were due while nothing moved: each waited for what was left of it.
    waiting = [record for record in part.records if start < record.intended < end]
    assert 24 <= len(waiting) <= 26
    assert all(record.intended + (record.ttft or 0.0) >= end - 0.001 for record in waiting)
    worst = percentile(ttfts, 0.99)
    assert worst is not None and worst > 0.4


def test_m04_closed_loop_hardly_sees_it_and_says_that_it_is_closed(tmp_path: Path) -> None:
    keys = {"arrivals": {"process": "closed", "users": 2}, "duration": "2s", "warmup": "0s"}
    with Freezing(first_token=0.01) as server:
        wanted = settings_for(server, tmp_path / "out", FakeJudge(), **keys)
        load = drive(wanted, server.freezes_after_a_second)
    folder = RunFolder(tmp_path / "out")
    facts = folder.read_run()
    assert facts["loop"] == "closed"
    records = measured(facts, folder.records()).records
    end = server.freeze[1] - load.session.origin
    # Each user waited once, and nobody else came meanwhile: in open loop it was one in four.
    waited = [r for r in records if r.intended < end <= r.intended + (r.ttft or 0.0)]
    assert 1 <= len(waited) <= 2 < len(records) / 4


def test_a_trace_is_sent_at_its_times_and_lengths(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 250 * n, "input_length": 40 + n, "output_length": 1 + n % 7, "hash_ids": [n]}
        for n in range(40)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = {"file": str(file), "format": "mooncake", "unit": "ms", "speed_up": 10}
    keys = {"arrivals": {"process": "trace", "trace": trace}, "warmup": "0s"}
    wanted = Scenario.model_validate({**keys, "seed": 1})
    with FakeServer() as server:
        target, model = reach(wanted, server.url, None)
        drive(for_scenario(wanted, target, model, FakeJudge(), out=tmp_path / "out"))
    records = sorted(RunFolder(tmp_path / "out").records(), key=lambda record: record.intended)
    assert [r.intended for r in records] == pytest.approx([0.025 * n for n in range(40)])
    assert [r.asked_input_tokens for r in records] == [40 + n for n in range(40)]
    assert [r.output_tokens for r in records] == [1 + n % 7 for n in range(40)]


def test_what_a_run_cost_by_tokens_and_by_the_hour(tmp_path: Path) -> None:
    with FakeServer() as server:
        _, facts, records = run(server, tmp_path, warmup="0s")
    part = measured(facts, records)
    tokens_in = sum(record.prompt_tokens or 0 for record in records)
    price = {"input_per_million": 1.0, "output_per_million": 10.0, "currency": "EUR"}
    found = cost(price, part, good_tokens=50)
    total = (tokens_in + 10 * 5 * len(records)) / 1e6
    assert found["total"] == pytest.approx(total)
    assert found["per_1000_requests"] == pytest.approx(total / len(records) * 1000)
    assert found["per_million_good_tokens"] == pytest.approx(total / 50 * 1e6)
    hourly = cost({"per_hour": 36.0}, part, good_tokens=0)
    assert hourly["total"] == pytest.approx(0.01 * part.seconds)
    assert hourly["per_million_good_tokens"] is None


@pytest.mark.parametrize(
    "price", [{}, {"input_per_million": 1}, {"per_hour": 1, "input_per_million": 1}]
)
def test_a_price_is_by_tokens_or_by_the_hour(price: dict[str, float]) -> None:
    keys = {"prompts": {"input_tokens": 1}, "arrivals": {"rate": 1}, "requests": 1}
    with pytest.raises(ValueError, match="needs input_per_million and output_per_million"):
        Scenario.model_validate({**keys, "price": price})


def test_a_plan_says_how_many_later_turns_there_are() -> None:
    keys = {"prompts": {"input_tokens": 4}, "arrivals": {"rate": 5}, "requests": 10, "seed": 1}
    plan = make_plan(Scenario.model_validate({**keys, "turns": {"count": 3}}))
    assert "plan: and 20 later turns, each after the answer before it" in plan.lines()
