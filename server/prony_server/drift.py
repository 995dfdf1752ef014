"""Ways to hold one model come in; what each costs and how far its words drift come out.

The before-and-after table of quantisation: weights in memory, decode speed alone and in a batch of
8, and against the model as it was: the mean KL divergence of next-token distributions, and how
often the most likely token is the same, both over a set of prompts and the first model's own greedy
continuations of them. A compiled model differs in decode steps only: of it the tokens said count,
up to and with the first that differs.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from prony_server.calibrate import read_prompts
from prony_server.engine import Engine, Step
from prony_server.limits import EngineConfig
from prony_server.loading import Loaded, Quantization, load
from prony_server.quantize import Bits
from prony_server.sequence import Output, SamplingParams

BATCH, BLOCK = 8, 16  # sequences; tokens of a KV block
TOKENS = 32  # of each continuation
# Everyday text of several kinds; none of it is among the questions that calibration may use.
PROMPTS = (
    "The train to the coast leaves at seven in the morning and arrives shortly before noon. Most",
    "Dear Ms. Keller,\n\nThank you for your letter of 3 March. We have looked into the matter and",
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    if",
    "Water boils at a lower temperature on a mountain than at the sea, because the air pressure",
    "Ingredients: two eggs, 200 g of flour, a pinch of salt, 300 ml of milk.\n\n1. Mix the flour",
    "Q: A shop sells pens at 3 for 2 euros. How much do 12 pens cost?\nA: Twelve pens are four",
    "In 1969 two people walked on the Moon for the first time. The flight had taken four days, and",
    "SELECT name, COUNT(*) FROM orders JOIN customers ON orders.customer_id = customers.id WHERE",
    "The old man sat down on the bench and looked at the river. For a long time he said nothing.",
    "A binary search needs a sorted list. It compares the wanted value with the middle element; if",
    "Breaking news: the city council has voted to close the bridge for repairs until the end of",
    "Once upon a time there was a fox who wanted to learn how to swim. Every evening she went to",
)


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    quantized: Quantization | None = None
    compile: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one way to hold the model; None: does not apply."""

    name: str
    weight_bytes: int
    tokens_per_s: float  # decode, one sequence
    batch_tokens_per_s: float  # decode, BATCH sequences
    kl: float | None  # mean, nats
    agreement: float  # share of greedy tokens


@dataclass(frozen=True, slots=True)
class _Said:
    """What the first model said: its continuations and its log probabilities of every token."""

    texts: list[list[int]]  # prompt and continuation
    logprobs: list[Tensor]


def variants(
    bits: tuple[Bits, ...], group: int, calibrate: Path | None, *, compile: bool
) -> list[Variant]:
    made = []
    for each in bits:
        plain = Quantization(each, group)
        name = each if each == "int8" else f"{each} of {group}"
        made.append(Variant(name, plain))
        if calibrate is not None:
            made.append(Variant(f"{name} calibrated", replace(plain, calibrate=calibrate)))
    if compile:
        made.append(Variant("compiled", compile=True))
    return made


def compare(
    model: str,
    wanted: list[Variant],
    *,
    device: str = "auto",
    dtype: str | None = None,
    prompts: Path | None = None,
    most_prompts: int | None = None,
    torch_threads: int | None = None,
) -> Iterator[Row]:
    """The model as it is, then each variant, loaded one after the other."""
    if torch_threads is not None:
        torch.set_num_threads(torch_threads)
    first = load(model, device, dtype)
    if prompts is None:
        ids = [list(first.tokenizer(text)["input_ids"]) for text in PROMPTS]
    else:
        ids = read_prompts(prompts, first.tokenizer)
    ids = ids[:most_prompts]
    row, said = _first(first, ids)
    del first
    yield row
    for variant in wanted:
        loaded = load(model, device, dtype, variant.quantized)
        if variant.compile:
            yield _compiled(variant.name, loaded, ids, said)
        else:
            yield _quantized(variant.name, loaded, ids, said)
        del loaded


def table(rows: list[Row]) -> str:
    first = rows[0]
    lines = [
        f"{'':24}{'weights MB':>11}{'ratio':>7}{'tok/s':>8}{'ratio':>7}"
        f"{f'tok/s at {BATCH}':>12}{'ratio':>7}{'KL':>9}{'agreement':>11}"
    ]
    for row in rows:
        kl = "-" if row.kl is None else f"{row.kl:.4f}"
        lines.append(
            f"{row.name:24}{row.weight_bytes / 1e6:11.1f}"
            f"{row.weight_bytes / first.weight_bytes:7.2f}"
            f"{row.tokens_per_s:8.1f}{row.tokens_per_s / first.tokens_per_s:7.2f}"
            f"{row.batch_tokens_per_s:12.1f}"
            f"{row.batch_tokens_per_s / first.batch_tokens_per_s:7.2f}"
            f"{kl:>9}{row.agreement:11.1%}"
        )
    return "\n".join(lines)


