"""From a model's name to a model: tiny, folders of all kinds, hub ids without a hub."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.server.engine_runs import generated, greedy, run
from transformers import (
    AutoModelForCausalLM,
    DiffLlamaConfig,
    DogeConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from prony_server.loading import ModelError, load
from prony_server.runner import Runner
from prony_server.tiny import tiny_model, tiny_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "small-llama"
    tiny_model().save_pretrained(made)
    tiny_tokenizer().save_pretrained(made)
    return made


def sharded(folder: Path) -> None:
    tiny_model().save_pretrained(folder, max_shard_size="300KB")
    assert len(list(folder.glob("model-0*.safetensors"))) > 1
    (folder / "model.safetensors").unlink()


def as_bin(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(tiny_model().state_dict(), folder / "pytorch_model.bin")


def whole(folder: Path) -> None:
    pass


@pytest.mark.parametrize("change", [whole, sharded, as_bin])
def test_a_folder_is_served_whatever_its_weights_lie_in(
    change: object, folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "my-model")
    assert callable(change)
    change(copy)
    loaded = load(str(copy), "cpu")
    assert (loaded.name, loaded.max_model_len) == ("my-model", 4096)
    assert loaded.model.dtype == torch.float32
    assert loaded.eos_ids == {258}
    assert loaded.tokenizer("hé")["input_ids"] == tiny_tokenizer()("hé")["input_ids"]
    done = run(loaded.model, [([1, 2, 3], greedy(8))])
    assert done.tokens == [generated(tiny_model(), [1, 2, 3], 8)]


def test_a_dtype_is_taken_as_given_and_else_float32_on_a_cpu(folder: Path) -> None:
    assert load(str(folder), "cpu", "bfloat16").model.dtype == torch.bfloat16
    assert load("tiny", "cpu", "bfloat16").model.dtype == torch.bfloat16
    assert load("tiny", "cpu").model.dtype == torch.float32


def test_every_end_that_a_model_names_is_an_end(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "two-ends")
    (copy / "generation_config.json").write_text('{"eos_token_id": [256, 257]}')
    assert load(str(copy), "cpu").eos_ids == {256, 257, 258}


def test_a_folder_that_is_no_model_is_refused_with_what_is_missing(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        load(str(tmp_path), "cpu")
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no weights; expected one of \*\.safetensors, \*\.bin"):
        load(str(copy), "cpu")
    with pytest.raises(ModelError, match="not a folder"):
        load(str(copy / "config.json"), "cpu")
    with pytest.raises(ModelError, match="no such folder"):
        load("./models/absent", "cpu")


def test_broken_weights_and_a_missing_tokenizer_are_one_line_each(
    folder: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not a tensor")
    mute = shutil.copytree(folder, tmp_path / "mute")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (mute / name).unlink()
    for path, what in ((broken, "cannot load the model"), (mute, "cannot load the tokenizer")):
        with pytest.raises(ModelError, match=what) as told:
            load(str(path), "cpu")
        assert "\n" not in str(told.value)


def test_a_hub_id_without_a_network_fails_fast_and_names_the_remedies() -> None:
    # In a process of its own: the endpoint is read when huggingface_hub is imported.
    code = (
        "import sys; from prony_server.loading import load, ModelError\n"
        "try: load('someone/some-model', 'cpu')\n"
        "except ModelError as error: print(error)"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "/nonexistent", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert time.monotonic() - started < 30  # imports included
    assert done.stderr == ""
    assert done.stdout.startswith(
        "someone/some-model: no such folder, and the hub http://127.0.0.1:9 cannot be reached"
    )
    for remedy in ("HF_ENDPOINT", "the path of a model folder", "`tiny`"):
        assert remedy in done.stdout
    assert done.stdout.count("\n") == 1


def test_what_can_be_neither_a_folder_nor_a_hub_id_is_told_so() -> None:
    with pytest.raises(ModelError, match="no such folder, and not a hub id"):
        load("what is this", "cpu")


def test_a_device_that_is_not_there_is_refused() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="finds no CUDA device; use --device cpu"):
            load("tiny", "cuda")
    with pytest.raises(ModelError, match="'toaster' is not auto, cpu or cuda"):
        load("tiny", "toaster")
    with pytest.raises(ModelError, match="'int8' is not one of float32"):
        load("tiny", "cpu", "int8")


def test_loading_is_quiet(folder: Path) -> None:
    code = "import sys; from prony_server.loading import load; load(sys.argv[1], 'cpu')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_model_that_keeps_state_elsewhere_than_in_attention_is_refused() -> None:
    config = MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, state_size=4)
    with pytest.raises(ValueError, match="this model cannot be served"):
        Runner(MambaForCausalLM(config))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (DiffLlamaConfig, "layer 0 attends more than once"),
        (DogeConfig, "its attention masks tokens in a way of its own"),
    ],
)
def test_a_model_that_attends_in_another_way_is_refused(kind: Any, reason: str) -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    auto: Any = AutoModelForCausalLM
    config = kind(vocab_size=64, intermediate_size=32, num_hidden_layers=2, **sizes)
    model = auto.from_config(config)
    with pytest.raises(ValueError, match=f"this model cannot be served: {reason}"):
        Runner(model)


def test_frequencies_that_depend_on_the_batch_shorten_the_context() -> None:
    from prony_server.runner import context_length

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
        },
    )
    assert context_length(LlamaForCausalLM(config)) == 64
