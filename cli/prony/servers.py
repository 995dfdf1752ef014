"""A server to measure: a URL or a command goes in, a URL that answers comes out, and it is stopped.

Commands hold {port}; Prony gives them a free one, waits until the server is ready, and at the end
stops the process group that it started, and no other.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prony.errors import UsageError
from prony_loadgen.fetch import FetchError, fetch
from prony_loadgen.target import parse_target

STOP_WAIT = 40.0  # seconds between SIGTERM and SIGKILL; above our own server's drain
ASK_EVERY = 0.25
ASK_TIMEOUT = 5.0
# The first of these that a server knows says whether it is ready: a 404 means it does not know it.
READY = ("/ready", "/health", "/v1/models")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two builds, as the user named it."""

    name: str  # "a" or "b"
    url: str | None = None
    command: str | None = None  # with {port} in it


def parse_side(name: str, text: str) -> Side:
    """A URL or host:port is a URL; everything else a command. Raises UsageError."""
    text = text.strip()
    if re.fullmatch(r"https?://\S+|[\w.\[\]:-]+:\d+(/\S*)?", text):
        return Side(name, url=text)
    if "{port}" not in text:
        raise UsageError(
            f"--{name} {text!r}: expected a URL, or a command with {{port}} where its port goes, "
            "such as 'vllm serve MODEL --port {port}'"
        )
    try:
        shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--{name} {text!r}: {error}") from None
    return Side(name, command=text)


@contextmanager
def running(side: Side, log: Path, wait: float) -> Iterator[str]:
    """The URL of the side's server, ready for requests.

    `log` gets what the server says; `wait` is how many seconds it may take to become ready.
    Raises UsageError where it does not.
    """
    if side.command is None:
        assert side.url is not None
        yield side.url
        return
    port = _free_port()
    argv = shlex.split(side.command.replace("{port}", str(port)))
    with log.open("ab") as out:
        try:
            # In a session of its own: Ctrl-C reaches Prony, which then stops it in order.
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        except OSError as error:
            raise UsageError(f"--{side.name}: {argv[0]}: {error.strerror}") from None
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(side, process, url, log, wait)
        yield url
    finally:
        _stop(process)


def _wait_until_ready(
    side: Side, process: "subprocess.Popen[bytes]", url: str, log: Path, wait: float
) -> None:
    deadline = time.monotonic() + wait
    while not _is_ready(url):
        if process.poll() is not None:
            raise UsageError(
                f"--{side.name}: the server ended with {process.returncode} before it was ready: "
                f"{_last_line(log)} (all of it: {log})"
            )
        if time.monotonic() > deadline:
            raise UsageError(
                f"--{side.name}: the server was not ready within {wait:g} s (--wait): "
                f"{_last_line(log)} (all of it: {log})"
            )
        time.sleep(ASK_EVERY)


def _is_ready(url: str) -> bool:
    target = parse_target(url)
    for path in READY:
        try:
            status = fetch(target, path, ASK_TIMEOUT).status
        except FetchError:
            continue  # not there yet, or one that breaks off where it does not know a path
        if status not in (404, 405):
            return status == 200
    return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the group that was started; its leader may have left children behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_WAIT)
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"
