"""Products of linear layers: a model comes in, its large ones leave with the faster of two ways.

torch multiplies on a CPU by its BLAS library, mostly MKL. oneDNN, a library that torch carries too,
is ahead of it where the weights lie as its kernels read them: on an AMD EPYC, the decode products
of 1 to 32 rows took 0.3 to 0.7 of the time. So its layout takes the place of torch's, but for a
weight that is another layer's too (an output layer tied to the embedding): that one stays as it is,
and is multiplied by oneDNN as it is. Which way is faster is measured once, for all large layers
together, so that a busy moment cannot tip it.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import linear

log = logging.getLogger(__name__)

K = TypeVar("K")

LARGE = 2**16  # weights, up to which the time of a call outweighs that of its product
ROWS = (1, 8, 32)  # decode batches that the ways are timed at
LAID_OUT_FOR = 32  # rows; the same layout serves all counts
FASTER = 0.9  # of the time: what the other way must stay under to be taken
WRONG = 0.02  # of the norm: rounding of bfloat16 stays under it, a wrong layout does not
TRIES = 5


class OneDnnLinear(torch.nn.Linear):
    """Computes what nn.Linear does, its weight in torch's layout or in oneDNN's; no gradients."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            out: Tensor = _opaque(x, self.weight, self.bias, self.out_features)
            return out
        return onednn_linear(x, self.weight, self.bias)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def laid_out(weight: Tensor) -> Tensor:
    """A copy in oneDNN's layout."""
    copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), LAID_OUT_FOR)
    return copy


@torch.library.custom_op("prony::onednn_linear", mutates_args=())
def _opaque(x: Tensor, weight: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    """The same for torch.compile, which lays out weights itself only where it knows them fixed."""
    return onednn_linear(x, weight, bias)


@_opaque.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], outputs))


@torch.inference_mode()
def speed_up(model: Any) -> float | None:
    """Takes oneDNN for large layers where it is faster: its time over torch's then, else None."""
    if model.device.type != "cpu":
        return None
    large = [
        layer
        for layer in model.modules()
        if type(layer) is torch.nn.Linear
        and layer.weight.numel() > LARGE
        and layer.weight.dtype == model.dtype
    ]
    if not large:
        return None
    owners = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    shared = [owners[id(layer.weight)] > 1 for layer in large]
    shapes = Counter(
        (layer.out_features, layer.in_features, mine)
        for layer, mine in zip(large, shared, strict=True)
    )
    ratio = _ratio(shapes, model.dtype)
    if ratio is None or ratio > FASTER:
        return None
    for layer, stays in zip(large, shared, strict=True):
        layer.__class__ = OneDnnLinear
        if not stays:  # one layer at a time, so that no more than one is there twice
            layer.weight = torch.nn.Parameter(laid_out(layer.weight), requires_grad=False)
    log.info("%d large layers are multiplied by oneDNN, in %.2f of torch's time", len(large), ratio)
    return ratio


def say_slow_dtype(model: Any) -> None:
    """One log line where this CPU multiplies the model's numbers more slowly than float32."""
    dtype, wide = model.dtype, _widest(model)
    if model.device.type != "cpu" or dtype == torch.float32 or wide is None:
        return
    rows = ROWS[1]
    short, whole = (
        min(product_times(torch.randn(wide).to(each), [rows])[rows].values())
        for each in (dtype, torch.float32)
    )
    if short > whole:
        log.info(
            "%s is slow on this CPU: a product at %d rows takes %.1fx as long as in float32",
            str(dtype).removeprefix("torch."),
            rows,
            short / whole,
        )


def _widest(model: Any) -> tuple[int, int] | None:
    shapes = [
        (layer.out_features, layer.in_features)
        for layer in model.modules()
        if isinstance(layer, torch.nn.Linear)
    ]
    return max(shapes, key=lambda shape: shape[0] * shape[1], default=None)


def timed(ways: Mapping[K, Callable[[], Tensor]], device: torch.device) -> dict[K, float]:
    """Seconds of each way, taken in turns; the least of some tries, which other work disturbs."""
    least = dict.fromkeys(ways, float("inf"))
    for turn in range(TRIES + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:  # the first warms up
                least[name] = min(least[name], time.perf_counter() - started)
    return least


@torch.inference_mode()
def product_times(
    weight: Tensor, rows: Iterable[int], *, stays: bool = False
) -> dict[int, dict[str, float]]:
    """Seconds of a product by rows: `torch`, and `onednn` where it can do it right.

    `stays`: oneDNN gets the weight as it is.
    """
    inputs = {
        count: torch.randn(count, weight.shape[1], device=weight.device).to(weight.dtype)
        for count in rows
    }
    ways: dict[str, Callable[[Tensor], Tensor]] = {"torch": partial(linear, weight=weight)}
    if weight.device.type == "cpu":
        onednn = _onednn(weight, stays, inputs.values())
        ways |= {} if onednn is None else {"onednn": onednn}
    return {
        count: timed({name: partial(way, x) for name, way in ways.items()}, weight.device)
        for count, x in inputs.items()
    }


def _onednn(
    weight: Tensor, stays: bool, inputs: Iterable[Tensor]
) -> Callable[[Tensor], Tensor] | None:
    """Its product with this weight; None where it is not there, or not right for some input."""
    try:
        way = partial(onednn_linear, weight=weight if stays else laid_out(weight), bias=None)
        said = [(way(x).float(), linear(x, weight).float()) for x in inputs]
    except (AttributeError, NotImplementedError, RuntimeError):
        return None  # a torch without oneDNN, or a CPU without such numbers
    right = all(float((mine - torchs).norm() / torchs.norm()) < WRONG for mine, torchs in said)
    return way if right else None


def _ratio(shapes: Counter[tuple[int, int, bool]], dtype: torch.dtype) -> float | None:
    total = {"torch": 0.0, "onednn": 0.0}
    for (outputs, inputs, stays), count in shapes.items():
        weight = torch.randn(outputs, inputs).to(dtype)
        for times in product_times(weight, ROWS, stays=stays).values():
            if "onednn" not in times:
                return None
            for name, seconds in times.items():
                total[name] += seconds * count
    return total["onednn"] / total["torch"]
