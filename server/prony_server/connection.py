"""One client's connection: cut where a request dribbles in, answered in OpenAI's shape always.

aiohttp reads HTTP and runs the handlers. What it lacks is added here: a request's head must arrive
in time (its body: see routes.py), and what is no HTTP at all gets the error format of the API.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web

from prony_server.errors import ApiError

logger = logging.getLogger(__name__)

KEEP_ALIVE = 75.0  # seconds; above the idle limits of common clients and proxies
# For the rest of a body that nobody wants: a connection closed at once could lose the answer.
LINGER = 10.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    def __init__(
        self, server: web.Server, loop: asyncio.AbstractEventLoop, read_timeout: float
    ) -> None:
        """`read_timeout`: seconds from the first byte of a request's head to its last."""
        off: Any = None  # the annotation forbids what the code allows
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=KEEP_ALIVE,
            lingering_time=min(LINGER, read_timeout),
            access_log=off,
        )
        self._read_timeout = read_timeout
        self._due: asyncio.TimerHandle | None = None  # while a head arrives
        self._answering = False

    def data_received(self, data: bytes) -> None:
        if self._due is None and not self._answering:
            self._due = self._loop.call_later(self._read_timeout, self._too_late)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's answer to what never reached a handler, or came out of none."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: no other can be sent")
        if status >= 500:
            logger.error("%s %s failed", request.method, request.path, exc_info=exc)
            error = ApiError(status, HTTPStatus(status).phrase, kind="server_error")
        else:
            reason = (message or HTTPStatus(status).phrase).splitlines()[0]
            error = ApiError(status, f"this is not a valid HTTP request: {reason:.200}")
        response = web.json_response(error.body, status=status)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        # A body in another encoding than it names is refused; then aiohttp reads on in it.
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kw)

    def _head_arrived(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _too_late(self) -> None:
        if self.transport is not None:
            message = f"the request's head did not arrive within {self._read_timeout:g} s"
            body = json.dumps(ApiError(408, message).body).encode()
            head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
        self.force_close()


@web.middleware
async def timed(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """The outermost middleware: tells a connection when its request's head has arrived."""
    connection = request.protocol
    if not isinstance(connection, Connection):
        return await handler(request)
    connection._head_arrived()
    connection._answering = True
    response = await handler(request)
    if request.content.is_eof():
        connection._answering = False
    else:
        # The rest of this body would look like a next request; there will be none.
        response.force_close()
    return response
