"""What counts as the user's mistake: these become one line on stderr and exit code 2."""

import argparse


class UsageError(Exception):
    """A command line that cannot be carried out; the message names the value and the remedy."""


def usage_errors() -> tuple[type[Exception], ...]:
    """The exceptions of all parts that mean: asked for something that cannot be."""
    from prony_loadgen.strict_yaml import FileError
    from prony_loadgen.target import TargetError

    return UsageError, FileError, TargetError


def port(text: str) -> int:
    """The type of an option that names a TCP port; 0 takes a free one."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port in 0..65535, got {text!r:.40}")
    return number
