"""The model named `tiny`: a small Llama with random weights and a byte-level tokenizer.

From a fixed seed, without a download. It says nothing, but says it as a real model would.

One number of its hidden state is made the same constant at every position, so that the output
layer's weights on it act as a bias. With it the model writes printable ASCII, one character a
token (a stream then shows every token as it comes), and never ends by itself.
"""

from typing import Any

VOCABULARY = 260  # 256 bytes and the special tokens, to a round number
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNPRINTABLE = 30.0  # how far under the others their logits are pushed


def tiny_model(seed: int = 0) -> Any:
    """A LlamaForCausalLM in float32 on the CPU; the same weights for the same seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    eos = _ids()["<|im_end|>"]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=_ids()["<|endoftext|>"],
    )
    # Not torch.manual_seed: the caller's random numbers are none of ours.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
        model.eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weights in model.named_parameters():
                if weights.dim() == 2:
                    weights.normal_(0.0, 0.7 / weights.shape[1] ** 0.5, generator=generator)
                    if name.endswith(("o_proj.weight", "down_proj.weight")):
                        weights[0] = 0.0  # no layer adds to number 0
            model.model.embed_tokens.weight.normal_(0.0, 1.0, generator=generator)
            model.model.embed_tokens.weight[:, 0] = 5.0
            printable = torch.tensor([chr(byte).isprintable() for byte in range(128)])
            bias = torch.full((VOCABULARY,), -UNPRINTABLE)
            byte_ids = torch.tensor(_byte_ids()[:128])
            bias[byte_ids[printable]] = 0.0
            model.lm_head.weight *= 4.0
            model.lm_head.weight[:, 0] = bias
    return model


def tiny_tokenizer() -> Any:
    """A PreTrainedTokenizerFast: a token a byte of UTF-8, ChatML's special tokens and template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=_ids(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _byte_symbols() -> list[str]:
    """The character that byte-level tokenizers write for each byte (GPT-2's table)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in shown}
    for byte in range(256):
        symbols.setdefault(byte, chr(256 + sum(b not in shown for b in range(byte))))
    return [symbols[byte] for byte in range(256)]


def _byte_ids() -> list[int]:
    return list(range(256))


def _ids() -> dict[str, int]:
    symbols = (*_byte_symbols(), *SPECIAL)
    return {symbol: at for at, symbol in enumerate(symbols)}
