"""The scheduler without a model: computing a batch is moving `computed` on."""

import random
from typing import Any

from prony_server.blocks import BlockPool
from prony_server.scheduler import Batch, Scheduler, is_last
from prony_server.sequence import Phases, SamplingParams, Sequence

CONTEXT = 1000


def scheduler(
    blocks: int = 100,
    block_size: int = 4,
    seqs: int = 8,
    budget: int = 50,
    prefix_caching: bool = False,
    **others: Any,
) -> Scheduler:
    pool = BlockPool(blocks, block_size, seqs, CONTEXT, prefix_caching)
    return Scheduler(pool, seqs, budget, **others)


def sequence(
    number: int, prompt: int, output: int = 10, arrived: float = 0.0, token: int = 0
) -> Sequence:
    return Sequence(
        str(number),
        number,
        [token] * prompt,
        prompt,
        SamplingParams(output),
        print,
        random.Random(0),
        Phases(arrived),
    )


def compute(scheduler: Scheduler, batch: Batch) -> list[Sequence]:
    """Moves all on as the engine does, each at its end by a token; returns who finished."""
    sampled = [*batch.singles, *(s for s, length in batch.chunks if is_last(s, length))]
    for each in batch.singles:
        each.computed += 1
    for each, length in batch.chunks:
        each.computed += length
    finished = []
    for each in sampled:
        each.sound = each.computed
        scheduler.pool.keep(each)
        each.tokens.append(each.tokens[0])
        if len(each.tokens) - each.prompt_length == each.params.max_tokens:
            scheduler.remove(each)
            finished.append(each)
    return finished


def numbers(batch: Batch) -> tuple[list[int], list[tuple[int, int]]]:
    return [s.number for s in batch.singles], [(s.number, n) for s, n in batch.chunks]
