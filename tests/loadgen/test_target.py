"""Targets: URLs as people type them, and what is wrong with those that cannot be used."""

import pytest

from prony_loadgen.target import Target, TargetError, parse_target
from prony_loadgen.tls import TlsOptions


@pytest.mark.parametrize(
    ("url", "host", "port", "base_path"),
    [
        ("localhost:8000", "localhost", 8000, "/v1"),
        ("http://localhost:8000", "localhost", 8000, "/v1"),
        ("http://localhost:8000/", "localhost", 8000, "/v1"),
        ("http://localhost:8000/v1", "localhost", 8000, "/v1"),
        ("http://localhost:8000/v1/", "localhost", 8000, "/v1"),
        ("http://localhost:8000/v1//", "localhost", 8000, "/v1"),
        ("http://localhost:8000/v1/chat/completions", "localhost", 8000, "/v1"),
        ("http://localhost:8000/v1/completions/", "localhost", 8000, "/v1"),
        ("http://localhost:8000/chat/completions", "localhost", 8000, ""),
        ("http://example.com", "example.com", 80, "/v1"),
        ("example.com/openai", "example.com", 80, "/openai/v1"),
        ("http://example.com/openai/v1", "example.com", 80, "/openai/v1"),
        ("http://example.com/api/v2beta", "example.com", 80, "/api/v2beta"),
        ("http://[::1]:8000", "::1", 8000, "/v1"),
        ("[::1]:8000", "::1", 8000, "/v1"),
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "/v1"),
        ("http://例子.cn/模型", "xn--fsqu00a.cn", 80, "/%E6%A8%A1%E5%9E%8B/v1"),
        ("  HTTP://LOCALHOST:8000 ", "localhost", 8000, "/v1"),
    ],
)
def test_a_url_names_host_port_and_base_path(
    url: str, host: str, port: int, base_path: str
) -> None:
    target = parse_target(url)
    assert (target.host, target.port, target.base_path) == (host, port, base_path)


def test_the_url_is_kept_as_the_user_named_it() -> None:
    assert parse_target("localhost:8000/").url == "http://localhost:8000"
    assert (
        parse_target("http://localhost:8000/v1/chat/completions").url == "http://localhost:8000/v1"
    )
    assert parse_target("http://[::1]:8000/v1").url == "http://[::1]:8000/v1"


def test_an_endpoint_is_a_whole_url() -> None:
    target = parse_target("http://[::1]:8000")
    assert target.endpoint("/models") == "http://[::1]:8000/v1/models"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("htp://localhost", "unknown scheme 'htp'"),
        ("unix://tmp/socket", "expected the path of a socket"),
        ("unix:///tmp/", "expected the path of a socket"),
        ("", "no target given"),
        ("   ", "no target given"),
        ("http://", "no host"),
        ("http://:8000", "no host"),
        ("http://local host:8000", "no host"),
        ("localhost:99999", "[Pp]ort"),
        ("localhost:0", "port 0"),
        ("localhost:eight", "[Pp]ort"),
        ("localhost:-1", "[Pp]ort"),
        ("::1:8000", "brackets"),
        ("http://" + "a" * 70, "expected http://HOST:PORT"),
        ("http://[::1", "expected http://HOST:PORT"),
        ("http://localhost/v1?key=7", "query"),
        ("http://localhost/v1#top", "fragment"),
        ("http://user:secret@localhost", "--api-key-env"),
    ],
)
def test_a_url_that_cannot_be_used_is_named_with_what_is_wrong(url: str, says: str) -> None:
    with pytest.raises(TargetError, match=says) as caught:
        parse_target(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_api_key_becomes_a_bearer_token() -> None:
    target = parse_target("localhost", api_key="sk-1\n")
    assert target.headers == (("Authorization", "Bearer sk-1"),)


def test_an_authorization_header_wins_over_the_api_key() -> None:
    target = parse_target("localhost", headers=[("authorization", "Basic x")], api_key="sk-1")
    assert target.headers == (("authorization", "Basic x"),)


def test_secrets_are_not_in_the_repr() -> None:
    target = parse_target("localhost", headers=[("X-Key", "hidden1")], api_key="hidden2")
    assert "hidden" not in repr(target)


@pytest.mark.parametrize("name", ["", "X Key", "X:", "Ключ", "a\nb"])
def test_a_header_name_that_http_does_not_allow_is_named(name: str) -> None:
    with pytest.raises(TargetError, match="header name"):
        parse_target("localhost", headers=[(name, "x")])


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "TraceParent"])
def test_a_header_that_every_request_has_from_us_is_refused_by_name(name: str) -> None:
    with pytest.raises(TargetError, match=f"header {name}: Prony sets it itself"):
        parse_target("localhost", headers=[(name, "5")])


@pytest.mark.parametrize("value", ["a\r\nX-More: b", "a\x00", "é€"])
def test_a_header_value_that_http_does_not_allow_is_refused_unseen(value: str) -> None:
    for headers, key in (([("X-Key", value)], None), ([], value)):
        with pytest.raises(TargetError, match="no HTTP header may hold") as caught:
            parse_target("localhost", headers=headers, api_key=key)
        assert value not in str(caught.value)


def test_a_target_made_by_hand_needs_no_headers_or_timeouts() -> None:
    target = Target(url="http://h:1", host="h", port=1, base_path="/v1")
    assert (target.headers, target.timeouts.connect, target.timeouts.total) == ((), 5.0, 300.0)


def test_https_and_unix_targets_are_shown_as_they_were_named() -> None:
    secure = parse_target("https://api.openai.com")
    assert (secure.port, secure.scheme, secure.host_header) == (443, "https", "api.openai.com")
    assert secure.endpoint("/models") == "https://api.openai.com:443/v1/models"
    socket = parse_target("unix:///run/llm.sock")
    assert (socket.url, socket.unix) == ("unix:///run/llm.sock", "/run/llm.sock")
    assert socket.endpoint("/models") == "unix:///run/llm.sock /v1/models"
    assert (secure.route(), socket.route()) == ("directly", "directly")
    trusting = parse_target("https://h", tls=TlsOptions(insecure=True))
    assert trusting.route() == "without checking its certificate"
