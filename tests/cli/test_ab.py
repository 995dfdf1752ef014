"""`prony ab` for real: two servers, one slower, interleaved pairs, one verdict."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.locust_process import Process, nothing_is_left_running
from tests.starting import run_program

from prony_slo.verdict_file import Verdict

ROOT = Path(__file__).parents[2]
SCENARIO = """\
prompts: {input_tokens: 16}
output: {tokens: 8, mode: forced}
arrivals: {process: poisson, rate: 60}
warmup: 0s
requests: 60
"""


def server(first: float, gap: float) -> str:
    return f"{sys.executable} -m tests.cli.slow_server {{port}} {first} {gap}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "short.yaml").write_text(SCENARIO)
    return tmp_path


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "prony", "ab", "short.yaml", *argv]


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PRONY_CACHE": str(place / "cache")}


def ab(place: Path, *argv: str) -> tuple[int, str]:
    done = run_program("prony", *command(*argv)[3:], cwd=place, environ=environment(place))
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def verdict(folder: Path) -> dict[str, Any]:
    text = (folder / "verdict.json").read_text()
    Verdict.model_validate_json(text)
    found: dict[str, Any] = json.loads(text)
    return found


def servers_of(place: Path) -> Iterator[str]:
    """What still runs of what this test has started."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(place / "cache") in path.read_text(errors="replace"):
                yield path.parent.joinpath("cmdline").read_text().replace("\0", " ")
        except OSError:
            continue


def test_a_build_that_is_twice_as_slow_is_a_breach_and_everything_is_in_one_folder(
    place: Path,
) -> None:
    a, b = server(0.02, 0.004), server(0.06, 0.010)
    code, text = ab(place, "--a", a, "--b", b, "--slo", "ttft p50 < 2s", "--out", "out",
                    "--seed", "5")  # fmt: skip
    found = verdict(place / "out")
    if found["verdict"] == "invalid":  # this machine was too busy to measure, and that was noticed
        assert code == 4 and "cannot be trusted" in text
        return
    assert (code, found["verdict"]) == (1, "breach"), text
    rows = {row["id"]: row for row in found["regression"]["checks"]}
    assert rows["ttft p50"]["verdict"] == "breach" or rows["tpot p50"]["verdict"] == "breach"
    assert rows["ttft p50"]["estimate"] > 0.5
    assert found["objectives"][0]["n"] == 60 * rows["ttft p50"]["pairs"]
    # The same seed within a pair, a new one between, and both sides of each.
    by_pair: dict[int, set[int]] = {}
    for run in found["runs"]:
        by_pair.setdefault(run["pair"], set()).add(run["seed"])
    seeds = [seed for found_seeds in by_pair.values() for seed in found_seeds]
    assert len(seeds) == len(set(seeds)) == len(by_pair) >= 3
    assert "no noise profile of such runs yet" in text and "(so many pairs see" in text
    for name in ("junit.xml", "summary.md", "pairs.json", "runs.log", "server-a.log"):
        assert (place / "out" / name).exists()
    first = json.loads((place / "out/pair-01-a/run.json").read_text())
    assert first["server"] == {"command": a}
    assert first["regression"] == []
    assert list(servers_of(place)) == []
    # What was learnt is there for the next test of this setting.
    (profile,) = (place / "cache/noise").glob("*.json")
    assert json.loads(profile.read_text())["checks"]["ttft p50"]["df"] >= 2


def test_a_build_against_itself_is_not_a_breach_and_the_order_is_drawn(place: Path) -> None:
    same = server(0.02, 0.004)
    code, text = ab(place, "--a", same, "--b", same, "--slo", "ttft p50 < 2s", "--pairs", "3",
                    "--out", "out", "--seed", "5", "--one-at-a-time")  # fmt: skip
    found = verdict(place / "out")
    assert code in (0, 3, 4) and found["verdict"] != "breach", text
    if found["verdict"] != "invalid":
        starts = [run["started_at"] for run in found["runs"]]
        first = ["ab"[a > b] for a, b in zip(starts[::2], starts[1::2], strict=True)]
        assert set(first) == {"a", "b"}  # of this seed: not always the same side first
    assert list(servers_of(place)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_run_in_order_stops_the_servers_and_exits_4(
    place: Path, number: signal.Signals
) -> None:
    same = server(0.02, 0.004)
    argv = command("--a", same, "--b", same, "--slo", "ttft p50 < 2s", "--out", "out",
                   "--set", "requests=100000")  # fmt: skip
    runs = [place / f"out/pair-01-{side}/requests.jsonl.gz" for side in "ab"]
    with nothing_is_left_running():
        process = Process(argv, place, **environment(place))
        process.until(lambda: any(run.exists() and run.stat().st_size for run in runs))
        process.process.send_signal(number)
        assert process.end() == 4, process.said
    (run,) = (place / "out").glob("pair-01-*/run.json")
    assert json.loads(run.read_text())["interrupted"] is True
    assert list(servers_of(place)) == []


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--a", "serve tiny", "--b", "http://127.0.0.1:9"), "{port}"),
        (("--a", "http://127.0.0.1:9", "--b", "http://127.0.0.1:9"), "cannot reach"),
        (("--a", "sh -c 'exit 7 # {port}'", "--b", "http://127.0.0.1:9"), "ended with 7"),
        (("--a", "x:1", "--b", "x:1", "--pairs", "1"), "--pairs 1: expected"),
        (("--a", "x:1", "--b", "x:1", "--set", "x"), "KEY=VALUE"),
    ],
)
def test_a_mistake_is_told_before_anything_is_compared(
    argv: tuple[str, ...], told: str, place: Path
) -> None:
    code, text = ab(place, *argv, "--slo", "ttft p50 < 2s", "--out", "out")
    assert (code, told in text) == (2, True), text


def test_a_folder_with_pairs_in_it_is_not_mixed_with_new_ones(place: Path) -> None:
    (place / "out/pair-01-a").mkdir(parents=True)
    code, text = ab(place, "--a", "x:1", "--b", "x:1", "--slo", "chat", "--out", "out")
    assert code == 2 and "holds pairs already" in text


def test_a_port_that_is_taken_is_the_servers_own_error(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broken = f"{sys.executable} -m tests.cli.slow_server {port} 0 0 {{port}}"
        code, text = ab(place, "--a", broken, "--b", "x:1", "--slo", "chat", "--out", "out")
    assert code == 2 and "in use" in text
