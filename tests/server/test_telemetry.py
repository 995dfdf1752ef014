"""What a live server tells Prometheus and OpenTelemetry, and that docs/metrics.md says the same."""

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from tests.server.live_server import JSON, LiveServer, live_server, until

from prony_server.loop_lag import gaps, tell
from prony_server.stages import STAGES
from prony_server.telemetry import ServerMetrics

ROOT = Path(__file__).parents[2]
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
PHASES = ("receive", "tokenize", "queue", "prefill", "decode", "deliver", "detokenize")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as live:
        # So many tokens that on a busy machine they do not all come at one moment: a moment has
        # no time per output token. A request is accounted for just after its answer.
        live.chat(max_tokens=64)
        live.complete(max_tokens=64)
        tpot = b"\ngen_ai_server_time_per_output_token_seconds_count{"
        until(
            lambda: live.get("/metrics").body.count(tpot) == 2,
            "both requests have a time per output token",
        )
        yield live


def traced(server: LiveServer, **body: object) -> dict[str, ReadableSpan]:
    """The spans of one request that carries a traceparent, by name."""
    server.spans.clear()
    answer = server.post(
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "secret words"}], **body},
        TRACEPARENT,
    )
    assert answer.status in (200, 400)
    return server.wait_for_spans("chat tiny")


def seconds(value: object) -> float:
    assert isinstance(value, float)
    return value


def documented(section: str) -> dict[str, tuple[str, ...]]:
    """docs/metrics.md's rows under a heading: name -> type, unit, labels."""
    text = (ROOT / "docs/metrics.md").read_text()
    body = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|", body, re.MULTILINE)
    return {name: tuple(cell.strip() for cell in cells) for name, *cells in rows}


def test_every_metric_of_a_live_server_is_documented_and_no_other(server: LiveServer) -> None:
    parse: Any = text_string_to_metric_families
    families = parse(server.get("/metrics", **OPENMETRICS).body.decode())
    exported = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted({key for s in family.samples for key in s.labels} - {"le"})
        exported[name] = (family.type, ", ".join(f"`{label}`" for label in labels))
    described = {
        name: (kind, labels)
        for name, (kind, _, labels) in documented("Reference server").items()
        if name in exported or not name.startswith(("prony_gpu_", "prony_device_"))
    }
    assert exported == described


def test_plain_prometheus_text_is_served_to_who_does_not_ask_for_openmetrics(
    server: LiveServer,
) -> None:
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert any(f.name == "prony_requests_running" for f in parse_plain(answer.body.decode()))


def test_buckets_reach_down_to_half_a_millisecond_and_are_floats(server: LiveServer) -> None:
    text = server.get("/metrics").body.decode()
    for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
        edges = re.findall(rf'^gen_ai_server_{name}_seconds_bucket{{.*le="([^"]+)"}}', text, re.M)
        assert edges[:4] == ["0.0005", "0.001", "0.0025", "0.005"]
        assert all("." in edge or edge == "+Inf" for edge in edges)


def test_tokens_and_requests_are_counted_as_usage_counts_them() -> None:
    with live_server() as server:
        usage = [server.chat(max_tokens=n, stream=n > 60).status for n in (60, 80, 100)]
        assert usage == [200] * 3
        assert server.metric("prony_prompt_tokens_total") == 3 * 24
        assert server.metric("prony_generation_tokens_total") == 240
        assert server.metric("prony_requests_finished_total", finish_reason="length") == 3
        assert server.metric("prony_requests_finished_total", finish_reason="stop") == 0
        assert server.metric("prony_request_decode_seconds_count") == 3
        # The prompt's first block of 16 is computed once.
        assert server.metric("prony_prefix_cache_hits_total") == 2 * 16
        # The engine's warm-up is nobody's traffic. 3 prompts of 24 and, after each one's first
        # token, what is left of its output.
        # The last answer is out before its step is counted, so this is waited for.
        server.wait_for("prony_iteration_tokens_sum", 3 * 24 - 2 * 16 + 240 - 3)
        server.wait_for("prony_inter_token_latency_seconds_count", 240 - 3)
        server.wait_for("prony_iteration_seconds_count", 3, kind="prefill")
        server.wait_for("prony_iteration_seconds_count", 240 - 3, kind="decode")
        labels = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "prony"}
        labels["gen_ai_request_model"] = "tiny"
        duration = "gen_ai_server_request_duration_seconds_count"
        server.wait_for(duration, 3, **labels, error_type="")
        for name in ("time_to_first_token", "time_per_output_token"):
            assert server.metric(f"gen_ai_server_{name}_seconds_count", **labels) == 3
        for name, total in (("prompt", 3 * 24), ("generation", 240)):
            assert server.metric(f"prony_request_{name}_tokens_sum") == total
        # Tokenized were all; text is written piece by piece only where it is streamed.
        for name, count in (("tokenize", 3), ("detokenize", 3), ("write_wait", 2)):
            assert server.metric(f"prony_request_{name}_seconds_count") == count
        assert server.chat(max_tokens=0).status == 400
        server.wait_for(duration, 1, **labels, error_type="400")


