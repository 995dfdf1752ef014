"""What the engine is asked for, what it gives back, and one request's state in between."""

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

# Beyond these, logits overflow to what no token can be drawn from.
LEAST_PENALTY, MOST_PENALTY = 0.01, 100.0
MOST_LOGPROBS = 20  # alternatives a token, as OpenAI has it

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen. Temperature 0 is greedy; `seed` None: one from the OS.

    The order is vLLM's: `logit_bias`, what `min_tokens` forbids, penalties, temperature, `min_p`,
    `top_k`, `top_p`. Presence and frequency count the tokens generated, repetition the prompt too.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0  # before them neither an end of sequence nor a stop token is drawn
    top_k: int = 0  # 0: all
    min_p: float = 0.0  # of the likeliest token's probability
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_token_ids: frozenset[int] = frozenset()
    logit_bias: tuple[tuple[int, float], ...] = ()  # token, what is added to its logit
    logprobs: int | None = None  # how many alternatives are told a token; None: nothing is
    # Derived, since it is asked for every token: whether logits are changed before the choice.
    alters_logits: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        alters = (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.min_tokens > 0
            or bool(self.logit_bias)
        )
        object.__setattr__(self, "alters_logits", alters)
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens must be from 0 to max_tokens ({self.max_tokens}), got "
                f"{self.min_tokens}"
            )
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (all) or more, got {self.top_k}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be from 0 to 1, got {self.min_p}")
        if not LEAST_PENALTY <= self.repetition_penalty <= MOST_PENALTY:
            raise ValueError(
                f"repetition_penalty must be from {LEAST_PENALTY} to {MOST_PENALTY:g}, got "
                f"{self.repetition_penalty}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not -MOST_PENALTY <= value <= MOST_PENALTY:
                raise ValueError(
                    f"{name} must be from {-MOST_PENALTY:g} to {MOST_PENALTY:g}, got {value}"
                )
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise ValueError(f"logprobs must be from 0 to {MOST_LOGPROBS}, got {self.logprobs}")

    def check_tokens(self, vocabulary: int) -> None:
        """Raises ValueError for a token id that the model does not have."""
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", [token for token, _ in self.logit_bias]),
        ):
            for token in ids:
                if not 0 <= token < vocabulary:
                    raise ValueError(
                        f"{name} names token {token}, outside the vocabulary of {vocabulary}"
                    )

    def for_choice(self, index: int) -> "SamplingParams":
        """The same for the n-th answer to one prompt; the first is as if asked for alone."""
        if index == 0 or self.seed is None:
            return self
        mixed = hashlib.blake2b(f"{self.seed}/{index}".encode(), digest_size=8).digest()
        return replace(self, seed=int.from_bytes(mixed))


@dataclass(slots=True)
class Phases:
    """When things happened to a request, on time.monotonic(); None until they have."""

    arrived: float
    scheduled: float | None = None  # first time in a batch
    first_token: float | None = None
    last_token: float | None = None
    preemptions: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache when first scheduled


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model itself gave a token, before any penalty or temperature, and the likeliest."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # token and logprob, the likeliest first


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens new since the request's last Output; the end-of-sequence token is not among them."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    error: str | None
    phases: Phases  # the request's own, still written to by the engine until it finishes
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a token where they were asked for


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine: its tokens, and how much of them the KV cache holds."""

    request_id: str
    number: int  # order of arrival: who is served first, and who is preempted last
    tokens: list[int]  # the prompt, then what was generated
    prompt_length: int
    params: SamplingParams
    emit: Callable[[Output], None]
    rng: random.Random
    phases: Phases
    computed: int = 0  # tokens whose keys and values are in the cache
    sound: int = 0  # of these, those that a finite choice of a token has proven free of NaN
    row: int = -1  # of the block tables, while running
    blocks: list[int] = field(default_factory=list)
    kept: int = 0  # blocks from the beginning that the prefix cache knows
    hashes: list[bytes] = field(default_factory=list)  # of its full blocks, as far as asked for
