"""Ollama's own chat and generate: a JSON object a line, the last one with counts and durations.

`eval_count` counts tokens, the lines do not. Durations are nanoseconds of the server's own clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from prony_loadgen.dialects.dialect import Dialect, Output, Said
from prony_loadgen.dialects.reading import (
    count,
    decoded,
    finish_word,
    messages_of,
    not_an_object,
    object_of,
    shown,
    text_of,
    text_prompt,
    with_extra,
)
from prony_loadgen.error_text import bare_error, told_error
from prony_loadgen.prompt import Prompt
from prony_loadgen.sse import Event

# Appends what an object of this endpoint generated.
OutputsOf = Callable[[dict[str, Any], list[Output]], None]

_COUNTS = ("prompt_eval_count", "eval_count")
_LONGEST = 10**15  # ns, over eleven days: more is nonsense
_DURATIONS = {
    "load": "load_duration",
    "prompt": "prompt_eval_duration",
    "generate": "eval_duration",
    "total": "total_duration",
}


def chat_body(
    prompt: Prompt,
    *,
    model: str,
    max_tokens: int | None,
    ignore_eos: bool,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Ollama cannot be told to ignore its end token, so `ignore_eos` changes nothing."""
    asked = {"messages": messages_of(prompt)}
    return with_extra(_body(model, asked, max_tokens), extra, "options")


def generate_body(
    prompt: Prompt,
    *,
    model: str,
    max_tokens: int | None,
    ignore_eos: bool,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    asked = {"prompt": text_prompt(prompt, "ollama-generate", "ollama-chat")}
    return with_extra(_body(model, asked, max_tokens), extra, "options")


def _body(model: str, asked: dict[str, Any], max_tokens: int | None) -> dict[str, Any]:
    options = {} if max_tokens is None else {"options": {"num_predict": max_tokens}}
    return {"model": model, **asked, "stream": True, **options}


def read_chat_event(event: Event) -> Said:
    return _read(event.data, _chat_outputs)


def read_generate_event(event: Event) -> Said:
    return _read(event.data, _generate_outputs)


def read_chat(body: bytes) -> Said:
    return _read_whole(body, _chat_outputs)


def read_generate(body: bytes) -> Said:
    return _read_whole(body, _generate_outputs)


def _read(data: bytes, outputs_of: OutputsOf) -> Said:
    line = decoded(data)
    if not isinstance(line, dict):
        return not_an_object(data)
    if line.get("error"):
        return Said(error=told_error(line) or shown(data))
    if "done" not in line and (told := bare_error(line)) is not None:
        return Said(error=told)
    outputs: list[Output] = []
    outputs_of(line, outputs)
    if line.get("done") is not True:
        return Said(tuple(outputs))
    reason = text_of(line.get("done_reason")) or "stop"
    usage = {key: line[key] for key in (*_COUNTS, *_DURATIONS.values()) if key in line}
    return Said(tuple(outputs), finished=((0, finish_word(reason)),), usage=usage or None)


def _read_whole(body: bytes, outputs_of: OutputsOf) -> Said:
    said = _read(body, outputs_of)
    if said.error is None and said.malformed is None and not said.finished:
        return Said(malformed=f"no finished answer: {shown(body)}")
    return said


def _chat_outputs(line: dict[str, Any], outputs: list[Output]) -> None:
    message = object_of(line.get("message"))
    if thinking := text_of(message.get("thinking")):
        outputs.append(Output("reasoning", 0, thinking))
    if text := text_of(message.get("content")):
        outputs.append(Output("text", 0, text))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = object_of(object_of(call).get("function"))
        if name := text_of(function.get("name")):
            outputs.append(Output("tool", 0, name))


def _generate_outputs(line: dict[str, Any], outputs: list[Output]) -> None:
    if thinking := text_of(line.get("thinking")):
        outputs.append(Output("reasoning", 0, thinking))
    if text := text_of(line.get("response")):
        outputs.append(Output("text", 0, text))


def prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    return count(usage, "prompt_eval_count")


def output_tokens(usage: Mapping[str, Any]) -> int | None:
    return count(usage, "eval_count")


def server_times(usage: Mapping[str, Any]) -> dict[str, float]:
    told = {name: usage.get(key) for name, key in _DURATIONS.items()}
    return {
        name: took / 1e9
        for name, took in told.items()
        if isinstance(took, int) and not isinstance(took, bool) and 0 <= took <= _LONGEST
    }


OLLAMA_CHAT = Dialect(
    name="ollama-chat",
    greedy={"options": {"temperature": 0}},
    path="/api/chat",
    body=chat_body,
    read_event=read_chat_event,
    read_whole=read_chat,
    prompt_tokens=prompt_tokens,
    output_tokens=output_tokens,
    unread_keys=frozenset({"created_at"}),
    framing="lines",
    versioned=False,
    models_path="/api/tags",
    ignores_eos=False,
    server_times=server_times,
)
OLLAMA_GENERATE = replace(
    OLLAMA_CHAT,
    name="ollama-generate",
    path="/api/generate",
    body=generate_body,
    read_event=read_generate_event,
    read_whole=read_generate,
)
