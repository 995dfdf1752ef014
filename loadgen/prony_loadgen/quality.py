"""Whether answers still make sense: an answer and what was expected of it in, cheap facts out.

Flags of a record: `truncated` (it was cut before its end), `repetition` (it says the same over and
over), `match` and `mismatch` (against what its prompt's row expects). They are found beside the
load, never in the client's thread.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from prony_loadgen.record import RequestRecord

# The figures that SLO files can bound: the flag of an answer that is bad, and the flags of all
# answers that were looked at (None: all).
FLAGS: Final[Mapping[str, tuple[str, frozenset[str] | None]]] = {
    "truncated_share": ("truncated", None),
    "repetition_share": ("repetition", None),
    # Only a request with a reference can match it.
    "mismatch_share": ("mismatch", frozenset({"match", "mismatch"})),
}
# Those among them that a run can tell, as run.json lists them.
BY_FINISH = ("truncated_share",)
BY_TEXT = tuple(FLAGS)

# Of so many words (letters, where there are few words) that stand one after another, the share
# that stood in the answer before. Plain prose has under 5 %, a loop nearly 100 %.
GRAM_WORDS, GRAM_LETTERS = 4, 12
REPETITIVE = 0.5
FEW_WORDS = 12
LOOKED_AT = 50_000  # letters of an answer: a bound on what one can cost
REPLACEMENT = "\ufffd"  # what stands where bytes were no UTF-8


@dataclass(frozen=True, slots=True)
class Expect:
    """What an answer has to be like: all that is given."""

    reference: str | None = None  # the same text, but for white space
    contains: tuple[str, ...] = ()  # each somewhere in it, in upper or lower case
    pattern: str | None = None  # a regular expression that is found in it

    def met(self, text: str) -> bool:
        if self.reference is not None and _plain(text) != _plain(self.reference):
            return False
        low = text.lower()
        if any(part.lower() not in low for part in self.contains):
            return False
        return self.pattern is None or re.search(self.pattern, text) is not None


def read_expect(row: dict[str, Any]) -> Expect | None:
    """What a row of a prompts file expects; None where it expects nothing. Raises ValueError."""
    reference, contains, pattern = (row.get(key) for key in ("reference", "contains", "pattern"))
    if reference is None and contains is None and pattern is None:
        return None
    parts = [contains] if isinstance(contains, str) else (contains or [])
    for name, told in (("reference", reference), ("pattern", pattern)):
        if told is not None and (not isinstance(told, str) or not told):
            raise ValueError(f"{name} must be a text that is not empty, got {told!r:.60}")
    if not isinstance(parts, list) or not all(isinstance(part, str) and part for part in parts):
        raise ValueError(f"contains must be a text or a list of texts, got {contains!r:.60}")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern is no regular expression: {error}") from None
    return Expect(reference, tuple(parts), pattern)


def inspected(record: RequestRecord, expect: Expect | None, *, natural: bool) -> RequestRecord:
    """The record with the flags and facts of its answer, as far as its text was kept.

    `natural` is whether the model was to end its answer by itself.
    """
    if not record.ok:
        return record
    flags = []
    if _truncated(record, natural):
        flags.append("truncated")
    facts: dict[str, float] = {}
    text = record.text
    if text is not None:
        facts["repeated"] = round(repeated_share(text), 4)
        if facts["repeated"] > REPETITIVE:
            flags.append("repetition")
        if broken := text.count(REPLACEMENT):
            facts["broken_characters"] = broken
        if expect is not None:
            flags.append("match" if expect.met(text) else "mismatch")
    if not flags and not facts:
        return record
    return replace(record, flags=(*record.flags, *flags), quality=facts or None)


def repeated_share(text: str) -> float:
    """The share of n-grams that the text held before; 0 of a text too short to have any."""
    text = text[:LOOKED_AT]
    words: Sequence[str] = text.split()
    size = GRAM_WORDS
    if len(words) < FEW_WORDS:  # a script without spaces, or a tokenizer of bytes
        words, size = text, GRAM_LETTERS
    grams = len(words) - size + 1
    if grams < size:
        return 0.0
    distinct = len(set(zip(*(words[start : start + grams] for start in range(size)), strict=True)))
    return 1 - distinct / grams


def shares(
    records: Iterable[RequestRecord], checks: Iterable[RequestRecord] = ()
) -> dict[str, Any]:
    """The summary's figures: of answers with output, those with a loss of quality.

    `mismatch_share` is of those that something was expected of, `checks` among them; None where
    there are none.
    """
    records, checks = list(records), list(checks)
    lost = {name: losses(name, records, checks) for name in FLAGS}
    return {
        **{name: sum(found) / len(found) if found else None for name, found in lost.items()},
        "expected_requests": len(lost["mismatch_share"]),
        "broken_text_requests": sum(
            "broken_characters" in (r.quality or {}) for r in records if r.ok and r.arrivals
        ),
    }


def losses(
    figure: str, records: Iterable[RequestRecord], checks: Iterable[RequestRecord] = ()
) -> list[bool]:
    """Of each answer that could show the loss which `figure` (a key of FLAGS) counts: whether."""
    flag, looked_at = FLAGS[figure]
    answered = [r for r in records if r.ok and r.arrivals]
    if figure == "repetition_share":
        answered = [r for r in answered if r.quality is not None]
    elif looked_at is not None:
        answered += [r for r in checks if r.ok and r.arrivals]
        answered = [r for r in answered if not looked_at.isdisjoint(r.flags)]
    return [flag in r.flags for r in answered]


def _truncated(record: RequestRecord, natural: bool) -> bool:
    """Cut by a limit: the one asked for where it was to end by itself, else an earlier one."""
    if record.finish_reason != "length":
        return False
    asked, got = record.asked_output_tokens, record.output_tokens
    return natural or (asked is not None and got is not None and got < asked)


def _plain(text: str) -> str:
    return " ".join(text.split())
