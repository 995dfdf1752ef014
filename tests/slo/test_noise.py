"""The noise profile: learned from gates, forgotten slowly, never trusted blindly."""

import json

import numpy as np
import pytest

from prony_slo.noise import Noise, NoiseProfile
from prony_slo.pairs import Change

EMPTY = NoiseProfile({"model": "tiny"}, {})


def gate(*values: float | None, requests: int = 1000) -> dict[str, list[Change]]:
    return {"ttft p50": [Change(value, requests) for value in values]}


def test_a_gate_of_five_pairs_gives_four_degrees_of_freedom_whatever_its_shift() -> None:
    noise = EMPTY.learned(gate(0.11, 0.09, 0.10, 0.12, 0.08)).checks["ttft p50"]
    assert noise.s2 == pytest.approx(0.00025)
    assert noise.df == 4


def test_five_gates_give_twenty_and_many_no_more_than_thirty() -> None:
    rng = np.random.default_rng(1)
    profile = EMPTY
    for gates in range(1, 200):
        profile = profile.learned(gate(*rng.normal(0, 0.02, 5)))
        assert profile.checks["ttft p50"].df == min(4 * gates, 30)
    assert profile.checks["ttft p50"].sd == pytest.approx(0.02, rel=0.4)


def test_old_gates_are_forgotten() -> None:
    profile = EMPTY
    for _ in range(10):
        profile = profile.learned(gate(-0.1, 0.0, 0.1))
    for _ in range(120):
        profile = profile.learned(gate(-0.01, 0.0, 0.01))
    assert profile.checks["ttft p50"].sd == pytest.approx(0.01, rel=0.1)


def test_pairs_that_could_not_be_compared_teach_nothing() -> None:
    assert EMPTY.learned(gate(None, 0.1)).checks == {}
    assert EMPTY.learned(gate(None, 0.1, 0.3)).checks["ttft p50"].df == 1


def test_shorter_runs_scatter_more_than_the_profile_knows() -> None:
    profile = NoiseProfile({}, {"ttft p50": Noise(0.0004, 20, 1000)})
    assert profile.get("ttft p50", 1000) is not None
    assert profile.get("ttft p50", 5000) is not None
    assert profile.get("ttft p50", 500) is None
    assert profile.get("ttft p99", 1000) is None
    assert profile.learned(gate(0.0, 0.1, 0.2, requests=200)).checks["ttft p50"].df == 2


def test_a_profile_survives_its_file() -> None:
    profile = EMPTY.learned(gate(0.1, 0.2, 0.4))
    assert NoiseProfile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


@pytest.mark.parametrize(
    "facts",
    [
        None,
        {},
        [],
        {"schema": 2, "fingerprint": {}, "checks": {}},
        {"schema": 1, "fingerprint": {}, "checks": {"ttft p50": {"s2": 1}}},
        {"schema": 1, "fingerprint": {}, "checks": {"a": {"s2": "nan", "df": 3, "requests": 9}}},
        {"schema": 1, "fingerprint": {}, "checks": {"a": {"s2": 1, "df": 0, "requests": 9}}},
    ],
)
def test_what_is_no_profile_is_refused(facts: object) -> None:
    with pytest.raises(ValueError, match="profile"):
        NoiseProfile.from_json(facts)
