"""Locust runs as people start them: in processes of their own, against a server on loopback."""

import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.busy import unless_late
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.locust_process import (
    Process,
    command_of,
    fetched,
    free_port,
    locust,
    nothing_is_left_running,
)
from tests.loadgen.tls_server import CA, server_side

from prony_loadgen.folder import RunFolder
from prony_loadgen.shipped import shipped

MINE = """
from locust import constant, task
from prony_loadgen import LLMUser

class Chatter(LLMUser):
    wait_time = constant(0.01)

    @task(3)
    def short(self):
        self.chat("Say hello", max_tokens=2, name="short")

    @task
    def long(self):
        self.complete("Tell me more", max_tokens=9, name="long", temperature=0)
"""
SHORT = ["--set", "requests=40", "--set", "arrivals.rate=80", "--warmup", "0s"]
# Lenient, so that a busy machine's send lag (2 % of a TTFT limit is allowed) decides nothing here.
PASSES = ["--slo", "errors < 20%", "--slo", "ttft p50 < 20s"]


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    with nothing_is_left_running():
        yield


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(first_token=0.005, gap=0.0005) as server:
        yield server


@pytest.mark.parametrize("processes", ["1", "2"])
def test_tls_by_a_ca_of_ones_own_works_under_locusts_patched_sockets(
    processes: str, tmp_path: Path
) -> None:
    port = str(free_port())
    several = ["--processes", processes, "--master-port", port, "--master-bind-port", port]
    with FakeServer(first_token=0.005, tls=server_side()) as server:
        more = several if processes != "1" else []
        trusting = ours(tmp_path, server, *SHORT, *PASSES,
                        "--set", f"tls.ca={CA}", *more)  # fmt: skip
        assert trusting.end() == 0, trusting.said
        assert len(server.bodies) == 40
        other = tmp_path / "other"
        other.mkdir()
        refusing = ours(other, server, *SHORT, *PASSES)
        assert refusing.end() == 2, refusing.said
        assert "certificate" in refusing.said
    run = RunFolder(tmp_path / "out").read_run()
    assert run["summary"]["requests"]["ok"] == 40


def test_prony_run_reaches_a_tls_server_by_its_ca_and_without_any(tmp_path: Path) -> None:
    with FakeServer(first_token=0.005, tls=server_side()) as server:
        for number, trust in enumerate((f"tls.ca={CA}", "tls.insecure=true")):
            command = command_of("prony", "run", "closed", "--target", server.url, "--set", trust,
                                 "--requests", "40", "--warmup", "0s", "--concurrency", "2",
                                 "--slo", "errors < 20%", "--out", f"out-{number}")  # fmt: skip
            process = Process(command, tmp_path, f"said-{number}")
            assert process.end() == 0, process.said
            run = RunFolder(tmp_path / f"out-{number}").read_run()
            assert run["summary"]["requests"]["ok"] == 40


def ours(folder: Path, server: FakeServer, *options: str) -> Process:
    file = shipped("locustfile.py")
    return locust(folder, file, "--headless", "-H", server.url, "--out", "out", *options)


def mine(folder: Path, server: FakeServer, *options: str, text: str = MINE) -> Process:
    (folder / "mine.py").write_text(text)
    return locust(folder, "mine.py", "--headless", "-H", server.url, "--out", "out", *options)


def run_of(folder: Path) -> dict[str, Any]:
    return RunFolder(folder / "out").read_run()


def sent(folder: Path) -> Counter[str]:
    return Counter(record.cls for record in RunFolder(folder / "out").records())


def test_the_shipped_locustfile_ends_with_its_scenario_and_the_verdicts_code(
    tmp_path: Path, server: FakeServer
) -> None:
    process = ours(tmp_path, server, *SHORT, *PASSES, "-u", "5")
    code = process.end()
    assert "plan: 40 requests (40 measured)" in process.said
    assert "an open-loop scenario is sent by one user; -u is ignored" in process.said
    run = run_of(tmp_path)
    assert (run["verdict"], code) == unless_late(run, "pass"), process.said
    assert (run["exit_code"], run["loop"]) == (code, "open")
    assert sent(tmp_path) == {"chat": 40}
    assert len(server.bodies) == 40


