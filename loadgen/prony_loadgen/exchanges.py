"""Requests on the wire: each goes out over a connection, and comes back as a RequestRecord.

Life of an exchange: under way (on a connection that was kept alive, or a new one) -> settled (its
outcome is known; the rest of the answer is read, to free the connection) -> finished, recorded.

Only the client's thread comes here. Nothing waits: whoever calls says what is ready, and when.
"""

import contextlib
import heapq
import itertools
import math
import os
import random
import selectors
import socket as sockets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prony_loadgen import native
from prony_loadgen.answer import Answer
from prony_loadgen.connection import Addresses, begin_connect, connect_result
from prony_loadgen.deadlines import Alarm, TimeLimit
from prony_loadgen.dialects import DIALECTS, Dialect
from prony_loadgen.proxy import ProxyError, Tunnel
from prony_loadgen.quality import Expect
from prony_loadgen.record import Attempt, Outcome, RequestRecord
from prony_loadgen.shortcut import shortcuts_of
from prony_loadgen.target import Target, TargetError
from prony_loadgen.timestamps import Receiver, WallClock, ask_for_stamps
from prony_loadgen.tls import TlsError, TlsFileError, TlsSession, tls_context

if TYPE_CHECKING:
    import ssl

# After the outcome is known, how long the rest of the answer is awaited so that its connection can
# be used again: the last chunk of a body often comes a moment after its last event.
LINGER = 0.1
# A server that counts fewer tokens for a prompt than this share of its words has cut it.
TRUNCATED_BELOW = 0.9
# A server that closes an idle connection as our request comes has not read it: the close was on its
# way, so it is here within a round trip, which connecting took once. Later the server may have
# worked on the request, and its loss is data. The least is for what we and it are late by; the most
# for a connection that took long to make by a lost packet.
CROSSED_ROUND_TRIPS, CROSSED_LEAST, CROSSED_MOST = 3, 0.05, 0.5
# What says that a request is refused for now; without Retry-After the wait doubles each time.
TRIED_AGAIN = (429, 503)
BACK_OFF, MOST_BACK_OFF = 0.5, 30.0
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
    # Every tokenizer in use makes at least one token of a word, so a server that counts fewer for
    # the prompt has cut it. None: nobody counted them.
    prompt_words: int | None = None
    expect: Expect | None = None  # what the answer has to be like
    natural: bool = True  # whether the model is to end its answer by itself
    hang_up_after: int | None = None  # chunks of output; the user loses patience then


@dataclass(slots=True, eq=False)
class Exchange:
    """A request under way and its answer."""

    request: Request
    answer: Answer
    sent: float | None = None
    tried: float = 0.0  # when its present try was sent
    earlier: list[Attempt] = field(default_factory=list)  # how the tries before that ended
    connected: float | None = None
    connection: "Connection | None" = None
    untried: list[int] = field(default_factory=list)  # addresses
    retried: bool = False  # after a kept-alive connection turned out to be closed
    lag: float = 0.0  # the longest that bytes of the answer waited to be read
    kernel_times: bool = True  # all of its times so far are the kernel's


@dataclass(slots=True, eq=False)
class Connection:
    """A socket, and what it is busy with."""

    sock: sockets.socket
    address: int
    exchange: Exchange | None
    watched: int  # what the selector looks for
    connecting: bool = True
    tunnel: Tunnel | None = None  # while the proxy has not opened it
    tls: TlsSession | None = None
    reused: bool = False
    unsent: bytes = b""
    used: float = 0.0  # when it was last written or read
    begun: float = 0.0  # when connecting began
    round_trip: float = 0.0  # what connecting took, through a proxy's tunnel if there is one

    @property
    def crossed_within(self) -> float:
        """Seconds after a request in which a close can have crossed it on the way."""
        return min(max(CROSSED_LEAST, CROSSED_ROUND_TRIPS * self.round_trip), CROSSED_MOST)


