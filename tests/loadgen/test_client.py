"""The client on real sockets: when it sends, what it sends, and what it makes of every failure."""

import dataclasses
import itertools
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.loadgen.asking import ask, ask_in_turn, on_a_quiet_moment, request
from tests.loadgen.replay_server import (
    DONE,
    FINISH,
    HELLO,
    Peer,
    chunk,
    event,
    serving,
)

from prony_loadgen.client import Client, ClientError
from prony_loadgen.record import RequestRecord
from prony_loadgen.target import TargetError, Timeouts, parse_target

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def hello(peer: Peer, _: bytes) -> None:
    peer.send(HELLO)


def after_hello(*bytes_: bytes) -> bytes:
    """The start of an answer with two tokens, and what else it holds."""
    return HEAD + chunk(event("Hel")) + chunk(event("lo")) + b"".join(bytes_)


# When it sends.


def test_requests_are_sent_at_their_times_whatever_order_they_are_submitted_in() -> None:
    due = [0.15, 0.05, 0.1, 0.0]

    def check() -> None:
        records = ask(server.url, *(request(n, after=after) for n, after in enumerate(due)))
        in_order = sorted(records, key=lambda record: record.sent or 0)
        assert [record.id for record in in_order] == ["3", "1", "2", "0"]
        lags = [record.send_lag for record in records if record.send_lag is not None]
        assert len(lags) == 4
        assert min(lags) >= 0  # never early
        assert max(lags) < 0.01

    with serving(hello) as server:
        on_a_quiet_moment(check)


def test_the_last_part_of_a_millisecond_is_waited_for_exactly() -> None:
    def check() -> None:
        records = ask(server.url, *(request(n, after=0.05 + n * 0.0037) for n in range(60)))
        lags = [record.send_lag for record in records if record.send_lag is not None]
        assert min(lags) >= 0
        assert statistics.median(lags) < 0.0004  # epoll alone is 0.5 ms late on average

    with serving(hello) as server:
        on_a_quiet_moment(check)


def test_a_request_whose_time_is_past_is_sent_at_once_and_late() -> None:
    with serving(hello) as server:
        [record] = ask(server.url, request(after=-2.0))
    assert record.send_lag is not None
    assert 2.0 <= record.send_lag < 10.0
    assert record.ttft is not None
    assert record.ttft >= 2.0


def test_an_earlier_request_wakes_a_client_that_waits_for_a_later_one() -> None:
    with serving(hello) as server:
        records: list[RequestRecord] = []
        first = threading.Event()

        def on_record(record: RequestRecord) -> None:
            records.append(record)
            first.set()

        client = Client(parse_target(server.url), origin=time.monotonic(), on_record=on_record)
        client.start()
        client.submit(request(0, after=60.0))
        client.submit(request(1, after=0.05))
        assert first.wait(5)
        assert client.outstanding == client.unsent == 1
        assert client.cancel_unsent() == 1
        assert client.close(drain=1.0) == 0
    assert [record.id for record in records] == ["1"]
    assert (records[0].send_lag or 0) < 30.0


def test_a_client_that_waits_uses_no_processor() -> None:
    def check() -> None:
        requests = [request(0), request(1, after=0.5)]
        before = time.process_time()
        ask(server.url, *requests)
        assert time.process_time() - before < 0.05

    with serving(hello) as server:
        on_a_quiet_moment(check)


# What it sends.


