"""How long users think between an answer and their next request: YAML in, seconds out."""

import math
import random
from typing import Any, Literal

from pydantic import Field, model_validator

from prony_loadgen.distribution import check_keys
from prony_loadgen.strict_yaml import Duration, Number, StrictModel

_TIME = r"\d*\.?\d+ ?(us|ms|s|m|min|h)"
THINK_PATTERN = rf"^{_TIME}(\.\.{_TIME})?$"
_NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": ("value",),
    "uniform": ("min", "max"),
    "exponential": ("mean",),
    "lognormal": ("median", "sigma"),
}


class ThinkTime(StrictModel):
    """A distribution of seconds. `500ms` is short for fixed, `1s..5s` for uniform."""

    distribution: Literal["fixed", "uniform", "exponential", "lognormal"] = "fixed"
    value: Duration | None = None
    mean: Duration | None = Field(default=None, gt=0)
    median: Duration | None = Field(default=None, gt=0)
    sigma: Number | None = Field(default=None, ge=0, le=5)
    min: Duration | None = None
    max: Duration | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        if isinstance(value, str) and ".." in value:
            low, _, high = value.partition("..")
            return {"distribution": "uniform", "min": low, "max": high}
        return {"distribution": "fixed", "value": value}

    @model_validator(mode="after")
    def _complete(self) -> "ThinkTime":
        needs = _NEEDS[self.distribution]
        check_keys(self, self.distribution, needs)
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min is above max: {self.min:g}s > {self.max:g}s")
        return self

    def sample(self, rng: random.Random) -> float:
        """Seconds of 0 or more, within min and max: draws outside are moved to the bound."""
        if self.distribution == "uniform":
            assert self.min is not None and self.max is not None
            return rng.uniform(self.min, self.max)
        if self.distribution == "exponential":
            assert self.mean is not None
            drawn = rng.expovariate(1 / self.mean)
        elif self.distribution == "lognormal":
            assert self.median is not None and self.sigma is not None
            drawn = self.median * math.exp(rng.gauss(0.0, self.sigma))
        else:
            assert self.value is not None
            drawn = self.value
        return max(self.min or 0.0, min(math.inf if self.max is None else self.max, drawn))


AT_ONCE = ThinkTime.model_validate("0s")
