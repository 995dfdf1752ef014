"""Weights as int8 and int4: near what they were, the same in any batch, told what cannot be."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.server.engine_runs import generated, greedy, mixed_prompts, run
from torch.nn.functional import linear

from prony_server.calibrate import PromptsError, input_scales, read_prompts
from prony_server.config import ConfigError, ServeConfig
from prony_server.loading import ModelError, Quantization, load
from prony_server.quantize import (
    BITS,
    LAYERS,
    Bits,
    Int4Linear,
    Int8Linear,
    Quantized,
    Way,
    layers_of,
    quantize,
    rounded,
)
from prony_server.tiny import tiny_model, tiny_tokenizer

torch.set_num_threads(1)

# Relative errors of a product with random weights, of rounding alone.
ERRORS: dict[Bits, float] = {"int8": 0.012, "int4": 0.12}
WAYS = [Way(kernel, dtype) for kernel in (False, True) for dtype in (torch.float32, torch.bfloat16)]


def off_by(mine: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((mine.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("rows", [1, 40])
@torch.inference_mode()
def test_a_product_is_near_the_whole_weights(bits: Bits, way: Way, rows: int) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 128), torch.randn(48)
    x = torch.randn(2, rows, 128)
    dtype = torch.float32 if way.kernel else way.dtype  # a kernel may compute in another
    layer = LAYERS[bits](weight.to(dtype), way, 32, bias.to(dtype))
    out = layer(x.to(dtype))
    assert (out.shape, out.dtype) == ((2, rows, 48), dtype)
    whole = linear(x, weight, bias)
    assert off_by(out, whole) < ERRORS[bits] + 0.005
    # The same numbers as the weight that is said to come back, but for bfloat16's rounding.
    assert off_by(out, linear(x, rounded(weight.to(dtype), bits), bias)) < 0.012


@torch.inference_mode()
def test_constant_and_zero_weights_come_back_whole() -> None:
    weight = torch.zeros(16, 64)
    weight[3] = 0.5
    for bits in BITS:
        assert torch.allclose(rounded(weight, bits), weight, atol=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_all_but_the_output_layer_is_quantised_and_told(bits: Bits) -> None:
    model = tiny_model()
    report = quantize(model, bits)
    kinds = {"int8": Int8Linear, "int4": Int4Linear}
    assert sum(isinstance(m, kinds[bits]) for m in model.modules()) == 14
    assert type(model.lm_head) is torch.nn.Linear
    assert report.share == pytest.approx(0.81, abs=0.01)
    assert f"{bits}: 81% of the weights; " in str(report)
    assert "saves memory, not time" in str(report) or "torch's kernel" in str(report)


def test_layers_without_whole_groups_stay_as_they_are_in_int4() -> None:
    model = tiny_model()
    model.model.layers[0].mlp.up_proj = torch.nn.Linear(80, 256)
    assert "model.layers.0.mlp.up_proj" not in layers_of(model, "int4", 32)
    assert "model.layers.0.mlp.up_proj" in layers_of(model, "int8")
    with pytest.raises(ValueError, match="no linear layer that int4 could hold"):
        quantize(model, "int4", 512)


@pytest.mark.parametrize(
    ("bits", "way"),
    [
        ("int8", Way(False, torch.float32)),
        ("int8", Way(True, torch.bfloat16)),
        ("int4", Way(True, torch.bfloat16)),
    ],
    ids=str,
)
def test_a_quantised_model_says_the_same_in_any_batch(bits: Bits, way: Way) -> None:
    model = tiny_model()
    for name, layer in layers_of(model, bits).items():
        model.set_submodule(name, LAYERS[bits](layer.weight.detach(), way))
    prompts = mixed_prompts(8, seed=5)
    expected = [generated(model, prompt, 16) for prompt in prompts]
    done = run(model, [(prompt, greedy(16)) for prompt in prompts], max_num_batched_tokens=17)
    assert done.tokens == expected


@torch.inference_mode()
def test_calibration_lowers_the_error_where_some_inputs_are_large() -> None:
    torch.manual_seed(0)
    model = tiny_model()
    # A few large inputs of one layer, as real models have them.
    model.model.layers[1].input_layernorm.weight[:4] = 40.0
    name = "model.layers.1.self_attn.q_proj"
    layer = layers_of(model, "int4")[name]
    prompts = mixed_prompts(8, seed=6)
    scales = input_scales(model, {name: layer}, prompts, lambda w: rounded(w, "int4"))
    seen: list[torch.Tensor] = []
    layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0][0]))
    model(torch.tensor([mixed_prompts(9, seed=7)[-1] * 3]))  # a text that it was not shown
    weight, scale = layer.weight, scales[name]
    right = linear(seen[0], weight)
    plain = off_by(linear(seen[0], rounded(weight, "int4")), right)
    aware = off_by(linear(seen[0] / scale, rounded(weight * scale, "int4")), right)
    assert aware < 0.7 * plain


@torch.no_grad()
def test_calibrated_layers_multiply_their_inputs() -> None:
    prompts = mixed_prompts(4, seed=8)
    model = tiny_model()
    quantize(model, "int8", prompts=prompts)
    layers = [m for m in model.modules() if isinstance(m, Quantized)]
    assert all(layer.inputs is not None for layer in layers)
    whole, mine = (m(torch.tensor([prompts[0]])).logits for m in (tiny_model(), model))
    assert off_by(mine, whole) < 0.05


def test_prompts_are_read_from_text_and_messages(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    chat = [{"role": "user", "content": "hi"}]
    file.write_text(f'{{"prompt": "ab"}}\n\n{json.dumps({"messages": chat})}\n')
    text, messages = read_prompts(file, tiny_tokenizer())
    assert text == [97, 98]
    assert len(messages) == 10  # <|im_start|>user\nhi<|im_end|>\n, and nothing before it
    assert messages[0] == 257


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no prompt"),
        ("{", ":1: is not JSON"),
        ('{"prompt": "a"}\n{"prompt": 7}', ':2: expected {"prompt": text} or'),
        ('{"messages": [{"role": 1}]}\n[]', ":2: expected"),
        ('{"prompt": ""}', ":1: the prompt has no tokens"),
    ],
)
def test_a_bad_file_of_prompts_is_told_by_line(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(PromptsError) as told:
        read_prompts(file, tiny_tokenizer())
    assert f"{file}" in str(told.value)
    assert message in str(told.value)


def test_loading_quantises_and_says_how_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one two three"}\n{"prompt": "four five"}\n')
    with caplog.at_level(logging.INFO, "prony_server.loading"):
        loaded = load("tiny", "cpu", None, Quantization("int4", 64, file))
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("quantized int4: 81% of the weights; ")
    assert line.endswith("; calibrated on 2 prompts")
    assert isinstance(loaded.model.model.layers[0].mlp.up_proj, Int4Linear)
    with pytest.raises(ModelError, match=r"calibration: .*absent: cannot be read"):
        load("tiny", "cpu", None, Quantization("int8", 32, tmp_path / "absent"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        ({"quantize": "int3"}, "quantize must be int8 or int4, got 'int3'"),
        ({"group_size": 48}, "group_size must be one of 32, 64, 128, 256, got 48"),
        ({"calibrate": Path("p.jsonl")}, "calibrate p.jsonl needs quantize int8 or int4"),
        ({"compile": True, "enforce_eager": True}, "compile and enforce_eager exclude each other"),
        ({"compile": True, "batching": "generate"}, "compile needs an engine with steps"),
    ],
)
def test_precision_that_cannot_be_is_refused_before_anything_loads(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as told:
        ServeConfig("tiny", **settings)
    assert message in str(told.value)


@pytest.mark.parametrize("dtype", ["int8", "float64", "float8_e4m3fn", "half", ""])
def test_an_unknown_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(ModelError, match="is not one of float32, bfloat16, float16"):
        load("tiny", "cpu", dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_numbers_are_served(dtype: str) -> None:
    model = load("tiny", "cpu", dtype).model
    prompts = mixed_prompts(4, seed=11)
    expected = [generated(model, prompt, 8) for prompt in prompts]
    done = run(model, [(prompt, greedy(8)) for prompt in prompts])
    # Their rounding depends on how products are done, so tokens may differ here and there.
    same = sum(a == b for a, b in zip(done.tokens, expected, strict=True))
    assert same >= 1
    assert {result.reason for result in done.results} == {"length"}
