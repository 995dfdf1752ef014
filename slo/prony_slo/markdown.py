"""A verdict as Markdown: verdict.json goes in, a table for a pull request or CI comes out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prony_loadgen import words

# GitHub refuses a step summary of over 1 MiB, and a comment of over 65,536 characters.
MOST = 60_000
_MARKS = {"pass": "🟢", "breach": "🔴", "inconclusive": "🟡", "invalid": "🟣"}


def verdict_markdown(document: Mapping[str, Any]) -> str:
    """The verdict first, then a row for each objective and check, then doubts and runs."""
    text = "\n".join(_lines(document)) + "\n"
    if len(text) <= MOST:
        return text
    return text[: text.rfind("\n", 0, MOST - 100)] + "\n\n(cut here; the rest is in verdict.json)\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is: a server's message must not become a link or HTML."""
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    regression = document.get("regression") or {}
    checks = regression.get("checks") or []
    word, meaning = words.verdict(
        {"verdict": document["verdict"], "objectives": document["objectives"], "regression": checks}
    )
    yield f"## {_MARKS.get(str(document['verdict']), '⚪')} Prony: {word}"
    yield ""
    yield f"{escaped(meaning)} (exit code {document['exit_code']})"
    if document["objectives"]:
        yield from _table("objective", document["objectives"])
    if regression:
        yield ""
        yield f"### Regression: {escaped(str(regression.get('text') or regression['verdict']))}"
        if checks:
            yield from _table("check", checks)
        if regression.get("remedy"):
            yield ""
            yield escaped(str(regression["remedy"]))
    loud = [doubt for doubt in document["doubts"] if doubt["grade"] != "note"]
    if loud:
        yield ""
        yield "### Doubts"
        yield ""
        for doubt in loud:
            said = f"- **{escaped(str(doubt['grade']))}** {escaped(str(doubt['message']))}"
            yield said + (f" *{escaped(str(doubt['remedy']))}*" if doubt.get("remedy") else "")
    yield from _runs(document["runs"])


def _table(title: str, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    yield f"| | {title} | finding |"
    yield "| --- | --- | --- |"
    for row in found:
        word = f"{_MARKS.get(str(row['verdict']), '⚪')} {str(row['verdict']).upper()}"
        note = " (warning only)" if row.get("severity") == "warn" else ""
        text = " · ".join(escaped(part) for part in str(row["text"]).split(" | "))
        yield f"| {word}{note} | {escaped(str(row['id']))} | {text} |"


def _runs(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not runs:
        return
    yield ""
    first = runs[0]
    about = f"{len(runs)} runs" if len(runs) > 1 else f"run {first['run_id'] or words.UNKNOWN}"
    model, scenario = first["model"] or words.UNKNOWN, first["scenario"] or words.UNKNOWN
    yield escaped(f"{about} of {scenario} on {model}, started {first['started_at'] or '?'}")
