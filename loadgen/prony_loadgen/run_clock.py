"""One clock for the workers of a run: readings of two monotonic clocks in, their difference out.

No wall clock is believed. Processes of one machine share its monotonic clock, so there the
difference is 0; between machines it is found as NTP does it, by asking and halving the way.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Asked(NamedTuple):
    """One exchange: our clock when we asked and when we heard, theirs in between. Seconds."""

    asked: float
    theirs: float
    heard: float


@dataclass(frozen=True, slots=True)
class Offset:
    """Their monotonic clock less ours, in seconds, and by how much that may be wrong."""

    seconds: float
    uncertainty: float


def offset(exchanges: Iterable[Asked]) -> Offset:
    """From the exchange that took least (Cristian, Distributed Computing 3, 1989)."""
    best = min(exchanges, key=lambda each: each.heard - each.asked)
    way = (best.heard - best.asked) / 2
    return Offset(best.theirs - best.asked - way, way)


def clock_name() -> str | None:
    """The same in two processes where they have one monotonic clock; None where nobody tells."""
    if sys.platform != "linux":
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # A container may have a clock with an offset of its own.
        namespace = Path("/proc/self/ns/time")
        return f"{boot} {namespace.readlink() if namespace.exists() else ''}"
    except OSError:
        return None
