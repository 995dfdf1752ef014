"""Programs under test, in processes of their own: a command in, what it says and its end out."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.starting import Program

PATIENCE = 60.0  # seconds


class Process:
    """A program under test; everything that it prints goes to one file."""

    def __init__(
        self, command: list[str], folder: Path, name: str = "said", **environ: str
    ) -> None:
        self._said = folder / f"{name}.txt"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
        env = {**kept, "NO_COLOR": "1", **environ}
        self.process: subprocess.Popen[bytes] | Program
        with self._said.open("wb") as file:
            if command[:2] == [sys.executable, "-m"]:
                self.process = Program(
                    *command[2:], cwd=folder, environ=env, stdout=file, stderr=file, session=True
                )
            else:
                self.process = subprocess.Popen(
                    command,
                    cwd=folder,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=env,
                    start_new_session=True,
                )
        _STARTED.append(self)

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def end(self) -> int:
        """Its exit code; it has a minute."""
        try:
            return self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end by itself:\n{self.said}") from None

    def kill(self) -> None:
        """Whatever became of the test, neither it nor what it started is left running."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def until(self, met: Callable[[], object]) -> None:
        """Waits until `met` while the process lives."""
        deadline = time.monotonic() + PATIENCE
        while not met():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)


_STARTED: list[Process] = []


@contextmanager
def nothing_is_left_running() -> Iterator[None]:
    try:
        yield
    finally:
        while _STARTED:
            _STARTED.pop().kill()


def command_of(*words: str) -> list[str]:
    """The command that runs a module of ours: `prony run`, `locust -f`."""
    return [sys.executable, "-m", *words]


def locust(
    folder: Path, file: str | Path, *options: str, name: str = "said", **environ: str
) -> Process:
    command = [sys.executable, "-m", "locust", "-f", str(file), "--only-summary", *options]
    return Process(command, folder, name, **environ)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def fetched(port: int, path: str, form: dict[str, str] | None = None) -> str | None:
    """What a server on loopback answers; None where it does not."""
    data = None if form is None else urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=30) as answer:
            text: str = answer.read().decode()
            return text
    except (urllib.error.URLError, ConnectionError):
        return None
