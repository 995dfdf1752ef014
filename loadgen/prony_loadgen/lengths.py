"""How long prompts and outputs are, in tokens: a distribution from YAML in, whole numbers out."""

import math
import random
import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from prony_loadgen.distribution import check_keys
from prony_loadgen.strict_yaml import MOST_TOKENS, Count, Number, StrictModel
from prony_loadgen.traces import Format, trace_lengths

Distribution = Literal["fixed", "uniform", "normal", "lognormal", "empirical"]

_NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": ("value",),
    "uniform": ("min", "max"),
    "normal": ("mean", "stddev"),
    "lognormal": ("median", "sigma"),
    "empirical": (),
}
_FROM_TRACE = ("file", "format", "of")
_RANGE = re.compile(r"\s*(\d+)\s*(?:-|\.\.)\s*(\d+)\s*")


class Lengths(StrictModel):
    """A distribution of token counts. `64` is short for fixed, `16..256` for uniform."""

    distribution: Distribution = "fixed"
    value: Count | None = Field(default=None, ge=1, le=MOST_TOKENS)
    mean: Number | None = Field(default=None, gt=0, le=MOST_TOKENS)
    stddev: Number | None = Field(default=None, ge=0, le=MOST_TOKENS)
    median: Number | None = Field(default=None, gt=0, le=MOST_TOKENS)
    sigma: Number | None = Field(default=None, ge=0, le=5)
    min: Count | None = Field(default=None, ge=1, le=MOST_TOKENS)
    max: Count | None = Field(default=None, ge=1, le=MOST_TOKENS)
    values: tuple[Annotated[Count, Field(ge=1, le=MOST_TOKENS)], ...] | None = Field(
        default=None, min_length=1
    )
    file: str | None = None  # a trace, whose lengths are drawn from
    format: Format | None = None
    of: Literal["input", "output"] | None = None

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
        if self.distribution == "empirical":
            needs = ("values",) if self.file is None else _FROM_TRACE
            if self.file is None and self.values is None:
                raise ValueError(
                    "empirical needs values (a list of lengths), or file, format and of "
                    "(input or output) of a trace"
                )
        check_keys(self, self.distribution, needs)
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min is above max: {self.min} > {self.max}")
        return self

    def sample(self, rng: random.Random) -> int:
        """One length, at least 1, within min and max: draws outside are moved to the bound."""
        low, high = self.min or 1, self.max or MOST_TOKENS
        if self.distribution == "empirical":
            return int(max(low, min(high, rng.choice(self.known()))))
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

    def known(self) -> tuple[int, ...]:
        """The lengths that an empirical distribution draws from. Raises FileError of a bad file."""
        if self.values is not None:
            return self.values
        assert self.file is not None and self.format is not None and self.of is not None
        return trace_lengths(self.file, self.format, self.of)

    def expected(self) -> float:
        """The mean length, for estimates; bounds are left out of account where they cut little."""
        if self.distribution == "uniform":
            assert self.min is not None and self.max is not None
            return (self.min + self.max) / 2
        if self.distribution == "empirical":
            mean = sum(self.known()) / len(self.known())
        elif self.distribution == "lognormal":
            assert self.median is not None and self.sigma is not None
            mean = self.median * math.exp(self.sigma**2 / 2)
        else:
            mean = float(self.value or self.mean or 1)
        return max(self.min or 1, min(self.max or math.inf, mean))
