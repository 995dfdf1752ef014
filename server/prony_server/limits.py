"""How much the engine takes on: wishes and facts of model and machine in, limits that hold out."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Batching = Literal["continuous", "static"]

GIB = 2**30
# On CPUs throughput flattens beyond some 32 sequences (matrix products grow with the batch) while
# each one's tokens come ever slower; vLLM's 256 is for GPUs.
CPU_MAX_NUM_SEQS, GPU_MAX_NUM_SEQS = 32, 256
# A step's prompt tokens hold up every decode of that step.
CPU_MAX_BATCHED_TOKENS, GPU_MAX_BATCHED_TOKENS = 512, 2048
CPU_KV_SHARE, CPU_KV_MOST = 0.25, 4 * GIB
TABLE_ENTRY, ROW = 4, 64  # bytes of a block's number, and of what else a sequence's row costs
GPU_KV_SHARE = 0.85  # the rest is for activations and the allocator's fragments


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits as the user gave them; None is filled in from the model and the machine."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_gpu_blocks: int | None = None
    batching: Batching = "continuous"

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
        if self.batching not in ("continuous", "static"):
            raise ValueError(f"batching must be continuous or static, got {self.batching!r}")


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

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size


def resolve(
    config: EngineConfig,
    *,
    context: int | None,
    bytes_per_token: int,
    free_memory: int,
    on_gpu: bool,
) -> Limits:
    """`context`: the most positions the model was made for. `free_memory`: with weights loaded."""
    max_model_len = config.max_model_len or context
    if max_model_len is None:
        raise ValueError("the model's config names no context length; give max_model_len")
    if context is not None and max_model_len > context:
        raise ValueError(f"max_model_len {max_model_len} is above the model's context of {context}")
    seqs = config.max_num_seqs or (GPU_MAX_NUM_SEQS if on_gpu else CPU_MAX_NUM_SEQS)
    batched = config.max_num_batched_tokens or (
        GPU_MAX_BATCHED_TOKENS if on_gpu else CPU_MAX_BATCHED_TOKENS
    )
    block_bytes = bytes_per_token * config.block_size
    blocks = config.num_gpu_blocks
    if blocks is None:
        if on_gpu:
            most = int(free_memory * GPU_KV_SHARE)
        else:
            most = min(int(free_memory * CPU_KV_SHARE), CPU_KV_MOST)
        useful = seqs * -(-max_model_len // config.block_size)
        blocks = min(useful, most // block_bytes)
        if blocks < 1:
            raise ValueError(f"no memory for the KV cache: {free_memory / GIB:.1f} GiB are free")
    _refuse_beyond_memory(blocks, block_bytes, seqs, max_model_len, config, free_memory)
    return Limits(
        max_model_len,
        seqs,
        batched,
        config.block_size,
        blocks,
        blocks * block_bytes,
        config.batching,
    )


def _refuse_beyond_memory(
    blocks: int,
    block_bytes: int,
    seqs: int,
    max_model_len: int,
    config: EngineConfig,
    free_memory: int,
) -> None:
    """Raises ValueError for what was asked for and cannot be had, with both numbers."""
    if blocks * block_bytes > free_memory:
        raise ValueError(
            f"num_gpu_blocks {blocks:,} need {blocks * block_bytes / GIB:,.1f} GiB, and "
            f"{free_memory / GIB:,.1f} GiB are free"
        )
    width = min(blocks, -(-max_model_len // config.block_size))
    tables = seqs * (width * TABLE_ENTRY + ROW)
    if tables > free_memory:
        raise ValueError(
            f"max_num_seqs {seqs:,} need {tables / GIB:,.1f} GiB for their block tables alone, and "
            f"{free_memory / GIB:,.1f} GiB are free"
        )


def available_memory() -> int:
    """Bytes of RAM that this process can still take: the machine's, or its container's if less."""
    free = _meminfo_available()
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text()
        used = Path("/sys/fs/cgroup/memory.current").read_text()
        return max(0, min(free, int(most) - int(used)))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return free


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # Not Linux: half of what is installed.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
