"""Who is computed when, which blocks they hold, and that everybody's turn comes."""

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.scheduler_runs import compute, numbers, scheduler, sequence

from prony_server.blocks import BlockPool
from prony_server.scheduler import Scheduler
from prony_server.sequence import Sequence


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


def test_v13_a_long_prompt_at_the_head_is_not_overtaken_for_ever() -> None:
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


def first_tokens(work: Scheduler, coming: dict[int, list[Sequence]], steps: int) -> dict[int, int]:
    """The step of each sequence's first token, while others come at the steps given."""
    at: dict[int, int] = {}
    for step in range(steps):
        for each in coming.get(step, ()):
            work.add(each)
        batch = work.schedule(float(step))
        waited = [each for each in batch.sequences if each.number not in at]
        compute(work, batch)
        at |= {each.number: step for each in waited if len(each.tokens) > each.prompt_length}
    return at


def test_v13_20_short_prompts_behind_a_long_one_do_not_wait_for_it() -> None:
    work = scheduler(blocks=5000, seqs=32, budget=64)
    short = [sequence(number, prompt=10, output=2) for number in range(1, 21)]
    began = first_tokens(work, {0: [sequence(0, prompt=980, output=2), *short]}, steps=40)
    # Half of 64 tokens a step is theirs, less what those decode that have begun: 200 take 7 steps.
    assert max(began[each.number] for each in short) <= 7
    # All 1,180 tokens of prompts, and the decodes, in steps of 64.
    assert began[0] == 18


def test_v13_a_long_prompt_among_ever_new_short_ones_gets_half_of_each_step() -> None:
    work = scheduler(blocks=5000, seqs=32, budget=64)
    # More comes at each step than it can hold.
    coming = {
        step: [sequence(100 * step + n, prompt=16, output=2) for n in range(1, 6)]
        for step in range(100)
    }
    coming[3].insert(0, sequence(300, prompt=900, output=2))
    began = first_tokens(work, coming, steps=60)
    # Those before it, then 900 tokens by half of what the decodes leave of each 64.
    assert began[300] <= 3 + 4 + math.ceil(900 / ((64 - 8) / 2))


def test_of_long_prompts_the_older_is_done_first_and_a_third_one_waits_for_both() -> None:
    work = scheduler(blocks=5000, seqs=8, budget=50)
    began = first_tokens(work, {0: [sequence(n, prompt=500, output=2) for n in range(3)]}, steps=40)
    # No later than if they were computed one by one, but for the decodes between.
    assert [began[n] for n in range(3)] == [9, 20, 30]


def test_v13_every_decode_is_in_every_step_while_8000_tokens_of_a_prompt_are_computed() -> None:
    pool = BlockPool(3000, 4, 16, 9000)
    work = Scheduler(pool, 16, max_num_batched_tokens=512)
    for number in range(8):
        work.add(sequence(number, prompt=20, output=100))
    compute(work, work.schedule(0.0))
    work.add(sequence(8, prompt=8000))
    chunks: list[int] = []
    while not chunks or len(work.running[-1].tokens) == 8000:
        batch = work.schedule(1.0)
        assert [each.number for each in batch.singles] == list(range(8))
        chunks += [length for _, length in batch.chunks]
        compute(work, batch)
    # So no stream ever waits for more than one step, of one chunk.
    assert chunks == [504] * 15 + [440]


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
        requests.append((prompt, draw(st.integers(1, max(1, room - prompt))), draw(st.booleans())))
    return {
        "blocks": blocks,
        "block_size": block_size,
        "seqs": draw(st.integers(1, 6)),
        "budget": draw(st.integers(1, 20)),
        "batching": draw(st.sampled_from(["continuous", "static"])),
        "prefix_caching": draw(st.booleans()),
        "requests": requests,
        "aborts": draw(st.sets(st.integers(0, 11), max_size=3)),
        "arrivals": draw(st.lists(st.integers(0, 30), min_size=12, max_size=12)),
    }


@settings(max_examples=400, deadline=None)
@given(loads())
def test_no_block_has_two_writers_and_every_request_finishes(load: dict[str, Any]) -> None:
    requests = load.pop("requests")
    aborts = load.pop("aborts")
    arrivals = sorted(load.pop("arrivals")[: len(requests)])
    work = scheduler(**load, static_wait=3.0)
    pool = work.pool
    left = {
        number: sequence(number, prompt, output, arrived=arrivals[number], token=int(kind))
        for number, (prompt, output, kind) in enumerate(requests)
    }
    coming = list(left.values())
    # Alone and in order, a request takes a step a token at most; preempted ones repeat theirs.
    most = 50 + 4 * sum(prompt + output for prompt, output, _ in requests) * (len(requests) + 1)
    for now in range(most):
        while coming and coming[0].phases.arrived <= now:
            work.add(coming.pop(0))
        before = list(work.running)
        batch = work.schedule(float(now))

        joined = [each for each in work.running if each not in before]
        assert not before or not work.static or all(each.phases.preemptions for each in joined)
        assert batch.tokens <= work.budget
        assert len(work.running) <= work.max_num_seqs
        check_blocks(work)
        assert len({each.row for each in work.running}) == len(work.running)
        order = [each.number for each in (*work.running, *work.waiting)]
        assert order == sorted(order)
        assert len(batch.sequences) == len(set(batch.sequences))
        for each in batch.sequences:
            assert each in work.running
            at = each.row * pool.width
            row = list(pool.tables[at : at + pool.width])
            assert row[: len(each.blocks)] == each.blocks
            assert set(row) <= set(each.blocks), "padding would read the blocks of others"
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


def check_blocks(work: Scheduler) -> None:
    """Shared blocks are full and of equal tokens; what is not in use can be had."""
    pool = work.pool
    users: dict[int, list[tuple[Sequence, int]]] = {}
    for each in work.running:
        for at, block in enumerate(each.blocks):
            users.setdefault(block, []).append((each, at))
    for block, together in users.items():
        contents = set()
        for each, at in together:
            end = (at + 1) * pool.block_size
            assert len(together) == 1 or end <= each.computed, f"block {block} is written by two"
            contents.add((at, tuple(each.tokens[:end])))
        assert len(contents) == 1
    assert len(users) + pool.num_free == pool.num_blocks
