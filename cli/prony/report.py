"""Write the views of a run again and print its summary.

--as tells the run in another tool's layout and by its definitions, and names each number that
differs from ours, with the reason.
"""

import argparse
from pathlib import Path

HELP = "write a run's report and print its summary"
PEERS = ("vllm", "guidellm", "aiperf", "sglang")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", metavar="RUN", help="a run folder (default: runs/latest)"
    )
    parser.add_argument(
        "--trace", metavar="ID", help="print one request's spans as a waterfall (id, or its start)"
    )
    parser.add_argument(
        "--chrome",
        type=Path,
        metavar="FILE",
        help="write all spans for Perfetto or chrome://tracing",
    )
    parser.add_argument(
        "--as", dest="peer", choices=PEERS, help="print it as this tool would have told it"
    )


def run(args: argparse.Namespace) -> int:
    from prony.judging import show, write_views
    from prony.output import unless_unwritable
    from prony.traces import show_traces
    from prony_loadgen.folder import resolve

    folder = resolve(args.folder)
    if args.trace is not None or args.chrome is not None:
        return show_traces(folder.traces, args.trace, args.chrome)
    facts = folder.read_run()
    if args.peer is not None:
        from prony_loadgen.peers import explained, told
        from prony_loadgen.summary import measured

        result = told(args.peer, measured(facts, folder.records()))
        print(result.text)
        print(explained(result), end="")
        return 0
    with unless_unwritable(folder.path):
        write_views(folder, facts)
    show(folder, facts)
    return 0
