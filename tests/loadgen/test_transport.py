"""What lies between client and server: compression, TLS, proxies, Unix sockets, time limits."""

import base64
import dataclasses
import gzip
import json
import socket
import ssl
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.loadgen.asking import ask, ask_in_turn, on_a_quiet_moment, request
from tests.loadgen.replay_server import (
    DONE,
    FINISH,
    HELLO,
    Peer,
    chunk,
    chunked,
    event,
    serving,
)
from tests.loadgen.tls_server import CA, CERTIFICATES, server_side

from prony_loadgen.fetch import FetchError, fetch
from prony_loadgen.record import RequestRecord
from prony_loadgen.target import TargetError, Timeouts, parse_target
from prony_loadgen.tls import TlsOptions

CLIENT, CLIENT_KEY = str(CERTIFICATES / "client.pem"), str(CERTIFICATES / "client-key.pem")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = (event("Hel"), event("lo"), FINISH, DONE)


def hello(peer: Peer, _: bytes) -> None:
    peer.send(HELLO)


def assert_hello(record: RequestRecord) -> None:
    assert (record.outcome, record.error) == ("ok", None)
    assert record.text == "Hello"


# Compression.


def coded(coding: str, pieces: list[bytes]) -> bytes:
    head = HEAD.replace(b"\r\n\r\n", f"\r\nContent-Encoding: {coding}\r\n\r\n".encode())
    return head + b"".join(map(chunk, pieces)) + b"0\r\n\r\n"


def flushed(wbits: int) -> list[bytes]:
    """Each event in a piece that can be read alone."""
    engine = zlib.compressobj(wbits=wbits)
    pieces = [engine.compress(each) + engine.flush(zlib.Z_SYNC_FLUSH) for each in EVENTS]
    return [*pieces, engine.flush()]


@pytest.mark.parametrize(
    ("coding", "pieces"),
    [
        ("gzip", flushed(31)),
        ("x-gzip", flushed(31)),
        ("deflate", flushed(15)),
        ("deflate", flushed(-15)),
        ("gzip", [gzip.compress(each) for each in EVENTS]),
        ("gzip", [gzip.compress(b"".join(EVENTS))]),
        ("gzip", flushed(31)[:-1]),  # without its trailer: the stream is whole all the same
        ("identity", list(EVENTS)),
    ],
    ids=["gzip", "x-gzip", "zlib", "raw deflate", "members", "one piece", "no trailer", "identity"],
)
def test_a_compressed_stream_is_read_as_it_comes(coding: str, pieces: list[bytes]) -> None:
    raw = coded(coding, pieces)

    def script(peer: Peer, _: bytes) -> None:
        for start in range(0, len(raw), 7):
            peer.send(raw[start : start + 7])

    with serving(script) as server:
        [record] = ask(server.url)
        assert b"Accept-Encoding: identity\r\n" in server.requests[0]
    assert_hello(record)


def test_tokens_of_a_compressed_stream_keep_their_times() -> None:
    read = threading.Event()

    def script(peer: Peer, _: bytes) -> None:
        raw = coded("gzip", flushed(31))
        first = raw.index(b"\r\n\r\n") + 4 + len(chunk(flushed(31)[0]))
        peer.send(raw[:first])
        read.wait(0.05)
        peer.send(raw[first:])

    def check() -> None:
        with serving(script) as server:
            [record] = ask(server.url)
        assert len(record.arrivals) > 1
        assert record.arrivals[1].at - record.arrivals[0].at > 0.03

    on_a_quiet_moment(check)  # what is read together has one time


def test_a_compressed_error_keeps_its_message() -> None:
    body = gzip.compress(b'{"error":{"message":"too long"}}')
    head = f"HTTP/1.1 400 No\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    with serving(lambda peer, _: peer.send(head.encode() + body)) as server:
        [record] = ask(server.url)
    assert (record.outcome, record.error) == ("http_error", "400 No: too long")


# Answers before the answer, and endings.


