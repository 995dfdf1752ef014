"""What py-spy saw: a speedscope file in, each thread's Python functions with their shares out.

`py-spy record --format speedscope` writes a profile a thread: stacks, outermost first, and the
seconds that each stands for. By its own rule it leaves out samples in which a thread waited, so
shares are of the time in which the thread was active.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from prony.profiling.call_tree import Node, printable
from prony.profiling.facts import Frame, ProfileFacts, ThreadFrames

LARGEST: Final = 512 << 20  # bytes
TOP: Final = 60  # functions kept of a thread, by own and by inclusive time
# The functions below which the model runs: torch's own name for it, and a CUDA graph's.
IN_MODEL: Final = ("forward", "replay")
ON_PATH: Final = 0.6  # of a function's time: what the heaviest of those it calls must take

Function = tuple[str, str]  # its name and its file

# What `py-spy record --threads` puts below every stack of a thread.
_ROOT: Final = re.compile(r"thread \(\d+\)")
_SECONDS: Final = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}


class StacksError(ValueError):
    """The file holds no stacks that can be read; the message names it and what is wrong."""


@dataclass(frozen=True, slots=True)
class ThreadStacks:
    """One thread's samples."""

    thread: str
    frames: tuple[Function, ...]  # name and file of each function
    samples: tuple[tuple[tuple[int, ...], float], ...]  # numbers of frames, and seconds

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.samples)

    def tree(self) -> Node:
        """Its samples, merged by the names of their functions."""
        root = Node(self.thread)
        for stack, seconds in self.samples:
            root.add([self.frames[number][0] for number in stack], seconds)
        return root


def read_stacks(path: Path) -> list[ThreadStacks]:
    """The threads of a speedscope file, the most active first. Raises StacksError and OSError."""
    if path.stat().st_size > LARGEST:
        raise StacksError(f"{path.name}: larger than {LARGEST >> 20} MiB")
    try:
        told = json.loads(path.read_bytes())
        frames = tuple(
            (printable(frame.get("name", "?")), _place(frame)) for frame in told["shared"]["frames"]
        )
        threads = [_thread(profile, frames) for profile in told["profiles"]]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise StacksError(
            f"{path.name}: not a speedscope file ({type(error).__name__}: {error})"
        ) from None
    return sorted(threads, key=lambda thread: -thread.seconds)


def stacks_facts(path: Path) -> ProfileFacts:
    """All facts of a speedscope file. Raises StacksError and OSError."""
    return facts_of(read_stacks(path), path.name)


def facts_of(threads: Sequence[ThreadStacks], name: str) -> ProfileFacts:
    """All facts of threads that were read from the file `name`."""
    everything = sum(thread.seconds for thread in threads)
    notes = () if everything else (f"{name}: no thread was seen at work",)
    return ProfileFacts(
        files=(name,),
        seconds=max((thread.seconds for thread in threads), default=0.0),
        threads=tuple(_frames(t, everything) for t in threads if t.seconds > 0),
        notes=notes,
    )


def _thread(profile: dict[str, Any], frames: tuple[Function, ...]) -> ThreadStacks:
    if profile["type"] != "sampled":
        raise ValueError(f"a profile of type {profile['type']!r:.40}; expected 'sampled'")
    unit = _SECONDS[profile["unit"]]
    roots = {number for number, (name, _) in enumerate(frames) if _ROOT.match(name)}
    samples = tuple(
        (tuple(int(number) for number in stack if number not in roots), float(weight) * unit)
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True)
    )
    if any(not 0 <= number < len(frames) for stack, _ in samples for number in stack):
        raise ValueError("a stack with a frame that is not listed")
    samples = tuple((stack, seconds) for stack, seconds in samples if stack)
    return ThreadStacks(printable(profile["name"]), frames, samples)


def _place(frame: dict[str, Any]) -> str:
    return printable(frame.get("file") or "")


def _frames(thread: ThreadStacks, everything: float) -> ThreadFrames:
    own: dict[Function, float] = {}
    total: dict[Function, float] = {}
    callers: dict[Function, dict[str, float]] = {}
    callees: dict[Function, dict[Function, float]] = {}
    for stack, seconds in thread.samples:
        functions = [thread.frames[number] for number in stack]
        own[functions[-1]] = own.get(functions[-1], 0.0) + seconds
        for function in set(functions):
            total[function] = total.get(function, 0.0) + seconds
        # Of a function that calls itself, the outermost call's caller is who wanted it.
        outermost = {called: caller for caller, called in reversed(list(pairwise(functions)))}
        for called, (name, _) in outermost.items():
            by = callers.setdefault(called, {})
            by[name] = by.get(name, 0.0) + seconds
        for caller, called in set(pairwise(functions)):
            if caller != called:
                to = callees.setdefault(caller, {})
                to[called] = to.get(called, 0.0) + seconds
    whole = thread.seconds
    frames = [
        Frame(
            name,
            file,
            own.get((name, file), 0.0) / whole,
            seconds / whole,
            _most(callers.get((name, file), {})),
            max(callees.get((name, file), {}).values(), default=0.0) / seconds,
        )
        for (name, file), seconds in total.items()
    ]
    by_total = sorted(frames, key=lambda frame: (-frame.total_share, -frame.self_share))
    by_own = sorted(frames, key=lambda frame: -frame.self_share)[:TOP]
    kept = {*by_total[:TOP], *by_own}
    return ThreadFrames(
        thread=thread.thread,
        seconds=whole,
        share=whole / everything,
        frames=tuple(frame for frame in by_total if frame in kept),
        host_spot=_host_spot(thread),
    )


def _host_spot(thread: ThreadStacks) -> tuple[str, float] | None:
    """Down the heaviest path of the samples outside the model, as far as it stays one path."""
    root = Node(thread.thread)
    for stack, seconds in thread.samples:
        names = [thread.frames[number][0] for number in stack]
        if not any(name.rsplit(".", 1)[-1] in IN_MODEL for name in names):
            root.add(names, seconds)
    node = root
    while node.children:
        heaviest = max(node.children.values(), key=lambda child: child.total)
        if heaviest.total < ON_PATH * node.total:
            break
        node = heaviest
    return None if node is root else (node.name, node.total / thread.seconds)


def _most(seconds: dict[str, float]) -> str:
    return max(seconds, key=lambda name: seconds[name], default="")
