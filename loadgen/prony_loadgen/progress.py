"""The line that a person watches while a run goes on: figures in, text on stderr out."""

from typing import TextIO

# Seconds between lines where they cannot be rewritten: as far as each looks back (live.RECENT), so
# that no moment is in none of them.
_EVERY = 5


class Progress:
    """One line, rewritten each second on a terminal; elsewhere a new line every five seconds."""

    def __init__(self, stream: TextIO | None, *, rewrite: bool | None = None) -> None:
        """No stream: quiet. `rewrite` defaults to whether the stream is a terminal."""
        self._stream = stream
        self._rewrite = stream is not None and stream.isatty() if rewrite is None else rewrite
        self._said = 0
        self._open = False

    def say(self, line: str) -> None:
        """Takes the figures once a second; decides whether they are shown."""
        if self._stream is None:
            return
        if self._rewrite:
            self._stream.write(f"\r{line}\x1b[K")
            self._open = True
        elif self._said % _EVERY == _EVERY - 1:
            self._stream.write(f"{line}\n")
        self._said += 1
        self._stream.flush()

    def note(self, line: str) -> None:
        """A line that stays."""
        self.end()
        if self._stream is not None:
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def end(self) -> None:
        """Leaves the rewritten line behind."""
        if self._stream is not None and self._open:
            self._stream.write("\n")
            self._stream.flush()
        self._open = False
