"""Padded decode steps, as CUDA graphs replay them and compilers take them, say what others say."""

from typing import Any

import pytest
import torch
from tests.needs import needs_program
from tests.server.engine_runs import SMALL, generated, greedy, mixed_prompts, run
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from prony_server.attention import PagedStep
from prony_server.blocks import BlockPool
from prony_server.compiling import CompileRefused, check_compiled
from prony_server.graphs import bucket
from prony_server.limits import EngineConfig
from prony_server.runner import Runner, parts
from prony_server.sequence import SamplingParams
from prony_server.tiny import tiny_model

torch.set_num_threads(1)

ENDLESS = SMALL | {"eos_token_id": None, "pad_token_id": None}

PROMPTS = mixed_prompts(12, seed=9)
LENGTHS = [6 + 3 * at for at in range(12)]


def test_buckets_hold_what_they_are_asked_for_and_waste_less_than_half() -> None:
    sizes = [bucket(wanted, 1000) for wanted in range(1, 500)]
    assert sorted(set(sizes))[:9] == [2, 3, 4, 6, 8, 12, 16, 24, 32]
    for wanted, size in enumerate(sizes, 1):
        assert wanted <= size < max(3, 1.5 * wanted)
    assert bucket(37, 40) == 40
    assert bucket(1, 1) == 1


@pytest.mark.parametrize(
    ("widths", "worth", "cut"),
    [
        ([], 0, []),
        ([5], 0, [(0, 1)]),
        ([4, 4, 4], 0, [(0, 3)]),
        ([9, 2, 2], 13, [(0, 1), (1, 3)]),
        ([9, 2, 2], 14, [(0, 3)]),
        ([9, 9, 5, 5, 1, 1, 1, 1], 7, [(0, 2), (2, 4), (4, 8)]),
    ],
)
def test_sequences_are_padded_together_where_that_costs_little(
    widths: list[int], worth: int, cut: list[tuple[int, int]]
) -> None:
    assert parts(widths, worth) == cut


@pytest.mark.parametrize(
    ("block_size", "blocks"), [(16, None), (1, None), (4, 40)], ids=["16", "1", "preempted"]
)
def test_padded_decodes_equal_generate(block_size: int, blocks: int | None) -> None:
    model = tiny_model()
    expected = [generated(model, p, n) for p, n in zip(PROMPTS, LENGTHS, strict=True)]
    requests = [(p, greedy(n)) for p, n in zip(PROMPTS, LENGTHS, strict=True)]
    done = run(
        model,
        requests,
        decode="padded",
        block_size=block_size,
        num_gpu_blocks=blocks,
        max_num_seqs=9,
    )
    assert done.tokens == expected
    assert (done.preemptions > 0) == (blocks is not None)


def test_padded_decodes_sample_the_same_from_a_seed() -> None:
    params = [SamplingParams(12, temperature=0.9, top_p=0.8, seed=at) for at in range(12)]
    requests = list(zip(PROMPTS, params, strict=True))
    model = tiny_model()
    assert run(model, requests, decode="padded").tokens == run(model, requests).tokens


def test_a_sliding_window_is_kept_in_padded_decodes() -> None:
    torch.manual_seed(0)
    config = MistralConfig(**ENDLESS, sliding_window=8)
    model: Any = MistralForCausalLM(config)
    model.eval()
    expected = [generated(model, prompt, 12) for prompt in PROMPTS]
    assert run(model, [(p, greedy(12)) for p in PROMPTS], decode="padded").tokens == expected


def test_a_compiled_step_that_says_something_else_is_refused() -> None:
    runner = Runner(tiny_model())
    runner.allocate(BlockPool(40, 16, 8, 512), 8, decode="padded")
    padded = runner._padded
    assert padded is not None

    def forward(ids: Tensor, positions: Tensor, step: PagedStep) -> Tensor:
        return runner._forward(ids, positions, step)

    def other(ids: Tensor, positions: Tensor, step: PagedStep) -> Tensor:
        logits = forward(ids, positions, step)
        logits[:, 0] += 1000.0 * (positions[0] == 5)
        return logits

    check_compiled(padded, forward, runner.vocabulary)
    with pytest.raises(CompileRefused, match="changes 8 of 96 greedy tokens"):
        check_compiled(padded, other, runner.vocabulary)


def test_without_a_compiler_compiling_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompileRefused, match=r"--compile needs (a C\+\+ compiler|triton)"):
        run(tiny_model(), [([1, 2], greedy(2))], decode="compiled")


def test_compiled_decodes_equal_generate() -> None:
    needs_program("g++")
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**ENDLESS | {"num_hidden_layers": 1}))
    model.eval()
    prompts = mixed_prompts(6, seed=10)
    expected = [generated(model, prompt, 8) for prompt in prompts]
    done = run(model, [(prompt, greedy(8)) for prompt in prompts], decode="compiled")
    assert done.tokens == expected


def test_an_unknown_way_to_decode_is_refused() -> None:
    with pytest.raises(ValueError, match="decode must be one of auto, eager, padded, graphs, comp"):
        EngineConfig(decode="fast")  # type: ignore[arg-type]
