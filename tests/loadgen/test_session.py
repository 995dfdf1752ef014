"""A run from plan to folder, driven in gevent's hub against a server on loopback."""

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gevent
import pytest
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.test_recorder import files_no_larger_than

from prony_loadgen.doubts import find_doubts
from prony_loadgen.drive import CUT_DRAIN, Load, LoadOver
from prony_loadgen.endpoint import reach
from prony_loadgen.folder import RunFolder
from prony_loadgen.live import Live
from prony_loadgen.plan import Plan
from prony_loadgen.prompt import Prompt
from prony_loadgen.prompts import Draft
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import Scenario, Talk
from prony_loadgen.settings import Settings, for_scenario, for_tasks
from prony_loadgen.summary import measured


@dataclass
class FakeJudge:
    """Passes everything, unless told to stop or to fail."""

    stop_after: int | None = None
    warmup: float | None = None
    watching: bool = True
    planned: Plan | None = None
    seen: list[RequestRecord] = field(default_factory=list)
    judged: dict[str, object] = field(default_factory=dict)
    origin_unix: float | None = None

    def plan(self, plan: Plan, window: tuple[float, float]) -> list[str]:
        self.planned = plan
        return ["slo: can be decided"]

    def begin(self, origin_unix: float) -> None:
        self.origin_unix = origin_unix

    def breached(self, record: RequestRecord) -> str | None:
        self.seen.append(record)
        return "too slow" if len(self.seen) == self.stop_after else None

    def so_far(self, seen: Live) -> list[dict[str, object]]:
        return []

    def finish(self, folder: RunFolder) -> int:
        self.judged = folder.read_run()
        return 4 if self.judged["interrupted"] else 0


def scenario(**keys: object) -> Scenario:
    facts = {
        "prompts": {"input_tokens": 8},
        "output": {"tokens": 5, "mode": "forced"},
        "arrivals": {"process": "constant", "rate": 50},
        "duration": "400ms",
        "warmup": "200ms",
        "seed": 1,
    }
    return Scenario.model_validate(facts | keys)


def settings(server: FakeServer, out: Path, judge: FakeJudge, **keys: object) -> Settings:
    wanted = scenario(**keys)
    target, model = reach(wanted, server.url, None)
    return for_scenario(wanted, target, model, judge, out=out)


def start(settings: Settings) -> tuple[Load, list[RequestRecord], gevent.event.Event]:
    records: list[RequestRecord] = []
    over = gevent.event.Event()
    load = Load(settings, on_record=records.append, say=lambda line: None, on_end=over.set)
    return load, records, over


def drive(settings: Settings, until: Callable[[Load], object] | None = None) -> Load:
    """Runs a scenario as its Locust users would; `until` may interfere once it has begun."""
    load, _, over = start(settings)

    def user() -> None:
        while (draft := load.next_draft()) is not None:
            try:
                load.ask(draft.prompt, cls="chat", max_tokens=draft.output_tokens)
            except LoadOver:
                return

    arrivals = settings.scenario.arrivals if settings.scenario else None
    assert arrivals is not None
    users = [gevent.spawn(user) for _ in range(arrivals.users or 0)]
    if arrivals.open_loop:
        users = [gevent.spawn(load.dispatch)]
    if until is not None:
        users.append(gevent.spawn(until, load))
    assert over.wait(timeout=20), "the run did not end by itself"
    gevent.killall(users)
    return load


def test_an_open_loop_run_sends_its_schedule_and_measures_after_the_warm_up(
    tmp_path: Path,
) -> None:
    judge = FakeJudge()
    with FakeServer() as server:
        load = drive(settings(server, tmp_path / "out", judge))
    folder = RunFolder(tmp_path / "out")
    records = sorted(folder.records(), key=lambda record: record.intended)
    assert load.exit_code == 0
    assert [round(record.intended, 6) for record in records] == [n / 50 for n in range(30)]
    assert {record.outcome for record in records} == {"ok"}
    assert {record.output_tokens for record in records} == {5}
    assert [record.id for record in records] == [f"{n:06d}" for n in range(30)]
    run = folder.read_run()
    assert run["window"] == [0.2, 0.6]
    assert run["loop"] == "open"
    assert (run["schedule"]["planned"], run["schedule"]["offered"]) == (20, 20)
    assert run["schedule"]["dropped"] == 0
    assert (run["interrupted"], run["stopped_early"]) == (False, None)
    assert len(judge.seen) == 30


