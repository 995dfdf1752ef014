"""Each dialect beside OpenAI's: what it asks, and what it makes of an answer in one piece."""

import json
from typing import Any

import pytest

from prony_loadgen.answer import Answer
from prony_loadgen.dialects import DIALECTS, DialectError
from prony_loadgen.prompt import Prompt
from prony_loadgen.record import RequestRecord
from prony_loadgen.target import parse_target

TEXT = Prompt(text="Hi")
CHAT = Prompt(
    messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
)


def asked(name: str, prompt: Prompt, **extra: Any) -> dict[str, Any]:
    return DIALECTS[name].body(prompt, model="m", max_tokens=7, ignore_eos=False, extra=extra)


def test_what_responses_asks() -> None:
    common = {"model": "m", "stream": True, "store": False, "max_output_tokens": 7}
    assert asked("responses", TEXT) == {**common, "input": "Hi"}
    assert asked("responses", CHAT)["input"] == list(CHAT.messages or ())


def test_what_anthropic_asks() -> None:
    hello = {"role": "user", "content": "Hi"}
    common = {"model": "m", "stream": True, "max_tokens": 7}
    assert asked("anthropic", TEXT) == {**common, "messages": [hello]}
    # The system's message is no message there.
    assert asked("anthropic", CHAT) == {**common, "messages": [hello], "system": "Be brief."}
    with pytest.raises(DialectError, match="needs a number of output tokens"):
        DIALECTS["anthropic"].body(TEXT, model="m", max_tokens=None, ignore_eos=False, extra={})


def test_what_ollama_asks() -> None:
    common = {"model": "m", "stream": True, "options": {"num_predict": 7}}
    hello = {"role": "user", "content": "Hi"}
    assert asked("ollama-chat", TEXT) == {**common, "messages": [hello]}
    assert asked("ollama-generate", TEXT) == {**common, "prompt": "Hi"}
    options = asked("ollama-chat", TEXT, options={"temperature": 0}, keep_alive=0)
    assert options["options"] == {"num_predict": 7, "temperature": 0}
    assert options["keep_alive"] == 0


def test_what_tgi_asks() -> None:
    parameters = {"details": True, "max_new_tokens": 7}
    assert asked("tgi", TEXT) == {"inputs": "Hi", "parameters": parameters}
    assert asked("tgi", TEXT, parameters={"top_k": 1})["parameters"] == {**parameters, "top_k": 1}


@pytest.mark.parametrize("name", ["openai-completions", "ollama-generate", "tgi"])
def test_a_chat_is_refused_where_only_a_text_fits(name: str) -> None:
    with pytest.raises(DialectError, match=f"{name} takes a text prompt"):
        asked(name, CHAT)


@pytest.mark.parametrize("name", ["openai-chat", "responses", "anthropic", "ollama-chat"])
def test_tools_and_images_pass_through(name: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    prompt = Prompt(messages=({"role": "user", "content": [image]},))
    body = asked(name, prompt, tools=[{"type": "function"}], n=2)
    assert body["tools"] == [{"type": "function"}]
    assert body["n"] == 2
    assert json.dumps(image) in json.dumps(body)


@pytest.mark.parametrize(
    ("url", "name", "path"),
    [
        ("http://h", "openai-chat", "/v1/chat/completions"),
        ("http://h", "responses", "/v1/responses"),
        ("http://h/anthropic", "anthropic", "/anthropic/v1/messages"),
        ("http://h:11434", "ollama-chat", "/api/chat"),
        ("http://h:11434/v1", "ollama-chat", "/api/chat"),
        ("http://h:11434/api", "ollama-chat", "/api/chat"),
        ("http://h:11434/api/generate", "ollama-generate", "/api/generate"),
        ("http://h/llm", "tgi", "/llm/generate_stream"),
        ("http://h/llm/generate_stream", "tgi", "/llm/generate_stream"),
    ],
)
def test_a_path_lies_below_what_the_url_names(url: str, name: str, path: str) -> None:
    dialect = DIALECTS[name]
    assert parse_target(url).path(dialect.path, versioned=dialect.versioned) == path


def in_one_piece(name: str, body: Any, status: str = "200 OK") -> Answer:
    raw = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
    answer = Answer(DIALECTS[name], keep_text=True)
    answer.feed(head.encode() + b"\r\n\r\n" + raw, 1.0)
    return answer


WHOLE: dict[str, Any] = {
    "responses": {
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]},
        ],
        "usage": {"input_tokens": 9, "output_tokens": 3},
    },
    "anthropic": {
        "type": "message",
        "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 4, "cache_read_input_tokens": 5, "output_tokens": 3},
    },
    "ollama-chat": {
        "message": {"role": "assistant", "content": "Hello", "thinking": "Hm."},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 9,
        "eval_count": 3,
    },
    "ollama-generate": {
        "response": "Hello",
        "thinking": "Hm.",
        "done": True,
        "prompt_eval_count": 9,
        "eval_count": 3,
    },
    "tgi": [
        {
            "generated_text": "Hello",
            "details": {"finish_reason": "eos_token", "generated_tokens": 3, "input_length": 9},
        }
    ],
}


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_in_one_piece_is_read_and_flagged(name: str) -> None:
    answer = in_one_piece(name, WHOLE[name])
    assert (answer.outcome, answer.error, answer.flags) == ("ok", None, ["not_streamed"])
    assert answer.text("text") == "Hello"
    assert answer.text("reasoning") == ("" if name == "tgi" else "Hm.")
    assert answer.finish_reason == "stop"
    assert answer.output_tokens() == (3, "usage")
    assert answer.prompt_tokens == 9


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(
    "body", [{"error": {"message": "busy"}}, {"error": "busy"}], ids=["object", "text"]
)
def test_an_error_in_one_piece_is_an_error(name: str, body: Any) -> None:
    answer = in_one_piece(name, body)
    assert (answer.outcome, answer.error) == ("stream_error", "busy")
    answer = in_one_piece(name, body, status="500 Oops")
    assert (answer.outcome, answer.error) == ("http_error", "500 Oops: busy")


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("body", [[], {}, 7, None, "x"])
def test_json_that_is_no_answer_is_malformed(name: str, body: Any) -> None:
    assert in_one_piece(name, body).outcome == "malformed_event"


