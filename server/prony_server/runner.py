"""A batch comes in, the model runs once, the next token of each sequence at its end goes out."""

import gc
from typing import Any

import torch

from prony_server.attention import (
    NAME,
    ChunkView,
    KVCache,
    LayerShape,
    PagedStep,
    ShapeProbe,
    UnsupportedModel,
    paged_attention,
)
from prony_server.blocks import BlockPool
from prony_server.sampler import Sampler
from prony_server.scheduler import Batch, is_last
from prony_server.sequence import Sequence


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

    def allocate(self, pool: BlockPool, max_rows: int) -> None:
        self._pool = pool
        self._cache = KVCache(
            self.layers, pool.num_blocks, pool.block_size, self.model.dtype, self.device
        )
        # The pool's own memory: what it writes is seen here.
        tables = torch.frombuffer(pool.tables, dtype=torch.int32)
        self._tables = tables.view(max_rows, pool.width)
        self._sampler = Sampler(max_rows, self.device)

    @torch.inference_mode()
    def run(self, batch: Batch) -> tuple[list[Sequence], list[int]]:
        """Computes the batch's tokens; returns the sequences at their end, and each one's next."""
        ids, positions, step, ends, sampled = self._pack(batch)
        logits = self.model(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=ends, paged=step
        ).logits
        if not sampled:
            return sampled, []
        return sampled, self._sampler.sample(logits[0], sampled).tolist()

    def clear(self, sequence: Sequence) -> None:
        self._cache.clear(sequence.blocks)

    def _pack(
        self, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor, PagedStep, torch.Tensor, list[Sequence]]:
        singles = batch.singles
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
        count = len(singles)
        width = max(positions[:count]) // size + 1 if count else 0
        table = self._tables[:, :width].index_select(0, packed[2, :count])
        step = PagedStep(
            self._cache,
            to_device[2],
            count,
            table.flatten().to(self.device),
            to_device[1, :count] + 1,
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