def test_what_was_asked_is_what_the_server_read(tmp_path: Path) -> None:
    with FakeServer() as server:
        drive(settings(server, tmp_path / "out", FakeJudge(), extra_body={"temperature": 0}))
    assert len(server.bodies) == 30
    body = server.bodies[0]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("fake", 5, 0)
    assert body["ignore_eos"] is True and body["stream"] is True
    assert len(body["messages"][0]["content"].split()) == 8


def test_a_schedule_that_is_handed_over_by_several_is_sent_once(tmp_path: Path) -> None:
    def others(load: Load) -> None:
        first = gevent.spawn(load.dispatch)
        gevent.sleep(0.05)
        first.kill()
        load.dispatch()
        load.dispatch()

    with FakeServer() as server:
        drive(settings(server, tmp_path / "out", FakeJudge()), others)
    ids = [record.id for record in RunFolder(tmp_path / "out").records()]
    assert len(ids) == len(set(ids)) == 30


def test_a_seed_sends_the_same_requests_at_the_same_times(tmp_path: Path) -> None:
    keys = {"arrivals": {"rate": 80}, "prompts": {"input_tokens": "4..30"}, "warmup": "0s"}
    seen = []
    for name in ("one", "two"):
        with FakeServer() as server:
            drive(settings(server, tmp_path / name, FakeJudge(), **keys, seed=7))
        records = sorted(RunFolder(tmp_path / name).records(), key=lambda record: record.id)
        bodies = sorted(json.dumps(body) for body in server.bodies)
        seen.append(([round(record.intended, 5) for record in records], bodies))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) > 10


def test_a_closed_loop_run_keeps_its_users_busy_until_the_end(tmp_path: Path) -> None:
    with FakeServer(first_token=0.01) as server:
        drive(
            settings(
                server, tmp_path / "out", FakeJudge(), arrivals={"process": "closed", "users": 3}
            )
        )
    run, records = RunFolder(tmp_path / "out").read_run(), []
    records = list(RunFolder(tmp_path / "out").records())
    assert run["loop"] == "closed"
    assert run["window"] == [0.2, 0.6]
    assert run["schedule"]["asked_rate"] is None
    assert len(records) > 3 * 3
    assert {record.outcome for record in records} == {"ok"}


def test_a_closed_loop_measures_as_many_requests_as_were_asked(tmp_path: Path) -> None:
    keys = {"arrivals": {"process": "closed", "users": 4}, "duration": None, "requests": 17}
    with FakeServer(first_token=0.005) as server:
        drive(settings(server, tmp_path / "out", FakeJudge(), **keys))
    run = RunFolder(tmp_path / "out").read_run()
    start, end = run["window"]
    measured = [r for r in RunFolder(tmp_path / "out").records() if start <= r.intended < end]
    assert len(measured) == 17


def test_a_certain_breach_ends_the_run_early(tmp_path: Path) -> None:
    judge = FakeJudge(stop_after=10)
    with FakeServer() as server:
        load = drive(settings(server, tmp_path / "out", judge, duration="100s"))
    assert load.session.stopped_early == "too slow"
    assert judge.judged["stopped_early"] == "too slow"
    assert judge.judged["window"][1] < 5  # type: ignore[index]
    # What the schedule had left is not missing: it was not wanted any more.
    assert judge.judged["schedule"]["dropped"] < 100  # type: ignore[index]


def test_an_interrupted_run_is_judged_and_marked(tmp_path: Path) -> None:
    judge = FakeJudge()
    with FakeServer(first_token=0.05) as server:
        wanted = settings(server, tmp_path / "out", judge, duration="100s")
        load = drive(wanted, lambda load: (gevent.sleep(0.5), load.interrupt()))
    assert load.exit_code == 4
    assert judge.judged["interrupted"] is True
    # What was in flight had time to finish.
    outcomes = {record.outcome for record in RunFolder(tmp_path / "out").records()}
    assert outcomes == {"ok"}


