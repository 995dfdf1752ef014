"""The tiny model and its tokenizer: the same everywhere, printable, and endless."""

import torch
from tests.server.engine_runs import mixed_prompts, run

from prony_server.sequence import SamplingParams
from prony_server.tiny import tiny_model, tiny_tokenizer


def test_a_seed_gives_the_same_weights_and_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = tiny_model()
    assert torch.equal(torch.rand(1), expected)
    again, other = tiny_model(), tiny_model(seed=1)
    for name, weights in first.state_dict().items():
        assert torch.equal(weights, again.state_dict()[name])
    weights = first.model.layers[0].self_attn.q_proj.weight
    assert not torch.equal(weights, other.model.layers[0].self_attn.q_proj.weight)


def test_its_text_is_printable_a_character_a_token_and_does_not_end_by_itself() -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    kinds = [
        SamplingParams(100, temperature=0.0),
        SamplingParams(100, seed=1),
        SamplingParams(100, temperature=1.5, top_p=0.95, seed=2),
    ]
    requests = [(prompt, kinds[at % 3]) for at, prompt in enumerate(mixed_prompts(24))]
    done = run(model, requests, eos_ids=frozenset({256, 257, 258}))
    for result in done.results:
        assert result.reason == "length"
        text = tokenizer.decode(result.tokens)
        assert len(text) == 100
        assert text.isprintable()


def test_text_of_any_kind_goes_through_its_tokenizer_unchanged() -> None:
    tokenizer = tiny_tokenizer()
    for text in ("hello world", "  two  spaces\n\ttab", "naïve 中文 🎉", "\x00\x7f", ""):
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == len(text.encode())
        assert tokenizer.decode(ids) == text


def test_its_chat_template_frames_each_message() -> None:
    tokenizer = tiny_tokenizer()
    messages = [{"role": "user", "content": "hi"}]
    framed = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert framed == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(framed)["input_ids"]
    assert [at for at in ids if at > 255] == [257, 258, 257]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nhi\nassistant\n"
