"""A batch comes in, the model runs once, the next token of each sequence at its end goes out."""

import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from prony_server.attention import (
    NAME,
    ChunkView,
    KVCache,
    LayerShape,
    PagedStep,
    ShapeProbe,
    SinglesView,
    UnsupportedModel,
    paged_attention,
)
from prony_server.blocks import BlockPool
from prony_server.compiling import check_compiled, compiled
from prony_server.graphs import PaddedDecode
from prony_server.limits import Decode
from prony_server.sampler import Choices, Sampler
from prony_server.scheduler import Batch, is_last
from prony_server.sequence import Sequence, TokenLogprobs

# Padding, in tokens, whose copying takes as long as one more attention call.
WORTH_A_PART = 256


@dataclass(frozen=True, slots=True)
class Computed:
    """What one run gave, and when its parts were done, on time.monotonic().

    On a GPU `forwarded` is when the host had handed over its last kernel: the device's own time is
    then in what follows, until the tokens are here.
    """

    sampled: list[Sequence]  # the sequences at their end
    tokens: list[int]  # the next of each
    logprobs: list[TokenLogprobs | None] | None  # what is told of each, where any asked
    built: float
    forwarded: float


class Runner:
    """An unmodified transformers causal LM with paged attention put in by name."""

    def __init__(self, model: Any) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, paged_attention)
        model.set_attn_implementation(NAME)
        self.model = model.eval()
        self.device: torch.device = model.device
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        self.layers = self._probe()

    @property
    def bytes_per_token(self) -> int:
        numbers = sum(s.kv_heads * (s.key_size + s.value_size) for s in self.layers.values())
        return numbers * int(self.model.dtype.itemsize)

    def allocate(
        self,
        pool: BlockPool,
        max_rows: int,
        eos_ids: frozenset[int] = frozenset(),
        decode: Decode = "eager",
    ) -> None:
        """Raises CompileRefused where `decode` is "compiled" and cannot be, or changes tokens."""
        if decode == "auto":
            decode = "graphs" if self.device.type == "cuda" else "eager"
        self._pool = pool
        # One block more than the pool knows of: where padding rows write.
        blocks = pool.num_blocks + (decode != "eager")
        self._cache = KVCache(self.layers, blocks, pool.block_size, self.model.dtype, self.device)
        # The pool's own memory: what it writes is seen here.
        tables = torch.frombuffer(pool.tables, dtype=torch.int32)
        self._tables = tables.view(max_rows, pool.width)
        self._sampler = Sampler(max_rows, self.device, eos_ids)
        # On a GPU launches cost more than the padding they would save.
        self._worth = WORTH_A_PART // pool.block_size if self.device.type == "cpu" else sys.maxsize
        self._padded: PaddedDecode | None = None
        if decode != "eager":
            self._padded = PaddedDecode(
                compiled(self._forward) if decode == "compiled" else self._forward,
                self._cache,
                self._tables,
                pool.num_blocks,
                capture=self.device.type == "cuda" and decode != "padded",
            )
        if decode == "compiled" and self._padded is not None:
            check_compiled(self._padded, self._forward, self.vocabulary)

    @torch.inference_mode()
    def run(self, batch: Batch) -> Computed:
        """Computes the batch's tokens, and samples the next of each sequence then at its end."""
        if self._padded is not None and not batch.chunks:
            sampled = batch.singles
            bucket = self._padded.fill(
                [sequence.tokens[-1] for sequence in sampled],
                [sequence.computed for sequence in sampled],
                [sequence.row for sequence in sampled],
            )
            built = time.monotonic()
            logits = self._padded.run(bucket)[: len(sampled)]
        else:
            ids, positions, step, ends, sampled = self._pack(batch)
            built = time.monotonic()
            logits = self._forward(ids, positions, step, ends)
        forwarded = time.monotonic()
        chosen = self._sampler.sample(logits, sampled) if sampled else Choices([], None)
        return Computed(sampled, chosen.tokens, chosen.logprobs, built, forwarded)

    def clear(self, blocks: list[int]) -> None:
        self._cache.clear(blocks)

    def release(self) -> None:
        """Lets go of model and cache; nothing can be run any more."""
        self.model = None
        if hasattr(self, "_cache"):
            del self._cache, self._padded

    def _forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        step: PagedStep,
        keep: torch.Tensor | int = 0,
    ) -> torch.Tensor:
        """Logits of the rows to keep (0: of all)."""
        logits: torch.Tensor = self.model(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep, paged=step
        ).logits
        return logits[0]

    def _pack(
        self, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor, PagedStep, torch.Tensor, list[Sequence]]:
        # Longest first: sequences of about one length lie together, and are padded to each other.
        singles = sorted(batch.singles, key=lambda s: s.computed, reverse=True)
        ids = [sequence.tokens[-1] for sequence in singles]
        positions = [sequence.computed for sequence in singles]
        rows = [sequence.row for sequence in singles]
        ends = list(range(len(singles)))
        sampled = list(singles)
        views: list[tuple[int, int, int, int]] = []
        for sequence, length in batch.chunks:
            start = sequence.computed
            views.append((len(ids), length, start, sequence.row))
            ids += sequence.tokens[start : start + length]
            positions += range(start, start + length)
            rows += [sequence.row] * length
            if is_last(sequence, length):
                ends.append(len(ids) - 1)
                sampled.append(sequence)

        size = self._pool.block_size
        packed = torch.tensor([ids, positions, rows])
        place = packed[1]
        blocks = self._tables[packed[2], place // size]
        slots = blocks * size + place % size
        to_device = torch.stack((packed[0], place, slots)).to(self.device)
        widths = [position // size + 1 for position in positions[: len(singles)]]
        step = PagedStep(
            self._cache,
            to_device[2],
            [
                SinglesView(
                    begin,
                    self._tables[:, : widths[begin]]
                    .index_select(0, packed[2, begin:end])
                    .to(self.device),
                    to_device[1, begin:end] + 1,
                )
                for begin, end in parts(widths, self._worth)
            ],
            [
                ChunkView(begin, length, start, self._blocks(row, start + length))
                for begin, length, start, row in views
            ],
        )
        keep = torch.tensor(ends, dtype=torch.long, device=self.device)
        return to_device[:1], to_device[1:2], step, keep, sampled

    def _blocks(self, row: int, tokens: int) -> torch.Tensor:
        # A copy on CPU too: the pool may write to the row while a GPU still reads.
        return self._tables[row, : self._pool.blocks_for(tokens)].clone().to(self.device)

    @torch.inference_mode()
    def _probe(self) -> dict[int, LayerShape]:
        """Which layers attend, found by one forward, so that no model's config need be known."""
        config = self.model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ()) - {
            "full_attention",
            "sliding_attention",
        }
        if kinds:
            raise UnsupportedModel(f"it has layers of type {', '.join(sorted(kinds))}")
        probe = ShapeProbe()
        two = torch.arange(2, device=self.device)[None]
        self.model(
            input_ids=two, position_ids=two, use_cache=False, logits_to_keep=two[0], paged=probe
        )
        if len(probe.layers) != config.num_hidden_layers:
            raise UnsupportedModel(
                f"{len(probe.layers)} of its {config.num_hidden_layers} layers attend through "
                "transformers' AttentionInterface"
            )
        return probe.layers


def parts(widths: list[int], worth: int) -> list[tuple[int, int]]:
    """Cuts falling widths where padding each part to its own widest saves over `worth`."""
    return list(_cut(widths, 0, len(widths), worth)) if widths else []


def _cut(widths: list[int], begin: int, end: int, worth: int) -> Iterator[tuple[int, int]]:
    widest = widths[begin]
    saved, at = max(((widest - widths[at]) * (end - at), at) for at in range(begin, end))
    if saved <= worth:
        yield begin, end
    else:
        yield from _cut(widths, begin, at, worth)
        yield from _cut(widths, at, end, worth)


def context_length(model: Any) -> int | None:
    """The most positions at which the model computes the same whatever else is in its batch."""
    config = model.config.get_text_config()
    context: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Its frequencies switch for the whole forward when any position passes this.
        context = rope.get("original_max_position_embeddings") or context
    return context


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # torch's CPU allocator raises a plain RuntimeError.
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "not enough memory" in text
    )


def free_unused_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
