"""Disks that fill up, folders that take nothing, runs that are killed: what is said, and the code.

A limit on the size of files is a full disk to whoever writes, for root too.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.busy import unless_late
from tests.cli.test_gate import BROKEN, KEPT, folder_of, gate, verdict
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.locust_process import Process, nothing_is_left_running
from tests.loadgen.synthetic_run import synthetic_run
from tests.starting import run_program

from prony_loadgen.folder import RunFolder
from prony_loadgen.strict_yaml import FileError


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    with nothing_is_left_running():
        yield


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(first_token=0.005, gap=0.0005) as server:
        yield server


@pytest.fixture
def made(tmp_path: Path) -> Path:
    facts, records = synthetic_run(failures=0.0, slo=())
    return folder_of(tmp_path / "one", facts, records)


def running(folder: Path, server: FakeServer, *options: str) -> Process:
    command = [sys.executable, "-m", "prony", "run", "--target", server.url, "--out", "out"]
    return Process([*command, "--no-server-metrics", *options], folder)


def on_a_disk_of(kib: int, *argv: str | Path, cwd: Path) -> tuple[int, str]:
    """`prony ARGV` where no file can grow beyond `kib` KiB."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "OPENAI_"))}
    done = run_program("prony", *argv, cwd=cwd, environ=known, file_size=kib * 1024)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_that_is_killed_is_judged_by_what_it_recorded(
    tmp_path: Path, server: FakeServer
) -> None:
    long = ("--concurrency", "2", "--duration", "60s", "--warmup", "100ms", "--output-tokens", "3")
    process = running(tmp_path, server, *long, "--slo", BROKEN)
    folder = RunFolder(tmp_path / "out")
    process.until(lambda: folder.run.exists() and sum(1 for _ in folder.records()) > 80)
    process.process.send_signal(signal.SIGKILL)
    process.process.wait()
    facts = folder.read_run()
    assert facts["ended_at"] is None and facts["interrupted"] is True
    records = list(folder.records())
    assert facts["window"] == [0.1, round(max(record.ended for record in records), 6)]
    # By the SLO that it was made with; a part of a run can show a breach, and never a pass.
    code, text = gate("gate", "out", cwd=tmp_path)
    assert code == 1, text
    judged = folder.read_run()
    assert judged["summary"]["requests"]["attempts"] > 60
    assert judged["schedule"]["offered"] == judged["summary"]["requests"]["attempts"]
    assert "interrupted" in {doubt["id"] for doubt in judged["doubts"]}
    assert gate("gate", "out", "--slo", KEPT, cwd=tmp_path)[0] == 4


def test_a_planned_end_ends_the_window_of_a_run_that_was_killed_while_it_drained(
    tmp_path: Path,
) -> None:
    facts, records = synthetic_run(failures=0.0, slo=())
    last = max(record.ended for record in records)
    facts |= {"ended_at": None, "window": [3.0, 3.0], "planned_window": [3.0, 20.0]}
    assert last > 20
    folder = RunFolder(folder_of(tmp_path / "cut", facts, records))
    assert folder.read_run()["window"] == [3.0, 20.0]
    facts["planned_window"] = [3.0, None]
    folder.write_run(facts)
    assert folder.read_run()["window"] == [3.0, round(last, 6)]
    folder.requests.unlink()
    assert folder.read_run()["window"] == [0.0, 0.0]


def test_a_disk_that_fills_up_while_it_runs_leaves_what_came_before(
    tmp_path: Path, server: FakeServer
) -> None:
    code, text = on_a_disk_of(
        8, "run", "--target", server.url, "--out", "out", "--concurrency", "4", "--duration", "20s",
        "--warmup", "0s", "--no-server-metrics", "--output-tokens", "40", "--quiet",
        cwd=tmp_path,
    )  # fmt: skip
    assert code == 4 and "the run broke off" in text and "File too large" in text
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"run.json", "requests.jsonl.gz"}
    facts = RunFolder(tmp_path / "out").read_run()
    assert facts["interrupted"] is True and "verdict" not in facts
    code, text = gate("gate", "out", "--slo", BROKEN, cwd=tmp_path)
    assert code == 1, text


def test_a_disk_that_is_full_before_the_run_is_told_before_any_load(
    tmp_path: Path, server: FakeServer
) -> None:
    run = ("run", "--target", server.url, "--out", "out", "--no-probe", "--model", "fake")
    code, text = on_a_disk_of(1, *run, "--no-server-metrics", cwd=tmp_path)
    assert code == 2 and "out: File too large" in text
    assert server.bodies == []
    assert not (tmp_path / "out").exists()


def test_no_verdict_stands_in_run_json_where_its_views_could_not_be_written(
    tmp_path: Path, server: FakeServer
) -> None:
    # Enough for run.json and the records, not for a report.
    code, text = on_a_disk_of(
        60, "run", "--target", server.url, "--out", "out", "--concurrency", "4", "--requests", "20",
        "--warmup", "0s", "--no-server-metrics", "--quiet", "--slo", "errors < 90%",
        cwd=tmp_path,
    )  # fmt: skip
    assert "note: out: File too large: not written" in text
    facts = RunFolder(tmp_path / "out").read_run()
    assert "verdict" not in facts
    assert not list((tmp_path / "out").glob("*.new"))
    again, text = gate("gate", "out", cwd=tmp_path)
    assert (again, RunFolder(tmp_path / "out").read_run()["exit_code"]) == (code, code), text


