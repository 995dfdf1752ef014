"""Write the views of a run again and print its summary."""

import argparse

HELP = "write a run's report and print its summary"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", metavar="RUN", help="a run folder (default: runs/latest)"
    )


def run(args: argparse.Namespace) -> int:
    from prony.judging import show, write_views
    from prony_loadgen.folder import resolve

    folder = resolve(args.folder)
    facts = folder.read_run()
    write_views(folder, facts)
    show(folder, facts)
    return 0
