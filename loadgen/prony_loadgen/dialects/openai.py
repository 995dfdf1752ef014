"""OpenAI's chat and legacy completions, as the many servers that imitate them speak them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from prony_loadgen.dialects.dialect import Dialect, DialectError, Output, Said
from prony_loadgen.error_text import shortened, told_error
from prony_loadgen.prompt import Prompt
from prony_loadgen.sse import Event

# Appends what one choice (with its index) generated.
OutputsOf = Callable[[dict[str, Any], int, list[Output]], None]


def chat_body(
    prompt: Prompt,
    *,
    model: str,
    max_tokens: int | None,
    ignore_eos: bool,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    if prompt.messages is not None:
        messages = [dict(message) for message in prompt.messages]
    else:
        messages = [{"role": "user", "content": prompt.text}]
    return {
        "model": model,
        "messages": messages,
        **_common(max_tokens, ignore_eos),
        **extra,
    }


def completions_body(
    prompt: Prompt,
    *,
    model: str,
    max_tokens: int | None,
    ignore_eos: bool,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    if prompt.text is None:
        raise DialectError(
            "openai-completions takes a text prompt, got chat messages; use the dialect openai-chat"
        )
    return {
        "model": model,
        "prompt": prompt.text,
        **_common(max_tokens, ignore_eos),
        **extra,
    }


def _common(max_tokens: int | None, ignore_eos: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    # Left out unless wanted: some servers refuse a field that they do not know.
    if ignore_eos:
        fields["ignore_eos"] = True
    return fields


# Reasons for ending that servers spell differently.
FINISH_WORDS = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "function_call": "tool_calls",
}

NOTHING = Said()
DONE = Said(done=True)


def read_chat_event(event: Event) -> Said:
    return _read_event(event, _chat_outputs)


def read_completions_event(event: Event) -> Said:
    return _read_event(event, _completions_outputs)


def read_chat(body: bytes) -> Said:
    return _read_whole(body, _chat_outputs)


def read_completions(body: bytes) -> Said:
    return _read_whole(body, _completions_outputs)


def _read_event(event: Event, outputs_of: OutputsOf) -> Said:
    data = event.data.strip()
    if data == b"[DONE]":
        return DONE
    if not data:
        return NOTHING
    chunk = _decoded(data)
    if event.name == "error":
        return Said(error=told_error(chunk) or _shown(data))
    if not isinstance(chunk, dict):
        return Said(malformed=f"not a JSON object: {_shown(data)}")
    return _read_chunk(chunk, outputs_of)


def _read_whole(body: bytes, outputs_of: OutputsOf) -> Said:
    answer = _decoded(body)
    if not isinstance(answer, dict):
        return Said(malformed=f"not a JSON object: {_shown(body)}")
    said = _read_chunk(answer, outputs_of)
    if said.error is None and not isinstance(answer.get("choices"), list):
        return Said(malformed=f"no choices in it: {_shown(body)}")
    return said


def _decoded(data: bytes) -> Any:
    """The JSON value; None where it is none. Invalid UTF-8 becomes U+FFFD, as in any SSE client."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _shown(data: bytes) -> str:
    return shortened(data.decode("utf-8", "replace"))


def _read_chunk(chunk: dict[str, Any], outputs_of: OutputsOf) -> Said:
    if chunk.get("error") or chunk.get("object") == "error":
        return Said(error=told_error(chunk) or _shown(json.dumps(chunk).encode()))
    usage = chunk.get("usage")
    outputs: list[Output] = []
    finished: list[tuple[int, str]] = []
    listed = 0
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        outputs_of(choice, index, outputs)
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            finished.append((index, FINISH_WORDS.get(reason) or shortened(reason)))
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            listed += _listed(logprobs)
    return Said(
        tuple(outputs),
        listed or None,
        tuple(finished),
        usage if usage and isinstance(usage, dict) else None,
    )


def _chat_outputs(choice: dict[str, Any], index: int, outputs: list[Output]) -> None:
    delta = choice.get("delta")
    if delta is None:
        delta = choice.get("message")  # an answer that was not streamed
    if not isinstance(delta, dict):
        return
    content = delta.get("content")
    if len(delta) == 1 and content and isinstance(content, str):  # nearly every chunk
        outputs.append(Output("text", index, content))
        return
    if reasoning := _text(delta.get("reasoning_content")) or _text(delta.get("reasoning")):
        outputs.append(Output("reasoning", index, reasoning))
    if isinstance(content, list):
        _part_outputs(content, index, outputs)
    elif text := _text(content):
        outputs.append(Output("text", index, text))
    if refusal := _text(delta.get("refusal")):
        outputs.append(Output("refusal", index, refusal))
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        _call_output(call.get("function") if isinstance(call, dict) else None, index, outputs)
    _call_output(delta.get("function_call"), index, outputs)


def _part_outputs(parts: list[Any], index: int, outputs: list[Output]) -> None:
    """Content as a list of parts: {"type": "text", "text": …} and {"type": "thinking", …}."""
    for part in parts:
        if not isinstance(part, dict):
            continue
        if text := _text(part.get("text")):
            outputs.append(Output("text", index, text))
        thinking = part.get("thinking")
        for piece in thinking if isinstance(thinking, list) else (thinking,):
            if text := _text(piece.get("text") if isinstance(piece, dict) else piece):
                outputs.append(Output("reasoning", index, text))


def _call_output(function: Any, index: int, outputs: list[Output]) -> None:
    if not isinstance(function, dict):
        return
    if text := _text(function.get("name")) + _text(function.get("arguments")):
        outputs.append(Output("tool", index, text))


def _completions_outputs(choice: dict[str, Any], index: int, outputs: list[Output]) -> None:
    if text := _text(choice.get("text")):
        outputs.append(Output("text", index, text))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _listed(logprobs: dict[str, Any]) -> int:
    """How many tokens the lists name: chat has content and refusal, completions has tokens."""
    lists = (logprobs.get(key) for key in ("content", "refusal", "tokens"))
    return sum(len(names) for names in lists if isinstance(names, list))


def _count(usage: Mapping[str, Any], key: str) -> int | None:
    value = usage.get(key)
    return value if isinstance(value, int) and value >= 0 else None


def prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    return _count(usage, "prompt_tokens")


def output_tokens(usage: Mapping[str, Any]) -> int | None:
    """All channels and choices together; reasoning tokens are already among them."""
    return _count(usage, "completion_tokens")


CHAT = Dialect(
    name="openai-chat",
    path="/chat/completions",
    body=chat_body,
    read_event=read_chat_event,
    read_whole=read_chat,
    prompt_tokens=prompt_tokens,
    output_tokens=output_tokens,
)
COMPLETIONS = Dialect(
    name="openai-completions",
    path="/completions",
    body=completions_body,
    read_event=read_completions_event,
    read_whole=read_completions,
    prompt_tokens=prompt_tokens,
    output_tokens=output_tokens,
)
