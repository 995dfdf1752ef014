"""Servers that lose requests, tell errors oddly or count nonsense: it never looks like success."""

import itertools
import json
import math
import time
from typing import Any

import pytest
from tests.loadgen.asking import ask, ask_in_turn, on_a_quiet_moment, request
from tests.loadgen.replay_server import DONE, FINISH, HELLO, Peer, chunked, event, serving

from prony_loadgen.answer import Answer
from prony_loadgen.dialects import DIALECTS
from prony_loadgen.error_text import bare_error
from prony_loadgen.exchanges import Connection
from prony_loadgen.record import MOST_TOKENS, RequestRecord
from prony_loadgen.sse import Event

# Requests that are lost.


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_request_that_a_kept_connection_took_and_lost_later_is_a_failure(how: str) -> None:
    def script(peer: Peer, _: bytes) -> None:
        if len(server.requests) == 1:
            peer.send(HELLO)
            return
        time.sleep(0.3)  # the server works on it
        getattr(peer, how)()

    with serving(script) as server:
        first, second = ask_in_turn(server.url, 2)
        assert len(server.requests) == 2  # it was not asked again
    assert (first.outcome, second.outcome) == ("ok", "truncated_transport")
    assert "before any answer" in (second.error or "")
    assert second.flags == ()


def test_of_requests_that_a_server_loses_each_is_counted() -> None:
    def script(peer: Peer, _: bytes) -> None:
        if peer.number in answered:
            time.sleep(0.3)
            peer.close()
            return
        answered.add(peer.number)
        peer.send(HELLO)

    answered: set[int] = set()
    with serving(script) as server:
        records = ask_in_turn(server.url, 8)
        assert len(server.requests) == 8
    outcomes = [record.outcome for record in records]
    assert outcomes == ["ok", "truncated_transport"] * 4


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_close_that_crosses_a_request_has_it_sent_again_with_a_flag(how: str) -> None:
    def check() -> None:
        seen = itertools.count()

        def script(peer: Peer, _: bytes) -> None:
            if next(seen) == 1:
                getattr(peer, how)()
            else:
                peer.send(HELLO)

        with serving(script) as server:
            first, second = ask_in_turn(server.url, 2)
        assert (first.outcome, "resent" in first.flags) == ("ok", False)
        assert (second.outcome, "resent" in second.flags) == ("ok", True)

    on_a_quiet_moment(check)  # the second close must be seen within 50 ms


def test_a_request_is_sent_again_once_and_no_more() -> None:
    def check() -> None:
        def script(peer: Peer, _: bytes) -> None:
            if peer.number == 0 and len(server.requests) == 1:
                peer.send(HELLO)
            else:
                peer.close()

        with serving(script) as server:
            _, second = ask_in_turn(server.url, 2)
            assert len(server.requests) == 3
        assert (second.outcome, second.flags) == ("truncated_transport", ("resent",))

    on_a_quiet_moment(check)


@pytest.mark.parametrize(
    ("round_trip", "within"), [(0.0001, 0.05), (0.04, 0.12), (0.15, 0.45), (1.1, 0.5)]
)
def test_a_close_may_have_crossed_within_three_round_trips_of_50_to_500_ms(
    round_trip: float, within: float
) -> None:
    connection = Connection(None, 0, None, 0, round_trip=round_trip)  # type: ignore[arg-type]
    assert connection.crossed_within == pytest.approx(within)


# Errors that a stream tells without an error key.

TOLD = {
    '{"message": "CUDA OOM", "code": 500, "type": "InternalServerError"}': (
        "CUDA OOM (InternalServerError, 500)"
    ),
    '{"detail": "worker died"}': "worker died",
    '{"detail": [{"msg": "field required", "type": "missing"}]}': "field required (missing)",
    '{"status": "error", "status_code": 500}': '{"status": "error", "status_code": 500}',
    '{"status": "failed", "message": "no GPU"}': "no GPU",
    '{"message": "Internal Server Error"}': "Internal Server Error",
    '{"message": "slow down", "code": "rate_limited"}': "slow down (rate_limited)",
    '{"statusCode": 503, "message": "overloaded"}': "overloaded",
    '{"type": "server_exception", "msg": "boom"}': "boom (server_exception)",
}


@pytest.mark.parametrize("told", TOLD)
def test_an_error_amid_a_stream_without_an_error_key_is_a_stream_error(told: str) -> None:
    body = chunked(event("a"), f"data: {told}\n\n".encode(), DONE)
    with serving(lambda peer, _: peer.send(body)) as server:
        [record] = ask(server.url)
    assert (record.outcome, record.error) == ("stream_error", TOLD[told])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("told", TOLD)
def test_every_dialect_hears_such_an_error(dialect: str, told: str) -> None:
    said = DIALECTS[dialect].read_event(Event("message", told.encode()))
    assert said.error == TOLD[told]


