"""Prometheus rules of an SLO, or the SLO as OpenSLO, or an SLO file of an OpenSLO one.

Recording rules and burn-rate alerts over two windows each, under the metric names of our server,
vLLM or SGLang. What production cannot be asked is named as a comment and on stderr.
"""

import argparse
import sys
from pathlib import Path

from prony.errors import UsageError

HELP = "Prometheus rules, OpenSLO export and import of an SLO"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("slo", metavar="SLO", help="a shipped SLO or a file; with --from-openslo an OpenSLO file")
    add(
        "--engine",
        choices=("prony", "vllm", "sglang"),
        help="whose metric names (default: the file's export.prometheus.profile, else prony)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--openslo", action="store_true", help="write OpenSLO v1 instead of rules")
    form.add_argument("--from-openslo", action="store_true", help="read OpenSLO, write an SLO file")
    add("--out", type=Path, metavar="FILE", help="default: stdout")


def run(args: argparse.Namespace) -> int:
    from prony_loadgen.strict_yaml import FileError
    from prony_slo.objective import load_slo
    from prony_slo.openslo import from_openslo, to_openslo
    from prony_slo.rules import rules

    try:
        if args.from_openslo:
            text, notes = from_openslo(Path(args.slo))
        elif args.openslo:
            text, notes = to_openslo(_file(args.slo), args.engine)
        else:
            made = rules(load_slo([args.slo]), args.engine)
            text, notes = made.to_yaml(), made.notes
    except FileError:
        raise
    except ValueError as error:
        raise UsageError(f"{args.slo}: {error}") from None
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if args.out is None:
        print(text, end="")
        return 0
    try:
        args.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {args.out}: {error.strerror}") from None
    return 0


def _file(name: str) -> Path:
    from prony_loadgen import shipped

    path = shipped.find("objectives", name)
    if path is None:
        raise UsageError(f"{name}: no such SLO file")
    return path
