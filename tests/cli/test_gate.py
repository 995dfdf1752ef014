"""`prony gate`: files for CI, several runs together, policies, and looks at the SLO alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.synthetic_run import synthetic_run
from tests.starting import run_program

from prony_loadgen.folder import RunFolder
from prony_loadgen.record import RequestRecord
from prony_loadgen.recorder import Recorder
from prony_slo.verdict_file import Verdict

KEPT, BROKEN, UNCLEAR = "ttft p50 < 5s", "ttft p50 < 1ms", "ttft p99 < 5s"


def folder_of(path: Path, facts: dict[str, Any], records: list[RequestRecord]) -> Path:
    """A run folder with these facts and records, as `prony run` leaves it."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    recorder = Recorder(folder.requests)
    for record in records:
        recorder.add(record)
    recorder.close()
    folder.write_run(facts)
    return path


@pytest.fixture
def made(tmp_path: Path) -> Path:
    facts, records = synthetic_run(failures=0.0, slo=())
    return folder_of(tmp_path / "one", facts, records)


def gate(*argv: str | Path, cwd: Path, **environ: str) -> tuple[int, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    done = run_program("prony", *argv, cwd=cwd, environ={**clean, **environ})
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def verdict(folder: Path) -> dict[str, Any]:
    text = (folder / "verdict.json").read_text()
    Verdict.model_validate_json(text)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize(
    ("slo", "word", "code"),
    [(KEPT, "pass", 0), (BROKEN, "breach", 1), (UNCLEAR, "inconclusive", 3)],
)
def test_the_verdict_stands_in_a_file_beside_the_run(
    slo: str, word: str, code: int, made: Path, tmp_path: Path
) -> None:
    facts, records = synthetic_run(failures=0.0, slo=(), requests=150)
    short = folder_of(tmp_path / "short", facts, records)
    assert gate("gate", short, "--slo", slo, cwd=tmp_path)[0] == code
    found = verdict(short)
    assert (found["verdict"], found["exit_code"]) == (word, code)
    assert found["runs"][0]["run_id"] == facts["run_id"]
    assert (short / "junit.xml").read_text().startswith("<?xml")


def test_q05_a_pipe_that_loses_the_code_still_has_the_verdict(made: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m prony gate {made} --slo '{BROKEN}'"
    lost = subprocess.run(f"{command} | tee log", shell=True, cwd=tmp_path, capture_output=True)
    assert lost.returncode == 0
    assert verdict(made)["exit_code"] == 1
    kept = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | tee log"], cwd=tmp_path, capture_output=True
    )
    assert kept.returncode == 1
    assert "BREACH" in (tmp_path / "log").read_text()


def test_a_policy_is_for_ci_that_knows_only_red_and_green(tmp_path: Path) -> None:
    facts, records = synthetic_run(failures=0.0, slo=(), requests=150)
    short = folder_of(tmp_path / "short", facts, records)
    unclear = ("gate", short, "--slo", UNCLEAR)
    assert gate(*unclear, "--inconclusive", "pass", cwd=tmp_path)[0] == 0
    assert verdict(short)["verdict"] == "inconclusive"
    assert gate(*unclear, "--inconclusive", "fail", cwd=tmp_path)[0] == 1
    assert (
        gate(*unclear, "--inconclusive", "fail", "--exit-code-breach", "99", cwd=tmp_path)[0] == 99
    )
    assert gate("gate", short, "--slo", BROKEN, "--exit-code-breach", "99", cwd=tmp_path)[0] == 99
    code, text = gate("gate", short, "--slo", BROKEN, "--exit-code-breach", "3", cwd=tmp_path)
    assert code == 2 and "--exit-code-breach must be 1 or from 5 to 125" in text


def test_several_runs_are_judged_as_one_longer_one(tmp_path: Path) -> None:
    folders = []
    for seed in (1, 2, 3):
        facts, records = synthetic_run(seed=seed, failures=0.0, slo=(), requests=150)
        folders.append(folder_of(tmp_path / f"run{seed}", facts, records))
    assert gate("gate", folders[0], "--slo", UNCLEAR, cwd=tmp_path)[0] == 3
    code, text = gate("gate", *folders, "--slo", UNCLEAR, "--out", "all", cwd=tmp_path)
    found = verdict(tmp_path / "all")
    assert (code, found["verdict"]) == (0, "pass"), text
    assert len(found["runs"]) == 3
    assert found["objectives"][0]["n"] > 300
    assert "Prony: PASS" in (tmp_path / "all/summary.md").read_text()
    # Nobody judged the runs alone here, so theirs is what it was.
    assert not (folders[1] / "verdict.json").exists()


def test_runs_of_another_load_are_not_judged_together(tmp_path: Path) -> None:
    folders = []
    for name, loop in (("open", "open"), ("closed", "closed")):
        facts, records = synthetic_run(loop=loop, slo=())
        facts["scenario"] = {**facts["scenario"], "arrivals": {"loop": loop}}
        folders.append(folder_of(tmp_path / name, facts, records))
    code, text = gate("gate", *folders, "--slo", UNCLEAR, "--out", "all", cwd=tmp_path)
    assert code == 2
    assert "closed: another load than" in text and "judge these one by one" in text
    assert not (tmp_path / "all").exists()


def test_without_out_the_verdict_on_several_is_in_a_new_folder(made: Path, tmp_path: Path) -> None:
    assert gate("gate", made, made, "--slo", KEPT, cwd=tmp_path)[0] == 0
    (folder,) = (tmp_path / "runs").glob("*-gate")
    assert verdict(folder)["verdict"] == "pass"


def test_on_github_the_summary_is_appended_and_each_objective_annotated(
    made: Path, tmp_path: Path
) -> None:
    (tmp_path / "ci").mkdir()
    slo = tmp_path / "ci/gate.yaml"
    slo.write_text("objectives:\n  - {id: fast, good: {ttft: 1ms}, at_least: 50%}\n"
                   "  - {id: fine, good: {ttft: 5s}, at_least: 50%}\n")  # fmt: skip
    (tmp_path / "summary").write_text("before\n")
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
              "GITHUB_WORKSPACE": str(tmp_path)}  # fmt: skip
    code, text = gate("gate", made, "--slo", "gate.yaml", cwd=tmp_path / "ci", **github)
    assert code == 1
    lines = [line for line in text.splitlines() if line.startswith("::")]
    assert len(lines) == 1
    assert lines[0].startswith("::error file=ci/gate.yaml,line=2,title=Prony%3A fast::BREACH")
    summary = (tmp_path / "summary").read_text()
    assert summary.startswith("before\n## ") and "| 🔴 BREACH | fast |" in summary


