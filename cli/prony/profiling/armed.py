"""A run that profiles its target: a judge goes in; one that also takes captures comes out.

`on-breach` watches the run's own SLO by a rolling rule (rule.py), `at=30s` waits for its moment.
Until then one thread sleeps and wakes once a second. Requests in flight while a profiler was at
work are no evidence: the gate leaves them out, and so does whatever might end the run early.
"""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from prony.beside import Beside
from prony.output import unless_unwritable
from prony.profiling.captures import FOLDER, Capture, write_captures
from prony.profiling.hook import (
    MOST_SECONDS,
    MOST_STEPS,
    STOP_WITHIN,
    Bounds,
    Hook,
    HookError,
    capture,
    collect,
    find_hook,
)
from prony.profiling.rule import Broken, Rule
from prony_loadgen import native
from prony_loadgen.folder import RunFolder
from prony_loadgen.plan import Plan
from prony_loadgen.record import RequestRecord
from prony_loadgen.settings import Judge
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.summary import in_flight
from prony_loadgen.target import Target
from prony_slo.promise import SloFile

EVERY: Final = 1.0  # seconds between two looks at the rule
SETTLE: Final = 1.0  # seconds after a capture in which a server still works off what queued up
MOST_CAPTURES: Final = 20
MOST_IDS: Final = 1_000  # of requests in flight that run.json lists, of each capture

_AT: Final = re.compile(r"at=(\d+(?:\.\d+)?)(ms|s|m)?")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}


@dataclass(frozen=True, slots=True)
class Asked:
    """When a run is to profile its target, and how much."""

    text: str  # as it was asked: "on-breach", "at=30s"
    at: float | None  # seconds on the run's clock; None: on a breach
    bounds: Bounds
    captures: int  # at most
    cooldown: float  # seconds from one capture's end to the next


def parse_asked(
    text: str,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    captures: int | None = None,
    cooldown: float | None = None,
) -> Asked:
    """What --profile and its like ask for. Raises FileError, which names the value."""
    found = _AT.fullmatch(text)
    if text != "on-breach" and found is None:
        raise FileError([f"--profile {text:.60}: expected on-breach, or at=TIME such as at=30s"])
    _within("--profile-seconds", seconds, 0.1, MOST_SECONDS)
    _within("--profile-steps", steps, 1, MOST_STEPS)
    _within("--profile-captures", captures, 1, MOST_CAPTURES)
    _within("--profile-cooldown", cooldown, 1, 86_400)
    default = Bounds()
    return Asked(
        text,
        None if found is None else float(found[1]) * _UNITS[found[2]],
        Bounds(default.seconds if seconds is None else seconds, steps),
        1 if captures is None else captures,
        60.0 if cooldown is None else cooldown,
    )