def _first(loaded: Loaded, prompts: list[list[int]]) -> tuple[Row, _Said]:
    own_attention = loaded.model.config._attn_implementation
    speeds, spoken = _speak(loaded.model, prompts)
    loaded.model.set_attn_implementation(own_attention)
    texts = [prompt + tokens for prompt, tokens in zip(prompts, spoken, strict=True)]
    said = _Said(texts, [_logprobs(loaded.model, text) for text in texts])
    return Row("as it is", weight_bytes(loaded.model), *speeds, 0.0, 1.0), said


def _quantized(name: str, loaded: Loaded, prompts: list[list[int]], said: _Said) -> Row:
    model = loaded.model
    divergence, same, tokens = 0.0, 0, 0
    for prompt, text, theirs in zip(prompts, said.texts, said.logprobs, strict=True):
        mine = _logprobs(model, text)
        divergence += float(kl_div(mine, theirs, reduction="sum", log_target=True))
        # What would follow the prompt, and each token of the continuation but the last.
        greedy = slice(len(prompt) - 1, len(text) - 1)
        same += int((mine[greedy].argmax(dim=-1) == theirs[greedy].argmax(dim=-1)).sum())
        tokens += len(text)
    size = weight_bytes(model)
    speeds, _ = _speak(model, prompts)
    return Row(name, size, *speeds, divergence / tokens, same / (len(prompts) * TOKENS))


def _compiled(name: str, loaded: Loaded, prompts: list[list[int]], said: _Said) -> Row:
    size = weight_bytes(loaded.model)
    speeds, spoken = _speak(loaded.model, prompts, compile=True)
    same = counted = 0
    for prompt, text, tokens in zip(prompts, said.texts, spoken, strict=True):
        for mine, theirs in zip(tokens, text[len(prompt) :], strict=True):
            counted += 1
            if mine != theirs:
                break  # what follows has another past
            same += 1
    return Row(name, size, *speeds, None, same / counted)


def weight_bytes(model: Any) -> int:
    """Of all parameters and buffers; what several layers share counts once."""
    sizes: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_mkldnn:  # in oneDNN's layout, whose storage torch does not show
            sizes[id(tensor)] = tensor.nbytes
        else:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


@torch.inference_mode()
def _logprobs(model: Any, text: list[int]) -> Tensor:
    ids = torch.tensor([text], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


def _speak(
    model: Any, prompts: list[list[int]], *, compile: bool = False
) -> tuple[tuple[float, float], list[list[int]]]:
    """Decode tokens/s of one and of BATCH sequences, and greedy continuations of all prompts."""
    longest = max(map(len, prompts)) + TOKENS
    speeds = {1: 0.0, BATCH: 0.0}
    times: dict[int, list[float]] = {1: [], BATCH: []}

    def on_step(step: Step) -> None:
        if step.prefill_tokens == 0 and step.decode_tokens in times:
            times[step.decode_tokens].append(step.seconds)

    config = EngineConfig(
        max_model_len=longest,
        max_num_seqs=BATCH,
        num_gpu_blocks=BATCH * -(-longest // BLOCK),
        prefix_caching=False,
        decode="compiled" if compile else "auto",
    )
    engine = Engine(model, frozenset(), config, on_step)
    engine.start()
    try:
        _continue(engine, prompts[:1])
        # A whole batch at a time, so that all its steps are of that size.
        padded = prompts + prompts[: -len(prompts) % BATCH]
        spoken = [
            tokens
            for at in range(0, len(padded), BATCH)
            for tokens in _continue(engine, padded[at : at + BATCH])
        ]
    finally:
        engine.stop(drain=0.0)
    for count, mine in times.items():
        # Half of them were faster: what else the machine does must not decide.
        speeds[count] = count / sorted(mine)[len(mine) // 2] if mine else 0.0
    return (speeds[1], speeds[BATCH]), spoken[: len(prompts)]


def _continue(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in prompts]
    wrong: list[str | None] = []
    left, done = len(prompts), threading.Event()

    def emit_into(mine: list[int]) -> Callable[[Output], None]:
        def emit(output: Output) -> None:
            nonlocal left
            mine.extend(output.token_ids)
            if output.finish_reason is not None:
                if output.finish_reason != "length":
                    wrong.append(output.error)
                left -= 1
                if not left:
                    done.set()

        return emit

    params = SamplingParams(TOKENS, temperature=0.0, ignore_eos=True)
    for at, prompt in enumerate(prompts):
        engine.submit(f"{at} at {time.monotonic()}", prompt, params, emit_into(tokens[at]))
    done.wait()
    if wrong:
        raise RuntimeError(f"a continuation ended with {wrong[0]}")
    return tokens