def test_a_second_interrupt_quits_at_once_with_a_folder_that_can_be_read(tmp_path: Path) -> None:
    def twice(load: Load) -> None:
        gevent.sleep(0.6)
        load.interrupt()
        gevent.sleep(0.1)
        again.append(time.monotonic())
        load.interrupt()

    judge = FakeJudge()
    again: list[float] = []
    with FakeServer(first_token=30.0) as server:
        load = drive(settings(server, tmp_path / "out", judge, duration="100s"), twice)
    assert time.monotonic() - again[0] < CUT_DRAIN  # which it would wait after the first alone
    assert load.exit_code == 4
    assert judge.judged == {}
    folder = RunFolder(tmp_path / "out")
    assert folder.read_run()["interrupted"] is True
    assert {record.outcome for record in folder.records()} == {"incomplete"}


def test_what_never_ends_is_cut_after_the_drain(tmp_path: Path) -> None:
    with FakeServer(first_token=30.0) as server:
        drive(settings(server, tmp_path / "out", FakeJudge(), timeouts={"drain": "300ms"}))
    records = list(RunFolder(tmp_path / "out").records())
    assert [record.outcome for record in records] == ["incomplete"] * 30


def test_a_target_that_fails_later_makes_failed_requests_not_a_failed_run(tmp_path: Path) -> None:
    with FakeServer(fail_after=10) as server:
        load = drive(settings(server, tmp_path / "out", FakeJudge()))
    outcomes = [record.outcome for record in RunFolder(tmp_path / "out").records()]
    assert load.exit_code == 0
    assert (outcomes.count("ok"), outcomes.count("http_error")) == (10, 20)


def test_a_target_that_goes_away_makes_failed_requests(tmp_path: Path) -> None:
    with FakeServer() as server:
        wanted = settings(server, tmp_path / "out", FakeJudge())
    load = drive(wanted)
    assert load.exit_code == 0
    outcomes = {record.outcome for record in RunFolder(tmp_path / "out").records()}
    assert outcomes == {"connect_error"}
    schedule = RunFolder(tmp_path / "out").read_run()["schedule"]
    assert (schedule["offered"], schedule["dropped"]) == (20, 0)


def test_a_full_disk_ends_the_run_and_leaves_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = FakeJudge()
    with FakeServer() as server:
        wanted = settings(server, tmp_path / "out", judge, duration="100s")
        # run.json fits, a few seconds of records do not.
        with files_no_larger_than(6000):
            load = drive(wanted)
    assert load.exit_code == 4
    assert judge.judged == {}
    told = capsys.readouterr().err
    assert "error: the run broke off: [Errno 27] File too large" in told
    folder = RunFolder(tmp_path / "out")
    assert folder.read_run()["interrupted"] is True
    assert len(list(folder.records())) > 20


def test_a_bug_in_what_watches_ends_the_run_instead_of_hanging_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Buggy(FakeJudge):
        def breached(self, record: RequestRecord) -> str | None:
            raise ZeroDivisionError("a bug")

    with FakeServer() as server:
        load = drive(settings(server, tmp_path / "out", Buggy(), duration="100s"))
    assert load.exit_code == 4
    assert "ZeroDivisionError: a bug" in capsys.readouterr().err
    run = RunFolder(tmp_path / "out").read_run()
    assert run["interrupted"] is True and run["ended_at"] is not None
    assert next(iter(RunFolder(tmp_path / "out").records())).ok  # what came was written


def test_tasks_of_a_locustfile_make_a_closed_run_of_their_own_classes(tmp_path: Path) -> None:
    judge = FakeJudge(warmup=0.05)
    with FakeServer(first_token=0.05) as server:
        target, model = reach(Talk(), server.url, None)
        load, records, _ = start(
            for_tasks("mine", Talk(), target, model, judge, facts={"users": 1}, out=tmp_path / "o")
        )
        first = load.ask(Prompt(text="hi"), cls="greet", max_tokens=3)
        second = load.ask(
            Prompt(text="a b"), cls="go on", max_tokens=2, dialect="openai-completions"
        )
        waiting = gevent.spawn(load.ask, Prompt(text="x"), cls="killed", max_tokens=1)
        while not load.session.in_flight:
            gevent.sleep(0.001)
        waiting.kill()
        assert load.end() == 0
    assert (first.cls, first.output_tokens, second.output_tokens) == ("greet", 3, 2)
    assert second.prompt_tokens == 2
    # Its greenlet was gone, so it came to whoever takes such records.
    assert [record.cls for record in records] == ["killed"]
    kept = sorted(record.cls for record in RunFolder(tmp_path / "o").records())
    assert kept == ["go on", "greet", "killed"]
    run = RunFolder(tmp_path / "o").read_run()
    assert run["loop"] == "closed"
    assert run["scenario"]["name"] == "mine"
    assert run["window"][0] == pytest.approx(0.05, abs=0.05)
    with pytest.raises(LoadOver):
        load.ask(Prompt(text="late"), cls="late", max_tokens=1)


