"""The SSE parser: what the standard says, at every cut and without limits."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_loadgen.sse import Event, EventStream


def events_of(*pieces: bytes) -> list[Event]:
    stream = EventStream()
    return [event for piece in pieces for event in stream.feed(piece)]


# What each line or ending means: the bytes, then the (name, data) of the events they hold.
MEANINGS: dict[str, tuple[bytes, list[tuple[str, bytes]]]] = {
    "LF ends a line": (b"data: a\n\n", [("message", b"a")]),
    "CRLF ends a line": (b"data: a\r\n\r\n", [("message", b"a")]),
    "CR ends a line": (b"data: a\r\r", [("message", b"a")]),
    "mixed line ends": (
        b"data: a\r\ndata: b\r\n\ndata: c\n\r\n",
        [
            ("message", b"a\nb"),
            ("message", b"c"),
        ],
    ),
    "the space after the colon is optional": (b"data:a\n\n", [("message", b"a")]),
    "only one space is dropped": (b"data:  a\n\n", [("message", b" a")]),
    "data lines are joined by LF": (b"data: a\ndata: b\n\n", [("message", b"a\nb")]),
    "a comment says nothing": (b": ping\n\ndata: a\n: in between\n\n", [("message", b"a")]),
    "an event has a name": (b"event: error\ndata: a\n\n", [("error", b"a")]),
    "a name holds for one event": (
        b"event: x\ndata: a\n\ndata: b\n\n",
        [
            ("x", b"a"),
            ("message", b"b"),
        ],
    ),
    "a name without data is dropped": (b"event: x\n\ndata: b\n\n", [("message", b"b")]),
    "id and retry say nothing": (b"id: 7\nretry: 10\ndata: a\n\n", [("message", b"a")]),
    "an unknown field says nothing": (b"datum: b\ndata: a\n\n", [("message", b"a")]),
    "a field without colon is empty": (b"data\n\n", [("message", b"")]),
    "an event without data is none": (b"\n\n\ndata: a\n\n\n\n", [("message", b"a")]),
    "a leading BOM is dropped": (b"\xef\xbb\xbfdata: a\n\n", [("message", b"a")]),
    "only one BOM is dropped": (
        b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n",
        [
            ("message", b"b"),
        ],
    ),
    "half a BOM is a line": (b"\xef\xbbdata: a\n\ndata: b\n\n", [("message", b"b")]),
    "Unicode separators end no line": (
        "data: a\u2028b\u0085c\u2029d\x0be\x0cf\n\n".encode(),
        [("message", "a\u2028b\u0085c\u2029d\x0be\x0cf".encode())],
    ),
}


@pytest.mark.parametrize("meaning", MEANINGS)
def test_the_parser_reads(meaning: str) -> None:
    raw, events = MEANINGS[meaning]
    assert events_of(raw) == events


@pytest.mark.parametrize("meaning", MEANINGS)
def test_every_cut_in_two_and_every_single_byte_reads_the_same(meaning: str) -> None:
    raw, events = MEANINGS[meaning]
    for cut in range(len(raw) + 1):
        assert events_of(raw[:cut], raw[cut:]) == events
        assert events_of(raw[:cut], b"", raw[cut:]) == events
    assert events_of(*(raw[at : at + 1] for at in range(len(raw)))) == events


@given(
    raw=st.lists(
        st.sampled_from(
            [b"data", b":", b" ", b"\r", b"\n", b"event", b"x", b"\xef\xbb\xbf", b"\xef"]
        )
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 60)),
)
def test_any_bytes_cut_anywhere_read_the_same_as_in_one_piece(raw: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    pieces = [raw[start:end] for start, end in itertools.pairwise(edges)]
    assert events_of(*pieces) == events_of(raw)


def test_flush_gives_the_event_that_no_blank_line_ended() -> None:
    for end in (b"", b"\n", b"\r", b"\r\n"):
        stream = EventStream()
        assert stream.feed(b"event: x\ndata: a\ndata: b" + end) == []
        assert stream.flush() == Event("x", b"a\nb")
        assert stream.flush() is None


def test_flush_gives_nothing_after_a_whole_event_or_a_comment() -> None:
    for raw in (b"", b"data: a\n\n", b": ping", b"event: x", b"data: a\n\n\r"):
        stream = EventStream()
        stream.feed(raw)
        assert stream.flush() is None


def test_a_line_of_ten_million_bytes_costs_linear_time_byte_by_byte() -> None:
    def seconds(size: int) -> float:
        stream = EventStream()
        started = time.process_time()
        stream.feed(b"data: ")
        for _ in range(size):
            stream.feed(b"x")
        [event] = stream.feed(b"\n\n")
        assert len(event.data) == size
        return time.process_time() - started

    # Quadratic cost would be 100 times as much, and minutes for the next line.
    assert seconds(200_000) < 40 * max(seconds(20_000), 0.001)
    [event] = events_of(b"data: ", *[b"x" * 10_000] * 1_000, b"\n\n")
    assert len(event.data) == 10_000_000
