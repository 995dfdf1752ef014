"""Before and after: the figures of runs beside each other, and what differs in configuration.

The first run is what the others are compared with. Each ratio has a 95 % interval from inside the
runs; whether a change is real across sessions and machines is what `prony ab` tests.
"""

import argparse
import json
from pathlib import Path

from prony.errors import UsageError

HELP = "before and after: runs beside each other"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folders", nargs="+", metavar="RUN", help="two or more run folders; the first is the base")
    add("--html", type=Path, metavar="FILE", help="write a page with the distributions overlaid")
    add("--markdown", action="store_true", help="print Markdown, for a pull request")
    add("--json", action="store_true", help="print JSON, for scripts")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from prony_loadgen.compare import compare, comparison_json, run_of
    from prony_loadgen.compare_view import comparison_markdown, print_comparison, write_html
    from prony_loadgen.folder import resolve

    if len(args.folders) < 2:
        raise UsageError(f"{args.folders[0]}: one run has nothing to be compared with; name two")
    runs = []
    for name in args.folders:
        folder = resolve(name)
        runs.append(run_of(str(folder.path), folder.read_run(), list(folder.records())))
    comparison = compare(runs)
    if args.json:
        print(json.dumps(comparison_json(comparison), indent=1, allow_nan=False))
    elif args.markdown:
        print(comparison_markdown(comparison), end="")
    else:
        print_comparison(comparison, Console())
    if args.html is not None:
        try:
            write_html(comparison, args.html)
        except OSError as error:
            raise UsageError(f"--html {args.html}: {error.strerror}") from None
    return 0
