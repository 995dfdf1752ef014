"""What the engine gets out of a model: against static batching, none, and transformers itself.

32 requests at once on a model of SmolLM2-135M's shape in float32 with random weights; prompts and
outputs lognormal with a median of 64 tokens within 16..256, greedy, ends ignored. In one run: our
engine with 32 slots (continuous), and with 8 slots (continuous and static, where static waits for
whole batches); one request at a time over the same path (none); `model.generate` one after the
other; transformers' own continuous batching with 32 requests a batch. The engine multiplies as
`prony serve` does, where a faster way than torch's default is there (prony_server.products);
transformers as it is, and once on our way too.

Then full batches of decodes, each followed in the same process by `F.linear` on all the model's
weights at the same number of rows: the median of the ratios (step_over_gemm), by wall clock and by
CPU time, which other work on the machine disturbs less. host_share_32: of full batches' steps, all
stages but the forward.

--quick has prompts and outputs of 8 to 32 tokens, median 16, and takes one-by-one rates from 3
requests and those of 8 slots from 16. It understates over_hf_cb, since what makes transformers'
batching slow grows with the total length of its sequences.

    python benchmarks/engine.py [--quick] [--seed N] [--threads N] [--tiny]
"""

import argparse
import copy
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.at_once import Lognormal, Work, run_at_once, works_of
from benchmarks.hf_batching import Times, continuous_batching, one_by_one
from benchmarks.smollm2_shape import random_model

from prony_server.engine import Engine, Step
from prony_server.limits import Batching, EngineConfig
from prony_server.products import speed_up
from prony_server.stages import FORWARD, IDLE
from prony_server.tiny import tiny_model

REQUESTS, SLOTS, FEW_SLOTS = 32, 32, 8
BLOCK = 16  # tokens of a KV block
LENGTHS = Lognormal(median=64, sigma=0.7, least=16, most=256)
QUICK_LENGTHS = Lognormal(median=16, sigma=0.7, least=8, most=32)
TURNS = 3
STEPS, QUICK_STEPS = 25, 8  # full batches that are timed against their products
PREFILL_STEPS = 10  # no fewer than all prompts take
# With --quick, the requests that rates are taken from: one by one, and of 8 slots.
ONE_BY_ONE, QUICK_FEW = 3, 16


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    plain = tiny_model() if options.tiny else random_model()
    weights = [m.weight.detach() for m in plain.modules() if isinstance(m, torch.nn.Linear)]
    ours = copy.deepcopy(plain)
    onednn_over_torch = speed_up(ours)
    vocabulary = plain.get_input_embeddings().num_embeddings
    lengths = QUICK_LENGTHS if options.quick else LENGTHS
    works = works_of(REQUESTS, lengths, random.Random(options.seed), vocabulary)
    few = works[:ONE_BY_ONE] if options.quick else works
    waves = works[:QUICK_FEW] if options.quick else works

    rows: dict[str, Times] = {}
    host_shares: list[float] = []

    def show(name: str, times: Times) -> None:
        rows[name] = times
        print(f"{name:44}{times.tokens_per_s:10.1f}{times.ttft_mean:12.2f}", flush=True)

    def watch(step: Step) -> None:
        if step.decode_tokens == SLOTS and step.prefill_tokens == 0:
            busy = sum(step.stages) - step.stages[IDLE]
            host_shares.append(1 - step.stages[FORWARD] / busy)

    _run(ours, "continuous", SLOTS, works[:4])  # warm-up: allocator, threads, caches
    output = sum(work.output_tokens for work in works)
    print(f"{REQUESTS} requests, {output} output tokens, {options.threads} threads")
    print(f"{'':44}{'tokens/s':>10}{'mean TTFT s':>12}")
    # The two that are compared most take turns, since a machine's speed changes within minutes.
    turns = [
        (
            _run(ours, "continuous", SLOTS, works, watch),
            continuous_batching(plain, works, SLOTS, 512),
        )
        for _ in range(1 if options.quick else TURNS)
    ]
    over_hf_cb = [mine.tokens_per_s / theirs.tokens_per_s for mine, theirs in turns]
    show("continuous, 32 slots", _middle(mine for mine, _ in turns))
    show("transformers' continuous batching", _middle(theirs for _, theirs in turns))
    show("continuous, 8 slots", _run(ours, "continuous", FEW_SLOTS, waves))
    show("static, 8 slots", _run(ours, "static", FEW_SLOTS, waves))
    show(f"none ({len(few)} requests)", _run(ours, "none", 1, few))
    show(f"generate, one by one ({len(few)} requests)", one_by_one(plain, few))
    if not options.quick and onednn_over_torch is not None:
        name = "transformers' continuous batching, our products"
        speed_up(plain)
        show(name, continuous_batching(plain, works, SLOTS, 512))

    steps = QUICK_STEPS if options.quick else STEPS
    gemm = {count: _over_gemm(ours, weights, works, count, steps) for count in (FEW_SLOTS, SLOTS)}
    ours_32, static, sequential = (
        rows["continuous, 32 slots"],
        rows["static, 8 slots"],
        rows[f"generate, one by one ({len(few)} requests)"],
    )
    same = rows.get("transformers' continuous batching, our products")
    figures: dict[str, Any] = {
        "over_hf_cb": statistics.median(over_hf_cb),
        "over_hf_cb_turns": [round(ratio, 3) for ratio in over_hf_cb],
        "over_hf_cb_our_products": same and ours_32.tokens_per_s / same.tokens_per_s,
        "over_sequential": ours_32.tokens_per_s / sequential.tokens_per_s,
        "over_static": rows["continuous, 8 slots"].tokens_per_s / static.tokens_per_s,
        "static_over_continuous_ttft": static.ttft_mean / rows["continuous, 8 slots"].ttft_mean,
        "host_share_32": statistics.median(host_shares),
        "step_over_gemm_8": gemm[FEW_SLOTS][0],
        "step_over_gemm_32": gemm[SLOTS][0],
        "step_over_gemm_8_cpu": gemm[FEW_SLOTS][1],
        "step_over_gemm_32_cpu": gemm[SLOTS][1],
        "onednn_over_torch": onednn_over_torch,
        "tokens_per_s": {name: round(times.tokens_per_s, 1) for name, times in rows.items()},
        "ttft_mean_s": {name: round(times.ttft_mean, 3) for name, times in rows.items()},
        "threads": options.threads,
        "seed": options.seed,
        "quick": options.quick,
    }
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}))