def test_a_breach_is_locusts_exit_code(tmp_path: Path, server: FakeServer) -> None:
    process = ours(tmp_path, server, *SHORT, *PASSES, "--slo", "output_tokens_per_s > 1e9")
    code, run = process.end(), run_of(tmp_path)
    assert (run["verdict"], code) == unless_late(run, "breach"), process.said


def test_a_locustfile_of_ones_own_gives_a_judged_run_with_the_same_summary(
    tmp_path: Path, server: FakeServer
) -> None:
    theirs, scenario = tmp_path / "theirs", tmp_path / "scenario"
    theirs.mkdir()
    scenario.mkdir()
    files = ["--csv", "stats", "--html", "stats.html", "--json-file", "stats"]
    process = mine(theirs, server, "-u", "4", "-r", "4", "-t", "2s", *PASSES, *files)
    assert process.end() == 0, process.said
    run = run_of(theirs)
    assert (run["verdict"], run["loop"], run["scenario"]["name"]) == ("pass", "closed", "mine")
    counts = sent(theirs)
    assert counts["short"] > counts["long"] > 0
    # One event a request, at its end, with the tokens as its length.
    rows = {row["name"]: row for row in json.loads((theirs / "stats.json").read_text())}
    assert {name: rows[name]["num_requests"] for name in counts} == dict(counts)
    assert rows["long"]["total_content_length"] == 9 * counts["long"]
    assert rows["short"]["min_response_time"] >= 5
    assert "short" in (theirs / "stats_stats.csv").read_text()
    assert "short" in (theirs / "stats.html").read_text()

    other = ours(scenario, server, *SHORT, *PASSES)
    assert other.end() == unless_late(run_of(scenario), "pass")[1], other.said
    assert run_of(scenario).keys() == run.keys()
    wanted = set(run_of(scenario)["summary"]) | {"classes"}
    assert set(run["summary"]) | {"classes"} == wanted


RAISES = """
from locust import constant, task
from prony_loadgen import LLMUser

class Careless(LLMUser):
    wait_time = constant(0.01)

    @task
    def broken(self):
        self.chat("Say hello", max_tokens=2)
        if __WHEN__:
            {}["answer"]
"""


@pytest.mark.parametrize("slo", [PASSES, []])
def test_a_run_whose_own_code_raised_is_invalid_and_says_how_often(
    tmp_path: Path, server: FakeServer, slo: list[str]
) -> None:
    text = RAISES.replace("__WHEN__", "True")
    process = mine(tmp_path, server, "-u", "2", "-r", "2", "-t", "1s", *slo, text=text)
    assert process.end() == 4, process.said
    run = run_of(tmp_path)
    assert (run["verdict"], run["exit_code"]) == ("invalid", 4)
    told = run["client"]["task_errors"]
    assert told["first"] == "KeyError: 'answer'"
    # Each request came to its end before the code behind it broke.
    assert abs(told["count"] - sent(tmp_path)["chat"]) <= 2
    doubt = next(doubt for doubt in run["doubts"] if doubt["id"] == "task_errors")
    assert f"raised {told['count']:,} times (first: KeyError: 'answer')" in doubt["message"]


def test_users_that_stop_or_are_rescheduled_have_raised_nothing(
    tmp_path: Path, server: FakeServer
) -> None:
    stops = "from locust.exception import RescheduleTask, StopUser\n"
    text = stops + RAISES.replace("__WHEN__", "False") + "        raise RescheduleTask\n"
    process = mine(tmp_path, server, "-u", "2", "-r", "2", "-t", "1s", *PASSES, text=text)
    assert process.end() == 0, process.said
    assert "task_errors" not in run_of(tmp_path)["client"]


