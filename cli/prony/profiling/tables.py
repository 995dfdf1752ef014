"""Profiles in a terminal: facts in, tables out."""

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prony.profiling.facts import ProfileFacts, ThreadFrames
from prony_loadgen.words import ms, share

ROWS: Final = 12  # of operators, and of each thread's functions
THREADS: Final = 4  # shown
LEAST: Final = 0.01  # of all threads' active time: a thread that did less is not shown
_NAME: Final = 68  # characters of a kernel's name, which may have a thousand


def profile_table(facts: ProfileFacts) -> RenderableType:
    """The page that `prony profile` prints."""
    return Group(*_parts(facts))


def idle_words(facts: ProfileFacts) -> str | None:
    """The GPU's time in one line; None where there is none."""
    split = facts.idle
    if split is None:
        return None
    line = (
        f"GPU busy {share(split.busy)} of {split.span:.2f} s; idle {share(split.idle)}: "
        f"{share(split.host_wait)} host wait, {share(split.kernel_wait)} kernel wait, "
        f"{share(split.other)} other"
    )
    if facts.gaps is not None:
        gaps = facts.gaps
        line += f"; {gaps.count:,} gaps, p50 {_short(gaps.p50)}, p99 {_short(gaps.p99)}"
    return line


def copies_words(facts: ProfileFacts) -> str | None:
    """What copying took; None where the profile cannot tell."""
    if facts.memcpy_share is None:
        return None
    where = "of the GPU's time" if facts.idle is not None else "of the operators' time"
    size = "" if facts.memcpy_bytes is None else f", {facts.memcpy_bytes / 1e6:,.1f} MB"
    return f"copies take {share(facts.memcpy_share)} {where}{size}"


def _parts(facts: ProfileFacts) -> Iterator[RenderableType]:
    yield Text(f"{facts.seconds:.2f} s profiled: {', '.join(facts.files) or 'no file'}", "dim")
    for line in (idle_words(facts), copies_words(facts)):
        if line is not None:
            yield Text(line)
    for device in ("gpu", "cpu"):
        if any(operator.device == device for operator in facts.operators):
            yield Text("")
            yield _operators(facts, device)
    for thread in facts.threads[:THREADS]:
        if thread.share >= LEAST:
            yield Text("")
            yield _functions(thread)
    for note in facts.notes:
        yield Text(f"note: {note}", "yellow")


def _operators(facts: ProfileFacts, device: str) -> Table:
    table = _table()
    table.add_column("GPU work" if device == "gpu" else "operator (CPU)", overflow="fold")
    for title in ("self", "share", "total", "calls"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in [o for o in facts.operators if o.device == device][:ROWS]:
        cells = (ms(each.seconds), share(each.share), ms(each.total), f"{each.calls:,}")
        table.add_row(Text(short(each.name)), *cells)
    return table


def _functions(thread: ThreadFrames) -> Table:
    table = _table()
    table.add_column(Text(f"{thread.thread}, active {thread.seconds:.2f} s"), overflow="fold")
    for title in ("inclusive", "self"):
        table.add_column(title, justify="right", no_wrap=True)
    for frame in thread.telling(ROWS):
        file = frame.file.rsplit("/", 2)
        name = Text.assemble(short(frame.name), ("  " + "/".join(file[-2:]), "dim"))
        table.add_row(name, share(frame.total_share), share(frame.self_share))
    return table


def short(name: str) -> str:
    """A kernel's name as people can read it."""
    return name if len(name) <= _NAME else name[: _NAME - 1] + "…"


def _short(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs" if seconds < 1e-3 else ms(seconds)


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
