"""What a client gets back when something is wrong: always OpenAI's shape, always the name of it."""

import http.client
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.live_server import JSON, LiveServer, live_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
KEY = "sesame-123"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(max_model_len=256) as live:
        yield live


def refused(answer: Any, status: int = 400) -> Any:
    """The error, once its shape has been checked."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"].startswith("application/json")
    assert set(answer.json) == {"error"}
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.error["message"]
    return answer.error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_tokens", value) for value in (0, -1, "5", 3.7, True)),
        *(("max_completion_tokens", value) for value in (0, -186, [1])),
        *(("temperature", value) for value in (-1, 2.1, "0", True)),
        *(("top_p", value) for value in (0, 1.5, -0.1)),
        *(("repetition_penalty", value) for value in (0, -1, 1e-300, 1e300, "x")),
        *(("seed", value) for value in (1.5, "7", 2**63)),
        *(("n", value) for value in (0, -1, 129, "1", True)),
        *(("best_of", value) for value in (2, 0)),
        *(("min_tokens", value) for value in (-1, 1.5, 10**6)),
        *(("top_k", value) for value in (-2, 1.5, "all")),
        *(("min_p", value) for value in (-0.1, 1.1, False)),
        *(("presence_penalty", value) for value in (-2.1, 2.1, "0")),
        ("frequency_penalty", 10**400),
        ("frequency_penalty", []),
        ("stop_token_ids", 5),
        *(("stop_token_ids", [value]) for value in ("5", -1, True, 260)),
        ("logit_bias", []),
        *(("logit_bias", {name: 1}) for name in ("260", "x", "-1")),
        ("stop", 5),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("ignore_eos", "yes"),
        ("include_stop_str_in_output", 1),
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("top_logprobs", 3),  # without logprobs: true
        ("echo", True),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("suffix", "x"),
        ("model", 5),
    ],
)
def test_v06_v07_a_value_that_cannot_be_acted_on_is_refused_by_name(
    server: LiveServer, name: str, value: Any, stream: bool
) -> None:
    error = refused(server.chat(**{name: value, "stream": stream}))
    assert error["param"] == name and name in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": [7]}, "stop[0]"),
        ({"stop": "x" * 1001}, "stop[0]"),
        ({"stop": ["\ud800"]}, "stop[0]"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"5": None}}, "logit_bias.5"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"n": 3, "best_of": 1}, "best_of"),
        ({"min_tokens": 17}, "min_tokens"),  # of the 16 of a completion's default
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_place(
    server: LiveServer, body: dict[str, Any], param: str
) -> None:
    error = refused(server.complete(**body))
    assert error["param"] == param and param in error["message"]


def test_min_tokens_over_the_context_are_refused_where_there_is_no_other_limit(
    server: LiveServer,
) -> None:
    assert refused(server.chat(min_tokens=250))["param"] == "min_tokens"


def test_v14_an_unknown_parameter_is_refused_with_the_nearest_known_one(server: LiveServer) -> None:
    error = refused(server.chat(max_tokns=5))
    assert error["param"] == "max_tokns" and "did you mean 'max_tokens'" in error["message"]
    assert error["code"] == "unknown_parameter"


def test_v07_nan_is_not_json_and_not_a_temperature(server: LiveServer) -> None:
    body = b'{"model": "tiny", "prompt": "x", "temperature": NaN}'
    assert "NaN" in refused(server.ask("POST", COMPLETIONS, body, JSON))["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"5",
        b"\xff\xfe",
        b"[" * 100_000,
        *(b'{"messages": ' + b"[" * deep + b"]" * deep + b"}" for deep in (940, 960, 980, 9000)),
        b'{"a": 1' + b"0" * 9999,
    ],
)
def test_v14_a_body_that_is_no_json_object_is_refused(
    server: LiveServer, path: str, body: bytes
) -> None:
    refused(server.ask("POST", path, body, JSON))


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}])
def test_v14_a_body_of_another_content_type_is_refused(
    server: LiveServer, headers: dict[str, str]
) -> None:
    error = refused(server.ask("POST", CHAT, b"{}", headers), 415)
    assert "application/json" in error["message"]


def test_a_body_that_is_not_in_the_encoding_it_names_is_refused_without_a_traceback(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    refused(server.ask("POST", CHAT, b"not gzip at all", headers))
    assert server.ask("GET", "/health").status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_body_in_an_encoding_that_nobody_knows_is_refused(server: LiveServer) -> None:
    error = refused(server.ask("POST", CHAT, b"{}", {**JSON, "Content-Encoding": "bogus"}), 415)
    assert "'bogus' is not known here; expected identity, gzip" in error["message"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("hello", "messages"),
        ([], "messages"),
        (["hello"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        (
            [{"role": "user", "content": "a"}, {"role": "user", "content": None}],
            "messages[1].content",
        ),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls"),
    ],
)
def test_v14_messages_are_checked_down_to_the_place(
    server: LiveServer, messages: Any, param: str
) -> None:
    error = refused(server.post(CHAT, {"model": "tiny", "messages": messages}))
    assert error["param"] == param and param in error["message"]


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        [],
        [""],
        "",
        {"a": 1},
        ["a", "b"],
        [1, "a"],
        [1.5],
        [-1],
        [260],
        [10**30],
        [[1], [2]],
    ],
)
def test_prompts_that_cannot_be_read_are_refused(server: LiveServer, prompt: Any) -> None:
    assert refused(server.complete(prompt))["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
def test_v10_a_prompt_over_the_context_is_refused_with_both_numbers(
    server: LiveServer, stream: bool
) -> None:
    error = refused(server.complete("x" * 257, max_tokens=1, stream=stream))
    assert error["code"] == "context_length_exceeded"
    assert "257" in error["message"] and "256" in error["message"]
    assert refused(server.chat("x" * 300, stream=stream))["param"] == "messages"


def test_v06_v10_prompt_and_output_together_may_fill_the_context_exactly(
    server: LiveServer,
) -> None:
    assert server.complete("x" * 255, max_tokens=1).json["usage"]["total_tokens"] == 256
    assert refused(server.complete("x" * 256, max_tokens=1))["code"] == "context_length_exceeded"
    error = refused(server.complete("x", max_tokens=10**9))
    assert "1000000000" in error["message"] and "256" in error["message"]


def test_limits_that_disagree_are_refused(server: LiveServer) -> None:
    assert "disagree" in refused(server.chat(max_tokens=2, max_completion_tokens=3))["message"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": "true"}, "stream"),
    ],
)
def test_stream_options_are_checked(
    server: LiveServer, options: dict[str, Any], param: str
) -> None:
    assert refused(server.chat(**options))["param"] == param


def test_v14_a_model_that_is_not_served_is_404_and_names_the_one_that_is(
    server: LiveServer,
) -> None:
    error = refused(server.chat(model="gpt-9"), 404)
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert "gpt-9" in error["message"] and "tiny" in error["message"]
    assert refused(server.post(CHAT, {"messages": []}))["param"] == "model"


def test_unknown_paths_and_wrong_methods_answer_in_the_same_shape(server: LiveServer) -> None:
    assert "/v1/chat/completions" in refused(server.get("/chat/completions"), 404)["message"]
    wrong = server.get(CHAT)
    refused(wrong, 405)
    assert wrong.headers["allow"] == "POST"


def test_a_body_too_large_is_refused_without_being_read(server: LiveServer) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    connection.putrequest("POST", CHAT)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(2**40))
    connection.endheaders(b'{"model":')
    response = connection.getresponse()
    assert response.status == 413
    assert "bytes" in json.loads(response.read())["error"]["message"]
    connection.close()


def test_a_chunked_body_too_large_is_refused(server: LiveServer) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    blocks = (b" " * 2**20 for _ in range(9))
    connection.request("POST", CHAT, blocks, JSON, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


@pytest.fixture(scope="module")
def locked() -> Iterator[LiveServer]:
    with live_server(api_key=KEY) as live:
        yield live


@pytest.mark.parametrize(
    "authorization", [None, "", KEY, f"Basic {KEY}", "Bearer ", "Bearer wrong", "Bearer sesame-12é"]
)
def test_without_the_key_the_api_is_closed(locked: LiveServer, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = locked.post(CHAT, {"model": "tiny"}, headers)
    error = refused(answer, 401)
    assert error["code"] == "invalid_api_key" and KEY not in error["message"]
    assert answer.headers["www-authenticate"] == "Bearer"
    refused(locked.ask("GET", "/v1/models", headers=headers), 401)


def test_with_the_key_the_api_is_open_and_probes_need_none(locked: LiveServer) -> None:
    assert locked.get("/v1/models", Authorization=f"Bearer {KEY}").status == 200
    assert [locked.get(path).status for path in ("/health", "/ready", "/metrics")] == [200] * 3
