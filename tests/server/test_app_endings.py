"""How answers end, with an engine that says exactly what the test wants: text, errors, nothing."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry

from prony_server.engine import EngineStopped
from prony_server.limits import Limits
from prony_server.routes import Backend, Service
from prony_server.sequence import FinishReason, Output, Phases, SamplingParams, TokenLogprobs
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
    aborted: list[tuple[str, FinishReason]] = field(default_factory=list)
    logprobs: bool = False  # every token is as likely as can be, and has two alternatives

    def submit(
        self, request_id: str, prompt: Any, params: SamplingParams, emit: Callable[[Output], None]
    ) -> None:
        if self.failed is not None:
            raise EngineStopped("the engine has failed")
        for tokens, reason, error in self.script:
            told = TokenLogprobs(0.0, ((ord("y"), -1.0), (0xE4, -2.0)))
            logprobs = (told,) * len(tokens) if self.logprobs else ()
            emit(Output(request_id, tuple(tokens), reason, error, Phases(0.0), logprobs))
            self.flush()

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        self.aborted.append((request_id, reason))


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


def test_v09_an_emoji_made_of_four_tokens_arrives_in_one_chunk() -> None:
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


def test_v09_an_answer_cut_inside_a_character_ends_alike_streamed_and_whole() -> None:
    script: list[Said] = [(b"a", None, None), ("😀".encode()[:2], "length", None)]
    *chunks, _ = events(ask(ScriptedEngine(script), stream=True))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    whole = json.loads(ask(ScriptedEngine(script), stream=False).body)
    assert text == whole["choices"][0]["text"] == "a\N{REPLACEMENT CHARACTER}"
    assert whole["usage"]["completion_tokens"] == 3


def texts(seen: Seen) -> list[str]:
    """Of a stream's chunks, without the empty one that brings the reason."""
    return [text for e in events(seen)[:-1] if (text := e["choices"][0]["text"])]


FOO: list[Said] = [(b"foo", None, None), (b"END", None, None), (b"OF", None, None)]


def test_v08_a_stop_string_over_several_tokens_is_not_told_and_its_tokens_count() -> None:
    engine = ScriptedEngine([*FOO, (b"x", None, None)])
    options = {"include_usage": True}
    seen = ask(engine, stream=True, stop="ENDOF", stream_options=options)
    *chunks, finish, usage, done = events(seen)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["foo"]
    assert finish["choices"][0]["finish_reason"] == "stop" and done == "[DONE]"
    assert usage["usage"]["completion_tokens"] == 8  # none of x, which came too late
    assert engine.aborted[0][1] == "stop"
    [choice] = json.loads(ask(ScriptedEngine(FOO), stop=["nothing", "ENDOF"]).body)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("foo", "stop")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ([*FOO, (b"x", "length", None)], ["foo", "ENDOFx"]),  # released when it cannot match
        ([*FOO, (b"", "stop", None)], ["foo", "ENDOF"]),  # flushed at the end
        ([(b"foo", None, None), (b"EN", "length", None)], ["foo", "EN"]),
    ],
)
def test_v08_what_was_held_back_for_a_stop_string_that_never_comes_is_told(
    script: list[Said], told: list[str]
) -> None:
    stop = "ENDOF!" if len(script) > 2 else "END"
    assert "".join(texts(ask(ScriptedEngine(script), stream=True, stop=[stop]))) == "".join(told)
    whole = json.loads(ask(ScriptedEngine(script), stop=[stop]).body)
    assert whole["choices"][0]["text"] == "".join(told)
    assert whole["choices"][0]["finish_reason"] == script[-1][1]


def test_v08_a_stop_string_is_told_where_that_was_asked_for() -> None:
    seen = ask(ScriptedEngine(FOO), stream=True, stop="ND", include_stop_str_in_output=True)
    assert "".join(texts(seen)) == "fooEND"


