"""A run that several processes make: a master shares it out, and one run folder comes together.

The master sends each worker the same job and the worker's number in it. All derive the same
schedule from the seed, and each makes every k-th request of it, from one agreed moment on. Once a
second a worker sends what it saw: a sketch for people who watch, and its records for the result.
The master does not know Locust: messages go out through a function.
"""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gevent
from gevent.event import Event

from prony_loadgen.account import Sending
from prony_loadgen.checks import Checks
from prony_loadgen.client import ClientError
from prony_loadgen.effort import Effort
from prony_loadgen.job import CLOCK, DONE, JOB, READY, START, STOP, TICK
from prony_loadgen.ledger import Ending, Ledger
from prony_loadgen.live import Live, Timeline
from prony_loadgen.run_clock import Asked, Offset, clock_name, offset
from prony_loadgen.session import window
from prony_loadgen.settings import Settings
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.under_way import INVALID, UnderWay

READINGS = 5  # of a clock on another machine
ANSWER_WITHIN = 60.0  # seconds for a worker to get ready
HEAD_START = 1.0  # from the agreement to the first request: what a worker may need to begin
GONE_AFTER = 2.0  # seconds without a sign of life, beside Locust's own three heartbeats
SHIPPING = 10.0  # seconds that the last records may take after the last answer
QUITTING = 1.0  # the same, where somebody does not want to wait
SILENT_AFTER = 60.0  # seconds in which a worker that lives said nothing of its part
GONE = "it gave no more signs of life"
SILENT = f"it said nothing for {SILENT_AFTER:g} s"

Message = Mapping[str, Any]


