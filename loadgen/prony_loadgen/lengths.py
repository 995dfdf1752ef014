"""How long prompts and outputs are, in tokens: a distribution from YAML in, whole numbers out."""

import math
import random
import re
from typing import Any, Literal

from pydantic import Field, model_validator

from prony_loadgen.strict_yaml import Count, Number, StrictModel

Distribution = Literal["fixed", "uniform", "normal", "lognormal"]

_NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": ("value",),
    "uniform": ("min", "max"),
    "normal": ("mean", "stddev"),
    "lognormal": ("median", "sigma"),
}
_RANGE = re.compile(r"\s*(\d+)\s*(?:-|\.\.)\s*(\d+)\s*")


class Lengths(StrictModel):
    """A distribution of token counts. `64` is short for fixed, `16..256` for uniform."""

    distribution: Distribution = "fixed"
    value: Count | None = Field(default=None, ge=1)
    mean: Number | None = Field(default=None, gt=0)
    stddev: Number | None = Field(default=None, ge=0)
    median: Number | None = Field(default=None, gt=0)
    sigma: Number | None = Field(default=None, ge=0, le=5)
    min: Count | None = Field(default=None, ge=1)
    max: Count | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"distribution": "fixed", "value": value}
        if isinstance(value, str):
            match = _RANGE.fullmatch(value)
            if match is None:
                raise ValueError(
                    f"must be a number of tokens, a range such as 16..256, or a mapping such as "
                    f"{{distribution: lognormal, median: 64, sigma: 0.5}}; got {value!r}"
                )
            return {"distribution": "uniform", "min": int(match[1]), "max": int(match[2])}
        return value

    @model_validator(mode="after")
    def _complete(self) -> "Lengths":
        needs = _NEEDS[self.distribution]
        missing = [key for key in needs if getattr(self, key) is None]
        if missing:
            raise ValueError(f"{self.distribution} needs {' and '.join(missing)}")
        extra = [
            key
            for key in self.model_fields_set
            if key not in {"distribution", "min", "max", *needs} and getattr(self, key) is not None
        ]
        if extra:
            raise ValueError(
                f"{self.distribution} does not take {' and '.join(sorted(extra))}; "
                f"it takes {', '.join(dict.fromkeys((*needs, 'min', 'max')))}"
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min is above max: {self.min} > {self.max}")
        return self

    def sample(self, rng: random.Random) -> int:
        """One length of at least 1, within min and max: draws outside are moved to the bound."""
        low, high = self.min or 1, self.max or math.inf
        if self.distribution == "uniform":
            assert self.min is not None and self.max is not None
            return rng.randint(self.min, self.max)
        drawn: float
        if self.distribution == "normal":
            assert self.mean is not None and self.stddev is not None
            drawn = rng.gauss(self.mean, self.stddev)
        elif self.distribution == "lognormal":
            assert self.median is not None and self.sigma is not None
            drawn = self.median * math.exp(rng.gauss(0.0, self.sigma))
        else:
            assert self.value is not None
            drawn = self.value
        return int(max(low, min(high, round(drawn))))

    def expected(self) -> float:
        """The mean length, for estimates; bounds are left out of account where they cut little."""
        if self.distribution == "uniform":
            assert self.min is not None and self.max is not None
            return (self.min + self.max) / 2
        if self.distribution == "lognormal":
            assert self.median is not None and self.sigma is not None
            mean = self.median * math.exp(self.sigma**2 / 2)
        else:
            mean = float(self.value or self.mean or 1)
        return max(self.min or 1, min(self.max or math.inf, mean))
