"""One process's part of a run: requests go in, and records come out into a run folder or a message.

A Session knows neither Locust nor greenlets. Whoever drives it submits requests, calls
`take_records` whenever it was woken, and at the end `stop_sending`, waits, `close` and `judge`.
"""

import gc
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from prony_loadgen.calibration import kept
from prony_loadgen.client import Client, ClientError, Request
from prony_loadgen.effort import Effort
from prony_loadgen.ledger import Ending, Sink
from prony_loadgen.live import Timeline
from prony_loadgen.quality import inspected
from prony_loadgen.record import RequestRecord
from prony_loadgen.settings import Settings

# Handing requests over before zero lets the first ones be on time.
HEAD_START = 0.3
_SHOWN = 200  # characters of an error


class Session:
    """A run that goes on, in this process."""

    def __init__(
        self,
        settings: Settings,
        wake: Callable[[], None],
        sink: Sink,
        *,
        origin: float | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        """`wake` is called in the client's thread whenever a record waits to be taken.

        `origin` is the zero of the run's clock, on the monotonic one, where others share it.
        """
        self.settings = settings
        self.timeline = timeline or Timeline()
        self.interrupted = False
        self.stopped_early: str | None = None
        self._failure: Exception | None = None  # ours: a broken client
        self._raised: list[str] = []  # what users' own code raised
        self._sink = sink
        self._wake = wake
        self._arrived: deque[RequestRecord] = deque()
        self._asked: dict[str, Request] = {}  # those without a record, where answers are looked at
        self._stopped_at: float | None = None
        # Whatever takes a while comes before the clock is set.
        self._calibration = kept()
        self._quiet_process = _QuietProcess()
        self._effort = Effort()
        if origin is None:
            origin = time.monotonic() + (HEAD_START if settings.loop == "open" else 0.0)
        self.origin = origin
        self.origin_unix = time.time() + origin - time.monotonic()
        sink.begin(self.origin_unix)
        self._client = Client(
            settings.target,
            origin=self.origin,
            on_record=self._on_record,
            worker=settings.shard.index,
        )
        self._client.start()

    def now(self) -> float:
        """Seconds on the run's clock."""
        return time.monotonic() - self.origin

    @property
    def failure(self) -> Exception | None:
        """What failed on our side, which ends the run: a broken client, a full disk."""
        # The client's is looked for: while all users wait for records, nobody submits anything.
        return self._failure or self._client.failure or self._sink.failure

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
        self._asked[request.id] = request
        try:
            self._client.submit(request)
        except ClientError as error:
            self.fail(error)
        self.timeline.offered()

    def take_records(self) -> list[RequestRecord]:
        """The records since the last call, after they were written, counted and watched.

        A failure of ours (a full disk) stops the run and is raised by `judge`.
        """
        records = []
        while self._arrived:
            record = self._inspected(self._arrived.popleft())
            records.append(record)
            self.timeline.add(record)
            reason = self._sink.add(self._stored(record))
            if self.sending and reason is not None:
                self.stopped_early = reason
                self.stop_sending()
        if self.failure is not None:
            self.stop_sending()
        return records

    def tick(self) -> None:
        """Once a second or so: what must also happen while no record comes."""
        second = self.timeline.tick(self.now(), self.in_flight)
        self._sink.tick(self.in_flight, second.to_json())

    def stop_sending(self) -> None:
        """Ends the load: nothing more is sent, what is in flight goes on."""
        if self._stopped_at is None:
            self._stopped_at = self.now()
            self._client.cancel_unsent()

    def close(self) -> list[RequestRecord]:
        """Ends what is in flight and closes the sink; returns the last records."""
        self.stop_sending()
        self._quiet_process.restore()
        try:
            self._client.close(0.0)
        except ClientError as error:
            self.fail(error)
        records: list[RequestRecord] = []
        while self._arrived:
            try:
                records += self.take_records()
            except Exception as error:  # of whoever watches: what came is written all the same
                self.fail(error)
        self.tick()
        client = {**self._effort.facts(), "seconds": round(self.now(), 3)}
        client["calibration"] = None if self._calibration is None else self._calibration.summary()
        if self._raised:
            client["task_errors"] = {"count": len(self._raised), "first": self._raised[0]}
        interrupted = self.interrupted or self.failure is not None
        self._sink.close(Ending(self._window(), interrupted, self.stopped_early, client))
        return records

    def judge(self) -> int:
        """The exit code of the closed run. Raises what failed on our side: that is not judged."""
        if self.failure is not None:
            raise self.failure
        return self._sink.judge()

    def fail(self, error: Exception) -> None:
        """Something of ours failed, which ends the run."""
        self._failure = self._failure or error
        self.stop_sending()

    def task_raised(self, error: BaseException) -> None:
        """A user's own code broke: it does not ask what its locustfile says."""
        told = " ".join(f"{type(error).__name__}: {error}".split())
        self._raised.append(told if len(told) <= _SHOWN else f"{told[:_SHOWN]}...")

    def told_of_tasks(self) -> str:
        """The first that users' code raised, to end a sentence with; empty where nothing was."""
        return f": {self._raised[0]}" if self._raised else ""

    def _on_record(self, record: RequestRecord) -> None:
        self._arrived.append(record)
        self._wake()

    def _inspected(self, record: RequestRecord) -> RequestRecord:
        """With what its answer shows; here, so that the client's thread has nothing to do with it.

        Its text stays for whoever asked, also where it is not stored.
        """
        request = self._asked.pop(record.id, None)
        if request is None:
            return record
        return inspected(record, request.expect, natural=request.natural)

    def _stored(self, record: RequestRecord) -> RequestRecord:
        if self.settings.form.keep_text or (record.text is None and record.reasoning is None):
            return record
        return replace(record, text=None, reasoning=None)

    def _window(self) -> tuple[float, float]:
        """When measuring began and ended, on the run's clock."""
        assert self._stopped_at is not None
        return window(self.settings, self._stopped_at)


def window(settings: Settings, stopped_at: float) -> tuple[float, float]:
    """What was measured of a run that stopped sending at `stopped_at` on its clock."""
    end = stopped_at if settings.ends is None else min(settings.ends, stopped_at)
    start = min(settings.warmup, max(end, 0.0))
    return start, max(end, start)


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
