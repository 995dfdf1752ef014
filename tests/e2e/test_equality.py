"""Greedy texts over HTTP, 64 at once: each is what model.generate gives for its prompt alone."""

import json
import random
import time
import urllib.request
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from tests.e2e.servers import serving
from tests.needs import smollm2

from prony_loadgen.client import Client, Request
from prony_loadgen.record import RequestRecord
from prony_loadgen.target import parse_target
from prony_server.loading import load

WORDS = ("sun", "rain", "tree", "house", "river", "stone", "green", "seven", "music", "light")
REQUESTS = 64
# Where the reference's two best logits lie closer than this, float32 sums in another order may
# swap them: on SmolLM2 such a first difference counts as equal, on the tiny model none may occur.
TIE = 1e-3


def jobs(longest_prompt: int, longest_output: int) -> list[tuple[str, int]]:
    """Prompts and output lengths, mixed, the same every time; half of the prompts begin alike."""
    rng = random.Random(20)
    beginning = " ".join(rng.choices(WORDS, k=longest_prompt))
    work = []
    for number in range(REQUESTS):
        words = rng.choices(WORDS, k=rng.randint(1, longest_prompt))
        prompt = " ".join([beginning, *words[:5]] if number % 2 else words)
        work.append((prompt, rng.randint(1, longest_output)))
    return work


@pytest.mark.parametrize(
    "limits",
    [
        (),
        ("--num-gpu-blocks-override", "40", "--max-num-batched-tokens", "48"),
        ("--batching", "static", "--max-num-seqs", "8"),
    ],
    ids=["continuous", "tiny-kv-pool", "static"],
)
def test_tiny_texts_equal_generate(limits: tuple[str, ...]) -> None:
    ties, preemptions = differences("tiny", jobs(40, 32), ("--torch-threads", "1", *limits))
    assert ties == 0
    assert preemptions > 0 if "--num-gpu-blocks-override" in limits else preemptions == 0


@pytest.mark.parametrize(
    ("block_size", "blocks", "budget"),
    [("16", None, "64"), ("64", None, None), ("1", "120", None)],
    ids=["in-chunks", "blocks-of-64", "few-blocks-of-1"],
)
def test_smollm2_texts_equal_generate(
    block_size: str, blocks: str | None, budget: str | None
) -> None:
    limits = ["--block-size", block_size]
    if blocks is not None:
        limits += ["--num-gpu-blocks-override", blocks]
    if budget is not None:
        limits += ["--max-num-batched-tokens", budget]
    # Beginnings of 66 words, so that blocks of 64 tokens are shared as well.
    ties, preemptions = differences(str(smollm2()), jobs(66, 10), limits)
    print(f"SmolLM2, {limits}: {ties} ties of {REQUESTS}, {preemptions} preemptions")
    assert ties <= REQUESTS // 10
    assert (preemptions > 0) == (blocks is not None)


def differences(model: str, work: list[tuple[str, int]], limits: Sequence[str]) -> tuple[int, int]:
    """How many texts differ by a tie alone, and how often the server preempted; else it fails."""
    with serving(model, "--served-model-name", "m", *limits) as url:
        records = at_once(url, work)
        preemptions = metric(url, "prony_preemptions_total")
        assert metric(url, "prony_prefix_cache_hits_total") > 0
    ties = 0
    for (prompt, tokens), record in zip(work, records, strict=True):
        assert record.ok and record.text is not None, record.error
        assert record.output_tokens == tokens
        ties += not agrees(model, prompt, tokens, record.text)
    return ties, preemptions


def at_once(url: str, work: list[tuple[str, int]]) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    client = Client(parse_target(url), origin=time.monotonic(), on_record=records.append)
    client.start()
    for number, (prompt, tokens) in enumerate(work):
        body: dict[str, Any] = {"model": "m", "prompt": prompt, "max_tokens": tokens}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True}
        body |= {"stream_options": {"include_usage": True}}
        client.submit(
            Request(
                id=str(number),
                cls="equality",
                dialect="openai-completions",
                body=json.dumps(body).encode(),
                intended=time.monotonic(),
                trace_id=f"{number + 1:032x}",
                span_id=f"{number + 1:016x}",
                keep_text=True,
            )
        )
    client.close(240.0)
    return sorted(records, key=lambda record: int(record.id))


@cache
def loaded(model: str) -> Any:
    return load(model, "cpu")


@cache
def reference(model: str, prompt: str, tokens: int) -> tuple[list[int], list[float]]:
    """What generate gives for the prompt alone, and how far ahead each token was of the next."""
    ids = torch.tensor([loaded(model).tokenizer.encode(prompt)])
    with torch.inference_mode():
        out = loaded(model).model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    leads = []
    for logits in out.logits:
        best, second = logits[0].topk(2).values.tolist()
        leads.append(best - second)
    return out.sequences[0, ids.shape[1] :].tolist(), leads


def agrees(model: str, prompt: str, tokens: int, text: str) -> bool:
    """Whether the text is the reference's; False for a tie, and a failure for anything else."""
    ids, leads = reference(model, prompt, tokens)

    def decoded(n: int) -> str:
        decode = loaded(model).tokenizer.decode
        return str(decode(ids[:n], skip_special_tokens=True)).rstrip("\ufffd")

    if decoded(tokens) == text.rstrip("\ufffd"):
        return True
    same = max(n for n in range(tokens) if text.startswith(decoded(n)))
    assert leads[same] <= TIE, f"{prompt!r} differs at token {same}: {text!r}"
    return False


def metric(url: str, name: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(name)))
