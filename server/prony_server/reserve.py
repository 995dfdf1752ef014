"""A runner and the largest batch come in; the bytes that it takes beside the KV cache come out."""

import random

from prony_server.blocks import BlockPool
from prony_server.memory import peak_of
from prony_server.runner import Runner, out_of_memory
from prony_server.scheduler import Batch
from prony_server.sequence import Output, Phases, SamplingParams, Sequence

# Drawn from a nucleus: of all ways to choose a token the one with the most intermediate tensors.
_PARAMS = SamplingParams(max_tokens=1, top_p=0.9)


def largest_step(
    runner: Runner, seqs: int, tokens: int, max_model_len: int, block_size: int
) -> int:
    """Runs it once, on a small cache of its own. ValueError where even that finds no memory.

    What decodes far into their contexts gather of the cache is not in it.
    """
    lengths = largest_batch(seqs, tokens, max_model_len)
    blocks = sum(-(-length // block_size) for length in lengths)
    pool = BlockPool(blocks, block_size, seqs, max_model_len)
    sequences = [
        Sequence(str(at), at, [0] * length, length, _PARAMS, _nobody, random.Random(0), Phases(0.0))
        for at, length in enumerate(lengths)
    ]
    for sequence in sequences:
        pool.enter(sequence, spare=0)
    chunks = [(each, len(each.tokens)) for each in sequences if len(each.tokens) > 1]
    batch = Batch([each for each in sequences if len(each.tokens) == 1], chunks, 0)
    try:
        runner.allocate(pool, seqs)
        return peak_of(lambda: runner.run(batch), runner.device)
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise ValueError(
            f"no memory for a step of max_num_batched_tokens {tokens}, by {len(lengths)} of "
            f"max_num_seqs {seqs}: lower them"
        ) from error.with_traceback(None)


def largest_batch(seqs: int, tokens: int, max_model_len: int) -> list[int]:
    """Prompts of so many tokens in all: as many sequences as may be, and one as long as may be."""
    lengths: list[int] = []
    for others in reversed(range(min(seqs, tokens))):
        length = min(tokens - others, max_model_len)
        if length > 0:
            lengths.append(length)
            tokens -= length
    return lengths


def _nobody(_: Output) -> None:
    pass
