"""A folder of captures: what was profiled, when and why goes in; its facts come out.

`profile/captures.json` lists the captures; each one's files lie beside it, named by its number.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from prony.profiling import stacks, trace_facts
from prony.profiling.facts import ProfileFacts
from prony.profiling.stacks import StacksError
from prony.profiling.trace_events import TraceError

FOLDER: Final = "profile"  # within a run folder
LIST: Final = "captures.json"
Kind = Literal["trace", "stacks", "other"]


@dataclass(frozen=True, slots=True)
class Capture:
    """One stretch of time in which a server was profiled."""

    why: str  # "asked", "at 30 s", "on breach: ttft p99 ..."
    engine: str
    # Unix seconds: from just before it was asked to begin until it said that it had ended.
    began: float
    ended: float | None  # None: it never said so
    steps: int | None = None  # of the engine, where so many were asked for
    asked_seconds: float | None = None
    breached: float | None = None  # Unix seconds: since when the rule was broken
    files: tuple[str, ...] = ()  # names within the folder
    on_server: str | None = None  # where other files lie, in words
    failure: str | None = None  # why there is no capture, or not all of it
    refused: bool = False  # the server never began

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "files": list(self.files)}


def kind(path: Path) -> Kind:
    """What a file of a profile holds, by its name and its first bytes."""
    name = path.name.lower()
    if name.endswith((".json.gz", ".trace.json", ".pt.trace.json")):
        return "trace"
    if not name.endswith((".json", ".speedscope")):
        return "other"
    with path.open("rb") as file:
        head = file.read(4096)
    return "stacks" if b"speedscope" in head or b'"profiles"' in head else "trace"


def write_captures(folder: Path, captures: list[Capture]) -> None:
    """Writes the list into `folder`, which it makes. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([capture.to_json() for capture in captures], indent=1)
    (folder / LIST).write_text(text + "\n", encoding="utf-8")


def read_captures(folder: Path) -> list[dict[str, Any]]:
    """The list in `folder`; empty where it has none."""
    try:
        told = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def profile_files(path: Path) -> list[Path]:
    """The traces and stacks that a path means: a file, a folder of some, or a run folder."""
    if path.is_file():
        return [path]
    # A run folder's other files are of other kinds, whatever their names end in.
    is_run = (path / "run.json").exists() or (path / FOLDER).is_dir()
    folder = path / FOLDER if is_run else path
    files = sorted(each for each in folder.rglob("*") if each.is_file() and each.name != LIST)
    return [each for each in files if kind(each) != "other"]


def file_facts(path: Path) -> ProfileFacts:
    """The facts of one file. Raises TraceError, StacksError and OSError."""
    if kind(path) == "stacks":
        return stacks.stacks_facts(path)
    return trace_facts.trace_facts(path)


def profile_facts(path: Path, run: Mapping[str, Any] | None = None) -> ProfileFacts | None:
    """All that a run folder, or its `profile/`, or one file shows; None where there is nothing.

    `run` is run.json, which knows the windows on the run's clock. A file that cannot be read is
    named in the notes.
    """
    files = profile_files(path)
    if not files:
        return None
    told = (each.get("window") for each in _told(run))
    windows = tuple((float(window[0]), float(window[1])) for window in told if window)
    return replace(together(list(_each(files))), windows=windows)


def together(facts: list[ProfileFacts]) -> ProfileFacts:
    """Several files' facts as one: of each kind, those of the file that shows most of it."""
    if not facts:
        return ProfileFacts((), 0.0)
    traces = max((f for f in facts if f.operators), key=lambda f: f.seconds, default=None)
    gpu = max((f for f in facts if f.idle), key=lambda f: f.seconds, default=None)
    seen = max((f for f in facts if f.threads), key=lambda f: f.seconds, default=None)
    of_trace = gpu or traces
    base = of_trace or facts[0]
    return replace(
        base,
        files=tuple(name for each in facts for name in each.files),
        seconds=sum(each.seconds for each in facts),
        threads=seen.threads if seen else (),
        notes=tuple(dict.fromkeys(note for each in facts for note in each.notes)),
    )


def _each(files: list[Path]) -> Iterator[ProfileFacts]:
    for path in files:
        try:
            yield file_facts(path)
        except (TraceError, StacksError, OSError) as error:
            yield ProfileFacts((path.name,), 0.0, notes=(f"cannot be read: {error}",))


def _told(run: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return list(((run or {}).get("profile") or {}).get("captures") or ())
