"""Build the Grafana dashboards from code, or check that the committed ones are what code builds."""

import argparse
import sys
from pathlib import Path

HELP = "build or check the Grafana dashboards"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("build", "check"))
    parser.add_argument("--folder", type=Path, help="default: where the shipped dashboards lie")


def run(args: argparse.Namespace) -> int:
    from prony_dashboards.boards import build, stale

    from prony_loadgen.shipped import shipped

    folder = args.folder or shipped("boards")
    if args.action == "build":
        for path in build(folder):
            print(path)
        return 0
    differing = stale(folder)
    for path in differing:
        print(f"{path}: not what the code builds; run `prony dashboards build`", file=sys.stderr)
    return 2 if differing else 0