def test_a_request_carries_its_body_trace_and_headers() -> None:
    with serving(hello) as server:
        records: list[RequestRecord] = []
        headers = [("X-Team", "a"), ("user-agent", "mine")]
        target = parse_target(server.url, headers=headers, api_key="k")
        client = Client(target, origin=0.0, on_record=records.append, worker=3)
        client.start()
        client.submit(request(6))
        client.close(drain=5.0)
        [sent] = server.requests
    head, body = sent.split(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    assert body == b"{}"
    names = Counter(line.split(":")[0].lower() for line in lines[1:])
    assert max(names.values()) == 1
    assert f"Host: 127.0.0.1:{server.port}" in lines
    assert "Authorization: Bearer k" in lines
    assert "X-Team: a" in lines
    assert "user-agent: mine" in lines
    assert "Content-Type: application/json" in lines
    assert "Content-Length: 2" in lines
    assert f"traceparent: 00-{7:032x}-{7:016x}-01" in lines
    assert records[0].trace_id == f"{7:032x}"
    assert records[0].worker == 3


def test_completions_have_their_own_path() -> None:
    with serving(hello) as server:
        ask(server.url, request(dialect="openai-completions"))
        assert server.requests[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")


def test_a_body_larger_than_the_socket_buffers_arrives_whole() -> None:
    with serving(hello) as server:
        records: list[RequestRecord] = []
        client = Client(parse_target(server.url), origin=0.0, on_record=records.append)
        client.start()
        body = b'"' + b"x" * 20_000_000 + b'"'
        client.submit(dataclasses.replace(request(), body=body))
        client.close(drain=20.0)
        assert server.requests[0].endswith(body)
    assert records[0].ok


def test_an_unknown_dialect_is_named_where_it_is_submitted() -> None:
    client = Client(parse_target("127.0.0.1:1"), origin=0.0, on_record=lambda record: None)
    with pytest.raises(ValueError, match="'ollama'; known: openai-chat, openai-comp"):
        client.submit(request(dialect="ollama"))


# Connections.


def test_a_connection_is_used_again_after_a_clean_answer() -> None:
    with serving(hello) as server:
        records = ask_in_turn(server.url, 3)
        assert server.connections == 1
    assert [record.connected is None for record in records] == [False, True, True]


def test_a_connection_whose_last_chunk_comes_after_the_end_mark_is_used_again() -> None:
    def script(peer: Peer, _: bytes) -> None:
        peer.send(after_hello(chunk(FINISH), chunk(DONE)))
        time.sleep(0.02)
        peer.send(b"0\r\n\r\n")

    with serving(script) as server:
        records = ask_in_turn(server.url, 3)
        assert server.connections == 1
    assert [record.outcome for record in records] == ["ok"] * 3


def test_a_server_that_leaves_the_body_open_after_the_end_mark_keeps_nobody_waiting() -> None:
    done = threading.Event()

    def script(peer: Peer, _: bytes) -> None:
        peer.send(after_hello(chunk(FINISH), chunk(DONE)))
        done.wait(10)

    with serving(script) as server:
        started = time.monotonic()
        records = ask_in_turn(server.url, 2)
        assert time.monotonic() - started < 9  # the server would go on after 10
        assert server.connections == 2
        done.set()
    assert [record.outcome for record in records] == ["ok", "ok"]
    # It ended when the end mark came, not when we stopped waiting for the body's end.
    assert records[1].intended - records[0].ended > 0.09


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event("Hi") + DONE,
        HELLO.replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
        HELLO + b"HTTP/1.1 200 OK\r\n",
    ],
    ids=["HTTP/1.0", "Connection: close", "more than the answer"],
)
def test_a_connection_that_cannot_be_used_again_is_not(answer: bytes) -> None:
    def script(peer: Peer, _: bytes) -> None:
        peer.send(answer)
        if answer.startswith(b"HTTP/1.0"):
            peer.close()

    with serving(script) as server:
        records = ask_in_turn(server.url, 2)
        assert server.connections == 2
    assert [record.outcome for record in records] == ["ok", "ok"]


def test_a_kept_connection_that_the_server_closed_is_replaced_in_silence() -> None:
    def script(peer: Peer, _: bytes) -> None:
        peer.send(HELLO)
        if peer.number == 0:
            peer.close()

    def check() -> None:
        with serving(script) as server:
            records = ask_in_turn(server.url, 2)
        assert server.connections == 2
        assert [record.outcome for record in records] == ["ok", "ok"]

    on_a_quiet_moment(check)  # the close must be seen within 50 ms of the second request


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_kept_connection_that_breaks_before_any_answer_is_tried_once_more(how: str) -> None:
    def check() -> None:
        seen = itertools.count()

        def script(peer: Peer, _: bytes) -> None:
            if next(seen) != 1:
                peer.send(HELLO)
            elif how == "close":
                peer.close()
            else:
                peer.reset()

        with serving(script) as server:
            first, second = ask_in_turn(server.url, 2)
            assert (server.connections, len(server.requests)) == (2, 3)
        assert (first.outcome, second.outcome) == ("ok", "ok")
        assert second.connected is not None
        assert server.requests[1] == server.requests[2]

    on_a_quiet_moment(check)


