"""What a busy machine may do to a test's run: a verdict in; the same, or "invalid", out."""

from collections.abc import Mapping
from typing import Any

CODES = {"pass": 0, "breach": 1, "inconclusive": 3, "invalid": 4}
# What a run in open loop says of itself where other work kept it from sending in time.
LATE = {"send_lag", "rate_missed"}


def unless_late(run: Mapping[str, Any], verdict: str) -> tuple[str, int]:
    """The verdict that a run of the tests must have, and its exit code.

    Where this machine was too busy to send in time, the run must have noticed it and be invalid:
    its run.json says so, and nothing else that would make it so.
    """
    found = {doubt["id"] for doubt in run["doubts"] if doubt["grade"] == "invalid"}
    if found and found <= LATE and run["loop"] == "open":
        verdict = "invalid"
    return verdict, CODES[verdict]
