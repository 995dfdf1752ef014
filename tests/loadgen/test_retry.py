"""Requests that are tried again where a scenario asks for it: over sockets, and never silently.

One request is one record, whatever it took; its latency counts from the first try.
"""

import dataclasses
import json
import threading
import time
from pathlib import Path

import pytest
from tests.loadgen.asking import request
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.replay_server import HELLO, Peer, chunked, event, serving
from tests.loadgen.synthetic_run import synthetic_run
from tests.loadgen.test_session import FakeJudge, drive, settings

from prony_loadgen import words
from prony_loadgen.client import Client
from prony_loadgen.doubts import find_doubts
from prony_loadgen.folder import RunFolder
from prony_loadgen.record import Attempt, RequestRecord
from prony_loadgen.report import report_html
from prony_loadgen.scenario import load_scenario
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.summary import measured, summarise
from prony_loadgen.target import Retry, Timeouts, parse_target
from prony_loadgen.terminal import summary_markdown


def refusal(status: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, "Content-Length: 0", "", ""]
    return "\r\n".join(lines).encode()


TOO_MANY = refusal("429 Too Many Requests", "Retry-After: 0.1")
BUSY = refusal("503 Service Unavailable")


def tried(
    url: str, retry: Retry, *, total: float = Timeouts().total, drain: float = 20.0
) -> RequestRecord:
    records: list[RequestRecord] = []
    target = parse_target(url, retry=retry, timeouts=Timeouts(total=total))
    client = Client(target, origin=time.monotonic(), on_record=records.append)
    client.start()
    client.submit(request())
    client.close(drain=drain)
    [record] = records
    return record


def test_a_refused_request_is_sent_again_as_it_was_after_what_the_server_asked_for() -> None:
    def script(peer: Peer, _: bytes) -> None:
        peer.send(HELLO if len(server.requests) == 3 else TOO_MANY)

    with serving(script) as server:
        record = tried(server.url, Retry(3))
        assert server.connections == 1  # what refused it cleanly is used again
        assert len(set(server.requests)) == 1 and len(server.requests) == 3
    assert (record.outcome, record.text, record.status) == ("ok", "Hello", 200)
    assert [(each.outcome, each.status) for each in record.earlier] == [("http_error", 429)] * 2
    # All of it is latency that a user felt, and none of it is lateness of ours.
    first = record.earlier[0]
    assert record.sent == pytest.approx(first.sent) and (record.ttft or 0.0) >= 0.2
    assert first.ended < record.earlier[1].sent < (record.headers or 0.0)
    assert record.earlier[1].sent - first.ended >= 0.09
    again = RequestRecord.from_json(record.to_json())
    assert [each.error for each in again.earlier] == [each.error for each in record.earlier]
    assert isinstance(again.earlier[0], Attempt)


def test_without_a_wait_from_the_server_it_doubles_and_after_the_last_try_the_refusal_stands() -> (
    None
):
    with serving(lambda peer, _: peer.send(BUSY)) as server:
        record = tried(server.url, Retry(2))
        assert len(server.requests) == 3
    assert (record.outcome, record.status, len(record.earlier)) == ("http_error", 503, 2)
    first, second = record.earlier
    assert second.sent - first.ended >= 0.24
    assert record.ended - second.ended >= 0.49


def test_a_wait_that_is_not_to_be_honoured_is_ours_to_choose() -> None:
    def script(peer: Peer, _: bytes) -> None:
        peer.send(HELLO if len(server.requests) == 2 else long)

    long = refusal("429 Too Many Requests", "Retry-After: 3600")
    with serving(script) as server:
        assert tried(server.url, Retry(1, honour_retry_after=False)).ok
    with serving(script) as server:
        # Nobody waits so long: a request has its time, all tries together.
        record = tried(server.url, Retry(1))
    assert (record.outcome, record.retry_after, record.earlier) == ("http_error", 3600, ())


