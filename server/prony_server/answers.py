"""OpenAI's answer format: text, counts and reasons in, JSON bodies and server-sent events out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prony_server.errors import ApiError
from prony_server.openai_api import Operation

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request: its prompt counts once, its answers together."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # of the prompt: found in the prefix cache
    truncated_tokens: int = 0  # cut from the prompt's front, and not in prompt_tokens

    def as_json(self) -> dict[str, Any]:
        details = {"cached_tokens": self.cached_tokens}
        if self.truncated_tokens:
            details["truncated_tokens"] = self.truncated_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": details,
        }


@dataclass(frozen=True, slots=True)
class Likelihood:
    """A token as text, as the bytes that it stands for, and its log probability."""

    token: str
    data: bytes
    logprob: float

    def as_json(self) -> dict[str, Any]:
        return {"token": self.token, "logprob": self.logprob, "bytes": list(self.data)}


@dataclass(frozen=True, slots=True)
class Scored:
    """One token of an answer and its likeliest alternatives, the likeliest first."""

    chosen: Likelihood
    top: tuple[Likelihood, ...]
    offset: int  # characters of the answer before it
    end: int  # characters of the answer with it

    def is_within(self, characters: int) -> bool:
        """Of so many; a token that is only some bytes of a character lies where that begins."""
        return self.offset < characters and self.end <= characters


@dataclass(frozen=True, slots=True)
class Piece:
    """What one output added to one of the answers.

    The text is empty while a character's other bytes, or the rest of what may be a stop string,
    are awaited. `scored` is None where no logprobs were asked for.
    """

    index: int
    text: str
    scored: tuple[Scored, ...] | None
    finish_reason: str | None
    usage: Usage  # so far, of all answers, this piece included


@dataclass(frozen=True, slots=True)
class Answer:
    """What every object of one answer repeats."""

    operation: Operation
    id: str
    created: int  # Unix seconds
    model: str

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        """All choices, each of its pieces joined."""
        indices = range(1 + max(piece.index for piece in pieces))
        kind = "chat.completion" if self.operation == "chat" else "text_completion"
        choices = [self._choice([p for p in pieces if p.index == index]) for index in indices]
        return {**self._head(kind), "choices": choices, "usage": usage.as_json()}

    def _choice(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        scored = None
        if pieces[0].scored is not None:
            scored = tuple(each for piece in pieces for each in piece.scored or ())
        choice: dict[str, Any] = {"index": pieces[0].index}
        if self.operation == "chat":
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        choice["logprobs"] = _logprobs(self.operation, scored)
        return {**choice, "finish_reason": pieces[-1].finish_reason}

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
        self._opened: set[int] = set()  # the choices whose role is out

    def piece(self, piece: Piece) -> bytes:
        """Its text as one chunk, and its finish reason as another; nothing if it has neither."""
        events = b""
        scored = piece.scored
        if piece.text:
            events += self._opening(piece) + self._chunk(piece, {"content": piece.text}, scored)
            scored = None
        if piece.finish_reason is not None:
            events += self._opening(piece)
            events += self._chunk(piece, {}, scored or None, piece.finish_reason)
        return events

    def end(self, usage: Usage) -> bytes:
        """The usage where it was asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        return _event({**self._head(), "choices": [], "usage": usage.as_json()}) + DONE

    def _opening(self, piece: Piece) -> bytes:
        """A chat's role, once. It leaves with the first text and not before, since many clients
        take the first event of a stream for its first token."""
        if piece.index in self._opened or not self._chat:
            return b""
        self._opened.add(piece.index)
        return self._chunk(piece, {"role": "assistant", "content": ""}, None)

    def _chunk(
        self,
        piece: Piece,
        delta: dict[str, str],
        scored: tuple[Scored, ...] | None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {"index": piece.index}
        if self._chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        choice["logprobs"] = _logprobs(self._answer.operation, scored)
        choice["finish_reason"] = finish_reason
        chunk = {**self._head(), "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = piece.usage.as_json() if self._continuous_usage else None
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


def _logprobs(operation: Operation, scored: tuple[Scored, ...] | None) -> dict[str, Any] | None:
    if scored is None:
        return None
    if operation == "chat":
        content = [
            {**each.chosen.as_json(), "top_logprobs": [other.as_json() for other in each.top]}
            for each in scored
        ]
        return {"content": content, "refusal": None}
    return {
        "tokens": [each.chosen.token for each in scored],
        "token_logprobs": [each.chosen.logprob for each in scored],
        # The chosen token is always among them, if need be as one more.
        "top_logprobs": [
            {other.token: other.logprob for other in (*each.top, each.chosen)} for each in scored
        ],
        "text_offset": [each.offset for each in scored],
    }


def _event(data: dict[str, Any]) -> bytes:
    # ASCII: clients that split on Unicode's line separators cannot be confused by the text.
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
