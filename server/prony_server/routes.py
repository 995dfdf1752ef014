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
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from prony_server import answers, waterfall
from prony_server.account import Account
from prony_server.answers import Answer, EventStream, error_event
from prony_server.generation import Generation
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
from prony_server.streams import Bridge, Stream
from prony_server.telemetry import ServerMetrics
from prony_server.tokenizer import Tokenizer
from prony_server.trace_ring import TraceRing

if TYPE_CHECKING:
    from prony_server.engine import Engine

logger = logging.getLogger(__name__)

# Room for a million tokens' text; beyond it the body is refused unread.
LARGEST_BODY = 8 * 2**20
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
    registry: CollectorRegistry
    metrics: ServerMetrics
    tracer: Tracer
    write_timeout: float  # seconds for a reader that takes nothing
    traces: TraceRing | None = None  # what /debug/traces shows, where it is asked for
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
            client_max_size=LARGEST_BODY, middlewares=[_errors_as_openai, self._authorize]
        )
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/ready", self.ready)
        app.router.add_get("/metrics", self.scrape)
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
        return web.json_response({"status": "ok"})

    async def ready(self, _: web.Request) -> web.Response:
        """Takes requests now: 200; else 503 with the reason."""
        reason = self._why_not_ready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": reason}, status=503)

    async def scrape(self, request: web.Request) -> web.Response:
        """Prometheus text, or OpenMetrics where asked for, which alone carries exemplars."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await asyncio.to_thread(encode, self.registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

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
        asked = _PARSERS[operation](parse_json(await _read_body(request)))
        if asked.model != self.name:
            message = f"the model '{asked.model}' does not exist; this server serves '{self.name}'"
            raise ApiError(404, message, param="model", code="model_not_found")
        answer = Answer(
            operation, f"{_ID_PREFIX[operation]}-{uuid.uuid4().hex}", int(time.time()), self.name
        )
        account.asked(asked, answer.id)
        prompt = await self._tokenize(backend.tokenizer, asked.prompt, account)
        stream = Stream(account.left_engine)
        self._submit(backend, asked, answer.id, prompt, stream)
        self._running.add(answer.id)
        try:
            context = prompt if operation == "text_completion" else ()
            detokenizer = backend.tokenizer.detokenizer(context)
            generation = Generation(stream, detokenizer, account, len(prompt))
            if asked.stream:
                return await self._stream(request, asked, answer, generation, account)
            return await self._whole(request, answer, generation, account)
        finally:
            self._running.discard(answer.id)
            if not stream.ended:
                backend.engine.abort(answer.id)

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

    def _submit(
        self,
        backend: Backend,
        asked: GenerationRequest,
        response_id: str,
        prompt: list[int],
        stream: Stream,
    ) -> None:
        # Imported here since it brings torch, and the port should be bound long before that.
        from prony_server.engine import EngineStopped, RequestTooLong
        from prony_server.sequence import SamplingParams

        limits = backend.engine.limits
        room = min(limits.max_model_len, limits.kv_tokens) - len(prompt)
        param = "messages" if asked.operation == "chat" else "prompt"
        try:
            params = SamplingParams(
                max_tokens=max(1, room) if asked.max_tokens is None else asked.max_tokens,
                temperature=asked.temperature,
                top_p=asked.top_p,
                repetition_penalty=asked.repetition_penalty,
                seed=asked.seed,
                ignore_eos=asked.ignore_eos,
            )
            backend.engine.submit(response_id, prompt, params, backend.bridge.emitter(stream))
        except RequestTooLong as error:
            code = "context_length_exceeded"
            raise ApiError(400, str(error), param=param, code=code) from None
        except ValueError as error:
            raise ApiError(400, str(error), param=param, code="invalid_value") from None
        except EngineStopped as error:
            raise _unavailable(str(error)) from None
        self.metrics.accepted(len(prompt))

    async def _stream(
        self,
        request: web.Request,
        asked: GenerationRequest,
        answer: Answer,
        generation: Generation,
        account: Account,
    ) -> web.StreamResponse:
        """Headers at once, then an event an output; those that came together share a write."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        # Now waiting for the buffer means: until the kernel has taken all of it.
        transport.set_write_buffer_limits(high=0)
        response = web.StreamResponse(headers={**_SSE_HEADERS, "X-Request-Id": answer.id})
        await response.prepare(request)
        events = EventStream(answer, asked.include_usage, asked.continuous_usage)
        try:
            while not generation.ended:
                pieces = [piece for piece in await generation.next() if piece.text]
                data = [events.text(piece.text, piece.usage) for piece in pieces]
                if generation.finish_reason is not None:
                    data.append(events.finish(generation.finish_reason, generation.usage))
                elif generation.error is not None:
                    data.append(error_event(generation.error))
                if not data:
                    continue
                async with asyncio.timeout(self.write_timeout):
                    await response.write(b"".join(data))
                if pieces:
                    account.handed_over(time.monotonic(), generation.usage)
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
            if generation.finish_reason is not None:
                account.finished(generation.finish_reason)
            elif generation.error is not None:
                account.failed(str(generation.error.status))
                response.force_close()
        return response

    async def _whole(
        self,
        request: web.Request,
        answer: Answer,
        generation: Generation,
        account: Account,
    ) -> web.StreamResponse:
        texts: list[str] = []
        while not generation.ended:
            texts += [piece.text for piece in await generation.next()]
            account.handed_over(time.monotonic(), generation.usage)
        if generation.finish_reason is None:
            assert generation.error is not None
            raise generation.error
        body = answer.whole("".join(texts), generation.finish_reason, generation.usage)
        response = web.json_response(body, headers={"X-Request-Id": answer.id})
        # Written here and not after returning, so that the account closes when the answer is out.
        await response.prepare(request)
        await response.write_eof()
        account.finished(generation.finish_reason)
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
        if self.api_key is not None and request.path.startswith(("/v1/", "/debug/")):
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
    if error.status == 503:
        response.headers["Retry-After"] = RETRY_AFTER
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.status == 413:
        response.force_close()  # rather than read a body that nobody wants
    return response


def _address(request: web.Request) -> tuple[str, int]:
    """Where this request came in."""
    name = request.get_extra_info("sockname")
    return (name[0], name[1]) if name else ("", 0)


async def _read_body(request: web.Request) -> bytes:
    # Also keeps web pages of other origins out: a form could post text/plain here unasked.
    if request.content_type != "application/json":
        message = "the body must be sent with the header 'Content-Type: application/json'"
        raise ApiError(415, message, code="unsupported_media_type")
    too_large = ApiError(413, f"the body must not be larger than {LARGEST_BODY} bytes")
    if request.content_length is not None and request.content_length > LARGEST_BODY:
        raise too_large
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except web.RequestPayloadError:
        raise ApiError(400, "the body is not in the Content-Encoding that it names") from None


def _length(prompt: Conversation | str | tuple[int, ...]) -> int:
    """Characters or token ids: a measure of how long tokenizing takes."""
    if isinstance(prompt, Conversation):
        return sum(len(message["content"]) for message in prompt.messages)
    return len(prompt)


def _unavailable(reason: str) -> ApiError:
    return ApiError(503, reason, kind="server_error", code="unavailable")


def _internal_error() -> ApiError:
    return ApiError(500, "internal error; the server's log says more", kind="server_error")