def test_a_kept_connection_that_breaks_within_the_answer_is_a_failure() -> None:
    def script(peer: Peer, _: bytes) -> None:
        if len(server.requests) == 1:
            peer.send(HELLO)
        else:
            peer.send(HEAD[:20])
            peer.close()

    with serving(script) as server:
        _, second = ask_in_turn(server.url, 2)
        assert len(server.requests) == 2
    assert second.outcome == "truncated_transport"


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_new_connection_that_breaks_before_any_answer_is_a_failure(how: str) -> None:
    with serving(lambda peer, _: peer.close() if how == "close" else peer.reset()) as server:
        [record] = ask(server.url)
        assert len(server.requests) == 1
    assert record.outcome == "truncated_transport"
    assert "before any answer" in (record.error or "")


def test_nobody_listening_is_a_connect_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    [record] = ask(f"http://127.0.0.1:{port}")
    assert record.outcome == "connect_error"
    assert record.error == f"cannot connect: Connection refused (127.0.0.1:{port})"
    assert record.sent is not None
    assert record.arrivals == ()


def test_localhost_finds_a_server_that_listens_on_ipv4_only() -> None:
    with serving(hello) as server:
        records = ask(f"http://localhost:{server.port}", request(0), request(1, after=0.1))
        assert server.requests[0].count(f"Host: localhost:{server.port}\r\n".encode()) == 1
    assert [record.outcome for record in records] == ["ok", "ok"]
    assert (records[0].ttft or 9) < Timeouts().connect


def test_an_ipv6_address_is_reached() -> None:
    with serving(hello, host="::1") as server:
        [record] = ask(server.url)
    assert record.ok


def test_a_name_without_an_address_is_an_error_before_any_load() -> None:
    with pytest.raises(TargetError, match="cannot resolve the host name"):
        Client(parse_target("nowhere.invalid"), origin=0.0, on_record=lambda record: None)


# Time limits.


def test_a_server_that_accepts_no_connection_is_a_connect_error_after_the_limit() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        # What fills its queue: from then on the kernel leaves connection requests unanswered.
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        [record] = ask(f"http://127.0.0.1:{address[1]}", timeouts=Timeouts(connect=0.2))
        for filler in fillers:
            filler.close()
    assert record.outcome == "connect_error"
    assert record.error == "no connection within 0.2 s"
    assert 0.2 <= record.ended < 10.0


def silence_after(sent: bytes, over: threading.Event):
    def script(peer: Peer, _: bytes) -> None:
        peer.send(sent)
        over.wait(10)

    return script


def test_a_stream_that_stalls_ends_at_the_total_limit_with_what_it_had() -> None:
    over = threading.Event()
    with serving(silence_after(after_hello(), over)) as server:
        [record] = ask(server.url, timeouts=Timeouts(first_token=0.1, total=0.3))
        over.set()
    assert (record.outcome, record.error) == ("timeout", "not finished within 0.3 s")
    assert record.text == "Hello"
    assert record.output_tokens is None
    assert 0.3 <= record.ended < 10.0


@pytest.mark.parametrize("sent", [b"", HEAD], ids=["no headers", "headers"])
def test_a_server_that_says_nothing_ends_at_the_first_token_limit(sent: bytes) -> None:
    over = threading.Event()
    with serving(silence_after(sent, over)) as server:
        [record] = ask(server.url, timeouts=Timeouts(first_token=0.2))
        over.set()
    assert (record.outcome, record.error) == ("timeout", "no token within 0.2 s")
    assert 0.2 <= record.ended < 10.0


