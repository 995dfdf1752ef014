"""Newline-delimited JSON without I/O: body bytes go in as they come, one event a line comes out.

Lines end with LF or CRLF, wherever the reads cut them; blank ones are dropped, as is a byte-order
mark at the start. Work is linear in the bytes at any read size, and no line is too long.
"""

from prony_loadgen.sse import BOM, Event


class LineStream:
    """Feed it a body; it returns the lines that each piece completes."""

    __slots__ = ("_head", "_partial")

    def __init__(self) -> None:
        self._head: bytes | None = b""  # what may yet turn out to be a byte-order mark
        self._partial: list[bytes] = []  # pieces of the line that has not ended

    @property
    def between_events(self) -> bool:
        """Whether the next byte starts a line."""
        return not self._partial and self._head is None

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
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._partial:
            self._partial.append(lines[0])
            lines[0] = b"".join(self._partial)
            self._partial.clear()
        if rest:
            self._partial.append(rest)
        return [Event("message", line) for line in map(bytes.strip, lines) if line]

    def flush(self) -> Event | None:
        """At the end of the body: the line that no newline ended, which may be cut."""
        line = b"".join(self._partial).strip()
        self._partial.clear()
        return Event("message", line) if line else None
