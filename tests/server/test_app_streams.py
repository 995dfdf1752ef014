"""Streams under stress: clients that hang up, stall, or come many at once."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.server.live_server import JSON, LiveServer, live_server

from prony_server.connection import KEEP_ALIVE

CHAT = "/v1/chat/completions"
RUNNING, WAITING = "prony_requests_running", "prony_requests_waiting"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(max_num_seqs=8) as live:
        yield live


@pytest.fixture(scope="module")
def narrow() -> Iterator[LiveServer]:
    """One request at a time: every other waits."""
    with live_server(max_num_seqs=1) as live:
        yield live


def open_stream(
    server: LiveServer, receive_buffer: int | None = None, **body: Any
) -> socket.socket:
    """A connection on which a stream was asked for, and nothing read yet."""
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60)
    connection.connect(server.address)
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "go"}], "stream": True}
    data = json.dumps({**asked, **body}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def test_headers_say_that_a_request_was_accepted_while_it_still_waits(narrow: LiveServer) -> None:
    with open_stream(narrow, max_tokens=4000):
        narrow.wait_for(RUNNING, 1)
        with open_stream(narrow, max_tokens=5) as waiting:
            first = waiting.recv(65536)
            assert first.startswith(b"HTTP/1.1 200 OK") and b"data:" not in first


def test_a_client_that_hangs_up_frees_its_place(server: LiveServer) -> None:
    aborted = server.metric("prony_requests_finished_total", finish_reason="abort")
    assert aborted is not None
    with open_stream(server, max_tokens=4000) as connection:
        while b"data:" not in connection.recv(65536):
            pass
        assert server.metric(RUNNING) == 1
    server.wait_for(RUNNING, 0)
    server.wait_for("prony_requests_finished_total", aborted + 1, finish_reason="abort")
    assert server.metric("prony_kv_blocks_used") == 0


def test_a_client_that_hangs_up_while_its_whole_answer_is_made_frees_its_place(
    server: LiveServer,
) -> None:
    with open_stream(server, max_tokens=4000, stream=False):
        server.wait_for(RUNNING, 1)
    server.wait_for(RUNNING, 0)


def test_a_hundred_clients_that_hang_up_at_any_moment_leave_nothing_behind(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        with open_stream(server, max_tokens=300) as connection:
            for _ in range(number % 5):
                connection.recv(300)
    server.wait_for(RUNNING, 0)
    server.wait_for(WAITING, 0)
    assert server.metric("prony_kv_blocks_used") == 0
    assert server.chat(max_tokens=3).status == 200
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


def test_v05_a_client_that_hangs_up_ends_all_its_choices(server: LiveServer) -> None:
    aborted = server.metric("prony_requests_finished_total", finish_reason="abort")
    assert aborted is not None
    with open_stream(server, max_tokens=4000, n=3, ignore_eos=True) as connection:
        while b"data:" not in connection.recv(65536):
            pass
        server.wait_for(RUNNING, 3)
    server.wait_for(RUNNING, 0)
    server.wait_for("prony_requests_finished_total", aborted + 3, finish_reason="abort")
    assert server.metric("prony_kv_blocks_used") == server.metric(WAITING) == 0


def test_v21_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    with live_server(max_num_seqs=1, max_queue=4) as server, ThreadPoolExecutor(4) as pool:
        with open_stream(server, max_tokens=4000, ignore_eos=True) as running:
            while b"data:" not in running.recv(65536):
                pass
            waiting = [pool.submit(server.chat, max_tokens=2) for _ in range(4)]
            server.wait_for(WAITING, 4)
            for stream in [False, True] * 7 + [False]:
                refused = server.chat(max_tokens=2, stream=stream)
                assert refused.status == 429 and refused.headers["retry-after"].isdigit()
                assert refused.error["code"] == "queue_full" and "4" in refused.error["message"]
            assert server.chat(max_tokens=2, n=3).status == 429
            assert server.metric(WAITING) == 4
        assert [each.result().status for each in waiting] == [200] * 4


def test_v02_one_that_hangs_up_in_the_queue_hurts_neither_the_one_before_nor_the_one_after(
    narrow: LiveServer,
) -> None:
    settings = {"max_tokens": 200, "temperature": 0}
    with ThreadPoolExecutor(2) as pool:
        alone = narrow.chat("same", **settings).json["choices"]
        first = pool.submit(narrow.chat, "same", **settings)
        narrow.wait_for(RUNNING, 1)
        with open_stream(narrow, max_tokens=50):
            narrow.wait_for(WAITING, 1)
        last = pool.submit(narrow.chat, "same", **settings)
        assert first.result().json["choices"] == alone
        assert last.result().json["choices"] == alone


def test_v17_sixteen_streams_at_once_each_get_their_own_tokens(server: LiveServer) -> None:
    def text(number: int) -> str:
        events = server.chat(f"prompt {number}", max_tokens=40, temperature=0, stream=True).events
        *chunks, done = events
        assert done == "[DONE]"
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    alone = [text(number) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(text, range(16))) == alone
    assert len(set(alone)) > 8  # a token in the wrong stream would be seen


def test_v20_readers_that_stall_are_cut_and_hold_up_nobody_else() -> None:
    # Every event repeats the name: 12 MB in all, more than the kernel buffers for a connection.
    name = "tiny" * 5000
    duration = "gen_ai_server_request_duration_seconds_count"
    labels = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "prony",
        "gen_ai_request_model": name,
        "error_type": "write_timeout",
    }
    with live_server(write_timeout=0.2, served_model_name=name) as server:
        stalled = [open_stream(server, 2048, model=name, max_tokens=600) for _ in range(4)]
        try:
            assert len(server.chat(model=name, max_tokens=20, stream=True).events) == 23
            server.wait_for(duration, 4, **labels)
            server.wait_for(RUNNING, 0)
        finally:
            for connection in stalled:
                connection.close()


def test_v17_an_idle_server_does_not_spin(server: LiveServer) -> None:
    server.wait_for(RUNNING, 0)
    before = time.process_time()
    threading.Event().wait(0.5)
    assert time.process_time() - before < 0.1  # of this process: others' work does not count


def test_v22_a_connection_serves_many_requests_and_stays_open_when_idle(server: LiveServer) -> None:
    assert KEEP_ALIVE >= 30  # seconds, documented in server/README.md
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
    for stream in (True, False, True):
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": stream}), JSON)
        response = connection.getresponse()
        response.read()
        assert response.status == 200 and not response.will_close
    connection.close()


def test_a_long_prompt_is_tokenized_off_the_loop(server: LiveServer) -> None:
    # Refused for its length only after all of it has been tokenized; others are answered meanwhile.
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(server.complete, "word " * 200_000)
        meanwhile = 0
        while not long.done():
            assert server.get("/health").status == 200
            meanwhile += 1
        assert meanwhile > 3
        assert long.result().error["code"] == "context_length_exceeded"
