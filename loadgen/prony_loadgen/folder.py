"""A run folder: facts and records go in while a run goes on, and come out of a cut one too.

What lies in a run folder is in docs/design.md.
"""

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prony_loadgen.account import Sending, account
from prony_loadgen.record import RequestRecord
from prony_loadgen.strict_yaml import FileError

RUNS = Path("runs")


class RunFolder:
    """The files of one run, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path / "run.json"
        self.requests = path / "requests.jsonl.gz"
        self.traces = path / "traces.jsonl"
        self.report = path / "report.html"

    @classmethod
    def create(cls, out: Path | None, name: str) -> "RunFolder":
        """A new folder: `out`, or `runs/<UTC time>-<name>`; `runs/latest` points at it.

        Raises FileError where `out` holds a run already or cannot be made.
        """
        if out is not None:
            refuse_used(out)
        try:
            path = _fresh(name) if out is None else out
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError([f"{_what(out)}: {error.strerror}"]) from None
        _point_latest_at(path)
        return cls(path)

    def write_run(self, facts: dict[str, Any]) -> None:
        """Replaces run.json in one step. Raises OSError; what was there is there then."""
        text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False)
        replace_text(self.run, text + "\n")

    def read_run(self) -> dict[str, Any]:
        """The facts of run.json. Raises FileError where there is none or it is not one.

        A run that was cut before it could write its end (killed, a full disk) has the window and
        the account that its records show.
        """
        try:
            facts = json.loads(self.run.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileError([f"{self.path}: not a run folder (no run.json)"]) from None
        except (OSError, ValueError, RecursionError) as error:
            raise FileError([f"{self.run}: cannot be read: {error}"]) from None
        if not isinstance(facts, dict) or "schema" not in facts:
            raise FileError([f"{self.run}: not the facts of a run (no `schema`)"])
        if facts["schema"] != 1:
            raise FileError([f"{self.run}: schema {facts['schema']!r} is newer than this Prony"])
        if wrong := [f"{self.run}: {line}" for line in _wrong(facts)]:
            raise FileError(wrong)
        if facts.get("ended_at", "") is None:
            facts |= self._seen(facts)
        return facts

    def _seen(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What the records show of a run without an end, beside which nothing knows more."""
        ended, sendings = 0.0, []
        for record in self.records():
            ended = max(ended, record.ended)
            sendings.append(Sending.of(record))
        start, planned = facts.get("planned_window") or (facts["window"][0], None)
        end = ended if planned is None else min(ended, planned)
        window = (min(start, end), end)
        asked = (facts.get("schedule") or {}).get("planned")
        # The schedule that was due is not in the folder: what was never sent cannot be told.
        told = account(sendings, window, schedule=None, planned=asked)
        return {"interrupted": True, "window": [round(edge, 6) for edge in window],
                "schedule": told}  # fmt: skip

    def records(self) -> Iterator[RequestRecord]:
        """Every whole record, in the order they ended; the torn end of a cut file is left out.

        Raises FileError for a whole line that is not a record.
        """
        if not self.requests.exists():
            return
        for number, line in enumerate(_whole_lines(self.requests), start=1):
            try:
                yield RequestRecord.from_json(line.decode())
            except (ValueError, RecursionError) as error:
                raise FileError([f"{self.requests}:{number}: {error}"]) from None


def replace_text(path: Path, text: str) -> None:
    """Replaces a file in one step, so that no reader sees half of it. Raises OSError.

    Half of a surrogate pair, which UTF-8 cannot hold, becomes its escape, as JSON has it too.
    """
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.write_bytes(text.encode("utf-8", "backslashreplace"))
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def refuse_used(out: Path) -> None:
    """Raises FileError where the folder `out` holds a run already: none is ever overwritten."""
    folder = RunFolder(out)
    try:
        used = folder.run.exists() or folder.requests.exists()
    except OSError as error:
        raise FileError([f"--out {out}: {error.strerror}"]) from None
    if used:
        raise FileError([f"--out {out}: holds a run already; name another folder"])


def new_folder(name: str) -> Path:
    """A new folder `runs/<UTC time>-<name>`, for what is about several runs. Raises FileError."""
    try:
        return _fresh(name)
    except OSError as error:
        raise FileError([f"{RUNS}: {error.strerror}"]) from None


