"""Profile a running server for some seconds, and show where its time goes.

Asks the profiler hook of Prony's server (--profile-dir), vLLM (--profiler-config) or SGLang for at
most ten seconds or N steps of the engine, fetches the files where the server offers them, and
prints the top of them. With PATH in place of --target it reads what was captured before: a Chrome
trace of torch.profiler, a speedscope file of py-spy, a folder of these, or a run.
"""

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

from prony.errors import UsageError
from prony.reaching import add_reaching, target_of

HELP = "profile a running server, or read a profile"
_DEFAULT = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", nargs="?", metavar="PATH", help="a trace, stacks, a folder of them, or a run")
    add("--target", metavar="URL", help="the server to profile")
    add("--seconds", type=float, metavar="S", help="of the capture (default: 5, at most 10)")
    add("--steps", type=int, metavar="N", help="of the engine; the seconds hold all the same")
    add("--out", type=Path, metavar="DIR", help="where to (default: a new folder in profiles/)")
    add("--server-dir", metavar="DIR", help="where the server writes, if this machine sees it")
    add_reaching(parser)
    add("--html", type=Path, metavar="FILE", help="a flame graph and a timeline, in one file")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from prony.profiling.captures import file_facts, profile_facts
    from prony.profiling.stacks import StacksError
    from prony.profiling.tables import profile_table
    from prony.profiling.trace_events import TraceError

    if (args.path is None) == (args.target is None):
        raise UsageError("name either --target URL, to profile it, or a PATH, to read a profile")
    path = Path(args.path) if args.path is not None else _captured(args)
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    try:
        facts = file_facts(path) if path.is_file() else profile_facts(path)
    except (TraceError, StacksError, OSError) as error:
        raise UsageError(str(error)) from None
    if facts is None:
        if args.target is not None:
            return 0  # its files lie on the server, which was said
        raise UsageError(f"{path}: holds no Chrome trace and no speedscope file")
    Console().print(profile_table(facts))
    if args.html is not None:
        from prony.profiling.views import profile_page

        try:
            args.html.write_text(profile_page(path), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--html {args.html}: {error.strerror}") from None
        print(f"views in {args.html}")
    return 0


def _captured(args: argparse.Namespace) -> Path:
    """The folder of a capture that was taken now. Raises UsageError where there is none."""
    from prony.profiling.captures import LIST, write_captures
    from prony.profiling.hook import Bounds, HookError, capture, collect, find_hook

    bounds = Bounds(_DEFAULT if args.seconds is None else args.seconds, args.steps)
    _check(bounds.seconds, args.steps)
    target = target_of(args)
    out = args.out or Path("profiles") / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    if (out / LIST).exists():
        raise UsageError(f"--out {out}: holds a capture already; name another folder")
    try:
        hook = find_hook(target, args.server_dir)
        print(f"profiling {target.url} ({hook.kind.name}) for {_length(bounds)} ...", flush=True)
        made = capture(hook, bounds, "asked", _sleep)
        if made.refused or (made.failure and not made.files):
            raise HookError(made.failure)
        made = collect(hook, made, out, 1)
        if made.failure and not made.files:
            raise HookError(made.failure)
        write_captures(out, [made])
    except HookError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror}") from None
    for name in made.files:
        print(f"fetched {out / name}")
    if made.failure:
        print(f"note: {made.failure}")
    if made.on_server:
        print(f"its files lie {made.on_server}; copy one here and name it: prony profile FILE")
    elif not made.files and not made.failure:
        print("the server told of no file")
    return out


def _check(seconds: float, steps: int | None) -> None:
    from prony.profiling.hook import MOST_SECONDS, MOST_STEPS

    if not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds {seconds:g}: expected above 0, at most {MOST_SECONDS:g}")
    if steps is not None and not 1 <= steps <= MOST_STEPS:
        raise UsageError(f"--steps {steps}: expected 1 to {MOST_STEPS:,}")


def _length(bounds: object) -> str:
    from prony.profiling.hook import Bounds

    assert isinstance(bounds, Bounds)
    most = f"at most {bounds.seconds:g} s"
    return most if bounds.steps is None else f"{bounds.steps:,} steps, {most}"


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
