"""Every stream of the case collection gives its expected values, however it is cut.

streams/NNN-name.http holds the exact bytes of an answer, NNN-name.json what is right.
"""

import hashlib
import itertools
import json
import random
import selectors
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loadgen.asking import ask, on_a_quiet_moment, request
from tests.loadgen.replay_server import Peer, paced, serving

from prony_loadgen.answer import Answer
from prony_loadgen.dialects import DIALECTS, Said
from prony_loadgen.dialects.dialect import Framing
from prony_loadgen.http_response import ResponseReader
from prony_loadgen.ndjson import LineStream
from prony_loadgen.record import RequestRecord
from prony_loadgen.shortcut import Shortcuts, shortcuts_of
from prony_loadgen.sse import EventStream

STREAMS = Path(__file__).parent / "streams"
NAMES = sorted(path.stem for path in STREAMS.glob("*.json"))
# The case of the collection that each stream belongs to, for the names of the tests.
CASES = {name: json.loads((STREAMS / f"{name}.json").read_text())["case"] for name in NAMES}
SHORT = [name for name in NAMES if (STREAMS / f"{name}.http").stat().st_size < 8000]


@cache
def load(name: str) -> tuple[bytes, dict[str, Any]]:
    raw = (STREAMS / f"{name}.http").read_bytes()
    return raw, json.loads((STREAMS / f"{name}.json").read_text())


def answer_to(
    pieces: Iterable[bytes], dialect: str, shortcuts: Mapping[Framing, Shortcuts] | None = None
) -> Answer:
    """The answer after these pieces, one a second, and the close that follows them."""
    answer = Answer(DIALECTS[dialect], keep_text=True, shortcuts=shortcuts)
    at = 0.0
    for at, piece in enumerate(pieces, start=1):
        answer.feed(piece, float(at))
    answer.end(at + 1)
    return answer


def values(answer: Answer | RequestRecord) -> dict[str, Any]:
    """What the case files name, of an answer or of the record of one."""
    if isinstance(answer, Answer):
        tokens, tokens_from = answer.output_tokens()
        text, reasoning = answer.text("text"), answer.text("reasoning")
    else:
        tokens, tokens_from = answer.output_tokens, answer.output_tokens_from
        text, reasoning = answer.text or "", answer.reasoning or ""
    ok = answer.outcome == "ok"
    return {
        "ok": ok,
        "error_kind": None if ok else answer.outcome,
        "output_text": text,
        # The cases ask for the server's own count; a count of chunks is marked as an estimate.
        "output_tokens": None if tokens_from == "chunks" else tokens,
        "finish_reason": answer.finish_reason,
        "reasoning_text": reasoning,
        "empty_output": "empty" in answer.flags,
        "not_streamed": "not_streamed" in answer.flags,
        "http_status": answer.status,
        "has_first_token": bool(answer.arrivals),
        "has_first_content": any(a.channel != "reasoning" for a in answer.arrivals),
    }


def expected(case: dict[str, Any]) -> dict[str, Any]:
    wanted = {key: case[key] for key in ("ok", "error_kind", "output_tokens", "finish_reason")}
    wanted["output_text"] = case["output_text"]
    wanted["reasoning_text"] = case["reasoning_text"]
    wanted["empty_output"] = case.get("empty_output", False)
    wanted["not_streamed"] = case.get("not_streamed", False)
    wanted["http_status"] = case.get("http_status", 200)
    wanted["has_first_token"] = case["first_token_chunk_index"] is not None
    wanted["has_first_content"] = case["first_content_chunk_index"] is not None
    return wanted


def assert_right(answer: Answer | RequestRecord, case: dict[str, Any]) -> None:
    got, wanted = values(answer), expected(case)
    if "output_text_sha256" in case:
        text = got.pop("output_text")
        del wanted["output_text"]
        assert len(text) == case["output_text_len"]
        assert hashlib.sha256(text.encode()).hexdigest() == case["output_text_sha256"]
    ways = [{**wanted, **way} for way in ({}, *case.get("also_acceptable", ()))]
    for way in ways:
        way.pop("finish_reason_native", None)
    assert got in ways


def server_said(case: dict[str, Any], raw: bytes) -> list[Said]:
    """What each event of a stream says, without the end mark and blank heartbeats."""
    reader, dialect = ResponseReader(), DIALECTS[case["dialect"]]
    stream = LineStream() if dialect.framing == "lines" else EventStream()
    events = stream.feed(b"".join(reader.feed(raw)))
    if (last := stream.flush()) is not None:
        events.append(last)
    said = [dialect.read_event(event) for event in events if event.data.strip()]
    return [each for each in said if not each.done]


