"""Arrival traces of real services: a file and what it means in, rows with offsets and lengths out.

| format | unit | columns or keys |
| --- | --- | --- |
| `azure` (CSV) | dates | TIMESTAMP, ContextTokens, GeneratedTokens |
| `mooncake` (JSON Lines) | named | timestamp, input_length, output_length, hash_ids |
| `burstgpt` (CSV) | named | Timestamp, Request tokens, Response tokens |
| `jsonl` (ours) | named | at, input_tokens, output_tokens, class, prefix: block numbers |

A hash id stands for a block of 512 tokens of the prompt, and prefix for the same in our format.
Nothing is guessed: numbers without a date need a unit, and a unit that makes no sense is an error.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from prony_loadgen.strict_yaml import MOST_TOKENS, Duration, FileError, Number, StrictModel

Format = Literal["azure", "mooncake", "burstgpt", "jsonl"]
Unit = Literal["s", "ms", "us"]

BLOCK_TOKENS = 512  # of a prompt that one of Mooncake's hash_ids stands for
# Services that get fewer than one request in five minutes, or more than this many a second, are
# rare; files read in the wrong unit are not.
LONGEST_MEAN_GAP, HIGHEST_RATE = 300.0, 5000.0
_SCALES: dict[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_SHOWN_ROWS = 20


class TraceSpec(StrictModel):
    """Which trace is replayed, and how."""

    file: str
    format: Format
    unit: Unit | None = None  # of its times; azure has dates
    check_unit: bool = True  # whether a unit that looks wrong is an error
    skip: Duration = 0.0  # this much of the file's own time is left out at its start ...
    first: Duration | None = Field(default=None, gt=0)  # ... and this much after that is replayed
    speed_up: Number = Field(default=1.0, gt=0, le=1e6)
    length_scale: Number = Field(default=1.0, gt=0, le=1000)

    @model_validator(mode="after")
    def _unit_is_explicit(self) -> "TraceSpec":
        if self.format == "azure":
            if self.unit is not None:
                raise ValueError("azure traces have dates, not numbers: leave unit out")
        elif self.unit is None:
            common = {"mooncake": "ms", "burstgpt": "s"}.get(self.format, "s, ms or us")
            raise ValueError(
                f"needs unit: is a time in the file s, ms or us? ({self.format} files as "
                f"published: {common})"
            )
        return self


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    at: float  # seconds from the first replayed one, at the file's own speed
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # equal leading numbers are an equal start of the prompt
    cls: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The replayed part of a file."""

    rows: tuple[TraceRow, ...]
    skipped: int  # rows without any output: what the service refused or lost
    out_of_order: int  # rows that came after a later one in the file; they are sent in order

    @property
    def mean_gap(self) -> float:
        """Seconds between two requests, at the file's own speed."""
        return self.rows[-1].at / (len(self.rows) - 1) if len(self.rows) > 1 else 1.0

    def offsets(self, speed_up: float) -> Iterator[float]:
        """When each row is due, endlessly: after its last row a trace begins again, a mean gap on.

        Each is computed from the file, not from the one before: no error adds up.
        """
        length = self.rows[-1].at + self.mean_gap
        turn = 0
        while True:
            for row in self.rows:
                yield (turn * length + row.at) / speed_up
            turn += 1


@dataclass(slots=True)
class _Reading:
    """What is gathered while a file is read."""

    name: str
    rows: list[tuple[int, TraceRow]] = field(default_factory=list)  # (line, row) in the file's unit
    errors: list[str] = field(default_factory=list)
    skipped: int = 0

    def add(self, line: int, row: Callable[[], TraceRow | None]) -> None:
        try:
            made = row()
        except ValueError as error:
            self.errors.append(f"{self.name}:{line}: {error}")
            return
        if made is None:
            self.skipped += 1
        else:
            self.rows.append((line, made))


def read_trace(spec: TraceSpec) -> Trace:
    """The replayed part of a trace file. Raises FileError that names file, line and value."""
    path = Path(spec.file)
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise FileError([f"trace {path}: {error.strerror}"]) from None
    return _read(spec, changed)


def trace_lengths(file: str, format: Format, of: Literal["input", "output"]) -> tuple[int, ...]:
    """All lengths of a trace, for an empirical distribution. Raises FileError."""
    unit: Unit | None = None if format == "azure" else "s"
    trace = read_trace(TraceSpec(file=file, format=format, unit=unit, check_unit=False))
    return tuple(row.input_tokens if of == "input" else row.output_tokens for row in trace.rows)


