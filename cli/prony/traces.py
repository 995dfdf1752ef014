"""The spans of a run folder: traces.jsonl and a trace's id in; a waterfall or Chrome's file out.

The client's spans are always there; the server's are where it appended to the same file
(`prony serve --traces RUN/traces.jsonl`), and join by the trace id that the client sent.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prony.errors import UsageError
from prony_server.waterfall import Span, as_chrome, as_text


def show_traces(path: Path, trace_id: str | None, chrome: Path | None) -> int:
    """Prints the trace, and writes all (or that one) as Chrome's file. Raises UsageError."""
    spans = read_spans(path)
    if trace_id is not None:
        spans = _one(spans, trace_id.lower(), path)
        print(as_text(spans), end="")
        print(_first_token(spans), end="")
    if chrome is not None:
        chrome.write_text(json.dumps(as_chrome(spans)), encoding="utf-8")
        print(f"{len(spans)} spans in {chrome}: open it at https://ui.perfetto.dev")
    return 0


def read_spans(path: Path) -> list[Span]:
    """Every span of a file of OTLP JSON lines; a torn last line is left out. Raises UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: no spans to show: {error.strerror}") from None
    spans: list[Span] = []
    for number, line in enumerate(lines, 1):
        try:
            spans += _spans(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise UsageError(f"{path}:{number}: not OTLP JSON ({error})") from None
    if not spans:
        raise UsageError(f"{path}: it holds no spans")
    return spans


def _one(spans: list[Span], trace_id: str, path: Path) -> list[Span]:
    found = [span for span in spans if span.trace_id.startswith(trace_id)]
    traces = {span.trace_id for span in found}
    if len(traces) != 1:
        known = f"{len(traces)} traces begin so" if traces else "no such trace"
        raise UsageError(f"--trace {trace_id}: {known} in {path} (the report lists the slowest)")
    return found


def _first_token(spans: list[Span]) -> str:
    """What of the first token's time was spent outside the server; nothing where a side lacks."""
    client, server = (
        next((s.attributes[name] for s in spans if name in s.attributes), None)
        for name in ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token")
    )
    if client is None or server is None:
        return ""
    return (
        f"first token: {client * 1000:.2f} ms at the client, {server * 1000:.2f} ms at the server: "
        f"{(client - server) * 1000:.2f} ms outside the server\n"
    )


def _spans(line: dict[str, Any]) -> Iterator[Span]:
    for resource in line["resourceSpans"]:
        about = _attributes(resource.get("resource", {}))
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield Span(
                    name=span["name"],
                    trace_id=span["traceId"],
                    span_id=span["spanId"],
                    parent_id=span.get("parentSpanId") or None,
                    service=str(about.get("service.name", "")),
                    start=int(span["startTimeUnixNano"]) / 1e9,
                    end=int(span["endTimeUnixNano"]) / 1e9,
                    attributes=_attributes(span),
                )


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: _value(each["value"]) for each in holder.get("attributes", ())}


def _value(value: dict[str, Any]) -> Any:
    ((kind, found),) = value.items()
    if kind == "intValue":
        return int(found)
    if kind == "arrayValue":
        return [_value(each) for each in found.get("values", ())]
    return found
