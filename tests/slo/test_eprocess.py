"""Evidence that may be looked at at any time."""

import math

import numpy as np
import pytest

from prony_slo.eprocess import certain, log_evidence


def first_certain(bad: np.ndarray, limit: float, alpha: float) -> int | None:
    places = np.flatnonzero(bad).tolist()
    looks = (at + 1 for k, at in enumerate(places, 1) if certain(k, at + 1, limit, alpha))
    return next(looks, None)


def test_looking_after_every_request_raises_few_false_breaches() -> None:
    rng = np.random.default_rng(1)
    false = sum(first_certain(rng.random(5000) < 0.01, 0.01, 0.01) is not None for _ in range(400))
    assert false <= 12  # 1 % of 400 is 4; 12 is the 99.9 % limit


@pytest.mark.parametrize(("share", "within"), [(0.02, 3000), (0.03, 1000), (0.05, 300)])
def test_a_plain_breach_is_found_soon(share: float, within: int) -> None:
    rng = np.random.default_rng(2)
    found = [first_certain(rng.random(5000) < share, 0.01, 0.01) for _ in range(100)]
    assert np.median([n or 5000 for n in found]) < within


def test_nothing_bad_is_no_evidence_and_large_counts_do_not_overflow() -> None:
    assert log_evidence(0, 100, 0.01) < 0
    assert 0 < log_evidence(1e6, 2e6, 0.01) < math.inf
    assert log_evidence(60, 60, 0.5) > 0
    assert log_evidence(3, 3, 0.995) > 0