def test_the_engines_stages_sum_to_its_loops_wall_time_under_load(server: LiveServer) -> None:
    """Read while it works: off by what the step under way has spent, so over ever longer times."""

    def told() -> tuple[float, dict[str, float]]:
        each = {s: server.metric("prony_engine_stage_seconds_total", stage=s) for s in STAGES}
        return time.monotonic(), {stage: seconds(spent) for stage, spent in each.items()}

    with ExitStack() as streams:
        for _ in range(4):
            streams.enter_context(endless_stream(server))
        start, before = told()

        steps = seconds(server.metric("prony_iteration_tokens_count"))

        def within_two_percent() -> bool:
            if seconds(server.metric("prony_iteration_tokens_count")) < steps + 200:
                return False
            now, after = told()
            spent = sum(after.values()) - sum(before.values())
            return abs(spent / (now - start) - 1) < 0.02

        until(within_two_percent, "the stages sum to within 2 % of the time that went by")
        _, after = told()
        assert after["forward"] > before["forward"] and after["idle"] == before["idle"]


@contextmanager
def endless_stream(server: LiveServer) -> Iterator[None]:
    """A request that has its first token, and goes on until the block ends."""
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), JSON)
    with closing(connection), connection.getresponse() as response:
        assert response.read(1)
        yield


def test_a_request_that_the_full_queue_refused_is_counted() -> None:
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry, "tiny")
    for error_type in ("429", "400", ""):
        metrics.answered("chat", duration=0.1, ttft=None, tpot=None, error_type=error_type)
    assert registry.get_sample_value("prony_requests_rejected_total") == 1


def test_each_watched_thread_has_its_own_processor_time(server: LiveServer) -> None:
    def used() -> dict[str, float]:
        return {
            name: seconds(server.metric("prony_thread_cpu_seconds_total", thread=name))
            for name in ("engine", "loop")
        }

    before = used()
    assert server.chat(max_tokens=200).status == 200
    after = used()
    process = seconds(server.metric("process_cpu_seconds_total"))
    assert 0 < after["engine"] - before["engine"] < process
    assert 0 < after["loop"] - before["loop"] < process


def test_the_moments_that_passed_while_the_loop_was_held_up_are_late_too() -> None:
    told: list[float] = []
    due = tell(10.0, 10.26, lambda: 0.05, told.append)
    assert told == pytest.approx([0.26, 0.21, 0.16, 0.11, 0.06, 0.01])
    assert due == pytest.approx(10.3)
    assert tell(due, 10.29, lambda: 0.05, told.append) == due and len(told) == 6


def test_a_loop_that_is_held_up_at_equal_distances_is_seen_as_late_as_it_is() -> None:
    told: list[float] = []
    gap = gaps(0.1)
    due = gap()
    for number in range(3000):
        # Held up for 100 ms, then free for 200 ms: three of the looks' mean distances.
        held_up = number * 0.3
        while due < held_up:
            told.append(0.0)
            due += gap()
        due = tell(due, held_up + 0.1, gap, told.append)
    assert sum(told) / len(told) == pytest.approx(0.1**2 / 2 / 0.3, rel=0.1)


