"""Whatever the engine does with a request, its tokens are those of the model alone."""

import random
from typing import Any

import pytest
import torch
from tests.server.engine_runs import BYTES, SMALL, Run, generated, greedy, mixed_prompts, run
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from prony_server.sequence import SamplingParams
from prony_server.tiny import tiny_model

torch.set_num_threads(1)

REQUESTS = 64


def prompts_of_which_half_begin_alike() -> list[list[int]]:
    rng = random.Random(5)
    beginnings = [[rng.randrange(BYTES) for _ in range(length)] for length in (100, 100, 70, 40)]
    tails = [[rng.randrange(BYTES) for _ in range(rng.randrange(20))] for _ in range(REQUESTS // 2)]
    alike = [beginnings[at % 4] + tail for at, tail in enumerate(tails)]
    mixed = mixed_prompts(REQUESTS // 2)
    return [prompt for pair in zip(mixed, alike, strict=True) for prompt in pair]


PROMPTS = prompts_of_which_half_begin_alike()
LENGTHS = [4 + at // 2 for at in range(REQUESTS)]
FAMILIES = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL),
    "mistral, window 32": MistralConfig(**SMALL, sliding_window=32),
    "gemma2, softcap and a window in every second layer": Gemma2Config(
        **SMALL, sliding_window=32, query_pre_attn_scalar=16
    ),
    "gemma3, layers with and without a window of 32": Gemma3TextConfig(
        **SMALL,
        sliding_window=32,
        query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "phi3": Phi3Config(**{k: v for k, v in SMALL.items() if k != "head_dim"}),
}


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    model = tiny_model()
    return [generated(model, p, n) for p, n in zip(PROMPTS, LENGTHS, strict=True)]


def run_greedy(requests: int = REQUESTS, **config: Any) -> Run:
    work = list(zip(PROMPTS, LENGTHS, strict=True))[:requests]
    return run(tiny_model(), [(prompt, greedy(tokens)) for prompt, tokens in work], **config)


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_64_mixed_requests_equal_generate(batching: str, expected: list[list[int]]) -> None:
    done = run_greedy(batching=batching)
    assert done.tokens == expected
    assert {result.reason for result in done.results} == {"length"}
    assert done.stats.prefix_queries == sum(map(len, PROMPTS))
    assert done.stats.prefix_hits > 500


@pytest.mark.parametrize("batching", ["none", "generate"])
def test_requests_one_at_a_time_equal_generate(batching: str, expected: list[list[int]]) -> None:
    done = run_greedy(16, batching=batching)
    assert done.tokens == expected[:16]
    assert {step.batch_size for step in done.steps} == {1}


def test_without_the_prefix_cache_they_equal_generate(expected: list[list[int]]) -> None:
    done = run_greedy(prefix_caching=False)
    assert done.tokens == expected
    assert (done.stats.prefix_hits, done.stats.blocks_cached) == (0, 0)


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_prompts_in_chunks_equal_generate(block_size: int, expected: list[list[int]]) -> None:
    done = run_greedy(max_num_batched_tokens=17, block_size=block_size)
    assert done.tokens == expected
    assert max(step.prefill_tokens + step.decode_tokens for step in done.steps) == 17
    assert done.stats.prefix_hits > 500
    cached = [result.phases.cached_tokens for result in done.results if result.phases]
    assert sum(cached) == done.stats.prefix_hits
    assert all(tokens % block_size == 0 for tokens in cached)


@pytest.mark.parametrize(
    ("batching", "block_size", "blocks"),
    [
        ("continuous", 1, 200),
        ("continuous", 16, 13),
        ("continuous", 64, 4),
        ("static", 16, 13),
        ("static", 5, 40),
    ],
)
def test_preempted_requests_equal_generate(
    batching: str, block_size: int, blocks: int, expected: list[list[int]]
) -> None:
    done = run_greedy(
        batching=batching, block_size=block_size, num_gpu_blocks=blocks, max_num_batched_tokens=17
    )
    assert done.tokens == expected
    assert done.preemptions > 0
    preempted = sum(result.phases.preemptions for result in done.results if result.phases)
    assert preempted == done.preemptions


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_generate_in_chunks_and_after_preemption(family: str) -> None:
    torch.manual_seed(0)
    config = FAMILIES[family]
    # Eager: Gemma 2 is right with nothing else, and for the others it is the plainest reference.
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").eval()
    prompts = mixed_prompts(8, seed=2)
    expected = [generated(model, prompt, 24) for prompt in prompts]
    requests = [(prompt, greedy(24)) for prompt in prompts]
    done = run(model, requests, max_num_batched_tokens=17, block_size=4, num_gpu_blocks=36)
    assert done.tokens == expected
    assert done.preemptions > 0


def test_a_repetition_penalty_equals_generate_for_some_requests_of_a_batch() -> None:
    prompts = mixed_prompts(12, seed=3)
    penalties = [1.0, 1.3, 0.8] * 4
    model = tiny_model()
    expected = [
        generated(model, prompt, 30, repetition_penalty=penalty)
        for prompt, penalty in zip(prompts, penalties, strict=True)
    ]
    requests = [
        (prompt, greedy(30, repetition_penalty=penalty))
        for prompt, penalty in zip(prompts, penalties, strict=True)
    ]
    done = run(model, requests, block_size=4, num_gpu_blocks=50, max_num_batched_tokens=17)
    assert done.tokens == expected
    assert done.preemptions > 0


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(
        20, temperature=0.9, top_p=(1.0, 0.7)[seed % 2], repetition_penalty=1.1, seed=seed
    )


def test_a_seeded_request_gives_the_same_text_alone_and_in_any_batch_of_32() -> None:
    prompts = mixed_prompts(32, seed=4)
    requests = [(prompt, sampled(at)) for at, prompt in enumerate(prompts)]
    model = tiny_model()
    alone = run(model, requests, batching="none")
    together = run(model, requests)
    assert {step.batch_size for step in alone.steps} == {1}
    assert max(step.batch_size for step in together.steps) == 32
    # Unfinished chunks, and tokens computed again after a preemption, must draw no number.
    in_chunks = run(model, requests, max_num_batched_tokens=17)
    preempted = run(model, requests, max_num_batched_tokens=17, block_size=4, num_gpu_blocks=40)
    assert preempted.preemptions > 0
    assert together.tokens == in_chunks.tokens == preempted.tokens == alone.tokens
    assert run(tiny_model(), requests[:8], batching="generate").tokens == alone.tokens[:8]
    assert len({tuple(tokens) for tokens in alone.tokens}) == 32


def test_without_a_seed_every_request_differs() -> None:
    requests = [([1, 2, 3], SamplingParams(20, temperature=1.0))] * 4
    assert len({tuple(tokens) for tokens in run(tiny_model(), requests).tokens}) == 4


def test_an_end_of_sequence_stops_a_request_and_is_not_among_its_tokens() -> None:
    prompt = [1, 2, 3]
    said = generated(tiny_model(), prompt, 30)
    end = said[10]
    params = SamplingParams(30, temperature=0.0)
    done = run(tiny_model(), [(prompt, params), (prompt, greedy(30))], eos_ids=frozenset({end}))
    stopped, ignored = done.results
    assert (stopped.tokens, stopped.reason) == (said[: said.index(end)], "stop")
    assert (ignored.tokens, ignored.reason) == (said, "length")
