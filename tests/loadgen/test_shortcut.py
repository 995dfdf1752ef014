"""Shortcuts past JSON: what they match says exactly what decoding it would have said."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prony_loadgen.answer import Answer
from prony_loadgen.dialects import DIALECTS, Dialect, Said
from prony_loadgen.dialects.dialect import FRAMINGS, Framing
from prony_loadgen.shortcut import Shortcuts, Twin, shortcuts_of, unquoted
from prony_loadgen.sse import Event

HEAD = {
    "events": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
    "lines": b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n",
}
CHUNKED = b"\r\nTransfer-Encoding: chunked\r\n\r\n"


class Unlearned(Shortcuts):
    """Learns nothing, so that every event is decoded."""

    def learn(self, *_: Any) -> None:
        return


def unlearned(dialect: Dialect) -> Mapping[Framing, Shortcuts]:
    return {framing: Unlearned(dialect, framing) for framing in FRAMINGS}


def chunk(name: str, number: int, text: str) -> tuple[str, dict[str, Any]]:
    """An event's name and object as each kind of server writes it."""
    match name:
        case "openai-chat":
            choice = {"index": 0, "delta": {"content": text}, "logprobs": None}
            whole = {"id": f"c-{number}", "created": 1700000000 + number, "choices": [choice]}
            return "", {**whole, "usage": None}
        case "openai-completions":
            return "", {"id": f"c-{number}", "choices": [{"index": 0, "text": text}]}
        case "responses":
            kind = "response.output_text.delta"
            facts = {"type": kind, "sequence_number": number, "item_id": "m", "delta": text}
            return kind, {**facts, "logprobs": [], "obfuscation": "x" * number}
        case "anthropic":
            delta = {"type": "text_delta", "text": text}
            return "content_block_delta", {"type": "content_block_delta", "delta": delta}
        case "ollama-chat":
            said = {"role": "assistant", "content": text}
            return "", {"created_at": f"2026-01-01T00:00:{number}Z", "message": said, "done": False}
        case "ollama-generate":
            return "", {"created_at": f"T{number}", "response": text, "done": False}
        case _:
            token = {"id": number, "text": text, "logprob": -number / 7, "special": False}
            return "", {"index": number, "token": token, "generated_text": None, "details": None}


def framed(dialect: Dialect, number: int, text: str) -> bytes:
    name, facts = chunk(dialect.name, number, text)
    data = json.dumps(facts, separators=(",", ":")).encode()
    if dialect.framing == "lines":
        return data + b"\n"
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"


def read(
    dialect: Dialect,
    pieces: list[bytes],
    shortcuts: Mapping[Framing, Shortcuts],
    *,
    chunked: bool = False,
) -> Answer:
    answer = Answer(dialect, keep_text=True, shortcuts=shortcuts)
    head = HEAD[dialect.framing]
    answer.feed(head.replace(b"\r\n\r\n", CHUNKED) if chunked else head, 0.0)
    for at, piece in enumerate(pieces, start=1):
        answer.feed(piece, float(at))
    answer.end(len(pieces) + 1.0)
    return answer


def facts_of(answer: Answer) -> tuple[Any, ...]:
    texts = tuple(answer.text(channel) for channel in ("text", "reasoning", "refusal", "tool"))
    counts = (tuple(answer.arrivals), answer.output_tokens(), answer.usage)
    return (answer.outcome, answer.error, answer.finish_reason, answer.ended, texts, counts)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
def test_one_decoded_event_is_enough_for_all_of_its_kind(dialect: Dialect) -> None:
    shortcuts = shortcuts_of(dialect)
    read(dialect, [framed(dialect, 1, "Hel")], shortcuts)
    rest = b"".join(framed(dialect, number, f" tok{number}") for number in range(2, 40))
    found = shortcuts[dialect.framing].match(rest, 0)
    assert found is not None
    assert found[1] == len(rest)


@pytest.mark.parametrize("text", ['say "hi"\n', "\\", "\u00e9\u4f60\U0001f600", "\ud83d", "a\tb/"])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_a_text_with_escapes_is_matched_and_read_as_json_reads_it(
    text: str, ensure_ascii: bool
) -> None:
    if text == "\ud83d" and not ensure_ascii:
        return  # UTF-8 has no lone surrogates
    dialect = DIALECTS["openai-completions"]
    shortcuts = shortcuts_of(dialect)
    read(dialect, [framed(dialect, 1, "Hel")], shortcuts)
    _, facts = chunk(dialect.name, 2, text)
    data = json.dumps(facts, separators=(",", ":"), ensure_ascii=ensure_ascii).encode()
    found = shortcuts[dialect.framing].match(b"data: " + data + b"\n\n", 0)
    assert found is not None
    assert list(found[0].texts(b"data: " + data + b"\n\n", 0, found[1])) == [text]


