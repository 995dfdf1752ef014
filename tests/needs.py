"""What a test may miss on a machine: in goes its name; its path, or a skip with the remedy, out.

Under PRONY_REQUIRE_ALL=1 (CI) what is missing is a failure: a skipped check checked nothing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest


def needs_program(name: str) -> str:
    """The path of a program such as prometheus or chromium."""
    return shutil.which(name) or _missing(
        f"{name} is not installed (Debian: apt-get install {name})"
    )


def smollm2() -> Path:
    """A folder with SmolLM2-135M-Instruct as safetensors, made once and kept in Prony's cache."""
    cache = Path(os.environ.get("PRONY_CACHE", "~/.cache/prony")).expanduser()
    folder = cache / "models" / "smollm2-135m"
    if not (folder / "config.json").is_file():
        command = [sys.executable, "-m", "prony_server.smollm2", str(folder)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            _missing(f"SmolLM2 cannot be made here (make model): {made.stderr.strip()[-400:]}")
    return folder


def _missing(what: str) -> NoReturn:
    if os.environ.get("PRONY_REQUIRE_ALL") == "1":
        pytest.fail(what)
    pytest.skip(what)
