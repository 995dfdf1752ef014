"""benchmarks/batching.py prints its figures as JSON in its last line."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "batching.py"


def test_the_last_line_holds_both_ratios() -> None:
    command = [sys.executable, str(SCRIPT), "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    # Far under what is measured: this is no measurement, the machine may be busy.
    assert figures["continuous_over_static_tokens"] > 0.5
    assert figures["static_over_continuous_ttft"] > 0.5
    assert (figures["model"], figures["pairs"], figures["threads"]) == ("tiny", 1, 1)