def test_a_run_that_is_killed_leaves_a_folder_marked_interrupted(tmp_path: Path) -> None:
    with FakeServer() as server:
        load, _, _ = start(settings(server, tmp_path / "out", FakeJudge()))
        run = json.loads((tmp_path / "out" / "run.json").read_text())
        load.interrupt()
        load.end()
    assert (run["interrupted"], run["ended_at"]) == (True, None)


def test_no_header_value_reaches_any_file(tmp_path: Path) -> None:
    with FakeServer() as server:
        drive(settings(server, tmp_path / "out", FakeJudge(), headers={"X-Key": "geheim"}))
    for path in (tmp_path / "out").iterdir():
        assert b"geheim" not in path.read_bytes()


# What would never end: in closed loop a run ends when its users have asked enough.

CLOSED = {"arrivals": {"process": "closed", "users": 2}, "duration": None, "requests": 50,
          "warmup": "0s"}  # fmt: skip


def broke_off(load: Load, over: gevent.event.Event) -> None:
    assert over.wait(20), "the run did not end by itself"
    assert load.exit_code == 4
    assert load.folder is not None
    assert load.folder.read_run()["interrupted"] is True


def test_a_run_whose_users_are_all_gone_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prony_loadgen.drive.NOBODY_ASKS", 0.6)
    with FakeServer() as server:
        load, _, over = start(settings(server, tmp_path / "out", FakeJudge(), **CLOSED))
        load.ask(Prompt(text="hi"), cls="chat", max_tokens=3)
        broke_off(load, over)
    assert "no user has asked anything for 0.6 s" in capsys.readouterr().err


def test_a_fault_of_ours_in_a_user_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: int) -> Draft:
        raise ZeroDivisionError("a bug in what is asked")

    with FakeServer() as server:
        load, _, over = start(settings(server, tmp_path / "out", FakeJudge(), **CLOSED))
        load._drafts = itertools.islice(map(broken, range(9)), None)
        with pytest.raises(ZeroDivisionError):
            load.next_draft()
        broke_off(load, over)
    assert "ZeroDivisionError: a bug in what is asked" in capsys.readouterr().err


def test_a_client_that_breaks_while_every_user_waits_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a bug in the client's thread")

    with FakeServer(first_token=0.05) as server:
        load, _, over = start(settings(server, tmp_path / "out", FakeJudge(), **CLOSED))
        load.session._wake = broken
        waiting = gevent.spawn(load.ask, Prompt(text="hi"), cls="chat", max_tokens=3)
        broke_off(load, over)
        waiting.kill()
    told = capsys.readouterr().err
    assert "the client's thread failed: ZeroDivisionError: a bug in the client's thread" in told


def test_a_target_that_answers_nothing_any_more_is_not_waited_for_again_and_again(
    tmp_path: Path,
) -> None:
    timeouts = {"total": "200ms"}
    with FakeServer(first_token=5.0) as server:
        drive(settings(server, tmp_path / "out", FakeJudge(), timeouts=timeouts, **CLOSED))
    run = RunFolder(tmp_path / "out").read_run()
    assert run["stopped_early"] == "the target stopped answering: 4 requests in a row"
    outcomes = Counter(record.outcome for record in RunFolder(tmp_path / "out").records())
    assert outcomes["timeout"] >= 4 and outcomes.total() <= 6
    doubts = {doubt.id: doubt for doubt in find_doubts(run, measured(run, []))}
    assert "see what became of the server" in doubts["stopped_early"].remedy
