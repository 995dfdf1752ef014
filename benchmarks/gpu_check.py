"""The engine on a GPU: are its tokens right, and how far is it from what the memory allows?

Makes a Llama of 1B parameters (Llama 3.2 1B's shape) with random weights in bfloat16. Then: greedy
tokens against `model.generate`, in float32 and bfloat16 (a first difference counts as a tie where
the model's own logits of the two tokens are that near); decode steps of 1, 8, 64 and 256 sequences
against the time of reading the weights once at the bandwidth measured here; the same without CUDA
graphs, and with int8 and int4 weights; time to first token of prompts of 2,048 tokens; 64 requests
against transformers' own continuous batching. Parts that fail are told in `failed` and do not stop
the rest; parts for which no time is left, in `skipped`.

    benchmarks/gpu_check.sh [--small] [--seconds S]     (--small: on a CPU, to try the script)
"""

import argparse
import gc
import json
import math
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.at_once import Work, run_at_once
from benchmarks.hf_batching import continuous_batching

from prony_server.engine import Engine, Step
from prony_server.limits import Decode, EngineConfig
from prony_server.quantize import BITS, quantize

# Nearer logits than this share of the largest may change places by rounding.
TIES = {torch.float32: 1e-4, torch.bfloat16: 0.03}


@dataclass(frozen=True)
class Size:
    model: dict[str, int]
    dtype: torch.dtype
    batches: tuple[int, ...]
    prompt: int
    steps: int
    long_prompt: int
    requests: int


LARGE = Size(
    {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 8192,
    },
    torch.bfloat16,
    (1, 8, 64, 256),
    prompt=128,
    steps=64,
    long_prompt=2048,
    requests=64,
)
SMALL = Size(
    {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
    },
    torch.bfloat16,
    (1, 8),
    prompt=16,
    steps=6,
    long_prompt=64,
    requests=4,
)


@dataclass
class Check:
    """The model at hand, what was found so far, and how long there is to find more."""

    size: Size
    device: torch.device
    until: float
    model: Any = None
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        return sum(w.numel() * w.element_size() for w in self.model.parameters())

    def prompt(self, length: int, seed: int) -> list[int]:
        rng = random.Random(seed)
        return [rng.randrange(self.size.model["vocab_size"]) for _ in range(length)]


@dataclass
class Ran:
    tokens: list[list[int]]
    firsts: list[float]  # seconds from the start of all
    seconds: float
    decode_steps: list[float]  # seconds of steps in which all decoded


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--seconds", type=float, default=420.0, help="no new part after so many")
    options = parser.parse_args()
    started = time.monotonic()
    if options.small:
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        raise SystemExit("gpu_check: torch finds no CUDA device; --small tries it on the CPU")
    device = torch.device("cpu" if options.small else "cuda")
    check = Check(SMALL if options.small else LARGE, device, started + options.seconds)
    check.figures |= _facts(device)
    parts: dict[str, Callable[[Check], None]] = {
        "model": _model,
        "bandwidth": _bandwidth,
        "decode": _decode,
        "equality": _equality,
        "ttft": _ttft,
        "transformers": _transformers,
        "eager": _eager,
        "quantized": _quantized,
    }
    failed: dict[str, str] = {}
    skipped: list[str] = []
    for name, part in parts.items():
        if time.monotonic() > check.until:
            skipped.append(name)
            continue
        began = time.monotonic()
        try:
            part(check)
        except Exception as error:  # of one part: what the others find is wanted all the more
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            if name == "model":
                break
        print(f"-- {name}: {time.monotonic() - began:.1f} s {failed.get(name, '')}", flush=True)
        _free()
    check.figures |= {"failed": failed, "skipped": skipped}
    check.figures["seconds"] = time.monotonic() - started
    print(json.dumps(_round(check.figures)))


def _facts(device: torch.device) -> dict[str, Any]:
    import transformers

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "gpu": gpu,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _model(check: Check) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config: Any = LlamaConfig(**check.size.model, tie_word_embeddings=True)  # type: ignore[arg-type]
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    torch.manual_seed(0)
    with torch.device(check.device):
        model: Any = LlamaForCausalLM(config)
    check.model = model.to(check.size.dtype).eval()
    check.figures["parameters"] = sum(weight.numel() for weight in model.parameters())
    check.figures["weight_bytes"] = check.weight_bytes


def _bandwidth(check: Check) -> None:
    """Of a copy much larger than any cache: what is read and what is written."""
    numbers = (2**24 if check.size is SMALL else 2**30,)
    source = torch.zeros(numbers, dtype=torch.float32, device=check.device)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(8):
        _wait(check.device)
        began = time.perf_counter()
        target.copy_(source)
        _wait(check.device)
        best = min(best, time.perf_counter() - began)
    check.figures["bandwidth_gb_s"] = 2 * source.numel() * 4 / best / 1e9
    check.figures["floor_ms"] = check.weight_bytes / check.figures["bandwidth_gb_s"] / 1e6


def _decode(check: Check) -> None:
    check.figures["decode"] = {
        str(batch): _decoding(check, check.model, batch, "auto") for batch in check.size.batches
    }


def _eager(check: Check) -> None:
    """The same without graphs; on a CPU, where there are none, padded as for graphs."""
    decode: Decode = "eager" if check.device.type == "cuda" else "padded"
    check.figures[f"decode_{decode}"] = {
        str(batch): _decoding(check, check.model, batch, decode) for batch in check.size.batches[:2]
    }


