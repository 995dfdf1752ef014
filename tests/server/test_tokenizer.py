"""Tokens to text, a few at a time: joined it is the whole text, and no piece splits a character."""

import random
from typing import Any

import pytest
from tests.needs import smollm2
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from prony_server.openai_api import ApiError, Conversation
from prony_server.tiny import tiny_tokenizer
from prony_server.tokenizer import Tokenizer

TEXT = "Grüße, 中文 and 👩\u200d🔬!"
BROKEN = "\N{REPLACEMENT CHARACTER}"


def sentencepiece_like() -> Any:
    """Llama 2's kind: words with ▁, bytes as <0xE4>, a space dropped at the start."""
    words = ["<unk>", "</s>", "▁", "▁Hello", "▁wor", "ld", "!", "▁\N{REPLACEMENT CHARACTER}"]
    vocabulary = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    ids = {token: number for number, token in enumerate(vocabulary)}
    backend = Backend(models.BPE(vocab=ids, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def pieces(tokenizer: Any, ids: list[int], prompt: tuple[int, ...] = ()) -> list[str]:
    """One token at a time; the last piece is what was still held."""
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer(tokenizer)
    detokenizer = tokenizer.detokenizer(prompt)
    return [*(detokenizer.feed([token]) for token in ids), detokenizer.finish()]


def test_a_character_of_several_tokens_comes_whole_with_its_last_one() -> None:
    assert pieces(tiny_tokenizer(), list("a中😀".encode())) == [
        *("a", "", "", "中"),
        *("", "", "", "😀"),
        "",
    ]


@pytest.mark.parametrize("make", [tiny_tokenizer, sentencepiece_like])
def test_pieces_join_to_the_text_in_whatever_portions_the_tokens_come(make: Any) -> None:
    tokenizer = make()
    first = tokenizer.convert_tokens_to_ids("<0x00>") if make is sentencepiece_like else 0
    ids = [first + byte for byte in TEXT.encode()]
    rng = random.Random(1)
    for _ in range(50):
        detokenizer = Tokenizer(tokenizer).detokenizer()
        got, rest = "", ids
        while rest:
            size = rng.randint(1, 9)
            piece, rest = detokenizer.feed(rest[:size]), rest[size:]
            assert BROKEN not in piece
            got += piece
        assert got + detokenizer.finish() == TEXT


def test_an_answer_cut_inside_a_character_ends_in_one_replacement_character() -> None:
    assert "".join(pieces(tiny_tokenizer(), list("x😀".encode()[:-2]))) == f"x{BROKEN}"
    llama = sentencepiece_like()
    ids = llama.convert_tokens_to_ids(["▁Hello", "<0xE4>", "<0xB8>"])
    assert "".join(pieces(llama, ids)) == llama.decode(ids)


def test_bytes_that_never_become_a_character_are_not_held_back() -> None:
    assert pieces(tiny_tokenizer(), [0x80, 0x80, ord("a")]) == [BROKEN, BROKEN, "a", ""]
    llama = sentencepiece_like()
    ids = llama.convert_tokens_to_ids(["<0x80>"] * 5 + ["▁Hello"])
    *early, _ = pieces(llama, ids)
    assert "".join(early) == llama.decode(ids)


def test_random_tokens_decode_as_the_tokenizer_itself_decodes_them_all_at_once() -> None:
    tokenizer, rng = tiny_tokenizer(), random.Random(2)
    for _ in range(300):
        ids = [rng.randrange(len(tokenizer)) for _ in range(40)]
        whole = tokenizer.decode(ids, skip_special_tokens=True)
        assert "".join(pieces(tokenizer, ids)) == whole


def test_smollm2_tokens_decode_as_its_tokenizer_decodes_them() -> None:
    from transformers import AutoTokenizer

    tokenizer, rng = AutoTokenizer.from_pretrained(smollm2()), random.Random(3)
    ours = Tokenizer(tokenizer)
    for text in (TEXT, "def f(x):\n\treturn x  # ok\n", "1,000 isn't  much ."):
        assert "".join(pieces(ours, ours.encode(text))) == text
    for _ in range(100):
        ids = [rng.randrange(len(tokenizer)) for _ in range(60)]
        whole = tokenizer.decode(ids, skip_special_tokens=True)
        assert "".join(pieces(ours, ids)) == whole


def test_special_tokens_and_ids_that_no_token_has_are_no_text() -> None:
    tokenizer = tiny_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert "".join(pieces(tokenizer, [ord("a"), end, 100_000, ord("b")])) == "ab"


def test_a_continuation_keeps_the_space_of_its_first_word_and_a_fresh_answer_drops_it() -> None:
    llama = sentencepiece_like()
    hello, *world = llama.convert_tokens_to_ids(["▁Hello", "▁wor", "ld"])
    assert "".join(pieces(llama, world, prompt=(hello,))) == " world"
    assert "".join(pieces(llama, world)) == "world"


def test_a_long_answer_costs_no_more_a_token_than_a_short_one() -> None:
    class Counting:
        """A tokenizer that counts how many tokens it was made to decode."""

        def __init__(self) -> None:
            self.decoded = 0
            self.all_special_ids: list[int] = []
            self.added_tokens_decoder: dict[int, Any] = {}

        def decode(self, ids: list[int], **_: Any) -> str:
            self.decoded += len(ids)
            return BROKEN * len(ids)  # the worst: every piece could be unfinished

    counting = Counting()
    pieces(counting, [1] * 1000)
    assert counting.decoded < 20_000


def test_a_prompt_is_encoded_with_and_a_conversation_without_the_tokenizers_own_start() -> None:
    tokenizer = tiny_tokenizer()
    ids = Tokenizer(tokenizer).encode(Conversation(({"role": "user", "content": "hi"},)))
    assert tokenizer.decode(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert Tokenizer(tokenizer).encode("hi") == list(b"hi")
    assert Tokenizer(tokenizer).encode((5, 6)) == [5, 6]


def test_a_model_without_a_chat_template_says_what_to_use_instead() -> None:
    with pytest.raises(ApiError, match="no chat template; use /v1/completions"):
        Tokenizer(sentencepiece_like()).encode(Conversation(({"role": "user", "content": "hi"},)))


def test_a_conversation_that_the_template_refuses_is_the_requests_fault() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ApiError, match="roles must alternate") as raised:
        Tokenizer(tokenizer).encode(Conversation(({"role": "user", "content": "hi"},)))
    assert raised.value.status == 400
