"""OpenAI's request format: a body's bytes in, one checked GenerationRequest or an ApiError out.

Nothing is ignored silently. A parameter that this server does not act on is refused by name, unless
its value asks for nothing (`"n": 1`, `"stop": null`) or it could not change the answer (`user`).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from prony_server.sequence import LEAST_PENALTY, MOST_PENALTY

Operation = Literal["chat", "text_completion"]  # as gen_ai.operation.name spells them
Body = Mapping[str, Any]


class ApiError(Exception):
    """A request that gets an error answer in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": kind, "param": param, "code": code},
        }


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for the model's chat template, each with a role and its content as one text."""

    messages: tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What was asked, with the API's defaults filled in."""

    operation: Operation
    model: str
    prompt: Conversation | str | tuple[int, ...]
    max_tokens: int | None  # None: as many as the context has room for
    temperature: float
    top_p: float
    repetition_penalty: float
    seed: int | None
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool  # vLLM's: the usage so far in every chunk


def parse_json(raw: bytes) -> Body:
    """The body as an object; NaN and Infinity, which JSON does not have, are refused."""
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, huge integers
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body must be a JSON object, got {_named(body)}")
    # In OpenAI's API null means "not given" for every parameter.
    return {name: value for name, value in body.items() if value is not None}


def parse_chat(body: Body) -> GenerationRequest:
    return _parse(body, "chat", "messages", _conversation)


def parse_completion(body: Body) -> GenerationRequest:
    return _parse(body, "text_completion", "prompt", _prompt)


_SUPPORTED = {
    "model",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "repetition_penalty",
    "seed",
    "ignore_eos",
    "stream",
    "stream_options",
}

# They label or file a request elsewhere, and could not change its answer.
_IGNORED = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "request_id",
}

# Not built yet: accepted only with a value that asks for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "stop": ([], ""),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
}


def _parse(
    body: Body,
    operation: Operation,
    prompt_name: str,
    read_prompt: Callable[[Any], Conversation | str | tuple[int, ...]],
) -> GenerationRequest:
    _refuse_unsupported(body, prompt_name)
    for name in ("model", prompt_name):
        if name not in body:
            _refuse(name, "is required", code="missing_required_parameter")
    if not isinstance(body["model"], str):
        _refuse("model", f"must be a string, got {_named(body['model'])}")
    stream = _boolean(body, "stream")
    include_usage, continuous_usage = _stream_options(body, stream)
    return GenerationRequest(
        operation=operation,
        model=body["model"],
        prompt=read_prompt(body[prompt_name]),
        # OpenAI's defaults: a chat may fill the context, a completion stops after 16 tokens.
        max_tokens=_max_tokens(body, None if operation == "chat" else 16),
        temperature=_number(body, "temperature", 1.0, lambda x: 0 <= x <= 2, "from 0 to 2"),
        top_p=_number(body, "top_p", 1.0, lambda x: 0 < x <= 1, "above 0 and at most 1"),
        repetition_penalty=_number(
            body,
            "repetition_penalty",
            1.0,
            lambda x: LEAST_PENALTY <= x <= MOST_PENALTY,
            f"from {LEAST_PENALTY} to {MOST_PENALTY:g}",
        ),
        seed=_integer(body, "seed", -(2**63), 2**63 - 1),
        ignore_eos=_boolean(body, "ignore_eos"),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
    )


