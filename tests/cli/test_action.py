"""The GitHub action: its scripts are run here as GitHub would, with a real server."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
SERVER = f"{sys.executable} -m tests.cli.slow_server"


class Job:
    """A GitHub job's folder and environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = {name: str(about.get("default", "")) for name, about in
                       ACTION["inputs"].items()}  # fmt: skip
        (folder / "output").touch()

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        """Runs a step's script with the inputs that it names."""
        step = STEPS[name]
        filled = {key: self._filled(str(value)) for key, value in step.get("env", {}).items()}
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.folder),
        }
        return subprocess.run(
            # The shell of `shell: bash` in an action.
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder, env={**environment, **filled}, capture_output=True, text=True,
        )  # fmt: skip

    def _filled(self, value: str) -> str:
        for name, found in self.inputs.items():
            value = value.replace(f"${{{{ inputs.{name} }}}}", found)
        return value


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def free_port() -> int:
    from prony.servers import _free_port

    return _free_port()


def test_no_input_reaches_a_script_as_text() -> None:
    """`${{ inputs.x }}` inside a script would run what a pull request's title says."""
    for step in STEPS.values():
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("name", [name for name, step in STEPS.items() if "run" in step])
def test_every_script_is_bash(name: str) -> None:
    checked = subprocess.run(["bash", "-n", "-c", STEPS[name]["run"]], capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_the_run_is_uploaded_and_the_server_stopped_whatever_happened() -> None:
    for name in ("Upload the run", "Stop the server", "Read the verdict",
                 "Comment on the pull request"):  # fmt: skip
        assert STEPS[name]["if"].startswith("always()")


def test_a_server_is_started_waited_for_loaded_judged_and_stopped(job: Job) -> None:
    port = free_port()
    job.inputs |= {
        "slo": "ttft p50 < 1us", "start": f"{SERVER} {port} 0.01 0",
        "target": f"http://127.0.0.1:{port}/v1", "out": "out",
        "args": "--rate 30 --requests 40 --warmup 0s --header 'X-Team: a b'",
    }  # fmt: skip
    assert job.step("Start the server").returncode == 0
    waited = job.step("Wait for the server")
    assert waited.returncode == 0, waited.stdout
    loaded = job.step("Load and judge")
    job.step("Read the verdict")
    output = (job.folder / "output").read_text()
    if "verdict=invalid" in output:  # this machine was too busy to measure, and that was noticed
        assert loaded.returncode == 4
    else:
        assert loaded.returncode == 1, loaded.stdout + loaded.stderr
        assert "verdict=breach\nexit-code=1\n" in output
    assert "::error" in loaded.stdout
    assert (job.folder / "summary").read_text().startswith("## ")
    assert (job.folder / "out/summary.md").exists()
    pid = int((job.folder / "prony-server.pid").read_text())
    job.step("Stop the server")
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and not _is_zombie(pid):
        assert time.monotonic() < deadline, "the server was not stopped"
        time.sleep(0.01)


def test_a_server_that_ends_is_told_with_what_it_said(job: Job) -> None:
    job.inputs |= {"start": "echo no such model; exit 3", "target": "http://127.0.0.1:9"}
    job.step("Start the server")
    waited = job.step("Wait for the server")
    assert waited.returncode == 2
    assert "the server ended before it was ready" in waited.stdout
    assert "no such model" in waited.stdout


def test_a_server_that_never_answers_is_given_up(job: Job) -> None:
    job.inputs |= {"start": "sleep 600", "target": "http://127.0.0.1:9", "wait-seconds": "1"}
    job.step("Start the server")
    waited = job.step("Wait for the server")
    job.step("Stop the server")
    assert waited.returncode == 2 and "not ready in time" in waited.stdout


def test_the_policy_is_handed_on_and_report_is_none(job: Job) -> None:
    port = free_port()
    job.inputs |= {"slo": "ttft p99 < 5s", "start": f"{SERVER} {port} 0 0", "out": "out",
                   "target": f"http://127.0.0.1:{port}", "inconclusive": "pass",
                   "args": "--rate 30 --requests 40 --warmup 0s"}  # fmt: skip
    job.step("Start the server")
    job.step("Wait for the server")
    loaded = job.step("Load and judge")
    job.step("Stop the server")
    found = json.loads((job.folder / "out/verdict.json").read_text())
    assert found["policy"]["inconclusive"] == "pass"
    assert loaded.returncode == (4 if found["verdict"] == "invalid" else 0)


def test_the_workflow_of_the_documentation_is_yaml_and_names_real_inputs() -> None:
    text = (ROOT / "docs/ci.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    workflow = yaml.safe_load(next(block for block in blocks if "on: pull_request" in block))
    step = workflow["jobs"]["gate"]["steps"][-1]
    assert set(step["with"]) <= set(ACTION["inputs"])
    lines = next(b for b in blocks if "on: pull_request" in b).strip().splitlines()
    assert len(lines) <= 16
    gitlab = yaml.safe_load(next(block for block in blocks if "image:" in block))
    assert gitlab["latency"]["artifacts"]["when"] == "always"


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
