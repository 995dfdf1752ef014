"""Records: what is derived from what happened, and their lines in a file."""

import dataclasses
import json
from typing import Any

import pytest

from prony_loadgen.record import Arrival, RequestRecord

RECORD = RequestRecord(
    id="7",
    cls="chat",
    intended=1.0,
    sent=1.25,
    headers=1.5,
    arrivals=(Arrival(2.0, 1, "text"), Arrival(2.5, 2, "text"), Arrival(3.0, 1, "text")),
    ended=3.5,
    outcome="ok",
    status=200,
    finish_reason="stop",
    usage={"completion_tokens": 4},
    output_tokens=4,
    output_tokens_from="usage",
)


def record(**changes: Any) -> RequestRecord:
    return dataclasses.replace(RECORD, **changes)


def test_latencies_count_from_when_the_request_was_intended() -> None:
    assert RECORD.send_lag == 0.25
    assert RECORD.ttft == 1.0
    assert RECORD.ttft_from_send == 0.75
    assert RECORD.e2e == 2.0  # to the last token, not to the end of the stream
    assert RECORD.tpot == pytest.approx(1.0 / 3)
    assert RECORD.max_gap == 0.5


def test_a_chunk_of_k_tokens_is_k_samples_of_its_gap_over_k() -> None:
    assert RECORD.itl == [(0.25, 2.0), (0.5, 1.0)]


def test_chunks_share_the_known_total_where_the_stream_did_not_count_them() -> None:
    spread = record(arrivals=tuple(Arrival(at, 1, "text") for at in (2.0, 2.5)), output_tokens=4)
    assert spread.itl == [(0.25, 2.0)]


def test_reasoning_is_a_first_token_but_no_first_output() -> None:
    arrivals = (Arrival(2.0, 1, "reasoning"), Arrival(4.0, 1, "text"))
    assert (record(arrivals=arrivals).ttft, record(arrivals=arrivals).ttfo) == (1.0, 3.0)
    assert record(arrivals=arrivals[:1]).ttfo is None


def test_what_never_arrived_is_unknown_and_never_zero() -> None:
    nothing = record(arrivals=(), output_tokens=None)
    derived = (nothing.ttft, nothing.ttfo, nothing.e2e, nothing.tpot, nothing.max_gap)
    assert derived == (None,) * 5
    assert nothing.itl == []
    unsent = record(sent=None)
    assert (unsent.send_lag, unsent.ttft_from_send) == (None, None)


def test_an_answer_in_one_piece_has_an_end_but_no_first_token() -> None:
    whole = record(arrivals=(Arrival(3.0, 4, "text"),), flags=("not_streamed",))
    assert (whole.ttft, whole.ttfo, whole.tpot, whole.itl) == (None, None, None, [])
    assert whole.e2e == 2.0


@pytest.mark.parametrize(
    "changes",
    [
        {"output_tokens": 1},
        {"output_tokens": None},
        {"arrivals": RECORD.arrivals[:1]},
        {"arrivals": (Arrival(2.0, 1, "text"),) * 3},
    ],
    ids=["one token", "unknown tokens", "one arrival", "one time"],
)
def test_tpot_needs_two_tokens_and_two_times(changes: dict[str, Any]) -> None:
    assert record(**changes).tpot is None


def test_a_line_holds_the_whole_record() -> None:
    full = record(
        connected=1.375,
        flags=("coalesced",),
        text="a\u2028b \ud83d",
        reasoning="",
        trace_id="0" * 32,
        span_id="0" * 16,
        error=None,
        asked_input_tokens=9,
    )
    line = full.to_json()
    assert "\n" not in line
    assert line.isascii()
    assert RequestRecord.from_json(line) == full
    assert json.loads(line)["class"] == "chat"
    assert json.loads(line)["arrivals"][1] == [2.5, 2, "text"]


def test_no_line_holds_what_json_does_not_know() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        record(usage={"completion_tokens": float("nan")}).to_json()


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", RECORD.to_json()[:-1] + ', "extra": 1}'])
def test_a_line_that_is_no_record_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError):
        RequestRecord.from_json(line)
