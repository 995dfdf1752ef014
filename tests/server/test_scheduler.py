"""The scheduler and its blocks without a model: computing a batch is moving `computed` on."""

import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prony_server.blocks import BlockPool
from prony_server.scheduler import Batch, Scheduler, is_last
from prony_server.sequence import Phases, SamplingParams, Sequence

CONTEXT = 1000


def scheduler(
    blocks: int = 100, block_size: int = 4, seqs: int = 8, budget: int = 50, **others: Any
) -> Scheduler:
    return Scheduler(BlockPool(blocks, block_size, seqs, CONTEXT), seqs, budget, **others)


def sequence(number: int, prompt: int, output: int = 10, arrived: float = 0.0) -> Sequence:
    return Sequence(
        str(number),
        number,
        [0] * prompt,
        prompt,
        SamplingParams(output),
        print,
        random.Random(0),
        Phases(arrived),
    )


def compute(scheduler: Scheduler, batch: Batch) -> list[Sequence]:
    """Moves all on as the engine does, each at its end by a token; returns who finished."""
    sampled = [*batch.singles, *(s for s, length in batch.chunks if is_last(s, length))]
    for each in batch.singles:
        each.computed += 1
    for each, length in batch.chunks:
        each.computed += length
    finished = []
    for each in sampled:
        each.tokens.append(0)
        if len(each.tokens) - each.prompt_length == each.params.max_tokens:
            scheduler.remove(each)
            finished.append(each)
    return finished


def numbers(batch: Batch) -> tuple[list[int], list[tuple[int, int]]]:
    return [s.number for s in batch.singles], [(s.number, n) for s, n in batch.chunks]


def test_prompts_are_cut_to_the_budget_and_decodes_go_before_them() -> None:
    work = scheduler(budget=10)
    work.add(sequence(0, prompt=8))
    work.add(sequence(1, prompt=13))
    seen = []
    for _ in range(4):
        batch = work.schedule(0.0)
        seen.append(numbers(batch))
        compute(work, batch)
    assert seen == [
        ([], [(0, 8), (1, 2)]),
        ([0], [(1, 9)]),
        ([0], [(1, 2)]),
        ([0, 1], []),
    ]


def test_a_chunk_of_one_token_inside_a_prompt_is_no_decode() -> None:
    work = scheduler(budget=4)
    work.add(sequence(0, prompt=3))
    work.add(sequence(1, prompt=5))
    batch = work.schedule(0.0)
    assert numbers(batch) == ([], [(0, 3), (1, 1)])
    compute(work, batch)
    young = work.running[1]
    assert (young.computed, len(young.tokens)) == (1, 5)  # nothing was sampled for it


def test_one_left_over_token_of_a_prompt_is_computed_among_the_decodes() -> None:
    work = scheduler(budget=4)
    work.add(sequence(0, prompt=5))
    compute(work, work.schedule(0.0))
    assert numbers(work.schedule(0.0)) == ([0], [])


def test_the_youngest_is_preempted_and_comes_back_first_with_all_its_tokens() -> None:
    work = scheduler(blocks=4, block_size=4, budget=50)
    for number in range(3):
        work.add(sequence(number, prompt=4))
    compute(work, work.schedule(0.0))
    assert [s.number for s in work.running] == [0, 1]  # a free block for each, none for a third
    for _ in range(4):
        compute(work, work.schedule(0.0))
    old, young = work.running
    assert (len(old.blocks), len(young.blocks), work.pool.num_free) == (2, 2, 0)
    work.schedule(0.0)
    assert work.running == [old]
    assert [s.number for s in work.waiting] == [1, 2]
    assert (young.computed, young.blocks, young.phases.preemptions) == (0, [], 1)
    assert len(young.tokens) == 9


def test_a_long_prompt_at_the_head_is_not_overtaken_for_ever() -> None:
    work = scheduler(blocks=10, block_size=4, budget=50)
    work.add(sequence(0, prompt=4, output=3))
    work.add(sequence(1, prompt=39, output=2))
    work.add(sequence(2, prompt=4, output=3))
    entered = []
    for _ in range(12):
        batch = work.schedule(0.0)
        entered += [n for n, _ in numbers(batch)[1]]
        compute(work, batch)
    assert entered == [0, 1, 2]


def test_a_static_batch_waits_to_be_full_or_for_its_oldest_to_have_waited() -> None:
    work = scheduler(seqs=3, batching="static", static_wait=0.5)
    work.add(sequence(0, prompt=4, arrived=10.0))
    assert not work.schedule(10.1)
    assert work.wake_at(10.1) == 10.5
    assert numbers(work.schedule(10.5)) == ([], [(0, 4)])

    full = scheduler(seqs=2, batching="static", static_wait=0.5)
    for number in range(3):
        full.add(sequence(number, prompt=4, arrived=10.0))
    assert numbers(full.schedule(10.0)) == ([], [(0, 4), (1, 4)])


