"""What words cost at a target: a few short requests go out, the TokenCount of its count comes out.

Their usage.prompt_tokens is taken apart into what the template adds, what a word costs and what a
letter adds: a tokenizer of bytes counts letters, a common one words.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prony_loadgen.dialects import DIALECTS
from prony_loadgen.probe import PROBE_TOKENS, ask
from prony_loadgen.prompt import Prompt
from prony_loadgen.scenario import Scenario
from prony_loadgen.target import Target
from prony_loadgen.token_count import TokenCount
from prony_loadgen.vocabulary import WORDS

# (words, letters of each): far enough apart for three unknowns, short enough for any context.
PROBES = ((4, 3), (36, 3), (36, 5), (20, 4))
_NO_LETTERS = 0.05  # tokens a letter; less is the noise of words that are two tokens


def tokens_at(scenario: Scenario, target: Target, model: str) -> TokenCount:
    """What the scenario's made prompts cost at the target, and how long they may be."""
    made = [k.prompts for k in scenario.classes if k.prompts.input_tokens is not None]
    wanted = any(prompts.calibrate for prompts in made) or not scenario.classes
    if not wanted:
        return TokenCount(context=target.context)
    found = ask_for_counts(target, scenario.dialect, model, scenario.extra_body)
    return replace(found, context=target.context)


def ask_for_counts(
    target: Target, dialect_name: str, model: str, extra: Mapping[str, Any]
) -> TokenCount:
    """What a prompt costs by the server's own count, else by words, with the reason why."""
    dialect = DIALECTS[dialect_name]
    # From the system: what an earlier run asked must not be in a cache, which some do not count.
    rng = random.SystemRandom()
    probed: list[tuple[str, int]] = []
    for words, letters in PROBES:
        text = " ".join(rng.choices([word for word in WORDS if len(word) == letters], k=words))
        body = dialect.body(
            Prompt(text=text),
            model=model,
            max_tokens=PROBE_TOKENS,
            ignore_eos=False,
            extra=extra,
        )
        record = ask(target, dialect, target.fitted(body))
        if record.prompt_tokens is None:
            why = "the server tells no prompt_tokens" if record.ok else record.error
            return TokenCount(facts={"why": why})
        probed.append((text, record.prompt_tokens))
    return fit(probed)


def fit(probed: Sequence[tuple[str, int]]) -> TokenCount:
    """The costs that explain what was counted for texts of our words."""
    rows = [(1.0, len(text.split()), len(text.replace(" ", ""))) for text, _ in probed]
    matrix, wanted = np.array(rows), np.array([counted for _, counted in probed], dtype=float)
    (base, per_word, per_letter), *_ = np.linalg.lstsq(matrix, wanted, rcond=None)
    if abs(per_letter) < _NO_LETTERS:
        (base, per_word), *_ = np.linalg.lstsq(matrix[:, :2], wanted, rcond=None)
        per_letter = 0.0
    miss = float(np.abs(matrix @ np.array([base, per_word, per_letter]) - wanted).max())
    facts: dict[str, Any] = {"probes": len(rows), "largest_miss": round(miss, 2)}
    costs = {word: float(per_word + per_letter * len(word)) for word in WORDS}
    if min(costs.values()) < 0.2:
        counted = ", ".join(str(counted) for _, counted in probed)
        why = f"the server's prompt_tokens ({counted}) do not grow with the prompt"
        return TokenCount(facts={**facts, "why": why})
    return TokenCount(float(base), costs, "server", probed=tuple(probed), facts=facts)
