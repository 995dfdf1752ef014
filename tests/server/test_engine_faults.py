"""Requests that are too long, aborted or poisoned, steps that fail, receivers that break."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.server.engine_runs import Receiver, generated, greedy, like, run
from transformers import LlamaForCausalLM

from prony_server.engine import Engine, EngineConfig, EngineStopped, QueueFull, RequestTooLong, Step
from prony_server.sequence import Output, SamplingParams
from prony_server.tiny import tiny_model

torch.set_num_threads(1)

POISON = 7
LONG = greedy(2000)


class FailsOnPoison(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    def forward(self, input_ids: Any, **others: Any) -> Any:
        if (input_ids == POISON).any():
            raise RuntimeError("poisoned\nby token 7")
        return super().forward(input_ids=input_ids, **others)


class NaNAfterPoison(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """Keys, values and logits of a poisoned token are NaN, as where float16 overflows."""

    def forward(self, input_ids: Any, **others: Any) -> Any:
        weight = self.model.embed_tokens.weight
        with torch.no_grad():
            weight[POISON] = float("nan")
        return super().forward(input_ids=input_ids, **others)


class Cramped(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """Has memory for so many tokens a forward, and no more."""

    room = 20

    def forward(self, input_ids: Any, **others: Any) -> Any:
        if input_ids.shape[1] > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(input_ids=input_ids, **others)


@contextmanager
def running(
    model: Any = None, on_step: Callable[[Step], None] | None = None, **config: Any
) -> Iterator[Engine]:
    engine = Engine(model or tiny_model(), frozenset(), EngineConfig(**config), on_step)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=0.0)


def test_a_request_beyond_the_context_is_refused_with_both_numbers() -> None:
    with running(max_model_len=100) as engine:
        with pytest.raises(
            RequestTooLong, match=r"90 prompt tokens .* 11 max_tokens = 101"
        ) as told:
            engine.submit("a", [1] * 90, greedy(11), print)
        assert (told.value.prompt_tokens, told.value.max_tokens, told.value.limit) == (90, 11, 100)


def test_a_request_that_could_never_fit_the_cache_is_refused_and_one_that_just_fits_runs() -> None:
    with running(num_gpu_blocks=4, block_size=16) as engine:
        with pytest.raises(RequestTooLong, match="the KV cache of 64 tokens"):
            engine.submit("a", [1] * 60, greedy(6), print)
        receiver = Receiver()
        engine.submit("b", [1] * 60, greedy(5), receiver.emit_for("b"))
        receiver.wait()
        assert receiver.results["b"].reason == "length"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "no tokens"), ([1, 260], "260 is outside"), ([-1], "-1 is outside")],
)
def test_a_prompt_that_would_break_a_step_is_refused(prompt: list[int], message: str) -> None:
    with running() as engine, pytest.raises(ValueError, match=message):
        engine.submit("a", prompt, greedy(1), print)


def test_an_id_in_use_is_refused_and_free_again_after_the_last_output() -> None:
    with running() as engine:
        receiver = Receiver()
        engine.submit("a", [1], LONG, receiver.emit_for("a"))
        with pytest.raises(ValueError, match="already in use"):
            engine.submit("a", [1], greedy(1), print)
        engine.abort("a")
        receiver.wait()
        engine.submit("a", [1], greedy(1), receiver.emit_for("a"))
        receiver.wait()
        assert receiver.results["a"].reason == "length"


def test_an_abort_ends_a_running_and_a_waiting_request_and_frees_their_blocks() -> None:
    with running(max_num_seqs=1) as engine:
        receiver = Receiver()
        engine.submit("runs", [1] * 50, LONG, receiver.emit_for("runs"))
        engine.submit("waits", [2] * 50, LONG, receiver.emit_for("waits"))
        engine.submit("next", [3] * 50, greedy(3), receiver.emit_for("next"))
        receiver.wait(lambda: len(receiver.results["runs"].tokens) >= 2)
        assert engine.stats().blocks_used > 0
        engine.abort("waits")
        engine.abort("runs")
        engine.abort("runs")
        engine.abort("never heard of")
        receiver.wait()
        reasons = {name: result.reason for name, result in receiver.results.items()}
        assert reasons == {"runs": "abort", "waits": "abort", "next": "length"}
        assert receiver.results["waits"].tokens == []
        assert engine.stats().blocks_used == 0


def test_20_requests_at_once_at_a_queue_of_4_and_one_place_5_are_taken() -> None:
    engine = Engine(tiny_model(), frozenset(), EngineConfig(max_num_seqs=1, max_queue=4))
    receiver = Receiver()
    refused = 0
    for at in range(20):
        try:
            engine.submit(str(at), [1, 2], greedy(3), receiver.emit_for(str(at)))
        except QueueFull as error:
            refused += 1
            del receiver.results[str(at)]
            assert "the queue is full: 4 requests wait already" in str(error)
        assert engine.stats().waiting <= 4
    assert refused == 15
    engine.start()
    receiver.wait()
    engine.stop(drain=0.0)
    assert {result.reason for result in receiver.results.values()} == {"length"}


def test_a_queue_of_0_refuses_who_finds_no_place_and_takes_the_next_when_there_is_one() -> None:
    with running(max_num_seqs=2, max_queue=0) as engine:
        receiver = Receiver()
        for name in ("a", "b"):
            engine.submit(name, [1], LONG, receiver.emit_for(name))
        with pytest.raises(QueueFull):
            engine.submit("c", [1], LONG, print)
        engine.abort("a")
        receiver.wait(lambda: receiver.results["a"].reason is not None)
        engine.submit("c", [1], greedy(1), receiver.emit_for("c"))
        engine.abort("b")
        receiver.wait()
        assert receiver.results["c"].reason == "length"


def test_a_static_batch_that_gathers_is_no_queue() -> None:
    config = EngineConfig(max_num_seqs=3, max_queue=1, batching="static")
    engine = Engine(tiny_model(), frozenset(), config)
    receiver = Receiver()
    for at in range(4):
        engine.submit(str(at), [1], greedy(3), receiver.emit_for(str(at)))
    with pytest.raises(QueueFull):
        engine.submit("4", [1], greedy(3), print)
    engine.start()
    receiver.wait()
    engine.stop(drain=0.0)


def test_an_abort_between_two_chunks_of_a_prompt_frees_its_blocks() -> None:
    receiver = Receiver()
    steps: list[Step] = []

    def on_step(step: Step) -> None:
        steps.append(step)
        if len(steps) == 2:
            engine.abort("a")

    with running(on_step=on_step, max_num_batched_tokens=10) as engine:
        engine.submit("a", [1] * 100, greedy(5), receiver.emit_for("a"))
        receiver.wait()
    assert receiver.results["a"].reason == "abort"
    assert sum(step.prefill_tokens for step in steps) == 20
    assert engine.stats().blocks_used == 0
    assert engine.failed is None


def test_a_failing_step_ends_its_own_requests_and_the_thread_lives() -> None:
    with running(like(FailsOnPoison, tiny_model()), max_num_seqs=2) as engine:
        receiver = Receiver()
        engine.submit("poisoned", [1, POISON], greedy(5), receiver.emit_for("poisoned"))
        receiver.wait()
        engine.submit("clean", [1, 2], greedy(5), receiver.emit_for("clean"))
        receiver.wait()
        poisoned, clean = receiver.results["poisoned"], receiver.results["clean"]
        assert (poisoned.reason, poisoned.tokens) == ("error", [])
        assert poisoned.error == "the step failed: RuntimeError: poisoned"
        assert clean.tokens == generated(tiny_model(), [1, 2], 5)
        assert engine.failed is None


def test_requests_that_only_wait_survive_a_failing_step() -> None:
    requests = [([1, POISON], greedy(5)), ([1, 2], greedy(5)), ([3, 4], greedy(5))]
    done = run(like(FailsOnPoison, tiny_model()), requests, max_num_seqs=2)
    assert [result.reason for result in done.results] == ["error", "error", "length"]
    assert done.tokens[2] == generated(tiny_model(), [3, 4], 5)


def test_nan_logits_end_one_request_and_reach_nobody_through_reused_blocks() -> None:
    # One block of 16: what the poisoned request leaves behind lies beyond the next one's tokens.
    requests = [([1, 2, 3, 4, POISON], greedy(5)), ([1, 2], greedy(5))]
    model = like(NaNAfterPoison, tiny_model())
    done = run(model, requests, num_gpu_blocks=1, max_num_seqs=1)
    poisoned, clean = done.results
    assert poisoned.reason == "error"
    assert poisoned.error == "the model gave NaN or infinite logits"
    assert clean.tokens == generated(tiny_model(), [1, 2], 5)


def test_nan_that_a_prompt_left_half_computed_reaches_nobody() -> None:
    # Aborted between its chunks: its blocks hold NaN that no logits have shown.
    model = like(NaNAfterPoison, tiny_model())
    receiver = Receiver()

    def on_step(step: Step) -> None:
        engine.abort("poisoned")

    with running(model, on_step, max_num_batched_tokens=8, num_gpu_blocks=2) as engine:
        engine.submit("poisoned", [POISON] * 24, greedy(5), receiver.emit_for("poisoned"))
        receiver.wait()
        assert receiver.results["poisoned"].reason == "abort"
        engine.submit("clean", [1, 2], greedy(20), receiver.emit_for("clean"))
        receiver.wait()
    assert receiver.results["clean"].tokens == generated(tiny_model(), [1, 2], 20)


def test_a_poisoned_request_leaves_what_it_shares_with_others_as_it_was() -> None:
    shared = list(range(20, 52))
    receiver = Receiver()
    results = receiver.results
    with running(like(NaNAfterPoison, tiny_model()), num_gpu_blocks=8) as engine:
        engine.submit("first", shared, greedy(30), receiver.emit_for("first"))
        receiver.wait(lambda: bool(results["first"].tokens))
        # It finds two blocks of the first, which goes on; the third is its own.
        engine.submit("poisoned", [*shared, POISON], greedy(5), receiver.emit_for("poisoned"))
        receiver.wait()
        engine.submit("later", [*shared, 1], greedy(9), receiver.emit_for("later"))
        receiver.wait()
        assert engine.stats().prefix_hits == 64
    assert results["poisoned"].reason == "error"
    assert results["first"].tokens == generated(tiny_model(), shared, 30)
    assert results["later"].tokens == generated(tiny_model(), [*shared, 1], 9)


def test_a_sampled_request_with_nan_logits_fails_alone_in_its_batch() -> None:
    nucleus = SamplingParams(5, top_p=0.5, seed=1)
    model = like(NaNAfterPoison, tiny_model())
    done = run(model, [([1, POISON], nucleus), ([1, 2], nucleus), ([1, 2], greedy(5))])
    assert [result.reason for result in done.results] == ["error", "length", "length"]


def test_out_of_memory_halves_the_step_is_counted_and_all_requests_finish() -> None:
    prompts = [[at] * 30 for at in range(10, 16)]
    expected = [generated(tiny_model(), prompt, 10) for prompt in prompts]
    model = like(Cramped, tiny_model())
    # 50 and 25 tokens do not fit into the room for 20, a quarter of the 50 does.
    requests = [(prompt, greedy(10)) for prompt in prompts]
    done = run(model, requests, max_num_batched_tokens=50, num_gpu_blocks=200)
    assert done.tokens == expected
    assert done.stats.out_of_memory == 2
    assert done.preemptions == 0
    assert max(step.prefill_tokens + step.decode_tokens for step in done.steps) == 12


def test_a_step_that_finds_no_memory_for_one_token_ends_its_request_and_the_engine_lives() -> None:
    with running(like(Cramped, tiny_model()), max_num_seqs=2, num_gpu_blocks=9) as engine:
        receiver = Receiver()
        engine._runner.model.room = 0
        for name in ("a", "b"):
            engine.submit(name, [1] * 30, greedy(5), receiver.emit_for(name))
        receiver.wait()
        for result in receiver.results.values():
            assert (result.reason, result.tokens) == ("error", [])
            assert "CUDA out of memory" in (result.error or "")
        engine._runner.model.room = 20
        engine.submit("c", [1] * 30, greedy(5), receiver.emit_for("c"))
        receiver.wait()
        assert receiver.results["c"].tokens == generated(tiny_model(), [1] * 30, 5)
        assert engine.failed is None


def test_a_model_without_memory_for_the_largest_step_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="a step of max_num_batched_tokens 512, by 32 of max_num_"):
        Engine(like(Cramped, tiny_model()), frozenset(), EngineConfig())


def test_a_receiver_that_breaks_loses_its_own_request_only() -> None:
    def broken(output: Output) -> None:
        raise ConnectionError("gone")

    with running() as engine:
        receiver = Receiver()
        engine.submit("broken", [1], LONG, broken)
        engine.submit("well", [1], greedy(5), receiver.emit_for("well"))
        receiver.wait()
        assert receiver.results["well"].reason == "length"
        assert engine.failed is None
        assert engine.stats().running == 0


def test_the_death_of_the_engine_thread_is_visible_to_requests_and_callers() -> None:
    def on_step(step: Step) -> None:
        raise KeyError("a bug of ours")

    with running(on_step=on_step) as engine:
        receiver = Receiver()
        engine.submit("a", [1], LONG, receiver.emit_for("a"))
        receiver.wait()
        assert receiver.results["a"].reason == "error"
        assert receiver.results["a"].error == "the engine failed: KeyError: 'a bug of ours'"
        assert isinstance(engine.failed, KeyError)
        with pytest.raises(EngineStopped, match="a bug of ours"):
            engine.submit("b", [1], LONG, print)


def test_a_stop_lets_requests_finish_within_its_drain_and_takes_no_more() -> None:
    engine = Engine(tiny_model(), frozenset(), EngineConfig(max_num_seqs=1))
    engine.start()
    receiver = Receiver()
    for name in ("runs", "waits"):
        engine.submit(name, [1], greedy(20), receiver.emit_for(name))
    engine.stop(drain=60.0)
    assert [result.reason for result in receiver.results.values()] == ["length", "length"]
    with pytest.raises(EngineStopped, match="stopping"):
        engine.submit("late", [1], greedy(1), print)


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_a_stop_aborts_what_is_left_after_its_drain(batching: Any) -> None:
    engine = Engine(tiny_model(), frozenset(), EngineConfig(max_num_seqs=1, batching=batching))
    engine.start()
    receiver = Receiver()
    for name in ("runs", "waits"):
        engine.submit(name, [1], LONG, receiver.emit_for(name))
    receiver.wait(lambda: bool(receiver.results["runs"].tokens))
    engine.stop(drain=0.0)
    assert [result.reason for result in receiver.results.values()] == ["abort", "abort"]
    assert engine.stats().blocks_used == 0
    assert engine.failed is None


def test_requests_come_from_many_threads_at_once() -> None:
    with running(max_num_seqs=4) as engine:
        receiver = Receiver()
        emits = {str(at): receiver.emit_for(str(at)) for at in range(64)}

        def submit(name: str) -> None:
            engine.submit(name, [1, 2, int(name)], greedy(4), emits[name])
            if int(name) % 4 == 0:
                engine.abort(name)

        threads = [threading.Thread(target=submit, args=(name,)) for name in emits]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        receiver.wait()
        assert engine.stats().blocks_used == 0
        for name, result in receiver.results.items():
            assert result.reason in (("abort", "length") if int(name) % 4 == 0 else ("length",))


def test_phases_are_in_order_and_the_first_token_waits_for_the_whole_prompt() -> None:
    steps: list[Step] = []
    with running(on_step=steps.append, max_num_batched_tokens=10) as engine:
        receiver = Receiver()
        engine.submit("a", [1] * 35, greedy(3), receiver.emit_for("a"))
        receiver.wait()
    phases = receiver.results["a"].phases
    assert phases is not None
    assert phases.scheduled is not None
    assert phases.first_token is not None
    assert phases.last_token is not None
    assert phases.arrived <= phases.scheduled <= steps[0].started
    assert steps[3].started < phases.first_token < phases.last_token
    assert [step.prefill_tokens for step in steps] == [10, 10, 10, 5, 0, 0]
    assert [step.decode_tokens for step in steps] == [0, 0, 0, 0, 1, 1]
