"""One run, from an agreed plan to a judged folder: requests go in, run.json and records come out.

A Session knows neither Locust nor greenlets. Whoever drives it submits requests, calls
`take_records` whenever it was woken, and at the end `stop_sending`, waits, `close` and `judge`.
"""

import gc
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from prony_loadgen.account import Flow, Sending, account
from prony_loadgen.client import Client, ClientError, Request
from prony_loadgen.folder import RunFolder
from prony_loadgen.record import RequestRecord
from prony_loadgen.recorder import Recorder
from prony_loadgen.settings import Settings

# Handing requests over before zero lets the first ones be on time.
HEAD_START = 0.3


class Session:
    """A run that goes on."""

    def __init__(self, settings: Settings, wake: Callable[[], None]) -> None:
        """`wake` is called in the client's thread whenever a record waits to be taken."""
        self.settings = settings
        self.flow = Flow()
        self.interrupted = False
        self.stopped_early: str | None = None
        self.failure: Exception | None = None  # ours: a full disk, a broken client
        self._wake = wake
        self._arrived: deque[RequestRecord] = deque()
        self._sendings: list[Sending] = []
        self._stopped_at: float | None = None
        self._started_at = datetime.now(UTC)
        # Whatever takes a while comes before the clock is set.
        self.folder = RunFolder.create(settings.out, settings.name)
        self._recorder = Recorder(self.folder.requests)
        self._quiet_process = _QuietProcess()
        self._cpu, self._wall = time.process_time(), time.monotonic()
        ahead = HEAD_START if settings.loop == "open" else 0.0
        self.origin, self.origin_unix = time.monotonic() + ahead, time.time() + ahead
        # A crash leaves this: no end, marked interrupted.
        self.folder.write_run({**self._facts(), "interrupted": True})
        self._client = Client(settings.target, origin=self.origin, on_record=self._on_record)
        self._client.start()

    def now(self) -> float:
        """Seconds on the run's clock."""
        return time.monotonic() - self.origin

    @property
    def sending(self) -> bool:
        """Whether requests may still be submitted."""
        return self._stopped_at is None

    @property
    def in_flight(self) -> int:
        return self._client.in_flight

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and nothing waits to be sent."""
        return not self._client.outstanding

    @property
    def unsent(self) -> int:
        """How many were submitted and wait for their time."""
        return self._client.unsent

    def submit(self, request: Request) -> None:
        """Hands `request` to the client. A client that is broken ends the run."""
        try:
            self._client.submit(request)
        except ClientError as error:
            self._fail(error)
        if self.settings.metrics is not None:
            self.settings.metrics.offered()

    def take_records(self) -> list[RequestRecord]:
        """The records since the last call, after they were written, counted and watched.

        A failure of ours (a full disk) stops the run and is raised by `judge`.
        """
        records = []
        while self._arrived:
            record = self._arrived.popleft()
            records.append(record)
            self.flow.add(record)
            self._sendings.append(Sending.of(record))
            self._write(record)
            for observe in self.settings.observers:
                observe(record)
            if self.settings.metrics is not None:
                self.settings.metrics.observe(record)
            if self.sending and (reason := self.settings.judge.breached(record)):
                self.stopped_early = reason
                self.stop_sending()
        return records

    def tick(self) -> None:
        """Once a second or so: what must also happen while no record comes."""
        if self.settings.metrics is not None:
            self.settings.metrics.in_flight(self.in_flight)
        if self.failure is None:
            self._guarded(self._recorder.flush_if_due)

    def stop_sending(self) -> None:
        """Ends the load: nothing more is sent, what is in flight goes on."""
        if self._stopped_at is None:
            self._stopped_at = self.now()
            self._client.cancel_unsent()

    def close(self) -> list[RequestRecord]:
        """Ends what is in flight and writes run.json; returns the last records."""
        self.stop_sending()
        self._quiet_process.restore()
        try:
            self._client.close(0.0)
        except ClientError as error:
            self._fail(error)
        records = self.take_records()
        self._guarded(self._recorder.close)
        cpu = (time.process_time() - self._cpu) / max(time.monotonic() - self._wall, 1e-9)
        facts = self._facts()
        facts["ended_at"] = _iso(datetime.now(UTC))
        facts["client"] = {"cpu_share": round(cpu, 4), "seconds": round(self.now(), 3)}
        facts["interrupted"] = self.interrupted or self.failure is not None
        self.folder.write_run(facts)
        return records

    def judge(self) -> int:
        """The exit code of the closed run. Raises what failed on our side: that is not judged."""
        if self.failure is not None:
            raise self.failure
        return self.settings.judge.finish(self.folder)

    def _on_record(self, record: RequestRecord) -> None:
        self._arrived.append(record)
        self._wake()

    def _write(self, record: RequestRecord) -> None:
        if self.failure is None:
            self._guarded(lambda: self._recorder.add(record))

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self.stop_sending()

    def _window(self) -> tuple[float, float]:
        """When measuring began and ended, on the run's clock."""
        stopped = self.now() if self._stopped_at is None else self._stopped_at
        end = stopped if self.settings.ends is None else min(self.settings.ends, stopped)
        start = min(self.settings.warmup, max(end, 0.0))
        return start, max(end, start)

    def _facts(self) -> dict[str, Any]:
        settings = self.settings
        window = self._window()
        return {
            "schema": 1,
            "prony": version("prony"),
            "run_id": settings.run_id,
            "scenario": dict(settings.facts),
            "target": {
                "url": settings.target.url,
                "model": settings.form.model,
                "dialect": settings.form.dialect,
            },
            "seed": settings.seed,
            "started_at": _iso(self._started_at),
            "origin_unix": self.origin_unix,
            "ended_at": None,
            "interrupted": self.interrupted,
            "stopped_early": self.stopped_early,
            "loop": settings.loop,
            "window": [round(edge, 6) for edge in window],
            "schedule": account(
                self._sendings, window, schedule=settings.schedule, planned=settings.plan.measured
            ),
            "host": _host(),
            "versions": _versions(),
            "client": {},
        }


class _QuietProcess:
    """While requests are timed, the interpreter does nothing long that could be done later."""

    def __init__(self) -> None:
        self._interval = sys.getswitchinterval()
        # The client's thread waits for the interpreter at most this long, not 5 ms.
        sys.setswitchinterval(0.0005)
        # What was imported so far is never garbage: a full collection over it takes 50 ms.
        gc.collect()
        gc.freeze()

    def restore(self) -> None:
        sys.setswitchinterval(self._interval)
        gc.unfreeze()


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _host() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "usable_cpus": usable,
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _versions() -> dict[str, str]:
    packages = ("locust", "gevent", "httptools")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