# What a read that gave nothing tells.
CLOSED = "the server closed the connection"


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

        Raises TargetError where the target's name has no address, or a certificate cannot be used.
        """
        self._target = target
        self._tls: ssl.SSLContext | None = None
        if target.tls is not None:
            try:
                self._tls = tls_context(target.tls)
            except TlsFileError as error:
                raise TargetError(str(error)) from None
        self._receiver = Receiver()
        # Open as long as there may be requests: the kernel begins to stamp packets some time after
        # the first socket asks for it, and stops with the last.
        self._stamped: sockets.socket | None = None
        self._wall = WallClock()
        self._shortcuts = {name: shortcuts_of(dialect) for name, dialect in DIALECTS.items()}
        self._selector = selector
        self._origin = origin
        self._on_record = on_record
        self._worker = worker
        self._addresses = Addresses(target)
        self._heads = {name: _request_head(target, dialect) for name, dialect in DIALECTS.items()}
        self._under_way: dict[Exchange, None] = {}
        # Those that wait to be tried again: when, and which; a heap.
        self._again: list[tuple[float, int, Exchange]] = []
        self._number = itertools.count()
        self._idle: dict[Connection, None] = {}  # kept alive, the last used last
        # Looking at every limit after every wait would cost more than most of what is read.
        alarm = self._alarm = Alarm()
        self._connect_limit: TimeLimit[Exchange] = TimeLimit(target.timeouts.connect, alarm)
        self._address_limit: TimeLimit[Exchange] = TimeLimit(NEXT_ADDRESS_AFTER, alarm)
        self._first_token_limit: TimeLimit[Exchange] = TimeLimit(target.timeouts.first_token, alarm)
        self._token_limit: TimeLimit[Exchange] = TimeLimit(target.timeouts.between_tokens, alarm)
        self._total_limit: TimeLimit[Exchange] = TimeLimit(target.timeouts.total, alarm)
        self._linger_limit: TimeLimit[Exchange] = TimeLimit(LINGER, alarm)
        self._limits = (
            self._connect_limit,
            self._address_limit,
            self._first_token_limit,
            self._token_limit,
            self._total_limit,
            self._linger_limit,
        )

    def __len__(self) -> int:
        """How many are under way; safe to ask from any thread."""
        return len(self._under_way)

    def admit(self, request: Request) -> Exchange:
        """Counts it as under way; `begin` sends it."""
        exchange = Exchange(request, self._no_answer(request))
        self._under_way[exchange] = None
        return exchange

    def _no_answer(self, request: Request) -> Answer:
        return Answer(
            DIALECTS[request.dialect],
            keep_text=request.keep_text,
            shortcuts=self._shortcuts[request.dialect],
        )

    def prepare(self) -> None:
        """To be called once, before the first request."""
        with contextlib.suppress(OSError):
            self._stamped = native.Socket(sockets.AF_INET, sockets.SOCK_DGRAM)
            ask_for_stamps(self._stamped)

    def begin(self, exchange: Exchange) -> None:
        now = exchange.sent = time.monotonic()
        self._total_limit.add(exchange, now)
        self._try(exchange, now)

    def _try(self, exchange: Exchange, now: float) -> None:
        exchange.tried = now
        self._first_token_limit.add(exchange, now)
        if self._idle:
            connection, _ = self._idle.popitem()
            connection.reused = True
            connection.exchange = exchange
            exchange.connection = connection
            self._send_request(connection, now)
        else:
            self._connect(exchange, now)

    def woke_up(self) -> None:
        """To be called after every wait: keeps the clocks in step."""
        self._wall.check()

    def next_limit(self) -> float:
        """When check_limits may have something to do; infinity where no limit is running."""
        return self._alarm.at

    def check_limits(self, now: float) -> None:
        if now < self._alarm.at:
            return
        self._end_limits(now)
        again = self._again[0][0] if self._again else math.inf
        self._alarm.at = min(again, *(limit.next() for limit in self._limits))

    def _end_limits(self, now: float) -> None:
        for exchange in self._address_limit.over(now):
            self._drop(exchange.connection)
            self._try_next_address(exchange, now, "no answer")
        limits: tuple[tuple[TimeLimit[Exchange], Outcome, str], ...] = (
            (self._connect_limit, "connect_error", "no connection"),
            (self._first_token_limit, "timeout", "no token"),
            (self._token_limit, "timeout", "no further token"),
            (self._total_limit, "timeout", "not finished"),
        )
        for limit, outcome, what in limits:
            for exchange in limit.over(now):
                why = f"{what} within {limit.seconds:g} s"
                exchange.answer.fail(outcome, why, self._clock(now))
                self._finish(exchange)
        for exchange in self._linger_limit.over(now):
            self._finish(exchange)
        while self._again and self._again[0][0] <= now:
            exchange = heapq.heappop(self._again)[2]
            if exchange in self._under_way:  # its time may be up meanwhile
                self._try(exchange, time.monotonic())

    def ready(self, connection: Connection, events: int, now: float) -> None:
        """The selector says that a connection can be read or written."""
        if connection.connecting:
            self._connected(connection, now)
            return
        if events & selectors.EVENT_WRITE and connection.unsent:
            self._write(connection, connection.unsent)
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
        if self._stamped is not None:
            self._stamped.close()

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
                connection = Connection(sock, index, exchange, selectors.EVENT_WRITE, begun=now)
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
        connection.connecting = False
        target = self._target
        if target.proxy is not None and self._tls is not None:
            connection.tunnel = Tunnel(target.proxy, target.authority)
            self._write(connection, connection.tunnel.request)
        else:
            self._open(connection, now)

    def _open(self, connection: Connection, now: float) -> None:
        """The way to the target is free: TLS next, where it is wanted, then the request."""
        connection.round_trip = now - connection.begun
        if self._tls is None:
            self._opened(connection, now)
            return
        connection.tls = TlsSession(self._tls, self._target.host)
        connection.tls.begin()
        self._write(connection, connection.tls.outgoing())

    def _opened(self, connection: Connection, now: float) -> None:
        exchange = connection.exchange
        assert exchange is not None
        self._connect_limit.discard(exchange)
        exchange.connected = now
        self._send_request(connection, now)

    def _send_request(self, connection: Connection, now: float) -> None:
        assert connection.exchange is not None
        payload = self._payload(connection.exchange.request)
        connection.used = now
        if connection.tls is not None:
            payload = connection.tls.encrypt(payload)
        self._write(connection, payload)

    def _write(self, connection: Connection, data: bytes) -> None:
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
        why = CLOSED
        try:
            data, stamp = self._receiver.receive(connection.sock)
        except BlockingIOError:
            return
        except OSError as error:
            data, stamp = b"", None
            why = f"{os.strerror(error.errno or 0)}: the connection broke"
        read_at = time.monotonic()
        at = self._wall.arrival(stamp, connection.used, read_at)
        exchange = connection.exchange
        if at is None:
            # One time for all that were ready: each had its bytes by now, and working through the
            # others must not count as its latency.
            at = max(now, connection.used)
            if data and exchange is not None:
                exchange.kernel_times = False
        elif exchange is not None and read_at - at > exchange.lag:
            exchange.lag = read_at - at
        connection.used = at
        ended = not data
        if connection.tunnel is not None or connection.tls is not None:
            try:
                data, ended = self._unwrapped(connection, data, at)
            except (TlsError, ProxyError) as error:
                data, ended, why = b"", True, str(error)
        if exchange is None:  # idle: closed by the server, or saying what nobody asked
            if data or ended:
                self._drop(connection)
        elif ended and exchange.connected is None and not connection.reused:
            why = f"cannot connect to {self._target.url}: {why}"
            exchange.answer.fail("connect_error", why, self._clock(at))
            self._finish(exchange)
        else:
            self._take(exchange, connection, data, at, why if ended else None)

    def _unwrapped(self, connection: Connection, data: bytes, at: float) -> tuple[bytes, bool]:
        """What the bytes of a connection say inside tunnel and TLS, and whether it has ended.

        Raises ProxyError and TlsError.
        """
        ended = not data
        if connection.tunnel is not None:
            rest = connection.tunnel.received(data)
            if rest is None or ended:
                return b"", ended
            connection.tunnel = None
            self._open(connection, at)
            data = rest
        session = connection.tls
        assert session is not None
        opened = session.ready
        told = session.received(data)
        if answer := session.outgoing():
            self._write(connection, connection.unsent + answer)
        if session.ready and not opened:
            self._opened(connection, at)
        return told, ended or session.ended

    def _take(
        self, exchange: Exchange, connection: Connection, data: bytes, at: float, ended: str | None
    ) -> None:
        """Bytes of an answer, and, where it has ended, why."""
        answer = exchange.answer
        had = len(answer.arrivals)
        if data:
            answer.feed(data, self._clock(at))
        if ended is not None:
            if self._crossed(exchange, connection, at):
                # It was closed while it lay idle, which says nothing of this request.
                exchange.retried = True
                answer.flags.append("resent")
                self._drop(connection)
                self._connect(exchange, time.monotonic())
                return
            answer.end(self._clock(at), ended)
        if len(answer.arrivals) > had:
            if not had:
                self._first_token_limit.discard(exchange)
            if self._token_limit.seconds is not None:
                self._token_limit.restart(exchange, time.monotonic())
            if exchange.request.hang_up_after is not None:
                self._hang_up(exchange, exchange.request.hang_up_after, at)
        if answer.settled():
            if answer.over:
                self._finish(exchange)
            else:
                self._linger_limit.add(exchange, time.monotonic())

    def _crossed(self, exchange: Exchange, connection: Connection, at: float) -> bool:
        """Whether a kept connection that ended was closed before the server had the request."""
        if not connection.reused or exchange.answer.begun or exchange.retried:
            return False
        return at - exchange.tried <= connection.crossed_within

    def _hang_up(self, exchange: Exchange, patience: int, at: float) -> None:
        """The user leaves, who was to leave after so much."""
        answer = exchange.answer
        if len(answer.arrivals) >= patience and not answer.settled():
            answer.flags.append("hung_up")
            answer.fail("incomplete", "the client hung up, as asked for", self._clock(at))

    def _finish(self, exchange: Exchange) -> None:
        """Frees the connection, and hands over the record unless it is to be tried again."""
        wait = self._wait_to_retry(exchange)
        for limit in self._limits:
            if wait is None or limit is not self._total_limit:
                limit.discard(exchange)
        self._free(exchange)
        if wait is not None:
            self._await_next_try(exchange, wait)
            return
        self._flag(exchange)
        del self._under_way[exchange]
        self._on_record(self._record(exchange))

    def _free(self, exchange: Exchange) -> None:
        """Keeps the connection for the next request, or closes it."""
        connection = exchange.connection
        if connection is not None and exchange.answer.reusable and not connection.unsent:
            connection.exchange = exchange.connection = None
            self._idle[connection] = None
        else:
            self._drop(connection)

    def _wait_to_retry(self, exchange: Exchange) -> float | None:
        """Seconds after which it is sent again; None where it is not."""
        retry, answer = self._target.retry, exchange.answer
        refused = answer.outcome == "http_error" and answer.status in TRIED_AGAIN
        number = len(exchange.earlier) + 1
        if retry is None or number > retry.most:
            return None
        if not refused and answer.outcome != "connect_error":
            return None
        told = answer.retry_after(time.time()) if retry.honour_retry_after else None
        # Drawn from the request, so that those that were refused together do not come together.
        drawn = random.Random(f"{exchange.request.id} {number}").uniform(0.5, 1.0)
        wait = min(BACK_OFF * 2 ** (number - 1), MOST_BACK_OFF) * drawn if told is None else told
        assert exchange.sent is not None
        left = exchange.sent + self._target.timeouts.total - time.monotonic()
        return wait if wait < left else None

    def _await_next_try(self, exchange: Exchange, wait: float) -> None:
        answer = exchange.answer
        assert answer.outcome is not None and answer.ended is not None
        exchange.earlier.append(
            Attempt(
                self._clock(exchange.tried),
                answer.ended,
                answer.outcome,
                answer.status,
                answer.error,
            )
        )
        exchange.answer = self._no_answer(exchange.request)
        exchange.connected, exchange.retried = None, False
        exchange.lag, exchange.kernel_times = 0.0, True
        at = time.monotonic() + wait
        heapq.heappush(self._again, (at, next(self._number), exchange))
        self._alarm.no_later(at)

    def _flag(self, exchange: Exchange) -> None:
        answer, words = exchange.answer, exchange.request.prompt_words
        counted = answer.prompt_tokens
        if words is not None and counted is not None and counted < TRUNCATED_BELOW * words:
            answer.flags.append("context_truncated")

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
            client_lag=exchange.lag if exchange.kernel_times and answer.begun else None,
            server_times=answer.server_times,
            retry_after=answer.retry_after(time.time()),
            earlier=tuple(exchange.earlier),
        )


def _request_head(target: Target, dialect: Dialect) -> bytes:
    """The request line and the headers that are the same for every request."""
    headers = {
        "Host": target.host_header,
        "User-Agent": "prony",
        "Accept": "text/event-stream, application/json, application/x-ndjson",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        **dict(dialect.headers),
    }
    if dialect.key_header is not None and target.api_key is not None:
        headers[dialect.key_header] = target.api_key
    given = {name.lower() for name, _ in target.headers}
    path = target.path(dialect.path, versioned=dialect.versioned)
    # A proxy is told the whole URL, unless it only opens a tunnel.
    through = target.proxy if target.tls is None else None
    whole = "" if through is None else f"http://{target.host_header}"
    lines = [f"POST {whole}{path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items() if name.lower() not in given]
    lines += [f"{name}: {value}" for name, value in target.headers]
    lines += [] if through is None else [f"{name}: {value}" for name, value in through.headers]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")
