"""The wheel in an empty venv, without extras, outside the repository: runs, judges, reports."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.servers import serving

ROOT = Path(__file__).parents[2]
LIMIT_MB = 350


def test_the_wheel_without_torch_runs_judges_and_reports(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    call([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)])
    wheel = next(tmp_path.glob("prony-*.whl"))
    # --without-pip, so that the size is that of what Prony brings; the outer pip installs into it.
    call([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")])
    python = tmp_path / "venv" / "bin" / "python"
    install = [*pip, "--python", str(python), "install", "--quiet"]
    call([*install, "-c", str(ROOT / "constraints.txt"), str(wheel)])

    megabytes = size(tmp_path / "venv") / 1e6
    print(f"installed without extras: {megabytes:.0f} MB")
    assert megabytes < LIMIT_MB
    assert not list(tmp_path.glob("venv/lib/*/site-packages/torch"))

    prony = str(python.with_name("prony"))
    out = tmp_path / "out"
    with serving("tiny", "--torch-threads", "1") as url:
        command = ["run", "chat", "--target", url, "--slo", "chat", "--out", str(out)]
        code = call(
            [prony, *command, "--requests", "60", "--rate", "20"], expect=None, cwd=tmp_path
        )
    run = json.loads((out / "run.json").read_text())
    assert code == run["exit_code"] and code in (3, 4)  # 60 requests cannot show 1 % errors
    assert run["summary"]["requests"]["ok"] == 60
    (out / "report.html").unlink()
    assert call([prony, "gate", str(out), "--slo", "chat"], expect=None, cwd=tmp_path) == code
    assert call([prony, "gate", str(out), "--slo", "ttft p50 < 60s"], expect=None) in (0, 4)
    call([prony, "report", str(out)], cwd=tmp_path)
    assert (out / "report.html").exists()
    refused = subprocess.run([prony, "serve", "tiny"], capture_output=True, text=True)
    assert refused.returncode == 2 and "prony[server]" in refused.stderr


def call(command: list[str], *, expect: int | None = 0, cwd: Path | None = None) -> int:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert expect is None or done.returncode == expect, done.stdout + done.stderr
    return done.returncode


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
