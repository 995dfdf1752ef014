"""Clients that are no HTTP clients, or hardly: cut in time, told why, and nobody else is hurt."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.server.live_server import LiveServer, live_server, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 2}).encode()
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
PATIENCE = 1.0  # the server's, for a request to arrive


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(read_timeout=PATIENCE) as live:
        yield live


def connect(server: LiveServer) -> socket.socket:
    connection = socket.create_connection(server.address, timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def rest(connection: socket.socket) -> bytes:
    """All until the server closes."""
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def told(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error, once its shape has been checked."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error


def dribble(connection: socket.socket, data: bytes) -> None:
    """A byte at a time until the server has had enough."""
    connection.settimeout(0.01)
    for byte in data:
        try:
            connection.send(bytes([byte]))
            if connection.recv(1, socket.MSG_PEEK) is not None:
                break
        except TimeoutError:
            continue
        except OSError:
            break
    connection.settimeout(60)


def test_a_head_that_dribbles_in_is_cut_and_told_why(server: LiveServer) -> None:
    with closing(connect(server)) as slow:
        dribble(slow, HEAD + b"X-Slow: " + b"a" * 4000)
        status, error = told(rest(slow))
        assert status == 408 and "head" in error["message"] and "1 s" in error["message"]


def test_a_body_that_dribbles_in_is_cut_and_told_why(server: LiveServer) -> None:
    with closing(connect(server)) as slow:
        slow.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
        dribble(slow, b" " * 4000)
        status, error = told(rest(slow))
        assert status == 408 and "body" in error["message"]


def test_a_body_that_nobody_reads_cannot_dribble_on_for_ever(server: LiveServer) -> None:
    with closing(connect(server)) as slow:
        slow.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
        )
        dribble(slow, b" " * 4000)
        assert told(rest(slow))[0] == 415


def test_a_hundred_slow_heads_hold_up_nobody_and_are_all_gone_in_the_end(
    server: LiveServer,
) -> None:
    tasks = server.tasks()
    slow = [connect(server) for _ in range(100)]
    try:
        for connection in slow:
            connection.sendall(HEAD)
        assert server.complete("x", max_tokens=2).status == 200
        assert [told(rest(connection))[0] for connection in slow] == [408] * 100
        until(lambda: server.tasks() <= tasks, "no task of theirs is left")
    finally:
        for connection in slow:
            connection.close()


def test_an_answer_and_an_idle_time_longer_than_a_head_may_take_are_not_cut(
    server: LiveServer,
) -> None:
    with closing(connect(server)) as connection:
        for _ in range(2):
            connection.sendall(WHOLE[:50])
            connection.sendall(WHOLE[50:])
            answer = b""
            while b"cached_tokens" not in answer:
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            # Nothing to wait for but time: a timer that was left running would end in it.
            connection.settimeout(1.3 * PATIENCE)
            with pytest.raises(TimeoutError):
                connection.recv(1)


def test_requests_sent_together_are_answered_in_order(server: LiveServer) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(WHOLE * 3)
        answer = b""
        while answer.count(b"cached_tokens") < 3:
            answer += connection.recv(65536)
        assert answer.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\x00\x01\x02\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 50 + b"\r\n\r\n",  # TLS
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nno colon here\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: x\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"".join(b"X-%d: 1\r\n" % n for n in range(2000)).join([HEAD, b"\r\n"]),
    ],
)
def test_what_is_no_http_is_answered_with_400_in_openais_shape(
    server: LiveServer, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(data)
        status, error = told(rest(connection))
        assert status == 400 and error["message"] and "Traceback" not in error["message"]
    assert [record for record in caplog.records if record.levelname != "INFO"] == []
    assert server.get("/health").status == 200


def test_a_body_that_ends_early_is_no_request(server: LiveServer) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(WHOLE[:-5])
        connection.shutdown(socket.SHUT_WR)
        started = time.monotonic()
        rest(connection)
        assert time.monotonic() - started < 60
    assert server.complete("x", max_tokens=1).status == 200