def test_the_event_loop_is_watched_while_the_server_serves(server: LiveServer) -> None:
    count = seconds(server.metric("prony_event_loop_lag_seconds_count"))
    until(
        lambda: seconds(server.metric("prony_event_loop_lag_seconds_count")) > count,
        "the loop's lag is looked at",
    )


def test_exemplars_lead_from_a_histogram_to_the_trace(server: LiveServer) -> None:
    traced(server, max_tokens=64)
    text = server.get("/metrics", **OPENMETRICS).body.decode()
    with_exemplar = {line.split("_bucket")[0] for line in text.splitlines() if TRACE in line}
    assert with_exemplar >= {
        "gen_ai_server_request_duration_seconds",
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "prony_request_queue_seconds",
        "prony_request_prefill_seconds",
        "prony_request_decode_seconds",
    }


@pytest.mark.parametrize("stream", [True, False])
def test_a_requests_spans_join_the_clients_trace_and_follow_one_another(
    server: LiveServer, stream: bool
) -> None:
    spans = traced(server, max_tokens=6, temperature=0.5, seed=3, stream=stream)
    assert set(spans) == {"chat tiny", *PHASES}
    root = spans["chat tiny"]
    assert root.kind is SpanKind.SERVER and root.parent and root.context
    assert f"{root.parent.span_id:016x}" == SPAN
    assert {f"{span.context.trace_id:032x}" for span in spans.values() if span.context} == {TRACE}
    times = {}
    for name in PHASES:
        span = spans[name]
        assert span.parent and span.parent.span_id == root.context.span_id
        assert root.start_time and span.start_time and span.end_time and root.end_time
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time
        times[name] = (span.start_time, span.end_time)
    exclusive = [times[name] for name in PHASES[:6]]
    assert all(before[1] <= after[0] for before, after in pairwise(exclusive))
    assert times["queue"][1] == times["prefill"][0] and times["prefill"][1] == times["decode"][0]


def test_the_servers_own_latencies_can_be_read_from_its_span(server: LiveServer) -> None:
    spans = traced(server, max_tokens=6, temperature=0.5, seed=3, stream=True)
    attributes = dict(spans["chat tiny"].attributes or {})
    response_id = attributes.pop("gen_ai.response.id")
    assert str(response_id).startswith("chatcmpl-")
    prefix = "gen_ai.latency."
    names = [name for name in attributes if name.startswith(prefix)]
    latency = {name.removeprefix(prefix): seconds(attributes.pop(name)) for name in names}
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "prony",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 31,
        "gen_ai.usage.output_tokens": 6,
        "server.address": server.address[0],
        "server.port": server.address[1],
    }
    assert set(latency) == {
        "time_in_queue",
        "time_in_model_prefill",
        "time_in_model_decode",
        "time_in_model_inference",
        "time_to_first_token",
        "e2e",
    }
    assert 0 < latency["time_to_first_token"] < latency["e2e"]
    queued_and_prefilled = latency["time_in_queue"] + latency["time_in_model_prefill"]
    assert queued_and_prefilled < latency["time_to_first_token"]
    busy = seconds((spans["detokenize"].attributes or {})["prony.detokenize.busy"])
    assert 0 < busy < latency["e2e"]


def test_no_prompt_and_no_answer_is_recorded(server: LiveServer) -> None:
    spans = traced(server, max_tokens=30)
    told = str([(span.name, dict(span.attributes or {}), span.events) for span in spans.values()])
    assert "secret" not in told


def test_a_refused_request_has_a_span_that_says_so(server: LiveServer) -> None:
    spans = traced(server, max_tokens=0)
    assert set(spans) == {"chat tiny"}
    assert spans["chat tiny"].status.status_code is StatusCode.ERROR
    assert (spans["chat tiny"].attributes or {})["error.type"] == "400"


@pytest.mark.parametrize("header", ["", "rubbish", f"00-{'0' * 32}-{SPAN}-01", "00-xyz"])
def test_a_broken_traceparent_starts_a_trace_of_its_own(server: LiveServer, header: str) -> None:
    server.spans.clear()
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    assert server.post("/v1/completions", body, {"traceparent": header}).status == 200
    assert server.wait_for_spans("text_completion tiny")["text_completion tiny"].parent is None


def test_names_can_be_read_without_torch() -> None:
    code = "import sys, prony_server.telemetry; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
