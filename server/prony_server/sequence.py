"""What the engine is asked for, what it gives back, and one request's state in between."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

# Beyond these, logits overflow to what no token can be drawn from.
LEAST_PENALTY, MOST_PENALTY = 0.01, 100.0

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen. Temperature 0 is greedy; `seed` None: one from the OS."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not LEAST_PENALTY <= self.repetition_penalty <= MOST_PENALTY:
            raise ValueError(
                f"repetition_penalty must be from {LEAST_PENALTY} to {MOST_PENALTY:g}, got "
                f"{self.repetition_penalty}"
            )


@dataclass(slots=True)
class Phases:
    """When things happened to a request, on time.monotonic(); None until they have."""

    arrived: float
    scheduled: float | None = None  # first time in a batch
    first_token: float | None = None
    last_token: float | None = None
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens new since the request's last Output; the end-of-sequence token is not among them."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    error: str | None
    phases: Phases  # the request's own, still written to by the engine until it finishes


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
    row: int = -1  # of the block tables, while running
    blocks: list[int] = field(default_factory=list)
