"""Runs requests through a real Engine and, for comparison, one by one through model.generate."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LlamaForCausalLM

from prony_server.engine import Engine, EngineConfig, Stats, Step
from prony_server.generate_engine import GenerateEngine
from prony_server.sequence import Output, Phases, SamplingParams

BYTES = 256
LENGTHS = (1, 2, 15, 16, 17, 40, 100)
# Of a model's config: what a family of transformers needs to be small.
SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 255,
    "pad_token_id": 0,
}


@dataclass
class Result:
    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    error: str | None = None
    phases: Phases | None = None


class Receiver:
    """Collects what the engine emits, request by request."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self._changed = threading.Condition()

    def emit_for(self, request_id: str) -> Callable[[Output], None]:
        self.results[request_id] = Result()

        def emit(output: Output) -> None:
            with self._changed:
                result = self.results[request_id]
                assert result.reason is None, "an output after the last"
                result.tokens += output.token_ids
                result.reason, result.error = output.finish_reason, output.error
                result.phases = output.phases
                self._changed.notify_all()

        return emit

    def wait(self, until: Callable[[], bool] | None = None) -> None:
        """Until all have ended, or until a condition of one's own holds."""
        with self._changed:
            ended = self._changed.wait_for(until or self._all_ended, timeout=60)
        assert ended, self.results

    def _all_ended(self) -> bool:
        return all(result.reason is not None for result in self.results.values())


@dataclass(frozen=True)
class Run:
    results: list[Result]
    steps: list[Step]
    stats: Stats  # at the end

    @property
    def tokens(self) -> list[list[int]]:
        return [result.tokens for result in self.results]

    @property
    def preemptions(self) -> int:
        return sum(step.preemptions for step in self.steps)


def run(
    model: Any,
    requests: Sequence[tuple[list[int], SamplingParams]],
    eos_ids: frozenset[int] = frozenset(),
    **config: Any,
) -> Run:
    """All at once; afterwards the engine must have ended well with every block free."""
    steps: list[Step] = []
    kind = GenerateEngine if config.get("batching") == "generate" else Engine
    engine = kind(model, eos_ids, EngineConfig(**config), steps.append)
    receiver = Receiver()
    for at, (prompt, params) in enumerate(requests):
        engine.submit(str(at), prompt, params, receiver.emit_for(str(at)))
    engine.start()
    receiver.wait()
    engine.stop(drain=0.0)
    assert engine.failed is None
    stats = engine.stats()
    assert (stats.blocks_used, stats.running, stats.waiting) == (0, 0, 0)
    return Run(list(receiver.results.values()), steps, stats)


def mixed_prompts(count: int, seed: int = 1, vocabulary: int = BYTES) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocabulary) for _ in range(rng.choice(LENGTHS))] for _ in range(count)]


def greedy(tokens: int, **params: Any) -> SamplingParams:
    return SamplingParams(tokens, temperature=0.0, ignore_eos=True, **params)


@torch.inference_mode()
def generated(model: Any, prompt: list[int], tokens: int, **options: Any) -> list[int]:
    """What the model says to a prompt alone, by transformers' own loop."""
    ids = torch.tensor([prompt])
    # The mask is named: else a prompt that holds the padding token would be read with holes.
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    said: list[int] = out[0, len(prompt) :].tolist()
    return said


def like(cls: type[LlamaForCausalLM], model: Any) -> Any:
    """The same model as an instance of a subclass, whose forward does something else at times."""
    other: Any = cls(model.config)
    other.load_state_dict(model.state_dict())
    return other.eval()
