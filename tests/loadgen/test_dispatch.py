"""Drafts become requests, and requests are handed over ahead of their time."""

import json

from prony_loadgen.client import Request
from prony_loadgen.dispatch import AHEAD, Form, feed
from prony_loadgen.prompt import Prompt


class FakeClock:
    """Time that passes only by sleeping, and by what each submit is said to cost."""

    def __init__(self, cost: float = 0.0) -> None:
        self.now = 100.0
        self.cost = cost
        self.submitted: list[tuple[float, Request]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def submit(self, request: Request) -> None:
        self.submitted.append((self.now, request))
        self.now += self.cost


def form(**changes: object) -> Form:
    facts = {
        "dialect": "openai-chat",
        "model": "m",
        "ignore_eos": False,
        "extra_body": {},
        "keep_text": False,
    }
    return Form(**{**facts, **changes})  # type: ignore[arg-type]


def request(at: float) -> Request:
    return form().request(
        Prompt(text="hi"), id=f"{at:g}", cls="c", intended=100.0 + at, max_tokens=5
    )


def test_a_request_carries_what_was_asked_and_where_it_belongs() -> None:
    made = form(ignore_eos=True, extra_body={"temperature": 0}, keep_text=True).request(
        Prompt(text="hi", asked_tokens=1),
        id="7",
        cls="chat",
        intended=3.0,
        max_tokens=5,
        extra={"top_k": 2},
    )
    body = json.loads(made.body)
    assert (made.id, made.cls, made.intended, made.keep_text) == ("7", "chat", 3.0, True)
    assert (made.asked_input_tokens, made.asked_output_tokens) == (1, 5)
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["stream"] is True and body["ignore_eos"] is True
    assert (body["temperature"], body["top_k"]) == (0, 2)


def test_every_request_has_its_own_trace() -> None:
    made = [request(0.0) for _ in range(1000)]
    assert len({each.trace_id for each in made}) == 1000
    assert len({each.span_id for each in made}) == 1000
    assert {(len(each.trace_id), len(each.span_id)) for each in made} == {(32, 16)}


def test_each_request_is_handed_over_a_second_ahead() -> None:
    clock = FakeClock()
    due = [0.0, 0.5, 3.0, 3.0, 10.0]
    feed(iter([request(at) for at in due]), clock.submit, clock, clock.sleep, lambda: True)
    assert [made.intended - 100 for _, made in clock.submitted] == due
    ahead = [made.intended - when for when, made in clock.submitted]
    assert all(lead <= AHEAD + 1e-9 for lead in ahead)
    assert min(ahead[2:]) > AHEAD - 0.11


def test_a_slow_hand_over_does_not_shift_what_follows() -> None:
    clock = FakeClock(cost=0.3)
    due = [0.0, 0.1, 0.2, 8.0]
    feed(iter([request(at) for at in due]), clock.submit, clock, clock.sleep, lambda: True)
    when, last = clock.submitted[-1]
    assert last.intended == 108.0
    assert when < 107.2


def test_nothing_is_handed_over_once_the_run_ends() -> None:
    clock = FakeClock()
    feed(
        iter([request(at) for at in (0.0, 1.0, 5.0, 9.0)]),
        clock.submit,
        clock,
        clock.sleep,
        lambda: clock.now < 103.0,
    )
    assert [made.intended - 100 for _, made in clock.submitted] == [0.0, 1.0]


def test_many_at_once_let_others_run_between_them() -> None:
    clock = FakeClock()
    slept: list[float] = []
    feed(iter([request(0.0)] * 100), clock.submit, clock, slept.append, lambda: True)
    assert len(clock.submitted) == 100
    assert slept == [0, 0, 0, 0, 0]