class Profiling(Beside):
    """A judge whose run also takes captures of the target."""

    def __init__(
        self,
        judge: Judge,
        slo: SloFile | None,
        target: Target,
        asked: Asked,
        *,
        folder: str | None = None,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        """`folder` is where the server writes, if this machine sees it.

        Raises FileError where a breach is to be seen and no objective can show one.
        """
        super().__init__(judge)
        self._slo, self._target, self._asked = slo, target, asked
        self._folder, self._say = folder, say
        if asked.at is None and (slo is None or not Rule(slo, (0, 0)).objectives):
            raise FileError(
                ["--profile on-breach: needs an SLO with an objective about single requests, "
                 "such as --slo 'ttft p99 < 500ms'"]
            )  # fmt: skip
        self._rule: Rule | None = None
        self._hook: Hook | None = None
        self._origin = 0.0  # Unix time
        self._captures: list[Capture] = []
        self._began: float | None = None  # the capture under way, Unix time
        # Held while it goes on: a wait with a timeout sleeps until somebody ends it.
        self._going, self._over = native.allocate_lock(), native.allocate_lock()
        self._started = False

    @property
    def watching(self) -> bool:
        return self._asked.at is None or self._judge.watching

    def plan(self, plan: Plan, window: tuple[float, float]) -> list[str]:
        """Raises FileError where it is certain that the target has no hook."""
        lines = self._judge.plan(plan, window)
        try:
            self._hook = find_hook(self._target, self._folder)
        except HookError as error:
            raise FileError([f"--profile: {error}"]) from None
        if self._slo is not None and self._asked.at is None:
            self._rule = Rule(self._slo, window)
            watched = ", ".join(self._rule.objectives)
            lines = [*lines, f"profile: armed on a breach of {watched}"]
        return lines

    def begin(self, origin_unix: float) -> None:
        self._origin = origin_unix
        self._judge.begin(origin_unix)
        self._going.acquire()
        self._over.acquire()
        self._started = True
        native.start_new_thread(self._keep, ())

    def breached(self, record: RequestRecord) -> str | None:
        if self._rule is not None:
            self._rule.add(record)
        if in_flight(record, self._disturbed()):
            return None
        return self._judge.breached(record)

    def finish(self, folder: RunFolder) -> int:
        """Called after the load: ends what is under way, fetches, marks, and lets it be judged."""
        if self._started:
            self._started = False
            self._going.release()
            if self._began is not None:
                self._say("profile: waiting for the capture under way")
            self._over.acquire(timeout=2 * STOP_WITHIN)
        facts = folder.read_run()
        captures = list(self._captures)
        with unless_unwritable(folder.path):
            if captures and self._hook is not None:
                into = folder.path / FOLDER
                captures = [
                    collect(self._hook, made, into, number)
                    for number, made in enumerate(captures, start=1)
                ]
                write_captures(into, captures)
            facts["profile"] = self._facts(captures, facts, list(folder.records()))
            folder.write_run(facts)
        return self._judge.finish(folder)

    def _keep(self) -> None:
        try:
            if self._asked.at is None:
                self._on_breach()
            elif not self._wait(max(0.0, self._origin + self._asked.at - time.time())):
                self._take(f"at {self._asked.at:g} s", None)
        finally:
            self._over.release()

    def _on_breach(self) -> None:
        assert self._rule is not None
        next_one = 0.0
        while len(self._captures) < self._asked.captures and not self._wait(EVERY):
            broken = self._rule.tick()
            if broken is not None and time.monotonic() >= next_one:
                self._take(f"on breach: {broken.reason}", broken)
                self._rule.forget()
                next_one = time.monotonic() + self._asked.cooldown

    def _take(self, why: str, broken: Broken | None) -> None:
        assert self._hook is not None
        self._began = time.time()
        self._say(f"profile: {why}")
        made = capture(
            self._hook, self._asked.bounds, why, self._wait,
            breached=None if broken is None else self._origin + broken.since,
        )  # fmt: skip
        self._captures.append(made)
        self._began = None
        if made.failure:
            self._say(f"profile: {made.failure}")

    def _wait(self, seconds: float) -> bool:
        """Sleeps; True where the run is over."""
        if self._going.acquire(timeout=seconds):
            self._going.release()
            return True
        return False

    def _disturbed(self) -> list[tuple[float, float]]:
        """When a profiler was at work so far, on the run's clock."""
        spans = [_span(made, self._origin) for made in self._captures if not made.refused]
        if (began := self._began) is not None:
            spans.append((began - self._origin, float("inf")))
        return spans

    def _facts(
        self, captures: list[Capture], facts: dict[str, Any], records: list[RequestRecord]
    ) -> dict[str, Any]:
        """What run.json says of it."""
        end = max((record.ended for record in records), default=facts["window"][1])
        told = []
        for made in captures:
            if made.refused:
                continue
            left_out = _span(made, self._origin, end)
            window = (made.began - self._origin, (made.ended or 0.0) - self._origin)
            if made.ended is None:
                window = left_out
            there = [record.id for record in records if in_flight(record, [window])]
            told.append(
                {
                    "window": [round(edge, 3) for edge in window],
                    "left_out": [round(edge, 3) for edge in left_out],
                    "why": made.why,
                    "breached": _at(made.breached, self._origin),
                    "files": [f"{FOLDER}/{name}" for name in made.files],
                    "on_server": made.on_server,
                    "failure": made.failure,
                    "requests": {"count": len(there), "ids": there[:MOST_IDS]},
                }
            )
        failures = [made.failure for made in captures if made.refused]
        if self._asked.at is not None and not captures:
            failures.append(f"the run was over before {self._asked.at:g} s")
        return {
            "asked": self._asked.text,
            "engine": None if self._hook is None else self._hook.kind.name,
            "captures": told,
            "failures": failures,
        }


def _span(made: Capture, origin: float, end: float = float("inf")) -> tuple[float, float]:
    """What a capture disturbs, on the run's clock; one whose end nobody told, all that follows."""
    start = made.began - origin
    last = end if made.ended is None else made.ended + SETTLE - origin
    return start, max(start, last)


def _at(moment: float | None, origin: float) -> float | None:
    return None if moment is None else round(moment - origin, 3)


def _within(option: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise FileError([f"{option} {value:g}: expected {least:g} to {most:,g}"])


def profiled(judge: Any, target: Target, text: str) -> Judge:
    """The entry point prony.profile: what a `locust -f` with --profile is judged by."""
    return Profiling(judge, judge.slo, target, parse_asked(text))
