"""Profiles on a page: a folder of captures in; sections with tables, flame graphs, timelines out.

All of it is HTML and CSS within the page: nothing is loaded from anywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from prony.profiling import stacks, trace_facts
from prony.profiling.boxes import Box, boxes_html, busy_parts, flame, strip_html
from prony.profiling.captures import FOLDER, kind, profile_files
from prony.profiling.facts import ProfileFacts
from prony.profiling.stacks import StacksError, read_stacks
from prony.profiling.tables import LEAST, copies_words, idle_words, short
from prony.profiling.trace import Trace, call_tree, read_trace
from prony.profiling.trace_events import TraceError
from prony_loadgen.report import PAGE, Section
from prony_loadgen.words import ms, share

OWN: Final = Path(__file__).parent / "page"
FILES: Final = 6  # shown, of a run with many captures
THREADS: Final = 4  # of each file
ROWS: Final = 12
PARTS: Final = 400  # of a strip
EXCERPT: Final = 1_200  # events of the stretch that is drawn one by one
LEVELS: Final = 8
IDS: Final = 12

SPLIT: Final = (("busy", "--good"), ("host_wait", "--bad"), ("kernel_wait", "--warn"),
                ("other", "--none"))  # fmt: skip


def profile_sections(folder: Path, run: Mapping[str, Any] | None = None) -> list[Section]:
    """The sections of a run's report; none where it has no profile and asked for none."""
    asked = (run or {}).get("profile")
    files = profile_files(folder) if (folder / FOLDER).is_dir() else []
    if not asked and not files:
        return []
    parts = [*_captures(asked or {}), *_views(files[:FILES])]
    if len(files) > FILES:
        parts.append(f'<p class="note">{len(files) - FILES} more files lie in {FOLDER}/.</p>')
    note = (
        "What the server did while it was profiled. Requests in flight then are in no figure of "
        "this report."
        if asked
        else "What the server did while it was profiled."
    )
    return [Section("profile", "Inside the server", note, Markup("".join([*parts, _own()])))]


def profile_page(path: Path) -> str:
    """A page of its own on a file, or a folder of them. Opens anywhere, offline."""
    css = (PAGE / "page.css").read_text(encoding="utf-8")
    body = "".join(_views(profile_files(path)[:FILES]))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">"
        f"<title>profile of {escape(path.name)}</title><style>{css}</style></head>"
        f"<body><main><section><h2>{escape(path.name)}</h2>{body}{_own()}</section></main>"
        "</body></html>\n"
    )


