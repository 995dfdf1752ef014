"""What limits come to when the user names some, or none."""

from typing import Any

import pytest
import torch

from prony_server.limits import GIB, Batching, EngineConfig, Limits, resolve
from prony_server.memory import available_memory, peak_of
from prony_server.reserve import largest_batch

MIB = 2**20


def limits(config: EngineConfig | None = None, **facts: Any) -> Limits:
    known = {
        "context": 4096,
        "bytes_per_token": 1024,
        "free_memory": 8 * GIB,
        "total_memory": 10 * GIB,
        "on_gpu": False,
        "reserve": lambda *_: 0,
    }
    return resolve(config or EngineConfig(), **{**known, **facts})


def test_a_cpu_takes_no_more_cache_than_its_sequences_could_use() -> None:
    assert limits() == Limits(4096, 32, 512, 16, 32 * 256, 32 * 4096 * 1024, "continuous", True)


BIG = 131072  # bytes a token: what the sequences could use is more than there is


def test_a_cpus_cache_is_bounded_by_a_quarter_of_free_memory_and_by_4_gib() -> None:
    assert limits(bytes_per_token=BIG, free_memory=8 * GIB).kv_bytes == 2 * GIB
    assert limits(bytes_per_token=BIG, free_memory=64 * GIB).kv_bytes == 4 * GIB


def test_a_named_share_of_a_cpus_free_memory_has_no_other_bound() -> None:
    half = EngineConfig(gpu_memory_utilization=0.5)
    assert limits(half, bytes_per_token=BIG, free_memory=12 * GIB).kv_bytes == 6 * GIB


def test_of_a_gpu_the_weights_and_all_else_in_use_count_into_its_share() -> None:
    gpu: dict[str, Any] = {"bytes_per_token": BIG, "total_memory": 20 * GIB, "on_gpu": True}
    found = limits(free_memory=16 * GIB, **gpu)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (256, 2048)
    assert found.kv_bytes == (18 - 4) * GIB
    half = EngineConfig(gpu_memory_utilization=0.5)
    assert limits(half, free_memory=16 * GIB, **gpu).kv_bytes == (10 - 4) * GIB


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_the_largest_step_takes_is_held_back(on_gpu: bool) -> None:
    asked = []

    def reserve(*of: int) -> int:
        asked.append(of)
        return GIB

    facts: dict[str, Any] = {"bytes_per_token": BIG, "on_gpu": on_gpu}
    config = EngineConfig(max_num_seqs=40, max_num_batched_tokens=300)
    most = limits(config, **facts).kv_bytes
    # Less than a block is lost to rounding.
    lost = most - GIB - limits(config, **facts, reserve=reserve).kv_bytes
    assert 0 <= lost < 16 * BIG
    assert asked == [(40, 300, 4096)]


def test_a_step_is_measured_only_where_the_cache_is_sized_by_it() -> None:
    def reserve(*_: int) -> int:
        raise AssertionError("nobody needs to know")

    assert limits(EngineConfig(num_gpu_blocks=11), reserve=reserve).num_blocks == 11


def test_a_step_holds_a_token_of_each_sequence_at_least() -> None:
    assert limits(EngineConfig(max_num_seqs=700)).max_num_batched_tokens == 700


@pytest.mark.parametrize(("batching", "tokens"), [("none", 512), ("generate", 4096)])
def test_one_request_at_a_time_takes_the_cache_of_one(batching: Batching, tokens: int) -> None:
    found = limits(EngineConfig(batching=batching))
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (1, tokens)
    assert found.num_blocks == 256


def test_what_the_user_names_is_taken() -> None:
    config = EngineConfig(100, 3, 7, 5, 11, "static", False, 9)
    assert limits(config) == Limits(100, 3, 7, 5, 11, 55 * 1024, "static", False, 9)


@pytest.mark.parametrize(
    ("config", "facts", "message"),
    [
        (EngineConfig(max_model_len=5000), {}, "max_model_len 5000 is above .* context of 4096"),
        (EngineConfig(), {"context": None}, "names no context length; give max_model_len"),
        (EngineConfig(), {"free_memory": 10_000}, "no memory for the KV cache"),
        (
            EngineConfig(),
            {"reserve": lambda *_: 3 * GIB},
            "8.00 GiB are free, 2.00 GiB of them allowed, and the largest step takes 3.00 GiB",
        ),
        (
            EngineConfig(gpu_memory_utilization=0.1),
            {"on_gpu": True},  # of 10 GiB 2 are in use
            "no memory .* 0.00 GiB of them allowed, .* raise gpu_memory_utilization",
        ),
        (
            EngineConfig(num_gpu_blocks=99_999_999_999),
            {},
            r"num_gpu_blocks 99,999,999,999 need [\d,.]+ GiB, and 8.0 GiB are free",
        ),
        (
            EngineConfig(max_num_seqs=999_999_999_999),
            {},
            r"max_num_seqs 999,999,999,999 need [\d,.]+ GiB .*, and 8.0 GiB are free",
        ),
    ],
)
def test_limits_that_cannot_hold_are_refused(
    config: EngineConfig, facts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        limits(config, **facts)


@pytest.mark.parametrize(
    "name",
    ["max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks"],
)
def test_a_limit_of_0_is_refused_by_name(name: str) -> None:
    wrong: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        EngineConfig(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_queue": -1}, "max_queue must be 0 or more, got -1"),
        ({"gpu_memory_utilization": 0.0}, "must be above 0 and at most 1, got 0.0"),
        ({"gpu_memory_utilization": 1.5}, "must be above 0 and at most 1, got 1.5"),
        ({"gpu_memory_utilization": float("nan")}, "must be above 0 and at most 1, got nan"),
        ({"batching": "dynamic"}, "one of continuous, static, none, generate, got 'dynamic'"),
        ({"batching": "none", "max_num_seqs": 8}, "max_num_seqs must be 1 or absent .* got 8"),
        (
            {"batching": "generate", "max_num_batched_tokens": 64},
            "max_num_batched_tokens must be absent .* got 64",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**wrong)


def test_this_machine_has_some_memory() -> None:
    assert available_memory() > 2**26


@pytest.mark.parametrize(
    ("of", "lengths"),
    [
        ((4, 10, 100), [7, 1, 1, 1]),
        ((4, 3, 100), [1, 1, 1]),
        ((2, 50, 20), [20, 20]),
        ((1, 512, 4096), [512]),
    ],
)
def test_the_largest_batch_has_all_tokens_all_sequences_and_the_longest_prompt(
    of: tuple[int, int, int], lengths: list[int]
) -> None:
    assert largest_batch(*of) == lengths


def test_the_peak_of_a_call_is_what_it_had_at_most_and_not_what_it_leaves() -> None:
    def takes_64_mib_twice_in_turn() -> None:
        for _ in range(2):
            torch.ones(2**24)

    # Between the two, memory is given back: no second 64 MiB is needed.
    assert 60 * MIB < peak_of(takes_64_mib_twice_in_turn, torch.device("cpu")) < 120 * MIB
