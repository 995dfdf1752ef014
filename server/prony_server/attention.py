"""Attention over paged keys and values, for any transformers model, by its AttentionInterface.

A step is one packed row of tokens: first sequences with a single token, then chunks of prompts.
The model hands each layer's queries, keys and values for that row to `paged_attention`, with the
step's PagedStep as the keyword `paged` (never `cache` or `past_key_values`: transformers gives
those meanings, and renames them). No Cache and no mask of transformers' is involved: an attention
name without a registered mask function makes it build none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "prony_paged"


class UnsupportedModel(ValueError):
    """The model attends in a way that paged attention here does not reproduce."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this model cannot be served: {reason}")


# Arguments that some models give their attention, and that nothing here honours.
REFUSED = ("s_aux", "position_bias")


@dataclass(frozen=True, slots=True)
class LayerShape:
    kv_heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True, slots=True)
class Rule:
    """What a layer asks of its attention beside causality."""

    scaling: float | None
    window: int | None  # how many tokens back it sees, its own included; None: all
    softcap: float | None


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    paged: "PagedStep | ShapeProbe | None" = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: query, key and value are [1, heads, tokens, size]."""
    if paged is None:
        raise UnsupportedModel("its forward drops the keyword that paged attention needs")
    if attention_mask is not None:
        raise UnsupportedModel("its attention masks tokens in a way of its own")
    for name in REFUSED:
        if others.get(name) is not None:
            raise UnsupportedModel(f"its attention takes {name}")
    layer: Any = module.layer_idx
    rule = Rule(scaling, sliding_window, softcap)
    return paged.attend(layer, query[0], key[0], value[0], rule)[None], None


@dataclass(slots=True)
class ShapeProbe:
    """Stands in for PagedStep in one forward, to learn which layers attend and with what shapes."""

    layers: dict[int, LayerShape] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        if layer in self.layers:
            raise UnsupportedModel(f"layer {layer} attends more than once")
        self.layers[layer] = LayerShape(key.shape[0], key.shape[2], value.shape[2])
        return value.new_zeros(query.shape[1], query.shape[0], value.shape[2])


class KVCache:
    """Per layer, keys and values of every slot: [heads, slots, size], block after block.

    A head's keys lie together, as attention reads them: on a CPU it then took two thirds of the
    time that it took with the heads of a token side by side.
    """

    def __init__(
        self,
        layers: dict[int, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size

        def zeros(heads: int, size: int) -> Tensor:
            # Zeros, not empty: a masked position weighs 0, but 0 x NaN is NaN.
            return torch.zeros(heads, num_blocks * block_size, size, dtype=dtype, device=device)

        self.keys = {at: zeros(shape.kv_heads, shape.key_size) for at, shape in layers.items()}
        self.values = {at: zeros(shape.kv_heads, shape.value_size) for at, shape in layers.items()}

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of these blocks, in order: [heads, blocks x block_size, size]."""
        return _gather(self.keys[layer], blocks, self.block_size), _gather(
            self.values[layer], blocks, self.block_size
        )

    def clear(self, blocks: Sequence[int]) -> None:
        """Wipes blocks that hold NaN: it would reach their next owner through masked positions."""
        for store in (*self.keys.values(), *self.values.values()):
            which = torch.tensor(blocks, device=store.device)
            heads, _, size = store.shape
            store.view(heads, -1, self.block_size, size).index_fill_(1, which, 0)


