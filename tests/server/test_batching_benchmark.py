"""Benchmarks of the scheduler print their figures as JSON in their last line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def figures_of(script: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / script), *options, "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_batching_tells_both_ratios() -> None:
    figures = figures_of("batching.py")
    # Far under what is measured: this is no measurement, the machine may be busy.
    assert figures["continuous_over_static_tokens"] > 0.5
    assert figures["static_over_continuous_ttft"] > 0.5
    assert (figures["model"], figures["pairs"], figures["threads"]) == ("tiny", 1, 1)


def test_prefill_gap_tells_the_longest_gap_and_the_chunk_alone() -> None:
    figures = figures_of("prefill_gap.py", "--quick", "--chunk", "2048")
    assert (figures["prompt_tokens"], figures["chunks"], figures["streams"]) == (8000, 4, 8)
    # Not under 2, as is measured where it is quiet: the machine may be busy.
    assert figures["max_gap_over_chunk_step"] > 0
    assert figures["max_gap_ms"] > 0