@lru_cache(maxsize=8)
def _read(spec: TraceSpec, changed: int) -> Trace:
    path = Path(spec.file)
    reading = _Reading(path.name)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError([f"trace {path}: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise FileError([f"trace {path}: not UTF-8 text (byte {error.start})"]) from None
    _READERS[spec.format](text, reading)
    if len(reading.errors) > _SHOWN_ROWS:
        more = len(reading.errors) - _SHOWN_ROWS
        reading.errors[_SHOWN_ROWS:] = [f"{path.name}: and {more} more bad rows"]
    if reading.errors:
        raise FileError(reading.errors)
    if not reading.rows:
        raise FileError([f"{path.name}: no requests in it"])
    return _replayed(spec, reading)


def _replayed(spec: TraceSpec, reading: _Reading) -> Trace:
    scale = _SCALES[spec.unit or "s"]
    times = [row.at for _, row in reading.rows]
    out_of_order = sum(after < before for before, after in pairwise(times))
    rows = sorted((row for _, row in reading.rows), key=lambda row: row.at)
    if spec.check_unit:
        _check_unit(spec, reading.name, (rows[-1].at - rows[0].at) * scale, len(rows))
    # From the first row, not from 0: a trace may start at any date.
    begins = rows[0].at + spec.skip / scale
    ends = math.inf if spec.first is None else begins + spec.first / scale
    part = [row for row in rows if begins <= row.at < ends]
    if not part:
        last = (rows[-1].at - rows[0].at) * scale
        raise FileError(
            [f"{reading.name}: nothing is left after skip and first: it lasts {last:,.1f} s"]
        )
    first = part[0].at if not spec.skip else begins
    scaled = tuple(
        TraceRow(
            (row.at - first) * scale,
            _scaled(row.input_tokens, spec.length_scale),
            _scaled(row.output_tokens, spec.length_scale),
            row.blocks,
            row.cls,
        )
        for row in part
    )
    return Trace(scaled, reading.skipped, out_of_order)


def _check_unit(spec: TraceSpec, name: str, span: float, rows: int) -> None:
    """Raises FileError where the rate that the unit makes is not one of a service."""
    if rows < 2:
        return
    gap = span / (rows - 1)
    others = " or ".join(unit for unit in _SCALES if unit != spec.unit)
    if gap > LONGEST_MEAN_GAP:
        seen = f"one every {gap:,.0f} s, over {span / 86400:,.1f} days"
    elif gap < 1 / HIGHEST_RATE:
        seen = f"{1 / gap:,.0f} a second" if gap else "all at one moment"
    else:
        return
    remedy = "" if spec.unit is None else f"is its unit {others}? If it really is {spec.unit}, "
    unit = "" if spec.unit is None else f" with times in {spec.unit}"
    raise FileError(
        [f"{name}: {rows:,} requests{unit} would be {seen}; {remedy}set check_unit: false"]
    )


def _scaled(tokens: int, scale: float) -> int:
    return min(MOST_TOKENS, max(1, round(tokens * scale)))


# --- the formats; times stay in the file's own unit ------------------------------------------


def _azure(text: str, reading: _Reading) -> None:
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    origin: list[datetime] = []

    def row(cells: Mapping[str, str]) -> TraceRow | None:
        moment, fraction = _date(cells["TIMESTAMP"])
        if not origin:
            origin.append(moment)
        if (moment.tzinfo is None) != (origin[0].tzinfo is None):
            raise ValueError(f"TIMESTAMP {cells['TIMESTAMP']!r}: some have a time zone, some not")
        whole = (moment - origin[0]).total_seconds()
        return _row(whole + fraction, cells["ContextTokens"], cells["GeneratedTokens"], columns[1:])

    _csv(text, columns, reading, row)


def _burstgpt(text: str, reading: _Reading) -> None:
    columns = ("Timestamp", "Request tokens", "Response tokens")

    def row(cells: Mapping[str, str]) -> TraceRow | None:
        at = _time(cells["Timestamp"], "Timestamp")
        return _row(at, cells["Request tokens"], cells["Response tokens"], columns[1:])

    _csv(text, columns, reading, row)


def _mooncake(text: str, reading: _Reading) -> None:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")

    def row(told: dict[str, Any]) -> TraceRow | None:
        _needs(told, keys)
        blocks = _blocks(told["hash_ids"], "hash_ids")
        at = _time(told["timestamp"], "timestamp")
        return _row(at, told["input_length"], told["output_length"], keys[1:3], blocks)

    _jsonl(text, reading, row)


def _ours(text: str, reading: _Reading) -> None:
    keys = ("at", "input_tokens", "output_tokens")
    known = {*keys, "class", "prefix"}

    def row(told: dict[str, Any]) -> TraceRow | None:
        _needs(told, keys)
        unknown = sorted(told.keys() - known)
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r} (valid: {', '.join(sorted(known))})")
        cls = told.get("class")
        if cls is not None and (not isinstance(cls, str) or not cls):
            raise ValueError(f"class must be a text that is not empty, got {cls!r:.60}")
        blocks = _blocks(told.get("prefix", []), "prefix")
        at = _time(told["at"], "at")
        return _row(at, told["input_tokens"], told["output_tokens"], keys[1:], blocks, cls)

    _jsonl(text, reading, row)


_READERS: dict[Format, Callable[[str, _Reading], None]] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "burstgpt": _burstgpt,
    "jsonl": _ours,
}


