"""Records in, `requests.jsonl.gz` out, readable up to about the last second at any moment."""

import time
import zlib
from collections.abc import Callable
from pathlib import Path

from prony_loadgen.record import RequestRecord

_FLUSH_EVERY = 1.0


class Recorder:
    """Writes records as they come. Errors of the disk (OSError) are the caller's to act on."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = path.open("wb", buffering=0)
        # Level 1: compressing happens while requests are timed.
        self._deflate = zlib.compressobj(level=1, wbits=31)
        self._clock = clock
        self._flushed = clock()
        self._waiting: list[bytes] = []
        self._torn = False  # part of the data is lost: more behind it could not be read
        self.written = 0

    def add(self, record: RequestRecord) -> None:
        """Takes one record; it is on disk within about a second of further calls."""
        self._waiting.append(self._deflate.compress(record.to_json().encode() + b"\n"))
        self.written += 1
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Flushes where a second has passed; also called while no records come."""
        if self._clock() - self._flushed >= _FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Everything so far goes to the file in a form that can be read without an end."""
        self._flushed = self._clock()
        self._waiting.append(self._deflate.flush(zlib.Z_SYNC_FLUSH))
        self._write()

    def close(self) -> None:
        """Ends the file. Safe to call twice; the file is closed even where the disk is full."""
        if self._file.closed:
            return
        try:
            if not self._torn:
                self._waiting.append(self._deflate.flush())
                self._write()
        finally:
            self._file.close()

    def _write(self) -> None:
        data = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            self._torn = True
            raise
