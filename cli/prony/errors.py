"""What counts as the user's mistake: these become one line on stderr and exit code 2."""


class UsageError(Exception):
    """A command line that cannot be carried out; the message names the value and the remedy."""


def usage_errors() -> tuple[type[Exception], ...]:
    """The exceptions of all parts that mean: asked for something that cannot be."""
    from prony_loadgen.strict_yaml import FileError
    from prony_loadgen.target import TargetError

    return UsageError, FileError, TargetError
