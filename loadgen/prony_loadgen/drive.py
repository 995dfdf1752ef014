"""Drives a session from gevent's hub: greenlets ask and get records, the clock ends the run.

The client's thread wakes the hub once a finished request, never once a token.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gevent
from gevent.event import AsyncResult, Event
from gevent.lock import BoundedSemaphore

from prony_loadgen.checks import Checks
from prony_loadgen.client import ClientError, Request
from prony_loadgen.dispatch import feed
from prony_loadgen.ledger import Ledger, Sink
from prony_loadgen.live import Timeline
from prony_loadgen.price import Purse
from prony_loadgen.prompt import Prompt
from prony_loadgen.prompts import Draft, drafts
from prony_loadgen.record import FOLLOWS, RequestRecord
from prony_loadgen.session import Session
from prony_loadgen.sessions import Conversation
from prony_loadgen.settings import Settings
from prony_loadgen.summary import NO_ANSWER
from prony_loadgen.under_way import CUT_DRAIN, INVALID, UnderWay

__all__ = ["CUT_DRAIN", "INVALID", "Load", "LoadOver"]

# Closed loop: so long the keeper sees that no user asks who should, before it gives the run up.
NOBODY_ASKS = 60.0
LOOK_EVERY = 0.25
# Closed loop without a duration: so many requests a user, one after another, that timed out
# without a token, and the target counts as dead. A schedule ends by itself, this would not.
DEAD_AFTER = 2


class LoadOver(Exception):
    """Nothing more may be sent: the run is ending."""


class Load(UnderWay):
    """The load of this process, which is all of a run or a worker's part of it."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_record: Callable[[RequestRecord], None],
        say: Callable[[str], None],
        on_end: Callable[[], None],
        sink: Sink | None = None,
        origin: float | None = None,
    ) -> None:
        """Starts the run. All three are called in the hub.

        `on_record` gets the records that no greenlet waits for (any more), `say` a progress line
        once a second, and `on_end` is called when the run was finished of its own accord.
        Where it is a worker's part of a run, its records go to `sink`, and `origin` is the zero of
        the run's clock.
        """
        super().__init__(settings.drain, on_end)
        self.settings = settings
        self.timeline = Timeline()
        if settings.metrics is not None:
            settings.metrics.watch(self.timeline, settings.run_id)
        self._checks: Checks | None = None  # a worker has none: who makes the whole run asks them
        if sink is None:
            sink = ledger = Ledger(settings)
            self.folder = ledger.folder
            self._checks = Checks(settings, ledger)
        self._on_record, self._say = on_record, say
        self._waiting: dict[str, AsyncResult] = {}
        # Open loop: the conversations whose request is under way.
        self._conversations: dict[str, Conversation] = {}
        self._purse = _purse(settings)
        self._spent = False  # it has no room for the next request
        self._thinking = random.Random(f"{settings.seed} think {settings.shard.index}")
        shard = settings.shard
        self._numbers = itertools.count(shard.index, shard.of)
        self._drafts = itertools.islice(_drafts(settings), shard.index, None, shard.of)
        self._measured_asked = 0
        self._all_asked = False
        self._thinks_until = 0.0  # when the last of the users who think will have thought
        self._nobody_asked = 0.0  # seconds for which nothing was in flight since then
        self._unanswered = 0  # requests in a row of which nothing came before their time was up
        self._closing = False
        self._arrived = Event()
        self._dispatching = BoundedSemaphore()
        self._requests = self._scheduled()
        self._wakeup = gevent.get_hub().loop.async_()
        self._wakeup.start(self._arrived.set)
        self.session = Session(
            settings, self._wakeup.send, sink, origin=origin, timeline=self.timeline
        )
        if self._checks is not None:
            self._checks.begun(self.session.origin)
        self._keeper = gevent.spawn(self._keep)
        self._keeper.link_exception(self._keeper_broke)
        self.watch_for_the_end()

    @property
    def going(self) -> bool:
        return self.session.sending

    @property
    def in_flight(self) -> int:
        return self.session.in_flight

    @property
    def broken(self) -> bool:
        return self.session.failure is not None

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
        self._await_start()
        request = self.settings.form.request(
            prompt,
            id=self._next_id(),
            cls=cls,
            intended=time.monotonic(),
            max_tokens=max_tokens,
            dialect=dialect,
            extra=extra,
        )
        return self._answered(request)

    def converse(self, draft: Draft) -> Iterator[RequestRecord]:
        """Closed loop: asks what a user's draft holds, one turn after the other; gives each record.

        Raises LoadOver once the run ends.
        """
        first = self._next_id()
        conversation: Conversation | None = Conversation.of(draft)
        while conversation is not None:
            with self._users_are_ours():
                request = self._request(conversation, first, time.monotonic())
                record = self._answered(request)
            yield record
            with self._users_are_ours():
                conversation = conversation.after(record, self.settings.form.dialect)
                if conversation is not None:
                    gevent.sleep(self._thinking_for(conversation.thought))

    @contextmanager
    def _users_are_ours(self) -> Iterator[None]:
        """What breaks here is a fault of ours, and would break for every user, again and again."""
        try:
            yield
        except LoadOver:
            raise
        except Exception as error:
            self.session.fail(error)
            raise

    def _answered(self, request: Request) -> RequestRecord:
        if not self.going or not self._can_pay(request):
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

    def _await_start(self) -> None:
        """Users of a worker may be there before the moment that all workers agreed on."""
        if (early := -self.session.now()) > 0 and self.settings.loop == "closed":
            gevent.sleep(early)

    def think_time(self) -> float:
        """Closed loop: seconds that a user waits before it asks again."""
        scenario = self.settings.scenario
        if scenario is None:
            return 0.0
        with self._users_are_ours():
            return self._thinking_for(scenario.arrivals.think_time.sample(self._thinking))

    def _thinking_for(self, seconds: float) -> float:
        self._thinks_until = max(self._thinks_until, time.monotonic() + seconds)
        return seconds

    def next_draft(self) -> Draft | None:
        """Closed loop: what the next free user asks; None when the scenario has no more."""
        scenario = self.settings.scenario
        assert scenario is not None
        self._await_start()
        if self.session.now() >= self.settings.warmup:
            wanted = scenario.requests
            share = None if wanted is None else self.settings.shard.share(wanted)
            self._all_asked = self._measured_asked == share
            self._measured_asked += not self._all_asked
        with self._users_are_ours():
            return next(self._drafts) if self.going and not self._all_asked else None

    def dispatch(self) -> None:
        """Open loop: hands the whole schedule to the client; returns when all of it was.

        Whoever calls it while another does, or after, hands over what is left: nothing twice.
        """
        with self._dispatching, self._users_are_ours():
            feed(
                self._requests,
                self.session.submit,
                time.monotonic,
                gevent.sleep,
                lambda: self.going,
            )
            self._all_asked = True

    def stop_sending(self) -> None:
        self.session.stop_sending()

    def mark(self, *, interrupted: bool = False, early: str | None = None) -> None:
        self.session.interrupted |= interrupted
        self.session.stopped_early = early or self.session.stopped_early

    def unwatched(self) -> bool:
        # A listener's call, while a record is given to it.
        return gevent.getcurrent() is self._keeper

    def conclude(self) -> int:
        self._closing = True
        self._arrived.set()
        self._keeper.join()
        try:
            if self._checks is not None and not self._interrupts:
                self._checks.ended(self.session.origin)
            for record in self.session.close():
                self._deliver(record)
            return INVALID if self._interrupts > 1 else self.session.judge()
        finally:
            self._wakeup.stop()
            self._wakeup.close()

    def _next_id(self) -> str:
        return f"{next(self._numbers):06d}"

    def _scheduled(self) -> Iterator[Request]:
        due, shard = self.settings.schedule, self.settings.shard
        assert due is not None
        for at, draft in zip(due[shard.index :: shard.of], self._drafts, strict=False):
            conversation = Conversation.of(draft)
            id, intended = self._next_id(), self.session.origin + at
            request = self._request(conversation, id, intended)
            if not self._can_pay(request):
                return
            if draft.turns:
                self._conversations[id] = conversation
            yield request

    def _request(self, conversation: Conversation, first: str, intended: float) -> Request:
        """What is asked next in a conversation; `first` is the id of its first request."""
        draft, number = conversation.draft, conversation.number
        return self.settings.form.request(
            conversation.prompt,
            id=first if not number else f"{first}{FOLLOWS}{number + 1}",
            cls=draft.cls,
            intended=intended,
            max_tokens=conversation.output_tokens,
            expect=draft.expect if not number else None,
            needs_text=conversation.needs_text,
            forced=draft.forced,
        )

    def _go_on(self, record: RequestRecord) -> None:
        """Open loop: the next turn of a conversation, if it has one and the run goes on."""
        conversation = self._conversations.pop(record.id, None)
        if conversation is None:
            return
        longer = conversation.after(record, self.settings.form.dialect)
        if longer is None:
            return
        at, ends = record.ended + longer.thought, self.settings.ends
        if not self.going or (ends is not None and at >= ends):
            return
        first, _, _ = record.id.partition(FOLLOWS)
        request = self._request(longer, first, self.session.origin + at)
        if self._can_pay(request):
            self._conversations[request.id] = longer
            self.session.submit(request)

    def _can_pay(self, request: Request) -> bool:
        """Whether the scenario's limit of tokens has room for it; ends the load where not."""
        if self._purse is None or self._purse.take(request):
            return True
        assert self.settings.scenario is not None
        if self.going:
            most = self.settings.scenario.max_total_tokens
            self._spent = True
            self.session.stopped_early = f"max_total_tokens: {most:,} would have been exceeded"
        return False

    def _keep(self) -> None:
        """Takes records as they come, and looks now and then at what else is due."""
        said = time.monotonic()
        while not self._closing:
            quiet = not self._arrived.wait(timeout=self._next_look())
            self._arrived.clear()
            for record in self.session.take_records():
                self._deliver(record)
                self._give_up_a_dead_target(record)
            if time.monotonic() - said >= 1.0:
                said = time.monotonic()
                self.session.tick()
                self._say(self.timeline.line(self.session.now()))
            stopped = self.session.stopped_early and not self._spent
            self._refuse_idle_users(quiet)
            if (not self.going and stopped) or self.session.failure:
                self.cut()
            elif self._is_over():
                self._over.set()

    def _give_up_a_dead_target(self, record: RequestRecord) -> None:
        scenario = self.settings.scenario
        users = 0 if scenario is None else scenario.arrivals.users or 0
        nothing = record.outcome == "timeout" and not record.arrivals
        self._unanswered = self._unanswered + 1 if nothing else 0
        if not users or self.settings.ends is not None or not self.going:
            return
        if self._unanswered >= DEAD_AFTER * self.settings.shard.share(users):
            self.session.stopped_early = f"{NO_ANSWER}: {self._unanswered:,} requests in a row"
            self.stop_sending()

    def _next_look(self) -> float:
        ends = self.settings.ends
        left = 1.0 if ends is None else ends - self.session.now()
        return min(LOOK_EVERY, left) if left > 0 else LOOK_EVERY

    def _refuse_idle_users(self, quiet: bool) -> None:
        """Closed loop: where all users are gone by a fault of ours, the run would never end.

        `quiet`: nothing has arrived since the last look. Such looks are counted, not seconds, so
        that a process that was stopped meanwhile is not blamed.
        """
        if self.settings.scenario is None or self.settings.loop == "open" or not self.going:
            return
        resting = self.session.now() < 0 or time.monotonic() < self._thinks_until
        if not quiet or self._all_asked or resting or self._waiting or not self.session.idle:
            self._nobody_asked = 0.0
            return
        self._nobody_asked += LOOK_EVERY
        if self._nobody_asked > NOBODY_ASKS:
            why = f"no user has asked anything for {NOBODY_ASKS:g} s"
            self.session.fail(ClientError(f"{why}{self.session.told_of_tasks()}"))

    def _is_over(self) -> bool:
        """Whether nothing more is to be sent."""
        session, ends = self.session, self.settings.ends
        if self._spent and not session.unsent:
            return True  # what is paid for is sent, and may come to its end
        time_is_up = ends is not None and session.now() >= ends
        if self.settings.loop == "closed":
            return time_is_up or (self._all_asked and not self._waiting and session.idle)
        # A client that is late still has requests to send after the end, but not forever.
        assert ends is not None
        all_sent = self._all_asked and not session.unsent
        return time_is_up and (all_sent or session.now() >= ends + self.settings.drain)

    def _deliver(self, record: RequestRecord) -> None:
        if self._purse is not None:
            self._purse.settle(record)
        self._go_on(record)
        answer = self._waiting.pop(record.id, None)
        if answer is None:
            self._on_record(record)
        else:
            answer.set(record)

    def _keeper_broke(self, keeper: gevent.Greenlet) -> None:
        """A bug of ours must end the run, not leave it without anybody who takes records."""
        self.session.fail(keeper.exception)
        self.cut()


def _drafts(settings: Settings) -> Iterator[Draft]:
    return iter(()) if settings.scenario is None else drafts(settings.scenario, settings.tokens)


def _purse(settings: Settings) -> Purse | None:
    """This process's part of the tokens that may be spent."""
    if settings.scenario is None or settings.scenario.max_total_tokens is None:
        return None
    return Purse(settings.shard.share(settings.scenario.max_total_tokens))
