"""The reference server as its users start it: a command line in, the URL of a process out."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """`prony serve ARGUMENTS` on a free port, from ready until it was stopped (exit 0)."""
    command = [sys.executable, "-m", "prony", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready "), process.communicate()[1]
        yield line.split()[1]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
