"""Blocks that sequences share: who finds what, who keeps what, and what goes when room is short."""

import pytest
from tests.server.scheduler_runs import compute, numbers, scheduler, sequence

from prony_server.scheduler import Scheduler
from prony_server.sequence import Sequence


def caching(blocks: int = 100, seqs: int = 8, budget: int = 50) -> Scheduler:
    return scheduler(blocks, 4, seqs, budget, prefix_caching=True)


def of(tokens: list[int], number: int = 0, output: int = 1) -> Sequence:
    made = sequence(number, len(tokens), output)
    made.tokens[:] = tokens
    return made


def finish(work: Scheduler, *sequences: Sequence) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Runs these to their ends; the numbers of each step's batch."""
    for each in sequences:
        work.add(each)
    steps = []
    while work.waiting or work.running:
        batch = work.schedule(0.0)
        steps.append(numbers(batch))
        compute(work, batch)
    return steps


TEN = list(range(10))


def test_a_prompt_seen_before_is_found_but_for_its_last_block() -> None:
    work = caching()
    assert finish(work, of(TEN, 0)) == [([], [(0, 10)])]
    again = of(TEN, 1)
    assert finish(work, again) == [([], [(1, 2)])]
    assert again.phases.cached_tokens == 8
    assert work.pool.num_cached == 2
    work.pool.check_all_free()


def test_of_a_prompt_that_is_cached_whole_the_last_block_is_computed_again() -> None:
    work = caching()
    finish(work, of(TEN[:8], 0))
    assert finish(work, of(TEN[:8], 1)) == [([], [(1, 4)])]


def test_with_blocks_of_one_token_only_the_last_is_computed() -> None:
    work = scheduler(block_size=1, prefix_caching=True)
    finish(work, of(TEN, 0))
    assert finish(work, of(TEN, 1)) == [([1], [])]


def test_a_block_counts_only_after_all_that_went_before_it() -> None:
    work = caching()
    finish(work, of([1, 2, 3, 4, 5, 6, 7, 8, 9], 0))
    other = of([0, 2, 3, 4, 5, 6, 7, 8, 9], 1)
    part = of([1, 2, 3, 4, 0, 6, 7, 8, 9], 2)
    finish(work, other)
    finish(work, part)
    assert (other.phases.cached_tokens, part.phases.cached_tokens) == (0, 4)


def test_an_answer_is_found_by_the_prompt_that_goes_on_from_it() -> None:
    work = caching()
    first = of([1, 2, 3], 0, output=10)
    finish(work, first)
    # Of 13 tokens the last was never computed: three blocks of four were.
    goes_on = of([*first.tokens, 7, 7], 1)
    finish(work, goes_on)
    assert goes_on.phases.cached_tokens == 12


def test_without_the_cache_nothing_is_found_or_kept() -> None:
    work = scheduler()
    finish(work, of(TEN, 0))
    again = of(TEN, 1)
    assert finish(work, again) == [([], [(1, 10)])]
    assert (again.phases.cached_tokens, work.pool.num_cached) == (0, 0)


def test_running_sequences_share_blocks_and_the_last_to_leave_lets_them_go() -> None:
    work = caching()
    old = of(TEN, 0, output=9)
    work.add(old)
    compute(work, work.schedule(0.0))
    young = of(TEN, 1, output=3)
    work.add(young)
    compute(work, work.schedule(0.0))
    assert young.blocks[:2] == old.blocks[:2]
    assert young.blocks[2] != old.blocks[2]
    assert work.pool.num_free == 100 - 4
    work.remove(old)
    assert (work.pool.num_free, work.pool.num_cached) == (100 - 3, 0)
    work.remove(young)
    assert (work.pool.num_free, work.pool.num_cached) == (100, 2)


def test_equal_prompts_that_come_at_once_are_computed_once() -> None:
    work = caching(budget=50)
    together = [of(list(range(200)), number) for number in range(4)]
    steps = finish(work, *together)
    # The first fills its steps alone; then the others find all but their last block.
    assert steps[:4] == [([], [(0, 50)])] * 4
    assert steps[4] == ([], [(1, 4), (2, 4), (3, 4)])
    assert [each.phases.cached_tokens for each in together] == [0, 196, 196, 196]


