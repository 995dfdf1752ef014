"""The last traces in memory, for /debug/traces: finished spans in, the slowest traces out."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from prony_server.waterfall import Span, extent

TRACES = 200  # kept; the oldest is dropped first
SPANS = 64  # of one trace: what a client's id brings in must not fill memory


class TraceRing(SpanExporter):
    """Keeps what was exported last, by trace."""

    def __init__(self, traces: int = TRACES) -> None:
        self._traces: OrderedDict[str, list[Span]] = OrderedDict()
        self._most = traces
        self._lock = threading.Lock()  # spans end in the engine's thread too

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._lock:
            for span in map(_told, spans):
                kept = self._traces.setdefault(span.trace_id, [])
                self._traces.move_to_end(span.trace_id)
                if len(kept) < SPANS:
                    kept.append(span)
            while len(self._traces) > self._most:
                self._traces.popitem(last=False)
        return SpanExportResult.SUCCESS

    def slowest(self) -> list[list[Span]]:
        """All traces that are kept, the longest first."""
        with self._lock:
            traces = [list(spans) for spans in self._traces.values()]

        def seconds(spans: list[Span]) -> float:
            start, end = extent(spans)
            return end - start

        return sorted(traces, key=seconds, reverse=True)

    def trace(self, trace_id: str) -> list[Span] | None:
        with self._lock:
            spans = self._traces.get(trace_id.lower())
            return None if spans is None else list(spans)


def _told(span: ReadableSpan) -> Span:
    context = span.get_span_context()
    assert context is not None and span.start_time is not None and span.end_time is not None
    return Span(
        name=span.name,
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=None if span.parent is None else f"{span.parent.span_id:016x}",
        service=str(span.resource.attributes.get("service.name", "")),
        start=span.start_time / 1e9,
        end=span.end_time / 1e9,
        attributes=dict(span.attributes or {}),
    )
