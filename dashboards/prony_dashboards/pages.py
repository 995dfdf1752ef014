"""A written /metrics page as a living target: an engine's page goes in, a "host:port" comes out.

No engine made these pages: we wrote them from documented names, so that boards of
engines which need a GPU have something to be checked against. A counter or histogram of a page
holds what happens in one second, and rises by it; a gauge stays.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from prony_dashboards.served import served

FOLDER: Final = Path(__file__).parent / "pages"
HEADER: Final = "text/plain; version=0.0.4; charset=utf-8"


def page(engine: str) -> str:
    """The page of an engine as it was written."""
    return (FOLDER / f"{engine}.txt").read_text(encoding="utf-8")


def at(text: str, seconds: float) -> str:
    """The page after so many seconds under steady load."""
    rising: set[str] = set()
    lines = []
    for line in text.splitlines():
        if declared := re.fullmatch(r"# TYPE (\S+) (\w+)", line):
            if declared[2] in ("counter", "histogram"):
                rising.add(declared[1])
        elif line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            if _family(name.partition("{")[0]) & rising:
                line = f"{name} {float(value) * seconds:.6f}"
        lines.append(line)
    return "\n".join(lines) + "\n"


@contextmanager
def serving(text: str, clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """The "host:port" of a loopback server that answers /metrics with the page as it goes on."""
    start = clock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = at(text, clock() - start).encode()
            self.send_response(200)
            self.send_header("Content-Type", HEADER)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(Handler) as url:
        yield urlsplit(url).netloc


def _family(sample: str) -> set[str]:
    """The names under which a sample's family may have been declared."""
    parts = ("_total", "_bucket", "_sum", "_count")
    return {sample, *(sample.removesuffix(part) for part in parts)}