@pytest.mark.parametrize(
    "other",
    [
        b'data: {"id":"c-1","choices":[{"index":0,"text":""}]}\n\n',
        b'data: {"id":"c-1","choices":[{"index":0,"text":"a\x01"}]}\n\n',
        b'data: {"id":"c-1","choices":[{"index":0,"text":"a\\x"}]}\n\n',
        b'data: {"id":"c-1","choices":[{"index":0,"text":"a\\u12g4"}]}\n\n',
        b'data: {"id":"c-1","choices":[{"index":0,"text":"a","text":"b"}]}\n\n',
        b'data: {"id":"c-1","choices":[{"index":1,"text":"a"}]}\n\n',
        b'data: {"id":"c-1","choices":[{"index":0,"text":"a"}]}\n',
        b'data: {"id":1,"choices":[{"index":0,"text":"a"}]}\n\n',
        b'data: {"id":"c"1","choices":[{"index":0,"text":"a"}]}\n\n',
        b'data: {"id":"c-1","choices":[{"index":0,"text":"a"}],"error":{"message":"x"}}\n\n',
        b'event: error\ndata: {"id":"c-1","choices":[{"index":0,"text":"a"}]}\n\n',
    ],
)
def test_what_is_not_the_same_but_for_its_text_is_decoded(other: bytes) -> None:
    dialect = DIALECTS["openai-completions"]
    shortcuts = shortcuts_of(dialect)
    read(dialect, [framed(dialect, 1, "Hel")], shortcuts)
    assert shortcuts[dialect.framing].known
    assert shortcuts[dialect.framing].match(other, 0) is None


def test_a_text_that_stands_twice_is_found_where_the_dialect_reads_it() -> None:
    dialect = DIALECTS["openai-completions"]
    shortcuts = shortcuts_of(dialect)
    twice = b'data: {"model":"Hel","choices":[{"index":0,"text":"Hel"}]}\n\n'
    read(dialect, [twice], shortcuts)
    match = shortcuts["events"].match
    assert match(twice.replace(b'"text":"Hel"', b'"text":"lo"'), 0) is not None
    assert match(twice.replace(b'"model":"Hel"', b'"model":"lo"'), 0) is None


def test_a_server_whose_events_never_repeat_is_left_alone() -> None:
    dialect = DIALECTS["openai-completions"]
    shortcuts = shortcuts_of(dialect)
    learned = []
    for number in range(5000):
        data = b'data: {"own":%d,"choices":[{"index":0,"text":"a"}]}\n\n' % number
        before = list(shortcuts[dialect.framing].known)
        read(dialect, [data], shortcuts)
        if shortcuts[dialect.framing].known != before:
            learned.append(number)
    assert learned == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2047, 4095]


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_bytes_changed_at_random_say_the_same_with_and_without_shortcuts(
    name: str, data: st.DataObject
) -> None:
    dialect = DIALECTS[name]
    texts = data.draw(st.lists(st.text(max_size=4), min_size=3, max_size=6))
    stream = bytearray(b"".join(framed(dialect, n, text) for n, text in enumerate(texts)))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(stream)))
        change = data.draw(st.sampled_from([b'"', b"\\", b"\n", b"\r\n", b"\xff", b"1", b"}", b""]))
        stream[at : at + data.draw(st.integers(0, 2))] = change
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    edges = [0, *cuts, len(stream)]
    raw = bytes(stream)
    pieces = [raw[a:b] for a, b in itertools.pairwise(edges)]
    warm = shortcuts_of(dialect)
    read(dialect, [framed(dialect, 1, "Hel"), framed(dialect, 2, "lo")], warm)
    fast, slow = read(dialect, pieces, warm), read(dialect, pieces, unlearned(dialect))
    assert facts_of(fast) == facts_of(slow)


def test_a_quoted_text_with_bad_utf8_is_read_as_any_event_is() -> None:
    assert unquoted(b"a\xffb\\n") == "a\ufffdb\n"


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_many_events_in_one_read_say_the_same_with_and_without_shortcuts(
    name: str, data: st.DataObject
) -> None:
    dialect = DIALECTS[name]
    some = st.one_of(st.sampled_from(["a", " tok", "\n", 'say "', "\\", "\u4f60", ""]), st.text())
    texts = data.draw(st.lists(some, min_size=5, max_size=30))
    same = data.draw(st.booleans())  # whether the events differ in their text alone
    events = [framed(dialect, 1 if same else n, text) for n, text in enumerate(texts)]
    for _ in range(data.draw(st.integers(0, 2))):
        other = data.draw(
            st.sampled_from([b"\n", b": ping\n\n", b"data: {}\n\n", b'x"\n', b"\r\n"])
        )
        events.insert(data.draw(st.integers(0, len(events))), other)
    chunked = data.draw(st.booleans())
    if chunked:  # mostly a chunk an event, as servers do it
        at = data.draw(st.integers(0, len(events) - 1))
        half = len(events[at]) // 2
        events[at : at + 1] = data.draw(
            st.sampled_from([events[at : at + 1], [events[at][:half], events[at][half:]]])
        )
        events = [b"%x\r\n%b\r\n" % (len(event), event) for event in events if event]
    raw = b"".join(events)
    cut = data.draw(st.integers(0, len(raw)))
    fast = read(dialect, [raw[:cut], raw[cut:]], shortcuts_of(dialect), chunked=chunked)
    slow = read(dialect, [raw[:cut], raw[cut:]], unlearned(dialect), chunked=chunked)
    assert facts_of(fast) == facts_of(slow)


