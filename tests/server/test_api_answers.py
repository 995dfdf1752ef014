"""What a client of the OpenAI API gets back when nothing is wrong."""

from collections.abc import Iterator

import pytest
from tests.server.live_server import LiveServer, live_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as live:
        yield live


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
    assert body["usage"] == {"prompt_tokens": 24, "completion_tokens": 7, "total_tokens": 31}


def test_a_completion_answer_has_openais_shape_and_stops_after_16_tokens_by_default(
    server: LiveServer,
) -> None:
    body = server.complete("hello", temperature=0).json
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"
    [choice] = body["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    assert len(choice["text"]) == 16 and choice["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}


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
    assert usage["usage"] == {"prompt_tokens": 24, "completion_tokens": 5, "total_tokens": 29}
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
        {"presence_penalty": 0, "frequency_penalty": 0.0, "top_k": -1, "min_p": 0},
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
