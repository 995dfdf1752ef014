"""What to ask: a scenario in, an endless stream of requests without a time out.

First their outlines (class and lengths, which is all that a plan needs), then their words. Both are
a function of the seed alone: the same for any timing, target, or number of users and workers, of
which each takes every k-th.

A made prompt of N tokens is made of short common words; how many of them is TokenCount's to say.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path

from prony_loadgen.lengths import Lengths
from prony_loadgen.prompt import Prompt
from prony_loadgen.prompt_file import TEXTS_ONLY, Row, read_prompts
from prony_loadgen.quality import Expect
from prony_loadgen.scenario import Prompts, RequestClass, Scenario
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.token_count import BY_WORDS, TokenCount, by_tokenizer
from prony_loadgen.traces import BLOCK_TOKENS, Trace, TraceRow, TraceSpec, read_trace
from prony_loadgen.vocabulary import WORDS

_TAG_WORDS = 4
# Of texts that several prompts start with; a trace has many that come once.
_KEPT_TEXTS = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """A later request of a conversation."""

    text: str  # what the user says next
    think_time: float  # seconds after the answer before
    output_tokens: int
    # What stands in the history for the answer before; None: the answer itself.
    stand_in: str | None
    asked_tokens: int | None  # of the whole prompt, where history and all were made


@dataclass(frozen=True, slots=True)
class Draft:
    """One request before it has a time: what to ask and how much to ask for."""

    prompt: Prompt
    output_tokens: int
    cls: str = ""
    expect: Expect | None = None
    turns: tuple[Turn, ...] = ()  # what the same user asks after it
    forced: bool = False  # the engine is to ignore its end token


@dataclass(frozen=True, slots=True)
class TurnOutline:
    """A later request before it has words."""

    input_tokens: int  # what it adds
    output_tokens: int
    think_time: float


@dataclass(frozen=True, slots=True)
class Outline:
    """One request before it has words."""

    kind: int  # which of the scenario's classes; 0 where a trace says what is asked
    cls: str
    input_tokens: int | None  # None: nobody has counted the file's prompts
    output_tokens: int
    row: Row | None = None
    trace_row: TraceRow | None = None
    trace_turn: int = 0  # how often the trace was sent before
    turns: tuple[TurnOutline, ...] = ()


def drafts(scenario: Scenario, tokens: TokenCount = BY_WORDS) -> Iterator[Draft]:
    """Endless requests in the order they are sent. Raises FileError for a file that is bad.

    `tokens` says what words cost at the target.
    """
    if not scenario.classes:
        return _traced(scenario, tokens)
    writers = _writers(scenario, tokens)
    return (writers[outline.kind].draft(outline) for outline in outlines(scenario, tokens))


def outlines(
    scenario: Scenario, tokens: TokenCount = BY_WORDS, *, too_long: bool = False
) -> Iterator[Outline]:
    """The same without their words; with those that do not fit and are not sent, where `too_long`.

    Raises FileError.
    """
    classes = scenario.classes
    if not classes:
        return _trace_outlines(scenario, trace_of(scenario))
    streams = [
        _class_outlines(scenario, number, kind, tokens, too_long)
        for number, kind in enumerate(classes)
    ]
    if len(streams) == 1:
        return streams[0]
    return _mixed(scenario.seed, classes, streams)


def trace_of(scenario: Scenario) -> Trace:
    """The trace that the scenario replays. Raises FileError."""
    return read_trace(_spec(scenario))


def rows_of(scenario: Scenario, prompts: Prompts) -> tuple[Row, ...]:
    """The rows of a prompts file. Raises FileError."""
    assert prompts.file is not None
    return read_prompts(Path(prompts.file), format=prompts.format, dialect=scenario.dialect)


def fits(outline: Outline, prompts: Prompts | None, tokens: TokenCount) -> bool | None:
    """Whether prompt and answer fit the context; None where nobody knows.

    A file's prompt has at least one token a word: what surely does not fit is known also of it.
    """
    context = (prompts and prompts.context) or tokens.context
    if context is None:
        return None
    asked = outline.input_tokens
    if asked is None and outline.row is not None:
        text = outline.row.prompt.text
        asked = len(text.split()) if text is not None else 0
    most = (asked or 0) + outline.output_tokens
    most += sum(turn.input_tokens + turn.output_tokens for turn in outline.turns)
    return most <= context


# --- outlines --------------------------------------------------------------------------------


def _class_outlines(
    scenario: Scenario, number: int, kind: RequestClass, tokens: TokenCount, too_long: bool
) -> Iterator[Outline]:
    salt = _salt(scenario, kind)
    rows = None if kind.prompts.file is None else rows_of(scenario, kind.prompts)
    _check_dialect(scenario, kind.prompts)
    stream = _outlines(number, kind, rows, scenario.seed, salt)
    if kind.prompts.too_long != "drop" or too_long:
        return stream
    some = rows is None or any(
        fits(Outline(number, kind.name, None, 1, row=row), kind.prompts, tokens) is not False
        for row in rows
    )
    if not some:
        raise FileError([f"{kind.name}: not one of its prompts fits the context"])
    return (each for each in stream if fits(each, kind.prompts, tokens) is not False)


def _outlines(
    number: int, kind: RequestClass, rows: tuple[Row, ...] | None, seed: int, salt: str
) -> Iterator[Outline]:
    outputs = _draws(kind.output.tokens, f"{seed}{salt} output lengths")
    shared = sum(size for size, _ in kind.prompts.prefix.levels) if kind.prompts.prefix else 0
    turns = _turn_outlines(kind, seed, salt)
    if rows is None:
        assert kind.prompts.input_tokens is not None
        inputs = _draws(kind.prompts.input_tokens, f"{seed}{salt} input lengths")
        for length, output in zip(inputs, outputs, strict=True):
            yield Outline(number, kind.name, shared + length, output, turns=next(turns))
    else:
        for row, drawn in zip(cycle(rows), outputs, strict=False):
            output = drawn if row.output_tokens is None else row.output_tokens
            later = next(turns)[: len(row.later)]
            yield Outline(number, kind.name, None, output, row=row, turns=later)


def _turn_outlines(kind: RequestClass, seed: int, salt: str) -> Iterator[tuple[TurnOutline, ...]]:
    if kind.turns is None:
        yield from iter(tuple, None)
        return
    rng = random.Random(f"{seed}{salt} turns")
    lengths = kind.turns.input_tokens or kind.prompts.input_tokens or Lengths(value=1)
    while True:
        later = kind.turns.count.sample(rng) - 1
        yield tuple(
            TurnOutline(
                lengths.sample(rng), kind.output.tokens.sample(rng),
                kind.turns.think_time.sample(rng),
            )
            for _ in range(later)
        )  # fmt: skip


def _draws(lengths: Lengths, seed: str) -> Iterator[int]:
    rng = random.Random(seed)
    return (lengths.sample(rng) for _ in count())


def _mixed(
    seed: int, classes: tuple[RequestClass, ...], streams: list[Iterator[Outline]]
) -> Iterator[Outline]:
    rng = random.Random(f"{seed} mix")
    weights = [kind.weight for kind in classes]
    numbers = range(len(classes))
    while True:
        [chosen] = rng.choices(numbers, weights)
        yield next(streams[chosen])


def _trace_outlines(scenario: Scenario, trace: Trace) -> Iterator[Outline]:
    for turn in count():
        for row in trace.rows:
            yield Outline(
                0, row.cls or scenario.name, row.input_tokens, row.output_tokens,
                trace_row=row, trace_turn=turn,
            )  # fmt: skip


# --- words -----------------------------------------------------------------------------------


class _Writer:
    """Gives the requests of one class their words."""

    def __init__(
        self, scenario: Scenario, kind: RequestClass, tokens: TokenCount, tags: "_Tags"
    ) -> None:
        salt = _salt(scenario, kind)
        self._kind = kind
        self._tokens = tokens
        self._tags = tags
        self._rng = random.Random(f"{scenario.seed}{salt} words")
        self._rng.randrange(len(WORDS) ** _TAG_WORDS)  # which _Tags took of the same stream
        self._turn_rng = random.Random(f"{scenario.seed}{salt} words of later turns")
        self._prefix = (
            None
            if kind.prompts.prefix is None
            else _Tree(kind.prompts, tokens, f"{scenario.seed}{salt} prefix", tags)
        )

    def draft(self, outline: Outline) -> Draft:
        row = outline.row
        if row is not None:
            prompt, expect = row.prompt, row.expect
        else:
            prompt, expect = self._made(outline), None
        turns = self._turns(outline, prompt)
        # A text that is to be the same ends where the model ends it.
        compared = expect is not None and expect.reference is not None
        forced = self._kind.output.mode == "forced" and not compared
        return Draft(prompt, outline.output_tokens, outline.cls, expect, turns, forced)

    def _made(self, outline: Outline) -> Prompt:
        asked = outline.input_tokens
        assert asked is not None
        prefix = "" if self._prefix is None else self._prefix.next()
        own = self._tokens.text(self._rng, asked, start=self._tags.next(), after=prefix)
        if not prefix:
            return Prompt(text=own, asked_tokens=asked)
        assert self._kind.prompts.prefix is not None
        if self._kind.prompts.prefix.system:
            messages = ({"role": "system", "content": prefix}, {"role": "user", "content": own})
            return Prompt(messages=messages, asked_tokens=asked)
        return Prompt(text=f"{prefix} {own}", asked_tokens=asked)

    def _turns(self, outline: Outline, first: Prompt) -> tuple[Turn, ...]:
        if not outline.turns:
            return ()
        assert self._kind.turns is not None
        stands_in = self._kind.turns.history == "asked"
        made: list[Turn] = []
        whole, before = first.asked_tokens, outline.output_tokens
        for number, turn in enumerate(outline.turns):
            if outline.row is not None:
                answered, text = outline.row.later[number]
                stand_in = answered if stands_in else None
                asked = None
            else:
                # A turn's words come on top of a history that has its template already.
                text = self._tokens.piece(self._turn_rng, turn.input_tokens)
                stand_in = self._tokens.piece(self._turn_rng, before) if stands_in else None
                whole = None if whole is None else whole + before + turn.input_tokens
                asked = whole if stands_in else None
            made.append(Turn(text, turn.think_time, turn.output_tokens, stand_in, asked))
            before = turn.output_tokens
        return tuple(made)


class _Tree:
    """Texts that prompts share: which start each request has is drawn from the seed."""

    def __init__(self, prompts: Prompts, tokens: TokenCount, seed: str, tags: "_Tags") -> None:
        assert prompts.prefix is not None
        self._prefix = prompts.prefix
        self._tokens = tokens
        self._seed = seed
        self._tags = tags
        self._rng = random.Random(seed)
        self._texts: dict[tuple[int, ...], str] = {}

    def next(self) -> str:
        path = tuple(self._rng.randrange(branches) for _, branches in self._prefix.levels)
        if self._rng.random() < self._prefix.hit_share:
            return " ".join(self._text(path[: depth + 1]) for depth in range(len(path)))
        # As long, but nobody else's from its first word on.
        size = sum(size for size, _ in self._prefix.levels)
        return self._tokens.piece(self._rng, size, start=self._tags.next())

    def _text(self, path: tuple[int, ...]) -> str:
        if path not in self._texts:
            rng = random.Random(f"{self._seed} {path}")
            size = self._prefix.levels[len(path) - 1][0]
            self._texts[path] = self._tokens.piece(rng, size)
        return self._texts[path]


class _Tags:
    """Words that no other request of the run begins with, nor (by chance) one of another seed.

    Servers keep the prefixes of earlier prompts: two prompts with the same start would make
    the second one cheap by accident. The lowest digit comes first, so neighbours differ at once.
    """

    def __init__(self, seed: int) -> None:
        self._number = random.Random(f"{seed} words").randrange(len(WORDS) ** _TAG_WORDS)

    def next(self) -> list[str]:
        number, self._number = self._number, self._number + 1
        tag = []
        for _ in range(_TAG_WORDS):
            number, digit = divmod(number, len(WORDS))
            tag.append(WORDS[digit])
        return tag


def _writers(scenario: Scenario, tokens: TokenCount) -> list[_Writer]:
    tags = _Tags(scenario.seed)
    return [
        _Writer(scenario, kind, tokens_for(kind.prompts, tokens), tags) for kind in scenario.classes
    ]


def tokens_for(prompts: Prompts, tokens: TokenCount) -> TokenCount:
    """By the tokenizer that the prompts name, else as `tokens` has it. Raises FileError."""
    if prompts.tokenizer is None or prompts.input_tokens is None:
        return tokens
    return by_tokenizer(prompts.tokenizer, tokens)


def _traced(scenario: Scenario, tokens: TokenCount) -> Iterator[Draft]:
    spec, trace = _spec(scenario), trace_of(scenario)
    block = max(1, round(BLOCK_TOKENS * spec.length_scale))
    tags = _Tags(scenario.seed)
    rng = random.Random(f"{scenario.seed} words")
    texts: dict[str, str] = {}
    return (
        Draft(
            _traced_prompt(outline, scenario.seed, block, tokens, tags, rng, texts),
            outline.output_tokens,
            outline.cls,
            forced=scenario.output.mode == "forced",
        )
        for outline in _trace_outlines(scenario, trace)
    )


def _traced_prompt(
    outline: Outline,
    seed: int,
    block: int,
    tokens: TokenCount,
    tags: _Tags,
    rng: random.Random,
    texts: dict[str, str],
) -> Prompt:
    """A prompt of blocks that are the same wherever the trace has the same number."""
    row = outline.trace_row
    assert row is not None and outline.input_tokens is not None
    asked = outline.input_tokens
    if not row.blocks:
        return Prompt(text=tokens.text(rng, asked, start=tags.next()), asked_tokens=asked)
    # The last block is as long as what is left; a trace that is sent again shares nothing.
    whole = min(len(row.blocks) - 1, max(0, tokens.room(asked) // block))
    names = [f"{seed} {outline.trace_turn} block {number}" for number in row.blocks[: whole + 1]]
    before = " ".join(_block(name, block, tokens, texts) for name in names[:-1])
    last = tokens.text(random.Random(names[-1]), asked, after=before)
    return Prompt(text=f"{before} {last}" if before else last, asked_tokens=asked)


def _block(name: str, size: int, tokens: TokenCount, texts: dict[str, str]) -> str:
    text = texts.get(name)
    if text is None:
        if len(texts) >= _KEPT_TEXTS:
            texts.clear()
        text = texts[name] = tokens.piece(random.Random(name), size)
    return text


def _spec(scenario: Scenario) -> TraceSpec:
    assert scenario.arrivals.trace is not None
    return scenario.arrivals.trace


def _salt(scenario: Scenario, kind: RequestClass) -> str:
    return "" if scenario.mix is None else f" {kind.name}"


def _check_dialect(scenario: Scenario, prompts: Prompts) -> None:
    if prompts.prefix is not None and prompts.prefix.system and scenario.dialect in TEXTS_ONLY:
        raise FileError(
            [f"prompts.prefix.system: {scenario.dialect} takes texts, without a system message"]
        )
