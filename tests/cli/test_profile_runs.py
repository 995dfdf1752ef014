"""Runs that profile their target: by `prony run`, in several processes, by `locust -f`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.fake_profiler import FakeProfiler
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.locust_process import locust, nothing_is_left_running
from tests.server.live_server import LiveServer, live_server
from tests.starting import run_program

from prony.profiling.captures import profile_facts
from prony_loadgen.folder import RunFolder
from prony_loadgen.shipped import shipped
from prony_loadgen.summary import in_flight
from prony_server.faults import parse_all

LOG = "log-in-decode=20ms"  # of each step: most of it
SHORT = ["--rate", "40", "--duration", "1500ms", "--warmup", "0s"]


class Profiled(FakeServer):
    """A fake server with a profiler that never has a file to give."""

    def _answer(self, connection: Any, path: bytes, body: bytes) -> None:
        if path.endswith(b"_profile"):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        else:
            super()._answer(connection, path, body)


@pytest.fixture(scope="module")
def logging_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("captures")
    faults = parse_all([LOG])
    with live_server(profile_dir=folder, profiler="py-spy", inject=faults) as server:
        yield server


def facts_of(folder: Path) -> dict[str, Any]:
    return RunFolder(folder).read_run()


def test_a_breach_is_profiled_and_the_function_that_logs_in_the_loop_is_named(
    logging_server: LiveServer, tmp_path: Path
) -> None:
    done = run_program(
        "prony", "run", "chat", "--target", logging_server.url, "--rate", "12", "--duration", "10s",
        "--warmup", "0s", "--slo", "ttft p99 < 1ms", "--profile", "on-breach",
        "--profile-seconds", "2", "--processes", "2", "--quiet", "--out", "run", cwd=tmp_path,
    )  # fmt: skip
    folder = tmp_path / "run"
    run = facts_of(folder)
    assert len(run["profile"]["captures"]) == 1, done.stderr
    (capture,) = run["profile"]["captures"]
    start, end = capture["window"]
    # Only one, and after the breach; how soon after is measured by benchmarks/profile_hook.py.
    assert capture["failure"] is None
    assert capture["breached"] <= start < end
    assert "on breach: ttft p99 < 1ms" in capture["why"]
    # What was in flight is named, and in no figure.
    records = list(RunFolder(folder).records())
    there = [r.id for r in records if in_flight(r, [(start, end)])]
    assert capture["requests"] == {"count": len(there), "ids": there}
    assert run["summary"]["requests"]["profiled"] > 0
    assert "profiled" in [doubt["id"] for doubt in run["doubts"]]
    # The profile names the function; how exact its share is, is measured by benchmarks/ too.
    profile = profile_facts(folder, run)
    assert profile is not None and profile.windows == ((start, end),)
    engine = profile.thread("engine")
    assert engine is not None and engine.host_spot is not None
    assert engine.share_of("log_request") > 0.25
    assert any(frame.is_called("log_request") for frame in engine.telling(5))
    report = (folder / "report.html").read_text()
    assert "Inside the server" in report and "log_request" in report


def test_a_moment_is_profiled_and_the_run_says_what_came_of_it(tmp_path: Path) -> None:
    with Profiled(first_token=0.05, gap=0.001) as server:
        done = run_program(
            "prony", "run", "chat", "--target", server.url, *SHORT, "--profile", "at=300ms",
            "--profile-seconds", "0.3", "--slo", "errors < 50%", "--quiet", "--out", "run",
            cwd=tmp_path,
        )  # fmt: skip
    (capture,) = facts_of(tmp_path / "run")["profile"]["captures"]
    assert capture["why"] == "at 0.3 s" and capture["window"][0] >= 0.3
    assert capture["requests"]["count"] > 0 and capture["on_server"] is not None
    assert "profile: at 0.3 s" in done.stderr


def test_locusts_own_command_profiles_too(tmp_path: Path) -> None:
    with nothing_is_left_running(), Profiled(first_token=0.05, gap=0.001) as server:
        process = locust(
            tmp_path, shipped("locustfile.py"), "--headless", "-H", server.url, "--out", "out",
            "--set", "duration=1500ms", "--set", "arrivals.rate=40", "--warmup", "0s",
            "--profile-when", "at=300ms",
        )  # fmt: skip
        process.end()
        said = process.said
    profile = facts_of(tmp_path / "out")["profile"]
    assert [each["why"] for each in profile["captures"]] == ["at 0.3 s"], said


def test_a_run_whose_target_has_no_hook_ends_before_any_load(tmp_path: Path) -> None:
    with FakeProfiler("vllm", None) as server:
        done = run_program(
            "prony", "run", "chat", "--target", server.url, "--no-probe", "--model", "m",
            "--profile", "at=1s", "--out", "run", cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 2
    assert "--profiler-config" in done.stderr
    assert not (tmp_path / "run").exists()
