"""Ways for tests to send requests with the real client: a URL goes in, records come out."""

import contextlib
import selectors
import threading
import time
from collections.abc import Callable

from prony_loadgen import native
from prony_loadgen.client import Client, Request
from prony_loadgen.record import RequestRecord
from prony_loadgen.target import Target, Timeouts, parse_target
from prony_loadgen.tls import TlsOptions


def request(number: int = 0, *, after: float = 0.0, dialect: str = "openai-chat") -> Request:
    """A request due `after` seconds from now."""
    return Request(
        id=str(number),
        cls="chat",
        dialect=dialect,
        body=b"{}",
        intended=time.monotonic() + after,
        trace_id=f"{number + 1:032x}",
        span_id=f"{number + 1:016x}",
        keep_text=True,
    )


def ask(
    url: str,
    *requests: Request,
    timeouts: Timeouts | None = None,
    drain: float = 20.0,
    on_record: Callable[[RequestRecord], None] | None = None,
    selector: Callable[[], selectors.BaseSelector] = native.Selector,
    tls: TlsOptions | None = None,
    environ: dict[str, str] | None = None,
) -> list[RequestRecord]:
    """The records of these requests (one, due at once, if none is given), in order of ending."""
    records: list[RequestRecord] = []
    client = Client(
        parse_target(url, timeouts=timeouts or Timeouts(), tls=tls, environ=environ),
        origin=time.monotonic(),
        on_record=on_record or records.append,
        selector=selector,
    )
    client.start()
    for each in requests or (request(),):
        client.submit(each)
    client.close(drain=drain)
    return records


def ask_in_turn(url: str | Target, count: int) -> list[RequestRecord]:
    """The records of `count` requests, each sent when the one before was recorded."""
    records: list[RequestRecord] = []
    over = threading.Event()

    def on_record(record: RequestRecord) -> None:
        records.append(record)
        if len(records) < count:
            client.submit(request(len(records)))
        else:
            over.set()

    target = parse_target(url) if isinstance(url, str) else url
    client = Client(target, origin=time.monotonic(), on_record=on_record)
    client.start()
    client.submit(request(0))
    assert over.wait(20)
    client.close(drain=0.0)
    return records


def on_a_quiet_moment(check: Callable[[], None], tries: int = 8, patience: float = 40.0) -> None:
    """Runs a check of times until it passes: any other process may take the processor meanwhile.

    That it passes once shows what is checked; how often it must be tried shows the machine. It is
    tried so often at least, and for so many seconds.
    """
    deadline = time.monotonic() + patience
    while tries > 1 or time.monotonic() < deadline:
        tries -= 1
        with contextlib.suppress(AssertionError):
            check()
            return
    check()
