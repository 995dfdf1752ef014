"""benchmarks/overhead.py prints its figures as JSON in its last line."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "overhead.py"


def test_the_last_line_holds_the_cost() -> None:
    command = [sys.executable, str(SCRIPT), "--only", "tiny", "--pairs", "1", "--tokens", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    # No measurement: the machine may be busy. But what was asked for was done.
    assert -1 < figures["instrumentation_cost_tiny"] < 10
    assert figures["instrumentation_us_per_request_tiny"] < 1e6
    assert (figures["pairs_tiny"], figures["batch"], figures["output_tokens"]) == (4, 8, 8)
