"""`prony`: reads the command line, runs one command, and turns its end into an exit code."""

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from io import TextIOWrapper

from prony.errors import usage_errors
from prony.output import Unbroken

# Each is a module with HELP, configure(parser) and run(args) -> exit code; a heavy import waits
# until its command runs, so that `prony --help` is quick.
COMMANDS = (
    "demo", "serve", "run", "calibrate", "gate", "ab", "compare", "baseline", "references", "rules",
    "report", "dashboards", "replay", "profile", "diagnose", "watch", "quantize", "quiz",
)  # fmt: skip

EPILOG = """\
exit codes, of every command:
  0 pass    1 an objective is breached    2 usage or file error, before any load is sent
  3 inconclusive    4 invalid: the instrument cannot be trusted, or the run broke
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `prony ARGV` and returns its exit code.

    What the user got wrong is one line on stderr and exit code 2, never a traceback. A fault of
    Prony's own is 4 and never 1, which would blame the server.
    """
    args = _parser().parse_args(argv)
    args.argv = ["prony", *(sys.argv[1:] if argv is None else argv)]
    try:
        code: int = args.run(args)
    except usage_errors() as error:
        print(f"prony {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 4
    except Exception:
        traceback.print_exc()
        print(
            f"prony {args.command}: this is a fault of Prony's; please report it", file=sys.stderr
        )
        return 4
    return code


def command() -> None:
    """The `prony` program."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Texts of a server or a file may hold what no terminal's encoding has.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stdout = Unbroken(sys.stdout)
    try:
        code = main()
    except KeyboardInterrupt:  # while the commands were being imported
        code = 4
    sys.stdout.flush()
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prony",
        description="A dynamometer for LLM inference servers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"prony {version('prony')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"prony.{name}")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.configure(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    command()
