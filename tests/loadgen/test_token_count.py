"""Prompts of a wanted number of tokens, by words, by the server's count and by a tokenizer."""

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.fake_server import FakeServer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from prony_loadgen.endpoint import reach
from prony_loadgen.prompts import drafts
from prony_loadgen.scenario import Scenario
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.token_count import TokenCount, by_tokenizer
from prony_loadgen.token_probe import PROBES, fit, tokens_at
from prony_loadgen.vocabulary import WORDS


class ByteServer(FakeServer):
    """Counts letters, and 18 more for its chat template."""

    def count(self, asked: dict[str, Any]) -> int:
        if "prompt" in asked:
            return len(asked["prompt"].encode())
        return 18 + sum(len(message["content"].encode()) for message in asked["messages"])

    def listed(self) -> dict[str, Any]:
        return {**super().listed(), "max_model_len": 4096}


class WordServer(FakeServer):
    def count(self, asked: dict[str, Any]) -> int:
        return 9 + sum(len(message["content"].split()) for message in asked["messages"])


class ConstantServer(FakeServer):
    def count(self, asked: dict[str, Any]) -> int:
        return 7


def scenario(**keys: object) -> Scenario:
    base = {"prompts": {"input_tokens": "30..400"}, "arrivals": {"rate": 1}, "requests": 1}
    return Scenario.model_validate({**base, "seed": 5, **keys})


def found(server: FakeServer, wanted: Scenario) -> TokenCount:
    target, model = reach(wanted, server.url, None)
    return tokens_at(wanted, target, model)


def counts(server: FakeServer, wanted: Scenario, tokens: TokenCount, many: int = 300) -> list[Any]:
    """(asked, counted by the server) of the first prompts."""
    pairs = []
    for draft in islice(drafts(wanted, tokens), many):
        asked: dict[str, Any] = {
            "messages": draft.prompt.messages or [{"content": draft.prompt.text}]
        }
        if wanted.dialect == "openai-completions":
            asked = {"prompt": draft.prompt.text}
        pairs.append((draft.prompt.asked_tokens, server.count(asked)))
    return pairs


@pytest.mark.parametrize("kind", [ByteServer, WordServer])
def test_prompts_have_the_asked_tokens_by_the_servers_own_count(kind: type[FakeServer]) -> None:
    with kind() as server:
        tokens = found(server, scenario())
    assert tokens.by == "server"
    assert tokens.facts["largest_miss"] == 0
    assert [asked - got for asked, got in counts(server, scenario(), tokens)] == [0] * 300
    # The requests that asked are none of the load's.
    assert server.bodies == []


def test_completions_have_no_template_and_are_exact_too() -> None:
    wanted = scenario(dialect="openai-completions")
    with ByteServer() as server:
        tokens = found(server, wanted)
    assert all(asked == got for asked, got in counts(server, wanted, tokens))


def test_prefixes_count_as_well() -> None:
    prefix = {"tokens": [60, 25], "branches": [2, 3], "hit_share": 0.5}
    wanted = scenario(prompts={"input_tokens": "60..90", "prefix": prefix})
    with ByteServer() as server:
        tokens = found(server, wanted)
    pairs = counts(server, wanted, tokens)
    assert all(asked == got for asked, got in pairs)
    assert min(asked for asked, _ in pairs) >= 60 + 85


def test_a_prompt_too_short_for_the_template_is_one_word() -> None:
    with ByteServer() as server:
        tokens = found(server, scenario())
    assert len(tokens.text(random.Random(1), 5, start=["door", "day", "air", "act"]).split()) == 1


def test_a_server_that_counts_nothing_leaves_words_and_says_why() -> None:
    with ConstantServer() as server:
        tokens = found(server, scenario())
    assert tokens.by == "words"
    assert tokens.to_json()["why"] == (
        "the server's prompt_tokens (7, 7, 7, 7) do not grow with the prompt"
    )
    text = tokens.text(random.Random(1), 25)
    assert len(text.split()) == 25


def test_nobody_is_asked_where_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    wanted = scenario(prompts={"file": str(tmp_path / "p.jsonl")})
    with ByteServer() as server:
        assert found(server, wanted).by == "words"
    never = scenario(prompts={"input_tokens": 9, "calibrate": False})
    with ByteServer() as server:
        assert found(server, never).by == "words"


def test_the_context_is_the_one_that_the_server_lists() -> None:
    with ByteServer() as server:
        assert found(server, scenario()).context == 4096
    with WordServer() as server:
        assert found(server, scenario()).context is None


def test_a_worker_makes_the_same_texts_from_what_it_is_sent() -> None:
    with ByteServer() as server:
        tokens = found(server, scenario())
    sent = json.loads(json.dumps(tokens.to_message()))
    there = TokenCount.from_message(sent)
    assert list(islice(drafts(scenario(), there), 50)) == list(
        islice(drafts(scenario(), tokens), 50)
    )


def test_a_tokenizer_of_some_subwords_is_fitted_closely() -> None:
    # One in ten words is two tokens: what no count of words or letters can know.
    def count(text: str) -> int:
        return 11 + sum(1 + (hash_of(word) % 10 == 0) for word in text.split())

    def hash_of(word: str) -> int:
        return sum(map(ord, word))

    rng = random.Random(3)
    texts = [
        " ".join(rng.choices([w for w in WORDS if len(w) == letters], k=words))
        for words, letters in PROBES
    ]
    tokens = fit([(text, count(text)) for text in texts])
    made = [(n, count(tokens.text(rng, n))) for n in range(100, 1000, 50)]
    assert all(got == pytest.approx(asked, rel=0.1) for asked, got in made)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BPE that knows common pairs of letters, so that words cost one to five tokens."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_with_a_tokenizer_every_prompt_is_exact_after_encoding_it_again(tokenizer: Path) -> None:
    tokens = by_tokenizer(str(tokenizer), TokenCount())
    assert tokens.count is not None
    for asked in (1, 2, 5, 17, 64, 511, 1024):
        for seed in range(20):
            text = tokens.text(random.Random(seed), asked, start=["door", "day", "air", "act"])
            assert tokens.count(text) == asked or asked < 3, (asked, text)


def test_d05_a_tokenizers_prompts_in_a_scenario(tokenizer: Path) -> None:
    prompts = {"input_tokens": 300, "tokenizer": str(tokenizer), "prefix": {"tokens": 100}}
    count = by_tokenizer(str(tokenizer), TokenCount()).count
    assert count is not None
    made = [str(draft.prompt.text) for draft in islice(drafts(scenario(prompts=prompts)), 50)]
    assert [count(text) for text in made] == [400] * 50
    assert len({text[:150] for text in made}) == 1


def test_what_the_template_adds_is_learnt_from_the_probes(tokenizer: Path) -> None:
    count = by_tokenizer(str(tokenizer), TokenCount()).count
    assert count is not None
    probed = tuple((text, count(text) + 12) for text in ("come and see", "a b c", "the end of it"))
    tokens = by_tokenizer(str(tokenizer), TokenCount(probed=probed))
    assert (tokens.base, tokens.facts["largest_miss"]) == (12, 0)
    text = tokens.text(random.Random(1), 100)
    assert count(text) + 12 == 100


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"prompts.tokenizer .*: no tokenizer.json there"):
        by_tokenizer(str(tmp_path), TokenCount())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match=r"prompts.tokenizer .*tokenizer.json: "):
        by_tokenizer(str(tmp_path), TokenCount())
