"""One run that several Locust processes make, each started as people start it."""

import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.busy import unless_late
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.locust_process import (
    Process,
    fetched,
    free_port,
    locust,
    nothing_is_left_running,
)

from prony_loadgen.folder import RunFolder
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import load_scenario
from prony_loadgen.schedule import schedule
from prony_loadgen.shipped import shipped
from prony_loadgen.summary import latency, measured

FILE = shipped("locustfile.py")
SEEDED = {"seed": "7", "requests": "120", "arrivals.rate": "80", "warmup": "500ms"}
# Lenient, so that a busy machine's send lag decides nothing here.
PASSES = ["--slo", "errors < 20%", "--slo", "ttft p50 < 20s"]


def given(keys: dict[str, str]) -> list[str]:
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    with nothing_is_left_running():
        yield


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(first_token=0.005, gap=0.0005) as server:
        yield server


def together(folder: Path, server: FakeServer, processes: int, *options: str) -> Process:
    return locust(folder, FILE, *sharing(processes), "-H", server.url, *options)


def sharing(processes: int) -> list[str]:
    port = str(free_port())
    ports = ["--master-port", port, "--master-bind-port", port]
    return ["--headless", "--out", "out", "--processes", str(processes), *ports]


def apart(folder: Path, server: FakeServer, workers: int, *options: str) -> list[Process]:
    """A master and its workers, each on its own; the master is the first."""
    port = str(free_port())
    expected = ["--master-bind-port", port, "--expect-workers", str(workers)]
    headless = ["--headless", "-H", server.url, "--out", "out"]
    master = locust(folder, FILE, "--master", *expected, *headless, *options, name="master")
    called = ["--worker", "--master-port", port]
    return [master, *(locust(folder, FILE, *called, name=f"w{n}") for n in range(workers))]


def run_of(folder: Path) -> tuple[dict[str, Any], list[RequestRecord]]:
    out = RunFolder(folder / "out")
    return out.read_run(), list(out.records())


def check_whole(run: dict[str, Any], records: list[RequestRecord]) -> None:
    """The records are the schedule's, each once, and the figures are those of all together."""
    due = schedule(load_scenario("chat", SEEDED))
    assert sorted(r.id for r in records) == [f"{number:06d}" for number in range(len(due))]
    by_id = {record.id: record for record in records}
    for number, at in enumerate(due):
        assert by_id[f"{number:06d}"].intended == pytest.approx(at, abs=1e-5)
    assert run["schedule"]["dropped"] == 0
    part = measured(run, records)
    for metric in ("ttft", "tpot", "e2e"):
        assert run["summary"][metric] == latency(part.records, metric)


