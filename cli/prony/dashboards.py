"""Build the Grafana boards, check them against a real Prometheus, or push them into a Grafana.

`check` starts a reference server, load on it, and written pages of the other engines' metrics; a
Prometheus scrapes them, and every query of every panel must find data. It needs the program
`prometheus` and some 40 seconds. Exit codes: 0 right, 1 something is wrong, 3 without Prometheus.

`push` is tested against a written contract of Grafana's API; no real Grafana runs in our tests.
"""

import argparse
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony.errors import UsageError

if TYPE_CHECKING:
    from prony_dashboards.check import Checked
    from prony_dashboards.findings import Finding

HELP = "build, check or push the Grafana boards"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="write the boards")
    check = actions.add_parser("check", help="check them, against a real Prometheus too")
    for each in (build, check):
        each.add_argument("--folder", type=Path, help="default: where the shipped boards lie")
    check.add_argument(
        "--prometheus", metavar="PROGRAM", default="prometheus", help="default: the one on PATH"
    )
    push = actions.add_parser("push", help="write them into a Grafana")
    push.add_argument("--folder", type=Path, help="default: where the shipped boards lie")
    push.add_argument("--grafana", required=True, metavar="URL")
    push.add_argument(
        "--token-file",
        type=Path,
        help="default: $GRAFANA_TOKEN, or $GRAFANA_USER and $GRAFANA_PASSWORD",
    )
    push.add_argument(
        "--engine",
        action="append",
        metavar="NAME",
        help="only this engine's set and the shared boards; repeatable",
    )
    push.add_argument("--dry-run", action="store_true", help="print what would change, as a diff")


def run(args: argparse.Namespace) -> int:
    actions = {"build": _build, "check": _check, "push": _push}
    return actions[args.action](args)


def _build(args: argparse.Namespace) -> int:
    from prony_dashboards.boards import build

    for path in build(_folder(args)):
        print(path)
    return 0


def _check(args: argparse.Namespace) -> int:
    from prony_dashboards.boards import committed, stale

    folder = _folder(args)
    boards = committed(folder)
    if not boards:
        raise UsageError(f"{folder}: no boards; write them by `prony dashboards build`")
    differing = stale(folder)
    for path in differing:
        print(f"{path}: not what the code builds; run `prony dashboards build`", file=sys.stderr)
    wrong = _standing(boards)
    for finding in wrong:
        print(f"error: {finding}", file=sys.stderr)
    program = shutil.which(args.prometheus)
    if program is None:
        print(
            f"{args.prometheus}: no such program, so no query was run "
            "(Debian: apt-get install prometheus)",
            file=sys.stderr,
        )
        return 1 if wrong or differing else 3
    checked = _live(boards, program)
    for finding in checked.wrong:
        print(f"error: {finding}", file=sys.stderr)
    _tell(checked, wrong)
    return 1 if wrong or differing or checked.wrong else 0


def _push(args: argparse.Namespace) -> int:
    from prony.grafana import connect
    from prony_dashboards.boards import committed
    from prony_dashboards.push import PushError, push

    boards = _chosen(committed(_folder(args)), args.engine)
    changes = Counter[str]()
    did = "would write" if args.dry_run else "wrote"
    try:
        for change in push(connect(args.grafana, args.token_file), boards, dry_run=args.dry_run):
            changes[change.kind] += 1
            if change.kind != "same":
                print(f"{did}: {change.title} ({change.kind})")
            for line in change.diff if args.dry_run else ():
                print(f"  {line}")
    except PushError as error:
        done = changes["new"] + changes["changed"]
        so_far = f" ({done} boards were written before)" if done and not args.dry_run else ""
        raise UsageError(f"--grafana {args.grafana}: {error}{so_far}") from None
    print(f"{changes['new']} new, {changes['changed']} changed, {changes['same']} as they were")
    return 0


def _chosen(boards: dict[str, Any], engines: list[str] | None) -> dict[str, Any]:
    if not boards:
        raise UsageError("no boards there; write them by `prony dashboards build`")
    if engines is None:
        return boards
    known = {name.partition("/")[0] for name in boards} - {"shared"}
    for engine in engines:
        if engine not in known:
            raise UsageError(f"--engine {engine}: known are {', '.join(sorted(known))}")
    wanted = {*engines, "shared"}
    return {name: board for name, board in boards.items() if name.partition("/")[0] in wanted}


def _standing(boards: dict[str, Any]) -> "list[Finding]":
    """What is wrong with them as they stand."""
    try:
        from prony_dashboards.lint import lint, not_shown
    except ImportError:
        raise UsageError("the check needs promql-parser: pip install promql-parser") from None
    found = lint(boards)
    # A name that cannot be read makes the reverse check meaningless.
    unread = any("does not parse" in finding.problem for finding in found)
    return found if unread else [*found, *not_shown(boards.values())]


def _live(boards: dict[str, Any], program: str) -> "Checked":
    from prony.live_boards import scraped
    from prony_dashboards.check import check_live
    from prony_dashboards.findings import ALERT, GPU, HOST
    from prony_dashboards.prometheus import PrometheusError

    try:
        with scraped(program) as prometheus:
            return check_live(boards, prometheus, missing={GPU, HOST, ALERT})
    except PrometheusError as error:
        raise UsageError(str(error)) from None


def _tell(checked: "Checked", wrong: "list[Finding]") -> None:
    unknown = sum("nothing exports" in finding.problem for finding in wrong)
    print(
        f"{checked.boards} boards, {checked.panels} panels, {checked.queries} queries run on "
        f"Prometheus; {len(checked.empty)} empty as declared, {unknown} of unknown names, "
        f"{len(wrong) + len(checked.wrong)} errors"
    )
    panels = Counter((finding.board, finding.panel) for finding in checked.empty)
    for board, panel in sorted(panels):
        print(f"  empty as declared: {board} / {panel}")
    print("No Grafana was run: this says that the queries find data, not how they are drawn.")


def _folder(args: argparse.Namespace) -> Path:
    from prony_loadgen.shipped import shipped

    folder: Path = args.folder or shipped("boards")
    return folder
