"""How answers end, with an engine that says exactly what the test wants: text, errors, nothing."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry

from prony_server.engine import EngineStopped
from prony_server.limits import Limits
from prony_server.routes import Backend, Service
from prony_server.sequence import FinishReason, Output, Phases, SamplingParams
from prony_server.streams import Bridge
from prony_server.telemetry import ServerMetrics
from prony_server.tiny import tiny_tokenizer
from prony_server.tokenizer import Tokenizer

Said = tuple[bytes, FinishReason | None, str | None]  # tokens (tiny: bytes), reason, error

LIMITS = Limits(256, 8, 512, 16, num_blocks=64, kv_bytes=0, batching="continuous")


@dataclass
class ScriptedEngine:
    """Takes the engine's place: emits its script for every request, a step an entry."""

    script: Sequence[Said]
    failed: BaseException | None = None
    limits: Limits = LIMITS
    flush: Callable[[], None] = lambda: None
    aborted: list[str] = field(default_factory=list)

    def submit(
        self, request_id: str, prompt: Any, params: SamplingParams, emit: Callable[[Output], None]
    ) -> None:
        if self.failed is not None:
            raise EngineStopped("the engine has failed")
        for tokens, reason, error in self.script:
            emit(Output(request_id, tuple(tokens), reason, error, Phases(0.0)))
            self.flush()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


@dataclass(frozen=True)
class Seen:
    status: int
    headers: dict[str, str]
    body: str
    closed: bool  # the server did not keep the connection


def ask(engine: ScriptedEngine, method: str = "POST", path: str = "", **body: Any) -> Seen:
    async def scenario() -> Seen:
        registry = CollectorRegistry()
        metrics = ServerMetrics(registry, "tiny")
        service = Service("tiny", None, registry, metrics, NoOpTracer(), write_timeout=10.0)
        bridge = Bridge(asyncio.get_running_loop(), metrics.generated)
        engine.flush = bridge.flush
        stand_in: Any = engine
        service.backend = Backend(
            stand_in, Tokenizer(tiny_tokenizer()), bridge, 0, "cpu", "float32"
        )
        runner = web.AppRunner(service.app(), handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}{path or '/v1/completions'}"
        try:
            async with (
                aiohttp.ClientSession() as client,
                client.request(
                    method, url, json={"model": "tiny", "prompt": "x", **body} if body else None
                ) as response,
            ):
                text = await response.text()
                connection = response.headers.get("Connection", "")
                return Seen(response.status, dict(response.headers), text, connection == "close")
        finally:
            await runner.cleanup()
            service.close()

    return asyncio.run(scenario())


def events(seen: Seen) -> list[Any]:
    data = [line.removeprefix("data: ") for line in seen.body.strip("\n").split("\n\n")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def a_token_a_step(text: str, reason: FinishReason) -> list[Said]:
    steps: list[Said] = [(bytes([byte]), None, None) for byte in text.encode()]
    return [*steps, (b"", reason, None)]


def test_an_emoji_made_of_four_tokens_arrives_in_one_chunk() -> None:
    engine = ScriptedEngine(a_token_a_step("é中😀", "stop"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, finish, usage, done = events(ask(engine, stream=True, stream_options=options))
    assert [(c["choices"][0]["text"], c["usage"]["completion_tokens"]) for c in chunks] == [
        ("é", 2),
        ("中", 5),
        ("😀", 9),
    ]
    assert finish["choices"][0]["finish_reason"] == "stop" and done == "[DONE]"
    assert usage["usage"]["completion_tokens"] == 9


def test_an_answer_cut_inside_a_character_ends_alike_streamed_and_whole() -> None:
    script: list[Said] = [(b"a", None, None), ("😀".encode()[:2], "length", None)]
    *chunks, _ = events(ask(ScriptedEngine(script), stream=True))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    whole = json.loads(ask(ScriptedEngine(script), stream=False).body)
    assert text == whole["choices"][0]["text"] == "a\N{REPLACEMENT CHARACTER}"
    assert whole["usage"]["completion_tokens"] == 3


def test_an_answer_of_no_tokens_is_a_finished_one() -> None:
    script: list[Said] = [(b"", "stop", None)]
    chunk, done = events(ask(ScriptedEngine(script), stream=True))
    assert chunk["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert done == "[DONE]"
    whole = json.loads(ask(ScriptedEngine(script), stream=False).body)
    assert whole["choices"][0]["text"] == "" and whole["usage"]["completion_tokens"] == 0


def test_an_error_inside_a_stream_is_an_event_and_the_end_never_a_finish_or_done() -> None:
    script: list[Said] = [(b"ab", None, None), (b"", "error", "the step failed: no memory")]
    seen = ask(ScriptedEngine(script), stream=True)
    assert seen.status == 200
    text, error = events(seen)
    assert text["choices"][0]["text"] == "ab"
    assert error == {
        "error": {
            "message": "the step failed: no memory",
            "type": "server_error",
            "param": None,
            "code": "error",
        }
    }


def test_an_error_before_a_whole_answer_is_a_status() -> None:
    script: list[Said] = [(b"ab", None, None), (b"", "error", "the step failed: no memory")]
    seen = ask(ScriptedEngine(script), stream=False)
    assert seen.status == 500
    assert json.loads(seen.body)["error"]["message"] == "the step failed: no memory"
    script = [(b"ab", "abort", None)]
    seen = ask(ScriptedEngine(script), stream=False)
    assert seen.status == 503 and seen.headers["Retry-After"]


def test_an_engine_that_died_shows_in_health_and_refuses_requests() -> None:
    dead = ScriptedEngine([], failed=RuntimeError("CUDA error: device lost"))
    health = ask(dead, "GET", "/health")
    assert health.status == 500 and "device lost" in health.body
    assert ask(dead, "GET", "/ready").status == 503
    refused = ask(dead, stream=True)
    assert refused.status == 503
    assert "engine failed" in json.loads(refused.body)["error"]["message"]


def test_a_fault_of_our_own_is_a_500_without_its_traceback(caplog: Any) -> None:
    class Broken(ScriptedEngine):
        def submit(self, *_: Any) -> None:
            raise KeyError("secret detail")

    seen = ask(Broken([]), stream=True)
    assert seen.status == 500 and "secret" not in seen.body
    assert json.loads(seen.body)["error"]["type"] == "server_error"
    assert "secret detail" in caplog.text  # in the log, once


def test_a_fault_of_our_own_inside_a_stream_is_an_error_event(caplog: Any) -> None:
    not_ids: Any = "x"
    [error] = events(ask(ScriptedEngine([(not_ids, None, None)]), stream=True))
    assert error["error"]["message"] == "internal error; the server's log says more"
    assert "a stream failed" in caplog.text
