"""Weight-only quantisation: a model comes in, its linear layers leave as int8 or int4.

Weights become small integers with scales; activations keep the model's dtype. int8: one scale an
output, symmetric. int4: a scale and a zero for each group of 32 inputs. Embeddings and the output
layer stay as they are: in small models they are mostly one tensor, which tokens are looked up in
too, and an error there goes straight into the logits.

A product is done by torch's own kernel for integer weights where this build and device have one
that is right and faster; else the weight is expanded for every product, which saves memory and no
time. Which of them is measured when the model is quantised, and is then used for any number of
rows: what a sequence says must not depend on how many others are computed beside it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from prony_server.products import product_times, timed

Bits = Literal["int8", "int4"]
BITS: tuple[Bits, ...] = ("int8", "int4")
GROUP = 32
ROWS = (8, 1, 32, 256)  # that ways to multiply are timed at: decodes, and a piece of a prompt
BATCH, PIECE = 8, 256  # a kernel must be faster at the first, and not SLOWER at the second
SLOWER = 2.0  # times what expanding takes; from there on a kernel is not timed any further
WRONG = 0.03  # a kernel's error against the expanded weights, relative, from which it is not used


@dataclass(frozen=True, slots=True)
class Way:
    """How a layer multiplies: by torch's kernel in this dtype, or by its weight expanded to it."""

    kernel: bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Report:
    """What was quantised and how it multiplies: the log line at start."""

    bits: Bits
    share: float  # of the model's weights
    way: Way
    times: Mapping[int, float]  # rows: time of a step's products over that of unquantised ones

    def __str__(self) -> str:
        how = "no faster kernel here: weights are expanded for every product"
        if self.way.kernel:
            how = f"torch's kernel in {str(self.way.dtype).removeprefix('torch.')}"
        times = ", ".join(f"{ratio:.2f} at {rows}" for rows, ratio in self.times.items())
        slow = (
            ""
            if min(self.times[1], self.times[BATCH]) < 1
            else "; this platform saves memory, not time"
        )
        return (
            f"{self.bits}: {self.share:.0%} of the weights; {how}; "
            f"time of products over unquantised by rows: {times}{slow}"
        )


class Quantized(torch.nn.Module):
    """Takes the place of an nn.Linear; `inputs`: what to multiply each input by (calibration)."""

    bias: Tensor | None
    inputs: Tensor | None

    def __init__(self, bias: Tensor | None, inputs: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("bias", bias)
        self.register_buffer("inputs", inputs)

    def forward(self, x: Tensor) -> Tensor:
        if self.inputs is not None:
            x = x * self.inputs
        out = self.product(x.reshape(-1, x.shape[-1]))
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], -1)

    def product(self, rows: Tensor) -> Tensor:
        raise NotImplementedError


class Int8Linear(Quantized):
    integers: Tensor
    scale: Tensor

    def __init__(
        self,
        weight: Tensor,
        way: Way,
        group: int = GROUP,
        bias: Tensor | None = None,
        inputs: Tensor | None = None,
    ) -> None:
        """`group` is int4's."""
        super().__init__(bias, inputs)
        self.way = way
        integers, scale = to_int8(weight)
        self.register_buffer("integers", integers)
        self.register_buffer("scale", scale.to(weight.dtype))

    def product(self, rows: Tensor) -> Tensor:
        if not self.way.kernel:
            # Scaled afterwards: rows x outputs numbers are fewer than inputs x outputs.
            return linear(rows, self.integers.to(rows.dtype)) * self.scale
        dtype = self.way.dtype
        out = torch._weight_int8pack_mm(rows.to(dtype), self.integers, self.scale.to(dtype))
        return out.to(rows.dtype)


class Int4Linear(Quantized):
    packed: Tensor
    scales: Tensor

    def __init__(
        self,
        weight: Tensor,
        way: Way,
        group: int = GROUP,
        bias: Tensor | None = None,
        inputs: Tensor | None = None,
    ) -> None:
        super().__init__(bias, inputs)
        self.way, self.group = way, group
        integers, scale, zero = to_int4(weight, group)
        self.outputs = weight.shape[0]
        if way.kernel:
            packed = _pack_int4(integers)
            # As the kernels want them: [groups, outputs, scale and zero].
            scales = torch.stack((scale.t(), zero.t()), dim=-1).contiguous().to(way.dtype)
        else:
            packed = integers[:, ::2] | integers[:, 1::2] << 4  # two in a byte, the first is low
            scales = torch.stack((scale, zero), dim=-1).to(weight.dtype)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)

    def product(self, rows: Tensor) -> Tensor:
        if not self.way.kernel:
            return linear(rows, self._expanded(rows.dtype))
        kernel = (
            torch.ops.aten._weight_int4pack_mm_for_cpu
            if rows.device.type == "cpu"
            else torch.ops.aten._weight_int4pack_mm
        )
        out: Tensor = kernel(rows.to(self.way.dtype), self.packed, self.group, self.scales)
        return out.to(rows.dtype)

    def _expanded(self, dtype: torch.dtype) -> Tensor:
        integers = torch.stack((self.packed & 15, self.packed >> 4), dim=-1)
        groups = integers.view(self.outputs, -1, self.group).float() - 8
        scale, zero = self.scales.float()[..., None, :].unbind(dim=-1)
        return (groups * scale + zero).view(self.outputs, -1).to(dtype)