def test_all_sixty_one_streams_are_here() -> None:
    assert len(NAMES) == 61


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{CASES[name]}-{name}")
def test_a_stream_sent_by_its_plan_over_a_socket_gives_its_expected_values(name: str) -> None:
    raw, case = load(name)

    def script(peer: Peer, _: bytes) -> None:
        paced(peer, raw, case["write_plan"], speed=0)
        peer.close()

    with serving(script) as server:
        [record] = ask(server.url, request(dialect=case["dialect"]))
    assert_right(record, case)
    assert RequestRecord.from_json(record.to_json()).text == record.text


@pytest.mark.parametrize("selector", [selectors.PollSelector, selectors.SelectSelector])
def test_every_stream_gives_its_expected_values_without_epoll(
    selector: type[selectors.BaseSelector],
) -> None:
    cases = {number: load(name) for number, name in enumerate(NAMES)}

    def script(peer: Peer, asked: bytes) -> None:
        raw, case = cases[int(asked.split(b"traceparent: 00-")[1][:32], 16) - 1]
        paced(peer, raw, case["write_plan"], speed=0)
        peer.close()

    with serving(script) as server:
        requests = [request(n, dialect=case["dialect"]) for n, (_, case) in cases.items()]
        records = ask(server.url, *requests, selector=selector)
    assert len(records) == len(NAMES)
    for record in records:
        assert_right(record, cases[int(record.id)][1])


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{CASES[name]}-{name}")
def test_a_stream_in_one_piece_gives_its_expected_values(name: str) -> None:
    raw, case = load(name)
    assert_right(answer_to([raw], case["dialect"]), case)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{CASES[name]}-{name}")
def test_a_stream_byte_by_byte_gives_its_expected_values(name: str) -> None:
    raw, case = load(name)
    bytes_ = (raw[at : at + 1] for at in range(len(raw)))
    assert_right(answer_to(bytes_, case["dialect"]), case)


@pytest.mark.parametrize("name", SHORT, ids=lambda name: f"{CASES[name]}-{name}")
def test_a_stream_cut_in_two_anywhere_gives_its_expected_values(name: str) -> None:
    raw, case = load(name)
    for cut in range(len(raw) + 1):
        assert_right(answer_to([raw[:cut], raw[cut:]], case["dialect"]), case)


def cut_at(raw: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(raw)]
    return [raw[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{CASES[name]}-{name}")
def test_a_stream_cut_at_random_places_gives_its_expected_values(name: str) -> None:
    raw, case = load(name)
    rng = random.Random(name)
    for _ in range(200):
        cuts = [rng.randint(0, len(raw)) for _ in range(rng.randint(0, 40))]
        assert_right(answer_to(cut_at(raw, cuts), case["dialect"]), case)


# New places each time, and the fewest that fail; hypothesis itself takes longer than the parsers.
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_stream_is_read_otherwise_wherever_it_is_cut(data: st.DataObject) -> None:
    raw, case = load(data.draw(st.sampled_from(NAMES)))
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=40))
    assert_right(answer_to(cut_at(raw, cuts), case["dialect"]), case)


@pytest.mark.parametrize("name", SHORT, ids=lambda name: f"{CASES[name]}-{name}")
def test_what_other_streams_taught_changes_no_value(name: str) -> None:
    raw, case = load(name)
    shortcuts = shortcuts_of(DIALECTS[case["dialect"]])
    for other in NAMES:  # the last teacher is the stream itself
        taught, of = load(other)
        if of["dialect"] == case["dialect"]:
            answer_to([taught], case["dialect"], shortcuts)
    answer_to([raw], case["dialect"], shortcuts)
    for cut in range(0, len(raw) + 1, 3):
        assert_right(answer_to([raw[:cut], raw[cut:]], case["dialect"], shortcuts), case)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{CASES[name]}-{name}")
def test_the_first_token_and_the_first_content_are_in_the_right_events(name: str) -> None:
    raw, case = load(name)
    if case["error_kind"] in ("http_error", "wrong_content_type") or case.get("not_streamed"):
        assert case["first_token_chunk_index"] in (None, 0)
        return
    said = server_said(case, raw)
    with_output = [at for at, each in enumerate(said) if each.outputs]
    visible = [
        at
        for at, each in enumerate(said)
        if any(output.channel != "reasoning" for output in each.outputs)
    ]
    assert next(iter(with_output), None) == case["first_token_chunk_index"]
    assert next(iter(visible), None) == case["first_content_chunk_index"]


# Real delays: what follows from a plan within 25 ms, as the collection allows.
TIMED = [
    "001-baseline-lf",
    "044-role-chunk-long-before-first-token",
    "046-reasoning-content-then-content",
    "047-reasoning-field-only-and-length",
    "051-several-tokens-per-chunk",
    "010-all-events-in-one-chunk",
]


