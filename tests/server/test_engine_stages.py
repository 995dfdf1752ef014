"""Where the engine's thread says its time went: to one stage at each moment, and none is lost."""

import gc
import time
import weakref
from typing import Any

import pytest
import torch
from tests.server.engine_runs import Receiver, greedy, mixed_prompts

from prony_server.engine import Engine, EngineConfig, Step
from prony_server.generate_engine import GenerateEngine
from prony_server.stages import BUILD, EMIT, FORWARD, IDLE, SAMPLE, STAGES, StageClock
from prony_server.tiny import tiny_model

torch.set_num_threads(1)


def test_all_time_is_some_stages_and_idle_time_counts_while_it_goes_on() -> None:
    clock = StageClock()
    clock.start(10.0)
    assert clock.total(11.0) == (0.0,) * 7
    clock.publish(idle=True)
    assert clock.total(11.0)[IDLE] == 1.0
    clock.ended(IDLE, 12.0)
    clock.publish()
    clock.ended(FORWARD, 15.0)
    assert (clock.total(15.0)[IDLE], clock.total(15.0)[FORWARD]) == (2.0, 0.0)  # not over yet
    clock.ended(EMIT, 15.5)
    assert clock.lap() == (2.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.5)
    clock.publish()
    assert sum(clock.total(99.0)) == 5.5
    clock.ended(SAMPLE, 16.0)
    assert clock.lap() == (0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0)


def test_an_idle_time_that_ended_after_now_was_read_takes_nothing_back() -> None:
    clock = StageClock()
    clock.start(10.0)
    clock.publish(idle=True)
    before = clock.total(11.0)
    clock.ended(IDLE, 11.5)
    clock.publish(idle=True)
    assert clock.total(11.2)[IDLE] >= before[IDLE]


@pytest.mark.parametrize("kind", [Engine, GenerateEngine])
def test_the_stages_of_all_steps_sum_to_the_loops_time(kind: type[Engine]) -> None:
    steps: list[Step] = []
    ended: list[float] = []

    def on_step(step: Step) -> None:
        steps.append(step)
        ended.append(step.started + step.seconds)

    batching: Any = "generate" if kind is GenerateEngine else "continuous"
    engine = kind(tiny_model(), frozenset(), EngineConfig(batching=batching), on_step)
    receiver = Receiver()
    for at, prompt in enumerate(mixed_prompts(8)):
        engine.submit(str(at), prompt, greedy(10), receiver.emit_for(str(at)))
    before = time.monotonic()
    engine.start()
    receiver.wait()
    engine.stop(drain=0.0)
    after = time.monotonic()
    for step in steps:
        assert len(step.stages) == len(STAGES)
        assert min(step.stages) >= 0
    # A step is told all since the one before was told: its emitting, and its own on_step, too.
    for step, begin, end in zip(steps[1:], ended, ended[1:], strict=False):
        assert sum(step.stages) == pytest.approx(end - begin, abs=1e-6)
    total = engine.stats().stage_seconds
    assert 0 < sum(step.stages[FORWARD] for step in steps) <= total[FORWARD] * (1 + 1e-9)
    assert sum(s for step in steps for s in step.stages) <= sum(total) <= after - before
    assert (total[BUILD] > 0) == (kind is Engine)  # generate packs its tensors in its forward


def test_an_idle_engines_idle_time_grows_and_nothing_else_does() -> None:
    engine = Engine(tiny_model(), frozenset(), EngineConfig())
    engine.start()
    receiver = Receiver()
    engine.submit("a", [1], greedy(2), receiver.emit_for("a"))
    receiver.wait()
    while not (first := engine.stats().stage_seconds)[EMIT]:
        time.sleep(0)
    while (second := engine.stats().stage_seconds)[IDLE] < first[IDLE] + 0.02:
        time.sleep(0.001)
    third = engine.stats().stage_seconds
    assert third[IDLE] >= second[IDLE]
    assert third[FORWARD:] == second[FORWARD:]
    engine.stop(drain=0.0)


def test_a_stopped_engine_holds_neither_model_nor_cache() -> None:
    engine = Engine(tiny_model(), frozenset(), EngineConfig())
    model, keys = (weakref.ref(x) for x in (engine._runner.model, engine._runner._cache.keys[0]))
    engine.start()
    receiver = Receiver()
    engine.submit("a", [1], greedy(2), receiver.emit_for("a"))
    receiver.wait()
    engine.stop(drain=0.0)
    gc.collect()
    assert model() is None and keys() is None
    assert engine.stats().stage_seconds[FORWARD] > 0  # what it counted is still told
