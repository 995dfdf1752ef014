"""Exit codes 0 to 4, from `prony run`, from Locust headless in one process and in several, and
after SIGINT and SIGTERM.

Closed loop, since there no busy machine can make a run invalid by sending late.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.locust_process import Process, command_of, free_port, nothing_is_left_running

from prony_loadgen.folder import RunFolder
from prony_loadgen.shipped import shipped

KEPT, BROKEN, UNCLEAR = "ttft p50 < 60s", "ttft p50 < 1us", "ttft p99 < 60s"


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    with nothing_is_left_running():
        yield


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with FakeServer(first_token=0.002) as server:
        yield server.url


def by_prony(url: str, slo: str, requests: int) -> list[str]:
    return ["prony", "run", "closed", "--target", url, "--slo", slo, "--out", "out",
            "--requests", str(requests), "--warmup", "0s", "--concurrency", "2"]  # fmt: skip


def by_locust(url: str, slo: str, requests: int) -> list[str]:
    locustfile = str(shipped("locustfile.py"))
    return ["locust", "-f", locustfile, "--headless", "-H", url, "--slo", slo, "--out", "out",
            "--scenario", "closed", "--set", f"requests={requests}", "--warmup", "0s",
            "-u", "2"]  # fmt: skip


def by_locusts(url: str, slo: str, requests: int) -> list[str]:
    port = str(free_port())
    ports = ["--master-port", port, "--master-bind-port", port]
    return [*by_locust(url, slo, requests), "--processes", "2", *ports]


WAYS = {"prony run": by_prony, "locust": by_locust, "locust --processes 2": by_locusts}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def started(folder: Path, command: list[str]) -> Process:
    # Locust takes options from the environment too, and a CI tells of itself there.
    cleared = {k: "" for k in os.environ if k.startswith(("GITHUB_", "LOCUST_"))}
    return Process(command_of(*command), folder, **cleared)


def verdict(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out/verdict.json").read_text())
    return found


@ways
@pytest.mark.parametrize(
    ("slo", "code", "word"),
    [(KEPT, 0, "pass"), (BROKEN, 1, "breach"), (UNCLEAR, 3, "inconclusive")],
)
def test_q05_each_verdict_has_its_code(
    way: Any, slo: str, code: int, word: str, url: str, tmp_path: Path
) -> None:
    process = started(tmp_path, way(url, slo, 60))
    assert process.end() == code, process.said
    found = verdict(tmp_path)
    assert (found["verdict"], found["exit_code"]) == (word, code)
    assert RunFolder(tmp_path / "out").read_run()["exit_code"] == code
    for name in ("junit.xml", "report.html"):
        assert (tmp_path / "out" / name).exists()


@ways
def test_q05_a_server_that_is_not_there_is_2_and_nothing_is_judged(
    way: Any, tmp_path: Path
) -> None:
    process = started(tmp_path, way("http://127.0.0.1:9", KEPT, 60))
    assert process.end() == 2, process.said
    assert not (tmp_path / "out/verdict.json").exists()


@ways
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("slo", "code"), [(KEPT, 4), (BROKEN, 1)])
def test_q05_an_interrupted_run_shows_a_certain_breach_or_is_invalid(
    way: Any, number: signal.Signals, slo: str, code: int, url: str, tmp_path: Path
) -> None:
    process = started(tmp_path, way(url, slo, 1_000_000))
    folder = RunFolder(tmp_path / "out")
    process.until(lambda: folder.requests.exists() and sum(1 for _ in folder.records()) > 20)
    process.process.send_signal(number)
    assert process.end() == code, process.said
    found = verdict(tmp_path)
    assert (found["verdict"], found["exit_code"]) == ("breach" if code == 1 else "invalid", code)
    assert folder.read_run()["interrupted"] is True


@ways
@pytest.mark.parametrize("kept", [0.5, 0.0])
def test_a_run_whose_records_were_cut_afterwards_is_not_judged_by_the_rest(
    way: Any, kept: float, url: str, tmp_path: Path
) -> None:
    process = started(tmp_path, way(url, KEPT, 200))
    assert process.end() == 0, process.said
    requests = RunFolder(tmp_path / "out").requests
    whole = requests.read_bytes()
    requests.unlink()
    if kept:
        requests.write_bytes(whole[: int(kept * len(whole))])
    again = started(tmp_path, ["prony", "gate", "out", "--slo", KEPT])
    assert again.end() == 4, again.said
    assert "of the run's 200 records" in " ".join(again.said.split())
    assert verdict(tmp_path)["verdict"] == "invalid"


EARLY = """\
measure: {stop_on_breach: true}
objectives: [{id: ttft, good: {ttft: 1us}, at_least: 50%}]
regression:
  baseline: {ref: main, mode: stored}
  checks: [{metric: ttft, stat: p50, tolerance: 5%}]
"""


@ways
def test_q12_a_breach_that_stops_the_run_leaves_report_comparison_and_code(
    way: Any, url: str, tmp_path: Path
) -> None:
    (tmp_path / "slo.yaml").write_text(EARLY)
    process = started(tmp_path, way(url, "slo.yaml", 1_000_000))
    assert process.end() == 1, process.said
    run, found = RunFolder(tmp_path / "out").read_run(), verdict(tmp_path)
    assert run["stopped_early"].startswith("ttft") and run["interrupted"] is False
    assert (found["verdict"], run["exit_code"]) == ("breach", 1)
    assert "no baseline yet" in found["regression"]["checks"][0]["text"]
    for name in ("junit.xml", "report.html", "summary.md"):
        assert (tmp_path / "out" / name).exists()


@ways
def test_q09_answers_without_any_output_make_the_run_invalid(way: Any, tmp_path: Path) -> None:
    with FakeServer(empty=True) as server:
        process = started(tmp_path, way(server.url, KEPT, 60))
        assert process.end() == 4, process.said
    invalid = [d["id"] for d in verdict(tmp_path)["doubts"] if d["grade"] == "invalid"]
    assert invalid == ["no_output"]
