"""The ground-truth server: it answers as asked, and what it notes is what a client can see."""

import json
import sys

import pytest
from tests.loadgen.asking import ask, on_a_quiet_moment, request

from prony_loadgen.client import Request
from prony_loadgen.ground_truth import GroundTruth, Pace
from prony_loadgen.probe import find_model
from prony_loadgen.target import parse_target

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the server is built on epoll")


def asking_for(number: int, tokens: int, *, dialect: str = "openai-chat") -> Request:
    made = request(number, dialect=dialect)
    body = json.dumps({"model": "m", "max_tokens": tokens}).encode()
    return Request(
        id=made.id,
        cls=made.cls,
        dialect=dialect,
        body=body,
        intended=made.intended,
        trace_id=made.trace_id,
        span_id=made.span_id,
        keep_text=True,
    )


@pytest.mark.parametrize("dialect", ["openai-chat", "openai-completions"])
@pytest.mark.parametrize(("tokens", "per_write"), [(1, 1), (5, 1), (20, 20), (41, 20)])
def test_a_request_gets_the_tokens_that_it_asked_for(
    dialect: str, tokens: int, per_write: int
) -> None:
    with GroundTruth(Pace(per_write=per_write)) as server:
        [record] = ask(server.url, asking_for(1, tokens, dialect=dialect))
        [true] = server.truth()
        assert server.truth() == []  # told once
    assert (record.outcome, record.output_tokens) == ("ok", tokens)
    assert record.text == " token" * tokens
    assert sum(arrival.tokens for arrival in record.arrivals) == tokens
    assert true.id == record.trace_id
    assert true.tokens == tokens
    assert len(true.writes) == -(-tokens // per_write)


def test_what_the_client_saw_is_what_the_server_did() -> None:
    def check() -> None:
        with GroundTruth(Pace(ttft=0.05, itl=0.02)) as server:
            records = ask(server.url, *(asking_for(number, 10) for number in range(5)))
            truth = {true.id: true for true in server.truth()}
        for record in records:
            true = truth[record.trace_id]
            assert record.ttft_from_send is not None
            assert 0.05 <= true.ttft < 0.06
            # Connecting is in the client's, not in the server's.
            assert true.ttft <= record.ttft_from_send < true.ttft + 0.01
            # Both clocks are the machine's; they differ by the run's origin.
            origin = true.writes[0] - record.arrivals[0].at
            for arrival, write in zip(record.arrivals, true.writes, strict=True):
                assert abs(arrival.at + origin - write) < 0.01

    on_a_quiet_moment(check)


def test_tokens_keep_their_pace_however_late_one_was() -> None:
    def check() -> None:
        with GroundTruth(Pace(ttft=0.01, itl=0.01)) as server:
            ask(server.url, asking_for(1, 30))
            [true] = server.truth()
        assert true.writes[-1] - true.writes[0] == pytest.approx(0.29, abs=0.005)

    on_a_quiet_moment(check)


def test_it_is_an_inference_server_to_whoever_asks() -> None:
    with GroundTruth(Pace()) as server:
        assert find_model(parse_target(server.url), None)[1] == "ground-truth"
        assert server.cpu_seconds() > 0
        [record] = ask(server.url)  # a body without a number of tokens
    assert record.output_tokens == Pace().tokens


def test_it_ends_with_its_block() -> None:
    with GroundTruth(Pace()) as server:
        url = server.url
    [record] = ask(url)
    assert record.outcome == "connect_error"
