"""One process, one server after another: settings come in by lines of JSON, URLs go out.

For quizzes, benchmarks and tests that compare many configurations. Loading torch takes seconds and
a server of the tiny model tenths, so the process stays and the servers change. `InTurn` is the side
that asks; `python -m prony_server.in_turn` is the side that serves.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry

from prony_server.app import ServeError, Stop, run
from prony_server.config import ServeConfig
from prony_server.faults import parse_all


class InTurn:
    """A process that serves as asked, again and again: `url = it.start(inject=["slots=1"])`."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prony_server.in_turn"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def start(self, **settings: Any) -> str:
        """Ends the server before, starts one of these settings, and returns its URL.

        Settings are ServeConfig's, with `inject` as texts; without `model`, tiny; without `port`, a
        free one. Raises ServeError.
        """
        return self._ask(settings)

    def stop(self) -> None:
        """Ends the server; its process stays for the next."""
        self._ask(None)

    def _ask(self, settings: dict[str, Any] | None) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(settings), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise ServeError("the process of the servers has ended")
        word, _, rest = answer.strip().partition(" ")
        if word == "error":
            raise ServeError(rest)
        return rest

    @property
    def pid(self) -> int:
        return self._process.pid

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # it ends when nobody can ask any more
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class _Running:
    """One server in a thread with a loop of its own."""

    def __init__(self, config: ServeConfig) -> None:
        self._started: Future[str] = Future()
        self._config = config
        self._stop = Stop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="server")
        self._thread.start()
        self.url = self._started.result()

    def end(self) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stop.signalled)
        self._thread.join()

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry()
        ready = self._started.set_result
        await run(self._config, registry=registry, tracer=None, ready=ready, stop=self._stop)


def _config(given: dict[str, Any]) -> ServeConfig:
    settings = {"model": "tiny", "port": 0, "drain_seconds": 0.0, **given}
    settings["inject"] = parse_all(settings.get("inject", ()), "inject")
    if "profile_dir" in settings:
        settings["profile_dir"] = Path(settings["profile_dir"])
    return ServeConfig(**settings)


def _give_memory_back() -> None:
    """What one server had used would hide what the next one takes more and more of."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    """Serves what stdin says, line after line, until it ends."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    running: _Running | None = None
    for line in sys.stdin:
        if running is not None:
            running.end()
            running = None
            _give_memory_back()
        given = json.loads(line)
        if given is None:
            print("stopped", flush=True)
            continue
        try:
            running = _Running(_config(given))
            answer = f"ready {running.url}"
        except (ServeError, ValueError, TypeError) as error:
            answer = f"error {error}".replace("\n", " ")
        print(answer, flush=True)
    if running is not None:
        running.end()


if __name__ == "__main__":
    main()