def test_elsewhere_nothing_of_github_is_printed(made: Path, tmp_path: Path) -> None:
    assert "::error" not in gate("gate", made, "--slo", BROKEN, cwd=tmp_path)[1]


def test_check_says_what_is_promised_or_every_mistake(tmp_path: Path) -> None:
    code, text = gate("gate", "--check", "chat", cwd=tmp_path)
    assert code == 0 and "ok: 3 objective(s)" in text and "ttft <= 500 ms for 95 %" in text
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "objectives:\n  - {id: a, metric: tfft, percentile: 99, at_most: 1s}\n"
        "  - {id: a, good: {ttft: 500}, at_least: 100%}\n"
    )
    code, text = gate("gate", "--check", wrong, cwd=tmp_path)
    assert code == 2
    assert "wrong.yaml:2" in text and "did you mean 'ttft'" in text
    assert "wrong.yaml:3" in text and "needs a unit" in text


def test_lint_finds_what_the_planned_requests_cannot_decide(tmp_path: Path) -> None:
    assert gate("gate", "--lint", "chat", "--scenario", "chat", cwd=tmp_path)[0] == 0
    code, text = gate("gate", "--lint", "tutorial", "--scenario", "chat", cwd=tmp_path)
    assert code == 2
    assert "errors: needs at least 2,995 measured requests to be met, chat has 320" in text
    assert gate("gate", "--lint", "chat", cwd=tmp_path)[0] == 2


def test_lint_finds_a_share_of_wrong_answers_where_none_is_expected(tmp_path: Path) -> None:
    (tmp_path / "right.yaml").write_text(
        "objectives:\n  - {id: right, metric: mismatch_share, at_most: 12%}\n"
    )
    code, text = gate("gate", "--lint", "right.yaml", "--scenario", "chat", cwd=tmp_path)
    assert code == 2
    assert "right.yaml:2: right: no prompt of chat expects an answer" in text
    assert gate("gate", "--lint", "right.yaml", "--scenario", "sanity", cwd=tmp_path)[0] == 0


def test_the_self_test_shows_a_gate_that_fails(tmp_path: Path) -> None:
    code, text = gate("gate", "--self-test", "--slo", "chat", cwd=tmp_path)
    assert code == 0
    assert "a run that breaks errors: breach, exit 1" in text


def test_a_run_and_a_look_at_the_slo_alone_exclude_each_other(made: Path, tmp_path: Path) -> None:
    code, text = gate("gate", made, "--check", "chat", cwd=tmp_path)
    assert code == 2 and "judge no run" in text