def test_a_static_batch_starts_whole_beyond_one_budget_and_admits_none_until_its_end() -> None:
    work = scheduler(seqs=2, budget=5, batching="static")
    for number, output in enumerate((2, 6, 2)):
        work.add(sequence(number, prompt=5, output=output))
    seen: list[Any] = []
    while not seen or work.running:
        batch = work.schedule(1.0)
        seen.append(numbers(batch))
        compute(work, batch)
    assert seen[:3] == [([], [(0, 5)]), ([0], [(1, 4)]), ([1], [])]
    assert [s.number for s in work.waiting] == [2]
    assert numbers(work.schedule(1.0)) == ([], [(2, 5)])


def test_the_preempted_rejoin_their_static_batch_and_nobody_else_does() -> None:
    work = scheduler(blocks=10, block_size=4, seqs=4, batching="static")
    for number, (prompt, output) in enumerate(((12, 8), (4, 9), (4, 9))):
        work.add(sequence(number, prompt, output))
    seen: list[list[int]] = []
    while not seen or work.running:
        batch = work.schedule(1.0)
        seen.append([s.number for s in batch.sequences])
        compute(work, batch)
        if len(seen) == 1:
            work.add(sequence(3, prompt=4, output=1))
    # When 0 and 1 need another block, 2 gives up its own. It comes back when 0 has ended; there is
    # room for 3 then, too.
    assert [seen[0], seen[5], seen[8], seen[-1]] == [[0, 1, 2], [0, 1], [1, 2], [2]]
    assert [s.number for s in work.waiting] == [3]


def test_a_lowered_budget_still_serves_the_oldest_decodes() -> None:
    work = scheduler()
    for number in range(4):
        work.add(sequence(number, prompt=2))
    compute(work, work.schedule(0.0))
    work.budget = 3
    assert numbers(work.schedule(0.0)) == ([0, 1, 2], [])


def test_a_leak_is_noticed() -> None:
    work = scheduler()
    work.pool.check_all_free()
    work.add(sequence(0, prompt=4))
    work.schedule(0.0)
    with pytest.raises(RuntimeError, match="99 of 100 are free"):
        work.pool.check_all_free()


def test_scheduler_and_blocks_need_neither_torch_nor_a_metric() -> None:
    code = "import sys, prony_server.scheduler; print(sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    for name in ("torch", "numpy", "prometheus_client", "transformers"):
        assert f"'{name}'" not in loaded.stdout


@st.composite
def loads(draw: st.DrawFn) -> dict[str, Any]:
    block_size = draw(st.integers(1, 5))
    blocks = draw(st.integers(1, 24))
    room = blocks * block_size + 1  # the last token needs no room
    requests = []
    for _ in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, max(1, room - 1)))
        requests.append((prompt, draw(st.integers(1, max(1, room - prompt)))))
    return {
        "blocks": blocks,
        "block_size": block_size,
        "seqs": draw(st.integers(1, 6)),
        "budget": draw(st.integers(1, 20)),
        "batching": draw(st.sampled_from(["continuous", "static"])),
        "requests": requests,
        "aborts": draw(st.sets(st.integers(0, 11), max_size=3)),
        "arrivals": draw(st.lists(st.integers(0, 30), min_size=12, max_size=12)),
    }


@settings(max_examples=400, deadline=None)
@given(loads())
def test_no_block_has_two_owners_and_every_request_finishes(load: dict[str, Any]) -> None:
    requests = load.pop("requests")
    aborts = load.pop("aborts")
    arrivals = sorted(load.pop("arrivals")[: len(requests)])
    work = scheduler(**load, static_wait=3.0)
    pool = work.pool
    left = {
        number: sequence(number, prompt, output, arrived=arrivals[number])
        for number, (prompt, output) in enumerate(requests)
    }
    coming = list(left.values())
    # Alone and in order, a request takes a step a token at most; preempted ones repeat theirs.
    most = 50 + 4 * sum(prompt + output for prompt, output in requests) * (len(requests) + 1)
    for now in range(most):
        while coming and coming[0].phases.arrived <= now:
            work.add(coming.pop(0))
        batch_runs = bool(work.running)
        batch = work.schedule(float(now))

        entered = [each for each in work.running if each.phases.scheduled == now]
        assert not (entered and batch_runs and work.batching == "static")
        assert batch.tokens <= work.budget
        assert len(work.running) <= work.max_num_seqs
        owned = [block for each in work.running for block in each.blocks]
        assert len(owned) == len(set(owned))
        assert len(owned) + pool.num_free == pool.num_blocks
        assert len({each.row for each in work.running}) == len(work.running)
        order = [each.number for each in (*work.running, *work.waiting)]
        assert order == sorted(order)
        assert len(batch.sequences) == len(set(batch.sequences))
        for each in batch.sequences:
            assert each in work.running
            at = each.row * pool.width
            assert list(pool.tables[at : at + len(each.blocks)]) == each.blocks
        for each, length in [*batch.chunks, *((s, 1) for s in batch.singles)]:
            assert each.computed + length <= min(
                len(each.tokens), len(each.blocks) * pool.block_size
            )
        if work.running:
            assert batch, "something runs, and nothing moves"
            # Only decodes go before the oldest, and they end.
            assert work.running[0] in batch.sequences or len(batch.singles) == work.budget

        for each in compute(work, batch):
            del left[each.number]
        if now in aborts and now in left and left[now] not in coming:
            work.remove(left.pop(now))
        if not left:
            break
    assert not left
    pool.check_all_free()
