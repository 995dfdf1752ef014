"""What is asked: made prompts and prompts files."""

from itertools import islice
from pathlib import Path

import pytest

from prony_loadgen.prompts import drafts, read_prompts
from prony_loadgen.scenario import Scenario, load_scenario
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.vocabulary import WORDS


def scenario(**keys: object) -> Scenario:
    return Scenario.model_validate(
        {"arrivals": {"rate": 1}, "requests": 1, "seed": 5, "prompts": {"input_tokens": 16}} | keys
    )


def texts(of: Scenario, count: int) -> list[str]:
    return [str(draft.prompt.text) for draft in islice(drafts(of), count)]


def test_a_made_prompt_has_as_many_words_as_tokens_were_asked() -> None:
    lengths = {"distribution": "uniform", "min": 1, "max": 50}
    for draft in islice(drafts(scenario(prompts={"input_tokens": lengths})), 200):
        assert len(str(draft.prompt.text).split()) == draft.prompt.asked_tokens


def test_words_are_short_and_told_apart() -> None:
    assert len(set(WORDS)) == len(WORDS) > 250
    assert all(word.isascii() and word.isalpha() and len(word) <= 5 for word in WORDS)


def test_no_two_prompts_of_a_run_start_alike() -> None:
    starts = {tuple(text.split()[:4]) for text in texts(scenario(), 5000)}
    assert len(starts) == 5000


def test_neighbours_differ_in_their_first_word() -> None:
    first = [text.split()[0] for text in texts(scenario(), len(WORDS))]
    assert len(set(first)) == len(WORDS)


def test_other_seeds_start_their_prompts_otherwise() -> None:
    one = {text.split(" ", 4)[:4].__str__() for text in texts(scenario(seed=1), 1000)}
    two = {text.split(" ", 4)[:4].__str__() for text in texts(scenario(seed=2), 1000)}
    assert not one & two


def test_a_seed_means_one_stream_of_prompts_and_lengths() -> None:
    chat = load_scenario("chat", {"seed": "3"})
    assert list(islice(drafts(chat), 100)) == list(islice(drafts(chat), 100))


def test_a_seed_keeps_meaning_the_same_prompts() -> None:
    # What a seed means may not change between versions: results would no longer compare.
    assert texts(scenario(seed=1, prompts={"input_tokens": 8}), 2) == PINNED


def test_output_lengths_do_not_change_the_prompts() -> None:
    assert texts(scenario(), 10) == texts(scenario(output={"tokens": "5..50"}), 10)


def test_a_prompts_file_is_sent_in_order_and_again(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "one", "output_tokens": 3}\r\n'
        b"\r\n"
        b'{"messages": [{"role": "user", "content": "two"}]}\n'
    )
    stream = drafts(scenario(prompts={"file": str(path)}, output={"tokens": 9}))
    first, second, third = islice(stream, 3)
    assert (first.prompt.text, first.output_tokens) == ("one", 3)
    assert second.prompt.messages == ({"role": "user", "content": "two"},)
    assert second.output_tokens == 9
    assert third == first


def test_every_bad_row_of_a_prompts_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(
        b'{"prompt": "fine"}\n'
        b"{prompt: no}\n"
        b'{"promt": "x"}\n'
        b'["x"]\n'
        b'{"prompt": ""}\n'
        b'{"prompt": "a", "messages": []}\n'
        b'{"messages": []}\n'
        b'{"messages": [{"content": "x"}]}\n'
        b'{"prompt": "a", "output_tokens": 0}\n'
        b'{"prompt": "\xff"}\n'
    )
    with pytest.raises(FileError) as raised:
        read_prompts(path)
    assert raised.value.lines == [
        "p.jsonl:2: not JSON: Expecting property name enclosed in double quotes at column 2",
        "p.jsonl:3: unknown key 'promt' (valid: prompt, messages, output_tokens)",
        'p.jsonl:4: must be an object such as {"prompt": "..."}, got [\'x\']',
        "p.jsonl:5: prompt must be a text that is not empty, got ''",
        'p.jsonl:6: needs either "prompt" or "messages"',
        "p.jsonl:7: messages must be a list that is not empty, got []",
        "p.jsonl:8: each message needs a \"role\", got {'content': 'x'}",
        "p.jsonl:9: output_tokens must be a whole number above 0, got 0",
        "p.jsonl:10: not UTF-8 text",
    ]


def test_messages_do_not_fit_a_dialect_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n')
    with pytest.raises(FileError, match=r"p.jsonl:2: openai-completions takes texts"):
        drafts(scenario(prompts={"file": str(path)}, dialect="openai-completions"))


def test_of_a_thousand_bad_rows_twenty_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("no\n" * 1000)
    with pytest.raises(FileError) as raised:
        read_prompts(path)
    assert len(raised.value.lines) == 21
    assert raised.value.lines[-1] == "p.jsonl: and 980 more bad rows"


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff\r\n"])
def test_a_prompts_file_without_prompts_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(FileError, match=r"p.jsonl: no prompts in it"):
        read_prompts(path)


def test_a_prompts_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere.jsonl: No such file or directory"):
        read_prompts(tmp_path / "nowhere.jsonl")


PINNED = ["fill hall end luck cash born large help", "film hall end luck egg bed flat inch"]
