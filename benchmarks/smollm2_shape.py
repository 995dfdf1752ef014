"""A model of SmolLM2-135M's exact shape, with random weights and without a download.

It computes as fast as the real one and says nothing. Its tokenizer has as many tokens: the 256
bytes, then words, so that whatever is sampled becomes text.
"""

from typing import Any

VOCABULARY, CONTEXT = 49152, 8192


def random_model(seed: int = 0) -> Any:
    """A LlamaForCausalLM in float32 on the CPU."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    return model.eval()


def wide_tokenizer() -> Any:
    """A byte-level PreTrainedTokenizerFast with a token for every number of the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = (f"w{number}" for number in range(VOCABULARY - len(symbols)))
    ids = {text: number for number, text in enumerate((*symbols, *words))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]
