"""OpenAI's own Python client talks to this server, told nothing but where it is."""

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from tests.server.live_server import LiveServer, live_server, until

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
PARTS: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(max_num_seqs=2, max_queue=0) as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    """The key is one that the client demands and the server does not."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield client


def test_a_chat_streamed_and_whole(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    for messages in (HELLO, PARTS):
        whole = client.chat.completions.create(
            model=model, messages=messages, max_completion_tokens=12, temperature=0
        )
        text = whole.choices[0].message.content
        assert text and whole.choices[0].finish_reason == "length"
        assert whole.usage and whole.usage.completion_tokens == 12
        streamed, usage = "", None
        for chunk in client.chat.completions.create(
            model=model,
            messages=messages,
            max_completion_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        ):
            streamed += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        assert streamed == text and usage and usage.total_tokens == whole.usage.total_tokens


def test_a_completion_streamed_and_whole(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="x", seed=1, logprobs=2, echo=False)
    told = whole.choices[0].logprobs
    assert told and told.tokens and "".join(told.tokens) == whole.choices[0].text
    stream = client.completions.create(model="tiny", prompt="x", seed=1, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_several_choices_logprobs_and_stop(client: openai.OpenAI) -> None:
    several = client.chat.completions.create(
        model="tiny", messages=HELLO, n=2, seed=3, max_tokens=10, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in several.choices] == [0, 1]
    for choice in several.choices:
        assert choice.logprobs and choice.logprobs.content
        told = b"".join(bytes(each.bytes or []) for each in choice.logprobs.content)
        assert told.decode() == choice.message.content
        assert len(choice.logprobs.content[0].top_logprobs) == 2
    text = several.choices[0].message.content or ""
    stopped = client.chat.completions.create(
        model="tiny", messages=HELLO, seed=3, max_tokens=10, stop=[text[4:6]]
    )
    assert stopped.choices[0].message.content == text[: text.index(text[4:6])]
    assert stopped.choices[0].finish_reason == "stop"


def test_errors_are_the_clients_own(server: LiveServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=5)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="x")
    assert missing.value.code == "model_not_found"
    with client.with_options(max_retries=0) as hasty:
        running = hasty.completions.create(
            model="tiny", prompt="x", n=2, max_tokens=4000, stream=True
        )
        with running, pytest.raises(openai.RateLimitError) as full:
            next(iter(running))
            hasty.completions.create(model="tiny", prompt="x")
        assert full.value.code == "queue_full"
        assert full.value.response.headers["retry-after"]
    until(lambda: server.metric("prony_requests_running") == 0, "nothing runs")


def test_a_stream_left_early_frees_its_place(server: LiveServer, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=4000, stream=True
    )
    with stream:
        for _ in zip(range(3), stream, strict=False):
            pass
    until(lambda: server.metric("prony_requests_running") == 0, "nothing runs")


def test_the_key_that_the_client_sends_is_the_one_that_is_checked() -> None:
    with live_server(api_key="sesame") as locked:
        url = f"{locked.url}/v1"
        with openai.OpenAI(base_url=url, api_key="sesame") as right:
            assert right.models.list().data[0].id == "tiny"
        with (
            openai.OpenAI(base_url=url, api_key="wrong") as wrong,
            pytest.raises(openai.AuthenticationError),
        ):
            wrong.models.list()