def test_v08_before_min_tokens_no_stop_string_counts() -> None:
    script: list[Said] = [*FOO, (b"fooENDx", "length", None)]
    body = json.loads(ask(ScriptedEngine(script), stop="END", min_tokens=7).body)
    assert body["choices"][0]["text"] == "fooENDOFfoo"
    # The token that completes it is the seventh.
    body = json.loads(ask(ScriptedEngine(script), stop="DO", min_tokens=7).body)
    assert body["choices"][0]["text"] == "fooEN"


def test_v08_a_stop_string_of_part_of_a_characters_bytes_never_splits_it() -> None:
    script = a_token_a_step("é中END", "length")
    assert "".join(texts(ask(ScriptedEngine(script), stream=True, stop="中"))) == "é"


@pytest.mark.parametrize("stream", [True, False])
def test_v08_logprobs_tell_nothing_of_a_stop_string(stream: bool) -> None:
    seen = ask(ScriptedEngine(FOO, logprobs=True), stream=stream, stop="ENDOF", logprobs=2)
    assert "E" not in "".join(json.dumps(seen.body).split("choices")[1:]).replace("DONE", "")
    told = [e["choices"][0] for e in events(seen)[:-1]] if stream else []
    told = told or json.loads(seen.body)["choices"]
    assert [c["logprobs"]["tokens"] for c in told if c["logprobs"]] == [["f", "o", "o"]]


@pytest.mark.parametrize(("stop", "told"), [("oEN", ["f", "o"]), ("中", ["a"]), ("a中", [])])
def test_v08_logprobs_end_with_the_last_token_that_is_wholly_before_the_stop(
    stop: str, told: list[str]
) -> None:
    script = a_token_a_step("a中b", "length") if "中" in stop else FOO
    for stream in (True, False):
        seen = ask(ScriptedEngine(script, logprobs=True), stream=stream, stop=stop, logprobs=0)
        parts = events(seen)[:-1] if stream else [json.loads(seen.body)]
        logprobs = [part["choices"][0]["logprobs"] for part in parts]
        assert [token for each in logprobs if each for token in each["tokens"]] == told


def test_logprobs_of_parts_of_a_character_name_their_bytes() -> None:
    script = a_token_a_step("中", "stop")
    seen = ask(ScriptedEngine(script, logprobs=True), stream=True, logprobs=2)
    chunk, _, _ = events(seen)
    told = chunk["choices"][0]["logprobs"]
    assert told["tokens"] == ["bytes:\\xe4", "bytes:\\xb8", "bytes:\\xad"]
    assert told["top_logprobs"][1] == {"y": -1.0, "bytes:\\xe4": -2.0, "bytes:\\xb8": 0.0}
    assert told["text_offset"] == [0, 0, 0]


def test_a_choice_that_stops_does_not_end_the_others() -> None:
    @dataclass
    class Different(ScriptedEngine):
        def submit(self, request_id: str, *rest: Any) -> None:
            self.script = FOO if request_id.endswith("-1") else [(b"abc", "length", None)]
            super().submit(request_id, *rest)

    engine = Different([])
    body = json.loads(ask(engine, stop="END", n=3).body)
    assert [(c["index"], c["text"], c["finish_reason"]) for c in body["choices"]] == [
        (0, "abc", "length"),
        (1, "foo", "stop"),
        (2, "abc", "length"),
    ]
    assert body["usage"]["completion_tokens"] == 12
    id_, reason = engine.aborted[0]
    assert (id_[-2:], reason) == ("-1", "stop")


def test_an_answer_whose_one_choice_fails_fails_and_the_others_are_given_up() -> None:
    @dataclass
    class Failing(ScriptedEngine):
        def submit(self, request_id: str, *rest: Any) -> None:
            failed = request_id.endswith("-1")
            self.script = [(b"a", "error", "no memory")] if failed else [(b"b", None, None)]
            super().submit(request_id, *rest)

    engine = Failing([])
    *_, last = events(ask(engine, stream=True, n=3))
    assert last["error"]["message"] == "no memory"
    assert {id_[-2:] for id_, _ in engine.aborted} == {"-0", "-1", "-2"}
    assert ask(Failing([]), n=3).status == 500


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
