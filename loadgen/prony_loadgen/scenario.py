"""A scenario file in, options that override it in, one validated Scenario out.

docs/scenarios.md describes every key; docs/scenario.schema.json is this model for editors.
"""

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from prony_loadgen import shipped
from prony_loadgen.lengths import Lengths
from prony_loadgen.plain_json import not_json
from prony_loadgen.strict_yaml import (
    DURATION_SCHEMA,
    MOST_TOKENS,
    Count,
    Duration,
    FileError,
    M,
    Number,
    Override,
    Ratio,
    StrictModel,
    load,
    loads,
    nearest,
    read_value,
    to_seconds,
)
from prony_loadgen.target import OUR_HEADERS
from prony_loadgen.think import AT_ONCE, THINK_PATTERN, ThinkTime
from prony_loadgen.traces import TraceSpec

# Which short option sets which key. The CLI offers these; errors name them.
OPTIONS: dict[str, str] = {
    "--target": "target",
    "--dialect": "dialect",
    "--model": "model",
    "--rate": "arrivals.rate",
    "--concurrency": "arrivals.users",
    "--duration": "duration",
    "--requests": "requests",
    "--warmup": "warmup",
    "--input-tokens": "prompts.input_tokens",
    "--prompts": "prompts.file",
    "--output-tokens": "output.tokens",
    "--max-total-tokens": "max_total_tokens",
    "--timeout": "timeouts.total",
    "--insecure": "tls.insecure",
    "--ca": "tls.ca",
    "--cert": "tls.cert",
    "--cert-key": "tls.key",
    "--proxy": "proxy",
    "--header": "headers",
    "--extra-body": "extra_body",
    "--keep-text": "keep_text",
    "--seed": "seed",
}
_OPTION_OF = {path: option for option, path in OPTIONS.items()}
_AS_TEXT = {"target", "dialect", "model", "prompts.file", "slo", "tls.ca", "tls.cert", "tls.key"}
_AS_TEXT |= {"proxy", "checks", "prompts.tokenizer", "arrivals.trace.file"}
# Keys that hold a path, which a scenario's file gives relative to itself.
_PATHS = {"file", "tokenizer", "checks"}
# Of prompts: what stays where an option brings other prompts.
_KEPT = {"tokenizer", "calibrate", "context", "too_long"}

Dialect = Literal[
    "openai-chat",
    "openai-completions",
    "responses",
    "anthropic",
    "ollama-chat",
    "ollama-generate",
    "tgi",
]


MOST_REQUESTS = 10_000_000  # that a run may plan
MOST_TURNS = 1_000  # of one conversation
_LEAST_RATE = 1e-6  # requests a second


def _some_rate(rate: float | None) -> float | None:
    if rate is not None and 0 < rate < _LEAST_RATE:
        raise ValueError(f"must be 0 or at least {_LEAST_RATE:g} requests a second, got {rate!r}")
    return rate


def _auto_or_duration(value: object, info: ValidationInfo) -> object:
    return value if value == "auto" else to_seconds(value, info)


Warmup = Annotated[
    float | Literal["auto"],
    BeforeValidator(_auto_or_duration),
    WithJsonSchema(
        {"anyOf": [DURATION_SCHEMA, {"const": "auto", "type": "string"}]}, mode="validation"
    ),
]


class Prefix(StrictModel):
    """A start that prompts share: a tree of texts, each request going down one of its branches."""

    tokens: Count | tuple[Count, ...]  # of the start, or of each level of the tree
    branches: Count | tuple[Count, ...] = 1  # how many different texts each level offers
    hit_share: Ratio = 1.0  # of requests; the others start as long, but with what nobody shares
    system: bool = False  # as the system message

    @model_validator(mode="after")
    def _levels_match(self) -> "Prefix":
        tokens, branches = _listed(self.tokens), _listed(self.branches)
        if len(tokens) != len(branches):
            raise ValueError(
                f"tokens has {len(tokens)} levels, branches {len(branches)}: one number of each a "
                "level"
            )
        if min(*tokens, *branches) < 1:
            raise ValueError("tokens and branches must be at least 1")
        if max(*tokens, *branches) > MOST_TOKENS:
            raise ValueError(f"tokens and branches must be at most {MOST_TOKENS:,}")
        return self

    @property
    def levels(self) -> list[tuple[int, int]]:
        """(tokens, branches) of each level."""
        return list(zip(_listed(self.tokens), _listed(self.branches), strict=True))


