"""What a CI system is told of a verdict: verdict.json in, its summary and annotations out.

GitHub is known by its environment variables; elsewhere nothing is printed. The files for every CI
(verdict.json, junit.xml, summary.md) are written by judging.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prony_loadgen import shipped
from prony_slo.annotations import annotations
from prony_slo.inline import looks_inline
from prony_slo.markdown import verdict_markdown


def tell(document: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
    """Appends to GitHub's step summary and prints its annotations, where there is a GitHub."""
    environ = os.environ if environ is None else environ
    summary = environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(verdict_markdown(document) + "\n")
    if environ.get("GITHUB_ACTIONS") == "true":
        for line in annotations(document):
            print(line, flush=True)


def quiet_environment() -> dict[str, str]:
    """The environment of a run that is a part of something: it leaves the telling to the whole."""
    told = {"GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"}
    return {name: value for name, value in os.environ.items() if name not in told}


def with_files(rows: Iterable[Mapping[str, Any]], slo: Sequence[str]) -> list[dict[str, Any]]:
    """The rows with the path of the file that each was written in, relative to here.

    None where it is no file of the user's: inline, or one that ships with Prony.
    """
    files = {path.name: path for path in _files(slo)}
    return [
        {**row, "file": _place(files.get(str(row["place"]).rpartition(":")[0]))} for row in rows
    ]


def _files(slo: Sequence[str]) -> Iterable[Path]:
    for name in slo:
        path = None if looks_inline(name) else shipped.find("objectives", name)
        if path is not None:
            yield path


def _place(path: Path | None) -> str | None:
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    if path is None or not path.resolve().is_relative_to(root):
        return None
    return path.resolve().relative_to(root).as_posix()