def test_continue_and_early_hints_are_passed_over() -> None:
    def script(peer: Peer, _: bytes) -> None:
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + HELLO)

    with serving(script) as server:
        [record] = ask(server.url)
    assert_hello(record)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_recorded_and_never_followed(status: int) -> None:
    to = f"HTTP/1.1 {status} Elsewhere\r\nLocation: /v2\r\nContent-Length: 0\r\n\r\n".encode()
    with serving(lambda peer, _: peer.send(to)) as server:
        [record] = ask(server.url)
        assert len(server.requests) == 1
    assert record.outcome == "redirect"
    assert "to /v2" in (record.error or "")


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ("Retry-After: 2", 2.0),
        ("Retry-After: 2\r\nretry-after-ms: 1500", 1.5),
        (
            "Date: Wed, 21 Oct 2026 07:28:00 GMT\r\nRetry-After: Wed, 21 Oct 2026 07:28:30 GMT",
            30.0,
        ),
        (
            "Date: Wed, 21 Oct 2026 07:28:00 GMT\r\nRetry-After: Wed, 21 Oct 2026 07:00:00 GMT",
            0.0,
        ),
        ("Retry-After: soon", None),
        ("X: 1", None),
    ],
)
def test_a_429_is_recorded_with_its_wait_and_never_tried_again(
    headers: str, wait: float | None
) -> None:
    answer = f"HTTP/1.1 429 Too Many Requests\r\n{headers}\r\nContent-Length: 0\r\n\r\n".encode()
    with serving(lambda peer, _: peer.send(answer)) as server:
        [record] = ask(server.url)
        assert len(server.requests) == 1
    assert (record.outcome, record.status, record.retry_after) == ("http_error", 429, wait)
    assert RequestRecord.from_json(record.to_json()).retry_after == wait


def test_a_server_that_closes_after_each_answer_gets_a_connection_for_each() -> None:
    answer = HELLO.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)

    def script(peer: Peer, _: bytes) -> None:
        peer.send(answer)
        peer.close()

    with serving(script) as server:
        records = ask_in_turn(server.url, 3)
        assert server.connections == 3
    for record in records:
        assert_hello(record)
        assert record.connected is not None


def test_http10_without_a_length_ends_where_the_connection_does() -> None:
    def script(peer: Peer, _: bytes) -> None:
        peer.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(EVENTS))
        peer.close()

    with serving(script) as server:
        for record in ask_in_turn(server.url, 2):
            assert_hello(record)


# TLS.


def older(context: ssl.SSLContext) -> ssl.SSLContext:
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize("limit", [lambda context: context, older], ids=["1.3", "1.2"])
@pytest.mark.parametrize("options", [TlsOptions(ca=CA), TlsOptions(insecure=True)])
def test_a_server_with_a_certificate_of_ones_own_is_talked_to(
    options: TlsOptions, limit: Callable[[ssl.SSLContext], ssl.SSLContext]
) -> None:
    with serving(hello, tls=limit(server_side())) as server:
        [record] = ask(server.url, tls=options)
        assert fetch(parse_target(server.url, tls=options), "/v1/models", 5.0).status == 200
    assert_hello(record)
    assert record.connected is not None and record.sent is not None
    assert record.connected > record.sent


def test_a_connection_inside_tls_is_used_again() -> None:
    with serving(hello, tls=server_side()) as server:
        records: list[RequestRecord] = []
        target = parse_target(server.url, tls=TlsOptions(ca=CA))
        for record in ask_in_turn(target, 4):
            records.append(record)
            assert_hello(record)
        assert server.connections == 1
    assert [record.connected is None for record in records] == [False, True, True, True]


def test_kernel_times_are_had_inside_tls() -> None:
    def check() -> None:
        with serving(hello, tls=server_side()) as server, serving(hello) as plain:
            [record] = ask(server.url, tls=TlsOptions(ca=CA))
            [other] = ask(plain.url)
        assert (record.client_lag is None) is (other.client_lag is None)

    on_a_quiet_moment(check)  # the kernel begins to note times a moment after it is asked to


def test_a_large_body_and_a_large_answer_pass_through_tls_whole() -> None:
    words = "x" * 300_000

    def script(peer: Peer, _: bytes) -> None:
        peer.send(chunked(event(words), FINISH, DONE))

    with serving(script, tls=server_side()) as server:
        body = json.dumps({"prompt": "y" * 3_000_000}).encode()
        [record] = ask(server.url, dataclasses.replace(request(), body=body), tls=TlsOptions(ca=CA))
        assert server.requests[0].endswith(body)
    assert record.text == words


def test_a_client_certificate_is_shown_where_it_is_asked_for() -> None:
    with serving(hello, tls=server_side(client_ca=CA)) as server:
        options = TlsOptions(ca=CA, cert=CLIENT, key=CLIENT_KEY)
        [record] = ask(server.url, tls=options)
        [refused] = ask(server.url, tls=TlsOptions(ca=CA))
    assert_hello(record)
    assert not refused.ok


