"""Watch a running server: its rates, latencies and occupancy, and what holds it back right now.

Reads the server's own metrics once a second and sends no load. Ctrl-C ends it. The verdict is that
of `prony diagnose`, over the last half minute.
"""

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prony.errors import UsageError
from prony.reaching import add_reaching, target_of

if TYPE_CHECKING:
    from prony.watching import Frame, Watch

HELP = "a live view of a running server, with the current verdict"
EVERY = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, metavar="URL", help="the server, with or without /v1")
    add("--every", type=float, default=EVERY, metavar="S", help="between two looks (default: 1)")
    add("--once", action="store_true", help="print one page and end, for scripts")
    add_reaching(parser)


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from prony.watching import Blind, Watch, page

    if not 0.1 <= args.every <= 60:
        raise UsageError(f"--every {args.every:g}: expected 0.1 to 60")
    watch = Watch(target_of(args))
    console = Console()
    try:
        frame = watch.look()
        if args.once:
            time.sleep(args.every)
            console.print(page(watch.look()))
            return 0
        if not console.is_terminal:  # a file or a pipe gets one page after the other
            for frame in _looks(watch, args.every):
                console.print(page(frame))
        with Live(page(frame), console=console, auto_refresh=False, screen=False) as live:
            for frame in _looks(watch, args.every):
                live.update(page(frame), refresh=True)
    except Blind as error:
        raise UsageError(f"--target {args.target}: {error}") from None
    except KeyboardInterrupt:
        pass
    return 0


def _looks(watch: "Watch", every: float) -> Iterator["Frame"]:
    """One look after the other, without an end."""
    due = time.monotonic()
    while True:
        due = max(due + every, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        yield watch.look()
