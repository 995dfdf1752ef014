"""The baseline behind the Engine's interface: it streams, and ends whenever an Engine would."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.server.engine_runs import Receiver, generated, greedy, like, run
from transformers import GenerationConfig, LlamaForCausalLM

from prony_server.engine import EngineConfig, QueueFull, RequestTooLong, Step
from prony_server.generate_engine import GenerateEngine
from prony_server.sequence import SamplingParams
from prony_server.tiny import tiny_model

torch.set_num_threads(1)

POISON = 7
LONG = greedy(2000)


class FailsOnPoison(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    def forward(self, input_ids: Any, **others: Any) -> Any:
        if (input_ids == POISON).any():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(input_ids=input_ids, **others)


@contextmanager
def running(model: Any = None, on_step: Any = None, **config: Any) -> Iterator[GenerateEngine]:
    limits = EngineConfig(batching="generate", **config)
    engine = GenerateEngine(model or tiny_model(), frozenset(), limits, on_step)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=0.0)


def test_an_abort_ends_a_request_between_two_tokens_and_the_next_one_begins() -> None:
    with running() as engine:
        receiver = Receiver()
        for name in ("runs", "waits"):
            engine.submit(name, [1] * 50, LONG, receiver.emit_for(name))
        engine.submit("next", [3] * 50, greedy(3), receiver.emit_for("next"))
        receiver.wait(lambda: len(receiver.results["runs"].tokens) >= 2)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used > 0) == (1, 2, True)
        engine.abort("waits")
        engine.abort("runs", "stop")
        receiver.wait()
        reasons = {name: result.reason for name, result in receiver.results.items()}
        assert reasons == {"runs": "stop", "waits": "abort", "next": "length"}
        assert len(receiver.results["runs"].tokens) < 2000
        assert receiver.results["next"].tokens == generated(tiny_model(), [3] * 50, 3)
        assert engine.stats().blocks_used == 0


def test_a_stop_ends_what_runs_within_a_token() -> None:
    receiver = Receiver()
    with running() as engine:
        engine.submit("a", [1], LONG, receiver.emit_for("a"))
        receiver.wait(lambda: bool(receiver.results["a"].tokens))
    assert receiver.results["a"].reason == "abort"
    assert engine.failed is None


def test_an_end_of_sequence_ends_it() -> None:
    said = generated(tiny_model(), [1, 2, 3], 30)
    ends = frozenset({said[10]})
    params = SamplingParams(30, temperature=0.0)
    done = run(tiny_model(), [([1, 2, 3], params)], ends, batching="generate")
    assert done.tokens == [said[: said.index(said[10])]]
    assert done.results[0].reason == "stop"


def test_a_models_own_generation_config_changes_nothing() -> None:
    model = tiny_model()
    config: Any = GenerationConfig
    model.generation_config = config(
        repetition_penalty=1.5, do_sample=True, eos_token_id=list(range(200))
    )
    done = run(model, [([1, 2, 3], greedy(20))], batching="generate")
    assert done.tokens == [generated(tiny_model(), [1, 2, 3], 20)]


def test_a_request_whose_forward_fails_ends_alone_and_is_counted() -> None:
    requests = [([1, POISON], greedy(5)), ([1, 2], greedy(5))]
    done = run(like(FailsOnPoison, tiny_model()), requests, batching="generate")
    assert [result.reason for result in done.results] == ["error", "length"]
    assert "CUDA out of memory" in (done.results[0].error or "")
    assert done.stats.out_of_memory == 1


def test_limits_hold_as_they_do_elsewhere() -> None:
    with running(max_model_len=100, max_queue=0) as engine:
        with pytest.raises(RequestTooLong):
            engine.submit("long", [1] * 100, greedy(1), print)
        engine.submit("a", [1], greedy(99), lambda _: None)
        with pytest.raises(QueueFull):
            engine.submit("b", [1], greedy(99), print)


def test_an_on_step_that_breaks_ends_the_engine_as_it_does_elsewhere() -> None:
    def on_step(step: Step) -> None:
        raise KeyError("a bug of ours")

    with running(on_step=on_step) as engine:
        receiver = Receiver()
        engine.submit("a", [1], LONG, receiver.emit_for("a"))
        receiver.wait()
        assert receiver.results["a"].error == "the engine failed: KeyError: 'a bug of ours'"
        assert isinstance(engine.failed, KeyError)
