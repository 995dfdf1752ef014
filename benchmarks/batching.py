"""What continuous batching brings over static batching: the same engine, model and requests, twice.

32 requests at once, 8 slots, prompts and outputs lognormal with a median of 64 tokens within
16..256, ends ignored, greedy. Static: a batch of 8 is admitted only when nothing runs, and runs to
its end; a request that has finished costs nothing more (no padding), which favours static. The two
are run in turn, and figures are medians over the pairs.

    python benchmarks/batching.py [--quick] [--model PATH] [--repeats N] [--seed N]
"""

import argparse
import json
import math
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.at_once import Lognormal, Work, run_at_once, works_of

from prony_server.engine import Engine
from prony_server.limits import Batching, EngineConfig
from prony_server.loading import load

REQUESTS, SLOTS = 32, 8
LENGTHS = Lognormal(median=64, sigma=0.7, least=16, most=256)
MODES: tuple[Batching, ...] = ("continuous", "static")


@dataclass(frozen=True, slots=True)
class Run:
    tokens_per_s: float
    ttft_mean: float
    ttft_p99: float
    steps: int
    seconds: float


def main() -> None:
    options = _options()
    if options.model == "tiny":
        torch.set_num_threads(1)  # more threads cost more than its products do
    loaded = load(options.model, options.device)
    works = works_of(REQUESTS, LENGTHS, random.Random(options.seed), len(loaded.tokenizer))
    repeats = options.repeats or (3 if options.quick else 11)

    for mode in MODES:  # warm-up: allocator, threads, caches
        _run(loaded.model, mode, works[:SLOTS])
    runs: dict[Batching, list[Run]] = {mode: [] for mode in MODES}
    for pair in range(repeats):
        for mode in MODES if pair % 2 else reversed(MODES):
            runs[mode].append(_run(loaded.model, mode, works))

    output = sum(work.output_tokens for work in works)
    print(f"{loaded.name}: {REQUESTS} requests, {SLOTS} slots, {output} output tokens")
    print(
        f"{'batching':12}{'tokens/s':>10}{'TTFT mean s':>13}{'TTFT p99 s':>12}{'steps':>7}{'s':>8}"
    )
    for mode in MODES:
        mine = runs[mode]
        print(
            f"{mode:12}"
            f"{statistics.median(r.tokens_per_s for r in mine):10.1f}"
            f"{statistics.median(r.ttft_mean for r in mine):13.3f}"
            f"{statistics.median(r.ttft_p99 for r in mine):12.3f}"
            f"{statistics.median(r.steps for r in mine):7.0f}"
            f"{statistics.median(r.seconds for r in mine):8.2f}"
        )
    pairs = list(zip(runs["continuous"], runs["static"], strict=True))
    figures: dict[str, Any] = {
        "continuous_over_static_tokens": _median(c.tokens_per_s / s.tokens_per_s for c, s in pairs),
        "static_over_continuous_ttft": _median(s.ttft_mean / c.ttft_mean for c, s in pairs),
        "continuous_tokens_per_s": _median(c.tokens_per_s for c, _ in pairs),
        "static_tokens_per_s": _median(s.tokens_per_s for _, s in pairs),
        "model": loaded.name,
        "pairs": repeats,
        "seed": options.seed,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(figures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer pairs: under 50 s with tiny")
    parser.add_argument("--model", default="tiny", help="tiny, or a transformers folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, help="pairs of runs (11; 3 with --quick)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _run(model: Any, mode: Batching, works: list[Work]) -> Run:
    steps: list[Any] = []
    engine = Engine(
        model,
        frozenset(),
        EngineConfig(max_num_seqs=SLOTS, max_model_len=2 * LENGTHS.most, batching=mode),
        steps.append,
    )
    started, finished = run_at_once(engine, works)
    ttfts = sorted((o.phases.first_token or math.inf) - started for o in finished)
    seconds = max(o.phases.last_token or math.inf for o in finished) - started
    return Run(
        sum(work.output_tokens for work in works) / seconds,
        statistics.fmean(ttfts),
        ttfts[math.ceil(0.99 * len(ttfts)) - 1],
        len(steps),
        seconds,
    )


def _median(values: Any) -> float:
    return round(float(statistics.median(values)), 3)


if __name__ == "__main__":
    main()
