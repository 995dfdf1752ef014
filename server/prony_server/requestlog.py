"""One line of JSON a request: what the edge knows of it comes in, a file or a stream gets it.

Lines are made and written by a thread of their own: the event loop only puts facts into a queue.
Where the queue is full, since a disk or a reader is slow, a line is dropped and counted; what is
served never waits for what is logged. No prompt and no answer is in a line.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import io
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import structlog

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

Fact = str | int | float | bool | None

WAITING = 10_000  # lines; at some 400 bytes each no memory to speak of
LAST_LINES = 5.0  # seconds for what still waits when the server ends


class RequestLog:
    """Called from any thread; `close` writes what waits."""

    def __init__(self, stream: TextIO, dropped: Callable[[], None], waiting: int = WAITING) -> None:
        """`dropped` is told of each line that is not written."""
        self._dropped = dropped
        self._facts: queue.Queue[tuple[float, dict[str, Fact]] | None] = queue.Queue(waiting)
        self._logger = structlog.wrap_logger(
            structlog.WriteLogger(stream),
            processors=[structlog.processors.JSONRenderer(separators=(",", ":"))],
        )
        self._thread = threading.Thread(target=self._write, name="request-log", daemon=True)
        self._thread.start()

    def add(self, ended: float, facts: dict[str, Fact]) -> None:
        """`ended`: Unix seconds."""
        try:
            self._facts.put_nowait((ended, facts))
        except queue.Full:
            self._dropped()

    def close(self, patience: float = LAST_LINES) -> None:
        """Returns once all is written, or after `patience` seconds; what is left is dropped."""
        with contextlib.suppress(queue.Full):
            self._facts.put(None, timeout=patience)
            self._thread.join(patience)
        while self._thread.is_alive():
            try:
                left = self._facts.get_nowait()
            except queue.Empty:
                return
            if left is not None:
                self._dropped()

    def _write(self) -> None:
        written = True  # the one before
        while (each := self._facts.get()) is not None:
            ended, facts = each
            at = datetime.datetime.fromtimestamp(ended, datetime.UTC)
            try:
                self._logger.info("request", time=at.isoformat(timespec="milliseconds"), **facts)
                written = True
            except (OSError, ValueError) as error:  # a full disk, a reader gone, a closed stream
                self._dropped()
                if written:
                    logger.warning("the request log loses lines: %s", error)
                written = False


class WholeLines(io.FileIO):
    """A file to append lines to: one that a full disk cuts is an error, and spoils no other."""

    _cut = False

    def write(self, line: ReadableBuffer) -> int:
        data = bytes(line)
        due = b"\n" + data if self._cut else data
        taken = super().write(due) or 0  # None where a pipe would have to wait
        if taken:
            self._cut = due[taken - 1 : taken] != b"\n"
        if taken < len(due):
            raise OSError(errno.ENOSPC, f"{taken} of {len(due)} bytes could be written")
        return len(data)


@contextlib.contextmanager
def request_log(where: str | None, dropped: Callable[[], None]) -> Iterator[RequestLog | None]:
    """The log at `where`: a file to append to, "-" for standard output, None for none.

    Raises OSError where the file cannot be opened.
    """
    if where is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        if where == "-":
            stream: TextIO = sys.stdout
        else:
            raw = stack.enter_context(WholeLines(Path(where).expanduser(), "ab"))
            # A line is one write, so that several processes can share a file.
            stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        log = RequestLog(stream, dropped)
        try:
            yield log
        finally:
            log.close()
