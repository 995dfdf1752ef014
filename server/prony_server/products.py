"""Products of linear layers: a model comes in, its large ones leave with the faster of two ways.

torch multiplies float32 on a CPU by its BLAS library, mostly MKL, which on some CPUs is far behind
oneDNN, a library that torch carries too: on an AMD EPYC, an output layer of 49,152 x 576 took 2.2
to 3.3 times as long. The weights stay as and where they are. Which way is faster is measured once,
for all large layers together, so that a busy moment cannot tip it.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import linear

log = logging.getLogger(__name__)

K = TypeVar("K")

LARGE = 2**18  # weights, under which the time of a call outweighs that of its product
ROWS = (8, 32)  # decode batches that the ways are timed at
FASTER = 0.9  # of the time: what the other way must stay under to be taken
TRIES = 5


class OneDnnLinear(torch.nn.Linear):
    """Computes what nn.Linear does; without gradients."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            out: Tensor = _opaque(x, self.weight, self.bias)
            return out
        # A single row is a matrix-vector product, where there is nothing to gain.
        if x.shape[:-1].numel() < 2:
            return linear(x, self.weight, self.bias)
        return onednn_linear(x, self.weight, self.bias)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


@torch.library.custom_op("prony::onednn_linear", mutates_args=())
def _opaque(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same for torch.compile, which takes oneDNN's own for weights that never change only."""
    return onednn_linear(x, weight, bias)


@_opaque.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def speed_up(model: Any) -> float | None:
    """Takes oneDNN for large layers where it is faster: its time over BLAS's then, else None."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return None
    large = [
        layer
        for layer in model.modules()
        if type(layer) is torch.nn.Linear and layer.weight.numel() >= LARGE
    ]
    if not large:
        return None
    ratio = _ratio(Counter((layer.out_features, layer.in_features) for layer in large))
    if ratio is None or ratio > FASTER:
        return None
    for layer in large:
        layer.__class__ = OneDnnLinear
    return ratio


def say_slow_dtype(model: Any) -> None:
    """One log line where this CPU multiplies the model's numbers more slowly than float32."""
    dtype, wide = model.dtype, _widest(model)
    if model.device.type != "cpu" or dtype == torch.float32 or wide is None:
        return
    rows = ROWS[0]
    whole, short = torch.randn(wide), torch.randn(wide).to(dtype)
    ways = {
        "float32": partial(linear, torch.randn(rows, wide[1]), whole),
        "short": partial(linear, torch.randn(rows, wide[1]).to(dtype), short),
    }
    with torch.inference_mode():
        times = timed(ways, model.device)
    ratio = times["short"] / times["float32"]
    if ratio > 1:
        log.info(
            "%s is slow on this CPU: a product at %d rows takes %.1fx as long as in float32",
            str(dtype).removeprefix("torch."),
            rows,
            ratio,
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
def _ratio(shapes: Counter[tuple[int, int]]) -> float | None:
    total = {"blas": 0.0, "onednn": 0.0}
    for (outputs, inputs), count in shapes.items():
        weight = torch.randn(outputs, inputs)
        for rows in ROWS:
            x = torch.randn(rows, inputs)
            try:
                same = torch.allclose(
                    onednn_linear(x, weight, None), linear(x, weight), rtol=1e-3, atol=1e-2
                )
            except (AttributeError, NotImplementedError, RuntimeError):
                return None  # a torch without oneDNN, or without this function of it
            if not same:
                return None
            ways = {
                "blas": lambda: linear(x, weight),  # noqa: B023 (called before they change)
                "onednn": lambda: onednn_linear(x, weight, None),  # noqa: B023
            }
            for name, seconds in timed(ways, weight.device).items():
                total[name] += seconds * count
    return total["onednn"] / total["blas"]