def test_a_certificate_that_nobody_vouches_for_is_a_connect_error_with_a_remedy() -> None:
    with serving(hello, tls=server_side()) as server:
        [record] = ask(server.url)
        with pytest.raises(FetchError) as caught:
            fetch(parse_target(server.url), "/v1/models", 5.0)
    for line in (record.error or "", str(caught.value)):
        assert "its certificate is not trusted" in line
        assert "--ca FILE" in line
        assert "--insecure" in line
    assert record.outcome == "connect_error"


def test_a_certificate_for_another_name_is_a_connect_error() -> None:
    with serving(hello, host="127.0.0.2", tls=server_side()) as server:
        [record] = ask(server.url, tls=TlsOptions(ca=CA))
    assert record.outcome == "connect_error"
    assert "127.0.0.2" in (record.error or "")


def test_a_server_that_speaks_no_tls_is_a_connect_error_that_says_so() -> None:
    with serving(hello) as server:
        [record] = ask(server.url.replace("http:", "https:"), timeouts=Timeouts(connect=1.0))
    assert record.outcome == "connect_error"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (TlsOptions(ca="nowhere.pem"), "--ca nowhere.pem: no such file or directory"),
        (TlsOptions(ca=__file__), "holds no certificate in PEM form"),
        (TlsOptions(cert="nowhere.pem"), "--cert nowhere.pem: no such file or directory"),
        (TlsOptions(cert=CLIENT), "goes to --cert-key"),
        (TlsOptions(cert=CLIENT, key="nowhere.pem"), "--cert-key nowhere.pem: no such file"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named_before_any_load(
    options: TlsOptions, says: str
) -> None:
    with pytest.raises(TargetError, match=says):
        ask("https://127.0.0.1:1", tls=options)


# Proxies.


class FakeProxy:
    """Passes requests for an http:// target on itself, and opens tunnels to an https:// one."""

    def __init__(self, refuse: bytes | None = None) -> None:
        self.seen: list[bytes] = []
        self._refuse = refuse

    def __call__(self, peer: Peer, asked: bytes) -> None:
        self.seen.append(asked)
        if self._refuse is not None:
            peer.send(self._refuse)
        elif asked.startswith(b"CONNECT "):
            host, _, port = asked.split(b" ")[1].rpartition(b":")
            self._tunnel(peer, "127.0.0.1" if host == b"llm.test" else host.decode(), int(port))
        else:
            peer.send(HELLO)

    def _tunnel(self, peer: Peer, host: str, port: int) -> None:
        with socket.create_connection((host, port)) as far:
            peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pump, args=(far, peer.sock))
            back.start()
            pump(peer.sock, far)
            back.join()
        peer.close()


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def test_an_http_target_is_asked_for_through_its_proxy_by_its_whole_url() -> None:
    proxy = FakeProxy()
    with serving(proxy) as through:
        environ = {"http_proxy": f"http://user:p%20w@127.0.0.1:{through.port}"}
        [record] = ask("http://llm.test:8000", environ=environ)
        target = parse_target("http://llm.test:8000", environ=environ)
        fetch(target, "/v1/models", 5.0)
    assert_hello(record)
    posted, listed = (asked.decode().split("\r\n") for asked in proxy.seen)
    assert posted[0] == "POST http://llm.test:8000/v1/chat/completions HTTP/1.1"
    assert listed[0] == "GET http://llm.test:8000/v1/models HTTP/1.1"
    login = base64.b64encode(b"user:p w").decode()
    for lines in (posted, listed):
        assert "Host: llm.test:8000" in lines
        assert f"Proxy-Authorization: Basic {login}" in lines
    assert target.route() == f"through the proxy http://127.0.0.1:{through.port}"
    assert "p w" not in repr(target)


def test_an_https_target_is_reached_through_a_tunnel() -> None:
    proxy = FakeProxy()
    with serving(proxy) as through, serving(hello, tls=server_side()) as server:
        environ = {"HTTPS_PROXY": f"127.0.0.1:{through.port}"}
        url = f"https://llm.test:{server.port}"
        [record] = ask(url, tls=TlsOptions(insecure=True), environ=environ)
        target = parse_target(url, tls=TlsOptions(insecure=True), environ=environ)
        assert fetch(target, "/v1/models", 5.0).status == 200
        assert not any(b"Proxy-Authorization" in asked for asked in server.requests)
    assert_hello(record)
    assert proxy.seen[0].startswith(f"CONNECT llm.test:{server.port} HTTP/1.1\r\n".encode())


