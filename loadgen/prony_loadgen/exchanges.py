"""Requests on the wire: each goes out over a connection, and comes back as a RequestRecord.

Life of an exchange: under way (on a connection that was kept alive, or a new one) -> settled (its
outcome is known; the rest of the answer is read, to free the connection) -> finished, recorded.

Only the client's thread comes here. Nothing waits: whoever calls says what is ready, and when.
"""

import os
import selectors
import socket as sockets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prony_loadgen.answer import Answer
from prony_loadgen.connection import Addresses, begin_connect, connect_result
from prony_loadgen.deadlines import TimeLimit
from prony_loadgen.dialects import DIALECTS, Dialect
from prony_loadgen.record import Outcome, RequestRecord
from prony_loadgen.target import Target

READ_SIZE = 65536
# After the outcome is known, how long the rest of the answer is awaited so that its connection can
# be used again: the last chunk of a body often comes a moment after its last event.
LINGER = 0.1
# How long one address of several may take to answer before the next is tried, until one has.
NEXT_ADDRESS_AFTER = 0.25


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send at `intended`, a time.monotonic() value."""

    id: str
    cls: str
    dialect: str
    body: bytes
    intended: float
    trace_id: str  # 32 hex digits
    span_id: str  # 16 hex digits
    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None
    keep_text: bool = False


@dataclass(slots=True, eq=False)
class Exchange:
    """A request under way and its answer."""

    request: Request
    answer: Answer
    sent: float | None = None
    connected: float | None = None
    connection: "Connection | None" = None
    untried: list[int] = field(default_factory=list)  # addresses
    retried: bool = False  # after a kept-alive connection turned out to be closed


@dataclass(slots=True, eq=False)
class Connection:
    """A socket, and what it is busy with."""

    sock: sockets.socket
    address: int
    exchange: Exchange | None
    watched: int  # what the selector looks for
    connecting: bool = True
    reused: bool = False
    unsent: bytes = b""


class Exchanges:
    """All that are under way with one target."""

    def __init__(
        self,
        target: Target,
        selector: selectors.BaseSelector,
        *,
        origin: float,
        on_record: Callable[[RequestRecord], None],
        worker: int,
    ) -> None:
        """Registers its sockets with `selector`, a Connection as their data.

        Raises TargetError where the target's name has no address.
        """
        self._selector = selector
        self._origin = origin
        self._on_record = on_record
        self._worker = worker
        self._addresses = Addresses(target.host, target.port)
        self._heads = {name: _request_head(target, dialect) for name, dialect in DIALECTS.items()}
        self._under_way: dict[Exchange, None] = {}
        self._idle: dict[Connection, None] = {}  # kept alive, the last used last
        self._connect_limit: TimeLimit[Exchange] = TimeLimit(target.timeouts.connect)
        self._address_limit: TimeLimit[Exchange] = TimeLimit(NEXT_ADDRESS_AFTER)
        self._first_token_limit: TimeLimit[Exchange] = TimeLimit(target.timeouts.first_token)
        self._total_limit: TimeLimit[Exchange] = TimeLimit(target.timeouts.total)
        self._linger_limit: TimeLimit[Exchange] = TimeLimit(LINGER)
        self._limits = (
            self._connect_limit,
            self._address_limit,
            self._first_token_limit,
            self._total_limit,
            self._linger_limit,
        )

    def __len__(self) -> int:
        """How many are under way; safe to ask from any thread."""
        return len(self._under_way)

    def admit(self, request: Request) -> Exchange:
        """Counts it as under way; `begin` sends it."""
        answer = Answer(DIALECTS[request.dialect], keep_text=request.keep_text)
        exchange = Exchange(request, answer)
        self._under_way[exchange] = None
        return exchange

    def begin(self, exchange: Exchange) -> None:
        now = exchange.sent = time.monotonic()
        self._total_limit.add(exchange, now)
        self._first_token_limit.add(exchange, now)
        if self._idle:
            connection, _ = self._idle.popitem()
            connection.reused = True
            connection.exchange = exchange
            exchange.connection = connection
            self._send(connection, self._payload(exchange.request))
        else:
            self._connect(exchange, now)

    def next_limit(self) -> float:
        """When check_limits has something to do; infinity where no limit is running."""
        return min(limit.next() for limit in self._limits)

    def check_limits(self, now: float) -> None:
        for exchange in self._address_limit.over(now):
            self._drop(exchange.connection)
            self._try_next_address(exchange, now, "no answer")
        limits: tuple[tuple[TimeLimit[Exchange], Outcome, str], ...] = (
            (self._connect_limit, "connect_error", "no connection"),
            (self._first_token_limit, "timeout", "no token"),
            (self._total_limit, "timeout", "not finished"),
        )
        for limit, outcome, what in limits:
            for exchange in limit.over(now):
                why = f"{what} within {limit.seconds:g} s"
                exchange.answer.fail(outcome, why, self._clock(now))
                self._finish(exchange)
        for exchange in self._linger_limit.over(now):
            self._finish(exchange)

    def ready(self, connection: Connection, events: int, now: float) -> None:
        """The selector says that a connection can be read or written."""
        if connection.connecting:
            self._connected(connection, now)
            return
        if events & selectors.EVENT_WRITE:
            self._send(connection, connection.unsent)
        if events & selectors.EVENT_READ:
            self._receive(connection, now)

    def give_up_all(self, why: str) -> None:
        """Records all that are under way as incomplete."""
        now = self._clock(time.monotonic())
        for exchange in list(self._under_way):
            exchange.answer.fail("incomplete", why, now)
            self._finish(exchange)

    def release(self) -> None:
        """Closes the connections that lie idle."""
        for connection in list(self._idle):
            self._drop(connection)

    def _payload(self, request: Request) -> bytes:
        return b"%btraceparent: 00-%b-%b-01\r\nContent-Length: %d\r\n\r\n%b" % (
            self._heads[request.dialect],
            request.trace_id.encode(),
            request.span_id.encode(),
            len(request.body),
            request.body,
        )

    def _connect(self, exchange: Exchange, now: float) -> None:
        self._connect_limit.add(exchange, now)
        exchange.untried = self._addresses.order()
        self._try_next_address(exchange, now, "no address")

    def _try_next_address(self, exchange: Exchange, now: float, failure: str) -> None:
        while exchange.untried:
            index = exchange.untried.pop(0)
            sock = begin_connect(self._addresses, index)
            if not isinstance(sock, str):
                connection = Connection(sock, index, exchange, selectors.EVENT_WRITE)
                exchange.connection = connection
                self._selector.register(sock, selectors.EVENT_WRITE, connection)
                if exchange.untried and not self._addresses.worked:
                    self._address_limit.add(exchange, now)
                return
            failure = sock
        exchange.answer.fail("connect_error", f"cannot connect: {failure}", self._clock(now))
        self._finish(exchange)

    def _connected(self, connection: Connection, now: float) -> None:
        exchange = connection.exchange
        assert exchange is not None
        self._address_limit.discard(exchange)
        failure = connect_result(connection.sock, self._addresses, connection.address)
        if failure is not None:
            self._drop(connection)
            self._try_next_address(exchange, now, failure)
            return
        self._addresses.succeeded(connection.address)
        self._connect_limit.discard(exchange)
        connection.connecting = False
        exchange.connected = now
        self._send(connection, self._payload(exchange.request))

    def _send(self, connection: Connection, data: bytes) -> None:
        try:
            written = connection.sock.send(data)
        except BlockingIOError:
            written = 0
        except OSError:
            # The peer closed. What it said before that, or how it closed, is there to be read.
            written = len(data)
        connection.unsent = data[written:]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if connection.watched != wanted:
            connection.watched = wanted
            self._selector.modify(connection.sock, wanted, connection)

    def _receive(self, connection: Connection, now: float) -> None:
        why = "the server closed the connection"
        try:
            data = connection.sock.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            data, why = b"", f"{os.strerror(error.errno or 0)}: the connection broke"
        exchange = connection.exchange
        if exchange is None:  # idle: closed by the server, or saying what nobody asked
            self._drop(connection)
            return
        answer = exchange.answer
        if data:
            answer.feed(data, self._clock(now))
        elif connection.reused and not answer.begun and not exchange.retried:
            # It was closed while it lay idle, which says nothing of this request.
            exchange.retried = True
            self._drop(connection)
            self._connect(exchange, now)
            return
        else:
            answer.end(self._clock(now), why)
        if answer.arrivals:
            self._first_token_limit.discard(exchange)
        if answer.over:
            self._finish(exchange)
        elif answer.settled():
            self._linger_limit.add(exchange, now)

    def _finish(self, exchange: Exchange) -> None:
        """Frees the connection and hands over the record."""
        for limit in self._limits:
            limit.discard(exchange)
        connection = exchange.connection
        if connection is not None and exchange.answer.reusable and not connection.unsent:
            connection.exchange = exchange.connection = None
            self._idle[connection] = None
        else:
            self._drop(connection)
        del self._under_way[exchange]
        self._on_record(self._record(exchange))

    def _drop(self, connection: Connection | None) -> None:
        if connection is None:
            return
        if connection.exchange is None:
            del self._idle[connection]
        else:
            connection.exchange.connection = None
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _clock(self, now: float) -> float:
        return now - self._origin

    def _clock_or_none(self, moment: float | None) -> float | None:
        return None if moment is None else self._clock(moment)

    def _record(self, exchange: Exchange) -> RequestRecord:
        request, answer = exchange.request, exchange.answer
        assert answer.outcome is not None
        assert answer.ended is not None
        output_tokens, output_tokens_from = answer.output_tokens()
        return RequestRecord(
            id=request.id,
            cls=request.cls,
            intended=self._clock(request.intended),
            sent=self._clock_or_none(exchange.sent),
            connected=self._clock_or_none(exchange.connected),
            headers=answer.headers,
            arrivals=tuple(answer.arrivals),
            ended=answer.ended,
            outcome=answer.outcome,
            error=answer.error,
            status=answer.status,
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=output_tokens,
            output_tokens_from=output_tokens_from,
            asked_input_tokens=request.asked_input_tokens,
            asked_output_tokens=request.asked_output_tokens,
            flags=tuple(answer.flags),
            text=answer.text("text") if request.keep_text else None,
            reasoning=answer.text("reasoning") if request.keep_text else None,
            worker=self._worker,
            trace_id=request.trace_id,
            span_id=request.span_id,
        )


def _request_head(target: Target, dialect: Dialect) -> bytes:
    """The request line and the headers that are the same for every request."""
    host = target.authority.removesuffix(":80")
    headers = {
        "Host": host,
        "User-Agent": "prony",
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    given = {name.lower() for name, _ in target.headers}
    lines = [f"POST {target.base_path}{dialect.path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items() if name.lower() not in given]
    lines += [f"{name}: {value}" for name, value in target.headers]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")
