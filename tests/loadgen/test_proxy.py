"""Which proxy is used: by the variables of the environment, their exceptions and this machine."""

import pytest

from prony_loadgen.proxy import Proxy, ProxyError, Tunnel, parse_proxy, proxy_for
from prony_loadgen.target import TargetError, parse_target

P = "http://proxy.test:3128"


def used(url: str, **environ: str) -> str | None:
    found = parse_target(url, environ=environ).proxy
    return None if found is None else found.url


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("http://llm.test", {}, None),
        ("http://llm.test", {"http_proxy": P}, P),
        ("http://llm.test", {"HTTP_PROXY": P}, P),
        ("http://llm.test", {"http_proxy": "http://lower.test:1", "HTTP_PROXY": P}, "lower"),
        ("http://llm.test", {"https_proxy": P}, None),
        ("https://llm.test", {"https_proxy": P}, P),
        ("https://llm.test", {"http_proxy": P}, None),
        ("https://llm.test", {"ALL_PROXY": P}, P),
        ("http://llm.test", {"http_proxy": "proxy.test:3128"}, P),
        ("http://llm.test", {"http_proxy": " "}, None),
    ],
)
def test_a_variable_counts_for_its_own_scheme(
    url: str, environ: dict[str, str], proxy: str | None
) -> None:
    found = used(url, **environ)
    assert found == proxy or (proxy == "lower" and found == "http://lower.test:1")


@pytest.mark.parametrize(
    ("no_proxy", "goes_direct"),
    [
        ("llm.test", True),
        (".test", True),
        ("test", True),
        ("*.test", True),
        ("*", True),
        ("other.test, LLM.test", True),
        ("llm.test:8000", True),
        ("llm.test:8001", False),
        ("lm.test", False),
        ("llm.test.org", False),
        ("", False),
        (",", False),
    ],
)
def test_no_proxy_names_hosts_and_all_below_them(no_proxy: str, goes_direct: bool) -> None:
    found = used("http://llm.test:8000", http_proxy=P, NO_PROXY=no_proxy)
    assert (found is None) is goes_direct


@pytest.mark.parametrize(
    ("host", "no_proxy", "goes_direct"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("[fd00::1]", "fd00::/8", True),
        ("[fd00::1]", "fd00::1", True),
        ("llm.test", "10.0.0.0/8", False),
        ("10.1.2.3", "nonsense/8", False),
    ],
)
def test_no_proxy_names_addresses_and_networks(host: str, no_proxy: str, goes_direct: bool) -> None:
    found = used(f"http://{host}:8000", http_proxy=P, no_proxy=no_proxy)
    assert (found is None) is goes_direct


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "a.localhost"])
@pytest.mark.parametrize("no_proxy", ["", "localhost"])
def test_this_machine_is_never_reached_through_a_proxy(host: str, no_proxy: str) -> None:
    assert used(f"http://{host}:8000", http_proxy=P, all_proxy=P, no_proxy=no_proxy) is None


def test_a_proxy_that_is_asked_for_is_used_even_for_this_machine() -> None:
    target = parse_target("http://127.0.0.1:8000", proxy=P, environ={"no_proxy": "*"})
    assert target.proxy == Proxy("proxy.test", 3128)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://proxy.test", "only proxies that are spoken to by plain http"),
        ("socks5://proxy.test:1080", "only proxies that are spoken to by plain http"),
        ("http://", "expected http://HOST:PORT"),
        ("http://proxy.test:0", "expected http://HOST:PORT"),
        ("http://proxy.test:port", "expected http://HOST:PORT"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(url: str, says: str) -> None:
    with pytest.raises(TargetError, match=says) as caught:
        parse_target("http://llm.test", environ={"HTTP_PROXY": url})
    assert str(caught.value).startswith(f"HTTP_PROXY={url}: ")


def test_a_proxys_password_is_never_shown() -> None:
    with pytest.raises(ProxyError) as caught:
        parse_proxy("socks5://user:secret@proxy.test", "--proxy")
    assert "secret" not in str(caught.value)
    proxy = proxy_for("http", "llm.test", 80, {"http_proxy": "http://user:secret@proxy.test"})
    assert proxy is not None and proxy.headers
    assert "secret" not in repr(proxy) + proxy.url


@pytest.mark.parametrize("cut", range(1, 20))
def test_an_answer_of_a_proxy_may_come_in_pieces(cut: int) -> None:
    tunnel = Tunnel(Proxy("proxy.test", 3128), "llm.test:443")
    raw = b"HTTP/1.1 200 OK\r\n\r\nrest"
    told = tunnel.received(raw[:cut])
    if told is None:
        assert tunnel.received(raw[cut:]) == b"rest"
    else:
        assert told + raw[cut:] == b"rest"


def test_a_proxy_that_never_ends_its_answer_is_given_up() -> None:
    tunnel = Tunnel(Proxy("proxy.test", 3128), "llm.test:443")
    with pytest.raises(ProxyError, match="does not speak HTTP"):
        for _ in range(100):
            tunnel.received(b"x" * 1000)