def _refuse_unsupported(body: Body, prompt_name: str) -> None:
    known = _SUPPORTED | _IGNORED | {prompt_name}
    for name, value in body.items():
        if name in known:
            continue
        if name not in _NEUTRAL:
            near = difflib.get_close_matches(name, [*known, *_NEUTRAL], n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            _refuse(name, f"is not a parameter of this endpoint{hint}", code="unknown_parameter")
        if not any(_same(value, neutral) for neutral in _NEUTRAL[name]):
            accepted = " or ".join(json.dumps(neutral) for neutral in _NEUTRAL[name])
            _refuse(
                name,
                f"is not supported by this server (only {accepted}), got {_named(value)}",
                code="unsupported_parameter",
            )


def _stream_options(body: Body, stream: bool) -> tuple[bool, bool]:
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not isinstance(options, dict):
        _refuse("stream_options", f"must be an object, got {_named(options)}")
    if not stream:
        _refuse("stream_options", "is only allowed with stream: true")
    known = ("include_usage", "continuous_usage_stats", "include_obfuscation")
    for name in options:
        if name not in known:
            _refuse(f"stream_options.{name}", f"is unknown; known are {', '.join(known)}")
    include = _boolean(options, "include_usage", "stream_options.")
    return include, include and _boolean(options, "continuous_usage_stats", "stream_options.")


def _max_tokens(body: Body, default: int | None) -> int | None:
    # No upper bound here: whether prompt and output fit the context is known after tokenizing.
    old = _integer(body, "max_tokens", 1, None)
    new = _integer(body, "max_completion_tokens", 1, None)
    if old is not None and new is not None and old != new:
        _refuse("max_tokens", f"({old}) and max_completion_tokens ({new}) disagree; send one")
    given = new if new is not None else old
    return given if given is not None else default


_ROLES = ("system", "developer", "user", "assistant", "tool")


def _conversation(value: Any) -> Conversation:
    if not isinstance(value, list) or not value:
        _refuse("messages", f"must be a non-empty array, got {_named(value)}")
    return Conversation(tuple(_message(entry, f"messages[{i}]") for i, entry in enumerate(value)))


def _message(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        _refuse(where, f"must be an object, got {_named(value)}")
    if value.get("role") not in _ROLES:
        _refuse(
            f"{where}.role", f"must be one of {', '.join(_ROLES)}, got {_named(value.get('role'))}"
        )
    for name in ("tool_calls", "function_call", "audio"):
        if value.get(name):
            _refuse(f"{where}.{name}", "is not supported by this server", "unsupported_parameter")
    content = value.get("content")
    if isinstance(content, str):
        text = _text(content, f"{where}.content")
    elif isinstance(content, list):
        parts = (_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
        text = "\n".join(parts)  # as vLLM joins them
    else:
        _refuse(f"{where}.content", f"must be a string or an array of parts, got {_named(content)}")
    return {"role": value["role"], "content": text}


def _part(value: Any, where: str) -> str:
    if not isinstance(value, dict) or value.get("type") != "text":
        kind = value.get("type") if isinstance(value, dict) else value
        _refuse(
            f"{where}.type", f"must be 'text', the only part this server reads, got {_named(kind)}"
        )
    if not isinstance(value.get("text"), str):
        _refuse(f"{where}.text", f"must be a string, got {_named(value.get('text'))}")
    return _text(value["text"], f"{where}.text")


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and not _is_int(value[0]):
        value = value[0]  # a batch of one
    if isinstance(value, str):
        return _text(value, "prompt")
    if isinstance(value, list) and value and all(map(_is_int, value)):
        return tuple(value)
    if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str | list):
        _refuse("prompt", f"holds {len(value)} prompts; this server takes one a request")
    _refuse("prompt", f"must be a string or a non-empty array of token ids, got {_named(value)}")


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        _refuse(where, f"holds half a surrogate pair at character {error.start}")
    return value


def _integer(body: Body, name: str, low: int, high: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not _is_int(value):
        _refuse(name, f"must be an integer, got {_named(value)}")
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        _refuse(name, f"must be {limits}, got {_named(value)}")
    return int(value)


def _number(
    body: Body, name: str, default: float, fits: Callable[[float], bool], expected: str
) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(name, f"must be a number, got {_named(value)}")
    if not (fits(value) and value < 1e300 and math.isfinite(value)):
        _refuse(name, f"must be {expected}, got {_named(value)}")
    return float(value)


def _boolean(body: Body, name: str, where: str = "") -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        _refuse(f"{where}{name}", f"must be true or false, got {_named(value)}")
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _same(value: Any, neutral: Any) -> bool:
    # Python's True == 1 is not the API's.
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _named(value: Any) -> str:
    """The value for an error message, short however long it is."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


def _refuse(param: str, problem: str, code: str | None = "invalid_value") -> NoReturn:
    raise ApiError(400, f"{param} {problem}", param=param, code=code)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