class Prompts(StrictModel):
    """What is asked: lengths to make prompts of, or a file of prompts."""

    input_tokens: Lengths | None = None
    file: str | None = None
    format: Literal["jsonl", "sharegpt"] = "jsonl"
    prefix: Prefix | None = None  # comes before made prompts, on top of input_tokens
    tokenizer: str | None = None  # a tokenizer.json or its folder: made prompts are exact
    calibrate: bool = True  # else ask the server by a few requests what its words cost
    context: Count | None = Field(default=None, ge=1)  # tokens that prompt and answer may have
    too_long: Literal["refuse", "drop", "send"] = "refuse"  # prompts that do not fit it

    @model_validator(mode="after")
    def _one_source(self) -> "Prompts":
        if (self.input_tokens is None) == (self.file is None):
            raise ValueError("needs either input_tokens (lengths of made prompts) or file (JSONL)")
        if self.file is not None and self.prefix is not None:
            raise ValueError("prefix is for made prompts (input_tokens), not for those of a file")
        return self


class Output(StrictModel):
    """How much is asked for. `forced` asks the engine to ignore its end token."""

    tokens: Lengths = Lengths(value=128)
    mode: Literal["forced", "natural"] = "natural"


class Turns(StrictModel):
    """Conversations: a user asks again, with all that was said before."""

    count: Lengths  # requests of a conversation
    think_time: ThinkTime = AT_ONCE  # between an answer and the next request
    input_tokens: Lengths | None = None  # of later turns; None: like the first
    # What stands in the history: what the server said, or made words of the length asked for.
    history: Literal["answers", "asked"] = "answers"

    @field_validator("count")
    @classmethod
    def _ends_some_day(cls, count: Lengths) -> Lengths:
        told = (count.value, count.max, count.mean, count.median, *(count.values or ()))
        if max((number for number in told if number is not None), default=0) > MOST_TURNS:
            raise ValueError(f"must be at most {MOST_TURNS:,} requests of a conversation")
        return count