def _middle(runs: Iterable[Times]) -> Times:
    ordered = sorted(runs, key=lambda times: times.tokens_per_s)
    return ordered[len(ordered) // 2]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="prompts and outputs of 8 to 32: under 50 s"
    )
    parser.add_argument("--tiny", action="store_true", help="the tiny model: to try the script")
    parser.add_argument("--threads", type=int, default=2, help="torch's")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _run(
    model: Any,
    batching: Batching,
    slots: int,
    works: list[Work],
    on_step: Callable[[Step], None] | None = None,
) -> Times:
    config = EngineConfig(
        max_num_seqs=slots,
        max_model_len=2 * LENGTHS.most,
        num_gpu_blocks=slots * 2 * LENGTHS.most // BLOCK,
        batching=batching,
        prefix_caching=False,  # nothing is shared, and nothing of an earlier run is to be found
    )
    engine = Engine(model, frozenset(), config, on_step)
    started, finished = run_at_once(engine, works)
    return Times(
        max(output.phases.last_token or math.inf for output in finished) - started,
        statistics.fmean((o.phases.first_token or math.inf) - started for o in finished),
        sum(work.output_tokens for work in works),
    )


def _over_gemm(
    model: Any, weights: list[torch.Tensor], works: list[Work], count: int, steps: int
) -> tuple[float, float]:
    """Steps of `count` decodes over F.linear on these weights: by wall clock, by CPU time."""
    inputs = {width: torch.randn(count, width) for width in {w.shape[1] for w in weights}}
    ratios: list[float] = []
    cpu_ratios: list[float] = []
    step_began = 0.0

    def products() -> None:
        with torch.inference_mode():
            for weight in weights:
                linear(inputs[weight.shape[1]], weight)

    def on_step(step: Step) -> None:
        nonlocal step_began
        cpu = time.process_time()
        if step.decode_tokens == count and step.prefill_tokens == 0:
            began = time.monotonic()
            products()
            ratios.append(step.seconds / (time.monotonic() - began))
            cpu_ratios.append((cpu - step_began) / (time.process_time() - cpu))
        step_began = time.process_time()

    # Of one length, so that the batch stays full once the last prompt is in.
    alike = [Work(work.prompt, steps + PREFILL_STEPS) for work in works[:count]]
    _run(model, "continuous", count, alike, on_step)
    # But the first: caches are as the prompts left them.
    return statistics.median(ratios[1:]), statistics.median(cpu_ratios[1:])


if __name__ == "__main__":
    main()
