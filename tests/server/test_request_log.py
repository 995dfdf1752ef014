"""The request log: what a line holds, and that a log that cannot be written holds nobody up."""

import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.live_server import LiveServer, live_server

from prony_server.requestlog import RequestLog, WholeLines

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TIMES = ("duration", "ttft", "tokenize", "queue", "prefill", "decode", "detokenize", "write_wait")


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """The lines of a few requests, by what was asked; read after the server's end."""
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    with live_server(request_log=str(path)) as server:
        chat(server, "streamed", stream=True, max_tokens=5)
        chat(server, "whole", max_tokens=3)
        chat(server, "refused", max_tokens=-1)
        chat(server, "several", stream=True, max_tokens=4, n=3)
        give_up_on_a_long_answer(server)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = ("streamed", "whole", "refused", "several", "given up")
    yield dict(zip(names, lines, strict=True))


def chat(server: LiveServer, text: str, **body: Any) -> None:
    messages = [{"role": "user", "content": f"a secret: {text}"}]
    server.post(
        "/v1/chat/completions",
        {"model": "tiny", "messages": messages, **body},
        {"traceparent": f"00-{TRACE}-{SPAN}-01"},
    )


def give_up_on_a_long_answer(server: LiveServer) -> None:
    import http.client

    connection = http.client.HTTPConnection(*server.address, timeout=60)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "stream": True}
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    assert response.read(1)
    response.close()
    connection.close()
    server.wait_for("prony_requests_finished_total", 1, finish_reason="abort")


def test_a_line_tells_a_requests_phases_tokens_and_outcome(
    logged: dict[str, dict[str, Any]],
) -> None:
    line = dict(logged["streamed"])
    times = {name: line.pop(name) for name in TIMES}
    assert line.pop("id").startswith("chatcmpl-")
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "event": "request",
        "trace_id": TRACE,
        "operation": "chat",
        "stream": True,
        "status": 200,
        "outcome": "ok",
        "finish_reason": "length",
        "prompt_tokens": 37,
        "cached_tokens": 0,
        "output_tokens": 5,
        "preemptions": 0,
    }
    assert all(seconds > 0 for seconds in times.values())
    engine = sum(times[name] for name in ("tokenize", "queue", "prefill", "decode"))
    assert times["ttft"] < times["duration"] and engine < times["duration"]


def test_a_request_has_no_times_of_what_it_did_not_come_to(
    logged: dict[str, dict[str, Any]],
) -> None:
    assert logged["whole"]["write_wait"] is None
    refused = logged["refused"]
    assert (refused["status"], refused["outcome"]) == (400, "400")
    assert [name for name in TIMES if refused[name] is not None] == ["duration"]
    assert refused["prompt_tokens"] is None and refused["finish_reason"] is None


def test_several_answers_to_one_prompt_are_one_line(logged: dict[str, dict[str, Any]]) -> None:
    line = logged["several"]
    assert (line["output_tokens"], line["finish_reason"]) == (12, "length")
    assert line["queue"] + line["prefill"] + line["decode"] < line["duration"]


def test_a_client_that_goes_away_is_logged_once_the_engine_has_let_go(
    logged: dict[str, dict[str, Any]],
) -> None:
    line = logged["given up"]
    assert (line["outcome"], line["status"], line["stream"]) == ("client_disconnected", 200, True)
    assert line["finish_reason"] is None and line["decode"] is not None


def test_no_prompt_is_logged(logged: dict[str, dict[str, Any]]) -> None:
    assert "secret" not in json.dumps(logged)


class Stuck(io.StringIO):
    """A stream whose reader does not read, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.goes_on = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.waits.set()
        self.goes_on.wait(60)
        return super().write(text)


def test_lines_that_a_stuck_reader_does_not_take_are_dropped_and_counted() -> None:
    dropped: list[None] = []
    stream = Stuck()
    log = RequestLog(stream, lambda: dropped.append(None), waiting=2)
    log.add(0.0, {"number": 0})
    assert stream.waits.wait(60)
    for number in range(1, 6):
        log.add(0.0, {"number": number})
    assert len(dropped) == 3
    stream.goes_on.set()
    log.close()
    assert [json.loads(line)["number"] for line in stream.getvalue().splitlines()] == [0, 1, 2]
    assert len(dropped) == 3


def test_the_end_does_not_wait_for_ever_for_a_stuck_reader() -> None:
    dropped: list[None] = []
    stream = Stuck()
    log = RequestLog(stream, lambda: dropped.append(None))
    for number in range(4):
        log.add(0.0, {"number": number})
    assert stream.waits.wait(60)
    log.close(patience=0.01)
    assert len(dropped) == 3  # the one that is being written is not lost yet
    stream.goes_on.set()


def test_a_full_disk_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    dropped: list[None] = []
    with Path("/dev/full").open("w", encoding="utf-8", buffering=1) as full:
        log = RequestLog(full, lambda: dropped.append(None))
        log.add(0.0, {"number": 1})
        log.add(0.0, {"number": 2})
        log.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # lets the file be closed
    assert len(dropped) == 2
    assert caplog.messages == ["the request log loses lines: [Errno 28] No space left on device"]


def test_a_line_that_a_full_disk_cuts_is_an_error_and_does_not_spoil_the_next() -> None:
    reader, writer = os.pipe()  # what has room for half a line, and has room again once it is read
    os.set_blocking(writer, False)
    with io.FileIO(reader) as taken, WholeLines(writer, "wb") as file:
        long = b"x" * 1_000_000 + b"\n"
        with pytest.raises(OSError, match="of 1000001 bytes could be written"):
            file.write(long)
        with pytest.raises(OSError, match="0 of 6 bytes"):
            file.write(b"lost\n")
        cut = taken.read(len(long))
        file.write(b"whole\n")
        file.write(b"another\n")
        assert long.startswith(cut) and taken.read(100) == b"\nwhole\nanother\n"


def test_a_log_that_cannot_be_opened_ends_the_start_with_its_name(tmp_path: Path) -> None:
    from prony_server.app import ServeError

    where = tmp_path / "no such folder" / "log"
    with (
        pytest.raises(ServeError, match=r"no such folder.*No such file"),
        live_server(request_log=str(where)),
    ):
        pass
