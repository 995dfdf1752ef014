"""The server as a process: signals, exit codes, what is said at start and at the end."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.server.live_server import JSON, live_server, until
from transformers import LlamaConfig, LlamaForCausalLM

from prony_server.app import ServeError
from prony_server.config import ConfigError, ServeConfig
from prony_server.tiny import tiny_tokenizer

# What `prony serve` does, with the settings as JSON.
PROGRAM = """
import asyncio, json, logging, sys
from prometheus_client import CollectorRegistry
from prony_server.app import ServeError, serve
from prony_server.config import ServeConfig
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
config = ServeConfig(**json.loads(sys.argv[1]))
told = lambda url: print(url, flush=True)
try:
    code = asyncio.run(serve(config, registry=CollectorRegistry(), tracer=None, ready=told))
except ServeError as error:
    print(f"error: {error}", file=sys.stderr)
    code = 2
sys.exit(code)
"""


Address = tuple[str, int]


@dataclass(frozen=True)
class Process:
    popen: subprocess.Popen[str]
    address: Address

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        os.kill(self.popen.pid, number)

    def ended(self) -> tuple[int, str]:
        """The exit code and the log."""
        _, log = self.popen.communicate(timeout=60)
        return self.popen.returncode, log


def connection(address: Address) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection(*address, timeout=60))


def get(address: Address, path: str) -> tuple[int, str]:
    with connection(address) as opened:
        opened.request("GET", path)
        response = opened.getresponse()
        return response.status, response.read().decode()


def wait_until_running(address: Address, requests: int) -> None:
    line = f"\nprony_requests_running {requests}.0\n"
    until(lambda: line in get(address, "/metrics")[1], f"{requests} requests run")


def wait_until_draining(address: Address) -> None:
    until(lambda: get(address, "/ready")[0] == 503, "the server drains")


@contextmanager
def streaming(address: Address, tokens: int) -> Iterator[http.client.HTTPResponse]:
    """A streamed chat of so many tokens, of which the first event has been read."""
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "go"}], "stream": True}
    body = json.dumps({**asked, "max_tokens": tokens})
    with connection(address) as opened:
        opened.request("POST", "/v1/chat/completions", body, JSON)
        with opened.getresponse() as response:
            assert response.readline().startswith(b"data: ")
            yield response


def started(**settings: Any) -> subprocess.Popen[str]:
    settings = {"model": "tiny", "port": 0, "torch_threads": 1, **settings}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(**settings: Any) -> Iterator[Process]:
    popen = started(**settings)
    try:
        assert popen.stdout is not None
        url = popen.stdout.readline().strip()
        assert url, popen.communicate()[1]
        host, port = url.removeprefix("http://").rsplit(":", 1)
        yield Process(popen, (host, int(port)))
    finally:
        popen.kill()
        popen.communicate()


def rest(response: http.client.HTTPResponse) -> list[Any]:
    """The events still to come; the body must end as its encoding says."""
    lines = response.read().decode().split("\n\n")
    data = [line.strip().removeprefix("data: ") for line in lines if line.strip()]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def test_v15_running_streams_finish_while_new_requests_are_refused_and_the_exit_code_is_0() -> None:
    with serving(drain_seconds=300) as process, ExitStack() as opened:
        address = process.address
        streams = [opened.enter_context(streaming(address, 800)) for _ in range(3)]
        whole, late = (opened.enter_context(connection(address)) for _ in range(2))
        body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 800})
        whole.request("POST", "/v1/completions", body, JSON)
        wait_until_running(address, 4)
        process.signal()
        wait_until_draining(address)
        assert get(address, "/health")[0] == get(address, "/metrics")[0] == 200
        late.request("POST", "/v1/completions", body, JSON)
        refusal = late.getresponse()
        assert refusal.status == 503 and int(refusal.headers["Retry-After"]) > 0
        assert "shutting down" in json.loads(refusal.read())["error"]["message"]
        for stream in streams:
            *chunks, finish, done = rest(stream)
            assert len(chunks) == 800 and done == "[DONE]"
            assert finish["choices"][0]["finish_reason"] == "length"
        assert len(json.loads(whole.getresponse().read())["choices"][0]["text"]) == 800
        assert process.ended()[0] == 0


def test_v15_streams_over_the_drain_limit_end_with_an_error_event_and_never_look_complete() -> None:
    with live_server(drain_seconds=0.1) as server, ExitStack() as opened:
        streams = [opened.enter_context(streaming(server.address, 4000)) for _ in range(3)]
        server.signal()
        for stream in streams:
            *chunks, last = rest(stream)
            assert 0 < len(chunks) < 4000
            assert last["error"]["type"] == "server_error" and last["error"]["code"] == "abort"
            assert "shutting down" in last["error"]["message"]
            assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        assert server.code.result(timeout=60) == 0


def test_v15_a_second_signal_ends_the_draining_at_once() -> None:
    with live_server(drain_seconds=600) as server, streaming(server.address, 4000) as stream:
        server.signal()
        wait_until_draining(server.address)
        server.signal()
        assert "error" in rest(stream)[-1]
        assert server.code.result(timeout=60) == 0


def test_a_second_signal_after_the_end_of_serving_leaves_the_exit_code_as_it_is() -> None:
    with serving() as process:
        process.signal()

        def is_closed() -> bool:
            with socket.socket() as client:
                return client.connect_ex(process.address) != 0

        until(is_closed, "nobody listens")
        process.signal()  # while the interpreter ends, which takes torch a second
        assert process.ended()[0] == 0


def test_idle_connections_do_not_hold_up_the_end() -> None:
    with live_server(drain_seconds=600) as server, connection(server.address) as opened:
        opened.request("GET", "/health")
        opened.getresponse().read()
        server.signal()
        assert server.code.result(timeout=4) == 0


def test_an_idle_server_ends_at_once_and_has_said_nothing_but_its_state_and_limits() -> None:
    with serving(max_num_seqs=4, num_gpu_blocks_override=10, block_size=8) as process:
        assert get(process.address, "/health")[0] == 200
        process.signal(signal.SIGINT)
        code, log = process.ended()
    assert code == 0
    lines = log.splitlines()  # no access log, no traceback
    assert [line.split()[0] for line in lines] == ["listening", "ready", "draining"]
    facts = dict(fact.split("=", 1) for fact in lines[1].split()[1:])
    assert facts["model"] == "tiny" and facts["url"].startswith("http://127.0.0.1:")
    assert facts["device"] == "cpu" and facts["dtype"] == "float32"
    assert facts["max_model_len"] == "4096" and facts["max_num_seqs"] == "4"
    assert facts["kv_blocks"] == "10" and facts["block_size"] == "8" and facts["kv_tokens"] == "80"


def test_health_answers_while_the_model_loads_and_a_signal_then_ends_it() -> None:
    # Without a ready line to wait for: the port is chosen here, and the log says when it is bound.
    popen = started()
    try:
        assert popen.stderr is not None
        line = popen.stderr.readline()
        assert line.startswith("listening ") and "state=loading" in line
        port = int(line.split("url=")[1].split()[0].rsplit(":", 1)[1])
        process = Process(popen, ("127.0.0.1", port))
        states = [get(process.address, path)[0] for path in ("/health", "/ready", "/v1/models")]
        assert states == [200, 503, 503]
        process.signal()
        assert process.ended()[0] == 0
    finally:
        popen.kill()
        popen.communicate()


def test_a_port_in_use_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"port {port} on 127.0.0.1 is in use; name another with --port"
        with pytest.raises(ServeError, match=said), live_server(port=port):
            pass


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"host": "no-such-host.invalid"}, "host 'no-such-host.invalid' is not known"),
        ({"host": "192.0.2.1"}, "cannot listen at port 0 on 192.0.2.1"),
        ({"model": "./no/such/folder"}, "./no/such/folder: no such folder"),
        ({"max_model_len": 10**6}, "max_model_len 1000000 is above the model's context of 4096"),
        (
            {"max_model_len": 1},
            "tiny cannot serve even a short request: 1 prompt tokens + 1 max_tokens = 2 exceed",
        ),
    ],
)
def test_what_cannot_be_served_is_one_clear_error(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(ServeError, match=re.escape(said)) as raised, live_server(**setting):
        pass
    assert "\n" not in str(raised.value)


def test_a_tokenizer_with_more_tokens_than_its_model_is_one_clear_error(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = LlamaConfig(vocab_size=40, num_hidden_layers=1, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    said = r"cannot serve even a short request: prompt token \d+ is outside the vocabulary of 40"
    with pytest.raises(ServeError, match=said), live_server(model=str(tmp_path)):
        pass


@pytest.mark.parametrize("context", [2, 5])
def test_the_shortest_contexts_are_served(context: int) -> None:
    with live_server(max_model_len=context) as server:
        body = json.dumps({"model": "tiny", "prompt": [5], "max_tokens": 1}).encode()
        assert server.ask("POST", "/v1/completions", body, JSON).status == 200


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"model": ""}, "model must be"),
        ({"port": 70000}, "port must lie in 0..65535, got 70000"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"batching": "magic"}, "one of continuous, static, none, generate, got 'magic'"),
        ({"max_queue": -1}, "max_queue must be 0 or more, got -1"),
        ({"gpu_memory_utilization": 2.0}, "must be above 0 and at most 1, got 2.0"),
        ({"drain_seconds": -1}, "drain_seconds must be 0 or more, got -1"),
        ({"write_timeout": 0}, "write_timeout must be above 0, got 0"),
        ({"api_key": ""}, "api_key must not be empty"),
        ({"metric_names": "sglang"}, "metric_names must be prony or vllm, got 'sglang'"),
        ({"request_log": ""}, "request_log must be a file or '-'"),
    ],
)
def test_a_setting_that_cannot_work_is_named(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        ServeConfig(**{"model": "tiny", **setting})
