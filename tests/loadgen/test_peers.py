"""A run in the words of other tools: the same request, their TPOT of 20.0, 29.7 and 25.0 ms."""

import re

import pytest
from tests.loadgen.synthetic_run import synthetic_run

from prony_loadgen.peers import PEERS, explained, told
from prony_loadgen.record import Arrival, RequestRecord
from prony_loadgen.summary import Measured, measured


def one_request() -> Measured:
    """TTFT 1.0 s, 101 tokens 20 ms apart, and the usage 0.5 s after the last of them."""
    times = [1.0 + 0.02 * i for i in range(101)]
    record = RequestRecord(
        id="r0",
        cls="chat",
        intended=0.0,
        sent=0.0,
        headers=0.1,
        arrivals=tuple(Arrival(time, 1, "text") for time in times),
        ended=3.5,
        outcome="ok",
        finish_reason="length",
        output_tokens=101,
        output_tokens_from="usage",
    )
    return Measured((record,), (), (0.0, 4.0), "open")


def shown(text: str, label: str) -> float:
    found = re.search(rf"{re.escape(label)}: +([\d.,]+)", text)
    assert found is not None, text
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize(
    ("peer", "number", "tpot"),
    [
        ("vllm", "Mean TPOT (ms)", 20.0),
        ("aiperf", "Inter Token Latency (ms) avg", 20.0),
        ("guidellm", "TPOT ms Mdn", 29.7),
        ("sglang", "Mean TPOT (ms)", 25.0),
    ],
)
def test_one_request_has_three_values_of_tpot(peer: str, number: str, tpot: float) -> None:
    result = told(peer, one_request())
    found = next(n for n in result.numbers if n.label == number)
    assert found.theirs is not None and round(found.theirs, 1) == tpot
    assert found.ours is not None and round(found.ours, 1) == 20.0
    assert found.differs == (tpot != 20.0)


def test_the_number_that_is_printed_is_the_number_that_was_computed() -> None:
    assert shown(told("vllm", one_request()).text, "Mean TPOT (ms)") == 20.0
    assert shown(told("sglang", one_request()).text, "Mean TPOT (ms)") == 25.0
    assert " 29.7 " in told("guidellm", one_request()).text
    assert " 20.00 " in told("aiperf", one_request()).text


def test_what_differs_is_named_with_both_numbers_and_the_reason() -> None:
    text = explained(told("guidellm", one_request()))
    line = next(line for line in text.splitlines() if "TPOT ms Mdn" in line)
    assert "29.70 there, 20.00 here" in line
    assert "time to first token is inside it" in line


def test_late_sends_are_in_our_ttft_and_not_in_theirs() -> None:
    late = one_request().records[0]
    record = RequestRecord(
        **{name: getattr(late, name) for name in RequestRecord.__slots__} | {"intended": -0.4}
    )
    numbers = {n.label: n for n in told("vllm", Measured((record,), (), (-1, 4), "open")).numbers}
    ttft = numbers["Mean TTFT (ms)"]
    assert (round(ttft.theirs or 0), round(ttft.ours or 0)) == (1000, 1400)
    assert "schedule intended" in ttft.why


@pytest.mark.parametrize("peer", list(PEERS))
def test_every_peer_can_tell_a_run_with_failures(peer: str) -> None:
    run, records = synthetic_run(failures=0.1)
    result = told(peer, measured(run, records))
    assert len(result.text.splitlines()) > 5
    assert all(number.theirs is not None for number in result.numbers)
    assert result.differing


@pytest.mark.parametrize("peer", list(PEERS))
def test_a_run_without_an_answer_has_no_numbers_and_no_zeros_for_them(peer: str) -> None:
    result = told(peer, Measured((), (), (0.0, 4.0), "open"))
    assert all(number.theirs is None for number in result.numbers)
    assert "–" in result.text
