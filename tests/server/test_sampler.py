"""From logits to tokens: greedy, temperature, nucleus, penalties, each row for itself."""

import math
import random
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import TopPLogitsWarper

from prony_server.sampler import NARROW, NOT_A_NUMBER, Sampler
from prony_server.sequence import Phases, SamplingParams, Sequence

CPU = torch.device("cpu")


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
    return Counter(sampler.sample(torch.tensor([logits] * count), rows).tolist())


def test_temperature_0_takes_the_largest_and_draws_no_number() -> None:
    greedy = row(0, temperature=0.0)
    before = greedy.rng.getstate()
    assert Sampler(1, CPU).sample(torch.tensor([[0.1, 3.0, 2.0]]), [greedy]).tolist() == [1]
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
        tokens = Sampler(64, CPU).sample(logits.clone(), rows)
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
    assert Sampler(2, CPU).sample(logits, rows).tolist() == [3, 3]


def test_a_row_is_the_same_alone_and_among_others() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 3000) * 3
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"top_p": 0.9},
        {"top_p": 0.2, "repetition_penalty": 1.5},
        {"temperature": 0.0, "repetition_penalty": 2.0},
        {"temperature": 100.0, "top_p": 0.99},
    ]
    together = [row(at, seed=at, tokens=(1, 2, at), **kind) for at, kind in enumerate(kinds)]
    tokens = Sampler(6, CPU).sample(logits.clone(), together).tolist()
    for at, kind in enumerate(kinds):
        alone = [row(at, seed=at, tokens=(1, 2, at), **kind)]
        assert Sampler(6, CPU).sample(logits[at : at + 1].clone(), alone).tolist() == [tokens[at]]


def test_a_penalty_forgets_the_sequence_that_had_the_row_before() -> None:
    sampler = Sampler(1, CPU)
    logits = [[4.0, 3.0, -1.0]]
    first = row(0, tokens=(0, 0), temperature=0.0, repetition_penalty=2.0)
    assert sampler.sample(torch.tensor(logits), [first]).tolist() == [1]
    first.tokens.append(1)
    assert sampler.sample(torch.tensor(logits), [first]).tolist() == [0]  # 2.0, 1.5, -1.0
    second = row(0, tokens=(1,), temperature=0.0, repetition_penalty=2.0)
    assert sampler.sample(torch.tensor(logits), [second]).tolist() == [0]
    third = row(0, tokens=(2,), temperature=0.0, repetition_penalty=2.0)
    assert sampler.sample(torch.tensor([[-1.5, -2.0, -1.0]]), [third]).tolist() == [0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_without_finite_logits_is_marked_and_the_others_are_not(bad: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 2000)
    logits[1, 7] = logits[2, 7] = bad
    rows = [row(0), row(1, temperature=0.0), row(2, top_p=0.5), row(3, top_p=0.5)]
    tokens = Sampler(4, CPU).sample(logits, rows).tolist()
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
        ({"repetition_penalty": math.nan}, "repetition_penalty must be from 0.01 to 100"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(
    params: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**{"max_tokens": 1, **params})  # type: ignore[arg-type]