def test_a_proxy_that_refuses_or_speaks_no_http_is_a_connect_error() -> None:
    for refusal, says in ((b"HTTP/1.1 407 Login\r\n\r\n", "407 Login"), (b"SSH\r\n\r\n", "no")):
        with serving(FakeProxy(refusal)) as through:
            environ = {"https_proxy": f"http://127.0.0.1:{through.port}"}
            [record] = ask("https://llm.test", environ=environ)
        assert record.outcome == "connect_error"
        assert f"the proxy http://127.0.0.1:{through.port}" in (record.error or "")
        assert says in (record.error or "")


def test_what_runs_on_this_machine_is_never_asked_for_through_a_proxy() -> None:
    environ = {"http_proxy": "http://127.0.0.1:1", "all_proxy": "http://127.0.0.1:1"}
    with serving(hello) as server:
        for host in ("127.0.0.1", "localhost"):
            [record] = ask(f"http://{host}:{server.port}", environ=environ)
            assert_hello(record)


# Unix sockets.


def test_a_unix_socket_is_a_target(tmp_path: Path) -> None:
    path = str(tmp_path / "llm.sock")
    with serving(hello, host=path) as server:
        [record] = ask(server.url)
        assert fetch(parse_target(server.url), "/v1/models", 5.0).status == 200
        assert server.requests[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert b"\r\nHost: localhost\r\n" in server.requests[0]
    assert_hello(record)


def test_a_unix_socket_that_is_not_there_is_a_connect_error(tmp_path: Path) -> None:
    path = tmp_path / "none.sock"
    [record] = ask(f"unix://{path}")
    assert record.outcome == "connect_error"
    assert str(path) in (record.error or "")
    [record] = ask(f"unix://{tmp_path / ('x' * 200)}")
    assert record.outcome == "connect_error"


# Time limits and patience.


def test_a_stream_that_stalls_ends_at_the_limit_between_tokens() -> None:
    over = threading.Event()

    def script(peer: Peer, _: bytes) -> None:
        peer.send(HEAD + chunk(event("Hel")) + chunk(event("lo")))
        while not over.wait(0.02):  # a heartbeat is no token
            peer.send(chunk(b": ping\n\n"))

    with serving(script) as server:
        limits = Timeouts(between_tokens=0.15, total=10.0)
        [record] = ask(server.url, timeouts=limits)
        over.set()
    assert (record.outcome, record.error) == ("timeout", "no further token within 0.15 s")
    assert len(record.arrivals) == 2
    assert 0.1 < record.ended - record.arrivals[-1].at < 9


def test_tokens_that_keep_coming_meet_the_limit_between_them_however_long_it_takes() -> None:
    over = threading.Event()

    def script(peer: Peer, _: bytes) -> None:
        peer.send(HEAD)
        for _number in range(12):
            peer.send(chunk(event("a")))
            over.wait(0.05)
        peer.send(chunk(FINISH) + chunk(DONE) + b"0\r\n\r\n")

    def check() -> None:
        with serving(script) as server:
            [record] = ask(server.url, timeouts=Timeouts(between_tokens=0.4))
        assert record.ok
        assert len(record.arrivals) == 12

    on_a_quiet_moment(check)


def test_a_user_who_hangs_up_is_counted_apart_and_closes_the_connection() -> None:
    seen_closed = threading.Event()

    def script(peer: Peer, _: bytes) -> None:
        peer.send(HEAD + chunk(event("Hel")) + chunk(event("lo")))
        if peer.request() is None:
            seen_closed.set()

    with serving(script) as server:
        [record] = ask(server.url, dataclasses.replace(request(), hang_up_after=2))
        assert seen_closed.wait(5)
    assert (record.outcome, record.flags) == ("incomplete", ("hung_up",))
    assert len(record.arrivals) == 2


@pytest.mark.parametrize(("words", "cut"), [(8, False), (10, False), (50, True), (None, False)])
def test_a_prompt_that_the_server_counts_too_short_is_flagged(words: int | None, cut: bool) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
    answer = chunked(event("Hel"), FINISH, usage, DONE)
    with serving(lambda peer, _: peer.send(answer)) as server:
        [record] = ask(server.url, dataclasses.replace(request(), prompt_words=words))
    assert ("context_truncated" in record.flags) is cut
