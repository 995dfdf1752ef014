"""The API as an OpenAPI 3.1 document, made from the tables that the requests are parsed with."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from prony_server.parameters import CHAT, COMPLETIONS, Parameter, Schema, body_schema

_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}


def document(model: str, max_model_len: int | None) -> dict[str, Any]:
    """`model`: the one name that requests may give; the context, where it is known already."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Prony reference server",
            "version": version("prony"),
            "description": "The part of the OpenAI API that this server has, and its probes.",
        },
        "paths": {
            "/v1/chat/completions": {"post": _generation("An answer to a conversation", "chat")},
            "/v1/completions": {"post": _generation("A continuation of a prompt", "completion")},
            "/v1/models": {"get": _read("The one model", _ref("Models"), guarded=True)},
            "/health": {"get": _read("Alive, while loading and draining too", _STATUS, 500)},
            "/ready": {"get": _read("Takes requests", _STATUS, 503)},
            "/metrics": {"get": _read_text("Prometheus text, or OpenMetrics where asked for")},
            "/openapi.json": {"get": _read("This document", {"type": "object"})},
        },
        "components": {
            "schemas": {
                "ChatRequest": _body(CHAT, model, max_model_len),
                "CompletionRequest": _body(COMPLETIONS, model, max_model_len),
                "Chat": _answer("chat.completion", {"message": _MESSAGE}),
                "Completion": _answer("text_completion", {"text": _STRING}),
                "Usage": _USAGE,
                "Models": _MODELS,
                "Error": _ERROR,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _body(parameters: Mapping[str, Parameter], model: str, context: int | None) -> Schema:
    schema = body_schema(parameters)
    schema["properties"]["model"]["enum"] = [model]
    if context is not None:
        for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
            schema["properties"][name]["maximum"] = context
    return schema


def _object(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


_STATUS = _object({"status": _STRING})
_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object(
            {"cached_tokens": _COUNT, "truncated_tokens": _COUNT}, optional=("truncated_tokens",)
        ),
    }
)
_MESSAGE = _object({"role": {"const": "assistant"}, "content": _STRING})
_MODEL = _object(
    {
        "id": _STRING,
        "object": {"const": "model"},
        "created": _COUNT,
        "owned_by": _STRING,
        "max_model_len": _COUNT,
    }
)
_MODELS = _object({"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}})
_ERROR = _object(
    {
        "error": _object(
            {
                "message": _STRING,
                "type": _STRING,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            }
        )
    }
)


def _answer(kind: str, content: dict[str, Schema]) -> Schema:
    choice = _object(
        {
            "index": _COUNT,
            **content,
            "logprobs": {"type": ["object", "null"]},
            "finish_reason": {"enum": ["stop", "length"]},
        }
    )
    return _object(
        {
            "id": _STRING,
            "object": {"const": kind},
            "created": _COUNT,
            "model": _STRING,
            "choices": {"type": "array", "items": choice},
            "usage": _ref("Usage"),
        }
    )


# Why a request may be refused; each in the one shape of an error.
_REFUSALS = {
    400: "The body is no JSON, or a parameter cannot be acted on; `param` names it",
    401: "The API key is missing or wrong",
    404: "No such model",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body was not sent as application/json, or in an unknown Content-Encoding",
    429: "The queue is full; Retry-After says when to come back",
    500: "The engine failed at this request",
    503: "Loading or shutting down; Retry-After says when to come back",
}


def _generation(summary: str, kind: str) -> Schema:
    asked, answered = {
        "chat": ("ChatRequest", "Chat"),
        "completion": ("CompletionRequest", "Completion"),
    }[kind]
    whole = {
        "application/json": {"schema": _ref(answered)},
        "text/event-stream": {"schema": _STRING},
    }
    good = {"description": "Whole, or with `stream: true` as server-sent events", "content": whole}
    return {
        "summary": summary,
        "security": [{}, {"key": []}],
        "requestBody": {"required": True, "content": _json(_ref(asked))},
        "responses": {"200": good, **{str(code): _refusal(code) for code in _REFUSALS}},
    }


def _read(summary: str, schema: Schema, bad: int | None = None, guarded: bool = False) -> Schema:
    responses: dict[str, Schema] = {"200": {"description": summary, "content": _json(schema)}}
    if bad is not None:
        responses[str(bad)] = {"description": "Not so", "content": _json(schema)}
    if guarded:
        responses |= {str(code): _refusal(code) for code in (401, 503)}
        return {"summary": summary, "security": [{}, {"key": []}], "responses": responses}
    return {"summary": summary, "responses": responses}


def _read_text(summary: str) -> Schema:
    text = {"schema": _STRING}
    content = {"text/plain": text, "application/openmetrics-text": text}
    return {
        "summary": summary,
        "responses": {"200": {"description": summary, "content": content}},
    }


def _refusal(code: int) -> Schema:
    return {"description": _REFUSALS[code], "content": _json(_ref("Error"))}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
