"""The target's /metrics while a run goes on: a target in, its pages with their times out.

One native thread asks once a second and keeps each page compressed; nothing is parsed before the
load is over, so that the client's thread never waits for it. What fails is counted, and ends
nothing but the asking.
"""

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prony_loadgen import native
from prony_loadgen.fetch import FetchError, fetch
from prony_loadgen.target import Target, TargetError

PATHS: Final = ("/metrics", "/prometheus/metrics")  # the second is trtllm-serve's
EVERY: Final = 1.0  # seconds
TIMEOUT: Final = 2.0  # for one page
LARGEST: Final = 4 * 2**20  # bytes of one page
MOST: Final = 64 * 2**20  # bytes of all pages together, compressed
GIVE_UP: Final = 10  # failures one after another
ACCEPT: Final = ("Accept", "text/plain; version=0.0.4")


@dataclass(frozen=True, slots=True)
class Scraped:
    """What a run's scraping brought."""

    pages: tuple[tuple[float, bytes], ...]  # Unix seconds, and the page compressed
    failed: int
    why: str | None  # the last failure, or why it ended early

    def texts(self) -> list[tuple[float, str]]:
        return [(at, zlib.decompress(page).decode("utf-8", "replace")) for at, page in self.pages]


class Scraper:
    """Asks a target for its metrics until it is told to stop."""

    def __init__(self, target: Target, every: float = EVERY) -> None:
        self._target, self._every = target, every
        self._pages: list[tuple[float, bytes]] = []
        self._failed = 0
        self._why: str | None = None
        # Held while it goes on: whoever waits for it with a timeout sleeps, unless it is stopped.
        self._going, self._over = native.allocate_lock(), native.allocate_lock()
        self._going.acquire()
        self._over.acquire()

    def start(self) -> None:
        native.start_new_thread(self._ask, ())

    def stop(self) -> Scraped:
        """Ends it with one last page, which gets its time-out as one under way does."""
        self._going.release()
        self._over.acquire(timeout=2 * TIMEOUT)
        return Scraped(tuple(self._pages), self._failed, self._why)

    def _ask(self) -> None:
        try:
            self._loop()
        finally:
            self._over.release()

    def _loop(self) -> None:
        paths = [self._target.path(path, versioned=False) for path in PATHS]
        size = row = 0
        due = time.monotonic()
        stopped = False
        while not stopped:
            # The page after the stop is the last: what ended since the one before is in it.
            stopped = self._going.acquire(timeout=max(0.0, due - time.monotonic()))
            due = max(due + self._every, time.monotonic())
            at = time.time()
            body = self._page(paths)
            row = row + 1 if body is None else 0
            if row == GIVE_UP:
                self._why = f"given up after {GIVE_UP} failures: {self._why}"
                return
            if body is None:
                continue
            self._pages.append((at, zlib.compress(body, 1)))
            size += len(self._pages[-1][1])
            if size > MOST:
                self._why = f"ended early: {MOST >> 20} MiB of pages are kept"
                return

    def _page(self, paths: list[str]) -> bytes | None:
        """The page at the first path that is one; later only that one is asked for."""
        failures = []
        for path in list(paths):
            try:
                answer = fetch(self._target, path, TIMEOUT, headers=[ACCEPT], most=LARGEST)
            except (FetchError, TargetError) as error:
                failures.append(f"{path}: {error}")
                continue
            if answer.status == 200:
                paths[:] = [path]
                return answer.body
            failures.append(f"{path}: HTTP {answer.status}")
        self._failed += 1
        self._why = telling(failures)
        return None


def telling(failures: Sequence[str]) -> str:
    """Of what each path answered, the one that says most: a path that is not there says least."""
    return min(failures, key=lambda failure: failure.endswith("HTTP 404"))
