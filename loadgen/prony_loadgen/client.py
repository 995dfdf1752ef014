"""The streaming client: requests with their due times go in, one RequestRecord each comes out.

One native thread with its own sockets runs beside whatever the process does; nothing in it
switches greenlets. It sends each request at its time, or late, never not at all.
"""

import contextlib
import heapq
import itertools
import math
import os
import select
import selectors
import time
from collections.abc import Callable

from prony_loadgen import native
from prony_loadgen.connection import ClientError
from prony_loadgen.dialects import DIALECTS
from prony_loadgen.exchanges import Exchanges, Request
from prony_loadgen.record import RequestRecord
from prony_loadgen.target import Target

__all__ = ["Client", "ClientError", "Request"]

# So many due requests are sent before sockets are looked at again.
SENDS_A_TURN = 32
# select() takes no file descriptor from here on.
SELECT_LIMIT = 1024
# How long the thread may take to end, once nothing more is waited for.
ENDS_WITHIN = 60.0


class Client:
    """Sends requests to one target from one native thread; safe to call from any thread."""

    def __init__(
        self,
        target: Target,
        *,
        origin: float,
        on_record: Callable[[RequestRecord], None],
        worker: int = 0,
        selector: Callable[[], selectors.BaseSelector] = native.Selector,
    ) -> None:
        """`on_record` is called in the client's thread with times counted from `origin`.

        Raises TargetError where the target's name has no address, or a certificate cannot be used.
        """
        self._selector = selector()
        self._exchanges = Exchanges(
            target, self._selector, origin=origin, on_record=on_record, worker=worker
        )
        self._lock = native.allocate_lock()
        # What follows is shared with other threads, under the lock.
        self._unsent: list[tuple[float, int, Request]] = []  # a heap
        self._number = itertools.count()  # the first of two that are due at one time goes first
        self._sleeps_until = -math.inf  # when the thread would wake up by itself
        self._close_at: float | None = None
        self._failure: BaseException | None = None
        self._started = False

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have no record yet."""
        return len(self._exchanges)

    @property
    def unsent(self) -> int:
        """Requests that wait for their time."""
        return len(self._unsent)

    @property
    def failure(self) -> ClientError | None:
        """What broke the thread, if anything did: no more records come then."""
        broken = self._failure
        if broken is None or isinstance(broken, ClientError):
            return None if broken is None else ClientError(str(broken))
        return ClientError(f"the client's thread failed: {type(broken).__name__}: {broken}")

    @property
    def outstanding(self) -> int:
        """Both together, counted at one moment: 0 means that no record is to come."""
        with self._lock:
            return len(self._unsent) + len(self._exchanges)

    def start(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        self._ended_read, self._ended_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._started = True
        native.start_new_thread(self._run, ())

    def submit(self, request: Request) -> None:
        """Has it sent at its time; at once, and late, where that is past.

        Raises ClientError where the client is closed or has failed.
        """
        if request.dialect not in DIALECTS:
            known = ", ".join(DIALECTS)
            raise ValueError(f"unknown dialect {request.dialect!r}; known: {known}")
        with self._lock:
            self._raise_failure()
            if self._close_at is not None:
                raise ClientError("the client is closed")
            heapq.heappush(self._unsent, (request.intended, next(self._number), request))
            if request.intended < self._sleeps_until:
                self._wake()

    def cancel_unsent(self) -> int:
        """Drops the requests that were not sent yet, which get no record; how many they were."""
        with self._lock:
            dropped = len(self._unsent)
            self._unsent.clear()
            self._wake()
        return dropped

    def close(self, drain: float) -> int:
        """Ends the thread; how many requests were never sent.

        For up to `drain` seconds what falls due is still sent and what is in flight goes on; what
        is then in flight is recorded as `incomplete`. Raises ClientError if the thread failed.
        """
        with self._lock:
            # Sooner, where it is called again: the first call may have been interrupted.
            self._close_at = min(self._close_at or math.inf, time.monotonic() + drain)
            self._wake()
        if self._started:
            # Looked up here, not imported: under gevent other greenlets run meanwhile.
            ended = select.poll()
            ended.register(self._ended_read, select.POLLIN)
            if not ended.poll(1000 * (drain + ENDS_WITHIN)):
                raise ClientError(f"the client's thread did not end within {ENDS_WITHIN:g} s")
            self._close_pipes()
        dropped = self.cancel_unsent()
        self._selector.close()
        self._raise_failure()
        return dropped

    def _raise_failure(self) -> None:
        if (failure := self.failure) is not None:
            raise failure from self._failure

    def _close_pipes(self) -> None:
        with self._lock:
            if self._started:
                self._started = False
                for end in (self._wake_read, self._wake_write, self._ended_read, self._ended_write):
                    os.close(end)

    def _wake(self) -> None:
        """Called with the lock held, so that nobody closes the pipe meanwhile."""
        if self._started:
            with contextlib.suppress(BlockingIOError):  # it is full: the thread will wake anyway
                os.write(self._wake_write, b"\0")

    # All that follows runs in the client's thread.

    def _run(self) -> None:
        try:
            self._exchanges.prepare()
            self._loop()
            self._exchanges.give_up_all("the run ended first")
        except BaseException as error:
            with self._lock:
                self._failure = error  # raised to whoever calls submit() or close()
                self._unsent.clear()
            with contextlib.suppress(Exception):
                self._exchanges.give_up_all(f"the client failed: {error}")
        finally:
            with contextlib.suppress(Exception):
                self._exchanges.release()
            os.write(self._ended_write, b"\0")

    def _loop(self) -> None:
        while True:
            now = time.monotonic()
            self._send_due(now)
            self._exchanges.check_limits(now)
            wait = self._until_next()
            if wait is None:
                return
            ready = _wait(self._selector, wait)
            self._sleeps_until = -math.inf
            self._exchanges.woke_up()
            now = time.monotonic()
            for key, events in ready:
                if key.data is None:
                    os.read(self._wake_read, 4096)
                else:
                    self._exchanges.ready(key.data, events, now)

    def _send_due(self, now: float) -> None:
        # Mostly nothing is due, and no lock is needed to see it: who adds something wakes us up.
        first = self._unsent[:1]
        if not first or first[0][0] > now:
            return
        for _ in range(SENDS_A_TURN):
            with self._lock:
                if not self._unsent or self._unsent[0][0] > now:
                    return
                exchange = self._exchanges.admit(heapq.heappop(self._unsent)[2])
            self._exchanges.begin(exchange)

    def _until_next(self) -> float | None:
        """Seconds until something is due; None where the thread has nothing more to do."""
        limit = self._exchanges.next_limit()
        with self._lock:
            due = self._unsent[0][0] if self._unsent else math.inf
            until = min(due, limit)
            if self._close_at is not None:
                until = min(until, self._close_at)
                nothing_left = not len(self._exchanges) and due > self._close_at
                if nothing_left or time.monotonic() >= self._close_at:
                    return None
            self._sleeps_until = until
        return max(0.0, until - time.monotonic())


def _wait(
    selector: selectors.BaseSelector, seconds: float
) -> list[tuple[selectors.SelectorKey, int]]:
    """What is ready, after at most `seconds`: at once when something is."""
    if seconds == math.inf:
        return selector.select()
    # epoll counts whole milliseconds, which Python rounds up twice: it may be nearly 2 ms late. So
    # it waits for all but the last of them, and select(), which is finer, for what is left.
    if seconds > 0.003:
        return selector.select(seconds - 0.002)
    # Only a selector that is itself a file can be waited for so (epoll, kqueue).
    number = getattr(selector, "fileno", None)
    if seconds > 0 and number is not None and number() < SELECT_LIMIT:
        native.select([selector], [], [], seconds)
        seconds = 0
    return selector.select(seconds)