def test_room_is_taken_from_what_was_not_used_for_longest_the_end_of_a_prompt_first() -> None:
    work = caching(blocks=6)
    finish(work, of(TEN[:9], 0))  # keeps 2 of its 3 blocks
    finish(work, of([9] * 9, 1))
    assert work.pool.num_cached == 4
    finish(work, of(TEN[:9], 2))  # used again: now those of the nines are the oldest
    finish(work, of([7] * 9, 3))  # the free two, and the end of the nines
    assert finish(work, of([9] * 9, 4)) == [([], [(4, 5)])]
    # That took a free block and, as the longest unused one, the end of the first prompt.
    assert finish(work, of(TEN[:9], 5)) == [([], [(5, 5)])]


def test_what_a_newcomer_finds_is_not_taken_from_under_it() -> None:
    work = caching(blocks=6)
    finish(work, of(TEN[:9], 0))
    finish(work, of([9] * 9, 1))
    # It needs 5 blocks: the two it finds, which are the oldest, the free ones and one more.
    found = of([*TEN[:9], *range(20, 28)], 2)
    finish(work, found)
    assert found.phases.cached_tokens == 8
    work.pool.check_all_free()


def test_one_that_does_not_fit_takes_nothing() -> None:
    work = caching(blocks=6)
    finish(work, of(TEN, 0))
    work.add(of([9] * 8, 1, output=9))
    compute(work, work.schedule(0.0))
    work.add(of([*TEN, *range(20, 30)], 2))
    work.schedule(0.0)
    assert len(work.waiting) == 1
    assert (work.pool.num_free, work.pool.num_cached) == (3, 2)


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    work = caching(blocks=6)
    old, young = of([1] * 8, 0, output=8), of([2] * 8, 1, output=8)
    work.add(old)
    work.add(young)
    for _ in range(5):
        compute(work, work.schedule(0.0))
    assert (len(old.blocks), len(young.blocks), len(young.tokens)) == (3, 3, 13)
    batch = work.schedule(0.0)
    assert numbers(batch) == ([0], [])  # the old one's fourth block was the young one's third
    assert (young.phases.preemptions, young.computed, young.row) == (1, 0, -1)
    compute(work, batch)
    work.remove(old)
    # Two blocks of its prompt were there still; what it had generated is computed anew.
    assert numbers(work.schedule(0.0)) == ([], [(1, 5)])
    assert young.phases.cached_tokens == 0  # nobody else had computed any for it


def test_a_prompt_that_was_not_finished_leaves_nothing_and_its_blocks_are_suspect() -> None:
    # No token has been chosen after it, so nobody knows whether it holds NaN.
    work = caching(budget=8)
    work.add(of(list(range(20)), 0))
    compute(work, work.schedule(0.0))
    held = list(work.running[0].blocks)
    work.remove(work.running[0])
    assert (work.pool.num_cached, sorted(work.pool.suspects)) == (0, sorted(held))


def test_what_a_failed_step_may_have_written_is_suspect_but_not_what_others_had_computed() -> None:
    work = caching()
    finish(work, of(TEN, 0))
    again = of(TEN, 1)
    work.add(again)
    work.schedule(0.0)
    shared, own = again.blocks[:2], again.blocks[2:]
    again.sound = -1  # as the engine has it where the model raised
    work.remove(again)
    assert work.pool.suspects == own
    assert work.pool.num_cached == len(shared)


def test_a_finished_sequence_leaves_no_suspects() -> None:
    work = caching(blocks=8)
    finish(work, of(TEN, 0, output=6), of([5] * 9, 1, output=20))
    assert work.pool.suspects == []


def test_a_block_in_use_at_the_end_is_noticed_beside_those_that_the_cache_holds() -> None:
    work = caching()
    finish(work, of(TEN, 0))
    work.add(of(TEN, 1))
    work.schedule(0.0)
    with pytest.raises(RuntimeError, match="97 of 100 are free"):
        work.pool.check_all_free()
