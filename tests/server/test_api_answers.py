"""What a client of the OpenAI API gets back when nothing is wrong."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.live_server import LiveServer, live_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as live:
        yield live


def counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


def test_a_chat_answer_has_openais_shape_and_counts_its_tokens(server: LiveServer) -> None:
    answer = server.chat("hello", max_tokens=7, temperature=0)
    assert answer.status == 200
    body = answer.json
    assert body["id"].startswith("chatcmpl-") and answer.headers["x-request-id"] == body["id"]
    assert body["object"] == "chat.completion" and body["model"] == "tiny"
    assert isinstance(body["created"], int)
    [choice] = body["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 7  # tiny writes one character a token
    # <|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n, a token a byte or special token
    assert counts(body["usage"]) == (24, 7, 31)


def test_a_completion_answer_has_openais_shape_and_stops_after_16_tokens_by_default(
    server: LiveServer,
) -> None:
    body = server.complete("hello", temperature=0).json
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"
    [choice] = body["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    assert len(choice["text"]) == 16 and choice["finish_reason"] == "length"
    assert counts(body["usage"]) == (5, 16, 21)


def test_a_chat_stream_opens_with_the_role_and_closes_with_reason_usage_and_done(
    server: LiveServer,
) -> None:
    options = {"include_usage": True}
    answer = server.chat(max_tokens=5, temperature=0, stream=True, stream_options=options)
    *chunks, done = answer.events
    assert done == "[DONE]"
    assert {chunk["id"] for chunk in chunks} == {answer.headers["x-request-id"]}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    *choices, usage = chunks
    assert usage["choices"] == []
    assert counts(usage["usage"]) == (24, 5, 29)
    assert [chunk["usage"] for chunk in choices] == [None] * 7
    deltas = [chunk["choices"][0]["delta"] for chunk in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [len(delta["content"]) for delta in deltas[1:-1]] == [1] * 5  # an output, a chunk
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in choices]
    assert reasons == [None] * 6 + ["length"]


def test_a_completion_stream_carries_text_without_a_role(server: LiveServer) -> None:
    *chunks, done = server.complete(max_tokens=3, stream=True).events
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all("usage" not in chunk for chunk in chunks)  # it was not asked for
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert [len(text) for text in texts] == [1, 1, 1, 0]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_continuous_usage_counts_up_with_every_chunk(server: LiveServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.complete(max_tokens=3, stream=True, stream_options=options).events
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [1, 2, 3, 3, 3]


def test_streamed_and_whole_answers_have_the_same_text(server: LiveServer) -> None:
    settings = {"max_tokens": 40, "temperature": 0.8, "top_p": 0.9, "seed": 7}
    whole = server.chat("tell me", **settings).json["choices"][0]["message"]["content"]
    events = server.chat("tell me", **settings, stream=True).events[:-1]
    assert whole == "".join(e["choices"][0]["delta"].get("content", "") for e in events)


def test_a_seed_repeats_an_answer_and_another_seed_changes_it(server: LiveServer) -> None:
    first, second, *others = (
        server.complete(max_tokens=30, seed=seed).json["choices"][0]["text"]
        for seed in (3, 3, 4, -3, 2**63 - 1, -(2**63))
    )
    assert first == second
    assert len({first, *others}) == 5


def test_both_names_of_the_output_limit_are_understood_by_both_endpoints(
    server: LiveServer,
) -> None:
    assert server.chat(max_completion_tokens=2).json["usage"]["completion_tokens"] == 2
    assert server.complete(max_completion_tokens=2).json["usage"]["completion_tokens"] == 2
    assert server.chat(max_tokens=2, max_completion_tokens=2).status == 200


def test_a_chat_without_a_limit_fills_the_context() -> None:
    with live_server(max_model_len=60) as small:
        assert small.chat().json["usage"]["total_tokens"] == 60


def test_a_kv_cache_smaller_than_the_context_bounds_a_chat_without_a_limit() -> None:
    with live_server(num_gpu_blocks_override=3) as small:
        assert small.chat().json["usage"]["total_tokens"] == 48


def test_v06_a_limit_that_is_null_or_absent_is_the_default(server: LiveServer) -> None:
    assert counts(server.complete("v06", max_tokens=None).json["usage"])[1] == 16
    assert counts(server.complete("v06", max_tokens=1).json["usage"])[1] == 1


def test_v07_temperature_0_is_greedy_and_top_p_1_the_whole_distribution(server: LiveServer) -> None:
    settings: dict[str, Any] = {"max_tokens": 12, "top_p": 1}
    greedy = [server.complete("v07", temperature=0, seed=s, **settings).json for s in (1, 2)]
    assert greedy[0]["choices"] == greedy[1]["choices"]
    assert server.complete("v07", temperature=2, **settings).status == 200


def test_a_prompt_that_was_there_before_is_counted_as_cached(server: LiveServer) -> None:
    prompt = "a prompt of several blocks, asked twice: " * 3
    first, second = (server.complete(prompt, max_tokens=1).json["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"]["cached_tokens"] >= len(prompt) - 32


def test_choices_are_answers_of_their_own_and_the_first_is_as_if_asked_for_alone(
    server: LiveServer,
) -> None:
    settings: dict[str, Any] = {"max_tokens": 20, "seed": 5}
    body = server.chat("several", n=3, **settings).json
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert counts(body["usage"])[1] == 60  # the prompt counts once
    alone = server.chat("several", **settings).json
    assert alone["choices"][0] == body["choices"][0]
    assert alone["usage"]["prompt_tokens"] == body["usage"]["prompt_tokens"]


def test_streamed_choices_come_interleaved_each_with_role_and_reason(server: LiveServer) -> None:
    settings: dict[str, Any] = {"max_tokens": 20, "seed": 5, "n": 3}
    options = {"include_usage": True}
    answer = server.chat("several", stream=True, stream_options=options, **settings)
    *chunks, usage, done = answer.events
    assert done == "[DONE]" and usage["choices"] == []
    choices = [chunk["choices"][0] for chunk in chunks]
    order = [choice["index"] for choice in choices]
    assert order != sorted(order)
    whole = server.chat("several", **settings).json
    assert counts(usage["usage"]) == counts(whole["usage"])
    for index in range(3):
        mine = [choice for choice in choices if choice["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == whole["choices"][index]["message"]["content"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["length"]


def test_logprobs_of_a_chat_name_tokens_bytes_and_alternatives(server: LiveServer) -> None:
    settings: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "logprobs": True}
    # What comes from the prefix cache has other last digits: then all that follow come from there.
    server.chat("why", top_logprobs=3, **settings)
    body = server.chat("why", top_logprobs=3, **settings).json
    [choice] = body["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == choice["message"]["content"]
    for each in content:
        assert bytes(each["bytes"]).decode() == each["token"] and each["logprob"] <= 0
        assert len(each["top_logprobs"]) == 3
        assert each["top_logprobs"][0]["logprob"] == each["logprob"]  # greedy: the likeliest
        values = [other["logprob"] for other in each["top_logprobs"]]
        assert values == sorted(values, reverse=True)
    chunks = server.chat("why", top_logprobs=3, stream=True, **settings).events[:-1]
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [each for some in told if some for each in some["content"]] == content
    without = server.chat("why", **settings).json["choices"][0]["logprobs"]["content"]
    assert [each["top_logprobs"] for each in without] == [[]] * 6


def test_logprobs_of_a_completion_are_columns_with_offsets(server: LiveServer) -> None:
    settings: dict[str, Any] = {"max_tokens": 5, "seed": 3, "logprobs": 2}
    [choice] = server.complete("why", **settings).json["choices"]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    assert told["text_offset"] == [0, 1, 2, 3, 4]
    for token, logprob, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert top[token] == logprob and len(top) in (2, 3)


def test_an_echo_puts_the_prompt_before_the_answer(server: LiveServer) -> None:
    settings: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
    text = server.complete("hi ", **settings).json["choices"][0]["text"]
    for prompt in ("hi ", list(b"hi ")):
        body = server.complete(prompt, echo=True, n=2, **settings).json
        assert [choice["text"] for choice in body["choices"]] == ["hi " + text] * 2
    chunks = server.complete("hi ", echo=True, stream=True, **settings).events[:-1]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hi " + text


def test_penalties_and_limits_change_the_answer_and_a_seed_still_repeats_it(
    server: LiveServer,
) -> None:
    settings: dict[str, Any] = {"max_tokens": 40, "seed": 1}

    def text(**more: Any) -> str:
        answer = server.complete("x", **settings, **more)
        assert answer.status == 200, answer.body
        return str(answer.json["choices"][0]["text"])

    plain = text()
    changes: list[dict[str, Any]] = [
        {"top_k": 2},
        {"min_p": 0.4},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"logit_bias": {str(ord("z")): 100}},
    ]
    for change in changes:
        assert text(**change) == text(**change) != plain
    assert text(logit_bias={str(ord("z")): 100}) == "z" * 40
    varied = text(temperature=0, frequency_penalty=2.0)
    assert len(set(varied)) > len(set(text(temperature=0)))


def test_stop_tokens_end_an_answer_and_are_not_part_of_it(server: LiveServer) -> None:
    settings: dict[str, Any] = {"max_tokens": 20, "temperature": 0}
    text = server.complete("stop", **settings).json["choices"][0]["text"]
    last = text[4]
    expected = text[: text.index(last)]
    body = server.complete("stop", stop_token_ids=[ord(last)], **settings).json
    assert body["choices"][0]["text"] == expected
    assert body["choices"][0]["finish_reason"] == "stop"
    later = server.complete("stop", stop_token_ids=[ord(last)], min_tokens=8, **settings).json
    assert later["usage"]["completion_tokens"] >= 8
    assert last not in later["choices"][0]["text"][:8]


def test_v08_a_stop_string_ends_answer_and_generation(server: LiveServer) -> None:
    settings: dict[str, Any] = {"max_tokens": 80, "temperature": 0}
    text = server.chat("stop", **settings).json["choices"][0]["message"]["content"]
    stop = text[20:24]
    expected = text[: text.index(stop)]
    finished = "prony_requests_finished_total"
    stopped = server.metric(finished, finish_reason="stop")
    assert stopped is not None
    body = server.chat("stop", stop=stop, **settings).json
    assert body["choices"][0]["message"]["content"] == expected
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len(expected) + 4
    *chunks, done = server.chat("stop", stop=["never", stop], stream=True, **settings).events
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == expected and done == "[DONE]"
    server.wait_for(finished, stopped + 2, finish_reason="stop")  # no abort in the books


def test_a_prompt_over_the_context_is_cut_to_its_end_with_a_sliding_window() -> None:
    with live_server(max_model_len=128, long_prompts="sliding-window") as server:
        settings: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
        prompt = "".join(chr(97 + i % 26) for i in range(200))
        cut, end = server.complete(prompt, **settings), server.complete(prompt[80:], **settings)
        assert cut.json["choices"] == end.json["choices"]
        assert cut.headers["x-prony-truncated-prompt-tokens"] == "80"
        assert cut.json["usage"]["prompt_tokens"] == 120
        assert cut.json["usage"]["prompt_tokens_details"]["truncated_tokens"] == 80
        assert "x-prony-truncated-prompt-tokens" not in end.headers
        # A chat without a limit leaves a quarter of the context to the answer.
        chat = server.chat("y" * 500, stream=True, stream_options={"include_usage": True})
        usage = chat.events[-2]["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (96, 32)
        refused = server.complete("x", max_tokens=128)
        assert refused.status == 400 and "128" in refused.error["message"]


def test_content_may_come_as_parts_of_text(server: LiveServer) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    settings = {"max_tokens": 5, "temperature": 0}
    as_parts, as_text = server.chat(parts, **settings), server.chat("hel\nlo", **settings)
    assert as_parts.json["choices"] == as_text.json["choices"]


def test_a_completion_takes_token_ids_and_a_batch_of_one(server: LiveServer) -> None:
    settings = {"max_tokens": 5, "temperature": 0}
    as_text = server.complete("hi", **settings).json["choices"]
    ids = list(b"hi")  # tiny: a token a byte
    for prompt in (["hi"], ids, [ids]):
        assert server.complete(prompt, **settings).json["choices"] == as_text


@pytest.mark.parametrize(
    "harmless",
    [
        {"n": 1, "stop": None, "logprobs": None, "tools": None, "logit_bias": {}},
        {"user": "u-1", "metadata": {"run": "7"}, "store": False},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "top_k": -1, "min_p": 0, "best_of": 1},
        {"response_format": {"type": "text"}, "tool_choice": "none", "stop": []},
        {"temperature": None, "seed": None, "max_tokens": None, "max_completion_tokens": 3},
    ],
)
def test_parameters_that_ask_for_nothing_are_accepted(
    server: LiveServer, harmless: dict[str, object]
) -> None:
    assert server.chat(**{"max_tokens": 3, **harmless}).status == 200


def test_the_model_list_names_the_one_model_and_its_context(server: LiveServer) -> None:
    body = server.get("/v1/models").json
    assert body["object"] == "list"
    [model] = body["data"]
    assert model["id"] == "tiny" and model["object"] == "model" and model["owned_by"] == "prony"
    assert model["max_model_len"] == 4096


def test_the_served_name_is_what_the_client_must_say() -> None:
    with live_server(served_model_name="house/small") as named:
        assert named.get("/v1/models").json["data"][0]["id"] == "house/small"
        assert named.complete(model="house/small", max_tokens=1).json["model"] == "house/small"
        assert named.complete(model="tiny", max_tokens=1).status == 404