@pytest.mark.parametrize(("slo", "code"), [(KEPT, 0), (BROKEN, 1)])
def test_a_folder_that_takes_nothing_is_judged_all_the_same(
    slo: str, code: int, made: Path, tmp_path: Path
) -> None:
    before = files(made)
    found, text = on_a_disk_of(0, "gate", made, "--slo", slo, cwd=tmp_path)
    assert found == code, text
    assert "File too large: not written; the exit code is the verdict's" in text
    assert ("PASS", "BREACH")[code] in text
    assert files(made) == before
    found, text = on_a_disk_of(0, "report", made, cwd=tmp_path)
    assert found == 0 and "not written" in text and "TTFT" in text
    assert files(made) == before


def test_several_runs_are_judged_where_nothing_can_be_written(made: Path, tmp_path: Path) -> None:
    found, text = on_a_disk_of(0, "gate", made, made, "--slo", BROKEN, "--out", "all", cwd=tmp_path)
    assert found == 1 and "all: File too large: not written" in text


def test_a_folder_that_takes_no_links_is_no_hindrance_where_out_is_named(
    tmp_path: Path, server: FakeServer
) -> None:
    # As a read-only working directory is: nothing can be made in it, for root neither.
    (tmp_path / "here").mkdir()
    (tmp_path / "here/runs").write_text("a file in the way")
    code, text = gate(
        "run", "--target", server.url, "--out", tmp_path / "out", "--concurrency", "4",
        "--requests", "60", "--warmup", "0s", "--no-server-metrics", "--slo", "errors < 95%",
        cwd=tmp_path / "here",
    )  # fmt: skip
    assert code == 0, text
    assert (tmp_path / "out/report.html").exists()


def test_another_slo_leaves_the_runs_own_files_as_they_are(made: Path, tmp_path: Path) -> None:
    assert gate("gate", made, "--slo", KEPT, cwd=tmp_path)[0] == 0  # it had none, so this is its
    before = files(made)
    code, text = gate("gate", made, "--slo", BROKEN, cwd=tmp_path)
    assert code == 1
    assert "another SLO's verdict, in verdict.json and junit.xml" in text.replace("\n", " ")
    after = files(made)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"verdict.json", "junit.xml"}
    assert verdict(made)["verdict"] == "breach"
    assert json.loads(after["run.json"])["verdict"] == "pass"
    # Without one, and by its own by name: all of them again.
    for slo in ((), ("--slo", KEPT)):
        (made / "report.html").unlink()
        assert gate("gate", made, *slo, cwd=tmp_path)[0] == 0
        assert (made / "report.html").exists() and verdict(made)["verdict"] == "pass"


BAD: dict[str, Any] = {
    "window": [None, [1], [2, 1], ["0", "1"], [0, float("inf")], {}],
    "loop": [7, None, "half"],
    "stages": [[1], [["a", "b", "c"]], "x"],
    "scenario": [[], "chat"],
    "schedule": [3],
    "planned_window": [[1], [None, 2]],
    "slo": ["chat"],
    "started_at": [5],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in BAD.items() for value in values], ids=str
)
def test_a_run_json_with_a_wrong_value_is_told_by_its_key(
    key: str, value: Any, tmp_path: Path
) -> None:
    facts, _ = synthetic_run(slo=(), requests=5)
    (tmp_path / "run.json").write_text(json.dumps(facts | {key: value}))
    with pytest.raises(FileError, match=rf"run\.json: {key} must be "):
        RunFolder(tmp_path).read_run()


@pytest.mark.parametrize("command", ["gate", "report", "replay", "baseline"])
def test_a_run_json_that_says_nothing_is_one_text_and_exit_2(command: str, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/run.json").write_text('{"schema": 1}')
    argv = ("baseline", "accept") if command == "baseline" else (command,)
    code, text = gate(*argv, "r", cwd=tmp_path)
    assert code == 2 and "window must be two numbers" in text


def test_the_report_shows_the_command_that_was_run_without_its_secrets(
    tmp_path: Path, server: FakeServer
) -> None:
    options = ("--rate", "50", "--requests", "60", "--warmup", "0s", "--extra-body", '{"top_k": 2}')
    secret = ("--header", "X-Key: geheim", "--set", "headers.X-Other=geheim")
    process = running(tmp_path, server, *options, *secret, "--slo", "errors < 95%")
    code, facts = process.end(), RunFolder(tmp_path / "out").read_run()
    assert code == unless_late(facts, "pass")[1], process.said
    assert facts["command"] == (
        f"prony run --target {server.url} --out out --no-server-metrics --rate 50 --requests 60 "
        "--warmup 0s --extra-body '{\"top_k\": 2}' --header 'X-Key: ***' "
        f"--set 'headers.X-Other=***' --slo 'errors < 95%' --seed {facts['seed']}"
    )
    page = (tmp_path / "out/report.html").read_text()
    assert "X-Key: ***" in page
    for path in (tmp_path / "out").iterdir():
        assert b"geheim" not in path.read_bytes(), path
    # Pasted, it sends the same again.
    shutil.move(tmp_path / "out", tmp_path / "first")
    again = facts["command"].replace("prony run", f"{sys.executable} -m prony run", 1)
    said = subprocess.run(["bash", "-c", again], cwd=tmp_path, capture_output=True)
    assert said.returncode in (0, 4), said.stderr
    intended = [
        sorted(round(record.intended, 6) for record in RunFolder(tmp_path / name).records())
        for name in ("first", "out")
    ]
    assert intended[0] == intended[1]
