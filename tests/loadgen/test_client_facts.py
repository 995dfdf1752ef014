"""What a request carries for the client, and what a run says of it: lag, loads, patience."""

import dataclasses

import pytest
from tests.slo.runs import many, run_of

from prony_loadgen.dispatch import Form, prompt_words
from prony_loadgen.prompt import Prompt
from prony_loadgen.summary import summarise


def form(**changes: object) -> Form:
    facts = {
        "dialect": "openai-chat",
        "model": "m",
        "ignore_eos": True,
        "extra_body": {},
        "keep_text": False,
    }
    return Form(**{**facts, **changes})  # type: ignore[arg-type]


def patience(share: float, seed: int = 7, tokens: int | None = 20) -> list[int | None]:
    made = form(cancel_share=share, seed=seed)
    ask = [
        made.request(Prompt(text="hi"), id=f"{n:06}", cls="c", intended=0.0, max_tokens=tokens)
        for n in range(2000)
    ]
    return [request.hang_up_after for request in ask]


def test_a_share_of_users_hangs_up_within_their_answer_and_the_seed_says_who() -> None:
    drawn = patience(0.1)
    leaving = [after for after in drawn if after is not None]
    assert 150 < len(leaving) < 250
    assert min(leaving) >= 1 and max(leaving) <= 19
    assert drawn == patience(0.1)
    assert drawn != patience(0.1, seed=8)
    assert patience(0.0) == [None] * 2000
    assert None not in patience(1.0, tokens=None)
    assert set(patience(1.0, tokens=1)) == {1}


def test_fields_that_the_target_refuses_are_left_out_of_every_body() -> None:
    made = form(left_out=("ignore_eos", "stream_options"))
    body = made.request(Prompt(text="hi"), id="1", cls="c", intended=0.0, max_tokens=5).body
    assert b"ignore_eos" not in body and b"stream_options" not in body
    assert b'"max_tokens":5' in body


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (Prompt(text="one two  three\n"), 3),
        (Prompt(messages=({"role": "user", "content": "a b"}, {"content": "c"})), 3),
        (Prompt(messages=({"role": "user", "content": [{"type": "image_url"}]},)), None),
    ],
)
def test_the_words_of_a_prompt_are_counted_where_it_is_only_text(
    prompt: Prompt, words: int | None
) -> None:
    assert prompt_words(prompt) == words


def test_a_summary_tells_the_clients_lag_and_how_many_times_were_not_the_kernels() -> None:
    lags = [0.001, 0.002, 0.003, None]
    records = [
        dataclasses.replace(record, client_lag=lag)
        for record, lag in zip(many(4, ttft=0.1, tokens=2), lags, strict=True)
    ]
    told = summarise(run_of(records))["client_lag"]
    assert (told["p50"], told["max"], told["n"]) == (0.002, 0.003, 3)
    assert told["without_kernel_times"] == 1


def test_a_summary_counts_the_model_loads_that_are_out_of_its_ttft() -> None:
    warm, cold = many(2, ttft=3.0, tokens=2)
    cold = dataclasses.replace(cold, server_times={"load": 2.5})
    summary = summarise(run_of([warm, cold]))
    assert summary["model_loads"] == {"requests": 1, "longest_s": 2.5}
    assert summary["ttft"]["ok"]["min"] == pytest.approx(0.5)
    assert summary["ttft"]["ok"]["max"] == pytest.approx(3.0)
