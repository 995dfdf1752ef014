"""The probe before the load: what it finds out, and its one line for all that can be wrong."""

import json
import socket
import threading
from collections.abc import Callable

import pytest
from tests.loadgen.replay_server import HELLO, Peer, Script, chunk, serving

from prony_loadgen.dialects import DIALECTS
from prony_loadgen.probe import find_model, patience, probe
from prony_loadgen.target import TargetError, Timeouts, parse_target

CHAT = DIALECTS["openai-chat"]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def models(*names: str) -> bytes:
    listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
    return answer("200 OK", json.dumps(listed).encode())


NOT_FOUND = answer("404 Not Found", b'{"detail":"Not Found"}')


def api(answers: dict[str, bytes]) -> Script:
    """A server that gives each path ("GET /v1/models") its answer, and 404 for all others."""

    def script(peer: Peer, request: bytes) -> None:
        method, path = request.decode("latin-1").split(" ")[:2]
        peer.send(answers.get(f"{method} {path}", NOT_FOUND))

    return script


def failure(answers: dict[str, bytes], model: str | None = None, path: str = "") -> str:
    """The line that probing such a server raises, with its address as HOST."""
    with (
        serving(api(answers)) as server,
        pytest.raises(TargetError) as caught,
    ):
        probe(parse_target(server.url + path), CHAT, model)
    line = str(caught.value).replace(f"127.0.0.1:{server.port}", "HOST")
    assert "\n" not in line
    return line


def test_the_only_model_is_taken_and_one_short_stream_is_asked_of_it() -> None:
    good = {"GET /v1/models": models("tiny"), "POST /v1/chat/completions": HELLO}
    with serving(api(good)) as server:
        target = parse_target(server.url, api_key="sk-1")
        probed = probe(target, CHAT, None, extra={"temperature": 0})
    assert (probed.target, probed.model) == (target, "tiny")
    assert probed.record.ok
    listing, asked = server.requests
    assert b"Authorization: Bearer sk-1\r\n" in listing
    assert b"Authorization: Bearer sk-1\r\n" in asked
    body = json.loads(asked.split(b"\r\n\r\n")[1])
    assert (body["model"], body["stream"], body["temperature"]) == ("tiny", True, 0)
    assert body["max_tokens"] <= 8


def test_a_server_without_v1_is_found_where_the_url_did_not_say() -> None:
    bare = {"GET /models": models("tiny"), "POST /chat/completions": HELLO}
    with serving(api(bare)) as server:
        assert probe(parse_target(server.url), CHAT, None).target.base_path == ""
        assert find_model(parse_target(server.url), None)[0].base_path == ""
    assert "HOST/v1/models" in failure(bare, path="/v1")  # where it did, nothing else is tried


def test_a_server_that_lists_no_models_is_found_by_its_endpoint() -> None:
    for base in ("/v1", ""):
        with serving(api({f"POST {base}/chat/completions": HELLO})) as server:
            probed = probe(parse_target(server.url), CHAT, "mine")
            assert (probed.target.base_path, probed.model) == (base, "mine")


def test_a_model_that_is_named_needs_not_be_listed() -> None:
    good = {"GET /v1/models": models("a", "b"), "POST /v1/chat/completions": HELLO}
    with serving(api(good)) as server:
        assert probe(parse_target(server.url), CHAT, "alias").model == "alias"


def test_a_server_on_ipv6_is_probed() -> None:
    good = {"GET /v1/models": models("tiny"), "POST /v1/chat/completions": HELLO}
    with serving(api(good), host="::1") as server:
        assert probe(parse_target(server.url), CHAT, None).model == "tiny"


def test_nobody_listening() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(TargetError) as caught:
        probe(parse_target(f"127.0.0.1:{port}"), CHAT, None)
    assert str(caught.value) == (
        f"cannot reach http://127.0.0.1:{port}/v1/models: connection refused; "
        "is the server running?"
    )


def test_a_server_that_speaks_no_http() -> None:
    line = failure({"GET /v1/models": b"SSH-2.0-OpenSSH_9.9\r\n"})
    assert line.startswith("cannot reach http://HOST/v1/models: the answer is not HTTP")


def test_a_name_without_an_address() -> None:
    with pytest.raises(TargetError, match="cannot resolve the host name 'nowhere"):
        probe(parse_target("nowhere.invalid"), CHAT, None)


def test_a_key_that_is_missing_or_wrong() -> None:
    refused = answer("401 Unauthorized", b'{"error":{"message":"no key"}}')
    line = failure({"GET /v1/models": refused})
    assert line == (
        "http://HOST/v1/models refused us (401); name the variable that holds its key by "
        "--api-key-env (default: OPENAI_API_KEY)"
    )
    listed = {"GET /v1/models": models("tiny"), "POST /v1/chat/completions": refused}
    assert "no key" in failure(listed)
    assert "--api-key-env" in failure(listed)


def test_several_models_and_none_chosen() -> None:
    line = failure({"GET /v1/models": models("a", "b")})
    assert line == "http://HOST/v1/models lists 2 models; choose one by --model: a, b"


def test_no_model_loaded() -> None:
    assert failure({"GET /v1/models": models()}).startswith("http://HOST/v1/models lists no model")


def test_no_list_of_models_and_none_named() -> None:
    line = failure({})
    assert line == (
        "no list of models at http://HOST/v1/models (404) nor at http://HOST/models (404); "
        "check the URL, or name the model by --model"
    )
    page = answer("200 OK", b"<html>", "text/html")
    assert "http://HOST/v1/models (text/html, not a list of models)" in failure(
        {"GET /v1/models": page}
    )


