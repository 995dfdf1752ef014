"""The baseline: each request through the model's own `generate`, one after the other.

What a script does that has never heard of continuous batching, behind the Engine's interface and
with its sampler, so that the same requests give the same tokens. `generate` calls back for every
token; between two of them requests come and go as they do between two steps of the Engine.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from prony_server.engine import Engine, Step
from prony_server.limits import EngineConfig
from prony_server.runner import Computed, out_of_memory
from prony_server.sampler import Sampler
from prony_server.sequence import Sequence
from prony_server.stages import FORWARD, SAMPLE


class GenerateEngine(Engine):
    """Its scheduler admits one sequence with its whole prompt, and its blocks are only counted."""

    def __init__(
        self,
        model: Any,
        eos_ids: frozenset[int],
        config: EngineConfig,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        own_attention = model.config._attn_implementation
        super().__init__(model, eos_ids, config, on_step)
        model.set_attn_implementation(own_attention)
        # Else what the model's files say of penalties and ends would act beside our sampler.
        config_of_ours: Any = GenerationConfig
        model.generation_config = config_of_ours(do_sample=False, pad_token_id=0)
        self._model = model
        self._sampler = Sampler(1, self._runner.device, eos_ids)

    def _reserve(self, seqs: int, tokens: int, max_model_len: int, *, block_size: int) -> int:
        return 0  # nothing is allocated beforehand that a prompt would then lack

    def _allocate(self) -> None:
        pass

    def _iterate(self) -> None:
        started = time.monotonic()
        batch = self._schedule(started)
        if not batch:
            return
        [sequence] = batch.sequences
        ids = torch.tensor([sequence.tokens], device=self._runner.device)
        computed: Computed | None = None
        bug: Exception | None = None

        def choose(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """Leaves generate's greedy search one token to find: the one that was drawn."""
            nonlocal computed
            now = time.monotonic()
            self._clock.ended(FORWARD, now)
            chosen = self._sampler.sample(scores.clone(), [sequence])
            self._clock.ended(SAMPLE, time.monotonic())
            computed = Computed([sequence], chosen.tokens, chosen.logprobs, now, now)
            token = max(0, chosen.tokens[0])  # one that is not a number ends the request below
            return torch.full_like(scores, -torch.inf).index_fill_(1, ids.new_tensor([token]), 0.0)

        def over(_: torch.Tensor, __: Any, **___: Any) -> torch.Tensor:
            nonlocal bug
            try:
                ended = not between_tokens()
            except Exception as error:  # not of the step: it ends the engine
                bug, ended = error, True
            return ids.new_full((1,), ended, dtype=torch.bool)

        def between_tokens() -> bool:
            """What the Engine does between two steps; whether the request goes on."""
            nonlocal batch, started
            assert computed is not None
            self._settle(batch, computed, started, 0)
            if self._is_live(sequence):
                self._take_in()
            if not self._is_live(sequence):
                return False
            started = time.monotonic()
            batch = self._schedule(started)
            return True

        try:
            with torch.inference_mode():
                self._model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=sequence.params.max_tokens,
                    logits_processor=LogitsProcessorList([choose]),
                    stopping_criteria=StoppingCriteriaList([over]),
                )
        except Exception as error:
            self._out_of_memory += out_of_memory(error)
            if self._is_live(sequence):
                self._settle(batch, error, started, 0)
        if bug is not None:
            raise bug

    def _is_live(self, sequence: Sequence) -> bool:
        return self._live.get(sequence.request_id) is sequence
