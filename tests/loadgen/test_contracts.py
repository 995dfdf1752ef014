"""`prony run --target URL`, with no further option, against servers that are unlike the usual one.

Fakes of Ollama (no /metrics, models called name:tag, a cold model), of a gateway (a key, 429 with
Retry-After), and of an endpoint that refuses fields that we would like to send.
"""

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.replay_server import DONE, FINISH, Peer, chunked, event, serving
from tests.loadgen.test_probe import answer
from tests.starting import run_program

from prony_loadgen.folder import RunFolder
from prony_loadgen.record import RequestRecord

SHORT = ["--rate", "40", "--requests", "4", "--warmup", "0s", "--output-tokens", "2", "--quiet"]
NOT_FOUND = answer("404 Not Found", b"404 page not found", "text/plain")


def prony_run(
    url: str, out: Path, *options: str, key: str | None = None
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], list[RequestRecord]]:
    """What the program said, its run.json and its records; nothing where there was no run."""
    environ = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
    environ.pop("OPENAI_API_KEY", None)
    if key is not None:
        environ["OPENAI_API_KEY"] = key
    command = ["run", "chat", "--target", url, "--out", str(out), *SHORT, *options]
    done = run_program("prony", *command, environ=environ)
    if not (out / "run.json").exists():
        return done, {}, []
    folder = RunFolder(out)
    return done, folder.read_run(), list(folder.records())


def path_of(asked: bytes) -> str:
    return asked.split(b" ")[1].decode()


def body_of(asked: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(asked.split(b"\r\n\r\n", 1)[1])
    return body


class Ollama:
    """Both of its ways, as its documentation describes them; the first request loads the model."""

    def __init__(self) -> None:
        self.cold = True

    def __call__(self, peer: Peer, asked: bytes) -> None:
        path = path_of(asked)
        model = "qwen3:0.6b"
        if path == "/v1/models":
            listed = {"object": "list", "data": [{"id": model, "object": "model"}]}
            peer.send(answer("200 OK", json.dumps(listed).encode()))
        elif path == "/api/tags":
            peer.send(answer("200 OK", json.dumps({"models": [{"name": model}]}).encode()))
        elif path == "/v1/chat/completions" and body_of(asked)["model"] == model:
            usage = {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 2}}
            told = b"data: " + json.dumps(usage).encode() + b"\n\n"
            peer.send(chunked(event("Hel"), event("lo"), FINISH, told, DONE))
        elif path == "/api/chat" and body_of(asked)["model"] == model:
            load, self.cold = (1_500_000_000 if self.cold else 12_000_000), False
            last = {"message": {"content": ""}, "done": True, "done_reason": "stop"}
            counts = {"prompt_eval_count": 40, "eval_count": 2, "load_duration": load}
            lines = [{"message": {"content": text}, "done": False} for text in ("Hel", "lo")]
            pieces = [json.dumps(line).encode() + b"\n" for line in (*lines, {**last, **counts})]
            peer.send(chunked(*pieces, content_type="application/x-ndjson"))
        else:
            peer.send(NOT_FOUND)


def test_ollama_is_run_as_it_is(tmp_path: Path) -> None:
    with serving(Ollama()) as server:
        done, run, records = prony_run(server.url, tmp_path / "run")
    assert done.returncode != 2, done.stderr  # four requests prove little, on a busy machine less
    assert [record.outcome for record in records] == ["ok"] * 4
    assert run["target"]["model"] == "qwen3:0.6b"
    assert "refuses" not in done.stdout


def test_ollamas_own_dialect_reports_its_load_and_that_it_cannot_ignore_the_end(
    tmp_path: Path,
) -> None:
    with serving(Ollama()) as server:
        done, _, records = prony_run(server.url, tmp_path / "run", "--dialect", "ollama-chat")
    assert done.returncode != 2, done.stderr
    assert [record.outcome for record in records] == ["ok"] * 4
    assert [record.model_load for record in records] == [0.0] * 4  # the probe met the cold one
    assert "the server loaded its model for the probe, for 1.5 s" in done.stdout
    assert "ollama-chat has no ignore_eos" in done.stdout


class Gateway:
    """Wants a key, and has no room for the first request of all, nor for the load's second."""

    def __init__(self) -> None:
        self._probes, self._loads = itertools.count(), itertools.count()

    def __call__(self, peer: Peer, asked: bytes) -> None:
        if b"\r\nAuthorization: Bearer sk-good\r\n" not in asked:
            peer.send(answer("401 Unauthorized", b'{"error":{"message":"Invalid API key"}}'))
        elif path_of(asked) == "/v1/models":
            peer.send(answer("200 OK", b'{"data":[{"id":"gpt"}]}'))
        elif asked.startswith(b"GET "):
            peer.send(NOT_FOUND)  # such as /metrics
        else:
            loads = body_of(asked)["max_tokens"] == 2
            if next(self._loads) == 1 if loads else next(self._probes) == 0:
                body = b'{"error":{"message":"Rate limit reached","code":"rate_limit_exceeded"}}'
                told = answer("429 Too Many Requests", body)
                peer.send(told.replace(b"\r\n", b"\r\nRetry-After: 1\r\nretry-after-ms: 20\r\n", 1))
            else:
                peer.send(chunked(event("Hel"), event("lo"), FINISH, DONE))


