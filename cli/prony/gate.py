"""Judge finished runs against an SLO: the same verdict that `prony run --slo` gives.

The run folders hold all that is needed, so this works later, elsewhere, without the server. By the
run's own SLO (or any, where it had none) all of its files are written again; another SLO's verdict
goes into verdict.json and junit.xml alone. Several runs are judged together, as one longer one.
--check and --lint look at SLO files alone, and --self-test proves on made good and bad runs that
this gate can fail.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prony.errors import UsageError

if TYPE_CHECKING:
    from prony.judging import Asked
    from prony_loadgen.folder import RunFolder

HELP = "judge finished runs against an SLO"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folders", nargs="*", metavar="RUN", help="run folders (default: runs/latest)")
    add_slo(parser)
    add_policy(parser)
    add("--baseline", type=Path, metavar="FILE", help="of `prony baseline accept`")
    add("--no-regression", action="store_true", help="judge objectives only")
    add("--out", type=Path, metavar="DIR", help="of the verdict on several runs together")
    alone = parser.add_argument_group("about the SLO itself; no run is judged")
    alone.add_argument("--check", metavar="SLO", help="whether it is a valid SLO")
    alone.add_argument("--lint", metavar="SLO", help="whether it can be decided at all")
    alone.add_argument("--scenario", metavar="NAME", help="--lint: the scenario it is meant for")
    alone.add_argument("--self-test", action="store_true", help="prove that this gate can fail")


def add_slo(parser: argparse.ArgumentParser) -> None:
    """The option that every judging command takes."""
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="NAME|FILE|'TTFT P99 < 500MS'",
        help="a shipped SLO such as chat or sanity, a file, or an objective; repeatable",
    )


def add_policy(parser: argparse.ArgumentParser) -> None:
    """How a verdict becomes an exit code, for CI that wants another one."""
    group = parser.add_argument_group("for CI that knows only red and green")
    group.add_argument(
        "--inconclusive",
        choices=("pass", "fail"),
        help="exit 0, or as for a breach, where the data cannot decide (default: exit 3)",
    )
    group.add_argument(
        "--missing-baseline",
        choices=("inconclusive", "fail", "warn", "pass"),
        help="what having nothing to compare with does, in place of the SLO's own word",
    )
    group.add_argument("--exit-code-breach", metavar="N", help="in place of 1, such as 99 (k6's)")


def asked(args: argparse.Namespace) -> "Asked":
    """What the options of a judging command ask for. Raises UsageError."""
    from prony.judging import Asked
    from prony_slo.policy import Policy, breach_code

    try:
        code = 1 if args.exit_code_breach is None else breach_code(args.exit_code_breach)
    except ValueError as error:
        raise UsageError(f"--exit-code-breach {error}") from None
    return Asked(
        slo=tuple(args.slo),
        policy=Policy(args.inconclusive or "inconclusive", code),
        regression=not getattr(args, "no_regression", False),
        baseline=getattr(args, "baseline", None),
        missing=args.missing_baseline,
    )


def run(args: argparse.Namespace) -> int:
    if args.check is not None or args.lint is not None or args.self_test:
        return _about_the_slo(args)
    from prony.judging import judge_folder, judge_together, show, show_together
    from prony_loadgen.folder import new_folder, resolve

    what = asked(args)
    folders = [resolve(name) for name in args.folders or [None]]
    if len(folders) == 1:
        if args.out is not None:
            raise UsageError("--out: the verdict on one run is written into its own folder")
        facts = judge_folder(folders[0], what)
        show(folders[0], facts)
        code: int = facts["exit_code"]
        return code
    _check_alike(folders)
    out = args.out or new_folder("gate")
    told = judge_together(folders, what, out)
    show_together(told, out)
    code = told["exit_code"]
    return code


def _check_alike(folders: Sequence["RunFolder"]) -> None:
    """Before anything is written: raises FileError for no run, UsageError for another load."""
    from prony_slo.fingerprint import workload

    loads = [workload(folder.read_run().get("scenario") or {}) for folder in folders]
    for folder, load in zip(folders, loads, strict=True):
        if load != loads[0]:
            raise UsageError(
                f"{folder.path}: another load than {folders[0].path}; runs are judged together as "
                "one longer run, so judge these one by one"
            )


def _about_the_slo(args: argparse.Namespace) -> int:
    from prony.linting import check, lint, self_test

    if args.folders:
        raise UsageError(f"{args.folders[0]}: --check, --lint and --self-test judge no run")
    if args.self_test:
        return self_test(tuple(args.slo) or ("chat",))
    if args.check is not None:
        return check(args.check)
    return lint(args.lint, args.scenario)
