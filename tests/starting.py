"""Our own programs as people start them, each in a process of its own, without waiting for imports.

A start of `python -m prony` or `python -m locust` spends one to three seconds on imports. Here a
process that has imported them forks itself for each start (forker.py). tests/e2e starts programs
the long way, and so does whatever is about the start itself.
"""

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Self

from tests.forker import LENGTH, TOLD

ROOT = Path(__file__).parents[1]
PATIENCE = 240.0  # seconds


class Program:
    """A running program of ours; as much of subprocess.Popen as tests need."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        cwd: Path,
        environ: Mapping[str, str] | None = None,
        stdout: IO[bytes],
        stderr: IO[bytes],
        session: bool = False,
        file_size: int | None = None,
    ) -> None:
        """`python -m MODULE ARGUMENTS`; `environ` is all of its environment.

        `session`: in a session of its own. `file_size`: no file can grow beyond so many bytes.
        """
        self.returncode: int | None = None
        self._status, told = os.pipe()
        request = {
            "module": module,
            "arguments": arguments,
            "cwd": str(cwd),
            "environ": dict(os.environ if environ is None else environ),
            "session": session,
            "file_size": file_size,
        }
        data = json.dumps(request).encode()
        asking = _forker(_kind(module, arguments))
        with Path(os.devnull).open("rb") as nothing:
            files = [nothing.fileno(), stdout.fileno(), stderr.fileno(), told]
            handed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("4i", *files))
            asking.sendmsg([LENGTH.pack(len(data))], [handed])
            asking.sendall(data)
        os.close(told)
        self.pid = self._told()

    def poll(self) -> int | None:
        """Its exit code, -N where signal N ended it; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _told(self) -> int:
        data = os.read(self._status, TOLD.size)
        assert data, "the process that starts programs has ended"
        number: int = TOLD.unpack(data)[0]
        return number

    def _end(self) -> None:
        self.returncode = self._told()
        os.close(self._status)


def run_program(
    module: str,
    *arguments: str | Path,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    file_size: int | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Runs `python -m MODULE ARGUMENTS` to its end and returns its code and what it said."""
    words = [str(each) for each in arguments]
    with _Heard() as out, _Heard() as err:
        program = Program(
            module, *words, cwd=cwd or Path.cwd(), environ=environ, stdout=out.end, stderr=err.end,
            file_size=file_size,
        )  # fmt: skip
        out.end.close()
        err.end.close()
        try:
            code = program.wait(PATIENCE)
        finally:
            program.kill()
    return subprocess.CompletedProcess([module, *words], code, out.text, err.text)


class _Heard:
    """A pipe that is read to its end, while its other end is somebody's output."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.end = os.fdopen(writing, "wb")
        self.text = ""
        self._reading = os.fdopen(reading, errors="backslashreplace")
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.close()
        self._thread.join()

    def _read(self) -> None:
        with self._reading:
            self.text = self._reading.read()


def _kind(module: str, arguments: tuple[str, ...]) -> str:
    """Which imports it needs."""
    if module == "locust" or arguments[:1] == ("run",):
        return "locust"
    return "serve" if arguments[:1] == ("serve",) else "prony"


@cache
def _forker(kind: str) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forker", kind, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], cwd=ROOT, stdin=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a fork takes no threads along
        )  # fmt: skip

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