def test_run_json_keeps_the_command_of_a_locust_run_with_its_seed(
    tmp_path: Path, server: FakeServer
) -> None:
    process = ours(tmp_path, server, *SHORT, *PASSES, "--set", "headers.X-Key=geheim")
    code, run = process.end(), run_of(tmp_path)
    assert code == unless_late(run, "pass")[1], process.said
    assert run["command"].startswith("locust -f ") and "-H http://127.0.0.1" in run["command"]
    assert "headers.X-Key=***" in run["command"] and "geheim" not in json.dumps(run)
    assert run["command"].endswith(f"--seed {run['seed']}")
    assert run["slo"] == PASSES[1::2]


def test_a_closed_scenario_takes_its_users_from_u(tmp_path: Path, server: FakeServer) -> None:
    closed = ["--set", "arrivals={process: closed, users: 9}", "--set", "requests=30"]
    process = ours(tmp_path, server, *closed, "--warmup", "0s", "-u", "2", *PASSES)
    assert process.end() == 0, process.said
    assert run_of(tmp_path)["scenario"]["arrivals"]["users"] == 2
    assert sent(tmp_path) == {"chat": 30}


def test_run_time_shortens_a_scenario(tmp_path: Path, server: FakeServer) -> None:
    rate = ["--set", "arrivals.rate=40", "--warmup", "0s"]
    process = ours(tmp_path, server, *rate, *PASSES, "-t", "2s")
    code, run = process.end(), run_of(tmp_path)
    assert (run["verdict"], code) == unless_late(run, "pass"), process.said
    assert run["window"][1] <= 2.0
    assert (run["interrupted"], run["stopped_early"]) == (False, None)
    assert run["schedule"]["dropped"] == 0 or code == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_judged_folder_marked_interrupted(
    tmp_path: Path, server: FakeServer, number: signal.Signals
) -> None:
    process = ours(tmp_path, server, *PASSES, "--warmup", "0s")
    process.until(lambda: len(server.bodies) > 10)
    process.process.send_signal(number)
    assert process.end() == 4, process.said
    run = run_of(tmp_path)
    assert (run["interrupted"], run["verdict"], run["exit_code"]) == (True, "invalid", 4)
    assert sum(sent(tmp_path).values()) > 10
    assert "Traceback" not in process.said
    assert process.said.count("Shutting down") == 1


def test_a_signal_during_a_locustfile_of_ones_own_is_no_different(
    tmp_path: Path, server: FakeServer
) -> None:
    process = mine(tmp_path, server, "-u", "3")
    process.until(lambda: len(server.bodies) > 10)
    process.process.send_signal(signal.SIGINT)
    assert process.end() == 4, process.said
    assert run_of(tmp_path)["interrupted"] is True


def test_a_listener_may_stop_users_and_tests(tmp_path: Path, server: FakeServer) -> None:
    listener = """
from locust import events
from locust.exception import StopUser

seen = []

@events.request.add_listener
def stop(context, exception, **_):
    assert exception is None and context["ttft"] > 0
    seen.append(context["record"].id)
    if len(seen) >= 5:
        raise StopUser

@events.quitting.add_listener
def tell(**_):
    print("seen", len(seen))
"""
    process = mine(tmp_path, server, "-t", "2s", text=MINE + listener)
    assert process.end() == 0, process.said
    assert sum(sent(tmp_path).values()) == 5
    assert "seen 5" in process.said


QUITS = """
from locust import events
from prony_loadgen.locust_user import ScenarioUser

seen = []

@events.init.add_listener
def remember(environment, **_):
    seen.append(environment)

@events.request.add_listener
def quit_at_the_fifth(**_):
    seen.append(1)
    if len(seen) == 6:
        seen[0].runner.quit()
"""
SCENARIO = (
    QUITS
    + """
class Mine(ScenarioUser):
    pass
"""
)


STOPS = SCENARIO.replace("seen[0].runner.quit()", "raise StopTest('enough')").replace(
    "from locust import events", "from locust import events\nfrom locust.exception import StopTest"
)