def doubts(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {doubt["id"]: doubt for doubt in run["doubts"]}


def test_two_processes_send_the_schedule_once_and_their_figures_are_the_pools(
    tmp_path: Path, server: FakeServer
) -> None:
    process = together(tmp_path, server, 2, *given(SEEDED), *PASSES)
    code = process.end()
    run, records = run_of(tmp_path)
    check_whole(run, records)
    halves = {0: -(-len(records) // 2), 1: len(records) // 2}
    assert Counter(record.worker for record in records) == halves
    assert [worker["records"] for worker in run["workers"]] == list(halves.values())
    assert len({worker["pid"] for worker in run["workers"]}) == 2
    assert (run["verdict"], code) == unless_late(run, "pass"), process.said
    assert run["loop"] == "open"
    assert "Traceback" not in process.said
    # The prompts are those that one process would have sent: each once.
    prompts = Counter(body["messages"][0]["content"] for body in server.bodies)
    assert set(prompts.values()) == {1} and len(prompts) == len(records)


def test_a_master_with_three_workers_sends_the_schedule_once(
    tmp_path: Path, server: FakeServer
) -> None:
    master, *workers = apart(tmp_path, server, 3, *given(SEEDED), *PASSES)
    code = master.end()
    assert [worker.end() for worker in workers] == [0, 0, 0]
    run, records = run_of(tmp_path)
    assert code == unless_late(run, "pass")[1], master.said
    check_whole(run, records)
    assert set(Counter(record.worker for record in records)) == {0, 1, 2}
    assert run["client"]["master_cpu_share"] < run["client"]["cpu_share"]


def test_prony_run_shares_its_load_out_to_processes_of_its_own(
    tmp_path: Path, server: FakeServer
) -> None:
    options = ["--processes", "3", "--target", server.url, "--out", "out", *given(SEEDED), *PASSES]
    process = Process([sys.executable, "-m", "prony", "run", "chat", *options], tmp_path)
    code = process.end()
    run, records = run_of(tmp_path)
    assert code == unless_late(run, "pass")[1], process.said
    check_whole(run, records)
    assert {worker["records"] for worker in run["workers"]} <= {
        len(records) // 3,
        len(records) // 3 + 1,
    }
    for worker in run["workers"]:
        assert not Path(f"/proc/{worker['pid']}").exists()


def test_a_worker_that_is_killed_is_named_its_share_is_dropped_and_the_run_is_invalid(
    tmp_path: Path, server: FakeServer
) -> None:
    keys = given({**SEEDED, "requests": "400", "warmup": "0s"})
    master, *workers = apart(tmp_path, server, 2, *keys, *PASSES)
    master.until(lambda: len(server.bodies) > 60)
    workers[0].process.send_signal(signal.SIGKILL)
    assert master.end() == 4, master.said
    run, records = run_of(tmp_path)
    lost = doubts(run)["lost_worker"]
    assert lost["grade"] == "invalid"
    assert f"pid {workers[0].process.pid}) of 2 is lost" in lost["message"]
    assert run["schedule"]["dropped"] == 400 - len(records) > 0
    (dead,) = [worker for worker in run["workers"] if worker["lost"]]
    assert Counter(r.worker for r in records)[dead["index"]] == dead["records"] < 200
    assert (run["verdict"], run["interrupted"]) == ("invalid", False)


def test_a_lost_worker_may_be_told_to_be_tolerated(tmp_path: Path, server: FakeServer) -> None:
    closed = ["--set", "arrivals={process: closed, users: 4}", "--set", "duration=3s"]
    options = [*closed, "--warmup", "0s", "--lost-worker", "warn", *PASSES]
    master, *workers = apart(tmp_path, server, 2, *options)
    master.until(lambda: len(server.bodies) > 20)
    workers[1].process.send_signal(signal.SIGKILL)
    assert master.end() == 0, master.said
    run, _ = run_of(tmp_path)
    assert doubts(run)["lost_worker"]["grade"] == "warn"


def test_a_worker_that_is_ended_by_hand_ships_what_it_has_and_is_named(
    tmp_path: Path, server: FakeServer
) -> None:
    keys = given({**SEEDED, "requests": "300", "warmup": "0s"})
    master, *workers = apart(tmp_path, server, 2, *keys, *PASSES)
    master.until(lambda: len(server.bodies) > 40)
    workers[0].process.send_signal(signal.SIGTERM)
    assert workers[0].end() == 0, workers[0].said
    assert master.end() == 4, master.said
    run, records = run_of(tmp_path)
    assert "ended before its part was done" in doubts(run)["lost_worker"]["message"]
    # Nothing that was answered is lost: only what it had not sent.
    assert run["schedule"]["dropped"] == 300 - len(records)


def test_ctrl_c_at_the_master_leaves_a_judged_folder_marked_interrupted(
    tmp_path: Path, server: FakeServer
) -> None:
    keys = given({**SEEDED, "requests": "3000", "warmup": "0s"})
    process = together(tmp_path, server, 2, *keys, *PASSES)
    process.until(lambda: len(server.bodies) > 60)
    process.process.send_signal(signal.SIGINT)
    assert process.end() == 4, process.said
    run, records = run_of(tmp_path)
    assert (run["interrupted"], run["exit_code"]) == (True, 4)
    assert [worker["lost"] for worker in run["workers"]] == [None, None]
    assert len(records) == len(server.bodies) > 60
    assert {record.outcome for record in records} == {"ok"}
    assert "Traceback" not in process.said


def test_ctrl_c_ends_prony_run_and_its_processes(tmp_path: Path, server: FakeServer) -> None:
    options = ["--processes", "2", "--target", server.url, "--out", "out", "--duration", "100s"]
    process = Process([sys.executable, "-m", "prony", "run", "chat", *options], tmp_path)
    process.until(lambda: len(server.bodies) > 5)
    process.process.send_signal(signal.SIGINT)
    assert process.end() == 4, process.said
    run, records = run_of(tmp_path)
    assert run["interrupted"] is True and len(records) > 5
    for worker in run["workers"]:
        assert not Path(f"/proc/{worker['pid']}").exists()


def test_workers_end_where_their_master_is_killed(tmp_path: Path, server: FakeServer) -> None:
    options = ["--processes", "2", "--target", server.url, "--out", "out", "--duration", "100s"]
    process = Process([sys.executable, "-m", "prony", "run", "chat", *options], tmp_path)
    process.until(lambda: len(server.bodies) > 5)
    children = children_of(process.process.pid)
    assert len(children) == 2
    process.process.kill()
    process.process.wait()
    waiting = Process([sys.executable, "-c", "import time; time.sleep(30)"], tmp_path, "waiting")
    waiting.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_closed_loop_users_are_split_and_no_request_is_asked_twice(
    tmp_path: Path, server: FakeServer
) -> None:
    closed = ["--set", "arrivals={process: closed, users: 5}", "--set", "requests=43"]
    process = together(tmp_path, server, 2, *closed, "--warmup", "0s", *PASSES)
    assert process.end() == 0, process.said
    run, records = run_of(tmp_path)
    assert sorted(record.id for record in records) == [f"{n:06d}" for n in range(43)]
    assert Counter(r.worker for r in records) == {0: 22, 1: 21}
    assert (run["loop"], run["scenario"]["arrivals"]["users"]) == ("closed", 5)


MINE = """
from locust import constant, task
from prony_loadgen import LLMUser

class Chatter(LLMUser):
    wait_time = constant(0.02)

    @task
    def hello(self):
        self.chat("Say hello", max_tokens=3, name="hello")
"""


def test_a_locustfile_of_ones_own_runs_on_workers_too(tmp_path: Path, server: FakeServer) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    options = ["-H", server.url, "-u", "4", "-r", "4", "-t", "2s", "--json-file", "s"]
    process = locust(tmp_path, "mine.py", *sharing(2), *options, *PASSES)
    assert process.end() == 0, process.said
    _, records = run_of(tmp_path)
    ids = [record.id for record in records]
    assert len(ids) == len(set(ids)) == len(server.bodies) > 8
    assert set(Counter(record.worker for record in records)) == {0, 1}
    # Locust's own statistics of its workers come together as ever.
    (row,) = json.loads((tmp_path / "s.json").read_text())
    assert (row["name"], row["num_requests"]) == ("hello", len(ids))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scenario", "chta"], "error: no scenario is called 'chta'; did you mean 'chat'?"),
        (
            ["--set", "arrivals={process: closed, users: 1}"],
            "error: 1 users cannot be shared by 2 workers: take fewer workers",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2_with_workers_too(
    tmp_path: Path, server: FakeServer, options: list[str], message: str
) -> None:
    process = together(tmp_path, server, 2, *options)
    assert process.end() == 2, process.said
    told = [line for line in process.said.splitlines() if line.startswith("error:")]
    assert len(told) == 1 and told[0].startswith(message), process.said
    assert "Traceback" not in process.said
    assert not (tmp_path / "out").exists()


def test_a_worker_without_the_key_is_named_before_any_load(
    tmp_path: Path, server: FakeServer
) -> None:
    port = str(free_port())
    called = ["--master-bind-port", port, "--expect-workers", "1", "--headless", "--out", "out"]
    key = {"THE_KEY": "geheim"}
    master = locust(
        tmp_path, FILE, "--master", *called, "-H", server.url, "--api-key-env", "THE_KEY",
        name="master", **key,
    )  # fmt: skip
    locust(tmp_path, FILE, "--worker", "--master-port", port, name="worker")
    assert master.end() == 2, master.said
    assert "error: worker 0 (" in master.said
    assert "the environment variable THE_KEY is not set" in master.said
    assert server.bodies == []


def test_the_master_web_ui_makes_a_folder_for_each_test_and_serves_metrics(
    tmp_path: Path, server: FakeServer
) -> None:
    web, port = free_port(), str(free_port())
    options = ["--web-port", str(web), "--web-host", "127.0.0.1", "-H", server.url, "--out", "out"]
    master = locust(
        tmp_path, FILE, "--master", "--master-bind-port", port, *options, "--warmup", "0s", *PASSES,
        name="master",
    )  # fmt: skip
    for number in range(2):
        locust(tmp_path, FILE, "--worker", "--master-port", port, name=f"w{number}")
    master.until(lambda: workers_at(web) == 2)
    for number in (1, 2):
        folder = RunFolder(tmp_path / "out" / f"run-{number}")
        server.bodies.clear()
        fetched(web, "/swarm", {"user_count": "1", "spawn_rate": "1"})
        master.until(partial(both_have_answers, web, folder))
        shown = live(web)
        found = re.search(r'requests_total{class="chat",outcome="ok",run_id="(\w+)"} (\d+)',
                          fetched(web, "/metrics") or "")  # fmt: skip
        assert found and found[1] == shown["run"] and int(found[2]) > 0
        assert [each["id"] for each in shown["objectives"]] == ["errors < 20%", "ttft p50 < 20s"]
        fetched(web, "/stop", {})
        run = folder.read_run()
        assert run["stopped_early"] == "stopped through Locust before its end"
        assert heard_of(folder) == {0, 1}
        master.until(lambda: workers_at(web) == 2)
    master.process.send_signal(signal.SIGTERM)
    assert master.end() == run["exit_code"], master.said


def both_have_answers(port: int, folder: RunFolder) -> bool:
    return is_going(port) and heard_of(folder) == {0, 1}


def heard_of(folder: RunFolder) -> set[int]:
    """The workers with a record in a run's folder, which may still be going."""
    return {record.worker for record in folder.records()}


def live(port: int) -> dict[str, Any]:
    """What the tab of a web UI is told."""
    shown: dict[str, Any] = json.loads(fetched(port, "/prony/live") or "{}")
    return shown


def is_going(port: int) -> bool:
    shown = live(port)
    return bool(shown.get("finished")) and not shown["over"]


def workers_at(port: int) -> int:
    count: int = json.loads(fetched(port, "/worker-count") or "{}").get("worker_count", 0)
    return count


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found
