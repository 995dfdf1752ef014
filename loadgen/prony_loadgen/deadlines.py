"""Time limits that are the same for all: started in order, so they end in order."""

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Alarm:
    """When to look at some limits at the latest: none of them ends before `at`."""

    def __init__(self) -> None:
        self.at = math.inf

    def no_later(self, end: float) -> None:
        if end < self.at:
            self.at = end


class TimeLimit(Generic[T]):
    """A limit of `seconds` for each thing added; None is no limit. All costs are constant."""

    def __init__(self, seconds: float | None, alarm: Alarm) -> None:
        self.seconds = seconds
        self._alarm = alarm
        self._ends: OrderedDict[T, float] = OrderedDict()

    def add(self, thing: T, now: float) -> None:
        """Starts its time, where it is not running already."""
        if self.seconds is not None:
            self._alarm.no_later(self._ends.setdefault(thing, now + self.seconds))

    def restart(self, thing: T, now: float) -> None:
        """Gives it its whole time again from `now`, no earlier than any time so far."""
        if self.seconds is not None:
            self._ends.pop(thing, None)
            self._ends[thing] = now + self.seconds
            self._alarm.no_later(now + self.seconds)

    def discard(self, thing: T) -> None:
        self._ends.pop(thing, None)

    def next(self) -> float:
        """When the first one ends; infinity where none is running."""
        return next(iter(self._ends.values()), math.inf)

    def over(self, now: float) -> list[T]:
        """Takes out those whose time is up."""
        ended = []
        for thing, end in self._ends.items():
            if end > now:
                break
            ended.append(thing)
        for thing in ended:
            del self._ends[thing]
        return ended