@pytest.mark.parametrize("text", [MINE + QUITS, SCENARIO, STOPS], ids=["tasks", "scenario", "stop"])
def test_a_listener_may_quit_in_the_middle_of_a_run(
    tmp_path: Path, server: FakeServer, text: str
) -> None:
    process = mine(tmp_path, server, "-u", "2", "--slo", "ttft p50 < 20s", text=text)
    code, run = process.end(), run_of(tmp_path)
    assert (run["verdict"], code) == unless_late(run, "inconclusive"), process.said
    assert run["ended_at"] is not None
    assert run["interrupted"] is False
    # Left alone, the scenario would send 350, and the tasks would never end.
    assert 5 <= sum(sent(tmp_path).values()) < 300


LISTENS = (
    MINE.replace("max_tokens=2", "max_tokens=9")
    + """
import json
from locust import events

@events.request.add_listener
def listen(response_time, exception, context, **_):
    with open("heard.jsonl", "a") as file:
        heard = {"response_time": response_time, "ttft": context["ttft"], "failed": bool(exception)}
        file.write(json.dumps(heard) + "\\n")
"""
)


def test_m17_locusts_event_covers_the_whole_stream_with_ttft_beside_it_and_fires_once(
    tmp_path: Path,
) -> None:
    # 50 ms to the first of 9 tokens, 40 ms between them.
    with FakeServer(first_token=0.05, gap=0.04, fail_after=6) as server:
        process = mine(tmp_path, server, "-u", "2", "-r", "2", "-t", "2s", text=LISTENS)
        process.end()
    heard = [json.loads(line) for line in (tmp_path / "heard.jsonl").read_text().splitlines()]
    records = list(RunFolder(tmp_path / "out").records())
    assert len(heard) == len(records)
    whole = [each for each in heard if not each["failed"]]
    assert 0 < len(whole) <= 6 < len(heard)
    assert all(each["ttft"] >= 0.05 for each in whole)
    assert all(each["response_time"] / 1000 - each["ttft"] >= 8 * 0.04 for each in whole)