def test_a_gateway_without_a_key_says_which_option_gives_one(tmp_path: Path) -> None:
    with serving(Gateway()) as server:
        done, _, records = prony_run(server.url, tmp_path / "run")
    assert (done.returncode, records) == (2, [])
    assert "refused us (401)" in done.stderr
    assert "--api-key-env (default: OPENAI_API_KEY)" in done.stderr


def test_a_gateways_429_is_waited_for_by_the_probe_and_recorded_by_the_run(tmp_path: Path) -> None:
    with serving(Gateway()) as server:
        done, run, records = prony_run(server.url, tmp_path / "run", key="sk-good")
        asked = [body_of(each) for each in server.requests if each.startswith(b"POST")]
    assert run["target"]["model"] == "gpt", done.stderr
    refused = [record for record in records if record.status == 429]
    assert len(records) == 4 and len(refused) == 1
    assert refused[0].retry_after == 0.02
    assert "Rate limit reached (rate_limit_exceeded); Retry-After: 1" in (refused[0].error or "")
    assert sum(body["max_tokens"] == 2 for body in asked) == 4  # no hidden retry
    assert "sk-good" not in (tmp_path / "run" / "run.json").read_text()


class Strict:
    """Refuses fields by name, or without saying which."""

    def __init__(self, *fields: str, silent: bool = False) -> None:
        self._fields, self._silent = fields, silent

    def __call__(self, peer: Peer, asked: bytes) -> None:
        if path_of(asked) == "/v1/models":
            peer.send(answer("200 OK", b'{"data":[{"id":"m"}]}'))
            return
        if asked.startswith(b"GET "):
            peer.send(NOT_FOUND)
            return
        unknown = [field for field in self._fields if field in body_of(asked)]
        if unknown:
            why = "bad request" if self._silent else f"Extra inputs are not permitted: {unknown[0]}"
            peer.send(answer("400 Bad Request", json.dumps({"error": {"message": why}}).encode()))
        else:
            peer.send(chunked(event("Hel"), event("lo"), FINISH, DONE))


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize(
    "fields", [("stream_options",), ("ignore_eos",), ("stream_options", "ignore_eos")]
)
def test_fields_that_an_endpoint_refuses_are_left_out_and_named(
    tmp_path: Path, fields: tuple[str, ...], silent: bool
) -> None:
    with serving(Strict(*fields, silent=silent)) as server:
        done, run, records = prony_run(server.url, tmp_path / "run")
        bodies = [body_of(asked) for asked in server.requests if asked.startswith(b"POST")]
    assert done.returncode != 2, done.stdout + done.stderr
    assert [record.outcome for record in records] == ["ok"] * 4
    assert run["target"]["left_out"] == list(fields)
    for field in fields:
        assert f"refuses {field}, so it is left out" in done.stdout
    assert not any(field in body for field in fields for body in bodies[-4:])


def test_a_refusal_that_nothing_helps_against_is_told_as_it_is(tmp_path: Path) -> None:
    with serving(Strict("model")) as server:
        done, _, records = prony_run(server.url, tmp_path / "run")
    assert (done.returncode, records) == (2, [])
    assert "Extra inputs are not permitted: model" in done.stderr


class Reasoning(Strict):
    """As OpenAI answers for its reasoning models: in these words, with this one name."""

    def __call__(self, peer: Peer, asked: bytes) -> None:
        if asked.startswith(b"POST") and "max_tokens" in body_of(asked):
            why = (
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead."
            )
            told = {"error": {"message": why, "code": "unsupported_parameter"}}
            peer.send(answer("400 Bad Request", json.dumps(told).encode()))
        else:
            super().__call__(peer, asked)


@pytest.mark.parametrize("fields", [(), ("stream_options",)])
def test_a_limit_of_tokens_that_goes_by_another_name_is_sent_by_it(
    tmp_path: Path, fields: tuple[str, ...]
) -> None:
    with serving(Reasoning(*fields)) as server:
        done, run, records = prony_run(server.url, tmp_path / "run")
        bodies = [body_of(asked) for asked in server.requests if asked.startswith(b"POST")]
    assert [record.outcome for record in records] == ["ok"] * 4, done.stderr
    assert "refuses max_tokens, so it is sent as max_completion_tokens" in done.stdout
    assert run["target"]["renamed"] == {"max_tokens": "max_completion_tokens"}
    assert run["target"]["left_out"] == list(fields)
    assert [body["max_completion_tokens"] for body in bodies[-4:]] == [2] * 4
    # It is asked once how it wants it, and from then on everything goes so.
    assert sum("max_tokens" in body for body in bodies) == 1