def test_a_wrong_path_names_every_place_that_was_tried() -> None:
    line = failure({}, model="mine")
    assert line.startswith(
        "not found: http://HOST/v1/chat/completions nor http://HOST/chat/completions (404"
    )
    assert "check the URL and --model" in line


def test_a_model_that_the_server_does_not_have() -> None:
    unknown = answer("404 Not Found", b'{"error":{"message":"The model `x` does not exist."}}')
    line = failure({"GET /v1/models": models("a"), "POST /v1/chat/completions": unknown}, model="x")
    assert "The model `x` does not exist." in line
    assert "--model" in line


def failing_answer(body: bytes, content_type: str) -> Callable[[], str]:
    answers = {
        "GET /v1/models": models("tiny"),
        "POST /v1/chat/completions": answer("200 OK", body, content_type),
    }
    return lambda: failure(answers)


def test_a_page_instead_of_a_stream() -> None:
    line = failing_answer(b"<html>Sign in</html>", "text/html")()
    assert "http://HOST/v1/chat/completions" in line
    assert "text/html" in line
    assert "Sign in" in line


def test_an_answer_in_one_piece() -> None:
    whole = b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'
    line = failing_answer(whole, "application/json")()
    assert line.startswith("http://HOST/v1/chat/completions answers in one piece")


def test_a_field_that_the_server_refuses() -> None:
    refusal = answer("400 Bad Request", b'{"error":{"message":"stream_options is unknown"}}')
    line = failure({"GET /v1/models": models("tiny"), "POST /v1/chat/completions": refusal})
    assert "http_error: 400 Bad Request: stream_options is unknown" in line


def test_a_stream_that_breaks() -> None:
    line = failing_answer(b'data: {"error":"out of memory"}\n\n', "text/event-stream")()
    assert "stream_error: out of memory" in line


def test_a_list_of_models_that_stops_halfway() -> None:
    over = threading.Event()

    def script(peer: Peer, _: bytes) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        peer.close()
        over.set()

    with serving(script) as server, pytest.raises(TargetError, match="closed the connection"):
        probe(parse_target(server.url), CHAT, None)


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + chunk(b": still here\n\n")])
def test_a_server_that_accepts_and_stays_mute_is_given_up_with_what_was_waited_for(
    sent: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()

    def script(peer: Peer, request: bytes) -> None:
        if request.startswith(b"GET"):
            peer.send(models("tiny"))
        else:
            peer.send(sent)
            over.wait(10)

    with serving(script) as server:
        target = parse_target(server.url, timeouts=Timeouts(first_token=0.1, total=0.4))
        with pytest.raises(TargetError) as caught:
            probe(target, CHAT, None)
        over.set()
    url = f"{server.url}/v1/chat/completions"
    assert str(caught.value) == (
        f"{url} took the probe request, and then came no token within 0.4 s; where it is loading "
        "its model, wait until it answers (curl), or set timeouts.first_token to what it needs"
    )
    told = capsys.readouterr().err
    assert told == f"waiting for {url} to answer one short request, for up to 0.4 s\n"


@pytest.mark.parametrize(
    ("first_token", "total", "limit"),
    [(None, 300.0, 30.0), (2.0, 300.0, 30.0), (120.0, 300.0, 120.0), (None, 5.0, 5.0)],
)
def test_the_probe_waits_30_seconds_for_a_token_or_what_the_scenario_sets(
    first_token: float | None, total: float, limit: float
) -> None:
    # A model may be loaded for it, so a short limit is not held against it.
    assert patience(Timeouts(first_token=first_token, total=total)) == limit


def test_a_server_that_answers_at_once_has_nothing_said_of_waiting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = {"GET /v1/models": models("tiny"), "POST /v1/chat/completions": HELLO}
    with serving(api(good)) as server:
        probe(parse_target(server.url), CHAT, None)
    assert capsys.readouterr().err == ""


def test_a_server_that_is_loading_is_to_be_waited_for() -> None:
    loading = answer(
        "503 Service Unavailable",
        b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}',
    )
    line = failure({"GET /v1/models": loading})
    assert line == (
        "http://HOST/v1/models answers 503 (Loading model (unavailable_error, 503)): the server "
        "is not ready; wait until it is, then run again"
    )
    for answers in ({}, {"GET /v1/models": loading}, {"GET /v1/models": models("tiny")}):
        line = failure({**answers, "POST /v1/chat/completions": loading}, model="tiny")
        assert line == (
            "http://HOST/v1/chat/completions answers 503 Service Unavailable: Loading model "
            "(unavailable_error, 503): the server is not ready; wait until it is, then run again"
        )


def test_a_list_of_models_that_fails_keeps_its_message() -> None:
    broken = answer("500 Internal Server Error", b'{"detail":"disk full"}')
    assert "http://HOST/v1/models (500 (disk full))" in failure({"GET /v1/models": broken})


def test_headers_that_are_given_are_sent_once_and_ours_left_out() -> None:
    good = {"GET /v1/models": models("tiny"), "POST /v1/chat/completions": HELLO}
    headers = [("Host", "llm.example"), ("accept", "*/*")]
    with serving(api(good)) as server:
        probe(parse_target(server.url, headers=headers), CHAT, None)
    for request in server.requests:
        names = [
            line.split(b":")[0].lower() for line in request.split(b"\r\n\r\n")[0].split(b"\r\n")
        ]
        assert (names.count(b"host"), names.count(b"accept")) == (1, 1)
        assert b"Host: llm.example\r\n" in request
