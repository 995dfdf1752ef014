"""The shape of an SLO file: what YAML may say, checked as it is read, and its JSON Schema.

Every problem is an error at its own key, so that strict_yaml can name the line. Editors get the
same shape as docs/slo.schema.json (`python -m prony_slo.schema`).
"""

import re
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from prony_loadgen.strict_yaml import (
    Count,
    Number,
    StrictModel,
    parse_duration,
    parse_ratio,
)
from prony_slo.promise import (
    Band,
    Condition,
    Floor,
    Latency,
    Marked,
    OnInconclusive,
    Quality,
    Query,
    Rate,
    Severity,
    Share,
)
from prony_slo.regression_model import RegressionModel

LATENCIES: tuple[Latency, ...] = get_args(Latency)
RATES: tuple[Rate, ...] = get_args(Rate)
QUALITIES: tuple[Quality, ...] = get_args(Quality)
SHARES = ("error_rate", *QUALITIES)
Metric = Literal[Latency, Rate, "error_rate", Quality, "gpu_utilization"]


def _parse_condition(value: object) -> object:
    if value is None or isinstance(value, tuple):
        return value
    match = re.fullmatch(r"\s*([<>=!≤≥]*)\s*(.*?)\s*", value) if isinstance(value, str) else None
    if match is None:
        return True, _above_zero(parse_duration(value))
    if match[1] not in {"", "<", "<=", "≤"}:
        raise ValueError(f"must be a limit such as '<= 500ms'; got {value!r}")
    return match[1] != "<", _above_zero(parse_duration(match[2]))


