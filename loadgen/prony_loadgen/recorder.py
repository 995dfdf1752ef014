"""Records in, `requests.jsonl.gz` out, readable up to about the last second at any moment."""

import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from prony_loadgen.record import RequestRecord

_FLUSH_EVERY = 1.0


class Recorder:
    """Writes records as they come. Errors of the disk (OSError) are the caller's to act on."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = path.open("wb", buffering=0)
        self._deflate = _compressor()
        self._within = False  # records lie in a gzip member that has no end yet
        self._clock = clock
        self._flushed = clock()
        self._waiting: list[bytes] = []
        self._torn = False  # part of the data is lost: more behind it could not be read
        self.written = 0

    def add(self, record: RequestRecord) -> None:
        """Takes one record; it is on disk within about a second of further calls."""
        self._waiting.append(self._deflate.compress(_line(record)))
        self._within = True
        self.written += 1
        self.flush_if_due()

    def add_packed(self, packed: bytes, records: int) -> None:
        """Takes what a Packer packed as it is: gzip files may be put one after another."""
        self._end_member()
        self._waiting.append(packed)
        self.written += records
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Flushes where a second has passed; also called while no records come."""
        if self._clock() - self._flushed >= _FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Everything so far goes to the file in a form that can be read without an end."""
        self._flushed = self._clock()
        if self._within:
            self._waiting.append(self._deflate.flush(zlib.Z_SYNC_FLUSH))
        self._write()

    def close(self) -> None:
        """Ends the file. Safe to call twice; the file is closed even where the disk is full."""
        if self._file.closed:
            return
        try:
            if not self._torn:
                # A file without a record is a gzip file too.
                self._within = self._within or not self.written
                self._end_member()
                self._write()
        finally:
            self._file.close()

    def _end_member(self) -> None:
        if self._within:
            self._waiting.append(self._deflate.flush())
            self._deflate = _compressor()
            self._within = False

    def _write(self) -> None:
        data = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            self._torn = True
            raise


class Packer:
    """Records on their way: they are packed as they come, as a gzip file that is whole."""

    def __init__(self) -> None:
        self._deflate = _compressor()
        self._parts: list[bytes] = []

    def add(self, record: RequestRecord) -> None:
        self._parts.append(self._deflate.compress(_line(record)))

    def take(self) -> bytes:
        """Everything since the last call; empty where nothing came."""
        if not self._parts:
            return b""
        packed = b"".join(self._parts) + self._deflate.flush()
        self._deflate, self._parts = _compressor(), []
        return packed


def unpacked(packed: bytes) -> Iterator[RequestRecord]:
    """The records that a Packer packed. Raises ValueError or zlib.error for anything else."""
    for line in zlib.decompress(packed, wbits=31).splitlines():
        yield RequestRecord.from_json(line.decode())


def _line(record: RequestRecord) -> bytes:
    return record.to_json().encode() + b"\n"


def _compressor() -> "zlib._Compress":
    # Level 1: compressing happens while requests are timed.
    return zlib.compressobj(level=1, wbits=31)
