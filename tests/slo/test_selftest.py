"""The gate's proof on itself: it holds for gates that can fail, and not for those that cannot."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from prony_slo import selftest
from prony_slo.objective import read_slo
from prony_slo.promise import (
    Band,
    Check,
    Condition,
    Floor,
    Latency,
    Marked,
    Measure,
    Objective,
    Quality,
    Query,
    Rate,
    Regression,
    Share,
    SloFile,
)

Promise = Share | Marked | Floor | Band | Query
TTFT = Share((Condition("ttft", 0.5),), 0.01)


def slo_of(*promises: Promise, **facts: Any) -> SloFile:
    objectives = tuple(Objective(f"o{i}", p, f"t.yaml:{i}") for i, p in enumerate(promises))
    return SloFile("t", objectives, **facts)


def failing(slo: SloFile) -> list[str]:
    return [f"{p.about}: {p.got}: {p.text}" for p in selftest.prove(slo) if not p.holds]


@pytest.mark.parametrize("metric", get_args(Latency))
@pytest.mark.parametrize("limit", [0.01, 0.5])
def test_every_latency_can_be_met_and_broken(metric: Latency, limit: float) -> None:
    assert failing(slo_of(Share((Condition("ttft", 0.5),), limit), Share((), 0.005))) == []
    assert failing(slo_of(Share((Condition(metric, 0.2),), limit))) == []


@pytest.mark.parametrize("metric", get_args(Rate))
def test_every_rate_can_be_met_and_broken(metric: Rate) -> None:
    of = "o0" if metric == "goodput_rps" else None
    assert failing(slo_of(TTFT, Floor(metric, 1200.0, of))) == []
    assert failing(slo_of(TTFT, Floor(metric, 0.5, of))) == []


@pytest.mark.parametrize("metric", get_args(Quality))
def test_every_quality_can_be_met_and_broken(metric: Quality) -> None:
    assert failing(slo_of(Marked(metric, 0.02))) == []


@pytest.mark.parametrize(
    "promise",
    [
        Band("gpu_utilization", 0.6, 0.8),
        Band("gpu_utilization", None, 0.8),
        Query("avg_over_time(kv[$window])", None, 0.95),
        Query("avg_over_time(queue[$window])", None, 0.0),
        Query("sum(rate(tokens[$window]))", 100.0, None),
    ],
    ids=str,
)
def test_every_gauge_and_query_can_be_met_and_broken(promise: Promise) -> None:
    assert failing(slo_of(TTFT, promise)) == []


def test_joint_conditions_stages_classes_and_a_loose_limit_too() -> None:
    joint = Share((Condition("ttft", 0.5), Condition("tpot", 0.05)), 0.05)
    loose = Share((Condition("e2e", 3.0),), 0.6)
    slo = slo_of(joint, loose)
    parts = replace(slo.objectives[0], stage="steady", cls="chat", scenario="chat")
    assert failing(replace(slo, objectives=(parts, *slo.objectives[1:]))) == []
    steady = Measure(require_steady=True, find_warmup=True)
    assert failing(slo_of(joint, measure=steady)) == []


def test_a_regression_gate_passes_one_build_and_fails_a_slower_one() -> None:
    checks = (
        Check("ttft p50", "ttft", "p50", 0.05, "t.yaml:9"),
        Check("ttft tail", "ttft", "tail", 0.10, "t.yaml:10"),
        Check("tput", "output_tokens_per_s", "rate", 0.05, "t.yaml:11"),
    )
    found = list(selftest.prove(slo_of(TTFT, regression=Regression(checks))))
    assert [(p.about, p.got) for p in found[-2:]] == [
        ("pairs of a build with itself", "pass"),
        ("pairs with a build 1.4 times as slow", "breach"),
    ]


def test_a_gate_that_can_only_warn_is_told_apart() -> None:
    slo = slo_of(TTFT)
    warns = replace(slo, objectives=(replace(slo.objectives[0], severity="warn"),))
    found = {p.about: p.got for p in selftest.prove(warns)}
    assert found["a run that breaks o0"] == "breach, exit 0"


def test_objectives_that_contradict_each_other_do_not_pass_their_proof() -> None:
    slo = slo_of(TTFT, Query("kv[$window]", None, 0.5), Query("kv[$window]", 0.9, None))
    assert any(line.startswith("a run that keeps every objective") for line in failing(slo))


def test_the_whole_file_of_the_documentation_holds() -> None:
    assert failing(read_slo(Path(__file__).parent / "chat-gate.yaml")) == []


def test_objectives_of_several_scenarios_and_classes_hold() -> None:
    slo = slo_of(TTFT, Share((), 0.005), Floor("requests_per_s", 20.0))
    first, second, third = slo.objectives
    several = (
        replace(first, scenario="chat", cls="short"),
        replace(second, scenario="batch", cls="long"),
        third,
    )
    assert failing(replace(slo, objectives=several)) == []