class RequestClass(StrictModel):
    """One kind of request in a mix."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    weight: Number = Field(gt=0)
    prompts: Prompts
    output: Output = Output()
    turns: Turns | None = None


class Ramp(StrictModel):
    """A rate that changes evenly."""

    start: Number = Field(ge=0, le=100_000)
    end: Number = Field(ge=0, le=100_000)
    over: Duration = Field(gt=0)

    _rates = field_validator("start", "end")(_some_rate)

    @model_validator(mode="after")
    def _is_some_rate(self) -> "Ramp":
        if not self.start and not self.end:
            raise ValueError("start and end are both 0: nothing would be sent")
        return self


class Steps(StrictModel):
    """Rates one after another."""

    rates: tuple[Annotated[Number, Field(ge=_LEAST_RATE, le=100_000)], ...] = Field(min_length=1)
    each: Duration = Field(gt=0)


class Spike(StrictModel):
    """A short time at another rate than `arrivals.rate`."""

    rate: Number = Field(ge=_LEAST_RATE, le=100_000)
    at: Duration
    length: Duration = Field(gt=0)


class OnOff(StrictModel):
    """`arrivals.rate` for a while, nothing for a while, and so on."""

    on: Duration = Field(gt=0)
    off: Duration = Field(gt=0)


class StageSpec(StrictModel):
    """A named part of the schedule, at one rate or changing evenly to another."""

    name: str = Field(min_length=1)
    rate: Number = Field(ge=0, le=100_000)
    to: Number | None = Field(default=None, ge=0, le=100_000)
    length: Duration = Field(gt=0)

    _rates = field_validator("rate", "to")(_some_rate)


# Keys that bring rates of their own, and those that change `rate` for a while.
_OWN_RATES = ("ramp", "steps", "stages")
_CHANGING = ("spike", "on_off")


class Arrivals(StrictModel):
    """When requests come: at a rate, whatever the target does, or from users who wait."""

    process: Literal["poisson", "constant", "gamma", "trace", "closed"] = "poisson"
    rate: Number | None = Field(default=None, ge=_LEAST_RATE, le=100_000)  # requests a second
    cv: Number | None = Field(default=None, ge=0.001, le=20)  # gamma: 1 is Poisson, above it bursts
    ramp: Ramp | None = None
    steps: Steps | None = None
    stages: tuple[StageSpec, ...] | None = Field(default=None, min_length=1)
    spike: Spike | None = None
    on_off: OnOff | None = None
    trace: TraceSpec | None = None
    users: Count | None = Field(default=None, ge=1, le=100_000)
    think_time: ThinkTime = AT_ONCE  # between an answer and the user's next request

    @model_validator(mode="after")
    def _fits_process(self) -> "Arrivals":
        if self.process == "closed":
            self._refuse(("cv", "trace", *_OWN_RATES, *_CHANGING))
            if self.users is None:
                raise ValueError("closed needs users, for example `users: 8`")
            if self.rate is not None:
                raise ValueError("closed has users, not a rate: its rate is what the target allows")
            return self
        if self.users is not None:
            raise ValueError(f"{self.process} has a rate, not users; users are for closed")
        if self.think_time.value != 0:
            raise ValueError(f"{self.process} has no think_time; that is for closed")
        if self.process == "trace":
            self._refuse(("rate", "cv", *_OWN_RATES, *_CHANGING))
            if self.trace is None:
                raise ValueError("trace needs trace: {file: ..., format: ...}")
            return self
        self._refuse(("trace", *(("cv",) if self.process != "gamma" else ())))
        if self.process == "gamma" and self.cv is None:
            raise ValueError("gamma needs cv: 1 is Poisson, 2 comes in bursts")
        self._fits_shape()
        return self

    def _fits_shape(self) -> None:
        shapes = [key for key in (*_OWN_RATES, *_CHANGING) if getattr(self, key) is not None]
        if len(shapes) > 1:
            raise ValueError(f"{shapes[0]} and {shapes[1]}: one shape at a time; stages can be all")
        if shapes and shapes[0] in _OWN_RATES:
            if self.rate is not None:
                raise ValueError(f"{shapes[0]} has its own rates: leave rate out")
        elif self.rate is None:
            raise ValueError(f"{self.process} needs a rate in requests a second")
        if self.stages is not None and not any(s.rate or s.to for s in self.stages):
            raise ValueError("stages have no rate above 0: nothing would be sent")

    def _refuse(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            if getattr(self, key) is not None:
                raise ValueError(f"{self.process} has no {key}")

    @property
    def open_loop(self) -> bool:
        return self.process != "closed"

    @property
    def ends_itself(self) -> bool:
        """Whether it says how long it lasts."""
        return any(getattr(self, key) is not None for key in (*_OWN_RATES, "trace"))


def _listed(told: int | tuple[int, ...]) -> tuple[int, ...]:
    return (told,) if isinstance(told, int) else told


class TimeoutSpec(StrictModel):
    """When to give up, from the moment that the request is sent; drain is for the run's end."""

    connect: Duration = Field(default=5.0, gt=0)
    first_token: Duration | None = Field(default=None, gt=0)
    between_tokens: Duration | None = Field(default=None, gt=0)  # from one token to the next
    total: Duration = Field(default=300.0, gt=0)
    drain: Duration = 30.0


class RetrySpec(StrictModel):
    """What a target refuses for now (429, 503), or what finds no connection, is tried again.

    Off unless asked for. A request's latency counts from its first time, whatever it waited.
    """

    max: Count = Field(ge=1, le=20)  # tries after the first
    honour_retry_after: bool = True  # wait as long as the server says, where it does


class TlsSpec(StrictModel):
    """Whom to believe at an https:// target, and who we are. Paths of PEM files."""

    ca: str | None = None  # in place of the system's authorities
    cert: str | None = None
    key: str | None = None  # where it is not in the same file as the certificate
    insecure: bool = False  # believe anybody


