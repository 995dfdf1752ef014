"""The engine runs where only torch and transformers are, and the scripts that measure it run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# What a GPU machine for benchmarks/gpu_check.sh is promised to have.
BARE = """
import sys
import torch, transformers
from transformers import AttentionInterface, LlamaForCausalLM

class Block:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in sys.stdlib_module_names | {"torch", "transformers", "prony_server"}:
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Block())
from prony_server import (
    attention, blocks, calibrate, compiling, engine, graphs, quantize, runner, sampler, scheduler
)
"""


def test_the_engine_needs_torch_and_transformers_alone() -> None:
    subprocess.run([sys.executable, "-c", BARE], check=True)


def figures_of(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_the_gpu_check_runs_to_its_end_on_a_cpu() -> None:
    figures = figures_of(["bash", str(ROOT / "benchmarks/gpu_check.sh"), "--small"])
    assert (figures["failed"], figures["skipped"]) == ({}, [])
    for dtype in ("float32", "bfloat16"):
        assert figures["equality"][dtype]["wrong"] == 0
    assert set(figures["decode"]) == {"1", "8"}
    assert figures["over_hf_cb"] > 0
    assert figures["ttft_long_prompt_s"]["alone"] > 0


def test_the_gpu_check_without_a_gpu_says_so() -> None:
    command = ["bash", str(ROOT / "benchmarks/gpu_check.sh")]
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "gpu_check: torch finds no CUDA device; --small tries it on the CPU"
    )


@pytest.mark.parametrize(
    ("script", "options", "names"),
    [
        (
            "engine.py",
            ["--quick", "--tiny", "--threads", "1"],
            {"over_hf_cb", "over_sequential", "over_static", "host_share_32", "step_over_gemm_8"},
        ),
        (
            "quantization.py",
            ["--quick", "--model", "tiny", "--threads", "1"],
            {
                "int8_memory",
                "int8_speed",
                "int8_kl",
                "int4_of_64_agreement",
                "int4_of_64_calibrated_kl",
            },
        ),
    ],
)
def test_a_benchmark_ends_with_its_figures(
    script: str, options: list[str], names: set[str]
) -> None:
    figures = figures_of([sys.executable, str(ROOT / "benchmarks" / script), *options])
    assert names <= set(figures)
    assert all(figures[name] is not None for name in names)
