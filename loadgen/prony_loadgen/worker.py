"""A worker's part of a run: it is told what to do, makes its share of the load, ships its records.

It knows neither Locust nor a run folder: messages go out through a function.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import gevent

from prony_loadgen.account import Sending
from prony_loadgen.client import ClientError
from prony_loadgen.drive import Load
from prony_loadgen.job import CLOCK, DONE, JOB, READY, START, STOP, TICK, settings_of
from prony_loadgen.ledger import Ending
from prony_loadgen.record import RequestRecord
from prony_loadgen.recorder import Packer
from prony_loadgen.run_clock import clock_name
from prony_loadgen.settings import Settings
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.target import TargetError

Send = Callable[[str, dict[str, Any]], None]


class Part:
    """What one worker does of the runs that its master has it make."""

    def __init__(self, send: Send, *, on_record: Callable[[Load, RequestRecord], None]) -> None:
        """`on_record` gets the records that no greenlet waits for."""
        self.load: Load | None = None
        self._send = send
        self._on_record = on_record
        self._settings: Settings | None = None

    @property
    def under_way(self) -> bool:
        return self.load is not None and self.load.exit_code is None

    def hear(self, kind: str, message: Mapping[str, Any]) -> None:
        """A message from the master."""
        if kind == CLOCK:
            self._send(CLOCK, {**message, "theirs": time.monotonic(), "clock": clock_name()})
        elif kind == JOB:
            self._get_ready(message)
        elif kind == START and self._settings is not None:
            self._begin(self._settings, message["origin"])
        elif kind == STOP and self.load is not None and self.under_way:
            self._stop(self.load, message)

    def _get_ready(self, job: Mapping[str, Any]) -> None:
        errors: list[str] = []
        try:
            self._settings = settings_of(job)
        except (FileError, TargetError) as error:
            errors = str(error).splitlines()
        except Exception as error:  # told, or the master would wait for an answer that never comes
            why = f"{type(error).__name__}: {error}"
            errors = [f"it cannot read its part ({why}); another version of Prony?"]
        me = {"host": platform.node(), "pid": os.getpid(), "prony": version("prony")}
        self._send(READY, {"run": job["run"], "errors": errors, **me})

    def _begin(self, settings: Settings, origin: float) -> None:
        self._settings = None
        try:
            self._load_of(settings, origin)
        except Exception:
            # The master hears at once that this part is lost, and so does whoever reads the log.
            nothing = {"run": settings.run_id, "client": {}, "records": 0, "stopped_at": 0.0}
            self._send(DONE, {**nothing, "interrupted": True, "stopped_early": None})
            raise

    def _load_of(self, settings: Settings, origin: float) -> None:
        shipper = Shipper(self._send, settings.run_id)
        load = self.load = Load(
            settings,
            on_record=lambda record: self._on_record(load, record),
            say=_nothing,
            on_end=_nothing,
            sink=shipper,
            origin=origin,
        )
        if settings.loop == "open":
            # Whatever users Locust gives this worker, the schedule is sent.
            gevent.spawn(load.dispatch)

    def _stop(self, load: Load, message: Mapping[str, Any]) -> None:
        if message.get("quit"):
            load.interrupt()
            load.interrupt()
        elif message.get("cut"):
            load.cut()
        else:
            gevent.spawn(load.end)


class Shipper:
    """Where a worker's records go: to the master, once a second."""

    def __init__(self, send: Send, run_id: str) -> None:
        """What `send` raises ends the run."""
        self.failure: Exception | None = None
        self._send = send
        self._run_id = run_id
        self._packer = Packer()
        self._sendings: list[Sending] = []
        self._messages = 0
        self._records = 0

    def begin(self, origin_unix: float) -> None:
        """Nothing is to be written down here."""

    def add(self, record: RequestRecord) -> str | None:
        self._packer.add(record)
        self._sendings.append(Sending.of(record))
        return None

    def tick(self, in_flight: int, second: Mapping[str, Any]) -> None:
        packed, sendings = self._packer.take(), self._sendings
        self._sendings = []
        self._records += len(sendings)
        self._ship(
            TICK,
            {
                "number": self._messages,
                "second": dict(second),
                "in_flight": in_flight,
                "records": packed,
                "sendings": [list(sending) for sending in sendings],
            },
        )
        self._messages += 1

    def close(self, ending: Ending) -> None:
        """Called after the last tick."""
        self._ship(
            DONE,
            {
                "records": self._records,
                "stopped_at": ending.window[1],
                "interrupted": ending.interrupted,
                "stopped_early": ending.stopped_early,
                "client": dict(ending.client),
            },
        )

    def judge(self) -> int:
        """A worker judges nothing."""
        return 0

    def _ship(self, kind: str, message: dict[str, Any]) -> None:
        try:
            self._send(kind, {"run": self._run_id, **message})
        except Exception as error:  # whatever the messenger raises: the master is gone
            self.failure = self.failure or ClientError(f"the master cannot be reached: {error}")


def _nothing(line: str = "") -> None:
    """A worker has nobody to say it to."""
