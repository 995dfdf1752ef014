"""OpenAI's request format: a body's bytes in, one checked GenerationRequest or an ApiError out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from prony_server.errors import ApiError, named, refuse
from prony_server.parameters import CHAT, COMPLETIONS, Body, Conversation, read

__all__ = [
    "ApiError",
    "Body",
    "Conversation",
    "GenerationRequest",
    "Operation",
    "parse_chat",
    "parse_completion",
    "parse_json",
]

Operation = Literal["chat", "text_completion"]  # as gen_ai.operation.name spells them


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What was asked, with the API's defaults filled in."""

    operation: Operation
    model: str
    prompt: Conversation | str | tuple[int, ...]
    max_tokens: int | None  # None: as many as the context has room for
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int  # 0: all
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int | None
    ignore_eos: bool
    n: int  # answers to one prompt
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    include_stop: bool  # the stop string is part of the answer
    logprobs: int | None  # alternatives a token; None: no logprobs
    echo: bool  # the answer begins with the prompt
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
        raise ApiError(400, f"the body must be a JSON object, got {named(body)}")
    # In OpenAI's API null means "not given" for every parameter.
    return {name: value for name, value in body.items() if value is not None}


def parse_chat(body: Body) -> GenerationRequest:
    given = read(body, CHAT)
    if given["top_logprobs"] and not given["logprobs"]:
        refuse("top_logprobs", "is only allowed with logprobs: true")
    logprobs = given["top_logprobs"] if given["logprobs"] else None
    # OpenAI's defaults: a chat may fill the context, a completion stops after 16 tokens.
    return _request("chat", given, given["messages"], None, logprobs)


def parse_completion(body: Body) -> GenerationRequest:
    given = read(body, COMPLETIONS)
    n, best_of, logprobs = given["n"], given["best_of"], given["logprobs"]
    if best_of is not None and best_of != n:
        problem = f"is not supported by this server (only the value of n, {n}), got {best_of}"
        refuse("best_of", problem, code="unsupported_parameter")
    if given["echo"] and logprobs is not None:
        problem = "with logprobs is not supported by this server: a prompt's are not computed"
        refuse("echo", problem, code="unsupported_parameter")
    return _request("text_completion", given, given["prompt"], 16, logprobs)


def _request(
    operation: Operation,
    given: Mapping[str, Any],
    prompt: Conversation | str | tuple[int, ...],
    max_tokens: int | None,
    logprobs: int | None,
) -> GenerationRequest:
    if given["stream_options"] and not given["stream"]:
        refuse("stream_options", "is only allowed with stream: true")
    options = given["stream_options"]
    return GenerationRequest(
        operation=operation,
        model=given["model"],
        prompt=prompt,
        max_tokens=_max_tokens(given, max_tokens),
        min_tokens=given["min_tokens"],
        temperature=given["temperature"],
        top_p=given["top_p"],
        top_k=max(0, given["top_k"]),  # -1 is vLLM's word for all
        min_p=given["min_p"],
        repetition_penalty=given["repetition_penalty"],
        presence_penalty=given["presence_penalty"],
        frequency_penalty=given["frequency_penalty"],
        logit_bias=given["logit_bias"],
        seed=given["seed"],
        ignore_eos=given["ignore_eos"],
        n=given["n"],
        stop=given["stop"],
        stop_token_ids=given["stop_token_ids"],
        include_stop=given["include_stop_str_in_output"],
        logprobs=logprobs,
        echo=bool(given["echo"]),
        stream=given["stream"],
        include_usage="include_usage" in options,
        continuous_usage={"include_usage", "continuous_usage_stats"} <= options,
    )


def _max_tokens(given: Mapping[str, Any], default: int | None) -> int | None:
    # No upper bound here: whether prompt and output fit the context is known after tokenizing.
    old, new = given["max_tokens"], given["max_completion_tokens"]
    if old is not None and new is not None and old != new:
        refuse("max_tokens", f"({old}) and max_completion_tokens ({new}) disagree; send one")
    most = new if new is not None else old if old is not None else default
    if most is not None and given["min_tokens"] > most:
        refuse("min_tokens", f"({given['min_tokens']}) is more than max_tokens ({most})")
    return most


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