def _quantized(check: Check) -> None:
    """Last, since it changes the model."""
    import copy

    check.figures["quantized"] = {}
    for bits in BITS:
        model = copy.deepcopy(check.model)
        report = quantize(model, bits)
        print(f"{bits}: {report}", flush=True)
        check.figures["quantized"][bits] = {
            "way": str(report),
            **{str(b): _decoding(check, model, b, "auto") for b in check.size.batches[:2]},
        }
        del model
        _free()


def _decoding(check: Check, model: Any, batch: int, decode: Decode) -> dict[str, float]:
    size = check.size
    works = [Work(check.prompt(size.prompt, at), size.steps + 4) for at in range(batch)]
    # Another 4 steps a batch of prompts: until the last prompt is in, the first already decode.
    extra = -(-batch * size.prompt // 2048)
    works = [Work(work.prompt, work.output_tokens + extra) for work in works]
    ran = _run(model, works, batch, decode)
    step = statistics.median(ran.decode_steps)
    figures = {"tokens_per_s": batch / step, "step_ms": step * 1e3}
    if "floor_ms" in check.figures:
        figures["over_floor"] = step * 1e3 / check.figures["floor_ms"]
    print(f"{decode} batch {batch}: {_round(figures)}", flush=True)
    return figures


def _equality(check: Check) -> None:
    """Engine against generate, in batches of mixed lengths, by chunks and single tokens."""
    size = check.size
    lengths = (1, 2, 15, 16, 17, 40, 100, 3)
    works = [
        Work(check.prompt(min(length, 4 * size.prompt), at), 24)
        for at, length in enumerate(lengths * (1 if size is SMALL else 4))
    ]
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = check.model if dtype == size.dtype else _as(check.model, dtype)
        ran = _run(model, works, len(works), "auto", max_num_batched_tokens=64)
        model.set_attn_implementation("sdpa")
        equal = ties = wrong = 0
        for work, tokens in zip(works, ran.tokens, strict=True):
            nearness = _first_difference(model, work, tokens)
            equal += nearness is None
            ties += nearness is not None and nearness <= TIES[dtype]
            wrong += nearness is not None and nearness > TIES[dtype]
        name = str(dtype).removeprefix("torch.")
        found[name] = {"equal": equal, "ties": ties, "wrong": wrong}
        del model
        _free()
    check.figures["equality"] = found
    print(f"equality with generate: {found}", flush=True)


def _as(model: Any, dtype: torch.dtype) -> Any:
    import copy

    return copy.deepcopy(model).to(dtype)


@torch.inference_mode()
def _first_difference(model: Any, work: Work, tokens: list[int]) -> float | None:
    """None where all are the same; else how far behind ours was there, of the largest logit."""
    ids = torch.tensor([work.prompt], device=model.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=work.output_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    theirs = out.sequences[0, len(work.prompt) :].tolist()
    for at, (mine, other) in enumerate(zip(tokens, theirs, strict=True)):
        if mine != other:
            logits = out.logits[at][0].float()
            return float((logits[other] - logits[mine]) / logits.abs().max())
    return None


def _ttft(check: Check) -> None:
    """Time to first token of long prompts: alone, and of the last and the mean of 8 at once."""
    length = check.size.long_prompt
    alone = _run(check.model, [Work(check.prompt(length, 1), 2)] * 1, 8, "auto")
    again = _run(check.model, [Work(check.prompt(length, 2), 2)], 8, "auto")  # warm
    eight = _run(check.model, [Work(check.prompt(length, at), 2) for at in range(8)], 8, "auto")
    check.figures["ttft_long_prompt_s"] = {
        "tokens": length,
        "alone": min(alone.firsts[0], again.firsts[0]),
        "eight_mean": statistics.fmean(eight.firsts),
        "eight_last": max(eight.firsts),
    }
    print(f"TTFT: {_round(check.figures['ttft_long_prompt_s'])}", flush=True)


def _transformers(check: Check) -> None:
    size = check.size
    rng = random.Random(3)
    works = [
        Work(check.prompt(size.prompt, at), rng.randint(size.steps // 2, 2 * size.steps))
        for at in range(size.requests)
    ]
    output = sum(work.output_tokens for work in works)
    _run(check.model, works, size.requests, "auto")  # graphs and kernels
    ours = output / _run(check.model, works, size.requests, "auto").seconds
    check.figures["tokens_per_s"] = {"ours": ours}
    peer = continuous_batching(check.model, works, size.requests, 2048).tokens_per_s
    check.figures["tokens_per_s"]["transformers"] = peer
    check.figures["over_hf_cb"] = ours / peer
    print(f"{size.requests} requests: {_round(check.figures['tokens_per_s'])}", flush=True)


def _run(
    model: Any,
    works: list[Work],
    slots: int,
    decode: Decode,
    max_num_batched_tokens: int | None = None,
) -> Ran:
    longest = max(len(work.prompt) + work.output_tokens for work in works)
    blocks = slots * (longest // 16 + 2)
    steps: list[float] = []

    def on_step(step: Step) -> None:
        if step.prefill_tokens == 0 and step.decode_tokens == len(works):
            steps.append(step.seconds)

    engine = Engine(
        model,
        frozenset(),
        EngineConfig(
            max_model_len=longest,
            max_num_seqs=slots,
            max_num_batched_tokens=max_num_batched_tokens,
            num_gpu_blocks=blocks,
            prefix_caching=False,
            decode=decode,
        ),
        on_step,
    )
    tokens: list[list[int]] = [[] for _ in works]
    started, lasts = run_at_once(engine, works, lambda at, o: tokens[at].extend(o.token_ids))
    firsts = [(output.phases.first_token or math.inf) - started for output in lasts]
    seconds = max(output.phases.last_token or math.inf for output in lasts) - started
    return Ran(tokens, firsts, seconds, steps)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
