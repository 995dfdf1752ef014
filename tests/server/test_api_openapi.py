"""The OpenAPI document is true: what it says is taken is read, and what comes back is in it."""

import http.client
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode, Response
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.server.live_server import LiveServer, live_server

from prony_server.parameters import CHAT, COMPLETIONS, Label, Neutral

README = Path(__file__).parents[2] / "server/README.md"

EXAMPLES = 30  # each way, each endpoint


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(max_model_len=64) as live:
        yield live


def call(case: Case[Any], server: LiveServer) -> Response:
    """By http.client: requests' own transport does not survive every urllib3 that is installed."""
    wanted = case.as_transport_kwargs(base_url=server.url)
    known = ("method", "url", "headers", "params", "cookies", "data", "json", "files")
    request = requests.Request(**{k: wanted[k] for k in known if k in wanted}).prepare()
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    try:
        headers, body = dict(request.headers), request.body
        assert body is None or isinstance(body, bytes | str)
        connection.request(str(request.method), request.path_url, body, headers)
        answer = connection.getresponse()
        names: dict[str, list[str]] = {}
        for name, value in answer.getheaders():
            names.setdefault(name, []).append(value)
        return Response(answer.status, names, answer.read(), request, 0.0, verify=False)
    finally:
        connection.close()


def schema(server: LiveServer) -> Any:
    return schemathesis.openapi.from_dict(server.get("/openapi.json").json)


# The server's threads draw trace ids while a strategy runs: that is no fault of the strategy.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_v14_no_body_makes_the_server_fail_or_say_what_it_did_not_announce(
    server: LiveServer, path: str, mode: GenerationMode
) -> None:
    operation = schema(server)[path]["POST"]
    seen: Counter[int] = Counter()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    def each(case: Case[Any]) -> None:
        response = call(case, server)
        seen[response.status_code] += 1
        # A status, a type and a body that the document names, and no 5xx. A schema cannot say that
        # prompt and answer must fit the context together, nor that 5.0 is no integer here.
        case.validate_response(response, excluded_checks=[positive_data_acceptance])

    each()
    # How many of the bodies fit the context is chance, and other with every module that is loaded:
    # hypothesis draws from the constants of them all.
    assert set(seen) <= ({200, 400} if mode is GenerationMode.POSITIVE else {200, 400, 404, 415})


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/completions", {"prompt": "hello"}),
    ],
)
def test_an_answer_is_as_announced(server: LiveServer, path: str, asked: dict[str, Any]) -> None:
    operation = schema(server)[path]["POST"]
    body = {"model": "tiny", "max_tokens": 4, **asked}
    for more in ({}, {"logprobs": 1 if "prompt" in asked else True, "n": 2}, {"stop": ["e", "a"]}):
        case = operation.Case(body=body | more, media_type="application/json")
        response = call(case, server)
        assert response.status_code == 200, response.text
        case.validate_response(response)


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ready", "/metrics", "/openapi.json"])
def test_what_is_read_is_as_announced(server: LiveServer, path: str) -> None:
    operation = schema(server)[path]["GET"]
    case = operation.Case()
    case.validate_response(call(case, server))


def test_the_document_names_every_path_and_no_other(server: LiveServer) -> None:
    document = server.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    for path, methods in document["paths"].items():
        assert [name.upper() for name in methods] == (
            ["POST"] if "completions" in path else ["GET"]
        )
    # What a wrong path is told: all that there is.
    told = server.get("/nowhere").error["message"].partition("this server has ")[2]
    others = [path for path in told.split(", ") if not path.startswith("/debug/")]
    assert sorted(others) == sorted(document["paths"])


def test_the_document_and_the_parser_read_the_same_table(server: LiveServer) -> None:
    schemas = server.get("/openapi.json").json["components"]["schemas"]
    assert list(schemas["ChatRequest"]["properties"]) == list(CHAT)
    assert list(schemas["CompletionRequest"]["properties"]) == list(COMPLETIONS)
    assert schemas["ChatRequest"]["required"] == ["model", "messages"]
    assert schemas["ChatRequest"]["properties"]["model"]["enum"] == ["tiny"]


def test_the_readme_has_every_parameter_that_is_acted_on() -> None:
    table = README.read_text().partition("## Parameters")[2].partition("\n\nA choice")[0]
    for name, parameter in (CHAT | COMPLETIONS).items():
        assert f"`{name}`" in table or isinstance(parameter, Label | Neutral), name
