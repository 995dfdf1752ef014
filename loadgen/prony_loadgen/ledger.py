"""A run folder while it is filled: records go in, then how the run ended; an exit code comes out.

It is the same for a run in one process and for one whose workers send their records.
"""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Protocol

from prony_loadgen.account import Sending, account
from prony_loadgen.folder import RunFolder
from prony_loadgen.record import RequestRecord
from prony_loadgen.recorder import Recorder, unpacked
from prony_loadgen.settings import Settings
from prony_loadgen.strict_yaml import FileError


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run came to its end."""

    window: tuple[float, float]  # when measuring began and ended, on the run's clock
    interrupted: bool
    stopped_early: str | None
    client: Mapping[str, Any]  # what the load generator itself took
    workers: Sequence[Mapping[str, Any]] = field(default=())


class Sink(Protocol):
    """Where a session's records go: into a run folder, or to a master."""

    failure: Exception | None  # ours: a full disk, a master that is gone

    def begin(self, origin_unix: float) -> None:
        """The clock is set; `origin_unix` is the wall clock's time at its zero."""
        ...

    def add(self, record: RequestRecord) -> str | None:
        """Takes a record; why the run should stop now, or None."""
        ...

    def tick(self, in_flight: int, second: Mapping[str, Any]) -> None:
        """A second has passed; `second` is what was seen in it, as Live.to_json gives it."""
        ...

    def close(self, ending: Ending) -> None: ...

    def judge(self) -> int:
        """The exit code of the closed run. Raises `failure`: that is not judged."""
        ...


class Ledger:
    """The folder of a run that goes on."""

    def __init__(self, settings: Settings) -> None:
        """Makes the folder. Raises FileError where it cannot."""
        self.failure: Exception | None = None
        self.folder = RunFolder.create(settings.out, settings.name)
        self._settings = settings
        try:
            self._recorder = Recorder(self.folder.requests)
        except OSError as error:
            raise self._unusable(error) from None
        self._sendings: list[Sending] = []
        self._started_at = datetime.now(UTC)
        self._origin_unix = 0.0
        self.more: dict[str, Any] = {}  # further facts for run.json

    def begin(self, origin_unix: float) -> None:
        """Writes what a crash leaves: facts without an end, marked interrupted.

        Raises FileError where the disk is full already: no load was sent then.
        """
        self._origin_unix = origin_unix
        self._started_at = datetime.now(UTC)
        nothing = Ending((self._settings.warmup,) * 2, True, None, {})
        try:
            self.folder.write_run(self._facts(nothing, ended=None))
        except OSError as error:
            raise self._unusable(error) from None
        self._settings.judge.begin(origin_unix)

    def add(self, record: RequestRecord) -> str | None:
        self._sendings.append(Sending.of(record))
        if self.failure is None:
            self._guarded(lambda: self._recorder.add(record))
        return self._watched(record)

    def add_packed(self, packed: bytes, sendings: Sequence[Sending]) -> str | None:
        """Takes records as a worker packed them, with when each was due and sent."""
        self._sendings.extend(sendings)
        if self.failure is None:
            self._guarded(lambda: self._recorder.add_packed(packed, len(sendings)))
        if not self._settings.observers and not self._settings.judge.watching:
            return None
        reasons = [self._watched(record) for record in unpacked(packed)]
        return next((reason for reason in reasons if reason is not None), None)

    def tick(self, in_flight: int, second: Mapping[str, Any]) -> None:
        if self.failure is None:
            self._guarded(self._recorder.flush_if_due)

    def close(self, ending: Ending) -> None:
        self._guarded(self._recorder.close)
        ended = datetime.now(UTC)
        self._guarded(lambda: self.folder.write_run(self._facts(ending, ended)))

    def judge(self) -> int:
        if self.failure is not None:
            raise self.failure
        return self._settings.judge.finish(self.folder)

    def _watched(self, record: RequestRecord) -> str | None:
        for observe in self._settings.observers:
            observe(record)
        return self._settings.judge.breached(record)

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self.failure = self.failure or error

    def _unusable(self, error: OSError) -> FileError:
        """Takes back the folder that was just made, so that the next try may use its name."""
        with suppress(OSError):
            self.folder.requests.unlink(missing_ok=True)
            self.folder.path.rmdir()
        return FileError([f"{self.folder.path}: {error.strerror}"])

    def _facts(self, ending: Ending, ended: datetime | None) -> dict[str, Any]:
        settings = self._settings
        facts = {
            "schema": 1,
            "prony": version("prony"),
            "run_id": settings.run_id,
            "scenario": dict(settings.facts),
            "target": {
                "url": settings.target.url,
                "model": settings.form.model,
                "dialect": settings.form.dialect,
                "route": settings.target.route(),
                "left_out": list(settings.target.left_out),
                "renamed": dict(settings.target.renamed),
            },
            "seed": settings.seed,
            "started_at": _iso(self._started_at),
            "origin_unix": self._origin_unix,
            "ended_at": None if ended is None else _iso(ended),
            "interrupted": ending.interrupted or self.failure is not None,
            "stopped_early": ending.stopped_early,
            "slo": list(settings.slo),
            "command": settings.command,
            "loop": settings.loop,
            "stages": [
                [name, round(start, 6), round(end, 6)] for name, start, end in settings.stages
            ],
            "quality": list(settings.quality),
            "prompt_count": settings.tokens.to_json(),
            "workload": settings.plan.workload,
            "planned_window": [settings.warmup, settings.ends],
            "window": [round(edge, 6) for edge in ending.window],
            "schedule": account(
                self._sendings,
                ending.window,
                schedule=settings.schedule,
                planned=settings.plan.measured,
            ),
            # What requests.jsonl.gz must hold, so that one that was damaged later is noticed. A
            # run whose disk failed is an interrupted one, and what it kept is all there was.
            "records": None if ended is None or self.failure else self._recorder.written,
            "host": _host(),
            "versions": _versions(),
            "client": dict(ending.client),
        }
        facts.update(self.more)
        if ending.workers:
            facts["workers"] = [dict(worker) for worker in ending.workers]
            facts["lost_worker"] = settings.lost_worker
        return facts


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
