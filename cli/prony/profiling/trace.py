"""A Chrome trace as columns: its file in, the work of each thread and GPU out, and a tree of calls.

Twenty-odd bytes an event are kept, of a bounded number of events; a longer trace is cut, and says
so. Times are seconds on the trace's own clock.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

from prony.profiling.call_tree import MOST_NODES, Node, printable
from prony.profiling.trace_events import TraceError, trace_events

MOST_EVENTS: Final = 2_000_000
ON_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES: Final = ("cuda_runtime", "cuda_driver")
PYTHON: Final = "python_function"
# What stands in a trace beside the work itself, or repeats it.
NOT_WORK: Final = ("Trace", "overhead", "gpu_user_annotation", "async_gpu", "fwdbwd", "ac2g")
ROUNDED: Final = 5e-7  # seconds; a Unix time in microseconds as a float is known to half of it

Thread = tuple[str, str]  # process and thread as the trace numbers them


@dataclass(slots=True)
class Calls:
    """One thread's events, in the order of the file."""

    starts: "array[float]" = field(default_factory=lambda: array("d"))
    lengths: "array[float]" = field(default_factory=lambda: array("d"))
    names: "array[int]" = field(default_factory=lambda: array("L"))

    def in_order(self) -> Iterator[tuple[float, float, int]]:
        """Start, end and name, each caller before what it called."""
        order = sorted(range(len(self.starts)), key=lambda i: (self.starts[i], -self.lengths[i]))
        for i in order:
            yield self.starts[i], self.starts[i] + self.lengths[i], self.names[i]


class GpuWork(NamedTuple):
    """One kernel, copy or fill."""

    start: float
    end: float
    name: int
    copy: bool
    size: int  # bytes of a copy; 0 where the trace does not tell
    correlation: int
    stream: int


@dataclass(slots=True)
class Trace:
    """What a trace holds that anybody here asks for."""

    names: list[str] = field(default_factory=list)
    python: set[int] = field(default_factory=set)  # names of Python functions, not of operators
    threads: dict[Thread, Calls] = field(default_factory=dict)
    called: dict[Thread, str] = field(default_factory=dict)  # threads' own names
    gpu: dict[str, list[GpuWork]] = field(default_factory=dict)  # of each device
    launched: dict[int, float] = field(default_factory=dict)  # correlation -> launch began
    start: float = float("inf")
    end: float = float("-inf")
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)

    def thread_name(self, thread: Thread) -> str:
        return self.called.get(thread) or f"thread {thread[1]}"


def read_trace(path: Path, most: int = MOST_EVENTS) -> Trace:
    """Reads the trace at `path`, at most so many events. Raises TraceError and OSError."""
    trace = Trace()
    numbers: dict[str, int] = {}
    taken = 0
    for event in trace_events(path, trace.notes.append):
        if event.get("ph") == "M":
            _name_thread(trace, event)
        elif event.get("ph") == "X" and event.get("cat") not in NOT_WORK:
            taken += _take(trace, numbers, event)
            if taken >= most:
                trace.notes.append(f"{path.name} is cut: its first {most:,} events are read")
                break
    trace.names = list(numbers)
    if not taken:
        raise TraceError(f"{path.name}: a trace without a single timed event")
    return trace


def call_tree(trace: Trace, thread: Thread) -> Node:
    """One thread's calls, merged by name under the same caller."""
    root = Node(trace.thread_name(thread))
    stack: list[tuple[float, float, Node]] = []  # end, own time so far, node
    made = 0

    def leave() -> None:
        _, own, node = stack.pop()
        node.own += max(0.0, own)

    for start, end, number in trace.threads[thread].in_order():
        while stack and _is_over(stack[-1][0], start, end):
            leave()
        parent = root
        if stack:
            outer_end, own, parent = stack[-1]
            # Clocks are rounded: what was called may seem to outlive its caller.
            end = min(end, outer_end)
            stack[-1] = (outer_end, own - (end - start), parent)
        else:
            root.total += end - start
        name = trace.names[number]
        if name not in parent.children:
            made += 1
        node = parent.child(name) if made <= MOST_NODES else parent
        node.total += end - start
        node.calls += 1
        stack.append((end, end - start, node))
    while stack:
        leave()
    return root


def _is_over(outer_end: float, start: float, end: float) -> bool:
    """Whether what ends at `outer_end` is over where a call from `start` to `end` begins."""
    return outer_end <= start or (start > outer_end - ROUNDED and end > outer_end)


def _name_thread(trace: Trace, event: dict[str, Any]) -> None:
    if event.get("name") == "thread_name":
        told = _args(event).get("name")
        if told:
            trace.called[_thread(event)] = printable(told)


def _take(trace: Trace, numbers: dict[str, int], event: dict[str, Any]) -> bool:
    """Whether it was an event with a time."""
    try:
        start, length = float(event["ts"]) / 1e6, float(event.get("dur", 0)) / 1e6
    except (KeyError, TypeError, ValueError):
        return False
    if not (isfinite(start) and 0 <= length < inf):
        return False
    category = event.get("cat")
    name = numbers.setdefault(printable(event.get("name", "?")), len(numbers))
    trace.start, trace.end = min(trace.start, start), max(trace.end, start + length)
    args = _args(event)
    if category in ON_GPU:
        work = GpuWork(
            start, start + length, name,
            copy=category == "gpu_memcpy",
            size=_whole(args.get("bytes")),
            correlation=_whole(args.get("correlation")),
            stream=_whole(args.get("stream", event.get("tid"))),
        )  # fmt: skip
        trace.gpu.setdefault(str(args.get("device", event.get("pid"))), []).append(work)
        return True
    if category in LAUNCHES and (correlation := _whole(args.get("correlation"))):
        trace.launched[correlation] = start
    if category == PYTHON:
        trace.python.add(name)
    calls = trace.threads.setdefault(_thread(event), Calls())
    calls.starts.append(start)
    calls.lengths.append(length)
    calls.names.append(name)
    return True


def _thread(event: dict[str, Any]) -> Thread:
    return str(event.get("pid")), str(event.get("tid"))


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _whole(told: object) -> int:
    return told if isinstance(told, int) and not isinstance(told, bool) else 0
