"""What a run will send, said before it sends anything."""

from itertools import islice
from pathlib import Path

import pytest

from prony_loadgen import shipped
from prony_loadgen.plan import Plan, make_plan
from prony_loadgen.prompts import drafts
from prony_loadgen.scenario import Scenario, load_scenario
from prony_loadgen.schedule import schedule
from prony_loadgen.settings import installed_judge


def test_an_open_loop_plan_is_what_will_be_sent_to_the_token() -> None:
    chat = load_scenario("chat", {"seed": "4"})
    plan = make_plan(chat)
    sent = list(islice(drafts(chat), plan.requests))
    assert plan.requests == len(schedule(chat))
    assert plan.input_tokens == sum(draft.prompt.asked_tokens or 0 for draft in sent)
    assert plan.output_tokens == sum(draft.output_tokens for draft in sent)
    assert plan.seconds == schedule(chat)[-1]


def test_requests_are_those_measured_whatever_the_seed() -> None:
    for seed in range(20):
        plan = make_plan(load_scenario("chat", {"seed": seed, "requests": 50}))
        assert plan.measured == 50
        assert plan.requests is not None and plan.requests > 50


def test_a_limit_from_outside_shortens_the_plan() -> None:
    chat = load_scenario("chat", {"arrivals.process": "constant", "arrivals.rate": 10})
    plan = make_plan(chat, limit=5.0)
    assert (plan.requests, plan.measured) == (50, 20)


def test_rows_of_a_file_bring_their_own_output_lengths(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n{"prompt": "b"}\n')
    plan = make_plan(
        Scenario.model_validate(
            {
                "prompts": {"file": str(path)},
                "output": {"tokens": 10},
                "arrivals": {"process": "constant", "rate": 1},
                "requests": 5,
            }
        )
    )
    assert (plan.input_tokens, plan.output_tokens) == (None, 3 + 10 + 3 + 10 + 3)


def test_in_closed_loop_the_target_decides_how_many_are_sent() -> None:
    changes = {"arrivals.users": "4", "duration": "10s", "warmup": "2s"}
    assert make_plan(load_scenario("chat", changes)) == Plan(None, None, None, None, 12.0)
    plan = make_plan(load_scenario("chat", {"arrivals.users": "4", "requests": "9"}))
    assert plan.measured == 9


def test_a_hundred_thousand_requests_are_planned_one_by_one() -> None:
    changes = {"arrivals.rate": "1000", "requests": "100000", "warmup": "0s"}
    assert make_plan(load_scenario("chat", changes)).requests == 100_000


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        (
            Plan(356, 320, 18_000, 9_000, 125.2),
            "plan: 356 requests (320 measured), in 2 min 5 s, "
            "about 18,000 tokens in, 9,000 tokens out",
        ),
        (Plan(5, 5, None, 12, 3.0), "plan: 5 requests (5 measured), in 3 s, 12 tokens out"),
        (
            Plan(30, 30, None, None, None),
            "plan: 30 requests (30 measured), in closed loop the target decides the rest",
        ),
        (
            Plan(None, 30, None, None, None),
            "plan: 30 measured requests, in closed loop the target decides the rest",
        ),
        (
            Plan(None, None, None, None, 60.0),
            "plan: in 60 s, in closed loop the target decides the rest",
        ),
        (
            Plan(None, None, None, None, None),
            "plan: in closed loop the target decides the rest",
        ),
    ],
)
def test_people_read_the_plan_in_one_line(plan: Plan, line: str) -> None:
    assert plan.lines() == [line]


@pytest.mark.parametrize("name", shipped.names("scenarios"))
def test_every_shipped_scenario_can_decide_the_slo_that_it_names(name: str) -> None:
    scenario = load_scenario(name)
    lines = installed_judge([], scenario.slo).plan(make_plan(scenario), (3.0, 60.0))
    assert lines
    assert not [line for line in lines if "cannot be decided" in line or "does not know" in line]
