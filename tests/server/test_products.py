"""Large layers multiply by whichever library is faster, to the same numbers."""

import copy
import logging
from functools import partial
from typing import cast

import pytest
import torch

from prony_server.drift import weight_bytes
from prony_server.loading import load
from prony_server.products import OneDnnLinear, laid_out, onednn_linear, speed_up, timed
from prony_server.tiny import tiny_model

torch.set_num_threads(1)


def onednn_layer(bias: bool = True, *, own_layout: bool) -> tuple[torch.nn.Linear, OneDnnLinear]:
    torch.manual_seed(0)
    plain = torch.nn.Linear(96, 64, bias=bias)
    layer = copy.deepcopy(plain)
    layer.__class__ = OneDnnLinear
    if own_layout:
        layer.weight = torch.nn.Parameter(laid_out(layer.weight), requires_grad=False)
    return plain, cast(OneDnnLinear, layer)


@pytest.mark.parametrize("shape", [(0, 96), (1, 96), (2, 96), (1, 1, 96), (1, 33, 96)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("own_layout", [True, False])
@torch.inference_mode()
def test_onednn_gives_what_linear_gives(
    shape: tuple[int, ...], bias: bool, own_layout: bool
) -> None:
    plain, layer = onednn_layer(bias, own_layout=own_layout)
    x = torch.randn(shape)
    out = layer(x)
    assert out.shape == plain(x).shape
    assert torch.allclose(out, plain(x), atol=1e-5)


def test_small_layers_and_slow_numbers_are_left_to_torch() -> None:
    assert speed_up(tiny_model()) is None
    assert speed_up(tiny_model().to(torch.bfloat16)) is None
    assert speed_up(tiny_model().to(torch.float64)) is None


@pytest.mark.parametrize("tied", [True, False])
def test_a_large_layer_changes_only_where_that_is_faster(tied: bool) -> None:
    model = tiny_model()
    model.lm_head = torch.nn.Linear(128, 4096, bias=False)
    if tied:
        model.model.embed_tokens = torch.nn.Embedding(4096, 128)
        model.lm_head.weight = model.model.embed_tokens.weight
    size = weight_bytes(model)
    ids = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        before = model(ids).logits
        ratio = speed_up(model)
        after = model(ids).logits
    # Which is faster is the machine's; whatever it was, layers and answer agree.
    assert isinstance(model.lm_head, OneDnnLinear) == (ratio is not None)
    assert ratio is None or 0 < ratio <= 0.9
    assert model.lm_head.weight.shape == (4096, 128)
    assert not any(isinstance(m, OneDnnLinear) for m in model.model.modules())
    assert torch.allclose(before, after, atol=1e-3)
    # Nothing is in memory twice: what the embedding holds too stays in torch's layout.
    assert weight_bytes(model) == size
    assert model.lm_head.weight.is_mkldnn == (ratio is not None and not tied)


def test_ways_are_timed_in_turns() -> None:
    calls = []
    x = torch.ones(1)

    def way(name: str) -> torch.Tensor:
        calls.append(name)
        return x

    times = timed({name: partial(way, name) for name in ("a", "b")}, x.device)
    assert calls == ["a", "b"] * 6
    assert all(0 <= seconds < 60 for seconds in times.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_slow_dtype_is_told_in_one_line(dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "prony_server.products"):
        loaded = load("tiny", "cpu", dtype)
    assert str(loaded.model.dtype) == f"torch.{dtype}"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) <= 1  # it may be fast here
    assert all(line.startswith(f"{dtype} is slow on this CPU: a product at 8") for line in lines)


def test_the_functions_used_are_there() -> None:
    # Torch's own compiler uses them, but they are no public ones.
    x, weight = torch.randn(3, 8), torch.randn(4, 8)
    assert torch.allclose(onednn_linear(x, weight, None), x @ weight.t(), atol=1e-5)
    assert torch.equal(laid_out(weight).to_dense(), weight)


@pytest.mark.parametrize("own_layout", [True, False])
@torch.inference_mode()
def test_a_compiled_layer_multiplies_the_same_way(own_layout: bool) -> None:
    _, layer = onednn_layer(own_layout=own_layout)
    x = torch.randn(5, 96)
    quick = torch.compile(layer, dynamic=True, fullgraph=True, backend="eager")
    assert torch.equal(quick(x), layer(x))
