"""What an SLO promises, once it is read: plain data that the gate judges a run against."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from prony_loadgen.words import share

Latency = Literal["ttft", "ttft_from_send", "ttfo", "e2e", "tpot", "max_gap"]
Rate = Literal["output_tokens_per_s", "requests_per_s", "goodput_rps"]
# What each record tells of the quality of its answer, where the load generator looked at it.
Quality = Literal["truncated_share", "repetition_share", "mismatch_share"]
Stat = Literal["p50", "p90", "p95", "p99", "mean", "tail", "rate", "share"]
Severity = Literal["fail", "warn"]
OnInconclusive = Literal["inconclusive", "fail", "warn", "pass"]

RATE_UNITS: dict[Rate, str] = {
    "output_tokens_per_s": "output tokens/s",
    "requests_per_s": "requests/s",
    "goodput_rps": "good requests/s",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """What one latency of a good request must hold."""

    metric: Latency
    limit: float  # seconds
    inclusive: bool = True  # <= rather than <

    def holds(self, seconds: float) -> bool:
        return seconds <= self.limit if self.inclusive else seconds < self.limit

    def __str__(self) -> str:
        return f"{self.metric} {'<=' if self.inclusive else '<'} {short_ms(self.limit)}"


@dataclass(frozen=True, slots=True)
class Share:
    """At most `limit` of the requests may be bad.

    A request is good where every condition holds; without conditions, where it was answered. So
    "p99 TTFT <= 500 ms" is a limit of 1 % over one condition, and goodput one over several.
    """

    conditions: tuple[Condition, ...]
    limit: float  # the share of bad requests that is still kept, above 0 and below 1

    def __str__(self) -> str:
        if not self.conditions:
            return f"at most {share(self.limit)} of requests fail"
        met = " and ".join(str(condition) for condition in self.conditions)
        return f"{met} for {share(1 - self.limit)} of requests"


@dataclass(frozen=True, slots=True)
class Marked:
    """At most `limit` of the answers may carry a flag that means a loss of quality."""

    metric: Quality
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} at most {share(self.limit)}"


@dataclass(frozen=True, slots=True)
class Floor:
    """A rate of the whole run must be at least this."""

    metric: Rate
    at_least: float
    of: str | None = None  # goodput_rps: the id of the Share that says what a good request is

    def __str__(self) -> str:
        return f"at least {self.at_least:,g} {RATE_UNITS[self.metric]}"


@dataclass(frozen=True, slots=True)
class Band:
    """A gauge's mean over the run must lie between these."""

    metric: Literal["gpu_utilization"]
    at_least: float | None
    at_most: float | None

    def __str__(self) -> str:
        if self.at_least is None:
            return f"{self.metric} at most {share(self.at_most)}"
        if self.at_most is None:
            return f"{self.metric} at least {share(self.at_least)}"
        return f"{self.metric} from {share(self.at_least)} to {share(self.at_most)}"


@dataclass(frozen=True, slots=True)
class Query:
    """What a Prometheus says of the run must lie between these; `$window` is the time measured."""

    promql: str
    at_least: float | None
    at_most: float | None

    def __str__(self) -> str:
        low = "" if self.at_least is None else f"{self.at_least:g} <= "
        high = "" if self.at_most is None else f" <= {self.at_most:g}"
        return f"{low}{self.promql}{high}"


@dataclass(frozen=True, slots=True)
class Objective:
    """One promise, and what follows where it is not kept."""

    id: str
    promise: Share | Marked | Floor | Band | Query
    place: str  # where it was written: "chat.yaml:7", or "--slo"
    severity: Severity = "fail"
    confidence: float = 0.95  # one-sided
    on_inconclusive: OnInconclusive = "inconclusive"
    min_requests: int = 30  # fewer never pass
    scenario: str | None = None  # only runs of this scenario are judged
    cls: str | None = None  # only requests of this class
    stage: str | None = None  # only requests intended in this stage of the run


@dataclass(frozen=True, slots=True)
class Measure:
    """How the run that will be judged is to be measured."""

    warmup: float | None = None  # seconds, where the scenario sets none
    unfinished_is_bad: bool = False  # else a request that the end cut is judged by what is known
    stop_on_breach: bool = False
    require_steady: bool = False  # else a run that drifted is judged like any other
    find_warmup: bool = False  # the cut is found in the run; `warmup` is then the least
    warmup_max: float = 0.4  # of the run: the most that a found cut may take
    prometheus: str | None = None  # the URL that `promql` objectives ask


@dataclass(frozen=True, slots=True)
class Check:
    """One figure by which two builds are compared, and how much worse it may become."""

    id: str
    metric: str  # a latency, a rate, "goodput" or "error_rate"
    stat: Stat
    tolerance: float  # of the figure itself; of `share` the difference of the two shares
    place: str
    severity: Severity = "fail"
    conditions: tuple[Condition, ...] = ()  # of "goodput": what a good request holds
    cls: str | None = None
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a build is compared with."""

    ref: str | None = None  # how people call it: "main", "v1.2"
    mode: Literal["interleaved", "stored"] = "interleaved"
    missing: OnInconclusive = "inconclusive"


@dataclass(frozen=True, slots=True)
class Regression:
    """How a build is compared with its baseline."""

    checks: tuple[Check, ...]
    baseline: Baseline = Baseline()
    min_pairs: int = 3
    max_pairs: int = 10
    alpha: float = 0.01  # of one false alarm in the whole gate, one-sided
    place: str = ""

    @property
    def alpha_each(self) -> float:
        """What is left of alpha for each check that can fail the build."""
        return self.alpha / max(1, sum(check.severity == "fail" for check in self.checks))


@dataclass(frozen=True, slots=True)
class SloFile:
    """All that was asked for: of one file, of several, of inline objectives, or of all these."""

    name: str
    objectives: tuple[Objective, ...]
    measure: Measure = Measure()
    regression: Regression | None = None
    # What `prony rules` may need, as written: job, window and profile of a Prometheus.
    export: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tightest_ttft(self) -> float | None:
        """The smallest TTFT limit in seconds: what the client's own lag is measured against."""
        limits = [
            condition.limit
            for objective in self.objectives
            if isinstance(objective.promise, Share)
            for condition in objective.promise.conditions
            if condition.metric == "ttft"
        ]
        return min(limits, default=None)

    @property
    def goodput(self) -> tuple[Condition, ...]:
        """Every per-request condition of the file: a request that meets all of them is good."""
        return tuple(
            dict.fromkeys(
                condition
                for objective in self.objectives
                if isinstance(objective.promise, Share)
                for condition in objective.promise.conditions
            )
        )


def short_ms(seconds: float) -> str:
    """A limit as people wrote it: "500 ms", "2 s"."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"