def _gather(store: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    heads, _, size = store.shape
    # Whole blocks as rows: one copy of block_size x size numbers each.
    rows = store.view(heads, -1, block_size * size).index_select(1, blocks)
    return rows.view(heads, -1, size)


@dataclass(frozen=True, slots=True)
class SinglesView:
    """Sequences with one token each, beside each other in the packed row from `begin` on."""

    begin: int
    table: Tensor  # their blocks: [sequences, blocks], every row padded to the longest
    lengths: Tensor  # tokens each attends to, itself included


@dataclass(frozen=True, slots=True)
class ChunkView:
    """Where one chunk lies in the packed row, and in its sequence."""

    begin: int
    length: int
    start: int  # tokens of the sequence before the chunk
    blocks: Tensor  # the table, up to the chunk's end


@dataclass(slots=True)
class PagedStep:
    """One step's view of the cache; its index tensors are built once and used by every layer."""

    cache: KVCache
    slots: Tensor  # where each token of the packed row is stored
    singles: list[SinglesView]
    chunks: list[ChunkView]
    # Built when the first layer asks, one for each view and window size.
    _biases: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Stores keys and values, then attends: [heads, tokens, size] to [tokens, heads, size]."""
        cache = self.cache
        cache.keys[layer].index_copy_(1, self.slots, key)
        cache.values[layer].index_copy_(1, self.slots, value)
        parts = [self._singles(at, layer, query, rule) for at in range(len(self.singles))]
        for at, chunk in enumerate(self.chunks):
            rows = slice(chunk.begin, chunk.begin + chunk.length)
            parts.append(self._chunk(at, layer, query[:, rows], key[:, rows], value[:, rows], rule))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _singles(self, at: int, layer: int, query: Tensor, rule: Rule) -> Tensor:
        view = self.singles[at]
        count = view.lengths.shape[0]
        keys, values = self.cache.gather(layer, view.table.flatten())
        kv_heads, _, size = keys.shape
        # Query heads that share a KV head become its query length: no copy of keys for GQA.
        mine = query[:, view.begin : view.begin + count]
        grouped = mine.reshape(kv_heads, -1, count, size).transpose(1, 2)
        width = view.table.shape[1] * self.cache.block_size
        keys = keys.view(kv_heads, count, width, size)
        values = values.view(kv_heads, count, width, values.shape[2])
        bias = self._bias(-1 - at, rule.window, query.dtype)
        out = _attend(grouped, keys, values, bias, rule)
        return out.transpose(0, 1).reshape(count, query.shape[0], -1)

    def _chunk(
        self, at: int, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule
    ) -> Tensor:
        chunk = self.chunks[at]
        if chunk.start:
            keys, values = self.cache.gather(layer, chunk.blocks)
            end = chunk.start + chunk.length
            key, value = keys[:, :end], values[:, :end]
        kv_heads, _, size = key.shape
        # A KV head is a batch entry, and its keys are seen, not copied, by all its query heads.
        grouped = query.reshape(kv_heads, -1, chunk.length, size)
        groups = grouped.shape[1]
        key = key[:, None].expand(-1, groups, -1, -1)
        value = value[:, None].expand(-1, groups, -1, -1)
        seen = rule.window is None or chunk.length <= rule.window
        if not chunk.start and seen and rule.softcap is None:
            out = scaled_dot_product_attention(
                grouped, key, value, is_causal=True, scale=rule.scaling
            )
        else:
            out = _attend(grouped, key, value, self._bias(at, rule.window, query.dtype), rule)
        return out.reshape(query.shape[0], chunk.length, -1).transpose(0, 1)

    def _bias(self, at: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """0 where a token is attended to, else -inf; `at`: a chunk, or below 0 a single's view."""
        bias = self._biases.get((at, window))
        if bias is None:
            device = self.slots.device
            if at < 0:
                view = self.singles[-1 - at]
                width = view.table.shape[1] * self.cache.block_size
                last = (view.lengths - 1)[None, :, None, None]
                position = torch.arange(width, device=device)
            else:
                chunk = self.chunks[at]
                end = chunk.start + chunk.length
                last = torch.arange(chunk.start, end, device=device)[:, None]
                position = torch.arange(end, device=device)
            seen = position <= last
            if window is not None:
                seen &= position > last - window
            bias = torch.zeros(seen.shape, dtype=dtype, device=device)
            bias.masked_fill_(~seen, float("-inf"))
            self._biases[at, window] = bias
        return bias


def _attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, rule: Rule) -> Tensor:
    if rule.softcap is None:
        return scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=rule.scaling)
    scale = query.shape[-1] ** -0.5 if rule.scaling is None else rule.scaling
    scores = torch.matmul(query, keys.transpose(-1, -2)) * scale
    scores = torch.tanh(scores / rule.softcap) * rule.softcap + bias
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
    return torch.matmul(weights.to(values.dtype), values)