class Talk(StrictModel):
    """How to talk to the target and what to keep, whatever is asked of it."""

    target: str | None = None
    dialect: Dialect = "openai-chat"
    model: str | None = None
    timeouts: TimeoutSpec = TimeoutSpec()
    retry: RetrySpec | None = None
    tls: TlsSpec = TlsSpec()
    proxy: str | None = None  # in place of what HTTP_PROXY and its like say
    cancel_share: Number = Field(default=0.0, ge=0, le=1)  # of users, who hang up midway
    headers: dict[str, str] = Field(default_factory=dict)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    keep_text: bool = False
    # A fresh one each time: a repeated seed repeats its prompts, which a server may have cached.
    seed: Count = Field(default_factory=lambda: random.SystemRandom().randrange(2**31), ge=0)
    slo: str | None = None
    # Load that comes before what is measured. None: the SLO's. auto: found in the run (steady.py).
    warmup: Warmup | None = None

    @field_validator("headers")
    @classmethod
    def _headers_are_lines(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ValueError(f"{name!r} is not a header name")
            if name.lower() in OUR_HEADERS:
                raise ValueError(f"Prony sets {name} itself; leave it out")
            if not value.isprintable():
                raise ValueError(f"the value of {name!r} holds characters that no header may hold")
        return headers

    @field_validator("extra_body")
    @classmethod
    def _body_leaves_ours(cls, body: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        ours = {"model", "messages", "prompt", "stream"} & body.keys()
        if ours:
            raise ValueError(f"Prony sets {', '.join(sorted(ours))} itself")
        if problem := not_json(body):
            raise ValueError(problem)
        return body

    @property
    def set_warmup(self) -> float:
        """Seconds of warm-up that the scenario itself sets."""
        return 0.0 if self.warmup is None or self.warmup == "auto" else self.warmup

    def resolved(self) -> dict[str, Any]:
        """What run.json keeps: every value that was used, but header values, which may be keys."""
        facts = self.model_dump(mode="json", exclude_none=True)
        facts["headers"] = sorted(self.headers)
        if self.proxy is not None:
            facts["proxy"] = re.sub(r"//[^/@]*@", "//***@", self.proxy)  # it may hold a password
        return facts


class Price(StrictModel):
    """What the target costs: for tokens, or for the time that it runs."""

    input_per_million: Number | None = Field(default=None, ge=0)
    output_per_million: Number | None = Field(default=None, ge=0)
    per_hour: Number | None = Field(default=None, ge=0)
    currency: str = Field(default="USD", min_length=1, max_length=8)

    @model_validator(mode="after")
    def _one_way(self) -> "Price":
        by_token = self.input_per_million is not None, self.output_per_million is not None
        if (self.per_hour is None) == (not any(by_token)) or (any(by_token) and not all(by_token)):
            raise ValueError(
                "needs input_per_million and output_per_million, or per_hour alone instead"
            )
        return self


class Scenario(Talk):
    """One kind of load: what is asked, how often, for how long."""

    name: str = Field(default="scenario", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    prompts: Prompts | None = None
    output: Output = Output()
    turns: Turns | None = None
    mix: tuple[RequestClass, ...] | None = Field(default=None, min_length=1)
    arrivals: Arrivals
    duration: Duration | None = Field(default=None, gt=0)  # of what is measured
    requests: Count | None = Field(default=None, ge=1, le=MOST_REQUESTS)  # that are measured
    max_total_tokens: Count | None = Field(default=None, ge=1)  # in and out: no more is spent
    price: Price | None = None
    quality: bool = True  # look at what the answers say: repetition, references
    checks: str | None = None  # prompts with expected answers, asked before and after the load

    @model_validator(mode="after")
    def _asks_something(self) -> "Scenario":
        if self.mix is not None:
            for key in ("prompts", "output", "turns"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key} belongs into each class of the mix")
            names = [kind.name for kind in self.mix]
            if len(set(names)) < len(names):
                repeated = next(name for name in names if names.count(name) > 1)
                raise ValueError(f"mix has two classes called {repeated!r}")
        elif self.prompts is None and self.arrivals.trace is None:
            raise ValueError(
                "needs prompts, for example `prompts: {input_tokens: 64}`, a mix, or a trace"
            )
        return self

    @model_validator(mode="after")
    def _ends(self) -> "Scenario":
        if self.duration is None and self.requests is None and not self.arrivals.ends_itself:
            raise ValueError("needs a duration (such as 30s) or a number of requests")
        return self

    @property
    def classes(self) -> tuple[RequestClass, ...]:
        """What is asked: the mix, or the one class that bears the scenario's name.

        Empty where a trace says what is asked.
        """
        if self.mix is not None:
            return self.mix
        if self.prompts is None:
            return ()
        return (
            RequestClass(
                name=self.name,
                weight=1.0,
                prompts=self.prompts,
                output=self.output,
                turns=self.turns,
            ),
        )


def load_scenario(name_or_path: str, overrides: Mapping[str, object] | None = None) -> Scenario:
    """The scenario that `name_or_path` means, with the values of options in place of the file's.

    `overrides` maps dotted keys to values: text (read as YAML reads it) or what YAML would give.
    Raises FileError, with a line for each thing wrong.
    """
    path = shipped.find("scenarios", name_or_path)
    if path is None:
        raise FileError([_not_found(name_or_path)])
    changes = dict(overrides or {})
    scenario = load(
        path, Scenario, _overrides(changes), lambda data: _make_room(data, set(changes))
    )
    scenario = scenario.model_copy(update={"name": _name_of(path, scenario)})
    return _beside(scenario, path.parent, "", set(changes))


def talk_from(overrides: Mapping[str, object]) -> Talk:
    """How to talk to the target where there is no scenario, only options. Raises FileError."""
    return loads("{}", "options", Talk, _overrides(overrides))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of scenario files, as committed in docs/scenario.schema.json."""
    schema = Scenario.model_json_schema(mode="validation")
    schema["title"] = "Prony scenario"
    # The short forms that models take before validation.
    short: dict[str, list[dict[str, Any]]] = {
        "Lengths": [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": r"^\d+(-|\.\.)\d+$"},
        ],
        "ThinkTime": [{"type": "string", "pattern": THINK_PATTERN}],
    }
    for definition, forms in short.items():
        full = schema["$defs"].pop(definition)
        schema["$defs"][definition] = {"anyOf": [*forms, full]}
    return schema


def _not_found(name: str) -> str:
    known = shipped.names("scenarios")
    if shipped.is_folder(name):
        return f"{name}: a folder; expected a scenario file"
    if Path(name).suffix in {".yaml", ".yml"}:
        return f"{name}: no such scenario file"
    return (
        f"no scenario is called {name!r}{nearest(name, known)} "
        f"(shipped: {', '.join(known)}; or give the path of a YAML file)"
    )


def _beside(model: M, folder: Path, at: str, changed: set[str]) -> M:
    """The model with paths that its file gave made relative to that file, not to where we are."""
    update: dict[str, Any] = {}
    for key in type(model).model_fields:
        value, place = getattr(model, key), f"{at}{key}"
        if place in changed:
            continue
        if key in _PATHS and isinstance(value, str):
            update[key] = str(folder / value)
        elif key == "slo" and isinstance(value, str):
            update[key] = _slo_beside(value, folder)
        elif isinstance(value, StrictModel):
            update[key] = _beside(value, folder, f"{place}.", changed)
        elif isinstance(value, tuple) and value and isinstance(value[0], StrictModel):
            update[key] = tuple(_beside(each, folder, f"{place}.", changed) for each in value)
    return model.model_copy(update={k: v for k, v in update.items() if v != getattr(model, k)})


def _slo_beside(slo: str, folder: Path) -> str:
    """A file's path beside the scenario's; a shipped name and an inline objective as they are."""
    if Path(slo).suffix not in {".yaml", ".yml"}:
        return slo
    path = folder / slo
    if shipped.find("objectives", str(path)) is None:
        raise FileError([f"the scenario's slo: {path}: no such file (sought beside the scenario)"])
    return str(path)


def _name_of(path: Path, scenario: Scenario) -> str:
    if "name" in scenario.model_fields_set:
        return scenario.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-") or "scenario"


def _make_room(data: dict[str, Any], changed: set[str]) -> dict[str, Any]:
    """Options say one thing and mean two: `--concurrency 8` is closed loop, whatever the file."""
    room = dict(data)
    for given, other in (("duration", "requests"), ("requests", "duration")):
        if given in changed and other not in changed:
            room.pop(other, None)
    prompts, arrivals = room.get("prompts"), room.get("arrivals")
    if isinstance(prompts, dict) and {"prompts.input_tokens", "prompts.file"} & changed:
        room["prompts"] = {key: prompts[key] for key in prompts.keys() & _KEPT}
    if isinstance(arrivals, dict) and "arrivals.process" not in changed:
        closed = arrivals.get("process") == "closed"
        if "arrivals.users" in changed and not closed:
            room["arrivals"] = {"process": "closed"}
        elif "arrivals.rate" in changed and "arrivals.users" not in changed:
            if closed or arrivals.get("process") == "trace":
                room["arrivals"] = {"process": "poisson"}
            else:
                shaped = arrivals.keys() - set(_OWN_RATES)
                room["arrivals"] = {key: arrivals[key] for key in shaped}
    return room


def _overrides(changes: Mapping[str, object]) -> tuple[Override, ...]:
    return tuple(_override(key, value) for key, value in changes.items())


def _override(key: str, value: object) -> Override:
    option = _OPTION_OF.get(key, f"--set {key}")
    if isinstance(value, str) and key not in _AS_TEXT:
        value = read_value(value)
    elif value == "null" and key not in _OPTION_OF:
        value = None  # takes back what the file says
    return Override(option, tuple(key.split(".")), value)
