"""/debug/traces on the live server: the slowest of the last requests, each as a waterfall."""

import re
from collections.abc import Iterator

import pytest
from tests.server.live_server import LiveServer, live_server

from prony_server.trace_ring import SPANS, TraceRing
from prony_server.waterfall import Span, as_chrome, as_page, as_text, in_order

PHASES = ("receive", "tokenize", "queue", "prefill", "decode", "deliver")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(api_key="k") as server:
        yield server


def ask(server: LiveServer, tokens: int, trace_id: str) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01", "Authorization": "Bearer k"}
    assert server.post("/v1/chat/completions", body, headers).status == 200


def test_the_slowest_request_comes_first_and_its_phases_sum_to_it(server: LiveServer) -> None:
    quick, slow = "a" * 32, "b" * 32
    ask(server, 2, quick)
    ask(server, 400, slow)  # long, so that a hand-over on a busy machine is little of it
    server.wait_for("prony_requests_finished_total", 2.0, finish_reason="length")
    key = {"Authorization": "Bearer k"}
    traces = server.get("/debug/traces?format=json", **key).json
    ids = [spans[0]["trace_id"] for spans in traces]
    assert ids.index(slow) < ids.index(quick)
    spans = {span["name"]: span for span in traces[ids.index(slow)]}
    whole = spans["chat tiny"]["end"] - spans["chat tiny"]["start"]
    phases = sum(spans[name]["end"] - spans[name]["start"] for name in PHASES)
    assert phases == pytest.approx(whole, rel=0.01)


def test_an_exemplar_of_a_bucket_leads_to_the_requests_waterfall(server: LiveServer) -> None:
    trace_id = "c" * 32
    ask(server, 8, trace_id)
    page = server.get("/metrics", Accept="application/openmetrics-text; version=1.0.0").body
    found = set(re.findall(r'_bucket{.*trace_id="(\w+)"', page.decode()))
    assert trace_id in found
    text = server.get(f"/debug/traces/{trace_id}?format=text", Authorization="Bearer k")
    assert text.status == 200
    lines = text.body.decode().splitlines()
    assert lines[0].startswith(f"trace {trace_id}: ")
    names = ["chat", *PHASES[:5], "detokenize", "deliver"]
    assert [line.split()[0] for line in lines[1:]] == names


def test_the_traces_are_guarded_like_the_api_and_an_unknown_one_is_404(server: LiveServer) -> None:
    assert server.get("/debug/traces").status == 401
    answer = server.get("/debug/traces/" + "d" * 32, Authorization="Bearer k")
    assert (answer.status, answer.error["code"]) == (404, "trace_not_found")


def span(name: str, start: float, end: float, parent: str | None = None, **more: object) -> Span:
    return Span(name, "t" * 32, name[0] * 16, parent, "server", start, end, more)


def test_the_ring_forgets_the_oldest_and_bounds_what_one_trace_may_hold() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    ring = TraceRing(traces=2)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ring))
    tracer = provider.get_tracer("t")
    for name in ("first", "second", "third"):
        with tracer.start_as_current_span(name):
            for _ in range(SPANS + 5 if name == "third" else 1):
                tracer.start_span("child").end()
    kept = {in_order(spans)[0][1].name: len(spans) for spans in ring.slowest()}
    # Children end before their parent, so a trace with too many of them lacks it.
    assert set(kept) == {"second", "child"} and kept["child"] == SPANS


def test_a_waterfall_tells_names_times_and_places() -> None:
    spans = [span("request", 0, 1.0), span("decode", 0.5, 1.0, "r" * 16)]
    lines = as_text(spans).splitlines()
    assert lines[1].startswith("request") and "1000.00 ms |" + "█" * 60 in lines[1]
    assert lines[2].startswith("  decode") and "| server" in lines[2]
    assert lines[2].count("█") == 30


def test_a_span_whose_parent_is_elsewhere_is_told_all_the_same() -> None:
    assert [s.name for _, s in in_order([span("request", 0, 1, "x" * 16)])] == ["request"]


def test_what_a_page_shows_cannot_be_markup() -> None:
    page = as_page([span("<b>", 0, 1, note="<i onload=x>")])
    assert "<b>" not in page and "<i onload" not in page


def test_chromes_format_has_microseconds_and_a_process_for_each_service() -> None:
    told = as_chrome([span("request", 2.0, 2.5)])
    assert told["traceEvents"][0]["args"] == {"name": "server"}
    assert (told["traceEvents"][1]["ts"], told["traceEvents"][1]["dur"]) == (2e6, 5e5)
