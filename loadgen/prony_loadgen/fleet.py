"""Worker processes of `prony run --processes`: a master's address in, running workers out.

They end with the `with` block, and also where this process dies: each watches a pipe from it.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Self

import gevent

from prony_loadgen.strict_yaml import FileError

CONNECT_WITHIN = 60.0  # seconds for all of them; each imports Locust first
END_WITHIN = 5.0


class Fleet:
    """So many processes of `python -m prony_loadgen.fleet HOST PORT`."""

    def __init__(self, host: str, port: int, processes: int) -> None:
        self._command = [sys.executable, "-m", "prony_loadgen.fleet", host, str(port)]
        self._wanted = processes
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for _ in range(self._wanted):
            # In a session of their own: a Ctrl-C in the terminal is the master's to act on.
            process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
            self._processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + END_WITHIN
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        while time.monotonic() < deadline and any(p.poll() is None for p in self._processes):
            gevent.sleep(0.02)
        for process in self._processes:
            process.kill()
            process.wait()

    def wait_until(self, connected: Callable[[], bool]) -> None:
        """Returns when all are there. Raises FileError where one ends before, or none comes."""
        deadline = time.monotonic() + CONNECT_WITHIN
        while not connected():
            ended = [p.returncode for p in self._processes if p.poll() is not None]
            if ended:
                raise FileError([f"--processes: a worker process ended at once, code {ended[0]}"])
            if time.monotonic() > deadline:
                raise FileError([f"--processes: no connection within {CONNECT_WITHIN:g} s"])
            gevent.sleep(0.02)


def _end_with_the_master() -> None:
    """Ends this process when its stdin does."""
    import os

    from gevent.os import tp_read

    while tp_read(0, 1):
        pass
    os._exit(0)


def main() -> None:
    """One worker process: HOST PORT of its master on the command line."""
    from prony_loadgen.locust_user import work

    gevent.spawn(_end_with_the_master)
    work(sys.argv[1], int(sys.argv[2]))


if __name__ == "__main__":
    main()
