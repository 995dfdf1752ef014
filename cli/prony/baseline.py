"""Keep runs as the baseline that later builds are judged by, and show what is kept.

Only `accept` makes or moves a baseline, never a gate: one that followed every pass would follow a
build that becomes a little slower each week. --anchor names the set as it is at a release; later
gates compare with both.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prony.errors import UsageError
from prony.gate import add_slo

if TYPE_CHECKING:
    from prony_slo.baseline_store import BaselineFile, KeptRun
    from prony_slo.promise import Regression, SloFile

HELP = "keep runs as a baseline, or show what is kept"


def configure(parser: argparse.ArgumentParser) -> None:
    # One parser each: with both in one, argparse takes no RUN that comes after an option.
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    accept = actions.add_parser("accept", help="keep runs as the baseline", allow_abbrev=False)
    accept.add_argument("folders", nargs="*", metavar="RUN", help="default: runs/latest")
    accept.add_argument("--anchor", metavar="LABEL", help="keep the whole set as this release's")
    show = actions.add_parser("show", help="what is kept", allow_abbrev=False)
    for each in (accept, show):
        add_slo(each)
        each.add_argument(
            "--baseline", type=Path, metavar="FILE", help="default: baselines/REF.json, by the SLO"
        )


def run(args: argparse.Namespace) -> int:
    return _accept(args) if args.action == "accept" else _show(args)


def _accept(args: argparse.Namespace) -> int:
    from prony.comparing import baseline_path
    from prony.judging import read_part
    from prony_loadgen.folder import resolve
    from prony_slo import baseline_store as store

    folders = [resolve(name) for name in args.folders or [None]]
    names = tuple(args.slo) or tuple(folders[0].read_run().get("slo") or ())
    slo, regression = _comparing(names)
    path = args.baseline or baseline_path(slo)
    runs = [read_part(folder, slo) for folder in folders]
    try:
        kept = store.read(path) if path.exists() else None
        moved = store.accept(kept, regression, runs, anchor=args.anchor)
    except store.BaselineError as error:
        raise UsageError(str(error)) from None
    try:
        store.write(path, moved)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    count = len(store.sessions(moved.runs))
    print(f"{path}: {len(runs)} run(s) added; {len(moved.runs)} runs of {count} session(s) now")
    if short := store.short_of(moved.runs):
        print(f"not enough yet: {short}")
    if args.anchor:
        print(f"anchor: {args.anchor}, {len(moved.runs)} runs")
    if args.baseline is None and regression.baseline.mode == "interleaved":
        print(
            f"the SLO's `mode: interleaved` compares by `prony ab`: `prony gate` reads this file "
            f"where it is named (--baseline {path}), or by `mode: stored`"
        )
    return 0


def _comparing(names: Sequence[str]) -> "tuple[SloFile, Regression]":
    """The SLO and what it compares. Raises UsageError where that is nothing."""
    from prony_slo.objective import load_slo

    slo = load_slo(names) if names else None
    if slo is None or slo.regression is None or not slo.regression.checks:
        whose = f"the SLO {', '.join(names)}" if names else "the run's SLO (it had none)"
        raise UsageError(
            f"{whose} has no `regression:` with `checks:`, so nobody knows which figures to keep; "
            "name one that has by --slo (docs/ci.md)"
        )
    return slo, slo.regression


def _show(args: argparse.Namespace) -> int:
    from prony.comparing import baseline_path
    from prony_slo import baseline_store as store
    from prony_slo.objective import load_slo

    slo = load_slo(args.slo) if args.slo else None
    path = args.baseline
    if path is None:
        if slo is None:
            raise UsageError("show: name the --slo whose baseline it is, or the file by --baseline")
        path = baseline_path(_comparing(args.slo)[0])
    try:
        kept = store.read(path)
    except store.BaselineError as error:
        if not error.missing:
            raise UsageError(str(error)) from None
        options = " ".join(f"--slo {name}" for name in args.slo) or f"--slo SLO --baseline {path}"
        print(f"{error}: make one with `prony baseline accept RUN {options}`", file=sys.stderr)
        return 3
    print(path)
    for key, found in kept.fingerprint.items():
        print(f"  {key}: {found}")
    print(f"  {_set(kept, kept.runs)}")
    if short := store.short_of(kept.runs):
        print(f"  not enough yet: {short}")
    for line in _figures(kept, kept.runs, slo):
        print(f"  {line}")
    if kept.anchor is not None:
        print(f"anchor {kept.anchor.label}")
        print(f"  {_set(kept, kept.anchor.runs)}")
        for line in _figures(kept, kept.anchor.runs, slo):
            print(f"  {line}")
    return 0


def _set(kept: "BaselineFile", runs: "tuple[KeptRun, ...]") -> str:
    from prony_slo import baseline_store as store

    if not runs:
        return "no runs"
    count = len(store.sessions(runs))
    days = f"{runs[0].started_at[:10]} to {runs[-1].started_at[:10]}"
    return f"{len(runs)} runs of {count} session(s), {days}"


def _figures(kept: "BaselineFile", runs: "tuple[KeptRun, ...]", slo: "SloFile | None") -> list[str]:
    """Each figure's mean, and how much sessions scatter around it."""
    import statistics

    from prony_slo import baseline_store as store

    meant = store.definitions(slo.regression) if slo and slo.regression else kept.checks
    lines = []
    for check, meaning in kept.checks.items():
        means = []
        for session in store.sessions(runs):
            known = [v for run in session if (v := run.values.get(check)) is not None]
            if known:
                means.append(statistics.fmean(known))
        if not means:
            lines.append(f"{check}: no figure")
            continue
        centre = statistics.fmean(means)
        spread = statistics.stdev(means) if len(means) > 1 else None
        if " share" in f" {meaning.split(' | ')[1]}":
            text = f"{centre * 100:.2f} %"
            text += "" if spread is None else f", sessions scatter by {spread * 100:.2f} pp"
        else:
            text = f"{math.exp(centre):.4g}"
            text += "" if spread is None else f", sessions scatter by {spread * 100:.1f} %"
        other = "" if meant.get(check) == meaning else " (not a check of this SLO any more)"
        lines.append(f"{check}: {text}{other}")
    return lines
