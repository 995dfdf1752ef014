"""Text Generation Inference's own stream: an event a token, the last one with the whole text."""

from collections.abc import Mapping
from typing import Any

from prony_loadgen.dialects.dialect import Dialect, Output, Said
from prony_loadgen.dialects.reading import (
    count,
    decoded,
    finish_word,
    not_an_object,
    object_of,
    shown,
    text_of,
    text_prompt,
    with_extra,
)
from prony_loadgen.error_text import bare_error, told_error
from prony_loadgen.prompt import Prompt
from prony_loadgen.sse import Event

_KNOWN_KEYS = {"token", "details", "generated_text"}


def body(
    prompt: Prompt,
    *,
    model: str,
    max_tokens: int | None,
    ignore_eos: bool,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """A server has one model, so `model` is not sent; it cannot be told to ignore its end token."""
    parameters: dict[str, Any] = {"details": True}
    if max_tokens is not None:
        parameters["max_new_tokens"] = max_tokens
    asked = {"inputs": text_prompt(prompt, "tgi", "openai-chat, which TGI serves too")}
    return with_extra({**asked, "parameters": parameters}, extra, "parameters")


def read_event(event: Event) -> Said:
    data = event.data.strip()
    if not data:
        return Said()
    if data == b"[DONE]":
        return Said(done=True)
    chunk = decoded(data)
    if not isinstance(chunk, dict):
        return not_an_object(data)
    if event.name == "error" or chunk.get("error"):
        return Said(error=told_error(chunk) or shown(data))
    if not chunk.keys() & _KNOWN_KEYS and (told := bare_error(chunk)) is not None:
        return Said(error=told)
    token = object_of(chunk.get("token"))
    # A special token is counted by the server, but it is no text.
    text = "" if token.get("special") is True else text_of(token.get("text"))
    return _said(text, object_of(chunk.get("details")))


def read_whole(body: bytes) -> Said:
    answer = decoded(body)
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, dict):
        return not_an_object(body)
    if answer.get("error"):
        return Said(error=told_error(answer) or shown(body))
    if not isinstance(answer.get("generated_text"), str):
        return Said(malformed=f"no generated_text in it: {shown(body)}")
    return _said(answer["generated_text"], object_of(answer.get("details")))


def _said(text: str, details: dict[str, Any]) -> Said:
    reason = text_of(details.get("finish_reason"))
    counts = ("generated_tokens", "input_length")
    usage: dict[str, Any] = {key: details[key] for key in counts if key in details}
    return Said(
        outputs=(Output("text", 0, text),) if text else (),
        finished=((0, finish_word(reason)),) if reason else (),
        usage=usage or None,
    )


def prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    return count(usage, "input_length")


def output_tokens(usage: Mapping[str, Any]) -> int | None:
    return count(usage, "generated_tokens")


TGI = Dialect(
    name="tgi",
    greedy={"parameters": {"do_sample": False}},
    path="/generate_stream",
    body=body,
    read_event=read_event,
    read_whole=read_whole,
    prompt_tokens=prompt_tokens,
    output_tokens=output_tokens,
    unread_keys=frozenset({"id", "index", "logprob"}),
    versioned=False,
    models_path="/info",
    ignores_eos=False,
)