def resolve(run: str | None) -> RunFolder:
    """The run folder that a command's RUN means; None is the newest. Raises FileError."""
    if run is not None:
        path = Path(run)
        try:
            there = path.is_dir()
        except OSError as error:
            raise FileError([f"{run}: {error.strerror}"]) from None
        if not there:
            raise FileError([f"{run}: no such run folder"])
        return RunFolder(path)
    latest = RUNS / "latest"
    if latest.exists():
        return RunFolder(latest.resolve())
    finished = sorted(path.parent for path in RUNS.glob("*/run.json"))
    if not finished:
        raise FileError([f"no run in {RUNS}/ yet: name a run folder, or run `prony run` first"])
    return RunFolder(finished[-1])


def _fresh(name: str) -> Path:
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}"
    RUNS.mkdir(exist_ok=True)
    for number in range(1, 1000):
        path = RUNS / (stem if number == 1 else f"{stem}-{number}")
        with suppress(FileExistsError):
            path.mkdir()
            return path
    raise FileError([f"{RUNS}/{stem}: 999 runs started in this second"])


def _what(out: Path | None) -> str:
    return f"{RUNS}/" if out is None else f"--out {out}"


def _point_latest_at(path: Path) -> None:
    beside = RUNS / f".latest-{os.getpid()}"
    target = os.path.relpath(path, RUNS)
    # Where there are no symlinks, or no right to write here, `resolve` takes the newest.
    with suppress(OSError):
        RUNS.mkdir(exist_ok=True)
        beside.unlink(missing_ok=True)
        beside.symlink_to(target, target_is_directory=True)
        beside.replace(RUNS / "latest")


def _wrong(facts: Mapping[str, Any]) -> Iterator[str]:
    """What whoever reads a run relies on and is not there: a line each."""

    def pair(found: Any) -> bool:
        return isinstance(found, list) and len(found) == 2

    def ordered(found: Any) -> bool:
        return pair(found) and all(map(_is_number, found)) and bool(found[0] <= found[1])

    window, planned = facts.get("window"), facts.get("planned_window")
    if not ordered(window):
        yield f"window must be two numbers, [start, end] in seconds, got {window!r:.60}"
    if planned is not None and not (
        ordered(planned) or (pair(planned) and _is_number(planned[0]) and planned[1] is None)
    ):
        yield f"planned_window must be [start, end] or [start, null], got {planned!r:.60}"
    if facts.get("loop") not in ("open", "closed"):
        yield f"loop must be open or closed, got {facts.get('loop')!r:.60}"
    for key in ("scenario", "target", "schedule", "client"):
        if not isinstance(facts.get(key, {}), dict):
            yield f"{key} must be a mapping, got {facts[key]!r:.60}"
    stages = facts.get("stages") or []
    if not isinstance(stages, list) or not all(
        isinstance(s, list) and len(s) == 3 and all(map(_is_number, s[1:])) for s in stages
    ):
        yield f"stages must be a list of [name, start, end], got {stages!r:.60}"
    for key in ("started_at", "ended_at"):
        moment = facts.get(key)
        if moment is not None and not isinstance(moment, str):
            yield f"{key} must be a time such as 2026-01-01T12:00:00Z, got {moment!r:.60}"
    for key in ("slo", "quality", "workers"):
        if not isinstance(facts.get(key) or [], list):
            yield f"{key} must be a list, got {facts[key]!r:.60}"


def _is_number(found: Any) -> bool:
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return is_number and math.isfinite(found)


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a gzip file that end in a newline, up to where the file is cut or broken."""
    rest = b""
    for data in _inflated(path):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _inflated(path: Path) -> Iterator[bytes]:
    inflate = zlib.decompressobj(wbits=31)
    with path.open("rb") as file:
        while data := file.read(1 << 16):
            before = inflate.copy()
            try:
                yield inflate.decompress(data)
                while inflate.eof and inflate.unused_data:  # files put one after another
                    data, inflate = inflate.unused_data, zlib.decompressobj(wbits=31)
                    before = inflate.copy()
                    yield inflate.decompress(data)
            except zlib.error:
                yield _up_to_the_break(before, data)
                return


def _up_to_the_break(inflate: "zlib._Decompress", data: bytes) -> bytes:
    """What `data` still gives before it stops being gzip."""
    good = []
    with suppress(zlib.error):
        for position in range(len(data)):
            good.append(inflate.decompress(data[position : position + 1]))
    return b"".join(good)
