"""GitHub's annotations of a verdict: verdict.json goes in, workflow commands come out.

GitHub shows at most 10 warnings and 10 errors a step, so the gravest come first and the last one
says how many were left out. What passes has none: its place is the summary.
"""

from collections.abc import Mapping
from typing import Any

from prony_slo.policy import Policy, turns_red
from prony_slo.verdict_file import rows

MOST = 10
_GRAVITY = ("invalid", "breach", "inconclusive")


def annotations(document: Mapping[str, Any]) -> list[str]:
    """Lines such as `::error file=slo.yaml,line=7,title=ttft::BREACH ...`, one an objective."""
    policy = Policy(**document["policy"])
    # One reason makes all of them invalid; ten repetitions of it would hide it.
    reasons = [doubt for doubt in document["doubts"] if doubt["grade"] == "invalid"]
    if reasons:
        return [_invalid(doubt) for doubt in reasons[:MOST]]
    found = [row for row in rows(document) if row["verdict"] != "pass"]
    if document["verdict"] == "invalid" and all(row["verdict"] != "invalid" for row in found):
        return [_command("error", {"title": "Prony"}, "INVALID: the run was interrupted or broke")]
    found.sort(key=lambda row: (not turns_red(row, policy), _GRAVITY.index(row["verdict"])))
    lines = [_of(row, policy) for row in found[:MOST]]
    if len(found) > MOST:
        lines[-1] += f" (and {len(found) - MOST} more: see the summary)"
    return lines


def _of(row: Mapping[str, Any], policy: Policy) -> str:
    level = "error" if turns_red(row, policy) else "warning"
    place: dict[str, str] = {}
    line = str(row["place"]).rpartition(":")[2]
    if row.get("file"):
        place["file"] = str(row["file"])
        if line.isdigit():
            place["line"] = line
    place["title"] = f"Prony: {row['id']}"
    return _command(level, place, f"{str(row['verdict']).upper()}: {row['text']}")


def _invalid(doubt: Mapping[str, Any]) -> str:
    text = f"INVALID: {doubt['message']}. {doubt['remedy']}"
    return _command("error", {"title": f"Prony: {doubt['id']}"}, text)


def _command(level: str, properties: Mapping[str, str], text: str) -> str:
    shown = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {shown}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
