"""One trace as people read it: its spans in; lines, an HTML page or Chrome's trace format out.

Imports nothing of the server, so that `prony report --trace` draws a run folder's spans with it.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

WIDTH: Final = 60  # characters of a bar's lane


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span; times are seconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    service: str
    start: float
    end: float
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end - self.start


def in_order(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """The spans as a tree, children below their parent by time, each with its depth."""
    known = {span.span_id for span in spans}
    below: dict[str | None, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        below.setdefault(span.parent_id if span.parent_id in known else None, []).append(span)
    told: list[tuple[int, Span]] = []

    def tell(parent: str | None, depth: int) -> None:
        for span in below.get(parent, ()):
            told.append((depth, span))
            tell(span.span_id, depth + 1)

    tell(None, 0)
    return told


def extent(spans: Sequence[Span]) -> tuple[float, float]:
    """When the first span began and the last one ended."""
    return min(span.start for span in spans), max(span.end for span in spans)


def as_text(spans: Sequence[Span]) -> str:
    """The waterfall in characters: a line a span, with a bar on one common time axis."""
    start, end = extent(spans)
    scale = WIDTH / max(end - start, 1e-9)
    lines = [f"trace {spans[0].trace_id}: {_ms(end - start)}"]
    for depth, span in in_order(spans):
        left = min(int((span.start - start) * scale), WIDTH - 1)
        bar = max(1, min(round(span.seconds * scale), WIDTH - left))
        name = f"{'  ' * depth}{span.name}"
        lane = f"{' ' * left}{'█' * bar}".ljust(WIDTH)
        lines.append(f"{name:<28.28} {_ms(span.seconds):>10} |{lane}| {span.service}")
    return "\n".join(lines) + "\n"


def as_chrome(spans: Sequence[Span]) -> dict[str, Any]:
    """Chrome's trace format, which Perfetto and chrome://tracing open: a process a service."""
    services = sorted({span.service for span in spans})
    traces = sorted({span.trace_id for span in spans})
    names = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": service}}
        for number, service in enumerate(services, 1)
    ]
    events = [
        {
            "ph": "X",
            "name": span.name,
            "cat": "span",
            "pid": services.index(span.service) + 1,
            "tid": traces.index(span.trace_id) + 1,
            "ts": round(span.start * 1e6, 1),
            "dur": round(span.seconds * 1e6, 1),
            "args": {"trace_id": span.trace_id, **span.attributes},
        }
        for span in sorted(spans, key=lambda span: span.start)
    ]
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *events]}


def as_page(spans: Sequence[Span]) -> str:
    """The waterfall as a page that loads nothing."""
    start, end = extent(spans)
    whole = max(end - start, 1e-9)
    rows = []
    for depth, span in in_order(spans):
        left, width = (span.start - start) / whole * 100, span.seconds / whole * 100
        facts = ", ".join(f"{name}={value}" for name, value in span.attributes.items())
        rows.append(
            f'<tr title="{html.escape(facts)}"><td style="padding-left:{depth * 1.2 + 0.3}em">'
            f"{html.escape(span.name)}</td><td class=n>{_ms(span.seconds)}</td>"
            f'<td class=lane><i style="margin-left:{left:.2f}%;width:{max(width, 0.3):.2f}%"></i>'
            f"</td><td>{html.escape(span.service)}</td></tr>"
        )
    title = f"Trace {spans[0].trace_id}, {_ms(end - start)}"
    back = '<p><a href="../traces">slowest first</a></p>'
    return _page(title, f"{back}<table>{''.join(rows)}</table>")


def as_list(traces: Sequence[Sequence[Span]]) -> str:
    """A page of traces, in the order given, each a link to its waterfall."""
    rows = []
    for spans in traces:
        start, end = extent(spans)
        root = in_order(spans)[0][1]
        failed = root.attributes.get("error.type", "")
        tokens = root.attributes.get("gen_ai.usage.output_tokens", "")
        ttft = root.attributes.get("gen_ai.latency.time_to_first_token")
        rows.append(
            f'<tr><td><a href="traces/{spans[0].trace_id}">{spans[0].trace_id}</a></td>'
            f"<td class=n>{_ms(end - start)}</td>"
            f"<td class=n>{'' if ttft is None else _ms(float(ttft))}</td>"
            f"<td class=n>{tokens}</td><td>{html.escape(str(failed))}</td></tr>"
        )
    head = "<tr><th>trace</th><th>whole</th><th>TTFT</th><th>tokens</th><th>error</th></tr>"
    return _page(f"{len(traces)} traces, slowest first", f"<table>{head}{''.join(rows)}</table>")


def _page(title: str, body: str) -> str:
    style = (
        "body{font:14px system-ui;margin:2em}table{border-collapse:collapse}"
        "td,th{padding:.2em .6em;text-align:left;border-bottom:1px solid #8884}"
        ".n{text-align:right;font-variant-numeric:tabular-nums}.lane{width:60vw}"
        "i{display:block;height:1em;background:#3274d9}"
    )
    title = html.escape(title)
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{style}</style>"
        f"<h1>{title}</h1>{body}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
