"""torch.compile for decode steps: a forward comes in, a compiled one that says the same goes out.

One compilation serves all batch sizes and block-table widths (dynamic shapes). It takes a minute or
more, before the server is ready; torch keeps what it generated on disk for the next start.
"""

import logging
import shutil
import time
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from prony_server.attention import PagedStep
from prony_server.graphs import Forward, PaddedDecode

log = logging.getLogger(__name__)

# Tokens whose logits are this near, as a share of the largest, count as equal: rounding decides.
TIES = {torch.float32: 1e-4, torch.float16: 0.005, torch.bfloat16: 0.03}
ROWS, BLOCKS, STEPS = 8, 4, 8  # of the check, which is done for two sizes


class CompileRefused(ValueError):
    """The decode step cannot be compiled here, or says something else when it is."""


def compiled(forward: Forward) -> Forward:
    """Compiles at its first call. Raises CompileRefused without a compiler."""
    if torch.cuda.is_available():
        if find_spec("triton") is None:
            raise CompileRefused("--compile needs triton on a GPU: pip install triton")
    elif shutil.which("g++") is None and shutil.which("clang++") is None:
        raise CompileRefused("--compile needs a C++ compiler on a CPU, such as g++")
    quick: Any = torch.compile(forward, dynamic=True, fullgraph=True)

    def run(ids: Tensor, positions: Tensor, step: PagedStep) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own, about its own
            logits: Tensor = quick(ids, positions, step)
        return logits

    return run


@torch.inference_mode()
def check_compiled(padded: PaddedDecode, forward: Forward, vocabulary: int) -> None:
    """Greedy tokens of some sequences, step by step, by both: raises CompileRefused on another."""
    log.info("compiling the decode step: this takes a minute or more")
    started = time.monotonic()
    generator = torch.Generator().manual_seed(0)
    size, (most_rows, most_width) = padded.cache.block_size, padded.tables.shape
    width = min(BLOCKS, most_width, padded.spare_block)
    rows = min(ROWS, most_rows, padded.spare_block // width)
    steps = min(STEPS, width * size)
    # Few in wide tables after many in narrow ones: what the compiler does only when it sees that
    # sizes change is done before anybody waits.
    places = [(rows, at) for at in range(steps)]
    places += [(-(-rows // 2), width * size - steps + at) for at in range(steps)]
    mine = padded.tables[:rows, :width]
    mine.copy_(torch.arange(rows * width).view(rows, width))
    ids = torch.randint(vocabulary, (rows,), generator=generator)
    tie, other, compared, farthest = TIES[padded.dtype], 0, 0, 0.0
    for count, at in places:
        bucket = padded.fill(ids[:count].tolist(), [at] * count, list(range(count)))
        plain = padded.step(bucket, forward)[:count].float()
        try:
            quick = padded.run(bucket)[:count].float()
        except Exception as error:
            what = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CompileRefused(f"--compile: a decode step cannot be compiled: {what}") from error
        best = plain.max(dim=-1)
        chosen = plain.gather(1, quick.argmax(dim=-1, keepdim=True))[:, 0]
        behind = (best.values - chosen) / plain.abs().amax(dim=-1)
        compared += count
        other += int((behind > tie).sum())
        farthest = max(farthest, float((plain - quick).abs().max()))
        ids = best.indices.cpu()
    mine.zero_()
    if other:
        raise CompileRefused(
            f"--compile changes {other} of {compared} greedy tokens (logits differ by up to "
            f"{farthest:.3g}), so it is refused; start without it"
        )
    log.info(
        "compiled the decode step in %.0f s; %d greedy tokens are the same, logits differ by up to "
        "%.1g",
        time.monotonic() - started,
        compared,
        farthest,
    )
