"""The command that made a run: its arguments in, a line for run.json without its secrets out."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

HIDDEN = "***"
_PASSWORD = re.compile(r"//[^/@\s]*@")  # of a URL: //user:password@host


def told(argv: Sequence[str], seed: int) -> str:
    """`argv`, with the program first, as a shell takes it: pasted, it makes the same requests.

    The seed is added where the command line does not give it. Values of headers, which may be
    keys, and passwords in URLs are hidden.
    """
    program, *arguments = argv
    path = Path(program)
    # What `python -m locust` makes of its name: .../locust/__main__.py.
    name = path.parent.name if path.name == "__main__.py" else path.name
    shown = [name, *_without_secrets(arguments)]
    if not _gives_seed(arguments):
        shown += ["--seed", str(seed)]
    return shlex.join(shown)


def _gives_seed(arguments: Sequence[str]) -> bool:
    return any(
        each == "--seed" or each.startswith(("--seed=", "seed=", "--set=seed="))
        for each in arguments
    )


def _without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    before = ""
    for each in arguments:
        option, equals, value = each.partition("=")
        if before in _HIDING:
            yield _HIDING[before](each)
        elif option in _HIDING and equals:
            yield f"{option}={_HIDING[option](value)}"
        else:
            yield _PASSWORD.sub(f"//{HIDDEN}@", each)
        before = each


def _header(line: str) -> str:
    name, colon, _ = line.partition(":")
    return f"{name}: {HIDDEN}" if colon else HIDDEN


def _assignment(text: str) -> str:
    key, _, value = text.partition("=")
    if key == "headers" or key.startswith("headers."):
        return f"{key}={HIDDEN}"
    return f"{key}={_PASSWORD.sub(f'//{HIDDEN}@', value)}" if value else text


_HIDING = {"--header": _header, "--set": _assignment}
