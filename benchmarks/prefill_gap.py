"""What a long prompt does to streams that are running: their longest wait, in chunks of it.

8 streams decode; then a prompt of 8,000 tokens comes, and is computed in chunks beside them. Each
step holds a chunk and a token of every stream, so no stream should wait much longer than the chunk
takes when it is computed alone. Alone and beside the streams are run in turn, and figures are
medians over the pairs; the chunks' own steps are compared number by number, since late ones attend
to more. Random weights: SmolLM2's shape, or with --quick the tiny model's.

    python benchmarks/prefill_gap.py [--quick] [--model PATH] [--repeats N] [--chunk TOKENS]
"""

import argparse
import json
import statistics
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.smollm2_shape import random_model

from prony_server.engine import Engine, Step
from prony_server.limits import EngineConfig
from prony_server.loading import load
from prony_server.products import speed_up
from prony_server.sequence import Output, SamplingParams
from prony_server.tiny import tiny_model

STREAMS, STREAM_PROMPT = 8, 64
PROMPT = 8000
CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Run:
    chunks: list[float]  # seconds of each step that held a chunk of the long prompt
    gaps: list[float]  # seconds that the streams' tokens of these came after those before


def main() -> None:
    options = _options()
    model, name = _model(options)
    repeats = options.repeats or (3 if options.quick else 5)
    own = options.chunk - STREAMS  # what the streams leave of a step
    _run(model, 0, own)  # warm-up: allocator, threads, caches
    pairs: list[tuple[Run, Run]] = []
    for _ in range(repeats):
        pairs.append((_run(model, 0, own), _run(model, STREAMS, options.chunk)))

    longest = _median(max(run.gaps) for _, run in pairs)
    alone = _median(max(run.chunks) for run, _ in pairs)
    figures: dict[str, Any] = {
        "max_gap_over_chunk_step": round(_median(_worst(*pair) for pair in pairs), 3),
        "max_gap_over_longest_chunk_step": round(longest / alone, 3),
        "max_gap_ms": round(1000 * longest, 2),
        "longest_chunk_step_ms": round(1000 * alone, 2),
        "median_gap_ms": round(1000 * _median(statistics.median(r.gaps) for _, r in pairs), 2),
        "chunks": len(pairs[0][1].chunks),
        "chunk_tokens": options.chunk,
        "prompt_tokens": PROMPT,
        "streams": STREAMS,
        "model": name,
        "pairs": repeats,
        "threads": torch.get_num_threads(),
    }
    print(f"{name}: {STREAMS} streams decode while {PROMPT} tokens of a prompt are computed")
    print(f"{'pair':6}{'chunks':>8}{'chunk alone ms':>16}{'longest gap ms':>16}{'gap / chunk':>13}")
    for at, (before, beside) in enumerate(pairs):
        print(
            f"{at:<6}{len(beside.chunks):8}{1000 * max(before.chunks):16.1f}"
            f"{1000 * max(beside.gaps):16.1f}{_worst(before, beside):13.2f}"
        )
    print(json.dumps(figures))


def _worst(alone: Run, beside: Run) -> float:
    """The longest gap by what the chunk of its step takes alone."""
    pairs = zip(beside.gaps, alone.chunks, strict=True)
    return max(gap / chunk for gap, chunk in pairs)


def _run(model: Any, streams: int, step_tokens: int) -> Run:
    steps: list[tuple[Step, float]] = []  # with the time of the tokens that it gave
    latest = 0.0
    tokens = 0
    all_run, long_ended = threading.Event(), threading.Event()

    def on_step(step: Step) -> None:
        steps.append((step, latest))

    def streaming(output: Output) -> None:
        nonlocal latest, tokens
        if output.token_ids:
            latest = output.phases.last_token or 0.0
            tokens += 1
            if tokens == 5 * streams:
                all_run.set()

    config = EngineConfig(
        max_num_seqs=STREAMS + 1, max_num_batched_tokens=step_tokens, prefix_caching=False
    )
    engine = Engine(model, frozenset(), config, on_step)
    endless = SamplingParams(CONTEXT - STREAM_PROMPT, temperature=0.0, ignore_eos=True)
    for number in range(streams):
        prompt = [1 + (number + at) % 200 for at in range(STREAM_PROMPT)]
        engine.submit(str(number), prompt, endless, streaming)
    engine.start()
    if streams:
        all_run.wait()
    one = SamplingParams(1, temperature=0.0, ignore_eos=True)
    prompt = [1 + at % 200 for at in range(PROMPT)]
    engine.submit("long", prompt, one, lambda _: long_ended.set())
    long_ended.wait()
    for number in range(streams):
        engine.abort(str(number))
    engine.stop(drain=10.0)
    if engine.failed is not None:
        raise RuntimeError("the engine failed") from engine.failed

    # The long prompt's are the last steps with tokens of prompts in them.
    last = max(at for at, (step, _) in enumerate(steps) if step.prefill_tokens)
    first = last - -(-PROMPT // (step_tokens - streams)) + 1
    mine = range(first, last + 1)
    if any(steps[at][0].decode_tokens != streams for at in mine):
        raise RuntimeError("a step left a running stream out")
    gaps = [steps[at][1] - steps[at - 1][1] for at in mine] if streams else []
    return Run([steps[at][0].model_seconds for at in mine], gaps)


def _model(options: argparse.Namespace) -> tuple[Any, str]:
    if options.model != "smollm2-shape" and not options.quick:
        loaded = load(options.model, options.device)
        return loaded.model, loaded.name
    if options.quick:
        torch.set_num_threads(1)  # more threads cost more than its products do
        model = tiny_model()
        # Its weights are random: a longer context is a number.
        model.config.max_position_embeddings = CONTEXT
        return model, "tiny"
    model = random_model()
    speed_up(model)  # as `prony serve` does
    return model, "smollm2-shape"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the tiny model: under 50 s")
    parser.add_argument("--model", default="smollm2-shape", help="or a transformers folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, help="pairs of runs (5; 3 with --quick)")
    parser.add_argument("--chunk", type=int, default=512, help="token budget of a step")
    return parser.parse_args()


def _median(values: Any) -> float:
    return float(statistics.median(values))


if __name__ == "__main__":
    main()