def _csv(
    text: str,
    columns: tuple[str, ...],
    reading: _Reading,
    row: Callable[[Mapping[str, str]], TraceRow | None],
) -> None:
    lines = csv.reader(text.splitlines())
    header = [cell.strip() for cell in next(lines, [])]
    missing = [name for name in columns if name not in header]
    if missing:
        reading.errors.append(
            f"{reading.name}:1: no column {missing[0]!r}; this format has {', '.join(columns)}"
        )
        return
    places = {name: header.index(name) for name in columns}

    def of(cells: list[str]) -> TraceRow | None:
        if len(cells) < len(header):
            raise ValueError(f"{len(cells)} columns, the header has {len(header)}")
        return row({name: cells[place].strip() for name, place in places.items()})

    for cells in lines:
        if any(cell.strip() for cell in cells):
            reading.add(lines.line_num, lambda cells=cells: of(cells))  # type: ignore[misc]


def _jsonl(text: str, reading: _Reading, row: Callable[[dict[str, Any]], TraceRow | None]) -> None:
    def of(line: str) -> TraceRow | None:
        try:
            told = json.loads(line)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(told, dict):
            raise ValueError(f"must be an object, got {told!r:.60}")
        return row(told)

    # Not splitlines: that also splits at characters which JSON texts may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            reading.add(number, lambda line=line: of(line))  # type: ignore[misc]


def _row(
    at: float,
    input_tokens: object,
    output_tokens: object,
    names: Iterable[str],
    blocks: tuple[int, ...] = (),
    cls: str | None = None,
) -> TraceRow | None:
    """None where no output is asked for: a request that the service refused or lost."""
    inputs, outputs = (
        _count(told, name) for told, name in zip((input_tokens, output_tokens), names, strict=True)
    )
    return TraceRow(at, max(1, inputs), outputs, blocks, cls) if outputs else None


def _needs(told: dict[str, Any], keys: tuple[str, ...]) -> None:
    missing = [key for key in keys if key not in told]
    if missing:
        raise ValueError(f"no {missing[0]!r} in it; this format has {', '.join(keys)}")


def _time(told: object, name: str) -> float:
    try:
        if isinstance(told, bool):
            raise ValueError
        at = float(told)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {told!r:.60}") from None
    if not math.isfinite(at):
        raise ValueError(f"{name} must be a finite number, got {told!r:.60}")
    return at


def _count(told: object, name: str) -> int:
    try:
        if isinstance(told, bool):
            raise ValueError
        number = float(told)  # type: ignore[arg-type]
        if number != int(number) or number < 0:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a whole number of tokens, got {told!r:.60}") from None
    return int(number)


def _blocks(told: object, name: str) -> tuple[int, ...]:
    if not isinstance(told, list) or not all(type(block) is int for block in told):
        raise ValueError(f"{name} must be a list of whole numbers, got {told!r:.60}")
    return tuple(told)


def _date(told: str) -> tuple[datetime, float]:
    """The second of a date and the fraction of it, to all its digits (Azure's have seven)."""
    head, dot, rest = told.partition(".")
    digits = rest[: next((i for i, c in enumerate(rest) if not c.isdigit()), len(rest))]
    try:
        moment = datetime.fromisoformat(head + rest[len(digits) :])
        fraction = int(digits) / 10 ** len(digits) if dot else 0.0
    except ValueError:
        raise ValueError(
            f"TIMESTAMP must be a date such as 2023-11-16 18:15:46.68, got {told!r:.60}"
        ) from None
    return moment, fraction
