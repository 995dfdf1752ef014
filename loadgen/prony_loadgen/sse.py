"""Server-sent events without I/O: body bytes go in as they come, events come out.

Lines end with CR, LF or CRLF, wherever the reads cut them; a byte-order mark at the start is
dropped; comments, `id` and `retry` are ignored. Work is linear in the bytes at any read size, and
no line is too long.
"""

from typing import NamedTuple

BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One dispatched event; several data lines are joined by LF."""

    name: str  # "message" where the stream named none
    data: bytes


class EventStream:
    """Feed it a body; it returns the events that each piece completes."""

    __slots__ = ("_after_cr", "_data", "_head", "_name", "_partial")

    def __init__(self) -> None:
        self._head: bytes | None = b""  # what may yet turn out to be a byte-order mark
        self._after_cr = False  # an LF right now belongs to the line end already taken
        self._partial: list[bytes] = []  # pieces of the line that has not ended
        self._name = ""
        self._data: list[bytes] = []

    @property
    def between_events(self) -> bool:
        """Whether the next byte starts an event: nothing before it can change what it means."""
        return not (
            self._partial or self._data or self._name or self._after_cr or self._head is not None
        )

    def begin(self, body: bytes) -> None:
        """Tells it how the stream begins, so that it looks for no byte-order mark in vain."""
        if self._head == b"" and not body.startswith(BOM[:1]):
            self._head = None

    def feed(self, chunk: bytes) -> list[Event]:
        if self._head is not None:
            chunk = self._head + chunk
            if len(chunk) < len(BOM) and BOM.startswith(chunk):
                self._head = chunk
                return []
            self._head = None
            chunk = chunk.removeprefix(BOM)
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._partial:
            self._partial.append(lines[0])
            lines[0] = b"".join(self._partial)
            self._partial.clear()
        if rest:
            self._partial.append(rest)
        return self._events(lines)

    def flush(self) -> Event | None:
        """At the end of the body: the event that no blank line ended, which may be cut."""
        events = self._events([b"".join(self._partial), b""])
        self._partial.clear()
        return events[0] if events else None

    def _events(self, lines: list[bytes]) -> list[Event]:
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                start = 6 if line.startswith(b" ", 5) else 5
                self._data.append(line[start:])
            elif not line:
                if self._data:
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append(Event(self._name or "message", data))
                    self._data = []
                self._name = ""
            elif line.startswith(b"event:"):
                self._name = line[6:].removeprefix(b" ").decode("utf-8", "replace")
            elif line == b"data":
                self._data.append(b"")
            elif line == b"event":
                self._name = ""
        return events