def test_chunks_that_are_an_event_each_are_not_split_again() -> None:
    dialect = DIALECTS["openai-chat"]
    shortcuts = shortcuts_of(dialect)
    first = framed(dialect, 1, "Hel")
    read(dialect, [first], shortcuts)
    twin = Twin(shortcuts[dialect.framing].known[0], first, 0)
    texts = [b" a", b" b\\n", b"\xe4\xbd\xa0"]
    events = [first.replace(b"Hel", text) for text in texts]
    end, error = b"data: [DONE]\n\n", b'data: {"error":"x"}\n\n'
    assert twin.texts_of(events) == texts
    assert twin.texts_of([*events, end]) == texts
    assert twin.texts_of([events[0], error, *events]) is None
    assert twin.texts_of([events[0], first.replace(b"Hel", b""), *events]) is None
    assert twin.texts_of([events[0], first.replace(b"Hel", b'"'), *events]) is None
    assert twin.texts_of([events[0][:9], events[0][9:], *events]) is None
    assert twin.texts_of([first * 2, *events]) is None
    assert twin.texts_of([end]) is None
    assert [twin.text_of(event) for event in events] == texts
    for other in (end, error, first.replace(b"Hel", b""), first.replace(b"Hel", b'"'), first * 2):
        assert twin.text_of(other) is None
    assert twin.text_of(events[0][:-9]) is None


def test_an_escape_that_is_cut_by_the_end_of_its_text_is_no_text() -> None:
    dialect = DIALECTS["openai-completions"]
    good = [framed(dialect, 1, " tok") for _ in range(20)]
    bad = good[0].replace(b" tok", b" tok\\")
    pieces = [b"".join([*good, bad, *good])]
    fast, slow = (
        read(dialect, pieces, shortcuts_of(dialect)),
        read(dialect, pieces, unlearned(dialect)),
    )
    assert fast.outcome == "malformed_event"
    assert facts_of(fast) == facts_of(slow)


def test_what_was_learned_of_lines_of_json_is_not_looked_for_in_an_event_stream() -> None:
    dialect = DIALECTS["ollama-generate"]
    shortcuts = shortcuts_of(dialect)
    line = framed(dialect, 1, "Hel")
    read(dialect, [line], shortcuts)
    assert shortcuts["lines"].known
    # In an event stream this line is a field of no known name: nothing was generated.
    answer = Answer(dialect, keep_text=True, shortcuts=shortcuts)
    answer.feed(HEAD["events"] + b"data: {}\n\n" + line * 20, 0.0)
    answer.end(1.0)
    assert answer.arrivals == []


def test_what_stands_around_the_text_of_every_stream_is_decoded_once() -> None:
    dialect = DIALECTS["openai-chat"]
    shortcuts = shortcuts_of(dialect)
    read_at: list[bytes] = []

    def counting(event: Event) -> Said:
        read_at.append(event.data)
        return dialect.read_event(event)

    counted = replace(dialect, read_event=counting)
    for number in range(4):
        role = b'{"id":"%d","choices":[{"delta":{"role":"assistant","content":""}}]}' % number
        finish = b'{"id":"%d","choices":[{"delta":{},"finish_reason":"length"}]}' % number
        usage = b'{"id":"%d","choices":[],"usage":{"completion_tokens":3}}' % number
        text = b'{"id":"%d","choices":[{"delta":{"content":"a"}}]}' % number
        events = [role, text, text, text, finish, usage, b"[DONE]"]
        read_at.clear()
        answer = read(counted, [b"".join(b"data: %b\n\n" % each for each in events)], shortcuts)
        assert (answer.outcome, answer.finish_reason) == ("ok", "length")
        assert answer.output_tokens() == (3, "usage")
    assert read_at == [usage]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_dropped_at_the_start_alone(mark: bytes) -> None:
    dialect = DIALECTS["openai-completions"]
    warm = shortcuts_of(dialect)
    for _ in range(3):
        read(dialect, [framed(dialect, 1, "Hel")], warm)
    events = [framed(dialect, number, " tok") for number in range(3)]
    for pieces in ([mark + b"".join(events)], [mark, events[0], mark + events[1], events[2]]):
        fast = read(dialect, pieces, warm)
        assert facts_of(fast) == facts_of(read(dialect, pieces, unlearned(dialect)))
        assert fast.text("text").startswith(" tok")


def test_an_event_that_reads_cut_comes_when_its_end_comes() -> None:
    dialect = DIALECTS["openai-completions"]
    shortcuts = shortcuts_of(dialect)
    event = framed(dialect, 1, " tok")
    read(dialect, [event], shortcuts)
    answer = read(dialect, [event + event[:20], event[20:-1], event[-1:] + event], shortcuts)
    assert [arrival.at for arrival in answer.arrivals] == [1.0, 3.0, 3.0]
    # The stream's end ends it too, where it is whole.
    answer = read(dialect, [event, event[:-2]], shortcuts)
    assert answer.text("text") == " tok tok"
    assert read(dialect, [event, event[:-5]], shortcuts).text("text") == " tok"
