"""A run folder: facts and records go in while a run goes on, and come out of a cut one too.

What lies in a run folder is in docs/design.md.
"""

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
            _point_latest_at(path)
        except OSError as error:
            raise FileError([f"{_what(out)}: {error.strerror}"]) from None
        return cls(path)

    def write_run(self, facts: dict[str, Any]) -> None:
        """Replaces run.json in one step, so that no reader sees half of it."""
        text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False)
        beside = self.run.with_suffix(".json.new")
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(self.run)

    def read_run(self) -> dict[str, Any]:
        """The facts of run.json. Raises FileError where there is none or it is not one."""
        try:
            facts = json.loads(self.run.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileError([f"{self.path}: not a run folder (no run.json)"]) from None
        except (OSError, ValueError) as error:
            raise FileError([f"{self.run}: cannot be read: {error}"]) from None
        if not isinstance(facts, dict) or "schema" not in facts:
            raise FileError([f"{self.run}: not the facts of a run (no `schema`)"])
        if facts["schema"] != 1:
            raise FileError([f"{self.run}: schema {facts['schema']!r} is newer than this Prony"])
        return facts

    def records(self) -> Iterator[RequestRecord]:
        """Every whole record, in the order they ended; the torn end of a cut file is left out.

        Raises FileError for a whole line that is not a record.
        """
        if not self.requests.exists():
            return
        for number, line in enumerate(_whole_lines(self.requests), start=1):
            try:
                yield RequestRecord.from_json(line.decode())
            except ValueError as error:
                raise FileError([f"{self.requests}:{number}: {error}"]) from None


def refuse_used(out: Path) -> None:
    """Raises FileError where the folder `out` holds a run already: none is ever overwritten."""
    folder = RunFolder(out)
    if folder.run.exists() or folder.requests.exists():
        raise FileError([f"--out {out}: holds a run already; name another folder"])


def resolve(run: str | None) -> RunFolder:
    """The run folder that a command's RUN means; None is the newest. Raises FileError."""
    if run is not None:
        path = Path(run)
        if not path.is_dir():
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
    RUNS.mkdir(exist_ok=True)
    beside = RUNS / f".latest-{os.getpid()}"
    target = os.path.relpath(path, RUNS)
    # Where there are no symlinks, `resolve` takes the newest folder instead.
    with suppress(OSError):
        beside.unlink(missing_ok=True)
        beside.symlink_to(target, target_is_directory=True)
        beside.replace(RUNS / "latest")


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
