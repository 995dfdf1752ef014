"""OpenAI's answer format: text, counts and reasons in, JSON bodies and server-sent events out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from prony_server.openai_api import ApiError, Operation

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int

    def as_json(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What every object of one answer repeats."""

    operation: Operation
    id: str
    created: int  # Unix seconds
    model: str

    def whole(self, text: str, finish_reason: str, usage: Usage) -> dict[str, Any]:
        if self.operation == "chat":
            choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
            kind = "chat.completion"
        else:
            choice = {"text": text}
            kind = "text_completion"
        choice = {"index": 0, **choice, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head(kind), "choices": [choice], "usage": usage.as_json()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class EventStream:
    """The events of one streamed answer, each as bytes to write.

    With `include_usage` every chunk carries a usage field, null until the last, as OpenAI has it;
    with `continuous_usage` the counts so far, as vLLM has it.
    """

    def __init__(self, answer: Answer, include_usage: bool, continuous_usage: bool) -> None:
        self._answer = answer
        self._chat = answer.operation == "chat"
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._opened = False

    def text(self, text: str, usage: Usage) -> bytes:
        return self._opening(usage) + self._chunk({"content": text}, None, usage)

    def finish(self, finish_reason: str, usage: Usage) -> bytes:
        """The finish reason, the usage where it was asked for, and the end mark."""
        events = self._opening(usage) + self._chunk({}, finish_reason, usage)
        if self._include_usage:
            events += _event({**self._head(), "choices": [], "usage": usage.as_json()})
        return events + DONE

    def _opening(self, usage: Usage) -> bytes:
        """A chat's role, once. It leaves with the first text and not before, since many clients
        take the first event of a stream for its first token."""
        if self._opened or not self._chat:
            return b""
        self._opened = True
        return self._chunk({"role": "assistant", "content": ""}, None, usage)

    def _chunk(self, delta: dict[str, str], finish_reason: str | None, usage: Usage) -> bytes:
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        choice["logprobs"] = None
        choice["finish_reason"] = finish_reason
        chunk = {**self._head(), "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = usage.as_json() if self._continuous_usage else None
        return _event(chunk)

    def _head(self) -> dict[str, Any]:
        return self._answer._head("chat.completion.chunk" if self._chat else "text_completion")


def error_event(error: ApiError) -> bytes:
    """An error after the headers: the stream says so and ends without `[DONE]`."""
    return _event(error.body)


def models(name: str, created: int, max_model_len: int) -> dict[str, Any]:
    model = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "prony",
        "max_model_len": max_model_len,
    }
    return {"object": "list", "data": [model]}


def _event(data: dict[str, Any]) -> bytes:
    # ASCII: clients that split on Unicode's line separators cannot be confused by the text.
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
