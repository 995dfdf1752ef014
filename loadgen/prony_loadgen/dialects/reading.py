"""What reading one JSON event has in common in every dialect."""

import json
from collections.abc import Mapping
from typing import Any

from prony_loadgen.dialects.dialect import DialectError, Said
from prony_loadgen.error_text import shortened
from prony_loadgen.prompt import Prompt
from prony_loadgen.record import token_count

# Reasons for ending that servers spell differently from OpenAI.
_FINISH_WORDS = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
}


_raw_decode = json.JSONDecoder().raw_decode


def decoded(data: bytes) -> Any:
    """The JSON value; None where it is none. Invalid UTF-8 becomes U+FFFD, as in any SSE client."""
    text = data.decode("utf-8", "replace")
    try:
        # What loads does, but for looking for white space, which nearly no event begins or ends
        # with and which takes a third of the time.
        value, end = _raw_decode(text)
        if end == len(text):
            return value
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def shown(data: bytes) -> str:
    return shortened(data.decode("utf-8", "replace"))


def not_an_object(data: bytes) -> Said:
    return Said(malformed=f"not a JSON object: {shown(data)}")


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def object_of(value: Any) -> dict[str, Any]:
    """The object that `value` is; an empty one where it is something else."""
    return value if isinstance(value, dict) else {}


def count(usage: Mapping[str, Any], key: str) -> int | None:
    return token_count(usage.get(key))


def finish_word(reason: str) -> str:
    """In OpenAI's words, where it has one for this."""
    return _FINISH_WORDS.get(reason) or shortened(reason)


def messages_of(prompt: Prompt) -> list[dict[str, Any]]:
    """The prompt as a chat."""
    if prompt.messages is not None:
        return [dict(message) for message in prompt.messages]
    return [{"role": "user", "content": prompt.text}]


def text_prompt(prompt: Prompt, dialect: str, instead: str) -> str:
    """Raises DialectError where the prompt is a chat, which `dialect` cannot take."""
    if prompt.text is None:
        raise DialectError(
            f"{dialect} takes a text prompt, got chat messages; use the dialect {instead}"
        )
    return prompt.text


def with_extra(body: dict[str, Any], extra: Mapping[str, Any], nested: str) -> dict[str, Any]:
    """`body` with `extra`, which wins; the object under `nested` is merged, not replaced."""
    merged = {**body, **extra}
    inner = extra.get(nested)
    if isinstance(inner, Mapping):
        merged[nested] = {**body.get(nested, {}), **inner}
    return merged
