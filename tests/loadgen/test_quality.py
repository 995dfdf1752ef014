"""Whether answers still make sense."""

from dataclasses import replace

import pytest
from tests.loadgen.test_recorder import record as plain_record

from prony_loadgen.quality import Expect, inspected, read_expect, repeated_share, shares
from prony_loadgen.record import Arrival, RequestRecord


def record(text: str | None = "Hello there.", **facts: object) -> RequestRecord:
    base = replace(
        plain_record(1),
        outcome="ok",
        arrivals=(Arrival(1.5, 1, "text"),),
        finish_reason="stop",
        asked_output_tokens=10,
        output_tokens=10,
        flags=(),
        text=text,
    )
    return replace(base, **facts)  # type: ignore[arg-type]


PROSE = (
    "The brake was made to load an engine while its power was measured, and the same idea serves a "
    "server of language models: load it, and see what those who use it would have to wait."
)


def test_prose_does_not_repeat_itself_and_a_loop_does() -> None:
    assert repeated_share(PROSE) == 0
    assert repeated_share("I am sorry but I can not do that. " * 30) > 0.9
    assert repeated_share("na" * 200) > 0.9
    assert repeated_share("短い文です。" * 50) > 0.9
    assert repeated_share("Paris") == repeated_share("") == 0


def test_a_loop_is_flagged_and_its_share_kept() -> None:
    seen = inspected(record("the same again " * 40), None, natural=True)
    assert "repetition" in seen.flags
    assert seen.quality is not None and seen.quality["repeated"] > 0.9
    assert RequestRecord.from_json(seen.to_json()).quality == seen.quality


@pytest.mark.parametrize(
    ("natural", "finish", "got", "truncated"),
    [
        (True, "length", 10, True),  # it had more to say
        (False, "length", 10, False),  # forced to this length
        (False, "length", 7, True),  # the context, or a limit of the server's, came first
        (True, "stop", 4, False),
        (True, None, 4, False),
    ],
)
def test_an_answer_is_truncated_where_a_limit_cut_it(
    natural: bool, finish: str | None, got: int, truncated: bool
) -> None:
    seen = inspected(record(finish_reason=finish, output_tokens=got), None, natural=natural)
    assert ("truncated" in seen.flags) is truncated


def test_bytes_that_were_no_utf8_are_counted() -> None:
    seen = inspected(record("a\ufffd b\ufffd"), None, natural=True)
    assert seen.quality == {"repeated": 0.0, "broken_characters": 2}
    assert shares([seen, inspected(record(), None, natural=True)])["broken_text_requests"] == 1


@pytest.mark.parametrize(
    ("expect", "text", "met"),
    [
        (Expect(reference="It is blue."), " It  is\nblue. ", True),
        (Expect(reference="It is blue."), "It is Blue.", False),
        (Expect(contains=("paris",)), "It is PARIS!", True),
        (Expect(contains=("paris", "rome")), "It is Paris.", False),
        (Expect(pattern=r"\b4\b"), "It is 4.", True),
        (Expect(pattern=r"\b4\b"), "It is 44.", False),
    ],
)
def test_what_is_expected_is_met_or_not(expect: Expect, text: str, met: bool) -> None:
    seen = inspected(record(text), expect, natural=True)
    assert seen.flags == (("match",) if met else ("mismatch",))


def test_failed_requests_and_those_whose_text_nobody_kept_are_left_alone() -> None:
    lost = record(outcome="timeout", text="the same again " * 40)
    assert inspected(lost, Expect(reference="x"), natural=True) is lost
    unread = record(text=None)
    assert inspected(unread, Expect(reference="x"), natural=True) is unread


def test_shares_are_of_those_that_can_have_the_fault() -> None:
    right, wrong = Expect(contains=("hello",)), Expect(contains=("bye",))
    records = [
        inspected(record(), right, natural=True),
        inspected(record(), wrong, natural=True),
        inspected(record(finish_reason="length"), None, natural=True),
        inspected(record("again and again " * 40), None, natural=True),
        record(outcome="http_error", arrivals=()),
    ]
    found = shares(records)
    assert found["truncated_share"] == 0.25
    assert found["repetition_share"] == 0.25
    assert (found["mismatch_share"], found["expected_requests"]) == (0.5, 2)
    assert shares([])["truncated_share"] is None


def test_bad_expectations_are_errors() -> None:
    assert read_expect({"prompt": "a"}) is None
    for row, problem in (
        ({"reference": ""}, "reference must be a text"),
        ({"contains": [1]}, "contains must be a text or a list"),
        ({"pattern": "("}, "pattern is no regular expression"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_expect(row)
