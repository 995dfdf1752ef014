"""Name what holds a server back, with the numbers behind it and what to try.

Of a run folder: the client's times, the server's own metrics and, where there are any, profiles.
With --target a server that somebody else puts load on is watched for a while: its metrics alone.
What cannot be told is said. Exit 0, whatever is found; 2 where there is nothing to read.
"""

import argparse
import json
import time
from typing import TYPE_CHECKING

from prony.errors import UsageError
from prony.reaching import add_reaching, target_of

if TYPE_CHECKING:
    from prony.diagnosis.evidence import Evidence

HELP = "name what holds a server back"
SECONDS, EVERY = 10.0, 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", nargs="?", metavar="RUN", help="a run folder (default: runs/latest)")
    add("--target", metavar="URL", help="watch this server instead of reading a run")
    add("--seconds", type=float, default=SECONDS, metavar="N",
        help=f"how long to watch it (default: {SECONDS:g})")  # fmt: skip
    add_reaching(parser)
    add("--json", action="store_true", help="print JSON, for scripts")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from prony.diagnosis.judge import diagnose
    from prony.diagnosis.read import diagnosis_of
    from prony.diagnosis.view import as_terminal
    from prony_loadgen.folder import resolve

    if args.target is not None and args.folder is not None:
        raise UsageError("a RUN or --target, not both")
    if args.target is not None:
        diagnosis = diagnose(_live(args))
    else:
        folder = resolve(args.folder)
        diagnosis = diagnosis_of(folder, folder.read_run(), list(folder.records()))
    if args.json:
        print(json.dumps(diagnosis.to_json(), indent=1, allow_nan=False))
    else:
        Console().print(as_terminal(diagnosis))
    return 0


def _live(args: argparse.Namespace) -> "Evidence":
    from prony.diagnosis.read import evidence_of_pages
    from prony_loadgen.scrape import Scraper

    url, seconds = args.target, args.seconds
    if not 2 * EVERY <= seconds <= 3600:
        raise UsageError(f"--seconds {seconds:g}: expected {2 * EVERY:g} to 3600")
    scraper = Scraper(target_of(args), every=EVERY)
    scraper.start()
    time.sleep(seconds)
    scraped = scraper.stop()
    if not scraped.pages:
        raise UsageError(f"--target {url}: no metrics: {scraped.why}")
    evidence = evidence_of_pages(scraped)
    if evidence.server is None and len(scraped.pages) < 2:
        why = f": {scraped.why}" if scraped.why else ""
        raise UsageError(f"--target {url}: only one page of its metrics could be had{why}")
    if evidence.server is None:
        raise UsageError(f"--target {url}: its metrics are of no engine that is known")
    return evidence
