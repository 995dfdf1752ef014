"""What CI makes of a verdict: an exit code of ours goes in, the one that CI was promised comes out.

0 pass, 1 breach, 2 usage, 3 inconclusive, 4 invalid are what Prony says. A pipeline that knows only
red and green, or one that wants its own number for a breach, says so here; the verdict's word in
every file stays what it was.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Inconclusive = Literal["inconclusive", "pass", "fail"]

# 2, 3 and 4 already mean something; shells use the ones from 126 on.
TAKEN = (0, 2, 3, 4)
LARGEST = 125


@dataclass(frozen=True, slots=True)
class Policy:
    """How a verdict becomes an exit code."""

    inconclusive: Inconclusive = "inconclusive"
    exit_code_breach: int = 1

    def exit_code(self, code: int) -> int:
        """What the process exits with, where the gate said `code`."""
        if code == 3 and self.inconclusive == "pass":
            return 0
        if code == 1 or (code == 3 and self.inconclusive == "fail"):
            return self.exit_code_breach
        return code

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def breach_code(text: str) -> int:
    """The number of `--exit-code-breach`. Raises ValueError for one that means something else."""
    number = int(text) if text.isascii() and text.isdigit() else -1
    if number in TAKEN or not 0 < number <= LARGEST:
        raise ValueError(
            f"must be 1 or from 5 to {LARGEST}, since 0, 2, 3 and 4 have a meaning and shells use "
            f"those from 126 on; got {text}"
        )
    return number


def turns_red(row: Mapping[str, Any], policy: Policy) -> bool:
    """Whether an objective or check, as a row of verdict.json, makes the exit code other than 0."""
    if row["verdict"] == "invalid":
        return True
    if row.get("severity") == "warn" or row["verdict"] == "pass":
        return False
    if row["verdict"] == "breach":
        return True
    own = row.get("on_inconclusive", "inconclusive")
    return own == "fail" or (own == "inconclusive" and policy.inconclusive != "pass")
