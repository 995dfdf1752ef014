"""Output that may fail without the verdict: a reader that leaves, a full disk, a read-only folder.

`prony run | head -1` still ends with its verdict, and so does `prony gate` where nothing can be
written.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


@contextmanager
def unless_unwritable(path: Path) -> Iterator[None]:
    """Says where `path` cannot be written (read-only, a full disk): the verdict stands without."""
    try:
        yield
    except OSError as error:
        print(
            f"note: {path}: {error.strerror}: not written; the exit code is the verdict's",
            file=sys.stderr,
        )


class Unbroken:
    """A stream in place of sys.stdout that goes quiet once nobody reads it, or its disk is full.

    What was measured and judged is in the run folder, and the exit code must speak of that.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._go_quiet()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._go_quiet()

    def _go_quiet(self) -> None:
        # The stream keeps what it could not write, and would fail again when Python ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
