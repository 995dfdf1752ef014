"""Prompts that people bring: a JSON Lines or ShareGPT file in, rows or all its bad rows out."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from prony_loadgen.plain_json import not_json
from prony_loadgen.prompt import Prompt
from prony_loadgen.quality import Expect, read_expect
from prony_loadgen.strict_yaml import FileError

# Dialects that know no messages.
TEXTS_ONLY = frozenset({"openai-completions", "ollama-generate", "tgi"})
_SHOWN_ROWS = 20
_TOO_DEEP = "nested too deeply"
_KEYS = ("prompt", "messages", "output_tokens", "reference", "contains", "pattern")


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt of a file."""

    prompt: Prompt
    output_tokens: int | None = None
    expect: Expect | None = None
    line: int = 0
    # What the user of a conversation said later, and what was answered before each.
    later: tuple[tuple[str, str], ...] = ()


def read_prompts(
    path: Path, *, format: Literal["jsonl", "sharegpt"] = "jsonl", dialect: str = "openai-chat"
) -> tuple[Row, ...]:
    """The prompts of a file. Raises FileError with a line for each bad row.

    A JSONL row is {"prompt": text} or {"messages": [...]}, with "output_tokens" if it wants its own
    and with what is expected of the answer. ShareGPT is a list (or lines) of {"conversations":
    [{"from": "human", "value": text}, ...]}: the first thing that a human says is asked, what
    is said later is for `turns`; conversations where no human says anything are left out.
    Blank lines, a byte order mark and Windows line ends are fine.
    """
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise FileError([f"prompts file {path}: {error.strerror}"]) from None
    return _read(path, changed, format, dialect)


@lru_cache(maxsize=8)
def _read(path: Path, changed: int, format: str, dialect: str) -> tuple[Row, ...]:
    try:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise FileError([f"prompts file {path}: {error.strerror}"]) from None
    rows: list[Row] = []
    errors: list[str] = []

    def add(line: int, read: Callable[[], Row | None]) -> None:
        try:
            row = read()
            if row is not None and dialect in TEXTS_ONLY and row.prompt.text is None:
                raise ValueError(f"{dialect} takes texts; use openai-chat for messages")
        except ValueError as error:
            errors.append(f"{path.name}:{line}: {error}")
            return
        if row is not None:
            rows.append(row)

    made = _conversation if format == "sharegpt" else _row
    for line, read in _values(data):
        add(line, lambda line=line, read=read: made(read(), line))  # type: ignore[misc]
    if len(errors) > _SHOWN_ROWS:
        more = len(errors) - _SHOWN_ROWS
        errors = [*errors[:_SHOWN_ROWS], f"{path.name}: and {more} more bad rows"]
    if errors:
        raise FileError(errors)
    if not rows:
        raise FileError([f"{path.name}: no prompts in it"])
    return tuple(rows)


def _values(data: bytes) -> Iterator[tuple[int, Callable[[], Any]]]:
    """Each value of a JSON list or of lines, with its line; calling it may raise ValueError."""
    if data.lstrip().startswith(b"[") and _is_list(data):
        yield from _listed(data)
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, lambda line=line: _json(line)  # type: ignore[misc]


def _is_list(data: bytes) -> bool:
    """Whether it is one list of objects, and not lines of lists."""
    return data.lstrip()[1:].lstrip()[:1] in (b"{", b"]")


def _listed(data: bytes) -> Iterator[tuple[int, Callable[[], Any]]]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield data.count(b"\n", 0, error.start) + 1, lambda: _json(data)
        return
    decoder = json.JSONDecoder()
    at, line = text.index("[") + 1, 1
    counted = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        line, counted = line + text.count("\n", counted, at), at
        if text[at : at + 1] == "]":
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            message = f"not JSON: {error.msg} at column {error.colno}"
            yield error.lineno, lambda message=message: _raise(message)  # type: ignore[misc]
            return
        except RecursionError:
            yield line, lambda: _raise(_TOO_DEEP)
            return
        yield line, lambda value=value: value  # type: ignore[misc]


def _raise(message: str) -> Any:
    raise ValueError(message)


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: it is nested too deep") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ValueError(f"not JSON that can be read: {error}") from None


def _row(row: Any, line: int) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f'must be an object such as {{"prompt": "..."}}, got {row!r:.60}')
    unknown = row.keys() - set(_KEYS)
    if unknown:
        raise ValueError(f"unknown key {sorted(unknown)[0]!r} (valid: {', '.join(_KEYS)})")
    if ("prompt" in row) == ("messages" in row):
        raise ValueError('needs either "prompt" or "messages"')
    output = row.get("output_tokens")
    counted = isinstance(output, int) and not isinstance(output, bool) and output >= 1
    if output is not None and not counted:
        raise ValueError(f"output_tokens must be a whole number above 0, got {output!r}")
    made = _text_prompt(row["prompt"]) if "prompt" in row else _message_prompt(row["messages"])
    return Row(made, output, read_expect(row), line)


def _text_prompt(text: Any) -> Prompt:
    if not isinstance(text, str) or not text:
        raise ValueError(f"prompt must be a text that is not empty, got {text!r:.60}")
    return Prompt(text=text)


def _message_prompt(messages: Any) -> Prompt:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages must be a list that is not empty, got {messages!r:.60}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f'each message needs a "role", got {message!r:.60}')
    if (wrong := not_json(messages, "messages")) is not None:
        raise ValueError(wrong)
    return Prompt(messages=tuple(messages))


def _conversation(told: Any, line: int) -> Row | None:
    """None where no human says anything."""
    if not isinstance(told, dict) or not isinstance(told.get("conversations"), list):
        raise ValueError(f'must be an object with "conversations", got {told!r:.60}')
    said: list[tuple[str, str]] = []  # (what was answered before, what the human says)
    answer = ""
    for part in told["conversations"]:
        if not isinstance(part, dict) or not isinstance(part.get("value"), str):
            raise ValueError(f'each part needs a "from" and a "value", got {part!r:.60}')
        if part.get("from") in ("human", "user"):
            if part["value"].strip():
                said.append((answer, part["value"]))
                answer = ""
        elif part.get("from") in ("gpt", "assistant", "chatgpt", "bing", "bard"):
            answer = part["value"]
        elif part.get("from") != "system":
            raise ValueError(f"from must be human, gpt or system, got {part.get('from')!r:.60}")
    if not said:
        return None
    return Row(Prompt(text=said[0][1]), line=line, later=tuple(said[1:]))
