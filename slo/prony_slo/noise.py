"""The noise profile: how much the change of an unchanged build scatters on this machine.

Changes of pairs go in and variances with their degrees of freedom come out. It is kept between
gates, because three pairs alone say little about their own variance: borrowing it makes a gate of
five pairs see 1.9 standard deviations instead of 2.8.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prony_slo.pairs import Change

SCHEMA = 1
MOST_DF = 30  # older gates are forgotten exponentially beyond so many degrees of freedom
FEWEST_DF = 2  # less than this is not yet a profile
SAME_SIZE = 0.8  # a run of fewer than this share of the profile's requests scatters more


@dataclass(frozen=True, slots=True)
class Noise:
    """The variance of one pair's change, and what it rests on."""

    s2: float
    df: float
    requests: int  # a run had, while it was measured

    @property
    def sd(self) -> float:
        return math.sqrt(self.s2)


@dataclass(frozen=True, slots=True)
class NoiseProfile:
    """The noise of each check, on the machine, server and workload of the fingerprint."""

    fingerprint: Mapping[str, str]
    checks: Mapping[str, Noise]  # by the id of the check

    def get(self, check: str, requests: int) -> Noise | None:
        """The noise of a check in runs of so many requests; None where the profile cannot say."""
        noise = self.checks.get(check)
        if noise is None or noise.df < FEWEST_DF or requests < SAME_SIZE * noise.requests:
            return None
        return noise

    def learned(self, changes: Mapping[str, Sequence[Change]]) -> "NoiseProfile":
        """The profile with the pairs of one more gate in it.

        A build that became slower moves the mean of its pairs and not their variance, so every
        gate teaches, whatever its verdict.
        """
        checks = dict(self.checks)
        for check, pairs in changes.items():
            values = [change.value for change in pairs if change.value is not None]
            if len(values) < 2:
                continue
            requests = min(change.requests for change in pairs if change.value is not None)
            today = Noise(float(np.var(values, ddof=1)), len(values) - 1, requests)
            checks[check] = _pooled(checks.get(check), today)
        return replace(self, checks=checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "fingerprint": dict(self.fingerprint),
            "checks": {
                check: {"s2": noise.s2, "df": noise.df, "requests": noise.requests}
                for check, noise in self.checks.items()
            },
        }

    @classmethod
    def from_json(cls, facts: Any) -> "NoiseProfile":
        """The profile that to_json wrote. Raises ValueError where it is none."""
        try:
            if facts["schema"] != SCHEMA:
                raise ValueError(f"schema {facts['schema']!r} of a noise profile is not {SCHEMA}")
            fingerprint = {str(k): str(v) for k, v in facts["fingerprint"].items()}
            checks = {
                str(check): Noise(float(n["s2"]), float(n["df"]), int(n["requests"]))
                for check, n in facts["checks"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a noise profile: {error!r}") from None
        for check, noise in checks.items():
            if not (0 <= noise.s2 < math.inf and 0 < noise.df < math.inf and noise.requests > 0):
                raise ValueError(f"not a noise profile: the numbers of {check!r} are {noise}")
        return cls(fingerprint, checks)


def _pooled(old: Noise | None, new: Noise) -> Noise:
    if old is None:
        return new
    if not SAME_SIZE <= new.requests / old.requests <= 1 / SAME_SIZE:
        # Runs of another size have another variance; the size in use now is the one that counts.
        return new
    kept = max(0.0, min(old.df, MOST_DF - new.df))
    df = kept + new.df
    return Noise(
        (kept * old.s2 + new.df * new.s2) / df, df, round((old.requests + new.requests) / 2)
    )
