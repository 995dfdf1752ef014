"""Judge finished runs against an SLO: the same verdict that `prony run --slo` gives.

The run folder holds all that is needed, so this works later, elsewhere, without the server.
"""

import argparse

HELP = "judge finished runs against an SLO"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folders", nargs="*", metavar="RUN", help="run folders (default: runs/latest)")
    add_slo(parser)


def add_slo(parser: argparse.ArgumentParser) -> None:
    """The option that every judging command takes."""
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="NAME|FILE|'TTFT P99 < 500MS'",
        help="a shipped SLO (chat, tutorial, impossible), a file, or an objective; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    from prony.judging import judge_folder, show, worst
    from prony_loadgen.folder import resolve

    codes = []
    for name in args.folders or [None]:
        folder = resolve(name)
        facts = judge_folder(folder, args.slo)
        show(folder, facts)
        codes.append(facts["exit_code"])
    return worst(codes)