def test_a_server_that_comes_back_is_connected_to_again() -> None:
    with FakeServer() as gone:
        pass
    back = threading.Timer(0.2, lambda: servers.append(FakeServer(port=gone.port).__enter__()))
    servers: list[FakeServer] = []
    back.start()
    records: list[RequestRecord] = []
    client = Client(
        parse_target(gone.url, retry=Retry(5)), origin=time.monotonic(), on_record=records.append
    )
    client.start()
    body = b'{"max_tokens": 3, "messages": []}'
    client.submit(dataclasses.replace(request(), body=body))
    client.close(drain=30.0)
    back.join()
    for server in servers:
        server.__exit__()
    assert records[0].ok
    assert {each.outcome for each in records[0].earlier} == {"connect_error"}


@pytest.mark.parametrize(
    "answer",
    [
        refusal("500 Internal Server Error"),
        refusal("400 Bad Request"),
        chunked(event("a")),  # it was taken, and then lost
    ],
    ids=["500", "400", "truncated"],
)
def test_what_may_have_been_worked_on_or_is_simply_wrong_is_never_sent_again(answer: bytes) -> None:
    with serving(lambda peer, _: peer.send(answer)) as server:
        record = tried(server.url, Retry(3))
        assert len(server.requests) == 1
    assert not record.ok and record.earlier == ()


def test_one_that_waits_for_its_next_try_has_the_time_of_one_request_and_no_more() -> None:
    busy = refusal("503 Service Unavailable", "Retry-After: 0.25")
    with serving(lambda peer, _: peer.send(busy)) as server:
        record = tried(server.url, Retry(20), total=0.6)
    assert record.outcome in ("http_error", "timeout")
    assert 1 <= len(record.earlier) <= 2
    with serving(lambda peer, _: peer.send(refusal("503 No", "Retry-After: 60"))) as server:
        record = tried(server.url, Retry(1), drain=0.5)
    assert (record.outcome, record.earlier[0].status) == ("incomplete", 503)


def test_a_run_counts_its_retries_apart_and_says_so_everywhere(tmp_path: Path) -> None:
    keys = {"retry": {"max": 2, "honour_retry_after": False}, "warmup": "0s"}
    with FakeServer(busy_every=3) as server:
        load = drive(settings(server, tmp_path / "out", FakeJudge(), **keys))
    assert load.exit_code == 0
    folder = RunFolder(tmp_path / "out")
    run, records = folder.read_run(), list(folder.records())
    assert {record.outcome for record in records} == {"ok"} and len(records) == 20
    asked_again = [record for record in records if record.earlier]
    assert len(server.bodies) == 20 + sum(len(record.earlier) for record in records)
    assert run["scenario"]["retry"] == {"max": 2, "honour_retry_after": False}
    assert (run["schedule"]["offered"], run["schedule"]["dropped"]) == (20, 0)
    part = measured(run, records)
    summary = summarise(part)
    told = summary["retries"]
    assert told["requests"] == told["ok"] == len(asked_again) > 0
    assert told["reasons"] == {"503": told["attempts"]}
    assert summary["rates"]["error_rate"] == 0
    doubt = {doubt.id: doubt for doubt in find_doubts(run, part)}["retried"]
    assert doubt.grade == "warn"
    assert doubt.numbers["attempts"] == told["attempts"]
    facts = {**run, "summary": summary, "doubts": [doubt.to_json()]}
    line = words.retries(facts)
    assert line is not None and "their latency counts from the first try" in line
    assert "tried again" in summary_markdown(facts)
    assert "tried again" in report_html(facts, records)


def test_a_run_without_retries_says_nothing_of_them() -> None:
    run, records = synthetic_run(slo=())
    assert words.retries({**run, "summary": summarise(measured(run, records))}) is None
    assert "earlier" not in json.loads(records[0].to_json())


def test_wrong_values_are_named_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    scenario = "prompts: {input_tokens: 4}\narrivals: {rate: 1}\nrequests: 1\n"
    for retry, told in (
        ("{max: 0}", r"s\.yaml:4: retry\.max"),
        ("{max: 2, honor_retry_after: true}", "did you mean 'honour_retry_after'"),
        ("{}", r"retry\.max"),
    ):
        file.write_text(f"{scenario}retry: {retry}\n")
        with pytest.raises(FileError, match=told):
            load_scenario(str(file))
