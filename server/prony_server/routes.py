"""The HTTP interface: requests in, answers in OpenAI's shapes out, the engine behind.

A handler reads, checks, tokenizes and submits; then it writes what the engine emits. Whatever ends
a handler early (a client that hangs up, a reader that stalls, an error) aborts its sequence.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web
from opentelemetry.trace import Tracer
from prometheus_client.registry import Collector

from prony_server import answers, openapi, profile_routes, waterfall
from prony_server.account import Account
from prony_server.answers import Answer, EventStream, Piece, Usage, error_event
from prony_server.connection import timed
from prony_server.generation import Choice, Generation, Text
from prony_server.openai_api import (
    ApiError,
    Body,
    Conversation,
    GenerationRequest,
    Operation,
    parse_chat,
    parse_completion,
    parse_json,
)
from prony_server.page import page
from prony_server.requestlog import RequestLog
from prony_server.sequence import SamplingParams
from prony_server.streams import Bridge, Stream
from prony_server.telemetry import ServerMetrics
from prony_server.tokenizer import Tokenizer
from prony_server.trace_ring import TraceRing

if TYPE_CHECKING:
    from prony_server.engine import Engine
    from prony_server.limits import Limits
    from prony_server.sequence import Output

logger = logging.getLogger(__name__)

# Room for a million tokens' text; beyond it the body is refused unread.
LARGEST_BODY = 8 * 2**20
# What aiohttp decodes; another one it would hand on as if nothing were encoded.
ENCODINGS = ("identity", "gzip", "deflate", "br", "zstd")
# Below this a prompt is tokenized in less time than a hand-over to a thread takes.
LONG_PROMPT = 4_000

_PARSERS: dict[Operation, Callable[[Body], GenerationRequest]] = {
    "chat": parse_chat,
    "text_completion": parse_completion,
}
_ID_PREFIX = {"chat": "chatcmpl", "text_completion": "cmpl"}
_SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies like nginx would hold tokens back otherwise
}
RETRY_AFTER = "5"  # seconds
_GUARDED = ("/v1/", "/debug/", *profile_routes.PATHS)


@dataclass(frozen=True, slots=True)
class Backend:
    """What answers requests, once it is loaded."""

    engine: Engine
    tokenizer: Tokenizer
    bridge: Bridge
    created: int  # Unix seconds
    device: str
    dtype: str


@dataclass(slots=True)
class Service:
    """One server's state, and the handlers that share it. All of it lives on the event loop."""

    name: str  # what `model` must say
    api_key: str | None
    page: Collector  # of what /metrics shows
    metrics: ServerMetrics
    tracer: Tracer
    write_timeout: float  # seconds for a reader that takes nothing
    read_timeout: float = 30.0  # seconds for a body to arrive
    sliding_window: bool = False  # of a prompt that is too long, the end is taken
    traces: TraceRing | None = None  # what /debug/traces shows, where it is asked for
    log: RequestLog | None = None  # a line a request, where it is asked for
    injected: tuple[str, ...] = ()  # faults put in on purpose, as they were given
    backend: Backend | None = None
    draining: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    _active: int = 0
    _running: set[str] = field(default_factory=set)  # ids in the engine
    _tokenizing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="tokenize")
    )

    def __post_init__(self) -> None:
        self.idle.set()

    def app(self) -> web.Application:
        app = web.Application(
            client_max_size=LARGEST_BODY, middlewares=[timed, _errors_as_openai, self._authorize]
        )
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/ready", self.ready)
        app.router.add_get("/metrics", self.scrape)
        app.router.add_get("/openapi.json", self.describe)
        if self.traces is not None:
            app.router.add_get("/debug/traces", self.slowest)
            app.router.add_get("/debug/traces/{trace_id}", self.one_trace)
        return app

    def end_running(self) -> None:
        """Ends every answer that still runs; each tells its client with an error."""
        assert self.backend is not None
        for response_id in tuple(self._running):
            self.backend.engine.abort(response_id)

    def close(self) -> None:
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    # --- what can be asked without a model -----------------------------------------------------

    async def health(self, _: web.Request) -> web.Response:
        """Alive: 200 while loading and draining too; 500 once the engine has died."""
        failed = self.backend.engine.failed if self.backend else None
        if failed is not None:
            return web.json_response({"status": "engine failed", "error": str(failed)}, status=500)
        said: dict[str, object] = {"status": "ok"}
        if self.injected:
            said["injected"] = self.injected
        return web.json_response(said)

    async def ready(self, _: web.Request) -> web.Response:
        """Takes requests now: 200; else 503 with the reason."""
        reason = self._why_not_ready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": reason}, status=503)

    async def scrape(self, request: web.Request) -> web.Response:
        """Prometheus text, or OpenMetrics where asked for, which alone carries exemplars."""
        accept = request.headers.get("Accept", "")
        body, content_type = await asyncio.to_thread(page, self.page, accept)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def describe(self, _: web.Request) -> web.Response:
        context = self.backend.engine.limits.max_model_len if self.backend else None
        return web.json_response(openapi.document(self.name, context))

    async def slowest(self, request: web.Request) -> web.Response:
        """The last traces, slowest first: a page, or JSON with ?format=json."""
        assert self.traces is not None
        traces = self.traces.slowest()
        if request.query.get("format") == "json":
            return web.json_response([[asdict(span) for span in spans] for spans in traces])
        return web.Response(text=waterfall.as_list(traces), content_type="text/html")

    async def one_trace(self, request: web.Request) -> web.Response:
        """One trace's waterfall: a page, or with ?format= text, json or chrome."""
        assert self.traces is not None
        spans = self.traces.trace(request.match_info["trace_id"])
        if spans is None:
            raise ApiError(404, "no such trace among the last ones", code="trace_not_found")
        match request.query.get("format"):
            case "json":
                return web.json_response([asdict(span) for span in spans])
            case "chrome":
                return web.json_response(waterfall.as_chrome(spans))
            case "text":
                return web.Response(text=waterfall.as_text(spans))
        return web.Response(text=waterfall.as_page(spans), content_type="text/html")

    async def models(self, _: web.Request) -> web.Response:
        backend = self._serving()
        limit = backend.engine.limits.max_model_len
        return web.json_response(answers.models(self.name, backend.created, limit))

    # --- generation ----------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def complete(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "text_completion")

    async def _generate(self, request: web.Request, operation: Operation) -> web.StreamResponse:
        arrived = time.monotonic()
        account = Account(
            self.metrics,
            self.tracer,
            operation,
            self.name,
            request.headers,
            _address(request),
            arrived,
            self.log,
        )
        self._active += 1
        self.idle.clear()
        try:
            return await self._answer(request, operation, account)
        except ApiError as error:
            account.failed(str(error.status))
            raise
        except (asyncio.CancelledError, ConnectionError):
            account.failed("client_disconnected")
            raise
        except Exception:
            account.failed("500")
            raise
        finally:
            account.close()
            self._active -= 1
            if not self._active:
                self.idle.set()

    async def _answer(
        self, request: web.Request, operation: Operation, account: Account
    ) -> web.StreamResponse:
        backend = self._serving()
        asked = _PARSERS[operation](parse_json(await _read_body(request, self.read_timeout)))
        if asked.model != self.name:
            message = f"the model '{asked.model}' does not exist; this server serves '{self.name}'"
            raise ApiError(404, message, param="model", code="model_not_found")
        answer = Answer(
            operation, f"{_ID_PREFIX[operation]}-{uuid.uuid4().hex}", int(time.time()), self.name
        )
        account.asked(asked, answer.id)
        prompt = await self._tokenize(backend.tokenizer, asked.prompt, account)
        engine = backend.engine
        prompt, dropped = self._fit(asked, prompt, engine.limits)
        stream = Stream(account.left_engine, asked.n)
        text = _text(asked, backend.tokenizer, prompt, dropped)
        # The engine knows a choice of several by its own id.
        ids = [answer.id] if asked.n == 1 else [f"{answer.id}-{i}" for i in range(asked.n)]
        choices = {id_: Choice(index, text) for index, id_ in enumerate(ids)}
        generation = Generation(
            stream,
            choices,
            account,
            Usage(len(prompt), 0, truncated_tokens=dropped),
            lambda id_: engine.abort(id_, "stop"),
        )
        try:
            params = _sampling(asked, engine.limits.room - len(prompt))
            for index, id_ in enumerate(ids):
                emit = backend.bridge.emitter(stream)
                self._submit(asked, engine, id_, prompt, params.for_choice(index), emit)
                account.submitted()
                self._running.add(id_)
            self.metrics.accepted(len(prompt))
            headers = {"X-Request-Id": answer.id}
            if dropped:
                headers["X-Prony-Truncated-Prompt-Tokens"] = str(dropped)
            if asked.stream:
                events = EventStream(answer, asked.include_usage, asked.continuous_usage)
                return await self._stream(request, headers, events, generation, account)
            return await self._whole(request, headers, answer, generation, account)
        finally:
            self._running.difference_update(ids)
            if not stream.ended:
                for id_ in ids:
                    engine.abort(id_)

    async def _tokenize(
        self, tokenizer: Tokenizer, prompt: Conversation | str | tuple[int, ...], account: Account
    ) -> list[int]:
        start = time.monotonic()
        if _length(prompt) < LONG_PROMPT:
            ids = tokenizer.encode(prompt)
        else:  # long enough to hold up everyone else's tokens
            loop = asyncio.get_running_loop()
            ids = await loop.run_in_executor(self._tokenizing, tokenizer.encode, prompt)
        account.tokenized(start, time.monotonic(), len(ids))
        return ids

    def _fit(
        self, asked: GenerationRequest, prompt: list[int], limits: Limits
    ) -> tuple[list[int], int]:
        """The prompt, or with a sliding window its end; and how many tokens of it were dropped."""
        room = limits.room
        # Of a chat without a limit a quarter of the context is kept free for the answer.
        answer = asked.max_tokens or max(1, room // 4, asked.min_tokens)
        fits = len(prompt) + (asked.max_tokens or 1) <= room
        if not self.sliding_window or fits or answer >= room:
            return prompt, 0
        dropped = len(prompt) - (room - answer)
        return prompt[dropped:], dropped

    def _submit(
        self,
        asked: GenerationRequest,
        engine: Engine,
        sequence_id: str,
        prompt: list[int],
        params: SamplingParams,
        emit: Callable[[Output], None],
    ) -> None:
        # Imported here since it brings torch, and the port should be bound long before that.
        from prony_server.engine import EngineStopped, QueueFull, RequestTooLong

        param = "messages" if asked.operation == "chat" else "prompt"
        try:
            engine.submit(sequence_id, prompt, params, emit)
        except RequestTooLong as error:
            code = "context_length_exceeded"
            raise ApiError(400, str(error), param=param, code=code) from None
        except QueueFull as error:
            raise ApiError(429, str(error), kind="rate_limit_error", code="queue_full") from None
        except ValueError as error:
            # It names what is wrong; where that is no parameter, the prompt is.
            named = str(error).partition(" ")[0]
            param = named if named in ("logit_bias", "stop_token_ids") else param
            raise ApiError(400, str(error), param=param, code="invalid_value") from None
        except EngineStopped as error:
            raise _unavailable(str(error)) from None

    async def _stream(
        self,
        request: web.Request,
        headers: dict[str, str],
        events: EventStream,
        generation: Generation,
        account: Account,
    ) -> web.StreamResponse:
        """Headers at once, then an event an output; those that came together share a write."""
        transport = _unbuffered(request)
        response = web.StreamResponse(headers={**_SSE_HEADERS, **headers})
        await response.prepare(request)
        try:
            while not generation.ended():
                pieces = await generation.next()
                data = b"".join(map(events.piece, pieces))
                if generation.error is not None:
                    data += error_event(generation.error)
                elif generation.ended():
                    data += events.end(generation.usage)
                if not data:
                    continue
                ready = time.monotonic()
                async with asyncio.timeout(self.write_timeout):
                    await response.write(data)
                written = time.monotonic()
                account.wrote(ready, written)
                if any(piece.text for piece in pieces):
                    account.handed_over(written, generation.usage)
            async with asyncio.timeout(self.write_timeout):
                await response.write_eof()
        except TimeoutError:
            account.failed("write_timeout")
            transport.abort()
        except ConnectionError:
            raise
        except Exception:
            # The status line is gone: what is left is to say so in the stream.
            logger.exception("a stream failed")
            account.failed("500")
            response.force_close()
            await response.write(error_event(_internal_error()))
        else:
            if generation.error is not None:
                account.failed(str(generation.error.status))
                response.force_close()
            else:
                account.finished(generation.finish_reasons)
        return response

    async def _whole(
        self,
        request: web.Request,
        headers: dict[str, str],
        answer: Answer,
        generation: Generation,
        account: Account,
    ) -> web.StreamResponse:
        pieces: list[Piece] = []
        while not generation.ended():
            pieces += await generation.next()
            account.handed_over(time.monotonic(), generation.usage)
        if generation.error is not None:
            raise generation.error
        response = web.json_response(answer.whole(pieces, generation.usage), headers=headers)
        # Written here and not after returning, so that the account closes when the answer is out.
        transport = _unbuffered(request)
        try:
            async with asyncio.timeout(self.write_timeout):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            account.failed("write_timeout")
            transport.abort()
        else:
            account.finished(generation.finish_reasons)
        return response

    def _why_not_ready(self) -> str | None:
        if self.draining:
            return "shutting down"
        if self.backend is None:
            return "loading the model"
        if self.backend.engine.failed is not None:
            return "engine failed"
        return None

    def _serving(self) -> Backend:
        reason = self._why_not_ready()
        if reason is not None or self.backend is None:
            raise _unavailable(f"the server takes no requests now: {reason}")
        return self.backend

    @web.middleware
    async def _authorize(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Guards the API; health and metrics stay open, since probes and scrapers carry no key."""
        if self.api_key is not None and request.path.startswith(_GUARDED):
            scheme, _, key = request.headers.get("Authorization", "").partition(" ")
            expected = self.api_key.encode()
            given = key.strip().encode(errors="surrogateescape")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given, expected):
                message = "missing or wrong API key; send it as 'Authorization: Bearer KEY'"
                raise ApiError(401, message, code="invalid_api_key")
        return await handler(request)


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors_as_openai(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Every error leaves in OpenAI's shape, whoever raised it."""
    try:
        return await handler(request)
    except ApiError as error:
        return _error_response(error)
    except web.HTTPException as error:
        problem = f"{request.method} {request.path}: {error.reason}"
        if error.status == 404:
            routes = (
                route.resource.canonical for route in request.app.router.routes() if route.resource
            )
            problem += f"; this server has {', '.join(dict.fromkeys(routes))}"
        response = _error_response(ApiError(error.status, problem))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except ConnectionError:
        return web.Response(status=499)  # the client has gone: this goes nowhere, quietly
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        return _error_response(_internal_error())


def _error_response(error: ApiError) -> web.Response:
    response = web.json_response(error.body, status=error.status)
    if error.status in (429, 503):
        response.headers["Retry-After"] = RETRY_AFTER
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _address(request: web.Request) -> tuple[str, int]:
    """Where this request came in."""
    name = request.get_extra_info("sockname")
    return (name[0], name[1]) if name else ("", 0)


def _unbuffered(request: web.Request) -> asyncio.Transport:
    """Its transport, where waiting for the buffer now means: until the kernel has taken it all."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    assert isinstance(transport, asyncio.Transport)
    transport.set_write_buffer_limits(high=0)
    return transport


async def _read_body(request: web.Request, timeout: float) -> bytes:
    # Also keeps web pages of other origins out: a form could post text/plain here unasked.
    if request.content_type != "application/json":
        message = "the body must be sent with the header 'Content-Type: application/json'"
        raise ApiError(415, message, code="unsupported_media_type")
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        message = f"the Content-Encoding {encoding!r:.40} is not known here; expected {known}"
        raise ApiError(415, message, code="unsupported_content_encoding")
    too_large = ApiError(413, f"the body must not be larger than {LARGEST_BODY} bytes")
    if request.content_length is not None and request.content_length > LARGEST_BODY:
        raise too_large
    try:
        async with asyncio.timeout(timeout):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {timeout:g} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except web.RequestPayloadError:
        raise ApiError(400, "the body is not in the Content-Encoding that it names") from None


def _sampling(asked: GenerationRequest, room: int) -> SamplingParams:
    max_tokens = max(1, room) if asked.max_tokens is None else asked.max_tokens
    if asked.min_tokens > max_tokens:
        message = f"min_tokens ({asked.min_tokens}) is more than the context has room for ({room})"
        raise ApiError(400, message, param="min_tokens", code="invalid_value")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        repetition_penalty=asked.repetition_penalty,
        seed=asked.seed,
        ignore_eos=asked.ignore_eos,
        min_tokens=asked.min_tokens,
        top_k=asked.top_k,
        min_p=asked.min_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        stop_token_ids=asked.stop_token_ids,
        logit_bias=asked.logit_bias,
        logprobs=asked.logprobs,
    )


def _text(asked: GenerationRequest, tokenizer: Tokenizer, prompt: list[int], dropped: int) -> Text:
    lead = ""
    if asked.echo:
        whole = isinstance(asked.prompt, str) and not dropped
        lead = str(asked.prompt) if whole else tokenizer.text(prompt)
    return Text(
        tokenizer=tokenizer,
        context=prompt if asked.operation == "text_completion" else (),
        lead=lead,
        stop=asked.stop,
        include_stop=asked.include_stop,
        min_tokens=asked.min_tokens,
        scored=asked.logprobs is not None,
    )


def _length(prompt: Conversation | str | tuple[int, ...]) -> int:
    """Characters or token ids: a measure of how long tokenizing takes."""
    if isinstance(prompt, Conversation):
        return sum(len(message["content"]) for message in prompt.messages)
    return len(prompt)


def _unavailable(reason: str) -> ApiError:
    return ApiError(503, reason, kind="server_error", code="unavailable")


def _internal_error() -> ApiError:
    return ApiError(500, "internal error; the server's log says more", kind="server_error")
