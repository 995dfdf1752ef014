"""What limits come to when the user names some, or none."""

from typing import Any

import pytest

from prony_server.limits import GIB, EngineConfig, Limits, available_memory, resolve


def limits(config: EngineConfig | None = None, **facts: Any) -> Limits:
    known = {"context": 4096, "bytes_per_token": 1024, "free_memory": 8 * GIB, "on_gpu": False}
    return resolve(config or EngineConfig(), **{**known, **facts})


def test_a_cpu_takes_no_more_cache_than_its_sequences_could_use() -> None:
    assert limits() == Limits(4096, 32, 512, 16, 32 * 256, 32 * 4096 * 1024, "continuous")


def test_a_cpus_cache_is_bounded_by_a_quarter_of_free_memory_and_by_4_gib() -> None:
    assert limits(bytes_per_token=65536, free_memory=8 * GIB).kv_bytes == 2 * GIB
    assert limits(bytes_per_token=65536, free_memory=64 * GIB).kv_bytes == 4 * GIB


def test_a_gpu_gets_larger_batches_and_most_of_its_memory() -> None:
    found = limits(bytes_per_token=131072, free_memory=20 * GIB, on_gpu=True)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (256, 2048)
    assert found.kv_bytes == pytest.approx(17 * GIB, rel=0.001)


def test_what_the_user_names_is_taken() -> None:
    config = EngineConfig(100, 3, 7, 5, 11, "static")
    assert limits(config) == Limits(100, 3, 7, 5, 11, 55 * 1024, "static")


@pytest.mark.parametrize(
    ("config", "facts", "message"),
    [
        (EngineConfig(max_model_len=5000), {}, "max_model_len 5000 is above .* context of 4096"),
        (EngineConfig(), {"context": None}, "names no context length; give max_model_len"),
        (EngineConfig(), {"free_memory": 1000}, "no memory for the KV cache"),
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


def test_this_machine_has_some_memory() -> None:
    assert available_memory() > 2**26