@pytest.mark.parametrize("name", TIMED)
def test_a_stream_at_its_own_pace_gives_its_expected_times(name: str) -> None:
    raw, case = load(name)

    def script(peer: Peer, _: bytes) -> None:
        paced(peer, raw, case["write_plan"], speed=1)
        peer.close()

    timing = case["timing"]

    def near(seconds: float | None, milliseconds: float | None) -> bool:
        if seconds is None or milliseconds is None:
            return seconds is None and milliseconds is None
        return abs(seconds * 1000 - milliseconds) <= 25

    def check() -> None:
        with serving(script) as server:
            [record] = ask(server.url, request(dialect=case["dialect"]))
        assert record.sent is not None
        lag = record.sent - record.intended
        assert record.ttft is not None
        assert record.e2e is not None
        assert near(record.ttft - lag, timing["ttft_ms"])
        ttfo = None if record.ttfo is None else record.ttfo - lag
        assert near(ttfo, timing["time_to_first_output_ms"])
        assert near(record.tpot, timing["tpot_ms"])
        assert near(record.e2e - lag, timing["last_token_ms"])

    on_a_quiet_moment(check)


def test_only_events_that_arrive_together_are_flagged_coalesced() -> None:
    raw, case = load("010-all-events-in-one-chunk")
    assert "coalesced" in answer_to([raw], case["dialect"]).flags
    raw, case = load("001-baseline-lf")
    half = len(raw) // 2
    assert "coalesced" not in answer_to([raw[:half], raw[half:]], case["dialect"]).flags


def test_interleaved_choices_keep_their_texts_apart() -> None:
    raw, case = load("027-two-choices-interleaved")
    answer = answer_to([raw], case["dialect"])
    assert [answer.text("text", choice) for choice in (0, 1)] == ["ABC", "123"]
    assert case["choices_text"] == {"0": "ABC", "1": "123"}
    assert [arrival.tokens for arrival in answer.arrivals] == [1, 1, 1, 1, 2]


def test_tool_calls_and_refusals_are_output() -> None:
    raw, case = load("048-tool-calls-only")
    answer = answer_to([raw], case["dialect"])
    assert {arrival.channel for arrival in answer.arrivals} == {"tool"}
    assert answer.text("tool") == 'get_time{"tz":"UTC"}noop{}'
    raw, case = load("049-refusal-deltas")
    answer = answer_to([raw], case["dialect"])
    assert answer.text("refusal") == case["refusal_text"]


def test_continuous_usage_tells_how_many_tokens_each_chunk_holds() -> None:
    raw, case = load("056-continuous-usage-stats")
    answer = answer_to([raw], case["dialect"])
    assert [arrival.tokens for arrival in answer.arrivals] == [2, 1, 2]
    assert answer.output_tokens() == (5, "usage")


def test_logprobs_tell_how_many_tokens_each_chunk_holds() -> None:
    raw, case = load("050-logprobs-reveal-token-count")
    answer = answer_to([raw], case["dialect"])
    # The token without text came with the next chunk that had some.
    assert [arrival.tokens for arrival in answer.arrivals] == [2, 2]
    assert answer.output_tokens() == (case["logprob_tokens"], "logprobs")


def test_an_error_told_inside_a_stream_keeps_its_message_and_code() -> None:
    for name in ("061-error-object-mid-stream", "062-error-object-first-event"):
        raw, case = load(name)
        error = answer_to([raw], case["dialect"]).error
        assert error is not None
        assert str(case["stream_error_code"]) in error
    raw, case = load("063-named-error-event-without-error-key")
    assert answer_to([raw], case["dialect"]).error == "worker lost (503)"


def test_an_error_status_keeps_its_message_and_retry_after() -> None:
    wanted = {
        "084-status-429-with-retry-after": (
            "429 Too Many Requests: rate limit (rate_limit_exceeded); Retry-After: 2"
        ),
        "085-status-503-html-and-http-date": (
            "503 Service Unavailable: <html><body><h1>503 Service Unavailable</h1></body></html>; "
            "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT"
        ),
        "091-status-400-openai-style": (
            "400 Bad Request: This model's context is 8192 tokens; 9001 requested "
            "(invalid_request_error, context_length_exceeded)"
        ),
        "092-status-400-flat-error-object": (
            "400 Bad Request: max_tokens must be at least 1, got -3. (BadRequestError, 400)"
        ),
    }
    for name, line in wanted.items():
        raw, case = load(name)
        assert answer_to([raw], case["dialect"]).error == line


def test_a_malformed_event_keeps_its_raw_line() -> None:
    raw, case = load("037-two-events-glued-on-one-line")
    error = answer_to([raw], case["dialect"]).error
    assert error is not None
    assert "data: {" in error
