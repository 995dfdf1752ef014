"""What is asked: made prompts and prompts files."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from prony_loadgen.plan import make_plan
from prony_loadgen.prompt_file import read_prompts
from prony_loadgen.prompts import drafts
from prony_loadgen.scenario import Scenario, load_scenario
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.token_count import TokenCount
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
        b'{"messages": [{"role": "user", "content": "x", "weight": NaN}]}\n'
        b'{"messages": [{"role": "user", "content": [{"at": -1e999}]}]}\n'
        + b'{"messages": %b}\n' % (b"[" * 100_000)
        + b'{"messages": [{"role": "user", "content": %b}]}\n' % (b"9" * 5000)
    )
    with pytest.raises(FileError) as raised:
        read_prompts(path)
    assert raised.value.lines == [
        "p.jsonl:2: not JSON: Expecting property name enclosed in double quotes at column 2",
        "p.jsonl:3: unknown key 'promt' (valid: prompt, messages, output_tokens, reference, "
        "contains, pattern)",
        'p.jsonl:4: must be an object such as {"prompt": "..."}, got [\'x\']',
        "p.jsonl:5: prompt must be a text that is not empty, got ''",
        'p.jsonl:6: needs either "prompt" or "messages"',
        "p.jsonl:7: messages must be a list that is not empty, got []",
        "p.jsonl:8: each message needs a \"role\", got {'content': 'x'}",
        "p.jsonl:9: output_tokens must be a whole number above 0, got 0",
        "p.jsonl:10: not UTF-8 text",
        "p.jsonl:11: messages[0].weight is nan, a number that JSON does not know",
        "p.jsonl:12: messages[0].content[0].at is -inf, a number that JSON does not know",
        "p.jsonl:13: not JSON that can be read: it is nested too deep",
        "p.jsonl:14: not JSON that can be read: Exceeds the limit (4300 digits) for integer string "
        "conversion: value has 5000 digits; use sys.set_int_max_str_digits() to increase the limit",
    ]


def test_messages_do_not_fit_a_dialect_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n')
    with pytest.raises(FileError, match=r"p.jsonl:2: openai-completions takes texts"):
        drafts(scenario(prompts={"file": str(path)}, dialect="openai-completions"))


def test_d06_a_byte_order_mark_windows_line_ends_and_blank_lines_are_no_rows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}')
    assert [row.prompt.text for row in read_prompts(path)] == ["a", "b"]


def test_a_text_that_is_to_be_the_same_is_never_forced_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "reference": "b"}\n{"prompt": "a", "contains": "b"}\n')
    same, part = islice(
        drafts(scenario(prompts={"file": str(path)}, output={"tokens": 9, "mode": "forced"})), 2
    )
    assert (same.forced, part.forced) == (False, True)


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


def test_a_shared_prefix_has_its_share_of_hits_and_the_rest_share_nothing() -> None:
    prefix = {"tokens": [40, 20], "branches": [1, 4], "hit_share": "75%"}
    made = texts(scenario(prompts={"input_tokens": 16, "prefix": prefix}), 2000)
    assert {len(text.split()) for text in made} == {76}
    starts = Counter(" ".join(text.split()[:40]) for text in made)
    [(_, shared), *others] = starts.most_common()
    assert shared / 2000 == pytest.approx(0.75, abs=0.03)
    assert {count for _, count in others} == {1}
    whole = Counter(" ".join(text.split()[:60]) for text in made)
    assert len([count for count in whole.values() if count > 1]) == 4
    # What comes after it is each request's own.
    assert len({" ".join(text.split()[60:64]) for text in made}) == 2000


def test_a_system_prompt_is_a_message_of_its_own() -> None:
    prompts = {"input_tokens": 5, "prefix": {"tokens": 9, "system": True}}
    one, two = islice(drafts(scenario(prompts=prompts)), 2)
    assert one.prompt.messages is not None and two.prompt.messages is not None
    system, user = one.prompt.messages
    assert (system["role"], len(system["content"].split())) == ("system", 9)
    assert (user["role"], len(user["content"].split())) == ("user", 5)
    assert two.prompt.messages[0] == system
    assert one.prompt.asked_tokens == 14
    with pytest.raises(FileError, match="openai-completions takes texts"):
        next(drafts(scenario(prompts=prompts, dialect="openai-completions")))


def test_a_mix_has_its_weights_its_lengths_and_its_names() -> None:
    classes = [
        {"name": "chat", "weight": 70, "prompts": {"input_tokens": 5}},
        {"name": "code", "weight": 30, "prompts": {"input_tokens": 50}, "output": {"tokens": 9}},
    ]
    mixed = scenario(prompts=None, mix=classes)
    made = list(islice(drafts(mixed), 4000))
    counts = Counter(draft.cls for draft in made)
    assert counts["code"] / 4000 == pytest.approx(0.3, abs=0.03)
    assert {(draft.cls, draft.prompt.asked_tokens) for draft in made} == {("chat", 5), ("code", 50)}
    assert {draft.output_tokens for draft in made if draft.cls == "code"} == {9}
    assert len({tuple(str(d.prompt.text).split()[:4]) for d in made}) == 4000
    assert made == list(islice(drafts(mixed), 4000))


def test_a_mix_takes_the_place_of_prompts() -> None:
    one = {"name": "a", "weight": 1, "prompts": {"input_tokens": 5}}
    with pytest.raises(ValueError, match="prompts belongs into each class"):
        scenario(mix=[one])
    with pytest.raises(ValueError, match="two classes called 'a'"):
        scenario(prompts=None, mix=[one, one])
    with pytest.raises(ValueError, match="needs prompts"):
        scenario(prompts=None)


SHAREGPT = """[
  {"id": "1", "conversations": [
    {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"},
    {"from": "human", "value": "How are you?"}, {"from": "gpt", "value": "Fine."}]},
  {"id": "2", "conversations": [{"from": "gpt", "value": "I begin"}]},
  {"id": "3", "conversations": [{"from": "human", "value": "Bye"}]}
]
"""


def test_sharegpt_conversations_give_their_first_question_and_later_turns(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(SHAREGPT)
    rows = read_prompts(path, format="sharegpt")
    assert [row.prompt.text for row in rows] == ["Hi", "Bye"]
    assert rows[0].later == (("Hello!", "How are you?"),)
    prompts = {"file": str(path), "format": "sharegpt"}
    one, _ = islice(drafts(scenario(prompts=prompts, turns={"count": 5})), 2)
    assert [(turn.text, turn.stand_in) for turn in one.turns] == [("How are you?", None)]
    asked = scenario(prompts=prompts, turns={"count": 5, "history": "asked"})
    assert next(drafts(asked)).turns[0].stand_in == "Hello!"


def test_bad_conversations_are_named_with_the_line_that_they_begin_in(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(
        SHAREGPT.replace('"from": "human", "value": "Bye"', '"from": "dog", "value": ""')
    )
    with pytest.raises(FileError) as raised:
        read_prompts(path, format="sharegpt")
    assert raised.value.lines == ["s.json:6: from must be human, gpt or system, got 'dog'"]
    path.write_text(SHAREGPT[:-40])
    with pytest.raises(FileError, match=r"s.json:6: not JSON"):
        read_prompts(path, format="sharegpt")
    path.write_text('{"conversations": [{"from": "human", "value": "a"}]}\n{"x": 1}\n')
    with pytest.raises(FileError, match=r's.json:2: must be an object with "conversations"'):
        read_prompts(path, format="sharegpt")


def test_d02_prompts_that_cannot_fit_the_context_are_an_error_before_load() -> None:
    lengths = {"distribution": "empirical", "values": [100, 128, 129, 5000]}
    long = {"prompts": {"input_tokens": lengths, "context": 128}, "output": {"tokens": 64}}
    with pytest.raises(FileError) as raised:
        make_plan(scenario(**long, requests=100))
    assert raised.value.lines == [
        "prompts: 100 of 100 requests cannot fit the context of 128 tokens (the longest: 5,000 "
        "tokens in, 64 out); shorter ones, or too_long: drop (leave them out) or send"
    ]


def test_prompts_that_cannot_fit_are_left_out_or_sent_where_that_is_asked() -> None:
    lengths = {"distribution": "empirical", "values": [10, 64, 65, 5000]}
    prompts = {"input_tokens": lengths, "context": 128, "too_long": "drop"}
    some = scenario(prompts=prompts, output={"tokens": 64}, requests=200)
    assert {draft.prompt.asked_tokens for draft in islice(drafts(some), 200)} == {10, 64}
    plan = make_plan(some)
    assert plan.requests == 200
    assert plan.workload["too_long"] == pytest.approx(100, abs=30)
    assert "prompts do not fit the context: others take their place" in plan.lines()[1]
    every = scenario(prompts={**prompts, "too_long": "send"}, output={"tokens": 64}, requests=200)
    assert max(draft.prompt.asked_tokens or 0 for draft in islice(drafts(every), 200)) == 5000


def test_rows_that_surely_cannot_fit_are_named_by_their_words(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "short"}\n' + json.dumps({"prompt": "word " * 200}) + "\n")
    prompts = {"file": str(path), "context": 128}
    with pytest.raises(FileError, match=r"p.jsonl: line 2: 5 of 10 requests cannot fit"):
        make_plan(scenario(prompts=prompts, output={"tokens": 5}, requests=10))


def test_the_context_that_the_server_tells_counts_as_well() -> None:
    with pytest.raises(FileError, match="cannot fit the context of 20 tokens"):
        make_plan(scenario(output={"tokens": 9}), tokens=TokenCount(context=20))
    assert make_plan(scenario(output={"tokens": 4}), tokens=TokenCount(context=20)).requests == 1


def test_d04_rows_of_a_file_that_are_sent_again_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    plan = make_plan(scenario(prompts={"file": str(path)}, requests=10))
    assert (plan.workload["rows"], plan.workload["reused_rows"]) == (3, 7)


def test_of_many_workers_each_takes_every_kth_prompt() -> None:
    chat = load_scenario("mix", {"seed": "3"})
    whole = list(islice(drafts(chat), 60))
    shards = [list(islice(drafts(chat), index, 60, 3)) for index in range(3)]
    assert [draft for row in zip(*shards, strict=True) for draft in row] == whole
