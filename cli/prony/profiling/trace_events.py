"""A Chrome trace's events, one after the other: a file of any size in, dicts out.

torch.profiler writes one JSON object whose `traceEvents` may hold millions of entries, often
compressed; other tools write the bare list. No more of the file is held than a piece of it.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

PIECE: Final = 1 << 20  # characters read at once
LONGEST: Final = 1 << 24  # characters of one value; a longer one is no trace
_SPACE: Final = re.compile(r"[\s,]*")


class TraceError(ValueError):
    """The file is no trace that can be read; the message names it and what is wrong."""


def trace_events(path: Path, note: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Every event of the trace at `path`; `note` is told where the file breaks off.

    Raises TraceError where it is no Chrome trace, and OSError.
    """
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        yield from _Reader(_pieces(file), path.name, note).events()


def _pieces(file: Any) -> Iterator[str]:
    """The file's text, as far as it can be read: one that was cut loses no more than its end."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    waiting = ""
    try:
        while data := file.read1(PIECE):
            waiting += decode(data)
            if len(waiting) >= PIECE:
                yield waiting
                waiting = ""
    except (EOFError, zlib.error, gzip.BadGzipFile):
        pass
    yield waiting


class _Reader:
    """A piece of JSON text, and how far it was read."""

    def __init__(self, text: Iterator[str], name: str, note: Callable[[str], None]) -> None:
        self._text, self._name, self._note = text, name, note
        self._piece, self._at, self._whole = "", 0, False
        self._decode = json.JSONDecoder().raw_decode

    def events(self) -> Iterator[dict[str, Any]]:
        opening = self._next()
        self._at += 1
        if opening == "[":
            yield from self._list()
            return
        if opening != "{":
            raise TraceError(f"{self._name}: not a Chrome trace: expected JSON, got {opening!r}")
        found = False
        while (mark := self._next()) not in ("}", ""):
            if mark != '"':
                raise TraceError(f"{self._name}: not a Chrome trace: {mark!r} in place of a key")
            key = self._value()
            if self._next() != ":":
                raise TraceError(f"{self._name}: not a Chrome trace: no value for {key!r:.60}")
            self._at += 1
            if key == "traceEvents" and self._next() == "[":
                found, self._at = True, self._at + 1
                yield from self._list()
            elif self._value() is None and self._whole and self._at >= len(self._piece):
                break
        if not found:
            raise TraceError(f"{self._name}: not a Chrome trace: it has no traceEvents")

    def _list(self) -> Iterator[dict[str, Any]]:
        while (mark := self._next()) != "]":
            if mark == "":
                self._note(f"{self._name} breaks off: what is read is its beginning")
                return
            event = self._value()
            if isinstance(event, dict):
                yield event
        self._at += 1

    def _next(self) -> str:
        """The next character that is neither space nor comma; empty at the end."""
        while True:
            found = _SPACE.match(self._piece, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._piece):
                return self._piece[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """The next value; None where the file ends within it."""
        self._next()
        while True:
            try:
                value, end = self._decode(self._piece, self._at)
                # A number at the edge of a piece may go on in the next one.
                if end < len(self._piece) or not self._more():
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                if len(self._piece) - self._at > LONGEST:
                    raise TraceError(f"{self._name}: not a Chrome trace: {error.msg}") from None
                if not self._more():
                    self._at = len(self._piece)
                    return None
            except RecursionError:
                raise TraceError(f"{self._name}: not a Chrome trace: nested too deeply") from None

    def _more(self) -> bool:
        if self._whole:
            return False
        piece = next(self._text, "")
        self._whole = not piece
        self._piece, self._at = self._piece[self._at :] + piece, 0
        return not self._whole
