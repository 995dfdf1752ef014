"""From logits to tokens: greedy, temperature, nucleus, penalties, each row for itself."""

import math
import random
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from prony_server.sampler import NARROW, NOT_A_NUMBER, Sampler, _highest
from prony_server.sequence import Phases, SamplingParams, Sequence

CPU = torch.device("cpu")
torch.set_num_threads(1)  # rows this small only wait for each other


def row(at: int, seed: int = 0, tokens: tuple[int, ...] = (0,), **params: Any) -> Sequence:
    return Sequence(
        str(at),
        at,
        list(tokens),
        1,
        SamplingParams(10, **params),
        print,
        random.Random(seed),
        Phases(0.0),
        row=at,
    )


def draw(logits: list[float], count: int, **params: Any) -> Counter[int]:
    """`count` draws, each by a row with its own seed."""
    rows = [row(at, seed=at, **params) for at in range(count)]
    sampler = Sampler(count, CPU)
    return Counter(sampler.sample(torch.tensor([logits] * count), rows).tokens)


def test_temperature_0_takes_the_largest_and_draws_no_number() -> None:
    greedy = row(0, temperature=0.0)
    before = greedy.rng.getstate()
    assert Sampler(1, CPU).sample(torch.tensor([[0.1, 3.0, 2.0]]), [greedy]).tokens == [1]
    assert greedy.rng.getstate() == before


def test_a_draw_takes_one_number_from_its_own_generator() -> None:
    rows = [row(0, seed=5), row(1, seed=6, top_p=0.5)]
    expected = [random.Random(5), random.Random(6)]
    Sampler(2, CPU).sample(torch.randn(2, 50), rows)
    for each, other in zip(rows, expected, strict=True):
        other.random()
        assert each.rng.getstate() == other.getstate()


def test_draws_follow_the_softmax_at_the_temperature() -> None:
    counts = draw([math.log(4.0), math.log(2.0), math.log(1.0)], 4000, temperature=0.5)
    # Temperature 1/2 squares the odds 4 : 2 : 1.
    for token, weight in enumerate((16 / 21, 4 / 21, 1 / 21)):
        assert counts[token] / 4000 == pytest.approx(weight, abs=0.03)


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    logits = [math.log(p) for p in (0.1, 0.4, 0.05, 0.3, 0.15)]
    assert set(draw(logits, 300, top_p=0.4)) == {1}
    assert set(draw(logits, 300, top_p=0.41)) == {1, 3}
    assert set(draw(logits, 300, top_p=0.8)) == {1, 3, 4}
    assert set(draw(logits, 300)) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_nuclei_of_a_large_vocabulary_are_transformers_nuclei(top_p: float) -> None:
    torch.manual_seed(0)
    # Peaked and flat rows: some nuclei are wider than what is looked at first, some are not.
    logits = torch.randn(64, 5 * NARROW) * torch.linspace(0.5, 8.0, 64)[:, None]
    warp = TopPLogitsWarper(top_p)
    kept = warp(torch.zeros(64, 1, dtype=torch.long), logits.clone()).isfinite()
    widths = kept.sum(dim=1)
    assert (widths > NARROW).any() or top_p == 0.3
    assert (widths < NARROW).any()
    for seed in range(20):
        rows = [row(at, seed=64 * seed + at, top_p=top_p) for at in range(64)]
        tokens = Sampler(64, CPU).sample(logits.clone(), rows).tokens
        assert kept[torch.arange(64), tokens].all()


def test_a_token_of_probability_0_is_never_drawn_even_by_a_number_next_to_1() -> None:
    class NearlyOne(random.Random):
        def random(self) -> float:
            return 1 - 2**-53

    logits = torch.full((2, 100), -math.inf)
    logits[:, 3] = 0.0
    rows = [row(0), row(1, top_p=0.9)]
    for each in rows:
        each.rng = NearlyOne()
    assert Sampler(2, CPU).sample(logits, rows).tokens == [3, 3]


def test_a_row_is_the_same_alone_and_among_others() -> None:
    torch.manual_seed(0)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"top_p": 0.9},
        {"top_p": 0.2, "repetition_penalty": 1.5},
        {"temperature": 0.0, "repetition_penalty": 2.0},
        {"temperature": 100.0, "top_p": 0.99},
        {"top_k": 3, "presence_penalty": 1.0},
        {"top_k": 2000, "min_p": 0.0001, "frequency_penalty": -0.5},
        {"min_p": 0.05, "min_tokens": 5, "logit_bias": ((7, 4.0), (3, -100.0))},
        {"temperature": 0.0, "logprobs": 3},
        {"logprobs": 0, "top_p": 0.5},
    ]
    logits = torch.randn(len(kinds), 3000) * 3
    size = len(kinds)
    together = [row(at, seed=at, tokens=(1, 2, at), **kind) for at, kind in enumerate(kinds)]
    chosen = Sampler(size, CPU, frozenset({9})).sample(logits.clone(), together)
    assert chosen.logprobs is not None
    for at, kind in enumerate(kinds):
        alone = [row(at, seed=at, tokens=(1, 2, at), **kind)]
        single = Sampler(size, CPU, frozenset({9})).sample(logits[at : at + 1].clone(), alone)
        assert single.tokens == [chosen.tokens[at]]
        if "logprobs" in kind:
            assert single.logprobs == [chosen.logprobs[at]]
        else:
            assert chosen.logprobs[at] is None


