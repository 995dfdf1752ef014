"""Answers without sockets: content types, framing, ends and counts beyond the case collection."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loadgen.replay_server import DONE, FINISH, HELLO, chunk, chunked, event

from prony_loadgen.answer import Answer
from prony_loadgen.dialects import DIALECTS

CHAT = DIALECTS["openai-chat"]
WHOLE = b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'


def answer_to(*pieces: bytes, closed: bool = True) -> Answer:
    """The answer to these pieces, which come at 1, 2, 3… seconds."""
    answer = Answer(CHAT, keep_text=True)
    for at, piece in enumerate(pieces, start=1):
        answer.feed(piece, float(at))
    if closed:
        answer.end(float(len(pieces) + 1))
    return answer


def with_type(content_type: str | None, body: bytes) -> bytes:
    header = f"Content-Type: {content_type}\r\n" if content_type else ""
    return f"HTTP/1.1 200 OK\r\n{header}Content-Length: {len(body)}\r\n\r\n".encode() + body


STREAM = event("Hel") + event("lo") + FINISH + DONE


@pytest.mark.parametrize(
    "content_type",
    ["text/event-stream", "Text/Event-Stream; charset=utf-8", "text/plain", None],
)
def test_a_stream_is_known_by_its_type_or_where_that_says_little_by_its_start(
    content_type: str | None,
) -> None:
    assert answer_to(with_type(content_type, STREAM)).text("text") == "Hello"
    for start in (b": comment\n\n", b"\n\n", b"\xef\xbb\xbf", b"event: message\n"):
        answer = answer_to(with_type(content_type, start + STREAM))
        assert (answer.outcome, answer.text("text")) == ("ok", "Hello")


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "text/plain", None]
)
def test_an_answer_in_one_piece_is_ok_but_not_streamed(content_type: str | None) -> None:
    answer = answer_to(with_type(content_type, WHOLE))
    assert (answer.outcome, answer.flags) == ("ok", ["not_streamed"])
    assert answer.text("text") == "Hi"
    assert answer.output_tokens() == (None, None)  # one chunk is no count of tokens


@pytest.mark.parametrize(
    ("content_type", "body", "outcome"),
    [
        ("text/html", b"<html>Sign in</html>", "wrong_content_type"),
        ("text/html", b"", "wrong_content_type"),
        ("text/plain", b"Sign in", "wrong_content_type"),
        (None, b"Hi", "wrong_content_type"),
        ("application/x-protobuf", STREAM, "wrong_content_type"),
        ("application/json", b"{", "malformed_event"),
        ("application/json", b"[]", "malformed_event"),
        ("application/json", b'{"status":"fine"}', "malformed_event"),
        ("application/json", b'{"error":{"message":"no"}}', "stream_error"),
        ("text/event-stream", b"", "empty_stream"),
        ("text/event-stream", b": ping\n\n", "empty_stream"),
        ("text/event-stream", event("Hi"), "truncated_stream"),
    ],
)
def test_a_200_that_is_no_answer_is_a_failure_of_its_own_kind(
    content_type: str | None, body: bytes, outcome: str
) -> None:
    answer = answer_to(with_type(content_type, body), closed=False)
    assert answer.outcome == outcome
    assert answer.error
    assert answer.over


def test_a_coded_answer_that_was_not_asked_for_is_not_read() -> None:
    raw = with_type("text/event-stream\r\nContent-Encoding: br", b"\x1f\x8b\x08")
    answer = answer_to(raw)
    assert answer.outcome == "wrong_content_type"
    assert answer.error == "content-encoding br, which was not asked for"


def test_a_body_that_is_not_of_its_coding_is_named() -> None:
    answer = answer_to(with_type("text/event-stream\r\nContent-Encoding: gzip", b"data: {}\n\n"))
    assert answer.outcome == "malformed_event"
    assert (answer.error or "").startswith("the body is not gzip: ")


def test_a_long_page_is_not_read_to_its_end() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    answer = answer_to(head + b"<p>" * 10_000, closed=False)
    assert answer.outcome == "wrong_content_type"
    assert len(answer.error or "") < 500


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource"])
def test_a_finish_reason_that_tells_of_a_fault_is_an_abnormal_finish(reason: str) -> None:
    finish = FINISH.replace(b"stop", reason.encode())
    answer = answer_to(chunked(event("Hel"), finish, DONE))
    assert (answer.outcome, answer.finish_reason) == ("abnormal_finish", reason)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "new_word"])
def test_any_other_finish_reason_ends_a_stream_well(reason: str) -> None:
    finish = FINISH.replace(b"stop", reason.encode())
    answer = answer_to(chunked(event("Hel"), finish))
    assert (answer.outcome, answer.finish_reason) == ("ok", reason)


def test_a_stream_cut_after_its_finish_reason_is_whole_but_for_its_wrapping() -> None:
    raw = chunked(event("Hel"), event("lo"), FINISH, DONE)
    answer = answer_to(raw[: raw.index(b"data: [DONE]")])
    assert (answer.outcome, answer.flags) == ("ok", ["transport_incomplete", "coalesced"])


def test_a_stream_cut_before_one_of_its_choices_finished_is_truncated() -> None:
    other = event("x").replace(b'"index":0', b'"index":1')
    assert answer_to(chunked(event("Hel"), other, FINISH)).outcome == "truncated_stream"
    assert answer_to(chunked(event("Hel"), other, FINISH, DONE)).outcome == "ok"
    cut = chunked(event("Hel"), other, FINISH).removesuffix(b"0\r\n\r\n")
    assert answer_to(cut).outcome == "truncated_transport"


def test_broken_framing_in_the_middle_of_a_stream_is_truncated_transport() -> None:
    head = HELLO[: HELLO.index(b"\r\n\r\n") + 4]
    answer = answer_to(head + chunk(event("Hel")) + b"not a size\r\n", closed=False)
    assert answer.outcome == "truncated_transport"
    assert "broken HTTP" in (answer.error or "")
    assert answer.text("text") == "Hel"
    assert answer.over
    assert not answer.reusable


def test_nothing_after_the_end_mark_counts() -> None:
    answer = answer_to(chunked(event("Hel"), FINISH, DONE, event("lo"), b"data: {\n\n"))
    assert (answer.outcome, answer.text("text")) == ("ok", "Hel")


def test_an_answer_is_settled_at_its_end_mark_and_over_at_the_end_of_its_body() -> None:
    raw = chunked(event("Hel"), FINISH, DONE)
    answer = answer_to(raw.removesuffix(b"0\r\n\r\n"), closed=False)
    assert (answer.outcome, answer.ended, answer.over) == ("ok", 1.0, False)
    answer.feed(b"0\r\n\r\n", 2.0)
    assert (answer.ended, answer.over, answer.reusable) == (1.0, True, True)


def test_times_are_those_of_the_bytes_that_completed_each_event() -> None:
    raw = chunked(event("Hel"), event("lo"), FINISH, DONE)
    first = raw.index(b"\n\n") + 2
    second = raw.index(b"\n\n", first) + 1
    answer = answer_to(raw[:10], raw[10:first], raw[first:second], raw[second:])
    assert answer.headers == 2.0
    assert [arrival.at for arrival in answer.arrivals] == [2.0, 4.0]


def usage(tokens: object) -> bytes:
    return b'data: {"choices":[],"usage":{"completion_tokens":%s}}\n\n' % str(tokens).encode()


def test_output_tokens_are_the_servers_count_or_an_estimate_by_chunks() -> None:
    for said, count in (
        ((usage(7),), (7, "usage")),
        ((usage(3), usage(7)), (7, "usage")),
        ((usage(0),), (2, "chunks")),  # a field left unfilled
        ((usage("null"),), (2, "chunks")),
        ((), (2, "chunks")),
    ):
        answer = answer_to(chunked(event("Hel"), event("lo"), FINISH, *said, DONE))
        assert answer.output_tokens() == count


def test_a_usage_that_is_no_json_is_kept_without_what_is_not() -> None:
    odd = b'data: {"choices":[],"usage":{"completion_tokens":2,"a":NaN,"b":[1e999,-Infinity]}}\n\n'
    answer = answer_to(chunked(event("Hel"), FINISH, odd, DONE))
    assert answer.usage == {"completion_tokens": 2, "a": None, "b": [None, None]}


def test_what_a_server_says_is_told_in_one_line_that_a_terminal_can_show() -> None:
    for word in (b"\\ud83d", b"\\u001b[31m", b"a\\nb"):
        answer = answer_to(chunked(b'data: {"error":"%b"}\n\n' % word))
        assert answer.error is not None
        assert answer.error.isprintable()


def test_output_tokens_of_a_failure_are_the_servers_count_or_unknown() -> None:
    assert answer_to(chunked(event("Hel"))).output_tokens() == (None, None)
    assert answer_to(chunked(event("Hel"), usage(5))).output_tokens() == (5, "usage")


def test_a_chunk_with_two_channels_is_one_arrival_in_each() -> None:
    both = b'data: {"choices":[{"delta":{"reasoning":"a","content":"b"}}]}\n\n'
    answer = answer_to(chunked(both, FINISH))
    assert [(a.channel, a.tokens) for a in answer.arrivals] == [("reasoning", 1), ("text", 1)]
    told = both.replace(b"]}\n", b'],"usage":{"completion_tokens":5}}\n')
    answer = answer_to(chunked(told, FINISH))
    assert [(a.channel, a.tokens) for a in answer.arrivals] == [("reasoning", 1), ("text", 4)]


def test_usage_in_some_chunks_only_counts_no_token_twice() -> None:
    told = event("lo").replace(b"]}\n", b'],"usage":{"completion_tokens":5}}\n')
    answer = answer_to(chunked(event("Hel"), event("lo"), told, event("!"), FINISH))
    assert [arrival.tokens for arrival in answer.arrivals] == [1, 1, 3, 1]


def test_continuous_usage_of_several_choices_is_no_count_of_a_chunk() -> None:
    """vLLM counts each choice alone there, others all together."""
    pieces = []
    for choice, tokens in ((0, 1), (1, 1), (0, 2), (1, 2)):
        piece = event("x").replace(b'"index":0', b'"index":%d' % choice)
        pieces.append(piece.replace(b"]}\n", b'],"usage":{"completion_tokens":%d}}\n' % tokens))
    answer = answer_to(chunked(*pieces, usage(4), DONE))
    assert [arrival.tokens for arrival in answer.arrivals] == [1, 1, 1, 1]
    assert answer.output_tokens() == (4, "usage")


def test_text_is_not_kept_unless_asked_for() -> None:
    answer = Answer(CHAT, keep_text=False)
    answer.feed(HELLO, 1.0)
    assert answer.outcome == "ok"
    assert answer.text("text") == ""
    assert len(answer.arrivals) == 2


def test_giving_up_keeps_what_had_arrived_and_never_overrules_an_outcome() -> None:
    answer = answer_to(HELLO[:-20], closed=False)
    answer.fail("timeout", "not finished within 1 s", 5.0)
    assert (answer.outcome, answer.ended, answer.over) == ("timeout", 5.0, True)
    assert len(answer.arrivals) == 2
    answer.fail("incomplete", "the run ended first", 6.0)
    assert answer.outcome == "timeout"


@given(
    noise=st.lists(st.tuples(st.integers(0, len(HELLO)), st.binary(max_size=4)), max_size=4),
    cuts=st.lists(st.integers(0, len(HELLO)), max_size=4),
)
def test_no_bytes_raise_and_every_answer_has_an_outcome_in_the_end(
    noise: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    raw = HELLO
    for at, bytes_ in noise:
        raw = raw[:at] + bytes_ + raw[at + len(bytes_) // 2 :]
    edges = [0, *sorted(cuts), len(raw)]
    pieces = [raw[start:end] for start, end in itertools.pairwise(edges)]
    answer = answer_to(*pieces)
    assert answer.outcome is not None
    assert (answer.error is None) == (answer.outcome == "ok")
    assert answer.ended is not None
    assert answer.over
