"""The shape of an SLO file's `regression:` section, checked as it is read, and its JSON Schema."""

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from prony_loadgen.strict_yaml import Count, StrictModel, nearest, parse_ratio
from prony_slo.promise import Latency, OnInconclusive, Severity, Stat

LATENCIES: tuple[Latency, ...] = get_args(Latency)
CheckMetric = Literal[Latency, "output_tokens_per_s", "requests_per_s", "goodput", "error_rate"]
LATENCY_STATS: tuple[Stat, ...] = ("p50", "p90", "p95", "p99", "mean", "tail")
ONLY_STAT: dict[str, Stat] = {
    "output_tokens_per_s": "rate",
    "requests_per_s": "rate",
    "goodput": "share",
    "error_rate": "share",
}


def _alpha(value: object) -> float:
    alpha = parse_ratio(value)
    if not 0 < alpha <= 0.2:
        raise ValueError(f"must be above 0 and at most 0.2, such as 0.01; got {value!r}")
    return alpha


class _Documented(StrictModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class BaselineModel(_Documented):
    """What a build is compared with."""

    ref: str | None = None
    """How results name it: main, v1.2."""
    mode: Literal["interleaved", "stored"] = "interleaved"
    """`interleaved` runs both builds in turn; `stored` compares with runs of other days."""
    missing: OnInconclusive = "inconclusive"
    """What a missing baseline does: exit 3, fail (1), or nothing (warn, pass)."""


class PairsModel(_Documented):
    """How many pairs of runs: looked at after each, from `min` on, up to `max`."""

    min: Annotated[Count, Field(ge=2)] = 3
    max: Annotated[Count, Field(le=100)] = 10

    @field_validator("max")
    @classmethod
    def _in_order(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min", value):
            raise ValueError(f"must be at least min ({info.data['min']}), got {value}")
        return value


class CheckModel(_Documented):
    """One figure by which the builds are compared."""

    # In this order, because what each may be depends on the metric before it.
    metric: CheckMetric
    """A latency, a rate, goodput or error_rate."""
    stat: Stat | None = Field(default=None, validate_default=True)
    """Of a latency: `tail` compares the slowest 10 % of the requests each with itself."""
    of: str | None = Field(default=None, validate_default=True)
    """goodput: the id of the objective that says what a good request is."""
    tolerance: Annotated[float, WithJsonSchema({"type": "string"})]
    """How much worse is still the same: 5%, or 1pp for goodput and error_rate."""
    stage: str | None = None
    """Compare only requests of this stage."""
    cls: Annotated[str | None, Field(alias="class")] = None
    """Compare only requests of this class."""
    severity: Severity = "fail"
    """`warn` is reported and never changes the exit code."""

    @field_validator("stat", mode="before")
    @classmethod
    def _stat(cls, value: object, info: ValidationInfo) -> object:
        metric = info.data.get("metric")
        if metric is None:
            return None
        if metric in ONLY_STAT:
            if value not in (None, ONLY_STAT[metric]):
                raise ValueError(f"{metric} has the stat {ONLY_STAT[metric]} only, got {value!r}")
            return ONLY_STAT[metric]
        if value not in LATENCY_STATS:
            raise ValueError(
                f"must be one of {', '.join(LATENCY_STATS)}, got {value!r}"
                f"{nearest(str(value), LATENCY_STATS)}"
            )
        return value

    @field_validator("of")
    @classmethod
    def _of(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric = info.data.get("metric")
        if metric == "goodput" and value is None:
            raise ValueError("goodput needs the id of the objective that says what is good")
        if metric not in (None, "goodput") and value is not None:
            raise ValueError("belongs to goodput only")
        return value

    @field_validator("tolerance", mode="before")
    @classmethod
    def _tolerance(cls, value: object, info: ValidationInfo) -> object:
        points = isinstance(value, str) and value.strip().endswith("pp")
        if (info.data.get("stat") == "share") != points and "metric" in info.data:
            wanted = "percentage points, such as 1pp" if not points else "a ratio, such as 5%"
            raise ValueError(f"of {info.data['metric']} is in {wanted}; got {value!r}")
        tolerance = parse_ratio(value)
        if not 0 < tolerance < 1:
            raise ValueError(f"must be above 0 and under 100%, got {value!r}")
        return tolerance


class RegressionModel(_Documented):
    """How a build is compared with a baseline."""

    baseline: BaselineModel = BaselineModel()
    pairs: PairsModel = PairsModel()
    alpha: Annotated[
        float, BeforeValidator(_alpha), WithJsonSchema({"type": ["number", "string"]})
    ] = 0.01
    """How often an unchanged build may be failed, by all checks together."""
    checks: Annotated[list[CheckModel], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _fixed_pairs(cls, data: Any) -> Any:
        """`pairs: 5` is always five."""
        pairs = data.get("pairs") if isinstance(data, dict) else None
        if isinstance(pairs, int) and not isinstance(pairs, bool):
            return {**data, "pairs": {"min": pairs, "max": pairs}}
        return data
