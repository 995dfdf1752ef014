"""Texts of a wanted number of tokens: what words cost a server in, made texts out.

Without a tokenizer a word costs one token, until the server's own prompt_tokens has shown what it
costs (token_probe.py). With one, every text is counted again as a whole and mended until it is
exact.
"""

import importlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from prony_loadgen.strict_yaml import FileError
from prony_loadgen.vocabulary import WORDS

By = Literal["words", "server", "tokenizer"]

_TRIES = 40
# Costs that differ by less are equal: a fit's noise, not letters that count.
_EQUAL = 0.25


@dataclass(frozen=True)
class TokenCount:
    """What a prompt costs: `base` for what a chat template adds, and so much for each word.

    A word's cost is with the space before it.
    """

    base: float = 0.0
    costs: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(WORDS, 1.0))
    by: By = "words"
    count: Callable[[str], int] | None = None  # a text's tokens, by a tokenizer
    context: int | None = None  # how many a prompt and its answer may have together
    probed: tuple[tuple[str, int], ...] = ()  # texts, and what the server counted for each
    facts: Mapping[str, Any] = field(default_factory=dict)  # how it was found, for run.json

    def to_message(self) -> dict[str, Any]:
        """What a worker needs to make the same texts. Not for one that counts by a tokenizer."""
        plain = ("base", "costs", "by", "context", "probed", "facts")
        return {name: getattr(self, name) for name in plain}

    @classmethod
    def from_message(cls, told: Mapping[str, Any]) -> "TokenCount":
        probed = tuple((text, counted) for text, counted in told["probed"])
        return cls(**{**told, "probed": probed})

    def to_json(self) -> dict[str, Any]:
        """What run.json keeps."""
        return {
            "by": self.by,
            "tokens_a_word": round(self._mean, 4),
            "template_tokens": round(self.base, 2),
            "context": self.context,
            **self.facts,
        }

    def text(
        self, rng: random.Random, tokens: int, *, start: Sequence[str] = (), after: str = ""
    ) -> str:
        """A text that makes a prompt of `tokens` tokens with the text `after` that it comes after.

        It begins with the words `start`, and is at least one word long, also where that is too
        much.
        """
        budget = tokens - self.base - self._cost(after)
        words = self._fill(rng, budget, start)
        if self.count is None:
            return " ".join(words)
        # Tokens may join over a border, so that the whole is not the sum of its words.
        best, best_miss = words, tokens
        for _ in range(_TRIES):
            whole = " ".join([after, *words] if after else words)
            miss = tokens - round(self.base) - self.count(whole)
            if abs(miss) < abs(best_miss):
                best, best_miss = words, miss
            if not miss or (miss < 0 and len(words) == 1):
                break
            budget += miss
            words = self._fill(rng, budget, start)
        return " ".join(best)

    def piece(self, rng: random.Random, tokens: int, *, start: Sequence[str] = ()) -> str:
        """A text of `tokens` tokens to stand before others; `start` as for `text`."""
        return " ".join(self._fill(rng, tokens, start))

    def room(self, tokens: int) -> int:
        """What a prompt of so many tokens leaves beside its template and a last word."""
        return int(tokens - self.base - self._dearest)

    def _fill(self, rng: random.Random, budget: float, start: Sequence[str]) -> list[str]:
        words: list[str] = []
        left = budget
        for word in start:
            if words and left < self._cheapest / 2:
                break
            words.append(word)
            left -= self.costs[word]
        begun = len(words)
        words += rng.choices(WORDS, k=max(0, round(left / self._mean)))
        if self._varied:
            left -= sum(map(self.costs.__getitem__, words[begun:]))
            # Room for the last words, which are chosen by what they cost. Three of four words still
            # tell prompts apart.
            while len(words) > max(1, begun - 1) and round(left) and left < self._dearest:
                left += self.costs[words.pop()]
            while (picked := self._pick(rng, left)) is not None:
                words.append(picked)
                left -= self.costs[picked]
        return words or [rng.choice(WORDS)]

    def _pick(self, rng: random.Random, left: float) -> str | None:
        """A word that brings `left` nearer to 0, and if possible to where another one ends it."""
        if left >= 2 * self._dearest:
            return rng.choice(WORDS)
        last = [word for word in WORDS if abs(self.costs[word] - left) < 0.5]
        before = [word for word in WORDS if left - self.costs[word] >= self._cheapest - 0.5]
        if last or before:
            return rng.choice(last or before)
        return None

    def _cost(self, text: str) -> float:
        if not text:
            return 0.0
        if self.count is not None:
            return float(self.count(text))
        if not self._varied:
            return (text.count(" ") + 1) * self._mean
        return sum(map(self.costs.__getitem__, text.split(" ")))

    @cached_property
    def _mean(self) -> float:
        return sum(self.costs.values()) / len(self.costs)

    @cached_property
    def _cheapest(self) -> float:
        return min(self.costs.values())

    @cached_property
    def _dearest(self) -> float:
        return max(self.costs.values())

    @cached_property
    def _varied(self) -> bool:
        return self._dearest - self._cheapest > _EQUAL


BY_WORDS = TokenCount()  # a word is a token: what is known before anybody asked


def by_tokenizer(path: str, found: TokenCount) -> TokenCount:
    """Counts by the tokenizer in a folder or tokenizer.json, of the package `tokenizers`.

    What the server counted for the probes of `found` tells what its template adds. Raises FileError
    where there is no tokenizer to use.
    """
    count, costs = _tokenizer(path)
    added = sorted(counted - count(text) for text, counted in found.probed)
    base = added[len(added) // 2] if added else 0
    facts: dict[str, Any] = {"tokenizer": Path(path).name}
    if added:
        # More than 0: the server's tokenizer is another one.
        facts["largest_miss"] = max(base - added[0], added[-1] - base)
    return TokenCount(float(base), costs, "tokenizer", count, found.context, facts=facts)


@lru_cache(maxsize=4)
def _tokenizer(path: str) -> tuple[Callable[[str], int], dict[str, float]]:
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise FileError([f"prompts.tokenizer {path}: no tokenizer.json there"])
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        raise FileError(
            ["prompts.tokenizer needs the package tokenizers: pip install tokenizers"]
        ) from None
    try:
        tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # its errors are plain Exceptions
        raise FileError([f"prompts.tokenizer {file}: {error}"]) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    # With the space before it, as nearly all of them stand.
    costs = {word: float(count(f"the {word}") - count("the")) for word in WORDS}
    if min(costs.values()) <= 0:
        raise FileError([f"prompts.tokenizer {file}: makes no tokens of some English words"])
    return count, costs