def test_slow_headers_are_part_of_ttft_and_hold_up_nobody() -> None:
    def script(peer: Peer, asked: bytes) -> None:
        if f"{1:032x}".encode() in asked:
            for at in range(10):
                peer.send(HEAD[at : at + 1])
                time.sleep(0.02)
            peer.send(HELLO[10:])
        else:
            peer.send(HELLO)

    def check() -> None:
        records = ask(server.url, *(request(n, after=n * 0.01) for n in range(10)))
        slow = next(record for record in records if record.id == "0")
        assert (slow.ttft or 0) >= 0.2
        assert all((record.ttft or 1) < 0.1 for record in records if record.id != "0")

    with serving(script) as server:
        on_a_quiet_moment(check)


# Odd answers.


def test_a_reset_in_the_middle_of_a_stream_is_truncated_transport() -> None:
    started = threading.Event()

    def script(peer: Peer, _: bytes) -> None:
        peer.send(after_hello())
        started.wait(0.2)
        peer.reset()

    with serving(script) as server:
        [record] = ask(server.url)
    assert record.outcome == "truncated_transport"
    assert "Connection reset by peer" in (record.error or "")
    assert record.text == "Hello"


def test_an_interim_answer_is_passed_over() -> None:
    with serving(lambda peer, _: peer.send(b"HTTP/1.1 100 Continue\r\n\r\n" + HELLO)) as server:
        records = ask_in_turn(server.url, 2)
        assert server.connections == 1
    assert [record.outcome for record in records] == ["ok", "ok"]


def test_an_answer_before_the_body_was_read_is_heard() -> None:
    refusal = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(refusal)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1_000_000):
                    pass

        thread = threading.Thread(target=refuse)
        thread.start()
        big = dataclasses.replace(request(), body=b"x" * 20_000_000)
        [record] = ask(f"http://127.0.0.1:{listener.getsockname()[1]}", big)
        thread.join()
    assert (record.outcome, record.status) == ("http_error", 413)


def test_a_redirect_is_named_and_not_followed() -> None:
    answer = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://a/b\r\nContent-Length: 0\r\n\r\n"
    with serving(lambda peer, _: peer.send(answer)) as server:
        [record] = ask(server.url)
        assert len(server.requests) == 1
    assert record.outcome == "redirect"
    assert record.error == "307 Temporary Redirect to http://a/b; redirects are not followed"


def test_a_server_that_speaks_no_http_is_an_http_error() -> None:
    with serving(lambda peer, _: peer.send(b"SSH-2.0-OpenSSH_9.9\r\n")) as server:
        [record] = ask(server.url)
    assert record.outcome == "http_error"
    assert (record.error or "").startswith("the answer is broken HTTP")


# Many at once.


def test_two_hundred_streams_at_once_all_complete() -> None:
    streams = 200
    all_there = threading.Barrier(streams)

    def script(peer: Peer, _: bytes) -> None:
        all_there.wait(30)  # only if the client opens them all
        peer.send(after_hello())
        peer.send(chunk(FINISH) + chunk(DONE) + b"0\r\n\r\n")

    with serving(script) as server:
        records = ask(server.url, *(request(n) for n in range(streams)), drain=40.0)
        assert server.connections == streams
    assert sorted(int(record.id) for record in records) == list(range(streams))
    assert {(record.outcome, record.text) for record in records} == {("ok", "Hello")}


def test_requests_submitted_from_many_threads_at_once_are_all_answered() -> None:
    threads, each = 8, 50
    with serving(hello) as server:
        records: list[RequestRecord] = []
        client = Client(parse_target(server.url), origin=0.0, on_record=records.append)
        client.start()
        start = threading.Barrier(threads)

        def submit(first: int) -> None:
            start.wait(10)
            for number in range(first, first + each):
                client.submit(request(number, after=(number % 7) * 0.01))

        submitters = [threading.Thread(target=submit, args=(n * each,)) for n in range(threads)]
        for submitter in submitters:
            submitter.start()
        for submitter in submitters:
            submitter.join()
        assert client.close(drain=20.0) == 0
    assert sorted(int(record.id) for record in records) == list(range(threads * each))
    assert {record.outcome for record in records} == {"ok"}


def test_a_record_can_be_answered_by_the_next_request() -> None:
    with serving(hello) as server:
        records = ask_in_turn(server.url, 20)
        assert server.connections == 1
    assert [record.outcome for record in records] == ["ok"] * 20


# The end.


