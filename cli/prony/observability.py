"""The only exporter set-up: spans go to OTLP JSON lines, to a collector, to a ring in memory.

The server's spans and the client's land in one file, joined by the trace id that the client sent
as `traceparent`.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)

from prony.otlp import exporter_from
from prony_loadgen.record import RequestRecord

_OPERATIONS = {"openai-chat": "chat", "openai-completions": "text_completion"}
_SPANS_A_LINE = 512


@contextmanager
def server_tracer(path: Path | None, ring: SpanExporter | None = None) -> Iterator[Tracer | None]:
    """A tracer whose spans go to the file `path`, to `ring` as they end, and to a collector.

    The collector is the one of OTEL_EXPORTER_OTLP_ENDPOINT. With none of the three it is None,
    which costs the server nothing.
    """
    collector = exporter_from()
    if path is None and ring is None and collector is None:
        yield None
        return
    with ExitStack() as stack:
        provider = TracerProvider(resource=Resource.create({"service.name": "prony-server"}))
        if path is not None:
            file = stack.enter_context(_appending(path))
            provider.add_span_processor(BatchSpanProcessor(file))
        if collector is not None:
            provider.add_span_processor(BatchSpanProcessor(collector))
        if ring is not None:
            provider.add_span_processor(SimpleSpanProcessor(ring))
        try:
            yield provider.get_tracer("prony_server")
        finally:
            provider.shutdown()


def write_client_spans(path: Path, run: dict[str, Any], records: Iterable[RequestRecord]) -> None:
    """Appends one CLIENT span a request: from its first byte sent to its last token.

    Spans are made from the records after the load, so that tracing cannot disturb the timing. They
    go to the collector of OTEL_EXPORTER_OTLP_ENDPOINT too, where that is set.
    """
    collector = exporter_from()
    resource = Resource.create({"service.name": "prony-loadgen", "prony.run_id": run["run_id"]})
    spans = (_client_span(run, record, resource) for record in records)
    sent = (span for span in spans if span is not None)
    with _appending(path) as exporter:
        while batch := list(islice(sent, _SPANS_A_LINE)):
            exporter.export(batch)
            if collector is not None and collector.export(batch) is SpanExportResult.FAILURE:
                collector = None  # it said so; a run's end must not wait for each batch


def _client_span(
    run: dict[str, Any], record: RequestRecord, resource: Resource
) -> ReadableSpan | None:
    if record.trace_id is None or record.span_id is None or record.sent is None:
        return None
    target = run["target"]
    operation = _OPERATIONS.get(target["dialect"], target["dialect"])
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "prony",
        "gen_ai.request.model": target["model"],
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": record.asked_output_tokens,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.response.finish_reasons": (record.finish_reason,) if record.finish_reason else None,
        # From `sent`, as the convention has it; the run's own TTFT is from `intended`.
        "gen_ai.response.time_to_first_chunk": record.ttft_from_send,
        "prony.request.id": record.id,
        "prony.request.class": record.cls,
        "prony.send_lag": record.send_lag,
        "error.type": None if record.ok else record.outcome,
    }
    last = record.arrivals[-1].at if record.arrivals else record.ended
    return ReadableSpan(
        name=f"{operation} {target['model']}",
        context=SpanContext(
            int(record.trace_id, 16), int(record.span_id, 16), False, TraceFlags(TraceFlags.SAMPLED)
        ),
        resource=resource,
        kind=SpanKind.CLIENT,
        attributes={name: value for name, value in attributes.items() if value is not None},
        status=Status(StatusCode.UNSET) if record.ok else Status(StatusCode.ERROR, record.error),
        start_time=_unix_ns(run, record.sent),
        end_time=_unix_ns(run, last),
    )


def _unix_ns(run: dict[str, Any], at: float) -> int:
    return int((run["origin_unix"] + at) * 1e9)


@contextmanager
def _appending(path: Path) -> Iterator[FileSpanExporter]:
    # Server and client append to one file: each line must reach it in one write, never in pieces.
    with (
        path.open("ab", buffering=0) as raw,
        io.TextIOWrapper(raw, encoding="utf-8", write_through=True) as stream,
    ):
        yield FileSpanExporter(stream=stream)
