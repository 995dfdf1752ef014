"""What a Chrome trace shows: its columns in; operators, the GPU's idle time and copies out.

The split of idle time is HTA's (facebookresearch/HolisticTraceAnalysis, BreakdownAnalysis.
get_idle_time_breakdown), with two changes. It is of the whole device and not of each stream, for
a stream that waits while another works costs nothing. And a gap counts as kernel wait up to 5 us:
HTA's own default of 30 ns is a parameter there, and below what a queued launch takes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from prony.profiling.call_tree import Node
from prony.profiling.facts import IdleSplit, LaunchGaps, Operator, ProfileFacts
from prony.profiling.trace import GpuWork, Trace, call_tree, read_trace

CONSECUTIVE: Final = 5e-6  # seconds between kernels that were queued one behind the other
TOP: Final = 30  # operators kept, of each device
# Copies on a CPU; on a GPU the trace marks them.
COPIES: Final = ("aten::copy_", "aten::_to_copy", "aten::clone", "aten::contiguous")
GPU_ONLY: Final = "no GPU in the trace: there is no split of its idle time"


def trace_facts(path: Path) -> ProfileFacts:
    """All facts of the trace at `path`. Raises TraceError and OSError."""
    return facts_of(read_trace(path), path.name)


def facts_of(trace: Trace, name: str) -> ProfileFacts:
    """All facts of a trace that was read from the file `name`."""
    trees = {thread: call_tree(trace, thread) for thread in trace.threads}
    python = {trace.names[number] for number in trace.python}
    on_cpu = _operators(trees.values(), python)
    facts = ProfileFacts(
        files=(name,),
        seconds=trace.seconds,
        operators=tuple(_top([*on_cpu, *_kernels(trace)])),
        cpu_busy=tuple(_busy(trace, trees.values())),
        notes=tuple(trace.notes),
    )
    if not trace.gpu:
        own = sum(each.seconds for each in on_cpu)
        copied = sum(each.seconds for each in on_cpu if each.name in COPIES)
        share = copied / own if own else None
        return replace(facts, memcpy_share=share, notes=(*facts.notes, GPU_ONLY))
    split, gaps, copied = _devices(trace)
    size = sum(work.size for works in trace.gpu.values() for work in works if work.copy)
    return replace(facts, idle=split, gaps=gaps, memcpy_share=copied, memcpy_bytes=size or None)


def _operators(trees: Iterable[Node], python: set[str]) -> list[Operator]:
    """Every operator of all threads; of Python functions only what they called."""
    own: dict[str, float] = {}
    total: dict[str, float] = {}
    calls: dict[str, int] = {}
    for tree in trees:
        waiting: list[tuple[Node, frozenset[str]]] = [(tree, frozenset())]
        while waiting:
            node, above = waiting.pop()
            if node is not tree and node.name not in python:
                own[node.name] = own.get(node.name, 0.0) + node.own
                calls[node.name] = calls.get(node.name, 0) + node.calls
                if node.name not in above:
                    total[node.name] = total.get(node.name, 0.0) + node.total
                    above = above | {node.name}
            waiting += [(child, above) for child in node.children.values()]
    return _shared(own, total, calls, "cpu")


def _kernels(trace: Trace) -> list[Operator]:
    own: dict[str, float] = {}
    calls: dict[str, int] = {}
    for works in trace.gpu.values():
        for work in works:
            name = trace.names[work.name]
            own[name] = own.get(name, 0.0) + work.end - work.start
            calls[name] = calls.get(name, 0) + 1
    return _shared(own, own, calls, "gpu")


def _shared(
    own: dict[str, float], total: dict[str, float], calls: dict[str, int], device: str
) -> list[Operator]:
    everything = sum(own.values())
    return [
        Operator(name, device, seconds, total.get(name, seconds), calls[name],
                 seconds / everything if everything else 0.0)
        for name, seconds in own.items()
    ]  # fmt: skip


def _top(operators: Sequence[Operator]) -> Iterator[Operator]:
    left = {"cpu": TOP, "gpu": TOP}
    for operator in sorted(operators, key=lambda each: -each.seconds):
        if left[operator.device] > 0:
            left[operator.device] -= 1
            yield operator


def _busy(trace: Trace, trees: Iterable[Node]) -> Iterator[tuple[str, float]]:
    for tree in sorted(trees, key=lambda each: -each.total):
        if trace.seconds > 0:
            yield tree.name, min(1.0, tree.total / trace.seconds)


def _devices(trace: Trace) -> tuple[IdleSplit, LaunchGaps | None, float]:
    """The split over all devices together, their gaps, and the share of the span in copies."""
    spans = busy = host = kernel = other = copied = 0.0
    gaps: list[float] = []
    delays: list[float] = []
    for works in trace.gpu.values():
        works = sorted(works)
        reached = works[0].start
        first = reached
        for work in works:
            launched = trace.launched.get(work.correlation)
            if launched is not None:
                delays.append(max(0.0, work.start - launched))
            gap = work.start - reached
            if gap > 0:
                gaps.append(gap)
                if launched is not None and launched > reached:
                    host += gap
                elif launched is not None and gap < CONSECUTIVE:
                    kernel += gap
                else:
                    other += gap
            busy += max(0.0, work.end - max(reached, work.start))
            reached = max(reached, work.end)
        spans += reached - first
        copied += _covered([work for work in works if work.copy])
    whole = spans or 1.0
    split = IdleSplit(spans, busy / whole, host / whole, kernel / whole, other / whole)
    return split, _gaps(gaps, delays), copied / whole


def _covered(works: Sequence[GpuWork]) -> float:
    """Seconds in which at least one of them ran; they are in order."""
    seconds, reached = 0.0, float("-inf")
    for work in works:
        seconds += max(0.0, work.end - max(reached, work.start))
        reached = max(reached, work.end)
    return seconds


def _gaps(gaps: list[float], delays: list[float]) -> LaunchGaps | None:
    if not gaps:
        return None
    gaps.sort()
    delays.sort()
    return LaunchGaps(
        count=len(gaps),
        p50=_rank(gaps, 0.5),
        p99=_rank(gaps, 0.99),
        longest=gaps[-1],
        delay_p50=_rank(delays, 0.5) if delays else None,
    )


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, max(0, int(share * len(ordered) + 0.999999) - 1))]