def test_a_tool_call_is_output_in_every_dialect_that_has_them() -> None:
    calls = {
        "responses": {
            "output": [{"type": "function_call", "name": "now", "arguments": "{}"}],
        },
        "anthropic": {"content": [{"type": "tool_use", "name": "now"}], "stop_reason": "tool_use"},
        "ollama-chat": {
            "message": {"tool_calls": [{"function": {"name": "now", "arguments": {}}}]},
            "done": True,
        },
    }
    for name, body in calls.items():
        answer = in_one_piece(name, body)
        assert {arrival.channel for arrival in answer.arrivals} == {"tool"}, name
        assert answer.text("tool").startswith("now")
    assert in_one_piece("responses", calls["responses"]).finish_reason == "tool_calls"
    assert in_one_piece("anthropic", calls["anthropic"]).finish_reason == "tool_calls"


# Ollama's own times.


def ollama(load_ns: int) -> Answer:
    """An answer whose first token came at 3 s and whose last line says how long loading took."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n"
    last = {"message": {"content": ""}, "done": True, "eval_count": 2, "prompt_eval_count": 5}
    times = {"load_duration": load_ns, "prompt_eval_duration": 40_000_000, "eval_duration": 10**9}
    answer = Answer(DIALECTS["ollama-chat"], keep_text=False)
    answer.feed(head + b'{"message":{"content":"a"}}\n', 3.0)
    answer.feed(json.dumps({**last, **times}).encode() + b"\n", 4.0)
    answer.end(4.0)
    return answer


def record_of(answer: Answer) -> RequestRecord:
    assert answer.outcome == "ok" and answer.ended is not None
    return RequestRecord(
        id="1",
        cls="chat",
        intended=0.5,
        sent=0.6,
        headers=3.0,
        arrivals=tuple(answer.arrivals),
        ended=answer.ended,
        outcome=answer.outcome,
        server_times=answer.server_times,
    )


def test_the_servers_own_times_are_kept_in_seconds() -> None:
    assert ollama(2_000_000_000).server_times == {"load": 2.0, "prompt": 0.04, "generate": 1.0}
    assert ollama(2_000_000_000).usage == {
        "eval_count": 2,
        "prompt_eval_count": 5,
        "load_duration": 2_000_000_000,
        "prompt_eval_duration": 40_000_000,
        "eval_duration": 1_000_000_000,
    }


def test_a_model_load_is_reported_and_kept_out_of_ttft() -> None:
    cold = record_of(ollama(2_000_000_000))
    assert cold.model_load == 2.0
    assert cold.ttft == pytest.approx(0.5)
    assert cold.ttft_from_send == pytest.approx(0.4)
    assert cold.ttfo == pytest.approx(0.5)
    assert cold.e2e == pytest.approx(2.5)  # the user waited for it all the same
    assert RequestRecord.from_json(cold.to_json()).model_load == 2.0


def test_the_milliseconds_that_ollama_reports_for_a_loaded_model_are_no_load() -> None:
    warm = record_of(ollama(50_000_000))
    assert warm.model_load == 0.0
    assert warm.ttft == pytest.approx(2.5)
