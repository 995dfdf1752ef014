"""Slownesses on request, for teaching and testing: `NAME=VALUE` comes in, a Fault goes out.

What each one does is in injection.py; this module knows names, values and their units only.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

LONGEST = 60.0  # seconds; longer pauses are an outage, not a slowness

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = {
    "B": 1.0,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"


class FaultError(ValueError):
    """What was asked for is no fault: names the place, the value and the expected form."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One slowness. `value` is in seconds, bytes a second, a share, a factor or a count."""

    name: str
    value: float
    every: float | None  # seconds, for what comes again and again
    text: str  # as it was given

    def __str__(self) -> str:
        return f"{self.name}={self.text}"


@dataclass(frozen=True, slots=True)
class Kind:
    """`example` shows the value's form; `read` gives None for a value of another form."""

    example: str
    read: Callable[[str], float | None]
    expected: str
    meaning: str
    every: float | None = None  # the period where none is given
    each_step: bool = False  # work in the engine's loop, which `generate` has none of


def parse(text: str, where: str = "inject") -> Fault:
    """`slow-tokenizer=20ms`, `stall=300ms` or `stall=300ms/2s`. Raises FaultError."""
    name, equals, value = text.partition("=")
    kind = KINDS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, KINDS, 1, cutoff=0.5)
        did_you_mean = f"did you mean {near[0]}={KINDS[near[0]].example}? " if near else ""
        raise FaultError(
            f"{where}: there is no fault {name!r:.60}; {did_you_mean}there are {', '.join(KINDS)}"
        )
    amount, slash, period = value.partition("/")
    every = kind.every
    if kind.every is None:
        amount = value  # a rate has a slash of its own
    elif slash:
        every = _duration(period)
    number = kind.read(amount) if equals else None
    if number is None or (kind.every is not None and every is None):
        form = f"{kind.expected}, such as {name}={kind.example}"
        if kind.every is not None:
            form += f", or with its period {name}={kind.example}/{kind.every:g}s"
        raise FaultError(f"{where}: {name} must be {form}; got {value!r:.60}")
    return Fault(name, number, every, value)


def parse_all(texts: Iterable[str], where: str = "inject") -> tuple[Fault, ...]:
    """Several faults at once. Raises FaultError."""
    return tuple(parse(text, where) for text in texts)


def _duration(text: str) -> float | None:
    found = re.fullmatch(_NUMBER + "(us|ms|s)", text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    return seconds if 0 < seconds <= LONGEST else None


def _share(most: float) -> Callable[[str], float | None]:
    def read(text: str) -> float | None:
        found = re.fullmatch(_NUMBER + "%", text)
        share = float(found[1]) / 100 if found else 0.0
        return share if 0 < share <= most else None

    return read


def _factor(text: str) -> float | None:
    found = re.fullmatch(_NUMBER + "x?", text)
    factor = float(found[1]) if found else 0.0
    return factor if 1 < factor <= 1000 else None


def _count(text: str) -> float | None:
    found = re.fullmatch(r"\d{1,9}", text, re.ASCII)
    return float(text) if found and int(text) >= 1 else None


def _rate(text: str) -> float | None:
    found = re.fullmatch(_NUMBER + "([A-Za-z]+)/s", text)
    rate = float(found[1]) * _BYTES.get(found[2], 0.0) if found else 0.0
    return rate if rate > 0 and math.isfinite(rate) else None


_DURATION = "a time with its unit (us, ms, s), at most 60s"
_RATE = "bytes a second with their unit (B, kB, MB, MiB, GB)"

KINDS: dict[str, Kind] = {
    "slow-tokenizer": Kind(
        "20ms", _duration, _DURATION, "burns so much CPU time more to tokenize each prompt"
    ),
    "log-in-decode": Kind(
        "2ms",
        _duration,
        _DURATION,
        "writes JSON log lines for so long in every engine step",
        each_step=True,
    ),
    "blocked-loop": Kind(
        "50ms",
        _duration,
        _DURATION,
        "a call that blocks the event loop for so long, again and again",
        every=0.2,
    ),
    "kv-blocks": Kind("32", _count, "a whole number", "so few KV blocks exist"),
    "slots": Kind("1", _count, "a whole number", "so few sequences may run at a time"),
    "host-bound": Kind(
        "5ms",
        _duration,
        _DURATION,
        "Python computes for so long in every step, after the model",
        each_step=True,
    ),
    "slow-step": Kind("20%", _share(100.0), "a share in %", "each forward takes so much longer"),
    "slow-prefill": Kind(
        "4", _factor, "a factor above 1", "forwards with prompt tokens take so many times as long"
    ),
    "stall": Kind(
        "300ms",
        _duration,
        _DURATION,
        "the engine stands still for so long, again and again",
        every=2.0,
        each_step=True,
    ),
    "leak": Kind("1MB/s", _rate, _RATE, "memory is kept and never given back"),
    "copies": Kind(
        "8",
        _count,
        "a whole number",
        "so many needless copies of 4 MiB to the device and back in every step",
        each_step=True,
    ),
    "error-rate": Kind("1%", _share(1.0), "a share in %, at most 100%", "requests that get a 500"),
    "cut-streams": Kind(
        "1%",
        _share(1.0),
        "a share in %, at most 100%",
        "streams that are closed early, with neither finish reason nor [DONE]",
    ),
    "slow-writer": Kind(
        "2kB/s", _rate, _RATE, "each streamed answer leaves no faster, as if its reader were slow"
    ),
}