@dataclass(slots=True)
class _Worker:
    """What the master knows of one of its workers."""

    id: str  # Locust's
    index: int
    readings: list[Asked] = field(default_factory=list)
    same_clock: bool = False
    ready: Message | None = None
    in_flight: int = 0
    records: int = 0
    messages: int = 0
    client: Message = field(default_factory=dict)
    stopped_at: float | None = None
    done: bool = False
    ended_early: bool = False
    missing_since: float | None = None
    heard_at: float = 0.0  # when it last said anything of this run
    lost: str | None = None  # why its part is not whole

    @property
    def over(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.done or self.lost is not None

    @property
    def clock(self) -> Offset:
        return Offset(0.0, 0.0) if self.same_clock else offset(self.readings)

    @property
    def name(self) -> str:
        about = self.ready or {}
        where = f"{about['host']}, pid {about['pid']}" if about else self.id
        return f"worker {self.index} ({where})"

    def facts(self) -> dict[str, Any]:
        """What run.json holds of it."""
        about = self.ready or {}
        return {
            "index": self.index,
            "id": self.id,
            "host": about.get("host"),
            "pid": about.get("pid"),
            "records": self.records,
            "clock_uncertainty": self.clock.uncertainty,
            "lost": self.lost,
            "ended_early": self.ended_early,
            **self.client,
        }


class Crew(UnderWay):
    """The master's side of a run: it makes no load, and has the run folder."""

    def __init__(
        self,
        settings: Settings,
        job: Message,
        *,
        send: Callable[[str, dict[str, Any], str], None],
        alive: Callable[[], set[str]],
        say: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        """Called in the hub: `send` takes a kind, a message and a worker's id; `alive` gives the
        ids of the workers that still give signs of life; the others are as for Load.
        """
        super().__init__(settings.drain, on_end)
        self.settings = settings
        self.timeline = Timeline()
        self.failure: Exception | None = None
        self.origin = 0.0
        self._job, self._send, self._alive, self._say = job, send, alive, say
        self._workers: dict[str, _Worker] = {}
        self._changed = Event()
        self._stopped_at: float | None = None
        self._interrupted = False
        self._stopped_early: str | None = None
        self._closing = False
        self._ledger: Ledger | None = None
        self._checks: Checks | None = None
        self._effort = Effort()

    def muster(self, workers: Sequence[str]) -> None:
        """Gives every worker its part and agrees on when all begin; returns when all know it.

        Raises FileError where one of them cannot take part: it says why, and no load was sent.
        """
        self._refuse_idle(len(workers))
        self._workers = {id: _Worker(id, index) for index, id in enumerate(workers)}
        for wanted in range(1, READINGS + 1):
            for worker in self._workers.values():
                self._tell(worker, CLOCK, {"asked": time.monotonic()})
            self._wait_for(partial(_answered, wanted), "does not answer")
        of = len(workers)
        for worker in self._workers.values():
            self._tell(worker, JOB, {**self._job, "index": worker.index, "of": of})
        self._wait_for(lambda worker: worker.ready is not None, "did not get ready")
        refused = [
            f"{worker.name}: {line}"
            for worker in self._workers.values()
            for line in (worker.ready or {}).get("errors", ())
        ]
        if refused:
            raise FileError(refused)
        self._ledger = Ledger(self.settings)
        self.folder = self._ledger.folder
        self._checks = Checks(self.settings, self._ledger)
        if self.settings.metrics is not None:
            self.settings.metrics.watch(self.timeline, self.settings.run_id)
        self._effort = Effort()
        self.origin = time.monotonic() + HEAD_START
        self._ledger.begin(time.time() + HEAD_START)
        self._checks.begun(self.origin)
        for worker in self._workers.values():
            self._tell(worker, START, {"origin": self.origin + worker.clock.seconds})
        gevent.spawn(self._keep).link_exception(self._broke)
        self.watch_for_the_end()

    def hear(self, kind: str, worker: str, message: Message) -> None:
        """A message from a worker; one of another run is none of ours."""
        known = self._workers.get(worker)
        if known is None or message.get("run", self.settings.run_id) != self.settings.run_id:
            return
        known.missing_since = None
        known.heard_at = time.monotonic()
        if known.lost in (GONE, SILENT):
            known.lost = None  # it was only busy
        if kind == CLOCK:
            told = Asked(message["asked"], message["theirs"], time.monotonic())
            known.readings.append(told)
            name = clock_name()
            known.same_clock = name is not None and message["clock"] == name
        elif kind == READY:
            known.ready = message
        elif kind == TICK and not self._closing:
            self._take(known, message)
        elif kind == DONE and not self._closing:
            self._take_last(known, message)
        self._changed.set()

    def now(self) -> float:
        """Seconds on the run's clock."""
        return time.monotonic() - self.origin

    @property
    def going(self) -> bool:
        return self._stopped_at is None

    @property
    def in_flight(self) -> int:
        """How many the workers said, and those that still have something to say."""
        return sum(worker.in_flight or 1 for worker in self._workers.values() if not worker.over)

    @property
    def broken(self) -> bool:
        return self.failure is not None

    def stop_sending(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = self.now()
            for worker in self._workers.values():
                if not worker.over:
                    self._tell(worker, STOP, {})

    def mark(self, *, interrupted: bool = False, early: str | None = None) -> None:
        self._interrupted |= interrupted
        self._stopped_early = early or self._stopped_early

    def cut(self) -> None:
        super().cut()
        for worker in self._workers.values():
            if not worker.over:
                self._tell(worker, STOP, {"cut": True})

    def unwatched(self) -> bool:
        return False

    def conclude(self) -> int:
        # Answers were waited for; what a worker still ships of them has a moment more.
        hurried = self._interrupts > 1
        for worker in self._workers.values():
            if hurried and not worker.over:
                self._tell(worker, STOP, {"quit": True})
        deadline = time.monotonic() + (QUITTING if hurried else SHIPPING)
        while not self._all_over() and time.monotonic() < deadline:
            self._changed.wait(0.1)
            self._changed.clear()
            self._look_for_the_lost()
        self._closing = True
        for worker in self._workers.values():
            if not worker.over:
                worker.lost = "it did not send the last of its records"
        assert self._ledger is not None
        self.timeline.tick(self.now(), 0)
        failure = self.failure or self._ledger.failure
        if self._checks is not None and failure is None and not self._interrupts:
            self._checks.ended(self.origin)
        self._ledger.close(
            Ending(
                window(self.settings, self._last_stop()),
                self._interrupted or failure is not None,
                self._stopped_early,
                self._client_facts(),
                [worker.facts() for worker in self._workers.values()],
            )
        )
        if failure is not None:
            raise failure
        return INVALID if self._interrupts > 1 else self._ledger.judge()

    def _refuse_idle(self, workers: int) -> None:
        scenario = self.settings.scenario
        users = None if scenario is None else scenario.arrivals.users
        if users is not None and users < workers:
            raise FileError(
                [f"{users} users cannot be shared by {workers} workers: take fewer workers"]
            )

    def _tell(self, worker: _Worker, kind: str, message: dict[str, Any]) -> None:
        self._send(kind, {"run": self.settings.run_id, **message}, worker.id)

    def _wait_for(self, met: Callable[[_Worker], bool], failure: str) -> None:
        deadline = time.monotonic() + ANSWER_WITHIN
        while behind := [worker for worker in self._workers.values() if not met(worker)]:
            gone = [worker for worker in behind if worker.id not in self._alive()]
            if gone or time.monotonic() > deadline:
                why = "went away" if gone else f"{failure} within {ANSWER_WITHIN:g} s"
                raise FileError([f"{worker.name}: {why}" for worker in gone or behind])
            self._changed.wait(0.2)
            self._changed.clear()

    def _take(self, worker: _Worker, message: Message) -> None:
        assert self._ledger is not None
        if message["number"] != worker.messages:
            worker.lost = f"message {worker.messages} of its records never came"
        worker.messages = message["number"] + 1
        worker.in_flight = message["in_flight"]
        self.timeline.merge(Live.from_json(message["second"]))
        if not message["sendings"]:
            return
        sendings = [Sending(*told) for told in message["sendings"]]
        worker.records += len(sendings)
        try:
            reason = self._ledger.add_packed(message["records"], sendings)
        except (ValueError, zlib.error) as error:
            worker.lost = f"its records cannot be read: {error}"
            return
        if self.going and reason is not None:
            self.mark(early=reason)
            self.cut()

    def _take_last(self, worker: _Worker, message: Message) -> None:
        worker.client = message["client"]
        worker.stopped_at = message["stopped_at"]
        worker.in_flight = 0
        worker.ended_early = message["interrupted"] and self.going
        # Its part of max_total_tokens is spent, say.
        self.mark(early=message["stopped_early"])
        missing = message["records"] - worker.records
        if missing and worker.lost is None:
            worker.lost = f"{missing} of its {message['records']} records never came"
        worker.done = True

    def _keep(self) -> None:
        """Looks now and then at who is still there, and once a second tells what goes on."""
        said = time.monotonic()
        while not self._closing:
            self._changed.wait(0.25)
            self._changed.clear()
            self._look_for_the_lost()
            if time.monotonic() - said >= 1.0:
                said = time.monotonic()
                assert self._ledger is not None
                in_flight = sum(worker.in_flight for worker in self._workers.values())
                self.timeline.tick(self.now(), in_flight)
                self._ledger.tick(in_flight, {})
                self._say(self.timeline.line(self.now()))
                if self._ledger.failure is not None:
                    self.cut()
            if self._all_over():
                self._over.set()

    def _all_over(self) -> bool:
        return all(worker.over for worker in self._workers.values())

    def _look_for_the_lost(self) -> None:
        alive, now = self._alive(), time.monotonic()
        for worker in self._workers.values():
            if worker.over:
                continue
            if worker.id in alive:
                worker.missing_since = None
                # A tick comes once a second from the start on; Locust in it may outlive its part.
                if now - max(worker.heard_at, self.origin) > SILENT_AFTER:
                    self._lose(worker, SILENT)
            elif worker.missing_since is None:
                worker.missing_since = now
            elif now - worker.missing_since > GONE_AFTER:
                self._lose(worker, GONE)

    def _lose(self, worker: _Worker, why: str) -> None:
        worker.lost = why
        worker.in_flight = 0
        self._say(f"{worker.name} is lost: {worker.lost}")

    def _last_stop(self) -> float:
        """When the last worker stopped sending, on the run's clock."""
        known = [w.stopped_at for w in self._workers.values() if w.stopped_at is not None]
        mine = self.now() if self._stopped_at is None else self._stopped_at
        return max(known, default=mine) if self._all_over() else mine

    def _client_facts(self) -> dict[str, Any]:
        """The worst of the workers: each is a load generator of its own."""
        facts: dict[str, Any] = {}
        for name in ("cpu_share", "cpu_wait_share", "seconds"):
            known = [w.client[name] for w in self._workers.values() if name in w.client]
            if known:
                facts[name] = max(known)
        facts["master_cpu_share"] = self._effort.facts()["cpu_share"]
        return facts

    def _broke(self, keeper: gevent.Greenlet) -> None:
        self.failure = ClientError(f"the master failed: {keeper.exception}")
        self.cut()


def _answered(times: int, worker: _Worker) -> bool:
    return len(worker.readings) >= times
