"""Every parameter of the two endpoints, once: how its value is read, and how OpenAPI describes it.

Nothing is ignored silently. A parameter that this server does not act on is refused by name, unless
its value asks for nothing (`"tools": []`) or it could not change the answer (`user`).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from prony_server.errors import named, refuse
from prony_server.sequence import LEAST_PENALTY, MOST_LOGPROBS, MOST_PENALTY

Body = Mapping[str, Any]
Schema = dict[str, Any]

MOST_CHOICES = 128
MOST_STOPS = 4
LONGEST_STOP = 1_000  # characters; held-back text is compared with every beginning of it
MOST_BIASES = 1_024
MOST_STOP_TOKENS = 128
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for the model's chat template, each with a role and its content as one text."""

    messages: tuple[dict[str, str], ...]


class Parameter(Protocol):
    @property
    def default(self) -> Any: ...

    def read(self, name: str, value: Any) -> Any:
        """The value as the server uses it; raises ApiError (400) that names it."""

    def schema(self) -> Schema:
        """What `read` accepts, as JSON Schema has it."""


def read(body: Body, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Every parameter's value, given or default. `body` holds no null: that means "not given"."""
    for name in body:
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            refuse(name, f"is not a parameter of this endpoint{hint}", code="unknown_parameter")
    for name, parameter in parameters.items():
        if parameter.default is REQUIRED and name not in body:
            refuse(name, "is required", code="missing_required_parameter")
    return {
        name: parameter.read(name, body[name]) if name in body else parameter.default
        for name, parameter in parameters.items()
    }


class _Required:
    """The default of a parameter that must be given."""


REQUIRED = _Required()


@dataclass(frozen=True, slots=True)
class Number:
    low: float
    high: float
    default: float
    above: bool = False  # `low` itself is refused

    def read(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(name, f"must be a number, got {named(value)}")
        fits = self.low < value if self.above else self.low <= value
        if not (fits and value <= self.high and math.isfinite(value)):
            bounds = f"above {self.low:g} and at most" if self.above else f"from {self.low:g} to"
            refuse(name, f"must be {bounds} {self.high:g}, got {named(value)}")
        return float(value)

    def schema(self) -> Schema:
        low = "exclusiveMinimum" if self.above else "minimum"
        return {"type": "number", low: self.low, "maximum": self.high, "default": self.default}


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int | None
    default: int | None

    def read(self, name: str, value: Any) -> int:
        if not _is_int(value):
            refuse(name, f"must be an integer, got {named(value)}")
        if value < self.low or (self.high is not None and value > self.high):
            limits = f"at least {self.low}"
            if self.high is not None:
                limits = f"from {self.low} to {self.high}"
            refuse(name, f"must be {limits}, got {named(value)}")
        return int(value)

    def schema(self) -> Schema:
        schema: Schema = {"type": "integer", "minimum": self.low}
        if self.high is not None:
            schema["maximum"] = self.high
        return schema if self.default is None else {**schema, "default": self.default}


@dataclass(frozen=True, slots=True)
class Boolean:
    default: bool = False

    def read(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            refuse(name, f"must be true or false, got {named(value)}")
        return value

    def schema(self) -> Schema:
        return {"type": "boolean", "default": self.default}


@dataclass(frozen=True, slots=True)
class Neutral:
    """Not built: accepted only with a value that asks for nothing."""

    values: tuple[Any, ...]
    default: None = None

    def read(self, name: str, value: Any) -> None:
        if not any(_same(value, neutral) for neutral in self.values):
            accepted = " or ".join(json.dumps(neutral) for neutral in self.values)
            problem = f"is not supported by this server (only {accepted}), got {named(value)}"
            refuse(name, problem, code="unsupported_parameter")

    def schema(self) -> Schema:
        return {"enum": list(self.values), "description": "Not supported."}


@dataclass(frozen=True, slots=True)
class Label:
    """Labels or files a request elsewhere, and could not change its answer."""

    default: None = None

    def read(self, name: str, value: Any) -> None:
        pass

    def schema(self) -> Schema:
        return {"description": "Accepted, and not used."}


@dataclass(frozen=True, slots=True)
class Name:
    default: Any = REQUIRED

    def read(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            refuse(name, f"must be a string, got {named(value)}")
        return value

    def schema(self) -> Schema:
        return {"type": "string"}


@dataclass(frozen=True, slots=True)
class StopStrings:
    default: tuple[str, ...] = ()

    def read(self, name: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = [value] if value else []
        if not isinstance(value, list):
            refuse(name, f"must be a string or an array of strings, got {named(value)}")
        if len(value) > MOST_STOPS:
            refuse(name, f"must hold at most {MOST_STOPS} strings, got {len(value)}")
        for i, stop in enumerate(value):
            if not isinstance(stop, str) or not stop:
                refuse(f"{name}[{i}]", f"must be a non-empty string, got {named(stop)}")
            if len(stop) > LONGEST_STOP:
                problem = f"must be at most {LONGEST_STOP} characters, got {len(stop)}"
                refuse(f"{name}[{i}]", problem)
            _text(stop, f"{name}[{i}]")
        return tuple(value)

    def schema(self) -> Schema:
        one = {"type": "string", "minLength": 1, "maxLength": LONGEST_STOP}
        many = {"type": "array", "maxItems": MOST_STOPS, "items": one}
        return {"oneOf": [{"type": "string", "maxLength": LONGEST_STOP}, many]}


@dataclass(frozen=True, slots=True)
class TokenIds:
    default: frozenset[int] = frozenset()

    def read(self, name: str, value: Any) -> frozenset[int]:
        if not isinstance(value, list) or not all(_is_int(each) and each >= 0 for each in value):
            refuse(name, f"must be an array of token ids, got {named(value)}")
        if len(value) > MOST_STOP_TOKENS:
            refuse(name, f"must hold at most {MOST_STOP_TOKENS} tokens, got {len(value)}")
        return frozenset(value)

    def schema(self) -> Schema:
        ids = {"type": "integer", "minimum": 0}
        return {"type": "array", "maxItems": MOST_STOP_TOKENS, "items": ids}


@dataclass(frozen=True, slots=True)
class LogitBias:
    default: tuple[tuple[int, float], ...] = ()

    def read(self, name: str, value: Any) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict):
            refuse(name, f"must be an object from token ids to numbers, got {named(value)}")
        if len(value) > MOST_BIASES:
            refuse(name, f"must hold at most {MOST_BIASES} tokens, got {len(value)}")
        bias = Number(-100, 100, 0.0)
        for token in value:
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                refuse(name, f"must have token ids as its names, got {named(token)}")
        # "7" and "07" are one token: the later counts, as twice the same name would.
        read = {int(token): bias.read(f"{name}.{token}", value[token]) for token in value}
        return tuple(read.items())

    def schema(self) -> Schema:
        bias = {"type": "number", "minimum": -100, "maximum": 100}
        return {
            "type": "object",
            "maxProperties": MOST_BIASES,
            "patternProperties": {"^[0-9]{1,9}$": bias},
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Which are true; include_obfuscation is read and, as in OpenAI's own servers, optional."""

    default: frozenset[str] = frozenset()

    def read(self, name: str, value: Any) -> frozenset[str]:
        if not isinstance(value, dict):
            refuse(name, f"must be an object, got {named(value)}")
        given = {option: asked for option, asked in value.items() if asked is not None}
        for option, asked in given.items():
            if option not in _STREAM_OPTIONS:
                known = ", ".join(_STREAM_OPTIONS)
                refuse(f"{name}.{option}", f"is unknown; known are {known}")
            Boolean().read(f"{name}.{option}", asked)
        return frozenset(option for option, asked in given.items() if asked)

    def schema(self) -> Schema:
        options = {option: _or_null({"type": "boolean"}) for option in _STREAM_OPTIONS}
        return {"type": "object", "properties": options, "additionalProperties": False}


_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")


@dataclass(frozen=True, slots=True)
class Messages:
    default: Any = REQUIRED

    def read(self, name: str, value: Any) -> Conversation:
        if not isinstance(value, list) or not value:
            refuse(name, f"must be a non-empty array, got {named(value)}")
        return Conversation(tuple(_message(each, f"{name}[{i}]") for i, each in enumerate(value)))

    def schema(self) -> Schema:
        part = {
            "type": "object",
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            "required": ["type", "text"],
        }
        content = {"oneOf": [{"type": "string"}, {"type": "array", "items": part}]}
        message = {
            "type": "object",
            "properties": {"role": {"enum": list(ROLES)}, "content": content},
            "required": ["role", "content"],
        }
        return {"type": "array", "minItems": 1, "items": message}


@dataclass(frozen=True, slots=True)
class Prompt:
    default: Any = REQUIRED

    def read(self, name: str, value: Any) -> str | tuple[int, ...]:
        if isinstance(value, list) and len(value) == 1 and not _is_int(value[0]):
            value = value[0]  # a batch of one
        if isinstance(value, str):
            return _text(value, name)
        if isinstance(value, list) and value and all(map(_is_int, value)):
            return tuple(value)
        if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str | list):
            refuse(name, f"holds {len(value)} prompts; this server takes one a request")
        refuse(name, f"must be a string or a non-empty array of token ids, got {named(value)}")

    def schema(self) -> Schema:
        text = {"type": "string", "minLength": 1}
        ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
        batch = {"type": "array", "minItems": 1, "maxItems": 1, "items": {"oneOf": [text, ids]}}
        return {"oneOf": [text, ids, batch]}


_BOTH: dict[str, Parameter] = {
    "model": Name(),
    "max_tokens": Integer(1, None, None),
    "max_completion_tokens": Integer(1, None, None),
    "min_tokens": Integer(0, None, 0),
    "temperature": Number(0, 2, 1.0),
    "top_p": Number(0, 1, 1.0, above=True),
    "top_k": Integer(-1, None, 0),
    "min_p": Number(0, 1, 0.0),
    "repetition_penalty": Number(LEAST_PENALTY, MOST_PENALTY, 1.0),
    "presence_penalty": Number(-2, 2, 0.0),
    "frequency_penalty": Number(-2, 2, 0.0),
    "logit_bias": LogitBias(),
    "seed": Integer(-(2**63), 2**63 - 1, None),
    "n": Integer(1, MOST_CHOICES, 1),
    "stop": StopStrings(),
    "stop_token_ids": TokenIds(),
    "include_stop_str_in_output": Boolean(),
    "ignore_eos": Boolean(),
    "stream": Boolean(),
    "stream_options": StreamOptions(),
    "user": Label(),
    "metadata": Label(),
    "store": Label(),
    "service_tier": Label(),
    "safety_identifier": Label(),
    "prompt_cache_key": Label(),
    "request_id": Label(),
    "suffix": Neutral(("",)),
    "length_penalty": Neutral((1,)),
    "use_beam_search": Neutral((False,)),
    "tools": Neutral(([],)),
    "tool_choice": Neutral(("none", "auto")),
    "parallel_tool_calls": Neutral((True, False)),
    "functions": Neutral(([],)),
    "function_call": Neutral(("none", "auto")),
    "response_format": Neutral(({"type": "text"},)),
    "modalities": Neutral((["text"],)),
    "skip_special_tokens": Neutral((True,)),
    "spaces_between_special_tokens": Neutral((True,)),
    "add_generation_prompt": Neutral((True,)),
    "continue_final_message": Neutral((False,)),
    "chat_template_kwargs": Neutral(({},)),
}

CHAT: dict[str, Parameter] = {
    **_BOTH,
    "messages": Messages(),
    "logprobs": Boolean(),
    "top_logprobs": Integer(0, MOST_LOGPROBS, 0),
    "best_of": Neutral((1,)),
    "echo": Neutral((False,)),
}

COMPLETIONS: dict[str, Parameter] = {
    **_BOTH,
    "prompt": Prompt(),
    "logprobs": Integer(0, MOST_LOGPROBS, None),
    "top_logprobs": Neutral((0,)),
    "best_of": Integer(1, MOST_CHOICES, None),
    "echo": Boolean(),
}


def body_schema(parameters: Mapping[str, Parameter]) -> Schema:
    """A request's body, where null means "not given"."""
    properties = {
        name: each.schema() if each.default is REQUIRED else _or_null(each.schema())
        for name, each in parameters.items()
    }
    required = [name for name, each in parameters.items() if each.default is REQUIRED]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _or_null(schema: Schema) -> Schema:
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "oneOf" in schema:
        return {**schema, "oneOf": [*schema["oneOf"], {"type": "null"}]}
    return schema


def _message(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        refuse(where, f"must be an object, got {named(value)}")
    if value.get("role") not in ROLES:
        roles = ", ".join(ROLES)
        refuse(f"{where}.role", f"must be one of {roles}, got {named(value.get('role'))}")
    for name in ("tool_calls", "function_call", "audio"):
        if value.get(name):
            refuse(f"{where}.{name}", "is not supported by this server", "unsupported_parameter")
    content = value.get("content")
    if isinstance(content, str):
        text = _text(content, f"{where}.content")
    elif isinstance(content, list):
        parts = (_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
        text = "\n".join(parts)  # as vLLM joins them
    else:
        refuse(f"{where}.content", f"must be a string or an array of parts, got {named(content)}")
    return {"role": value["role"], "content": text}


def _part(value: Any, where: str) -> str:
    if not isinstance(value, dict) or value.get("type") != "text":
        kind = value.get("type") if isinstance(value, dict) else value
        problem = f"must be 'text', the only part this server reads, got {named(kind)}"
        refuse(f"{where}.type", problem)
    if not isinstance(value.get("text"), str):
        refuse(f"{where}.text", f"must be a string, got {named(value.get('text'))}")
    return _text(value["text"], f"{where}.text")


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        refuse(where, f"holds half a surrogate pair at character {error.start}")
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _same(value: Any, neutral: Any) -> bool:
    # Python's True == 1 is not the API's.
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
