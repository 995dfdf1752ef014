"""Spans of a run: read from its folder, drawn, exported, and posted to a collector."""

import json
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tests.cli.otlp_collector import Collector

from prony.errors import UsageError
from prony.observability import server_tracer
from prony.otlp import HttpSpanExporter, Poster, exporter_from
from prony.traces import read_spans, show_traces


def send(exporter: HttpSpanExporter, *names: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for name in names:
        provider.get_tracer("t").start_span(name).end()


def test_without_an_endpoint_nothing_is_exported() -> None:
    assert exporter_from({}) is None


def test_spans_reach_the_collector_of_the_environment_with_its_headers() -> None:
    with Collector().listening() as collector:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url + "/",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-team=a%20b,x-other=c",
        }
        exporter = exporter_from(environ)
        assert exporter is not None
        send(exporter, "one", "two")
    assert [span.name for span in collector.spans] == ["one", "two"]
    assert collector.paths == ["/v1/traces"] * 2
    assert collector.headers[0]["x-team"] == "a b"


def test_a_busy_collector_is_asked_again_and_a_wrong_one_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Collector(503, 200, 400, 404).listening() as collector:
        exporter = HttpSpanExporter(Poster("spans", collector.url + "/v1/traces", {}))
        send(exporter, "again")
        assert [span.name for span in collector.spans] == ["again"]
        send(exporter, "lost", "lost too")
    assert len(collector.paths) == 4
    assert [record.message.split(":")[0] for record in caplog.records] == ["spans are lost"]


def test_the_servers_tracer_feeds_file_and_collector_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector().listening() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with server_tracer(tmp_path / "traces.jsonl") as tracer:
            assert tracer is not None
            tracer.start_span("chat tiny").end()
    assert [span.name for span in collector.spans] == ["chat tiny"]
    assert [span.name for span in read_spans(tmp_path / "traces.jsonl")] == ["chat tiny"]


def recorded(path: Path) -> str:
    """A file with one trace of two spans; returns its id."""
    with server_tracer(path) as tracer:
        assert tracer is not None
        with tracer.start_as_current_span("chat tiny", attributes={"n": 3}) as span:
            tracer.start_span("decode").end()
        context = span.get_span_context()
    return f"{context.trace_id:032x}"


def test_a_run_folders_trace_is_drawn_by_its_id_or_the_start_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace_id = recorded(tmp_path / "traces.jsonl")
    assert show_traces(tmp_path / "traces.jsonl", trace_id[:8], None) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"trace {trace_id}")
    assert [line.split()[0] for line in lines[1:]] == ["chat", "decode"]


def test_a_trace_of_both_sides_says_how_much_of_its_first_token_was_outside_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "traces.jsonl"
    with server_tracer(path) as tracer:
        assert tracer is not None
        seen = {"gen_ai.response.time_to_first_chunk": 0.25}
        with tracer.start_as_current_span("client", attributes=seen):
            said = {"gen_ai.latency.time_to_first_token": 0.2}
            tracer.start_span("server", attributes=said).end()
    (trace_id,) = {span.trace_id for span in read_spans(path)}
    show_traces(path, trace_id, None)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "first token: 250.00 ms at the client, 200.00 ms at the server: 50.00 ms outside the server"
    )


def test_all_spans_become_one_file_for_perfetto(tmp_path: Path) -> None:
    recorded(tmp_path / "traces.jsonl")
    show_traces(tmp_path / "traces.jsonl", None, tmp_path / "chrome.json")
    events = json.loads((tmp_path / "chrome.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["process_name", "chat tiny", "decode"]
    assert events[1]["args"]["n"] == 3


@pytest.mark.parametrize(
    ("trace_id", "said"), [("zzzz", "no such trace"), ("", "2 traces begin so")]
)
def test_a_trace_that_is_not_there_or_not_one_is_a_mistake(
    tmp_path: Path, trace_id: str, said: str
) -> None:
    for _ in range(2):
        recorded(tmp_path / "traces.jsonl")
    with pytest.raises(UsageError, match=said):
        show_traces(tmp_path / "traces.jsonl", trace_id, None)


def test_the_torn_last_line_of_a_cut_run_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    recorded(path)
    with path.open("a") as file:
        file.write('{"resourceSpans": [')
    assert len(read_spans(path)) == 2
