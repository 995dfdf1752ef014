"""Answers that changed are noticed: references of a server, and later builds held to them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.locust_process import Process, command_of, nothing_is_left_running

from prony.__main__ import main
from prony_server.in_turn import InTurn

PROMPTS = [f"Tell me about the number {number}." for number in range(12)]


@pytest.fixture(scope="module")
def server() -> Iterator[InTurn]:
    with nothing_is_left_running(), InTurn() as server:
        yield server


def prompts_file(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    rows = [{"prompt": text, "output_tokens": 24} for text in PROMPTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scenario_file(folder: Path, temperature: float) -> Path:
    path = folder / f"at-{temperature}.yaml"
    scenario = {
        "prompts": {"file": "expected.jsonl"},
        "arrivals": {"process": "closed", "users": 4},
        "warmup": "0s",
        "requests": 60,
        "extra_body": {"temperature": temperature},
    }
    path.write_text(json.dumps(scenario))  # JSON is YAML too
    return path


SLO = "objectives: [{id: same, metric: mismatch_share, at_most: 10%}]\n"


def judged(folder: Path, scenario: Path, url: str, out: str) -> tuple[int, dict[str, Any]]:
    command = command_of("prony", "run", str(scenario), "--target", url, "--slo", "same.yaml",
                         "--out", out, "--quiet")  # fmt: skip
    process = Process(command, folder, out)
    code = process.end()
    verdict = folder / out / "verdict.json"
    assert verdict.exists(), process.said
    return code, json.loads(verdict.read_text())


def test_another_temperature_and_int4_weights_each_fail_the_objective_that_the_same_build_meets(
    server: InTurn, tmp_path: Path
) -> None:
    (tmp_path / "same.yaml").write_text(SLO)
    url = server.start()
    expected = tmp_path / "expected.jsonl"
    kept = main(["references", str(prompts_file(tmp_path)), "--target", url,
                 "--out", str(expected)])  # fmt: skip
    assert kept == 0
    rows = [json.loads(line) for line in expected.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == PROMPTS
    assert all(row["reference"] and row["output_tokens"] == 24 for row in rows)

    greedy, warm = scenario_file(tmp_path, 0.0), scenario_file(tmp_path, 1.0)
    code, found = judged(tmp_path, greedy, url, "same")
    assert (code, found["verdict"]) == (0, "pass")
    code, found = judged(tmp_path, warm, url, "warm")
    assert (code, found["verdict"]) == (1, "breach")
    code, found = judged(tmp_path, greedy, server.start(quantize="int4"), "int4")
    assert (code, found["verdict"]) == (1, "breach")
    [objective] = found["objectives"]
    assert objective["id"] == "same" and objective["verdict"] == "breach"