@pytest.mark.parametrize(
    "told",
    [
        '{"type": "ping"}',
        '{"type": "ping", "message": "still here"}',
        '{"object": "keep-alive", "detail": "position 3"}',
        '{"event": "progress", "message": "prefill 50 %"}',
        '{"code": 0, "message": "success"}',
        '{"code": 200, "message": "OK"}',
        '{"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}',
        '{"choices": [], "message": "x", "code": 0}',
        '{"usage": {"completion_tokens": 2}, "status": "error"}',
        '{"id": "1", "object": "chat.completion.chunk", "model": "m"}',
        '{"timings": {"predicted_n": 4}}',
        "{}",
    ],
)
def test_heartbeats_and_metadata_amid_a_stream_are_no_errors(told: str) -> None:
    body = chunked(event("a"), f"data: {told}\n\n".encode(), event("b"), FINISH, DONE)
    with serving(lambda peer, _: peer.send(body)) as server:
        [record] = ask(server.url)
    assert (record.outcome, record.text) == ("ok", "ab")


def test_an_error_that_holds_anything_is_shown_on_one_line() -> None:
    told = bare_error({"code": 500, "x": "\n\ud800\x1b[31m" * 1000})
    assert told is not None and told.isprintable() and len(told) < 400


# Counts that are none.

NONSENSE = ["1" + "0" * 400, "-3", "true", "1e308", "NaN", "Infinity", '"7"', "[1]", "{}", "1e400"]
NONSENSE += [str(MOST_TOKENS + 1)]


@pytest.mark.parametrize("count", NONSENSE)
@pytest.mark.parametrize("where", ["last", "every chunk"])
def test_a_count_that_is_none_leaves_a_record_that_can_be_read_and_judged(
    count: str, where: str
) -> None:
    usage = f'"usage":{{"completion_tokens":{count},"prompt_tokens":{count}}}'
    last = f'data: {{"choices":[],{usage}}}\n\n'.encode()
    tokens = [event("a"), event("b"), event("c")]
    if where == "every chunk":
        tokens = [token.replace(b"}\n\n", f",{usage}}}\n\n".encode()) for token in tokens]
    answer = Answer(DIALECTS["openai-chat"], keep_text=False)
    for at, piece in enumerate([chunked(*tokens, FINISH, last, DONE)[:-5], b"0\r\n\r\n"]):
        answer.feed(piece, float(at))
    assert answer.outcome == "ok"
    with serving(lambda peer, _: peer.send(chunked(*tokens, FINISH, last, DONE))) as server:
        [record] = ask(server.url)
    assert (record.outcome, record.prompt_tokens) == ("ok", None)
    assert (record.output_tokens, record.output_tokens_from) == (3, "chunks")
    again = RequestRecord.from_json(record.to_json())
    for figure in (again.tpot, again.ttft, again.e2e, *(gap for gap, _ in again.itl)):
        assert figure is None or math.isfinite(figure)


@pytest.mark.parametrize("took", [10**400, -1, True, 1e308, "1"])
def test_a_duration_that_is_none_is_unknown(took: Any) -> None:
    line = {"done": True, "eval_count": 1, "load_duration": took, "total_duration": 5_000_000}
    said = DIALECTS["ollama-chat"].read_event(Event("message", json.dumps(line).encode()))
    assert said.usage is not None
    assert DIALECTS["ollama-chat"].server_times(said.usage) == {"total": 0.005}


@pytest.mark.parametrize("depth", [30, 900])
def test_a_usage_nested_without_end_is_cut(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    usage = b'data: {"choices":[],"usage":{"completion_tokens":2,"x":%b}}\n\n' % nested
    body = chunked(event("a"), event("b"), FINISH, usage, DONE)
    with serving(lambda peer, _: peer.send(body)) as server:
        [record] = ask(server.url)
    assert (record.outcome, record.output_tokens) == ("ok", 2)
    assert RequestRecord.from_json(record.to_json()).usage == record.usage


@pytest.mark.parametrize("count", [10**400, -3, True, 1e308, "7"])
def test_a_folder_that_already_holds_such_a_count_is_read_as_unknown(count: Any) -> None:
    with serving(lambda peer, _: peer.send(HELLO)) as server:
        [record] = ask(server.url, request())
    facts = json.loads(record.to_json())
    at = facts["arrivals"][0][0]
    facts |= {"output_tokens": count, "output_tokens_from": "usage", "prompt_tokens": count}
    facts["arrivals"] = [[at, 10**400, "text"], [at + 1, -1, "text"], [at + 2, 2, "text"]]
    again = RequestRecord.from_json(json.dumps(facts))
    assert (again.output_tokens, again.output_tokens_from, again.prompt_tokens) == (None,) * 3
    assert [arrival.tokens for arrival in again.arrivals] == [1, 1, 2]
    assert again.tpot is None
    assert [weight for _, weight in again.itl] == [1.0, 2.0]
    assert [gap for gap, _ in again.itl] == pytest.approx([1.0, 0.5])