def _above_zero(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be above 0")
    return seconds


def _confidence(value: object) -> float:
    confidence = parse_ratio(value)
    if not 0.5 <= confidence < 1:
        raise ValueError(
            f"must be at least 50% and under 100%, such as 95%, since no number of requests "
            f"makes us wholly sure; got {value!r}"
        )
    return confidence


def _seconds(value: object) -> object:
    return None if value is None else parse_duration(value)


def _warmup(value: object) -> object:
    """A fixed time is the short form of a mapping."""
    if value is None or isinstance(value, dict):
        return value
    parse_duration(value)
    return {"mode": "fixed", "min": value}


def _most(value: object) -> float:
    most = parse_ratio(value)
    if not 0 < most < 1:
        raise ValueError(f"must be above 0% and under 100% of the run, got {value!r}")
    return most


def _number_or_share(value: object) -> object:
    """What a query is compared with: a plain number, or 95% for 0.95."""
    if isinstance(value, str):
        return parse_ratio(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"must be a number or a ratio such as 95%, got {value!r}")
    return value


def _switch(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r}")
    return value


# (inclusive, seconds)
Limit = Annotated[
    tuple[bool, float] | None,
    BeforeValidator(_parse_condition),
    WithJsonSchema({"type": "string", "pattern": r"^(<=?)? ?\d*\.?\d+ ?(us|ms|s|m|min|h)$"}),
]
Confidence = Annotated[
    float, BeforeValidator(_confidence), WithJsonSchema({"type": ["number", "string"]})
]
MinRequests = Annotated[Count, Field(ge=1), WithJsonSchema({"type": "integer", "minimum": 1})]
Bound = Annotated[float, WithJsonSchema({"type": ["number", "string"]})]


class _Documented(StrictModel):
    """A part of the file whose keys are explained where editors show it."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class GoodModel(_Documented):
    """What a good request must hold, such as "<= 500ms"; several conditions must hold together."""

    ttft: Limit = None
    """First generated token, from the time the request was intended."""
    ttft_from_send: Limit = None
    """First generated token, from the time the request was really sent."""
    ttfo: Limit = None
    """First visible output (not reasoning), from the intended time."""
    e2e: Limit = None
    """Last generated token, from the intended time."""
    tpot: Limit = None
    """Time per output token after the first: (last - first token) / (tokens - 1)."""
    max_gap: Limit = None
    """The longest wait between two chunks of the answer."""

    def conditions(self) -> tuple[Condition, ...]:
        limits = ((metric, getattr(self, metric)) for metric in LATENCIES)
        return tuple(Condition(m, limit[1], limit[0]) for m, limit in limits if limit is not None)


class ObjectiveModel(_Documented):
    """One objective: `good` with `at_least`, or `metric` with a limit."""

    # In this order, because what a limit may be depends on the metric before it.
    id: Annotated[str, Field(min_length=1)]
    """How results name it; unique."""
    promql: Annotated[str | None, Field(min_length=1)] = None
    """A query whose value at the end lies within the limits; `$window` is the time measured."""
    good: GoodModel | None = None
    """What a good request holds; `at_least` says how many requests must be good."""
    metric: Metric | None = Field(default=None, validate_default=True)
    """A latency (with `percentile` and `at_most`), a share, a rate or a gauge."""
    percentile: Number | None = Field(default=None, validate_default=True)
    """Of a latency, above 0 and under 100: 99 means that 1 % of requests may be slower."""
    of: str | None = Field(default=None, validate_default=True)
    """goodput_rps: the id of the objective that says what a good request is."""
    at_most: Bound | None = Field(default=None, validate_default=True)
    """A duration (500ms) for a latency, a ratio (1%) for a share."""
    at_least: Bound | None = Field(default=None, validate_default=True)
    """A ratio (99%) for `good`, a number per second for a rate."""
    scenario: str | None = None
    """Judge only runs of this scenario; in others the objective has no data."""
    stage: str | None = None
    """Judge only requests of this stage of the schedule."""
    cls: Annotated[str | None, Field(alias="class")] = None
    """Judge only requests of this class."""
    severity: Severity | None = None
    """`warn` is reported and never changes the exit code."""
    confidence: Confidence | None = None
    """How sure "met" and "breached" must be, one-sided."""
    on_inconclusive: OnInconclusive | None = None
    """What too little data does: exit 3, fail (1), or nothing (warn, pass)."""
    min_requests: MinRequests | None = None
    """With fewer measured requests the objective is not met, whatever they show."""

    @field_validator("good")
    @classmethod
    def _good_says_something(cls, good: GoodModel | None) -> GoodModel | None:
        if good is not None and not good.conditions():
            raise ValueError("needs a condition such as ttft: '<= 500ms'")
        return good

    @field_validator("metric", mode="before")
    @classmethod
    def _metric_or_good(cls, value: object, info: ValidationInfo) -> object:
        good = info.data.get("good")
        if value == "itl":
            raise ValueError("itl is a latency of tokens, not of requests; use tpot or max_gap")
        known = {"good", "promql"} <= info.data.keys()
        given = [
            name
            for name, it in (("promql", info.data.get("promql")), ("good", good), ("metric", value))
            if it is not None
        ]
        if known and not given:
            raise ValueError(
                "an objective needs `good:` with `at_least:`, or `metric:`, or `promql:`"
            )
        if len(given) > 1:
            raise ValueError(f"`{given[0]}:` and `{given[1]}:` exclude each other")
        return value

    @field_validator("percentile")
    @classmethod
    def _percentile(cls, value: float | None, info: ValidationInfo) -> float | None:
        if "metric" not in info.data:
            return value
        metric = info.data["metric"]
        if value is None:
            if metric in LATENCIES:
                raise ValueError(f"{metric} needs a percentile, for example 99")
            return None
        if metric not in LATENCIES:
            raise ValueError(f"only latencies have percentiles ({', '.join(LATENCIES)})")
        if not 0 < _rest(value / 100) < 1:
            raise ValueError(
                f"must be above 0 and under 100, got {value:g}: no number of requests can show "
                "what all requests do"
            )
        return value

    @field_validator("of")
    @classmethod
    def _of(cls, value: str | None, info: ValidationInfo) -> str | None:
        if "metric" not in info.data:
            return value
        if value is None and info.data["metric"] == "goodput_rps":
            raise ValueError("goodput_rps needs the id of the objective that says what is good")
        if value is not None and info.data["metric"] != "goodput_rps":
            raise ValueError("belongs to goodput_rps only")
        return value

    @field_validator("at_most", mode="before")
    @classmethod
    def _at_most(cls, value: object, info: ValidationInfo) -> object:
        if not {"promql", "good", "metric"} <= info.data.keys():
            return None
        metric = info.data["metric"]
        if info.data["promql"] is not None:
            return _number_or_share(value)
        if metric in LATENCIES:
            return _above_zero(parse_duration(_given(value, metric, "500ms")))
        if metric in SHARES:
            limit = parse_ratio(_given(value, metric, "1%"))
            if limit in (0, 1):
                raise ValueError(
                    "must be above 0% and under 100%: no number of requests can show that none "
                    f"will ever fail; 0.1% needs 2,995 of them; got {value!r}"
                )
            return limit
        if metric == "gpu_utilization":
            return None if value is None else parse_ratio(value)
        if value is not None:
            raise ValueError(f"{metric or 'good'} has a minimum: use at_least")
        return None

    @field_validator("at_least", mode="before")
    @classmethod
    def _at_least(cls, value: object, info: ValidationInfo) -> object:
        if not {"promql", "good", "metric", "at_most"} <= info.data.keys():
            return None
        metric = info.data["metric"]
        if info.data["promql"] is not None:
            return _query_minimum(_number_or_share(value), info.data["at_most"])
        if metric is None:
            share = parse_ratio(_given(value, "good", "99%"))
            if not 0 < _rest(share) < 1:
                raise ValueError(
                    "must be above 0% and under 100%: no number of requests can show that all "
                    f"will be good; 99.9% needs 2,995 of them; got {value!r}"
                )
            return share
        if metric in RATES:
            number = _given(value, metric, "100")
            if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
                raise ValueError(f"must be a number above 0, per second; got {value!r}")
            return number
        if metric == "gpu_utilization":
            least, most = value, info.data.get("at_most")
            if least is None and most is None:
                raise ValueError("gpu_utilization needs at_least or at_most, for example 60%")
            least = None if least is None else parse_ratio(least)
            if least is not None and most is not None and least > most:
                raise ValueError(f"is above at_most ({most:g}), so nothing could pass")
            return least
        if value is not None:
            raise ValueError(f"{metric} has a maximum: use at_most")
        return None

    @field_validator("cls", "stage")
    @classmethod
    def _of_requests(cls, value: str | None, info: ValidationInfo) -> str | None:
        of_run = info.data.get("promql") is not None or info.data.get("metric") == "gpu_utilization"
        if value is not None and info.field_name == "cls" and of_run:
            raise ValueError("what the server does has no class; only requests have one")
        return value

    def promise(self) -> Share | Marked | Floor | Band | Query:
        if self.promql is not None:
            return Query(self.promql, self.at_least, self.at_most)
        if self.good is not None:
            assert self.at_least is not None
            return Share(self.good.conditions(), _rest(self.at_least))
        if self.metric == "gpu_utilization":
            return Band(self.metric, self.at_least, self.at_most)
        if self.metric == "error_rate":
            assert self.at_most is not None
            return Share((), self.at_most)
        if self.metric in QUALITIES:
            assert self.at_most is not None
            return Marked(self.metric, self.at_most)
        if self.metric in RATES:
            assert self.at_least is not None
            return Floor(self.metric, self.at_least, self.of)
        assert self.percentile is not None and self.at_most is not None
        metric = cast(Latency, self.metric)
        return Share((Condition(metric, self.at_most),), _rest(self.percentile / 100))


class DefaultsModel(_Documented):
    """What objectives have where they say nothing else."""

    severity: Severity = "fail"
    confidence: Confidence = 0.95
    on_inconclusive: OnInconclusive = "inconclusive"
    min_requests: MinRequests = 30


class WarmupModel(_Documented):
    """What is left out of every figure at the start of a run."""

    mode: Literal["auto", "fixed"] = "auto"
    """`auto` finds where TTFT has settled."""
    min: Annotated[float | None, BeforeValidator(_seconds), WithJsonSchema({"type": "string"})] = (
        None
    )
    """The least, such as 30s; with `fixed` the whole of it."""
    max: Annotated[
        float, BeforeValidator(_most), WithJsonSchema({"type": ["number", "string"]})
    ] = 0.4
    """Of what was measured: the most that `auto` may leave out."""


class MeasureModel(_Documented):
    """How the run is measured."""

    warmup: Annotated[
        WarmupModel | None,
        BeforeValidator(_warmup),
        Field(json_schema_extra={"description": "3s, or {mode: auto, min: 30s, max: 40%}"}),
    ] = None
    """Left out of every figure, such as 3s; a scenario's own warm-up wins over it."""
    violations: list[Literal["error", "timeout", "dropped", "unfinished"]] = Field(
        default=["error", "timeout", "dropped"]
    )
    """What counts as bad; `unfinished` adds all requests that the end of the run cut."""
    stop_on_breach: Annotated[bool, BeforeValidator(_switch)] = False
    """End the run once a breach is certain, even if every request to come were good."""
    require_steady: Annotated[bool, BeforeValidator(_switch)] = False
    """A run that drifts meets no latency objective."""
    prometheus: Annotated[str | None, Field(pattern=r"^https?://")] = None
    """Where `promql` objectives are asked, such as http://127.0.0.1:9090."""

    @field_validator("violations")
    @classmethod
    def _failures_are_always_bad(cls, value: list[str]) -> list[str]:
        missing = [name for name in ("error", "timeout", "dropped") if name not in value]
        if missing:
            raise ValueError(
                f"{' and '.join(missing)} always count{'s' if len(missing) == 1 else ''} as bad; "
                "the list can only add `unfinished` to [error, timeout, dropped]"
            )
        return value


class PrometheusModel(_Documented):
    """What `prony rules` writes rules for."""

    job: str | None = None
    """The job's name in the scrape configuration."""
    window: Annotated[str, Field(pattern=r"^\d+(\.\d+)?(us|ms|s|m|min|h|d|w)$")] | None = None
    """Over which the error budget counts, such as 30d."""
    profile: Literal["prony", "vllm", "sglang"] | None = None
    """Whose metric names the rules use."""
    buckets: dict[Literal["ttft", "tpot", "e2e"], Annotated[list[Number], Field(min_length=1)]] = (
        Field(default={})
    )
    """Upper bounds in seconds, where the server was started with other buckets than usual."""


class ExportModel(_Documented):
    """What other tools need that are given these objectives."""

    prometheus: PrometheusModel = PrometheusModel()


class SloModel(StrictModel):
    """An SLO file of Prony: what a run of load must hold."""

    apiVersion: Literal["prony/v1"] = "prony/v1"
    kind: Literal["SLOFile"] = "SLOFile"
    metadata: dict[str, Any] = Field(default={})
    defaults: DefaultsModel = DefaultsModel()
    measure: MeasureModel = MeasureModel()
    objectives: Annotated[list[ObjectiveModel], Field(min_length=1)]
    regression: RegressionModel | None = None
    export: ExportModel | None = None


def _given(value: object, what: str, example: str) -> object:
    if value is None:
        raise ValueError(f"is missing: {what} needs one, for example {example}")
    return value


def _query_minimum(least: object, most: object) -> object:
    if least is None and most is None:
        raise ValueError("promql needs at_least or at_most, for example 0.95")
    if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
        raise ValueError(f"is above at_most ({most:g}), so nothing could pass")
    return least


def _rest(share: float) -> float:
    # 1 - 0.99 is 0.010000000000000009 in floats; a limit of 1 % must be 0.01.
    return round(1 - share, 12)
