"""What to ask: a scenario in, an endless stream of prompts with their output lengths out.

A made prompt of N tokens is N short common words, since common tokenizers keep such a word in
one token; a byte-level tokenizer counts about four for each. No tokenizer is needed, and what
the server counted (usage.prompt_tokens) is kept in every record beside what was asked.

The stream is a function of the seed alone: the same for any timing, target or number of users.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

from prony_loadgen.prompt import Prompt
from prony_loadgen.scenario import Scenario
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.vocabulary import WORDS

_TAG_WORDS = 4
_SHOWN_ROWS = 20


@dataclass(frozen=True, slots=True)
class Draft:
    """One request before it has a time: what to ask and how much to ask for."""

    prompt: Prompt
    output_tokens: int


def drafts(scenario: Scenario) -> Iterator[Draft]:
    """Endless prompts in the order they are sent. Raises FileError for a bad prompts file."""
    outputs = output_lengths(scenario)
    if scenario.prompts.file is not None:
        return _from_file(prompt_rows(scenario), outputs)
    return _made(scenario.seed, input_lengths(scenario), outputs)


def input_lengths(scenario: Scenario) -> Iterator[int]:
    """The lengths of the made prompts, apart from their words, so that a plan is cheap."""
    lengths = scenario.prompts.input_tokens
    assert lengths is not None
    rng = random.Random(f"{scenario.seed} input lengths")
    return (lengths.sample(rng) for _ in count())


def output_lengths(scenario: Scenario) -> Iterator[int]:
    """How many tokens each request asks for, where its prompt's row does not say."""
    rng = random.Random(f"{scenario.seed} output lengths")
    return (scenario.output.tokens.sample(rng) for _ in count())


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a prompts file."""

    prompt: Prompt
    output_tokens: int | None


def prompt_rows(scenario: Scenario) -> list[Row]:
    """The rows of the scenario's prompts file. Raises FileError."""
    assert scenario.prompts.file is not None
    return read_prompts(
        Path(scenario.prompts.file), texts_only=scenario.dialect == "openai-completions"
    )


def read_prompts(path: Path, *, texts_only: bool = False) -> list[Row]:
    """The prompts of a JSONL file. Raises FileError with a line for each bad row.

    A row is {"prompt": text} or {"messages": [...]}, with "output_tokens" if it wants its own.
    Blank lines, a byte order mark and Windows line ends are fine.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise FileError([f"prompts file {path}: {error.strerror}"]) from None
    rows: list[Row] = []
    errors: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _row(line)
            if texts_only and row.prompt.text is None:
                raise ValueError("openai-completions takes texts; use openai-chat for messages")
            rows.append(row)
        except ValueError as error:
            errors.append(f"{path.name}:{number}: {error}")
    if len(errors) > _SHOWN_ROWS:
        more = len(errors) - _SHOWN_ROWS
        errors = [*errors[:_SHOWN_ROWS], f"{path.name}: and {more} more bad rows"]
    if errors:
        raise FileError(errors)
    if not rows:
        raise FileError([f"{path.name}: no prompts in it"])
    return rows


def _made(seed: int, inputs: Iterator[int], outputs: Iterator[int]) -> Iterator[Draft]:
    rng = random.Random(f"{seed} words")
    first = rng.randrange(len(WORDS) ** _TAG_WORDS)
    for number in count():
        length, output = next(inputs), next(outputs)
        tag = _tag(first + number)
        words = tag[:length] + rng.choices(WORDS, k=max(0, length - len(tag)))
        text = " ".join(words)
        yield Draft(Prompt(text=text, messages=None, asked_tokens=length), output)


def _tag(number: int) -> list[str]:
    """Words that no other request of the run begins with, nor (by chance) one of another seed.

    Servers keep the prefixes of earlier prompts: two prompts with the same start would make
    the second one cheap by accident. The lowest digit comes first, so neighbours differ at once.
    """
    tag = []
    for _ in range(_TAG_WORDS):
        number, digit = divmod(number, len(WORDS))
        tag.append(WORDS[digit])
    return tag


def _from_file(rows: list[Row], outputs: Iterator[int]) -> Iterator[Draft]:
    for row in cycle(rows):
        drawn = next(outputs)
        yield Draft(row.prompt, drawn if row.output_tokens is None else row.output_tokens)


def _row(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(row, dict):
        raise ValueError(f'must be an object such as {{"prompt": "..."}}, got {row!r:.60}')
    unknown = row.keys() - {"prompt", "messages", "output_tokens"}
    if unknown:
        raise ValueError(
            f"unknown key {sorted(unknown)[0]!r} (valid: prompt, messages, output_tokens)"
        )
    if ("prompt" in row) == ("messages" in row):
        raise ValueError('needs either "prompt" or "messages"')
    output = row.get("output_tokens")
    counted = isinstance(output, int) and not isinstance(output, bool) and output >= 1
    if output is not None and not counted:
        raise ValueError(f"output_tokens must be a whole number above 0, got {output!r}")
    if "prompt" in row:
        return Row(_text_prompt(row["prompt"]), output)
    return Row(_message_prompt(row["messages"]), output)


def _text_prompt(text: Any) -> Prompt:
    if not isinstance(text, str) or not text:
        raise ValueError(f"prompt must be a text that is not empty, got {text!r:.60}")
    return Prompt(text=text, messages=None, asked_tokens=None)


def _message_prompt(messages: Any) -> Prompt:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages must be a list that is not empty, got {messages!r:.60}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f'each message needs a "role", got {message!r:.60}')
    return Prompt(text=None, messages=tuple(messages), asked_tokens=None)
