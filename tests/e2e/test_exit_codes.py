"""Exit codes 0 to 4, from `prony run` and from Locust headless, and after SIGINT and SIGTERM.

Closed loop, since there no busy machine can make a run invalid by sending late.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.fake_server import FakeServer

from prony_loadgen.shipped import shipped

KEPT, BROKEN, UNCLEAR = "ttft p50 < 60s", "ttft p50 < 1us", "ttft p99 < 60s"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with FakeServer(first_token=0.002) as server:
        yield server.url


def by_prony(url: str, out: Path, slo: str, requests: int) -> list[str]:
    return ["prony", "run", "closed", "--target", url, "--slo", slo, "--out", str(out),
            "--requests", str(requests), "--warmup", "0s", "--concurrency", "2"]  # fmt: skip


def by_locust(url: str, out: Path, slo: str, requests: int) -> list[str]:
    locustfile = str(shipped("locustfile.py"))
    return ["locust", "-f", locustfile, "--headless", "-H", url, "--slo", slo, "--out", str(out),
            "--scenario", "closed", "--set", f"requests={requests}", "--warmup", "0s",
            "-u", "2"]  # fmt: skip


ways = pytest.mark.parametrize("way", [by_prony, by_locust], ids=["prony run", "locust"])


def command(parts: list[str]) -> list[str]:
    return [sys.executable, "-m", *parts]


def environment() -> dict[str, str]:
    left_out = ("GITHUB_", "OPENAI_", "LOCUST_")
    return {k: v for k, v in os.environ.items() if not k.startswith(left_out)}


def verdict(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "verdict.json").read_text())
    return found


@ways
@pytest.mark.parametrize(
    ("slo", "requests", "code", "word"),
    [
        (KEPT, 60, 0, "pass"),
        (BROKEN, 60, 1, "breach"),
        (UNCLEAR, 60, 3, "inconclusive"),
    ],
)
def test_each_verdict_has_its_code(
    way: Any, slo: str, requests: int, code: int, word: str, url: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        command(way(url, out, slo, requests)),
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    found = verdict(out)
    assert (found["verdict"], found["exit_code"]) == (word, code)
    assert json.loads((out / "run.json").read_text())["exit_code"] == code
    assert (out / "junit.xml").exists() and (out / "report.html").exists()


@ways
def test_a_server_that_is_not_there_is_2_and_nothing_is_judged(way: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        command(way("http://127.0.0.1:9", out, KEPT, 60)),
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert not (out / "verdict.json").exists()


@ways
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("slo", "code"), [(KEPT, 4), (BROKEN, 1)])
def test_an_interrupted_run_shows_a_certain_breach_or_is_invalid(
    way: Any, number: signal.Signals, slo: str, code: int, url: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(way(url, out, slo, 1_000_000)),
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    with process:
        try:
            records = out / "requests.jsonl.gz"
            while process.poll() is None and not (records.exists() and records.stat().st_size):
                os.sched_yield()
            process.send_signal(number)
            text, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == code, text
    found = verdict(out)
    assert (found["verdict"], found["exit_code"]) == ("breach" if code == 1 else "invalid", code)
    assert json.loads((out / "run.json").read_text())["interrupted"] is True


def test_answers_without_any_output_make_the_run_invalid(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with FakeServer(empty=True) as server:
        done = subprocess.run(
            command(by_prony(server.url, out, KEPT, 60)),
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 4, done.stdout + done.stderr
    assert [d["id"] for d in verdict(out)["doubts"] if d["grade"] == "invalid"] == ["no_output"]
