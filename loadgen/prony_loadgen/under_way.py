"""How a run comes to its end, whoever makes its load: over, cut short, interrupted, or told to end.

Both a process's own load (drive.py) and the master of several (workers.py) end like this.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import gevent
from gevent.event import Event

from prony_loadgen.client import ClientError
from prony_loadgen.folder import RunFolder

CUT_DRAIN = 5.0  # how long to wait for what is in flight where a run is cut short
INVALID = 4  # the exit code of a run that broke
_LOOK_EVERY = 0.02


class UnderWay(ABC):
    """A run that goes on, in gevent's hub."""

    def __init__(self, drain: float, on_end: Callable[[], None]) -> None:
        """`drain` is how long what is in flight may take at the end.

        `on_end` is called when the run was finished of its own accord.
        """
        self.exit_code: int | None = None
        self.folder: RunFolder | None = None
        self._drain, self._on_end = drain, on_end
        self._drain_until: float | None = None
        self._interrupts = 0
        self._told_to_end = False
        self._over = Event()
        self._ended = Event()

    @property
    @abstractmethod
    def going(self) -> bool:
        """Whether requests may still be sent."""

    @property
    @abstractmethod
    def in_flight(self) -> int: ...

    @property
    @abstractmethod
    def broken(self) -> bool:
        """Whether something of ours failed, so that there is nothing to wait for."""

    @abstractmethod
    def stop_sending(self) -> None: ...

    @abstractmethod
    def mark(self, *, interrupted: bool = False, early: str | None = None) -> None:
        """Notes why the run ended before its time."""

    @abstractmethod
    def conclude(self) -> int:
        """Closes the run, once nothing is waited for, and judges it; returns the exit code.

        Raises OSError and ClientError for what failed on our side.
        """

    @abstractmethod
    def unwatched(self) -> bool:
        """Whether the calling greenlet is one that `end` must not wait in."""

    def interrupt(self) -> str:
        """Cuts the run short: what is in flight gets a few seconds, from the second call on none.

        What was sent to its end is not interrupted, only waited for less. Returns what to say.
        """
        self._interrupts += 1
        if self._interrupts > 1:
            self.mark(interrupted=True)
            return "interrupted again: quitting without a verdict"
        if not self._over.is_set():
            self.mark(interrupted=True)
        self.cut()
        return (
            f"interrupted: waiting up to {CUT_DRAIN:g} s for {self.in_flight} requests "
            "in flight; interrupt again to quit at once"
        )

    def end(self, early: str | None = None) -> int | None:
        """Ends the run and returns its exit code; `early` says why, where it is not over yet."""
        if self.going and early is not None:
            self.mark(early=early)
        self.stop_sending()
        self._told_to_end = True
        self._over.set()
        if not self.unwatched():
            self._ended.wait()
        return self.exit_code

    def cut(self) -> None:
        """Ends the load now; what is in flight has a few seconds."""
        self.stop_sending()
        self._drain_until = min(self._drain_until or float("inf"), time.monotonic() + CUT_DRAIN)
        self._over.set()

    def watch_for_the_end(self) -> None:
        """Starts the greenlet that waits for it."""
        gevent.spawn(self._end_when_over)

    def _end_when_over(self) -> None:
        self._over.wait()
        self.stop_sending()
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
            self._drain_until = time.monotonic() + self._drain
        while self.in_flight and self._may_wait():
            gevent.sleep(_LOOK_EVERY)
        try:
            return self.conclude()
        except (OSError, ClientError) as error:
            where = "" if self.folder is None else f"; what was recorded is in {self.folder.path}"
            print(f"error: the run broke off: {error}{where}", file=sys.stderr)
            return INVALID

    def _may_wait(self) -> bool:
        assert self._drain_until is not None
        return time.monotonic() < self._drain_until and self._interrupts < 2 and not self.broken