def _own() -> str:
    css, js = ((OWN / f"profile.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return f"<style>{css}</style><script>{js}</script>"


def _captures(asked: Mapping[str, Any]) -> Iterator[str]:
    for each in asked.get("captures") or ():
        start, end = each["window"]
        requests = each.get("requests") or {}
        ids = [str(id) for id in requests.get("ids") or ()]
        more = f" and {requests['count'] - IDS:,} more" if len(ids) > IDS else ""
        told = [
            f"<b>{escape(str(each.get('why')))}</b>: {start:.2f} s to {end:.2f} s of the run",
            f"{requests.get('count', 0):,} requests in flight: {escape(', '.join(ids[:IDS]))}{more}"
            if ids
            else "no request was in flight",
        ]
        if (breached := each.get("breached")) is not None:
            told.insert(1, f"captured {ms(max(0.0, start - breached))} after the breach")
        if each.get("on_server"):
            told.append(f"its files lie {escape(str(each['on_server']))}")
        if each.get("failure"):
            told.append(escape(str(each["failure"])))
        yield f"<p>{'; '.join(told)}.</p>"
    for failure in asked.get("failures") or ():
        yield f'<p class="note">No capture: {escape(str(failure))}</p>'
    if not asked.get("captures") and not asked.get("failures") and asked.get("asked"):
        yield f'<p class="note">Armed ({escape(str(asked["asked"]))}), and nothing set it off.</p>'


def _views(files: list[Path]) -> Iterator[str]:
    for path in files:
        yield f"<h3>{escape(path.name)}</h3>"
        try:
            yield from _stacks(path) if kind(path) == "stacks" else _trace(path)
        except (TraceError, StacksError, OSError) as error:
            yield f'<p class="note">It cannot be read: {escape(str(error))}</p>'


def _stacks(path: Path) -> Iterator[str]:
    threads = read_stacks(path)
    facts = stacks.facts_of(threads, path.name)
    yield from _notes(facts)
    for told, seen in list(zip(threads, facts.threads, strict=False))[:THREADS]:
        if seen.share < LEAST:
            continue
        yield (
            f'<p class="note">{escape(seen.thread)}: active {seen.seconds:.2f} s of what was '
            "sampled. Width is time, callers stand above what they called; click to look closer."
            "</p>"
        )
        yield boxes_html(flame(told.tree()), f"flame graph of {seen.thread}", "flame")
        rows = [
            (frame.name, frame.file.rsplit("/", 1)[-1], share(frame.total_share),
             share(frame.self_share))
            for frame in seen.telling(ROWS)
        ]  # fmt: skip
        yield _table(("function", "file", "inclusive", "self"), rows, numbers=2)


def _trace(path: Path) -> Iterator[str]:
    trace = read_trace(path)
    facts = trace_facts.facts_of(trace, path.name)
    yield from _notes(facts)
    if facts.idle is not None:
        widths = "".join(
            f'<i style="width:{getattr(facts.idle, name) * 100:.2f}%;background:var({colour})" '
            f'title="{name.replace("_", " ")} {share(getattr(facts.idle, name))}"></i>'
            for name, colour in SPLIT
        )
        yield f'<div class="split" role="img" aria-label="the GPU\'s time">{widths}</div>'
    for line in (idle_words(facts), copies_words(facts)):
        if line is not None:
            yield f"<p>{escape(line)}</p>"
    for device, title in (("gpu", "GPU work"), ("cpu", "operator (CPU)")):
        rows = [
            (short(o.name), ms(o.seconds), share(o.share), ms(o.total), f"{o.calls:,}")
            for o in facts.operators
            if o.device == device
        ][:ROWS]
        if rows:
            yield _table((title, "self", "share", "total", "calls"), rows, numbers=4)
    yield from _timeline(trace)
    threads = sorted(trace.threads, key=lambda each: -sum(trace.threads[each].lengths))
    for thread in threads[:THREADS]:
        tree = call_tree(trace, thread)
        if tree.total >= LEAST * trace.seconds:
            yield (
                f'<p class="note">{escape(tree.name)}: calls over the whole trace, by time. '
                "Click to look closer.</p>"
            )
            yield boxes_html(flame(tree), f"flame graph of {tree.name}", "flame")


def _timeline(trace: Trace) -> Iterator[str]:
    """All of it as strips, and a stretch in its middle event by event."""
    lanes = list(_lanes(trace))
    yield f'<p class="note">Over {ms(trace.seconds)}: dark where it worked.</p><div class="lanes">'
    for name, events in lanes:
        spans = ((start, end) for start, end, _, row in events if row == 0)
        strip = strip_html(busy_parts(spans, trace.start, trace.end, PARTS), f"{name} over time")
        yield f"<span>{escape(name)}</span>{strip}"
    yield "</div>"
    start, end = _stretch(trace, lanes)
    yield (
        f'<p class="note">{ms(end - start)} from its middle, event by event.</p><div class="lanes">'
    )
    for name, events in lanes:
        boxes = [
            Box((max(a, start) - start) / (end - start), (min(b, end) - max(a, start)) /
                (end - start), row, trace.names[number], f"{trace.names[number]}: {ms(b - a)}")
            for a, b, number, row in events
            if a < end and b > start
        ]  # fmt: skip
        yield f"<span>{escape(name)}</span>{boxes_html(boxes, name)}"
    yield "</div>"


Event = tuple[float, float, int, int]  # start, end, name, row


def _lanes(trace: Trace) -> Iterator[tuple[str, list[Event]]]:
    """Each GPU's streams, then the busiest threads; nested calls in rows one below the other."""
    for device, works in trace.gpu.items():
        for stream in sorted({work.stream for work in works}):
            mine = sorted((w.start, w.end, w.name, 0) for w in works if w.stream == stream)
            yield f"GPU {device}, stream {stream}", mine
    busiest = sorted(trace.threads, key=lambda each: -sum(trace.threads[each].lengths))
    for thread in busiest[:THREADS]:
        events: list[Event] = []
        ends: list[float] = []
        for start, end, number in trace.threads[thread].in_order():
            while ends and ends[-1] <= start:
                ends.pop()
            if len(ends) < LEVELS:
                events.append((start, end, number, len(ends)))
            ends.append(end)
        yield trace.thread_name(thread), events


def _stretch(trace: Trace, lanes: list[tuple[str, list[Event]]]) -> tuple[float, float]:
    """A stretch around the middle with few enough events to draw."""
    middle, half = (trace.start + trace.end) / 2, max(trace.seconds, 1e-9) / 2
    starts = [event[0] for _, events in lanes for event in events]
    while half > 1e-6 and sum(abs(at - middle) <= half for at in starts) > EXCERPT:
        half /= 2
    return middle - half, middle + half


def _notes(facts: ProfileFacts) -> Iterator[str]:
    for note in facts.notes:
        yield f'<p class="note">{escape(note)}.</p>'


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]], numbers: int) -> str:
    def cells(row: tuple[str, ...], tag: str) -> str:
        first = len(row) - numbers
        return "".join(
            f"<{tag}{' class=num' if at >= first else ''}>{escape(cell)}</{tag}>"
            for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells(titles, "th")}</tr>{body}</table></div>'