def test_a_penalty_forgets_the_sequence_that_had_the_row_before() -> None:
    sampler = Sampler(1, CPU)
    logits = [[4.0, 3.0, -1.0]]
    first = row(0, tokens=(0, 0), temperature=0.0, repetition_penalty=2.0)
    assert sampler.sample(torch.tensor(logits), [first]).tokens == [1]
    first.tokens.append(1)
    assert sampler.sample(torch.tensor(logits), [first]).tokens == [0]  # 2.0, 1.5, -1.0
    second = row(0, tokens=(1,), temperature=0.0, repetition_penalty=2.0)
    assert sampler.sample(torch.tensor(logits), [second]).tokens == [0]
    third = row(0, tokens=(2,), temperature=0.0, repetition_penalty=2.0)
    assert sampler.sample(torch.tensor([[-1.5, -2.0, -1.0]]), [third]).tokens == [0]


@pytest.mark.parametrize(
    ("params", "warpers"),
    [
        ({"top_k": 7}, [TopKLogitsWarper(7)]),
        ({"top_k": 3000}, [TopKLogitsWarper(3000)]),  # more than is looked at first
        ({"min_p": 0.02}, [MinPLogitsWarper(0.02)]),
        ({"min_p": 0.001}, [MinPLogitsWarper(0.001)]),
        ({"top_k": 50, "top_p": 0.8}, [TopKLogitsWarper(50), TopPLogitsWarper(0.8)]),
        ({"min_p": 0.01, "top_p": 0.6}, [MinPLogitsWarper(0.01), TopPLogitsWarper(0.6)]),
    ],
)
def test_what_top_k_min_p_and_top_p_leave_is_what_transformers_leave(
    params: dict[str, Any], warpers: list[Any]
) -> None:
    torch.manual_seed(1)
    logits = torch.randn(32, 4 * NARROW) * torch.linspace(0.5, 6.0, 32)[:, None]
    kept = logits.clone()
    for warp in warpers:
        kept = warp(torch.zeros(32, 1, dtype=torch.long), kept)
    drawn: set[tuple[int, int]] = set()
    for seed in range(15):
        rows = [row(at, seed=32 * seed + at, **params) for at in range(32)]
        tokens = Sampler(32, CPU).sample(logits.clone(), rows).tokens
        assert kept.isfinite()[torch.arange(32), tokens].all()
        drawn |= set(enumerate(tokens))
    assert len(drawn) > 40  # it is not greedy


def test_top_k_1_is_greedy_and_top_k_over_the_vocabulary_is_no_limit() -> None:
    logits = [0.0, 0.1, 0.2]
    assert set(draw(logits, 50, top_k=1)) == {2}
    assert set(draw(logits, 200, top_k=99)) == {0, 1, 2}


def test_presence_and_frequency_count_generated_tokens_and_repetition_the_prompt_too() -> None:
    logits = torch.tensor([[2.0, 2.0, 2.0, 2.0]])
    sampler = Sampler(1, CPU)

    def lowered(**penalty: Any) -> list[float]:
        """What is taken from each logit of a prompt 0 and an answer 1 2 2."""
        changed = logits.clone()
        each = row(0, tokens=(0, 1, 2, 2), temperature=0.0, **penalty)
        sampler.sample(changed, [each])
        return (logits - changed)[0].tolist()

    assert lowered(presence_penalty=0.5) == [0.0, 0.5, 0.5, 0.0]
    assert lowered(frequency_penalty=0.5) == [0.0, 0.5, 1.0, 0.0]
    assert lowered(repetition_penalty=2.0) == [1.0, 1.0, 1.0, 0.0]
    assert lowered(frequency_penalty=-1.0, presence_penalty=1.0) == [0.0, 0.0, -1.0, 0.0]


def test_before_min_tokens_neither_an_end_nor_a_stop_token_is_chosen() -> None:
    logits = [[5.0, 4.0, 3.0]]
    sampler = Sampler(1, CPU, eos_ids=frozenset({0}))
    params = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": frozenset({1})}

    def next_token(tokens: tuple[int, ...], **more: Any) -> int:
        return sampler.sample(torch.tensor(logits), [row(0, 0, tokens, **params, **more)]).tokens[0]

    assert next_token((7, 7)) == 2  # one generated
    assert next_token((7, 7, 7)) == 0
    assert next_token((7, 7), ignore_eos=True) == 0  # then it is a token like others