LAYERS: Mapping[Bits, type[Int8Linear] | type[Int4Linear]] = {
    "int8": Int8Linear,
    "int4": Int4Linear,
}


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers in -127..127, and a scale an output: weight is about integers x scale."""
    weight = weight.float()
    scale = (weight.abs().amax(dim=1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    return (weight / scale[:, None]).round().to(torch.int8), scale


def to_int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Integers in 0..15, and for each output and group: weight = (integer - 8) x scale + zero."""
    groups = weight.float().view(weight.shape[0], -1, group)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    scale = ((high - low) / 15).clamp_min(1e-9)
    integers = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15)
    return integers.flatten(1).to(torch.uint8), scale, low + 8 * scale


def rounded(weight: Tensor, bits: Bits, group: int = GROUP) -> Tensor:
    """The weight as it comes back from quantisation, in float32."""
    if bits == "int8":
        integers, scale = to_int8(weight)
        return integers * scale[:, None]
    integers, scale, zero = to_int4(weight, group)
    groups = integers.view(weight.shape[0], -1, group).float() - 8
    back: Tensor = (groups * scale[..., None] + zero[..., None]).flatten(1)
    return back


def layers_of(model: Any, bits: Bits, group: int = GROUP) -> dict[str, torch.nn.Linear]:
    """What is quantised: linear layers but the output layer, for int4 those of whole groups."""
    output = model.get_output_embeddings()
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear)
        and layer is not output
        and (bits == "int8" or layer.in_features % group == 0)
    }


@torch.no_grad()
def quantize(
    model: Any,
    bits: Bits,
    group: int = GROUP,
    prompts: list[list[int]] | None = None,
    device: torch.device | None = None,
) -> Report:
    """Replaces the model's linear layers, which end on `device`; `prompts` calibrate (see there).

    Raises ValueError where there is nothing to quantise.
    """
    from prony_server.calibrate import input_scales

    device = device or model.device
    layers = layers_of(model, bits, group)
    if not layers:
        raise ValueError(f"this model has no linear layer that {bits} could hold")
    total = sum(weight.numel() for weight in model.parameters())
    share = sum(layer.weight.numel() for layer in layers.values()) / total
    scales: Mapping[str, Tensor] = {}
    if prompts:
        scales = input_scales(model, layers, prompts, partial(rounded, bits=bits, group=group))
    shapes = Counter((layer.out_features, layer.in_features) for layer in layers.values())
    way, times = _way(bits, group, shapes, model.dtype, device)
    for name, layer in layers.items():
        # One at a time, so that never more than one layer is there twice.
        weight: Tensor = layer.weight.detach().to(device)
        bias: Tensor | None = layer.bias
        scale, inputs = scales.get(name), None
        if scale is not None:
            weight = weight * scale.to(device, weight.dtype)
            inputs = (1 / scale).to(device, weight.dtype)
        if bias is not None:
            bias = bias.detach().to(device)
        model.set_submodule(name, LAYERS[bits](weight, way, group, bias, inputs))
    return Report(bits, share, way, times)


def _pack_int4(integers: Tensor) -> Tensor:
    """As torch's kernels want them; raises where they do not take such a shape."""
    if integers.device.type == "cpu":
        cpu: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers.int(), 1)
        return cpu
    tiles = next(k for k in (8, 4, 2, 1) if integers.shape[1] % (16 * k) == 0 or k == 1)
    pairs = integers[:, ::2] << 4 | integers[:, 1::2]  # here the first is high
    packed: Tensor = torch.ops.aten._convert_weight_to_int4pack(pairs.contiguous(), tiles)
    return packed


def _way(
    bits: Bits,
    group: int,
    shapes: Counter[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Way, Mapping[int, float]]:
    """The fastest way that is right for all shapes; its times over unquantised, by rows."""
    expand = Way(False, dtype)
    ways = [expand, *(Way(True, each) for each in dict.fromkeys((dtype, torch.bfloat16)))]
    totals = {way: dict.fromkeys(ROWS, 0.0) for way in ways}
    plain = dict.fromkeys(ROWS, 0.0)
    for (outputs, inputs), count in shapes.items():
        weight = torch.randn(outputs, inputs, device=device).to(dtype)
        calls: dict[Way, Quantized] = {expand: LAYERS[bits](weight, expand, group)}
        for way in ways[1:]:
            if way in totals:
                layer = _right(bits, weight, way, group, calls[expand])
                if layer is None:
                    del totals[way]
                else:
                    calls[way] = layer
        for rows in ROWS:
            x = torch.randn(rows, inputs, device=device).to(dtype)
            taken = timed({way: partial(call, x) for way, call in calls.items()}, device)
            for name, seconds in taken.items():
                totals[name][rows] += seconds * count
                if rows == BATCH and seconds > SLOWER * taken[expand]:
                    del totals[name], calls[name]
        for rows, unquantised in product_times(weight, ROWS).items():
            plain[rows] += min(unquantised.values()) * count
    slow = totals[expand]
    fast = [
        way
        for way, mine in totals.items()
        if mine[BATCH] <= slow[BATCH] and mine[PIECE] <= SLOWER * slow[PIECE]
    ]
    best = min(fast, key=lambda way: totals[way][BATCH])
    return best, {rows: totals[best][rows] / plain[rows] for rows in sorted(ROWS)}


def _right(
    bits: Bits, weight: Tensor, way: Way, group: int, expanded: Callable[[Tensor], Tensor]
) -> Quantized | None:
    """The layer this way, or None where it cannot be or says something else than expanded."""
    probe = torch.randn(4, weight.shape[1], device=weight.device).to(weight.dtype)
    try:
        layer = LAYERS[bits](weight, way, group)
        out, wanted = layer(probe).float(), expanded(probe).float()
    except (AttributeError, NotImplementedError, RuntimeError):
        return None  # not in this build, or not for such a device, dtype or shape
    error = (out - wanted).norm() / wanted.norm()
    return layer if float(error) < WRONG else None
