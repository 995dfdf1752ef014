"""How much the engine takes on: wishes and facts of model and machine in, limits that hold out."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

# Who runs together: whoever fits at every step; a whole batch to its end; one request at a time,
# over the same path; or one at a time through the model's own generate.
Batching = Literal["continuous", "static", "none", "generate"]

# How a step of single tokens runs: padded, as it is, replayed from CUDA graphs, or compiled. auto:
# graphs on a GPU, eager on a CPU.
Decode = Literal["auto", "eager", "padded", "graphs", "compiled"]

GIB = 2**30
# On CPUs throughput flattens beyond some 32 sequences (matrix products grow with the batch) while
# each one's tokens come ever slower; vLLM's 256 is for GPUs.
CPU_MAX_NUM_SEQS, GPU_MAX_NUM_SEQS = 32, 256
# A step's prompt tokens hold up every decode of that step.
CPU_MAX_BATCHED_TOKENS, GPU_MAX_BATCHED_TOKENS = 512, 2048
# Of the whole GPU, vLLM's meaning. Of what a CPU's machine has free: it has other work, too.
GPU_UTILIZATION = 0.9
CPU_UTILIZATION, CPU_KV_MOST = 0.25, 4 * GIB
TABLE_ENTRY, ROW = 4, 64  # bytes of a block's number, and of what else a sequence's row costs

# Bytes that the largest step takes beside the KV cache, for so many sequences, tokens, and context.
Reserve = Callable[[int, int, int], int]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits as the user gave them; None is filled in from the model and the machine."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_gpu_blocks: int | None = None
    batching: Batching = "continuous"
    prefix_caching: bool = True
    max_queue: int | None = None  # requests that may wait for a place; None: any number
    gpu_memory_utilization: float | None = None
    decode: Decode = "auto"

    def __post_init__(self) -> None:
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "num_gpu_blocks",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.batching not in get_args(Batching):
            raise ValueError(
                f"batching must be one of {', '.join(get_args(Batching))}, got {self.batching!r}"
            )
        if self.decode not in get_args(Decode):
            raise ValueError(
                f"decode must be one of {', '.join(get_args(Decode))}, got {self.decode!r}"
            )
        if self.max_queue is not None and self.max_queue < 0:
            raise ValueError(f"max_queue must be 0 or more, got {self.max_queue}")
        share = self.gpu_memory_utilization
        if share is not None and not (math.isfinite(share) and 0 < share <= 1):
            raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, got {share}")
        if self.batching in ("none", "generate") and self.max_num_seqs not in (None, 1):
            raise ValueError(
                f"max_num_seqs must be 1 or absent with batching {self.batching}, which runs one "
                f"request at a time, got {self.max_num_seqs}"
            )
        if self.batching == "generate" and self.max_num_batched_tokens is not None:
            raise ValueError(
                "max_num_batched_tokens must be absent with batching generate, which takes every "
                f"prompt whole, got {self.max_num_batched_tokens}"
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits as they hold, all resolved."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    kv_bytes: int  # of all blocks together
    batching: Batching
    prefix_caching: bool = False
    max_queue: int | None = None

    @property
    def room(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return min(self.max_model_len, self.kv_tokens)

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size


def resolve(
    config: EngineConfig,
    *,
    context: int | None,
    bytes_per_token: int,
    free_memory: int,
    total_memory: int,
    on_gpu: bool,
    reserve: Reserve,
) -> Limits:
    """`context`: the most positions the model was made for. Memory: with the weights loaded.

    `reserve` is asked only where the size of the KV cache is to be found.
    """
    max_model_len = config.max_model_len or context
    if max_model_len is None:
        raise ValueError("the model's config names no context length; give max_model_len")
    if context is not None and max_model_len > context:
        raise ValueError(f"max_model_len {max_model_len} is above the model's context of {context}")
    seqs, batched = _batch(config, max_model_len, on_gpu)
    block_bytes = bytes_per_token * config.block_size
    width = -(-max_model_len // config.block_size)
    _refuse_tables_beyond_memory(seqs, 1, free_memory)
    blocks = config.num_gpu_blocks
    if blocks is None:
        allowed = _allowed(config.gpu_memory_utilization, free_memory, total_memory, on_gpu)
        held_back = reserve(seqs, batched, max_model_len)
        blocks = min(seqs * width, (allowed - held_back) // block_bytes)
        if blocks < 1:
            raise ValueError(
                f"no memory for the KV cache: {free_memory / GIB:.2f} GiB are free, "
                f"{max(0, allowed) / GIB:.2f} GiB of them allowed, and the largest step takes "
                f"{held_back / GIB:.2f} GiB; raise gpu_memory_utilization or lower "
                "max_num_batched_tokens"
            )
    elif blocks * block_bytes > free_memory:
        raise ValueError(
            f"num_gpu_blocks {blocks:,} need {blocks * block_bytes / GIB:,.1f} GiB, and "
            f"{free_memory / GIB:,.1f} GiB are free"
        )
    _refuse_tables_beyond_memory(seqs, min(blocks, width), free_memory)
    return Limits(
        max_model_len,
        seqs,
        batched,
        config.block_size,
        blocks,
        blocks * block_bytes,
        config.batching,
        config.prefix_caching and config.batching != "generate",
        config.max_queue,
    )


def _batch(config: EngineConfig, max_model_len: int, on_gpu: bool) -> tuple[int, int]:
    """How many sequences, and how many tokens, one step may hold."""
    seqs = config.max_num_seqs or (GPU_MAX_NUM_SEQS if on_gpu else CPU_MAX_NUM_SEQS)
    if config.batching in ("none", "generate"):
        seqs = 1
    if config.batching == "generate":
        return seqs, max_model_len
    usual = GPU_MAX_BATCHED_TOKENS if on_gpu else CPU_MAX_BATCHED_TOKENS
    # Never under a token for each sequence, unless told so: else running ones would have to wait.
    return seqs, config.max_num_batched_tokens or max(usual, seqs)


def _allowed(share: float | None, free: int, total: int, on_gpu: bool) -> int:
    """Bytes that KV cache and steps may take together."""
    if on_gpu:
        return int((GPU_UTILIZATION if share is None else share) * total) - (total - free)
    if share is None:
        return min(int(CPU_UTILIZATION * free), CPU_KV_MOST)
    return int(share * free)


def _refuse_tables_beyond_memory(seqs: int, width: int, free_memory: int) -> None:
    tables = seqs * (width * TABLE_ENTRY + ROW)
    if tables > free_memory:
        raise ValueError(
            f"max_num_seqs {seqs:,} need {tables / GIB:,.1f} GiB for their block tables alone, and "
            f"{free_memory / GIB:,.1f} GiB are free"
        )