def test_what_is_in_flight_at_the_end_is_recorded_as_incomplete_and_nothing_is_lost() -> None:
    over = threading.Event()
    with serving(silence_after(after_hello(), over)) as server:
        records = ask(server.url, *(request(n) for n in range(20)), drain=0.3)
        over.set()
    assert len(records) == 20
    assert {record.outcome for record in records} == {"incomplete"}
    assert {record.text for record in records} == {"Hello"}


def test_closing_waits_for_what_is_in_flight_and_no_longer() -> None:
    with serving(hello) as server:
        started = time.monotonic()
        records = ask(server.url, request(0), request(1, after=0.1), drain=30.0)
        assert time.monotonic() - started < 25
    assert [record.outcome for record in records] == ["ok", "ok"]


def test_closing_tells_how_many_were_never_sent() -> None:
    with serving(hello) as server:
        records: list[RequestRecord] = []
        client = Client(parse_target(server.url), origin=0.0, on_record=records.append)
        client.start()
        for number in range(3):
            client.submit(request(number, after=60.0))
        assert client.close(drain=0.1) == 3
        assert client.close(drain=0.1) == 0
        with pytest.raises(ClientError, match="closed"):
            client.submit(request())
    assert records == []


def test_a_client_that_never_started_can_be_closed() -> None:
    client = Client(parse_target("127.0.0.1:1"), origin=0.0, on_record=lambda record: None)
    client.submit(request())
    assert client.close(drain=1.0) == 1


def test_a_fault_of_ours_is_raised_not_recorded() -> None:
    def on_record(record: RequestRecord) -> None:
        failed.set()
        raise OSError("disk full")

    failed = threading.Event()
    with serving(hello) as server:
        client = Client(parse_target(server.url), origin=0.0, on_record=on_record)
        client.start()
        client.submit(request())
        client.submit(request(after=60.0))
        assert failed.wait(10)
        with pytest.raises(ClientError, match="disk full"):
            client.close(drain=1.0)
        with pytest.raises(ClientError, match="disk full"):
            client.submit(request())
    assert client.outstanding == 0


def run_python(code: str, *arguments: str) -> str:
    """What a new interpreter prints for `code`."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],  # where `tests` is imported from
    ).stdout


def test_running_out_of_file_descriptors_is_our_fault_and_ends_the_run() -> None:
    code = """
import resource, sys
from prony_loadgen.client import ClientError
from tests.loadgen.asking import ask, request
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
records = []
try:
    ask(sys.argv[1], *(request(n) for n in range(60)), on_record=records.append)
except ClientError as error:
    print(error)
print(len(records), {record.outcome for record in records})
"""
    over = threading.Event()
    with serving(silence_after(HEAD, over)) as server:
        printed = run_python(code, server.url).splitlines()
        over.set()
    assert printed[0].startswith("Too many open files: ")
    assert "ulimit -n" in printed[0]
    count, outcomes = printed[1].split(" ", 1)
    assert 20 < int(count) < 40
    assert outcomes == "{'incomplete'}"


@pytest.mark.parametrize("order", ["locust first", "client first"])
def test_the_client_works_beside_locust(order: str) -> None:
    """gevent patches sockets, locks and selectors as locust is imported."""
    imports = ["import locust", "import prony_loadgen.client"]
    code = (
        "\n".join(imports if order == "locust first" else imports[::-1])
        + """
import statistics, sys
import gevent, gevent.monkey
from tests.loadgen.asking import ask, request
assert gevent.monkey.is_module_patched("socket")
turns = 0
def other_greenlet():
    global turns
    while True:
        turns += 1
        gevent.sleep(0.001)
gevent.spawn(other_greenlet)
records = ask(sys.argv[1], *(request(n, after=0.01 * n) for n in range(20)))
print(len(records), {record.outcome for record in records}, {record.text for record in records})
print(statistics.median(record.send_lag for record in records) < 0.5)
print(turns > 5)
"""
    )
    with serving(hello) as server:
        printed = run_python(code, server.url)
    # The last: other greenlets ran while close() waited.
    assert printed.splitlines() == ["20 {'ok'} {'Hello'}", "True", "True"]