def test_a_bias_is_added_before_the_choice() -> None:
    biased = row(0, temperature=0.0, logit_bias=((2, 5.0), (1, -100.0)))
    assert Sampler(1, CPU).sample(torch.tensor([[1.0, 9.0, 0.0]]), [biased]).tokens == [2]


def test_logprobs_are_the_models_own_and_the_likeliest_come_first() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 500)
    expected = logits.log_softmax(dim=-1)
    rows = [
        row(0, logprobs=2, temperature=0.3, presence_penalty=1.0, logit_bias=((5, 50.0),)),
        row(1),
        row(2, logprobs=0),
    ]
    chosen = Sampler(3, CPU).sample(logits.clone(), rows)
    assert chosen.logprobs is not None
    first, none, last = chosen.logprobs
    assert first is not None and last is not None and none is None
    assert chosen.tokens[0] == 5
    assert first.logprob == pytest.approx(expected[0, 5].item())
    best = expected[0].topk(2)
    assert [token for token, _ in first.top] == best.indices.tolist()
    assert [logprob for _, logprob in first.top] == pytest.approx(best.values.tolist())
    assert last.logprob == pytest.approx(expected[2, chosen.tokens[2]].item()) and last.top == ()


def test_more_alternatives_than_the_vocabulary_has_are_all_of_it() -> None:
    chosen = Sampler(1, CPU).sample(torch.zeros(1, 4), [row(0, logprobs=20)])
    assert chosen.logprobs is not None and chosen.logprobs[0] is not None
    assert len(chosen.logprobs[0].top) == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_without_finite_logits_is_marked_and_the_others_are_not(bad: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 2000)
    logits[1, 7] = logits[2, 7] = bad
    rows = [row(0), row(1, temperature=0.0), row(2, top_p=0.5), row(3, top_p=0.5)]
    tokens = Sampler(4, CPU).sample(logits, rows).tokens
    assert [token == NOT_A_NUMBER for token in tokens] == [False, True, True, False]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"temperature": -0.1}, "temperature must be 0 or more, got -0.1"),
        ({"temperature": math.nan}, "temperature must be 0 or more, got nan"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be from 0.01 to 100, got 0.0"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty must be from 0.01 to 100"),
        ({"top_k": -1}, r"top_k must be 0 \(all\) or more, got -1"),
        ({"min_p": 1.5}, "min_p must be from 0 to 1, got 1.5"),
        ({"min_p": math.nan}, "min_p must be from 0 to 1, got nan"),
        ({"min_tokens": 2}, r"min_tokens must be from 0 to max_tokens \(1\), got 2"),
        ({"presence_penalty": math.inf}, "presence_penalty must be from -100 to 100, got inf"),
        ({"frequency_penalty": math.nan}, "frequency_penalty must be from -100 to 100, got nan"),
        ({"logprobs": 21}, "logprobs must be from 0 to 20, got 21"),
        ({"repetition_penalty": math.nan}, "repetition_penalty must be from 0.01 to 100"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(
    params: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**{"max_tokens": 1, **params})  # type: ignore[arg-type]


def test_tokens_that_the_model_does_not_have_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="logit_bias names token 260, outside the vocabulary"):
        SamplingParams(1, logit_bias=((260, 1.0),)).check_tokens(260)
    with pytest.raises(ValueError, match="stop_token_ids names token 300"):
        SamplingParams(1, stop_token_ids=frozenset({300})).check_tokens(260)


def test_each_choice_of_several_has_its_own_seed_and_the_first_has_the_one_given() -> None:
    params = SamplingParams(1, seed=7)
    seeds = [params.for_choice(index).seed for index in range(100)]
    assert seeds[0] == 7 and len(set(seeds)) == 100
    assert seeds == [params.for_choice(index).seed for index in range(100)]
    assert SamplingParams(1, seed=8).for_choice(1).seed not in seeds
    assert SamplingParams(1).for_choice(3).seed is None


@pytest.mark.parametrize("vocabulary", [256, 384, 260])
def test_the_highest_logit_is_found_as_max_finds_it(vocabulary: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, vocabulary).round(decimals=1)  # with equals
    logits[3, 200] = float("nan")
    logits[4] = float("-inf")
    logits[5, 7] = float("inf")
    best, at = _highest(logits.clone())
    expected = logits.max(dim=-1)
    assert torch.equal(at, expected.indices)
    assert torch.equal(best.nan_to_num(7.5), expected.values.nan_to_num(7.5))
