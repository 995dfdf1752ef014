"""Requests that an engine gets all at once: lengths in, the last output of each and the start out.

Imports torch and transformers only, as the engine does: benchmarks/gpu_check.py needs it so.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from prony_server.engine import Engine
from prony_server.sequence import Output, SamplingParams


@dataclass(frozen=True, slots=True)
class Work:
    prompt: list[int]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Numbers of tokens; draws outside are moved to the bound."""

    median: float
    sigma: float
    least: int
    most: int

    def sample(self, rng: random.Random) -> int:
        drawn = rng.lognormvariate(math.log(self.median), self.sigma)
        return min(self.most, max(self.least, round(drawn)))


def works_of(count: int, lengths: Lognormal, rng: random.Random, vocabulary: int) -> list[Work]:
    """Random prompts; they and their outputs have such lengths."""
    return [
        Work([rng.randrange(vocabulary) for _ in range(lengths.sample(rng))], lengths.sample(rng))
        for _ in range(count)
    ]


def run_at_once(
    engine: Engine,
    works: Sequence[Work],
    on_output: Callable[[int, Output], None] = lambda at, output: None,
) -> tuple[float, list[Output]]:
    """Greedy, ends ignored: when it started (time.monotonic()), and how each request ended.

    The engine is started and stopped here; `on_output` is told of each output and of whose it is.
    Raises RuntimeError unless all reached their length.
    """
    finished: list[Output] = []
    all_done = threading.Event()

    def emit(at: int, output: Output) -> None:
        on_output(at, output)
        if output.finish_reason is not None:
            finished.append(output)
            if len(finished) == len(works):
                all_done.set()

    for at, work in enumerate(works):  # before the start: all are there at once
        params = SamplingParams(work.output_tokens, temperature=0.0, ignore_eos=True)
        engine.submit(str(at), work.prompt, params, partial(emit, at))
    started = time.monotonic()
    engine.start()
    all_done.wait()
    engine.stop(drain=0.0)
    wrong = [output for output in finished if output.finish_reason != "length"]
    if wrong:
        raise RuntimeError(f"request {wrong[0].request_id} ended with {wrong[0].error}")
    return started, finished
