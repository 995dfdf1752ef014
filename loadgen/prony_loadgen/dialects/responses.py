"""OpenAI's Responses API: typed events, the last one with the whole response."""

from collections.abc import Mapping
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
)
from prony_loadgen.error_text import bare_error, told_error
from prony_loadgen.prompt import Prompt
from prony_loadgen.record import Channel
from prony_loadgen.sse import Event

_DELTAS: dict[str, Channel] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "tool",
    "response.custom_tool_call_input.delta": "tool",
}
_ENDS = ("response.completed", "response.incomplete")
_PARTS: dict[str, Channel] = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "reasoning",
    "summary_text": "reasoning",
}
NOTHING = Said()


def body(
    prompt: Prompt,
    *,
    model: str,
    max_tokens: int | None,
    ignore_eos: bool,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": model,
        "input": prompt.text if prompt.messages is None else messages_of(prompt),
        "stream": True,
        "store": False,
    }
    if max_tokens is not None:
        asked["max_output_tokens"] = max_tokens
    if ignore_eos:
        asked["ignore_eos"] = True
    return {**asked, **extra}


def read_event(event: Event) -> Said:
    data = event.data.strip()
    if not data:
        return NOTHING
    if data == b"[DONE]":
        return Said(done=True)
    chunk = decoded(data)
    if event.name == "error":
        return Said(error=told_error(chunk) or shown(data))
    if not isinstance(chunk, dict):
        return not_an_object(data)
    kind = text_of(chunk.get("type"))
    if kind == "error" or (not kind and chunk.get("error")):
        return Said(error=told_error({**chunk, "type": None}) or shown(data))
    if kind in _DELTAS:
        text = text_of(chunk.get("delta"))
        return Said((Output(_DELTAS[kind], 0, text),)) if text else NOTHING
    response = object_of(chunk.get("response"))
    if kind == "response.failed":
        return Said(error=told_error(response) or shown(data))
    if kind == "response.output_item.added":
        item = object_of(chunk.get("item"))
        name = text_of(item.get("name")) if item.get("type") == "function_call" else ""
        return Said((Output("tool", 0, name),)) if name else NOTHING
    if kind in _ENDS:
        return _ended(response)
    return NOTHING if kind.startswith("response.") else Said(error=bare_error(chunk))


def read_whole(body: bytes) -> Said:
    answer = decoded(body)
    if not isinstance(answer, dict):
        return not_an_object(body)
    if answer.get("error"):
        return Said(error=told_error(answer) or shown(body))
    items = answer.get("output")
    if not isinstance(items, list):
        return Said(malformed=f"no output in it: {shown(body)}")
    outputs = tuple(output for item in items for output in _item_outputs(object_of(item)))
    return _ended(answer)._replace(outputs=outputs)


def _item_outputs(item: dict[str, Any]) -> list[Output]:
    if item.get("type") == "function_call":
        text = text_of(item.get("name")) + text_of(item.get("arguments"))
        return [Output("tool", 0, text)] if text else []
    parts: list[Any] = []
    for key in ("summary", "content"):
        held = item.get(key)
        parts += held if isinstance(held, list) else []
    told = [(_PARTS.get(text_of(part.get("type"))), part) for part in map(object_of, parts)]
    return [
        Output(channel, 0, text)
        for channel, part in told
        if channel is not None
        and (text := text_of(part.get("text")) or text_of(part.get("refusal")))
    ]


def _ended(response: dict[str, Any]) -> Said:
    reason = text_of(response.get("status")) or "completed"
    if reason == "incomplete":
        reason = text_of(object_of(response.get("incomplete_details")).get("reason")) or reason
    items = response.get("output")
    calls = [object_of(item).get("type") for item in items] if isinstance(items, list) else []
    if reason == "completed" and "function_call" in calls:
        reason = "function_call"
    usage = object_of(response.get("usage"))
    return Said(finished=((0, finish_word(reason)),), usage=usage or None)


def prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    return count(usage, "input_tokens")


def output_tokens(usage: Mapping[str, Any]) -> int | None:
    """Reasoning tokens are among them."""
    return count(usage, "output_tokens")


RESPONSES = Dialect(
    name="responses",
    path="/responses",
    body=body,
    read_event=read_event,
    read_whole=read_whole,
    prompt_tokens=prompt_tokens,
    output_tokens=output_tokens,
    unread_keys=frozenset({"sequence_number", "item_id", "obfuscation"}),
)
