"""`prony run`, plain Locust and one's own locustfile: three ways to the same judged folder."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.servers import serving

from prony_loadgen.shipped import shipped

OWN_LOCUSTFILE = """\
from locust import between, task
from prony_loadgen import LLMUser


class Reader(LLMUser):
    wait_time = between(0.05, 0.1)

    @task(3)
    def short(self) -> None:
        self.chat("Say hello.", max_tokens=8, name="short")

    @task(1)
    def long(self) -> None:
        self.complete("Once upon a time", max_tokens=24, name="long")
"""
SLO = ("--slo", "errors < 50%")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("tiny", "--torch-threads", "1") as url:
        yield url


def judged(folder: Path, *command: str) -> dict[str, Any]:
    """The run.json of a command that writes its run to `folder` and ends by itself."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command, "--out", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder.parent,
        env=environment,
    )
    run: dict[str, Any] = json.loads((folder / "run.json").read_text())
    assert done.returncode == run["exit_code"], done.stderr
    assert (folder / "report.html").stat().st_size > 100_000
    return run


def test_all_three_give_the_same_summary_fields(url: str, tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text(OWN_LOCUSTFILE)
    locustfile = str(shipped("locustfile.py"))
    short = ("--set", "requests=40", "--set", "arrivals.rate=20", "--warmup", "0s")

    by_prony = judged(tmp_path / "a", "prony", "run", "chat", "--target", url, *short, *SLO)
    by_locust = judged(
        tmp_path / "b", "locust", "-f", locustfile, "--headless", "-H", url, *short, *SLO
    )
    by_own = judged(
        tmp_path / "c", "locust", "-f", str(own), "--headless", "-H", url, *SLO,
        "-u", "2", "-r", "2", "-t", "5s",
    )  # fmt: skip

    assert [run["loop"] for run in (by_prony, by_locust, by_own)] == ["open", "open", "closed"]
    assert by_prony["summary"]["requests"]["ok"] == by_locust["summary"]["requests"]["ok"] == 40
    assert set(by_own["summary"]["classes"]) == {"short", "long"}
    same = set(by_prony["summary"])
    assert set(by_locust["summary"]) == same
    # Two classes of request are summed up apart as well; all else is alike.
    assert set(by_own["summary"]) - {"classes"} == same
    for run in (by_prony, by_locust, by_own):
        assert [objective["id"] for objective in run["objectives"]] == ["errors < 50%"]
        assert run["objectives"][0]["verdict"] == "pass" or run["verdict"] == "invalid"


def test_own_locustfile_has_twelve_lines_of_code() -> None:
    assert sum(bool(line.strip()) for line in OWN_LOCUSTFILE.splitlines()) <= 12
