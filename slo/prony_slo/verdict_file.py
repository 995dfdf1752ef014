"""verdict.json: what was judged goes in, one document for pipelines and scripts comes out.

Its shape has a version: within schema 1 keys are only added. Editors and scripts get it as
docs/verdict.schema.json (`python -m prony_slo.verdict_file > docs/verdict.schema.json`).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from prony_loadgen.folder import replace_text
from prony_slo.policy import Policy

NAME = "verdict.json"
SCHEMA = 1

Word = Literal["pass", "breach", "inconclusive", "invalid"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Row(_Part):
    """One objective or one regression check; further keys hold its numbers."""

    model_config = ConfigDict(extra="allow")

    id: str
    verdict: Word
    severity: Literal["fail", "warn"]
    """`warn` never changes the exit code."""
    on_inconclusive: Literal["inconclusive", "fail", "warn", "pass"]
    """What too little data does to the exit code."""
    promise: str
    """What was promised, in words."""
    text: str
    """What was found, in words."""
    place: str
    """Where it was written: "chat.yaml:7", or "--slo"."""
    file: str | None
    """The path of that file, relative to where the command ran, where it is a file of the user."""


class JudgedRun(_Part):
    """A run that the verdict rests on."""

    folder: str
    run_id: str | None
    scenario: str | None
    target: str | None
    model: str | None
    seed: int | None
    started_at: str | None
    side: Literal["a", "b", "baseline"] | None = None
    """In a comparison: before (a), after (b)."""
    pair: int | None = None
    """In a comparison of pairs: which one, from 1 on."""


class Verdict(_Part):
    """The verdict of `prony gate`, `prony run --slo` or `prony ab`."""

    schema_: Literal[1] = Field(alias="schema")
    prony: str
    """The version of Prony that judged."""
    judged_at: str
    verdict: Word | None
    """None where nothing was asked: no SLO was named."""
    exit_code: int
    """What the command exited with, after the policy."""
    policy: dict[str, Any]
    """--inconclusive and --exit-code-breach."""
    slo: list[str]
    """The SLO's names, files or inline objectives."""
    runs: list[JudgedRun]
    objectives: list[Row]
    regression: dict[str, Any] | None = None
    """The comparison with a baseline: its `checks` are rows like objectives."""
    doubts: list[dict[str, Any]]
    """Why the measurement may mislead; one of grade `invalid` makes the verdict invalid."""


def document(
    *,
    verdict: str | None,
    exit_code: int,
    policy: Policy,
    slo: Sequence[str],
    runs: Sequence[Mapping[str, Any]],
    objectives: Sequence[Mapping[str, Any]],
    doubts: Sequence[Mapping[str, Any]],
    regression: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document; `exit_code` is the gate's, before the policy."""
    return {
        "schema": SCHEMA,
        "prony": version("prony"),
        "judged_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "verdict": verdict,
        "exit_code": policy.exit_code(exit_code),
        "policy": policy.to_json(),
        "slo": list(slo),
        "runs": [dict(run) for run in runs],
        "objectives": [dict(row) for row in objectives],
        "regression": None if regression is None else dict(regression),
        "doubts": [dict(doubt) for doubt in doubts],
    }


def judged_run(
    folder: Path, facts: Mapping[str, Any], *, side: str | None = None, pair: int | None = None
) -> dict[str, Any]:
    """The entry of one run, from its run.json."""
    target = facts.get("target") or {}
    return {
        "folder": str(folder),
        "run_id": facts.get("run_id"),
        "scenario": (facts.get("scenario") or {}).get("name"),
        "target": target.get("url"),
        "model": target.get("model"),
        "seed": facts.get("seed"),
        "started_at": facts.get("started_at"),
        "side": side,
        "pair": pair,
    }


def rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that was judged: objectives, then regression checks."""
    return [*document["objectives"], *((document.get("regression") or {}).get("checks") or ())]


def write(folder: Path, document: Mapping[str, Any]) -> Path:
    """Replaces verdict.json of `folder` in one step; returns its path. Raises OSError."""
    path = folder / NAME
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    replace_text(path, text + "\n")
    return path


def json_schema() -> dict[str, Any]:
    """The JSON Schema of verdict.json."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**dialect, **Verdict.model_json_schema(by_alias=True)}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
