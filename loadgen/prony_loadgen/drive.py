"""Drives a session from gevent's hub: greenlets ask and get records, the clock ends the run.

The client's thread wakes the hub once a finished request, never once a token.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gevent
from gevent.event import AsyncResult, Event
from gevent.lock import BoundedSemaphore

from prony_loadgen.client import ClientError, Request
from prony_loadgen.dispatch import feed
from prony_loadgen.prompt import Prompt
from prony_loadgen.prompts import Draft, drafts
from prony_loadgen.record import RequestRecord
from prony_loadgen.session import Session
from prony_loadgen.settings import Settings

CUT_DRAIN = 5.0  # how long to wait for what is in flight where a run is cut short
INVALID = 4  # the exit code of a run that broke
_LOOK_EVERY = 0.02


class LoadOver(Exception):
    """Nothing more may be sent: the run is ending."""


class Load:
    """One run under way, in gevent's hub."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_record: Callable[[RequestRecord], None],
        say: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        """Starts the run. All three are called in the hub.

        `on_record` gets the records that no greenlet waits for (any more), `say` a progress line
        once a second, and `on_end` is called when the run was finished of its own accord.
        """
        self.settings = settings
        self.exit_code: int | None = None
        self._on_record, self._say, self._on_end = on_record, say, on_end
        self._waiting: dict[str, AsyncResult] = {}
        self._numbers = itertools.count()
        self._drafts = _drafts(settings)
        self._measured_asked = 0
        self._all_asked = False
        self._drain_until: float | None = None
        self._interrupts = 0
        self._closing = False
        self._told_to_end = False
        self._arrived = Event()
        self._dispatching = BoundedSemaphore()
        self._requests = self._scheduled()
        self._over = Event()
        self._ended = Event()
        self._wakeup = gevent.get_hub().loop.async_()
        self._wakeup.start(self._arrived.set)
        self.session = Session(settings, wake=self._wakeup.send)
        self._keeper = gevent.spawn(self._keep)
        self._keeper.link_exception(self._keeper_broke)
        self._ender = gevent.spawn(self._end_when_over)

    @property
    def going(self) -> bool:
        return self.session.sending

    def ask(
        self,
        prompt: Prompt,
        *,
        cls: str,
        max_tokens: int | None,
        dialect: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> RequestRecord:
        """Sends one request now and waits for its record. Raises LoadOver once the run ends."""
        request = self.settings.form.request(
            prompt,
            id=self._next_id(),
            cls=cls,
            intended=time.monotonic(),
            max_tokens=max_tokens,
            dialect=dialect,
            extra=extra,
        )
        if not self.going:
            raise LoadOver
        self._waiting[request.id] = answer = AsyncResult()
        self.session.submit(request)
        try:
            record: RequestRecord = answer.get()
        except BaseException:
            # Killed while waiting: the record is nobody's, also where it came in this moment.
            if self._waiting.pop(request.id, None) is None and answer.ready():
                self._on_record(answer.value)
            raise
        return record

    def next_draft(self) -> Draft | None:
        """Closed loop: what the next free user asks; None when the scenario has no more."""
        scenario = self.settings.scenario
        assert scenario is not None
        if self.session.now() >= self.settings.warmup:
            self._all_asked = self._measured_asked == scenario.requests
            self._measured_asked += not self._all_asked
        return next(self._drafts) if self.going and not self._all_asked else None

    def dispatch(self) -> None:
        """Open loop: hands the whole schedule to the client; returns when all of it was.

        Whoever calls it while another does, or after, hands over what is left: nothing twice.
        """
        with self._dispatching:
            feed(
                self._requests,
                self.session.submit,
                time.monotonic,
                gevent.sleep,
                lambda: self.going,
            )
            self._all_asked = True

    def interrupt(self) -> str:
        """Cuts the run short: what is in flight gets a few seconds, from the second call on none.

        What was sent to its end is not interrupted, only waited for less. Returns what to say.
        """
        self._interrupts += 1
        if self._interrupts > 1:
            self.session.interrupted = True
            return "interrupted again: quitting without a verdict"
        if not self._over.is_set():
            self.session.interrupted = True
        self._cut()
        return (
            f"interrupted: waiting up to {CUT_DRAIN:g} s for {self.session.in_flight} requests "
            "in flight; interrupt again to quit at once"
        )

    def end(self, early: str | None = None) -> int | None:
        """Ends the run and returns its exit code; `early` says why, where it is not over yet."""
        if self.going and early is not None:
            self.session.stopped_early = early
        self.session.stop_sending()
        self._told_to_end = True
        self._over.set()
        if gevent.getcurrent() is not self._keeper:  # a listener's call; it cannot wait for itself
            self._ended.wait()
        return self.exit_code

    def _end_when_over(self) -> None:
        self._over.wait()
        self.session.stop_sending()
        try:
            self.exit_code = self._finish()
        except BaseException:
            self.exit_code = INVALID
            raise
        finally:
            self._ended.set()
            if not self._told_to_end:
                self._on_end()

    def _finish(self) -> int:
        if self._drain_until is None:
            self._drain_until = time.monotonic() + self.settings.drain
        while self.session.in_flight and self._may_wait():
            gevent.sleep(_LOOK_EVERY)
        self._closing = True
        self._arrived.set()
        self._keeper.join()
        try:
            for record in self.session.close():
                self._deliver(record)
            return INVALID if self._interrupts > 1 else self.session.judge()
        except (OSError, ClientError) as error:
            print(
                f"error: the run broke off: {error}; "
                f"what was recorded is in {self.session.folder.path}",
                file=sys.stderr,
            )
            return INVALID
        finally:
            self._wakeup.stop()
            self._wakeup.close()

    def _may_wait(self) -> bool:
        assert self._drain_until is not None
        return (
            time.monotonic() < self._drain_until
            and self._interrupts < 2
            and self.session.failure is None
        )

    def _next_id(self) -> str:
        return f"{next(self._numbers):06d}"

    def _scheduled(self) -> Iterator[Request]:
        scenario, due = self.settings.scenario, self.settings.schedule
        assert scenario is not None and due is not None
        for at, draft in zip(due, self._drafts, strict=False):
            yield self.settings.form.request(
                draft.prompt,
                id=self._next_id(),
                cls=scenario.name,
                intended=self.session.origin + at,
                max_tokens=draft.output_tokens,
            )

    def _keep(self) -> None:
        """Takes records as they come, and looks now and then at what else is due."""
        said = time.monotonic()
        while not self._closing:
            self._arrived.wait(timeout=self._next_look())
            self._arrived.clear()
            for record in self.session.take_records():
                self._deliver(record)
            if time.monotonic() - said >= 1.0:
                said = time.monotonic()
                self.session.tick()
                self._say(self.session.flow.line(self.session.now(), self.session.in_flight))
            if (not self.going and self.session.stopped_early) or self.session.failure:
                self._cut()
            elif self._is_over():
                self._over.set()

    def _next_look(self) -> float:
        ends = self.settings.ends
        left = 1.0 if ends is None else ends - self.session.now()
        return min(0.25, left) if left > 0 else 0.25

    def _is_over(self) -> bool:
        """Whether nothing more is to be sent."""
        session, ends = self.session, self.settings.ends
        time_is_up = ends is not None and session.now() >= ends
        if self.settings.loop == "closed":
            return time_is_up or (self._all_asked and not self._waiting and session.idle)
        # A client that is late still has requests to send after the end, but not forever.
        assert ends is not None
        all_sent = self._all_asked and not session.unsent
        return time_is_up and (all_sent or session.now() >= ends + self.settings.drain)

    def _deliver(self, record: RequestRecord) -> None:
        answer = self._waiting.pop(record.id, None)
        if answer is None:
            self._on_record(record)
        else:
            answer.set(record)

    def _cut(self) -> None:
        self.session.stop_sending()
        self._drain_until = min(self._drain_until or float("inf"), time.monotonic() + CUT_DRAIN)
        self._over.set()

    def _keeper_broke(self, keeper: gevent.Greenlet) -> None:
        """A bug of ours must end the run, not leave it without anybody who takes records."""
        self.session.failure = keeper.exception
        self._cut()


def _drafts(settings: Settings) -> Iterator[Draft]:
    return iter(()) if settings.scenario is None else drafts(settings.scenario)
