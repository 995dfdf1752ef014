"""A master and its workers without Locust between them: messages are handed over in the hub."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gevent
import pytest
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.test_session import FakeJudge, scenario

from prony_loadgen.crew import SILENT, Crew
from prony_loadgen.endpoint import reach
from prony_loadgen.folder import RunFolder
from prony_loadgen.job import DONE, READY, TICK, job_of
from prony_loadgen.settings import for_scenario
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.worker import Part

Lost = Callable[[str, str, dict[str, Any]], bool]  # whether a worker's message gets lost


@dataclass
class Post:
    """Carries messages between a crew and its parts, and loses some."""

    lost: Lost = lambda kind, worker, message: False
    parts: dict[str, Part] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    crew: Crew | None = None

    def to_worker(self, kind: str, message: dict[str, Any], worker: str) -> None:
        # As through msgpack: nothing that is not plain data gets across.
        gevent.spawn(self.parts[worker].hear, kind, json.loads(json.dumps(message)))

    def from_worker(self, worker: str) -> Callable[[str, dict[str, Any]], None]:
        def send(kind: str, message: dict[str, Any]) -> None:
            assert self.crew is not None
            if worker in self.alive and not self.lost(kind, worker, message):
                self.crew.hear(kind, worker, message)

        return send


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(first_token=0.002) as server:
        yield server


def crew_at(
    server: FakeServer, out: Path, post: Post, judge: FakeJudge, workers: int = 2, **keys: object
) -> tuple[Crew, gevent.event.Event]:
    wanted = scenario(**{"duration": "2s", "warmup": "0s", **keys})
    target, model = reach(wanted, server.url, None)
    settings = for_scenario(wanted, target, model, judge, out=out)
    over = gevent.event.Event()
    names = [f"w{number}" for number in range(workers)]
    for name in names:
        post.parts[name] = Part(post.from_worker(name), on_record=lambda load, record: None)
    post.alive = set(names)
    post.crew = crew = Crew(
        settings,
        job_of(wanted, settings, api_key_env=None),
        send=post.to_worker,
        alive=lambda: post.alive,
        say=lambda line: None,
        on_end=over.set,
    )
    crew.muster(names)
    return crew, over


def run_of(out: Path) -> dict[str, Any]:
    return RunFolder(out).read_run()


def test_a_run_is_shared_and_comes_together(tmp_path: Path, server: FakeServer) -> None:
    judge = FakeJudge()
    crew, over = crew_at(server, tmp_path / "out", Post(), judge, workers=3)
    assert over.wait(20)
    assert crew.exit_code == 0
    records = list(RunFolder(tmp_path / "out").records())
    assert sorted(record.id for record in records) == [f"{n:06d}" for n in range(100)]
    assert len(judge.seen) == 100  # it watches, so it was shown each of them
    run = run_of(tmp_path / "out")
    assert [w["records"] for w in run["workers"]] == [34, 33, 33]
    assert run["schedule"]["dropped"] == 0


def test_a_judge_that_watches_nothing_is_shown_nothing(tmp_path: Path, server: FakeServer) -> None:
    judge = FakeJudge(watching=False)
    _, over = crew_at(server, tmp_path / "out", Post(), judge)
    assert over.wait(20)
    assert judge.seen == []
    assert len(list(RunFolder(tmp_path / "out").records())) == 100


def test_a_certain_breach_ends_all_of_it(tmp_path: Path, server: FakeServer) -> None:
    judge = FakeJudge(stop_after=30)
    crew, over = crew_at(server, tmp_path / "out", Post(), judge, duration="100s")
    assert over.wait(20)
    run = run_of(tmp_path / "out")
    assert (run["stopped_early"], crew.exit_code) == ("too slow", 0)
    assert run["window"][1] < 10


def test_a_message_that_never_came_makes_its_worker_a_lost_one(
    tmp_path: Path, server: FakeServer
) -> None:
    def second(kind: str, worker: str, message: dict[str, Any]) -> bool:
        return kind == TICK and worker == "w1" and message["number"] == 1

    _, over = crew_at(server, tmp_path / "out", Post(second), FakeJudge())
    assert over.wait(20)
    whole, torn = run_of(tmp_path / "out")["workers"]
    assert whole["lost"] is None
    assert torn["lost"] == "message 1 of its records never came"
    ids = [record.id for record in RunFolder(tmp_path / "out").records()]
    assert len(ids) == len(set(ids)) < 100


def test_records_that_cannot_be_read_lose_their_worker_not_the_run(
    tmp_path: Path, server: FakeServer
) -> None:
    def torn(kind: str, worker: str, message: dict[str, Any]) -> bool:
        if kind == TICK and worker == "w0" and message["records"]:
            message["records"] = message["records"][:-20]
        return False

    crew, over = crew_at(server, tmp_path / "out", Post(torn), FakeJudge())
    assert over.wait(20)
    assert crew.exit_code == 0
    first, second = run_of(tmp_path / "out")["workers"]
    assert "cannot be read" in first["lost"] and second["lost"] is None


def test_a_worker_that_gives_no_sign_of_life_ends_the_wait_for_it(
    tmp_path: Path, server: FakeServer
) -> None:
    post = Post()
    crew, over = crew_at(server, tmp_path / "out", post, FakeJudge())
    post.alive.discard("w1")
    assert over.wait(30)
    assert crew.exit_code == 0
    lost = run_of(tmp_path / "out")["workers"][1]
    assert lost["lost"] == "it gave no more signs of life"
    assert run_of(tmp_path / "out")["schedule"]["dropped"] == 50


def test_one_that_was_only_busy_is_taken_back(tmp_path: Path, server: FakeServer) -> None:
    post = Post()
    _, over = crew_at(server, tmp_path / "out", post, FakeJudge(), duration="3s")

    def away() -> None:
        post.alive.discard("w1")
        gevent.sleep(0.3)
        post.alive.add("w1")

    gevent.spawn_later(1.5, away)
    assert over.wait(30)
    run = run_of(tmp_path / "out")
    # What it said while nobody heard it is gone, and that is told.
    lost = run["workers"][1]["lost"]
    assert lost is None or re.fullmatch(r"message \d+ of its records never came", lost)


def test_a_worker_that_lives_and_says_nothing_of_its_part_is_lost(
    tmp_path: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prony_loadgen.crew.SILENT_AFTER", 2.5)

    def silent(kind: str, worker: str, message: dict[str, Any]) -> bool:
        return kind in (TICK, DONE) and worker == "w1"

    _, over = crew_at(server, tmp_path / "out", Post(silent), FakeJudge(), duration="1s")
    assert over.wait(30)
    run = run_of(tmp_path / "out")
    assert run["workers"][1]["lost"] == SILENT
    assert run["schedule"]["dropped"] == 25


@pytest.mark.parametrize("breaks", ["settings_of", "Load"])
def test_a_worker_that_breaks_before_its_part_is_named_at_once(
    breaks: str, tmp_path: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a key of another version")

    monkeypatch.setattr(f"prony_loadgen.worker.{breaks}", broken)
    if breaks == "settings_of":
        with pytest.raises(FileError, match=r"worker 0 .*'a key of another.*another version of"):
            crew_at(server, tmp_path / "out", Post(), FakeJudge())
        return
    _, over = crew_at(server, tmp_path / "out", Post(), FakeJudge(), duration="100s")
    assert over.wait(20)
    run = run_of(tmp_path / "out")
    assert [worker["ended_early"] for worker in run["workers"]] == [True, True]
    assert next(iter(RunFolder(tmp_path / "out").records()), None) is None


def test_a_worker_that_would_send_something_else_is_refused(
    tmp_path: Path, server: FakeServer
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    wanted = scenario(prompts={"file": str(prompts)})
    target, model = reach(wanted, server.url, None)
    settings = for_scenario(wanted, target, model, FakeJudge(), out=tmp_path / "out")
    job = job_of(wanted, settings, api_key_env=None)
    prompts.write_text('{"prompt": "a"}\n{"prompt": "c"}\n')
    said: list[dict[str, Any]] = []
    part = Part(lambda kind, message: said.append({"kind": kind, **message}),
                on_record=lambda load, record: None)  # fmt: skip
    part.hear("prony_job", {**job, "run": "r", "index": 0, "of": 2})
    assert said[0]["kind"] == READY
    assert "it would send other requests than the master" in said[0]["errors"][0]
    prompts.unlink()
    part.hear("prony_job", {**job, "run": "r", "index": 0, "of": 2})
    assert "prompts.jsonl" in said[1]["errors"][0]


def test_fewer_users_than_workers_are_refused(tmp_path: Path, server: FakeServer) -> None:
    closed = {"process": "closed", "users": 2}
    with pytest.raises(FileError, match="2 users cannot be shared by 3 workers"):
        crew_at(server, tmp_path / "out", Post(), FakeJudge(), workers=3, arrivals=closed)
    assert not (tmp_path / "out").exists()


def test_a_part_of_another_run_is_not_heard(tmp_path: Path, server: FakeServer) -> None:
    post = Post()
    crew, over = crew_at(server, tmp_path / "out", post, FakeJudge())
    crew.hear(DONE, "w0", {"run": "another", "records": 0})
    crew.hear(DONE, "stranger", {"run": crew.settings.run_id, "records": 0})
    assert over.wait(20)
    assert [w["lost"] for w in run_of(tmp_path / "out")["workers"]] == [None, None]


def test_the_job_makes_the_same_settings_of_every_shipped_scenario(server: FakeServer) -> None:
    from prony_loadgen.job import settings_of
    from prony_loadgen.scenario import load_scenario
    from prony_loadgen.shipped import names

    for name in names("scenarios"):
        wanted = load_scenario(name, {"seed": "3"})
        target, model = reach(wanted, server.url, None, probing=False)
        settings = for_scenario(wanted, target, model, FakeJudge())
        job = job_of(wanted, settings, api_key_env=None)
        told = json.loads(json.dumps({**job, "run": "r", "index": 1, "of": 3}))
        again = settings_of(told)
        assert (again.scenario, again.form, again.schedule) == (
            settings.scenario,
            settings.form,
            settings.schedule,
        ), name
        assert replace(again.shard, index=0, of=1) == settings.shard
