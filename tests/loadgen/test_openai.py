"""OpenAI's dialects: what is asked, and what each kind of chunk says."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_loadgen.dialects import DIALECTS, DialectError, Output, Said
from prony_loadgen.prompt import Prompt
from prony_loadgen.sse import Event

CHAT, COMPLETIONS = DIALECTS["openai-chat"], DIALECTS["openai-completions"]


def said(chunk: Any, *, name: str = "message") -> Said:
    return CHAT.read_event(Event(name, json.dumps(chunk).encode()))


def of_delta(delta: Any) -> list[tuple[str, str]]:
    """Channel and text of what a delta holds."""
    outputs = said({"choices": [{"index": 0, "delta": delta}]}).outputs
    return [(output.channel, output.text) for output in outputs]


def test_a_chat_body_asks_for_a_stream_with_usage() -> None:
    body = CHAT.body(Prompt(text="Hi"), model="m", max_tokens=7, ignore_eos=False, extra={})
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
    }


def test_messages_pass_through_a_chat_body_untouched() -> None:
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": [1]})
    prompt = Prompt(messages=messages)
    body = CHAT.body(prompt, model="m", max_tokens=None, ignore_eos=False, extra={})
    assert body["messages"] == list(messages)
    assert "max_tokens" not in body


def test_ignore_eos_is_named_only_where_it_is_wanted() -> None:
    prompt = Prompt(text="Hi")
    for dialect in DIALECTS.values():
        asked = dialect.body(prompt, model="m", max_tokens=1, ignore_eos=True, extra={})
        assert ("ignore_eos" in asked) is dialect.ignores_eos
        asked = dialect.body(prompt, model="m", max_tokens=1, ignore_eos=False, extra={})
        assert "ignore_eos" not in asked


def test_extra_fields_win() -> None:
    extra = {"temperature": 0, "max_tokens": 3, "stream_options": None}
    for dialect in DIALECTS.values():
        body = dialect.body(
            Prompt(text="Hi"), model="m", max_tokens=9, ignore_eos=False, extra=extra
        )
        assert {key: body[key] for key in extra} == extra


def test_completions_take_a_text_and_refuse_messages() -> None:
    body = COMPLETIONS.body(Prompt(text="Hi"), model="m", max_tokens=7, ignore_eos=False, extra={})
    assert body["prompt"] == "Hi"
    assert "messages" not in body
    with pytest.raises(DialectError, match="openai-chat"):
        COMPLETIONS.body(
            Prompt(messages=({},)), model="m", max_tokens=7, ignore_eos=False, extra={}
        )


def test_a_prompt_is_a_text_or_messages() -> None:
    for text, messages in ((None, None), ("Hi", ({},))):
        with pytest.raises(ValueError, match="exactly one"):
            Prompt(text=text, messages=messages)


@pytest.mark.parametrize(
    ("delta", "outputs"),
    [
        ({"content": "a"}, [("text", "a")]),
        ({"role": "assistant", "content": "a"}, [("text", "a")]),
        ({"reasoning_content": "a"}, [("reasoning", "a")]),
        ({"reasoning": "a"}, [("reasoning", "a")]),
        ({"reasoning": "a", "reasoning_content": "a"}, [("reasoning", "a")]),
        ({"reasoning": "a", "content": "b"}, [("reasoning", "a"), ("text", "b")]),
        ({"refusal": "a"}, [("refusal", "a")]),
        (
            {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]},
            [("tool", "f{")],
        ),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}, [("tool", "}")]),
        ({"function_call": {"name": "f"}}, [("tool", "f")]),
        ({"content": [{"type": "text", "text": "a"}]}, [("text", "a")]),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]},
            [("reasoning", "a")],
        ),
    ],
)
def test_output_is_found_in_its_channel(delta: Any, outputs: list[tuple[str, str]]) -> None:
    assert of_delta(delta) == outputs


@pytest.mark.parametrize(
    "delta",
    [
        {},
        None,
        {"role": "assistant"},
        {"content": ""},
        {"content": None},
        {"reasoning_content": ""},
        {"tool_calls": []},
        {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "", "arguments": ""}}]},
        {"tool_calls": [None]},
        {"content": 7},
    ],
)
def test_a_delta_without_output_is_metadata(delta: Any) -> None:
    assert of_delta(delta) == []


@pytest.mark.parametrize("chunk", [{}, {"choices": []}, {"choices": None}, {"choices": [None]}])
def test_a_chunk_without_choices_is_metadata(chunk: Any) -> None:
    assert said(chunk) == Said()


def test_a_chunk_may_hold_several_choices_in_any_order() -> None:
    chunk = {
        "choices": [
            {"index": 1, "delta": {"content": "b"}, "finish_reason": "length"},
            {"index": 0, "delta": {"content": "a"}},
        ]
    }
    assert said(chunk).outputs == (Output("text", 1, "b"), Output("text", 0, "a"))
    assert said(chunk).finished == ((1, "length"),)


def test_finish_reasons_are_told_in_openais_words() -> None:
    for sent, told in {"stop": "stop", "eos_token": "stop", "max_tokens": "length"}.items():
        assert said({"choices": [{"delta": {}, "finish_reason": sent}]}).finished == ((0, told),)
    for none in (None, "", 7):
        assert said({"choices": [{"delta": {}, "finish_reason": none}]}).finished == ()


def test_usage_counts_tokens_or_leaves_them_unknown() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    assert said({"choices": [], "usage": usage}).usage == usage
    assert (CHAT.prompt_tokens(usage), CHAT.output_tokens(usage)) == (9, 3)
    for unknown in ({}, {"completion_tokens": None}, {"completion_tokens": "3"}):
        assert CHAT.output_tokens(unknown) is None
    nothings: tuple[Any, ...] = (None, {}, 7, [])
    for none in nothings:
        assert said({"choices": [], "usage": none}).usage is None


def test_logprobs_list_tokens_in_both_dialects() -> None:
    chat = {"choices": [{"delta": {"content": "ab"}, "logprobs": {"content": [{}, {}]}}]}
    assert said(chat).listed_tokens == 2
    completions = {"choices": [{"text": "ab", "logprobs": {"tokens": ["a", "b", ""]}}]}
    event = Event("message", json.dumps(completions).encode())
    assert COMPLETIONS.read_event(event).listed_tokens == 3
    empties: tuple[Any, ...] = (None, {}, {"content": None}, {"content": []})
    for empty in empties:
        assert (
            said({"choices": [{"delta": {"content": "a"}, "logprobs": empty}]}).listed_tokens
            is None
        )


@pytest.mark.parametrize(
    ("chunk", "error"),
    [
        ({"error": {"message": "died", "code": 500}}, "died (500)"),
        ({"error": "died"}, "died"),
        ({"object": "error", "message": "died", "code": 400}, "died (400)"),
        ({"error": {"type": "overloaded"}, "choices": []}, "(overloaded)"),
        ({"error": {"strange": 1}}, '{"error": {"strange": 1}}'),
        ({"error": {"message": "two\nlines"}}, "two lines"),
    ],
)
def test_an_error_object_is_told_in_one_line(chunk: Any, error: str) -> None:
    assert said(chunk).error == error


def test_an_event_named_error_is_one_whatever_it_holds() -> None:
    assert said({"message": "lost", "code": 503}, name="error").error == "lost (503)"
    assert CHAT.read_event(Event("error", b"no JSON")).error == "no JSON"


def test_a_null_error_is_none() -> None:
    assert said({"error": None, "choices": []}).error is None


def test_the_end_mark_and_heartbeats() -> None:
    for data in (b"[DONE]", b" [DONE] "):
        assert CHAT.read_event(Event("message", data)).done
    for data in (b"", b"  "):
        assert CHAT.read_event(Event("message", data)) == Said()


@pytest.mark.parametrize("data", [b"{", b"null", b"[]", b'"text"', b"{} {}", b"[" * 100_000])
def test_what_is_not_one_json_object_is_malformed(data: bytes) -> None:
    malformed = CHAT.read_event(Event("message", data)).malformed
    assert malformed is not None
    assert len(malformed) < 400


def test_invalid_utf8_becomes_replacement_characters() -> None:
    data = b'{"choices":[{"delta":{"content":"a\xffb"}}]}'
    assert CHAT.read_event(Event("message", data)).outputs == (Output("text", 0, "a\ufffdb"),)


def test_a_whole_answer_says_the_same_as_a_stream() -> None:
    answer = {
        "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 2},
    }
    whole = CHAT.read_whole(json.dumps(answer).encode())
    assert whole.outputs == (Output("text", 0, "Hi"),)
    assert whole.finished == ((0, "stop"),)
    assert CHAT.read_whole(b'{"object": "none"}').malformed is not None
    assert CHAT.read_whole(b'{"error": "none"}').error == "none"
    text = COMPLETIONS.read_whole(b'{"choices": [{"text": "Hi", "finish_reason": "stop"}]}')
    assert text.outputs == (Output("text", 0, "Hi"),)


WORDS = ["choices", "delta", "message", "content", "text", "index", "finish_reason", "usage"]
WORDS += ["error", "logprobs", "tokens", "tool_calls", "function", "name", "arguments", "code"]
KEYS = st.sampled_from(WORDS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.floats() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_no_json_whatever_its_types_raises(value: Any) -> None:
    data = json.dumps(value).encode()
    for dialect in DIALECTS.values():
        dialect.read_event(Event("message", data))
        dialect.read_event(Event("error", data))
        dialect.read_whole(data)


@given(st.binary(max_size=60))
def test_no_bytes_raise(data: bytes) -> None:
    for dialect in DIALECTS.values():
        dialect.read_event(Event("message", data))
        dialect.read_whole(data)
