"""`prony calibrate`, as people run it."""

import json
import sys
from pathlib import Path

import pytest
from tests.loadgen.locust_process import Process, nothing_is_left_running

from prony.calibrate import _reported

# A tool that asks three times, and says what it likes.
TOOL = """
import sys, urllib.request
body = b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}'
for _ in range(3):
    request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", body)
    urllib.request.urlopen(request).read()
print("P99 TTFT (ms):   250.0")
"""


def calibrate(folder: Path, *options: str) -> Process:
    command = [sys.executable, "-m", "prony", "calibrate", *options]
    return Process(command, folder, PRONY_CACHE=str(folder / "cache"), COLUMNS="100")


def test_this_machines_error_is_measured_and_kept(tmp_path: Path) -> None:
    with nothing_is_left_running():
        process = calibrate(tmp_path, "--quick")
        code = process.end()
    assert code in (0, 4), process.said  # 4: other work ran here, and no load was trusted
    assert "ceiling" in process.said and "trusted" in process.said
    files = list((tmp_path / "cache" / "calibration").glob("*.json"))
    assert bool(files) == ("kept in" in process.said)
    for file in files:
        levels = json.loads(file.read_text())["levels"]
        assert levels[0]["streams"] == 64 and levels[0]["requests"] > 50
    assert not (tmp_path / "runs").exists()


def test_another_tools_figure_is_put_beside_the_truth(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(TOOL)
    with nothing_is_left_running():
        process = calibrate(tmp_path, "--tool", f"{sys.executable} tool.py {{url}}")
        assert process.end() == 0, process.said
    assert "of 3 requests" in process.said
    assert "reported p99 TTFT  250.0 ms" in process.said
    assert "its error          +" in process.said


def test_locusts_fasthttpuser_is_a_preset(tmp_path: Path) -> None:
    with nothing_is_left_running():
        process = calibrate(tmp_path, "--tool", "fasthttpuser", "--streams", "8", "--seconds", "4")
        assert process.end() == 0, process.said
    assert "its error" in process.said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tool", "mytool"], "expected {url} in its command, or one of fasthttpuser"),
        (["--tool", "no-such-tool {url}"], "--tool no-such-tool: No such file"),
        (["--tool", "true {url}"], "--tool: it sent no request to the server (exit code 0)"),
        (["--reported", "x"], "--reported goes with --tool"),
    ],
)
def test_what_is_wrong_is_said_and_exits_2(
    tmp_path: Path, options: list[str], message: str
) -> None:
    with nothing_is_left_running():
        process = calibrate(tmp_path, *options)
        assert process.end() == 2, process.said
    assert message in process.said.replace("\n", " ")
    assert "Traceback" not in process.said


def test_the_reported_figure_is_found_where_a_line_names_it() -> None:
    assert _reported("p99 TTFT 105.250 ms\n", None) == 0.10525
    assert _reported("Mean TTFT (ms): 3.0\nP99 TTFT (ms):     1,205.5\n", None) == 1.2055
    assert _reported("TTFT p50 20.1 ms p99 98.0 ms", None) == 0.098
    assert _reported("latency 12", None) is None
    assert _reported("first byte at the 99th: 42 ms", r"99th: (\d+)") == 0.042
