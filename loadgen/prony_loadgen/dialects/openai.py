"""OpenAI's chat and legacy completions, as the many servers that imitate them speak them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from prony_loadgen.dialects.dialect import Dialect, DialectError, Output, Said
from prony_loadgen.dialects.reading import count, decoded, finish_word, messages_of, shown, text_of
from prony_loadgen.error_text import bare_error, told_error
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
    return {
        "model": model,
        "messages": messages_of(prompt),
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


# What differs between the chunks of a stream, or between streams, and means nothing to us.
UNREAD_KEYS = frozenset({"id", "created", "system_fingerprint", "obfuscation"})
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
    chunk = decoded(data)
    if event.name == "error":
        return Said(error=told_error(chunk) or shown(data))
    if not isinstance(chunk, dict):
        return Said(malformed=f"not a JSON object: {shown(data)}")
    return _read_chunk(chunk, outputs_of)


def _read_whole(body: bytes, outputs_of: OutputsOf) -> Said:
    answer = decoded(body)
    if not isinstance(answer, dict):
        return Said(malformed=f"not a JSON object: {shown(body)}")
    said = _read_chunk(answer, outputs_of)
    if said.error is None and not isinstance(answer.get("choices"), list):
        return Said(malformed=f"no choices in it: {shown(body)}")
    return said


def _read_chunk(chunk: dict[str, Any], outputs_of: OutputsOf) -> Said:
    if chunk.get("error") or chunk.get("object") == "error":
        return Said(error=told_error(chunk) or shown(json.dumps(chunk).encode()))
    usage = chunk.get("usage")
    if not chunk.get("choices") and not usage and (told := bare_error(chunk)) is not None:
        return Said(error=told)
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
            finished.append((index, finish_word(reason)))
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
    if reasoning := text_of(delta.get("reasoning_content")) or text_of(delta.get("reasoning")):
        outputs.append(Output("reasoning", index, reasoning))
    if isinstance(content, list):
        _part_outputs(content, index, outputs)
    elif text := text_of(content):
        outputs.append(Output("text", index, text))
    if refusal := text_of(delta.get("refusal")):
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
        if text := text_of(part.get("text")):
            outputs.append(Output("text", index, text))
        thinking = part.get("thinking")
        for piece in thinking if isinstance(thinking, list) else (thinking,):
            if text := text_of(piece.get("text") if isinstance(piece, dict) else piece):
                outputs.append(Output("reasoning", index, text))


def _call_output(function: Any, index: int, outputs: list[Output]) -> None:
    if not isinstance(function, dict):
        return
    if text := text_of(function.get("name")) + text_of(function.get("arguments")):
        outputs.append(Output("tool", index, text))


def _completions_outputs(choice: dict[str, Any], index: int, outputs: list[Output]) -> None:
    if text := text_of(choice.get("text")):
        outputs.append(Output("text", index, text))


def _listed(logprobs: dict[str, Any]) -> int:
    """How many tokens the lists name: chat has content and refusal, completions has tokens."""
    lists = (logprobs.get(key) for key in ("content", "refusal", "tokens"))
    return sum(len(names) for names in lists if isinstance(names, list))


def prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    return count(usage, "prompt_tokens")


def output_tokens(usage: Mapping[str, Any]) -> int | None:
    """All channels and choices together; reasoning tokens are already among them."""
    return count(usage, "completion_tokens")


CHAT = Dialect(
    name="openai-chat",
    path="/chat/completions",
    body=chat_body,
    read_event=read_chat_event,
    read_whole=read_chat,
    prompt_tokens=prompt_tokens,
    output_tokens=output_tokens,
    unread_keys=UNREAD_KEYS,
)
COMPLETIONS = replace(
    CHAT,
    name="openai-completions",
    path="/completions",
    body=completions_body,
    read_event=read_completions_event,
    read_whole=read_completions,
)