def test_failed_requests_are_failures_in_locust_too(tmp_path: Path) -> None:
    with FakeServer(fail_after=20) as server:
        process = ours(tmp_path, server, *SHORT, *PASSES)
        code, run = process.end(), run_of(tmp_path)
    assert code == unless_late(run, "breach")[1], process.said
    assert "LLMError('http_error: " in process.said
    outcomes = Counter(record.outcome for record in RunFolder(tmp_path / "out").records())
    assert outcomes == {"ok": 20, "http_error": 20}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scenario", "chta"], "error: no scenario is called 'chta'; did you mean 'chat'?"),
        (["--set", "arrivals.rat=3"], "error: --set arrivals.rat: unknown key; did you mean"),
        (["--set", "arrivals.rate"], "error: --set arrivals.rate: expected KEY=VALUE"),
        (["--slo", "tfft p99 < 1s"], "error: "),
        (["--api-key-env", "NOT_THERE"], "error: --api-key-env: the environment variable NOT_"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(
    tmp_path: Path, server: FakeServer, options: list[str], message: str
) -> None:
    process = ours(tmp_path, server, *options)
    assert process.end() == 2, process.said
    told = [line for line in process.said.splitlines() if "error" in line.lower()]
    assert len(told) == 1 and told[0].startswith(message), process.said
    assert "Traceback" not in process.said
    assert not (tmp_path / "out").exists()


def test_a_target_that_is_not_there_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with FakeServer() as gone:
        pass
    process = ours(tmp_path, gone)
    assert process.end() == 2, process.said
    assert f"error: cannot reach {gone.url}/v1/models" in process.said


def test_the_web_ui_makes_a_folder_for_each_test_that_it_starts(
    tmp_path: Path, server: FakeServer
) -> None:
    port = free_port()
    options = ["--web-port", str(port), "--web-host", "127.0.0.1", "-H", server.url]
    file = shipped("locustfile.py")
    process = locust(tmp_path, file, *options, "--out", "out", "--warmup", "0s", *PASSES)
    process.until(lambda: fetched(port, "/") is not None)
    for number in (1, 2):
        server.bodies.clear()
        fetched(port, "/swarm", {"user_count": "3", "spawn_rate": "3"})
        process.until(lambda: len(server.bodies) > 20)
        fetched(port, "/stop", {})
        folder = RunFolder(tmp_path / "out" / f"run-{number}")
        run = folder.read_run()
        assert run["stopped_early"] == "stopped through Locust before its end"
        assert len(list(folder.records())) >= 20
    process.process.send_signal(signal.SIGTERM)
    assert process.end() == run["exit_code"], process.said


def test_a_web_ui_test_that_cannot_start_says_why_and_may_be_tried_again(
    tmp_path: Path, server: FakeServer
) -> None:
    port = free_port()
    options = ["--web-port", str(port), "--web-host", "127.0.0.1", *SHORT, *PASSES]
    process = locust(tmp_path, shipped("locustfile.py"), *options, "--out", "out")
    process.until(lambda: fetched(port, "/") is not None)
    nowhere = f"http://127.0.0.1:{free_port()}"
    fetched(port, "/swarm", {"user_count": "1", "spawn_rate": "1", "host": nowhere})
    process.until(lambda: f"error: cannot reach {nowhere}" in process.said)
    process.until(lambda: _state(port) == "stopped")
    fetched(port, "/swarm", {"user_count": "1", "spawn_rate": "1", "host": server.url})
    process.until(lambda: "exit_code" in _read(tmp_path / "out" / "run-1"))
    process.process.send_signal(signal.SIGTERM)
    run = _read(tmp_path / "out" / "run-1")
    assert process.end() == unless_late(run, "pass")[1], process.said


RUN = """
import sys
from prony_loadgen.locust_user import RunOptions, run_scenario
from prony_loadgen.scenario import load_scenario
from prony_loadgen.settings import installed_judge
from pathlib import Path

requests = sys.argv[3]
scenario = load_scenario("chat", {"warmup": "0s", "arrivals.rate": "80", "requests": requests})
slo = ("errors < 20%", "ttft p50 < 20s")
judge = installed_judge(slo, scenario.slo)
sys.exit(run_scenario(scenario, judge, RunOptions(
    target=sys.argv[1], out=Path("out"), metrics_port=int(sys.argv[2]), slo=slo)))
"""


def test_a_run_without_locusts_command_line_serves_its_metrics_and_ends_by_signal(
    tmp_path: Path, server: FakeServer
) -> None:
    port = free_port()
    process = Process([sys.executable, "-c", RUN, server.url, str(port), "3000"], tmp_path)
    process.until(lambda: len(server.bodies) > 20)
    series = fetched(port, "/metrics") or ""
    found = re.search(r'prony_loadgen_requests_total\{class="chat",outcome="ok".*\} (\d+)', series)
    assert found and int(found[1]) > 0
    process.process.send_signal(signal.SIGINT)
    assert process.end() == 4, process.said
    assert "interrupted: waiting up to 5 s" in process.said
    assert run_of(tmp_path)["interrupted"] is True


def test_a_run_without_locusts_command_line_ends_with_the_verdicts_code(
    tmp_path: Path, server: FakeServer
) -> None:
    command = [sys.executable, "-c", RUN, server.url, str(free_port()), "60"]
    process = Process(command, tmp_path)
    code, run = process.end(), run_of(tmp_path)
    assert (run["verdict"], code) == unless_late(run, "pass"), process.said
    assert run["schedule"]["planned"] == sum(sent(tmp_path).values()) == 60
    assert json.loads((tmp_path / "runs" / "latest" / "run.json").read_text()) == run


def _read(folder: Path) -> dict[str, Any]:
    """A run.json that may not be there yet."""
    return RunFolder(folder).read_run() if (folder / "run.json").exists() else {}


def _state(port: int) -> str:
    state: str = json.loads(fetched(port, "/stats/requests") or "{}")["state"]
    return state
