"""Events that differ only in their text: a decoded one goes in, a pattern of its like comes out.

Nearly every chunk of a stream repeats the one before it but for the text, and what stands before
and behind the text (the role, the finish) repeats that of the stream before: decoding its JSON
tells nothing new. A pattern matches whole events, byte for byte, with holes for one JSON string
(the text) and for the values of keys that the dialect never reads (an id, a time). What stands in a
hole is held to JSON's grammar for that kind of value, and JSON is context-free: bytes that match
parse to the same object as the event that was decoded, with other values in the holes. Nothing is
guessed: what does not match is decoded.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from prony_loadgen.dialects.dialect import FRAMINGS, Dialect, Framing, Output, Said
from prony_loadgen.record import Channel
from prony_loadgen.sse import Event

# What may stand between the quotes of a JSON string; it backtracks nowhere.
_CHARACTERS = rb"[^\"\\\x00-\x1f]*+(?:\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})[^\"\\\x00-\x1f]*+)*"
# No more digits than Python's own reader takes without thought.
_NUMBER = rb"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,25})?(?:[eE][-+]?[0-9]{1,3})?"
_SPACE = rb"[ \t\r\n]*"
# The strings of a JSON text, each with the value whose key it is, if that is a string or a number.
_STRING = re.compile(
    rb'"(%b)"(?:%b:%b(?:"(%b)"|(%b)(?=[ ,}\]])|))?'
    % (_CHARACTERS, _SPACE, _SPACE, _CHARACTERS, _NUMBER)
)
# A text that is not empty.
_TEXT = re.compile(rb"(?!\Z)%b" % _CHARACTERS)
# Texts that are not empty, a line each: no JSON string holds a newline.
_TEXTS = re.compile(rb"(?:(?!\n)%b\n)+" % _CHARACTERS)
# Bytes that stand for themselves in a JSON string.
_PLAIN = bytes(byte for byte in range(0x20, 0x100) if byte not in b'"\\')
_NEWLINE = ord("\n")
# So many events that are no text (the finish, usage, [DONE]) end a stream at most.
_OTHERS_BEHIND = 6
_NOT_EMPTY = rb'(?!")'
# Stand for the holes while a pattern is made; no JSON holds these.
_MARKS = {"text": b"\x00", "string": b"\x01", "number": b"\x02"}
# Two texts that no event would hold by chance, and values for the other holes.
_TRIAL_TEXTS = ("\u2400prony trial", "\u2401")
_TRIAL_VALUES = (b"prony", b"7")
_KEPT = 4
_LONGEST = 4096  # bytes; an event longer than this is cheap for what it holds
_MOST_WAITED = 4096


@dataclass(frozen=True, slots=True)
class Shortcut:
    """Events that say one piece of text of one channel, and nothing else that matters."""

    run: re.Pattern[bytes]  # one or more whole events
    one: re.Pattern[bytes]  # one of them; its group is the text between the quotes
    newlines: int  # in each event: JSON strings hold none
    channel: Channel
    choice: int

    def count(self, body: bytes, start: int, end: int) -> int:
        """How many events there are in what `run` matched."""
        return body.count(b"\n", start, end) // self.newlines

    def texts(self, body: bytes, start: int, end: int) -> Iterator[str]:
        for match in self.one.finditer(body, start, end):
            yield unquoted(match[1])


class Fixed(NamedTuple):
    """Events that all say the same, and nothing that differs from stream to stream."""

    one: re.Pattern[bytes]
    said: Said


class Twin:
    """Events of one stream that are the same byte for byte but for their text: the cheapest test.

    Made from one event that a shortcut has matched, so what is said there holds here too.
    """

    __slots__ = (
        "_after",
        "_before",
        "_between",
        "_cut",
        "_each",
        "_from",
        "_head",
        "_line",
        "_tail",
        "_to",
        "size",
    )

    def __init__(self, shortcut: Shortcut, body: bytes, start: int) -> None:
        match = shortcut.one.match(body, start)
        assert match is not None
        first, last = match.span(1)
        self._before, self._after = body[start:first], body[last : match.end()]
        self._between = self._after + self._before
        # Of one whole event its text: calls from C cost less than a loop of Python's.
        self._cut = itemgetter(slice(len(self._before), -len(self._after)))
        self.size = len(self._between)
        # An event is so many lines; its text stands in this one, from here to there.
        self._each = shortcut.newlines
        self._line = self._before.count(b"\n")
        self._from = len(self._before) - self._before.rfind(b"\n") - 1
        self._to = -self._after.find(b"\n")
        self._head = self._before.rpartition(b"\n")[2]
        self._tail = self._after.partition(b"\n")[0]

    def text_of(self, piece: bytes) -> bytes | None:
        """The text of a piece that is one event of this kind; None of any other."""
        if not (piece.startswith(self._before) and piece.endswith(self._after)):
            return None
        text: bytes = self._cut(piece)
        whole = len(text) == len(piece) - len(self._before) - len(self._after)
        return text if whole and _TEXT.fullmatch(text) is not None else None

    def texts_of(self, pieces: list[bytes]) -> list[bytes] | None:
        """The texts of pieces that are events of this kind each, up to the stream's end.

        None where there are none, or where others stand among them.
        """
        held = pieces
        for _ in range(_OTHERS_BEHIND):
            if not held or (held[-1].startswith(self._before) and held[-1].endswith(self._after)):
                break
            held = held[:-1]
        texts = list(map(self._cut, held))
        if not _are_texts(texts):
            return None
        same = self._before + self._between.join(texts) + self._after
        return texts if b"".join(held) == same else None

    def texts(self, body: bytes, start: int) -> tuple[list[bytes], int] | None:
        """The texts of the events of this kind at `start`, and where they end.

        None where there are none, or where others stand among them.
        """
        lines = (body[start:] if start else body).split(b"\n")
        whole = (len(lines) - 1) // self._each * self._each  # the last line has no end
        held = lines[self._line : whole : self._each]
        for _ in range(_OTHERS_BEHIND):
            if not held or (held[-1].startswith(self._head) and held[-1].endswith(self._tail)):
                break
            held.pop()
        texts = [line[self._from : self._to] for line in held]
        if not _are_texts(texts):
            return None
        # What was cut out above is put together again: then nothing else was there.
        same = self._before + self._between.join(texts) + self._after
        return (texts, start + len(same)) if body.startswith(same, start) else None


def _are_texts(texts: list[bytes]) -> bool:
    """Whether each may stand between the quotes of a JSON string, and there are some."""
    joined = b"\n".join([*texts, b""])
    odd = joined.translate(None, _PLAIN)
    if len(odd) == len(texts):  # newlines alone: nothing needs a closer look
        return bool(texts) and b"\n\n" not in joined and joined[0] != _NEWLINE
    return _TEXTS.fullmatch(joined) is not None


class Shortcuts:
    """What was learned of the events of one target in one dialect and framing.

    Each is tried, newest first.
    """

    def __init__(self, dialect: Dialect, framing: Framing) -> None:
        self._dialect = dialect
        self._framing = framing
        self.known: list[Shortcut] = []
        self._fixed: list[Fixed] = []
        self._text_pause, self._fixed_pause = _Pause(), _Pause()

    def match(self, body: bytes, start: int) -> tuple[Shortcut, int] | None:
        """The shortcut for the events at `start`, and where they end."""
        for shortcut in self.known:
            if (found := shortcut.run.match(body, start)) is not None:
                return shortcut, found.end()
        return None

    def match_one(self, body: bytes, start: int) -> tuple[Shortcut, int] | None:
        """The same for the first of these events alone."""
        for shortcut in self.known:
            if (found := shortcut.one.match(body, start)) is not None:
                return shortcut, found.end()
        return None

    def fixed(self, body: bytes, start: int) -> tuple[Said, int] | None:
        """What the event at `start` says, which others said before it, and where it ends."""
        for fixed in self._fixed:
            if (found := fixed.one.match(body, start)) is not None:
                return fixed.said, found.end()
        return None

    def learn(self, event: Event, said: Said, body: bytes) -> None:
        """Takes an event that was decoded, and the piece of the body that it came in."""
        if len(event.data) > _LONGEST or b"\n" in event.data:
            return
        if len(said.outputs) == 1:
            if self._text_pause.over():
                self._learn_text(event, said, body)
        elif said == Said(finished=said.finished, done=said.done) and self._fixed_pause.over():
            self._learn_fixed(event, said, body)

    def _learn_text(self, event: Event, said: Said, body: bytes) -> None:
        shortcut = _shortcut(self._dialect, event, said, self._framing, body)
        if shortcut is not None and all(shortcut.run != known.run for known in self.known):
            self.known = [shortcut, *self.known[: _KEPT - 1]]

    def _learn_fixed(self, event: Event, said: Said, body: bytes) -> None:
        holes, _ = _holes(event.data, "", self._dialect.unread_keys)
        if self._dialect.read_event(Event(event.name, _filled(event.data, holes, ""))) != said:
            return
        one = re.compile(b"".join(_patterns(event, holes, self._framing, body)))
        if all(one != fixed.one for fixed in self._fixed):
            self._fixed = [Fixed(one, said), *self._fixed[: _KEPT - 1]]


class _Pause:
    """Making a pattern takes half a millisecond. A server whose events never repeat is soon left
    alone: the time between two attempts doubles.
    """

    def __init__(self) -> None:
        self._attempts = 0
        self._left = 0

    def over(self) -> bool:
        """Whether it is time for an attempt, which is then made."""
        if self._left:
            self._left -= 1
            return False
        self._left = min(2**self._attempts, _MOST_WAITED) - 1
        self._attempts += 1
        return True


def shortcuts_of(dialect: Dialect) -> dict[Framing, Shortcuts]:
    """Nothing learned yet, for each framing apart: what is an event in one is none in another."""
    return {framing: Shortcuts(dialect, framing) for framing in FRAMINGS}


def unquoted(text: bytes) -> str:
    """What the JSON string with these bytes between its quotes says."""
    told = text.decode("utf-8", "replace")
    if "\\" not in told:
        return told
    unescaped: str = json.loads(f'"{told}"')
    return unescaped


def all_unquoted(texts: list[bytes]) -> list[str]:
    """What each of these says; none holds a newline, as no JSON string does."""
    told = b"\n".join(texts).decode("utf-8", "replace")
    return [unquoted(text) for text in texts] if "\\" in told else told.split("\n")


class _Hole(NamedTuple):
    start: int
    end: int
    what: str  # "text", "string" or "number"


def _shortcut(
    dialect: Dialect, event: Event, said: Said, framing: Framing, body: bytes
) -> Shortcut | None:
    [output] = said.outputs
    if said._replace(outputs=()) != Said():
        return None  # it says more than its text
    ignored, candidates = _holes(event.data, output.text, dialect.unread_keys)
    for candidate in candidates:
        holes = sorted([*ignored, candidate])
        if all(
            dialect.read_event(Event(event.name, _filled(event.data, holes, text)))
            == Said(outputs=(Output(output.channel, output.choice, text),))
            for text in _TRIAL_TEXTS
        ):
            return _compiled(event, holes, output, framing, body)
    return None


def _holes(data: bytes, text: str, unread: frozenset[str]) -> tuple[list[_Hole], list[_Hole]]:
    """Values that nobody reads, and strings that may be the text."""
    ignored: list[_Hole] = []
    candidates: list[_Hole] = []
    for match in _STRING.finditer(data):
        key = match[1].decode("utf-8", "replace")
        if match[2] is not None:
            where = match.span(2)
            if key in unread:
                ignored.append(_Hole(*where, "string"))
            elif unquoted(match[2]) == text:
                candidates.append(_Hole(*where, "text"))
        elif match[3] is not None and key in unread:
            ignored.append(_Hole(*match.span(3), "number"))
    return ignored, candidates


def _filled(data: bytes, holes: list[_Hole], text: str) -> bytes:
    string, number = _TRIAL_VALUES
    values = {"text": json.dumps(text)[1:-1].encode(), "string": string, "number": number}
    return b"".join(_pieces(data, holes, values))


def _pieces(data: bytes, holes: list[_Hole], fillings: dict[str, bytes]) -> Iterator[bytes]:
    position = 0
    for hole in holes:
        yield data[position : hole.start]
        yield fillings[hole.what]
        position = hole.end
    yield data[position:]


def _compiled(
    event: Event, holes: list[_Hole], output: Output, framing: Framing, body: bytes
) -> Shortcut:
    before, escaped, end = _patterns(event, holes, framing, body)
    mark = re.escape(_MARKS["text"])
    one, run = (
        before + escaped.replace(mark, _NOT_EMPTY + text) + end
        for text in (b"(%b)" % _CHARACTERS, _CHARACTERS)
    )
    return Shortcut(
        re.compile(b"(?:%b)+" % run),
        re.compile(one),
        (before + end).count(b"\n"),
        output.channel,
        output.choice,
    )


def _patterns(
    event: Event, holes: list[_Hole], framing: Framing, body: bytes
) -> tuple[bytes, bytes, bytes]:
    """Of what stands before its data, of the data with the mark of a text, and of what follows."""
    escaped = re.escape(b"".join(_pieces(event.data, holes, _MARKS)))
    escaped = escaped.replace(re.escape(_MARKS["string"]), _CHARACTERS)
    escaped = escaped.replace(re.escape(_MARKS["number"]), _NUMBER)
    newline = b"\r\n" if b"\r\n" in body else b"\n"
    if framing == "lines":
        return b"", escaped, re.escape(newline)
    name = b"" if event.name == "message" else b"event: " + event.name.encode() + newline
    space = b" " if b"data: " + event.data[:1] in body else b""
    return re.escape(name + b"data:" + space), escaped, re.escape(newline * 2)
