"""A scenario file in, options that override it in, one validated Scenario out.

docs/scenarios.md describes every key; docs/scenario.schema.json is this model for editors.
"""

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from prony_loadgen import shipped
from prony_loadgen.lengths import Lengths
from prony_loadgen.strict_yaml import (
    Count,
    Duration,
    FileError,
    Number,
    Override,
    StrictModel,
    load,
    loads,
    nearest,
    read_value,
)

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
    "--timeout": "timeouts.total",
    "--header": "headers",
    "--extra-body": "extra_body",
    "--keep-text": "keep_text",
    "--seed": "seed",
}
_OPTION_OF = {path: option for option, path in OPTIONS.items()}
_AS_TEXT = {"target", "dialect", "model", "prompts.file", "slo"}

Dialect = Literal["openai-chat", "openai-completions"]


class Prompts(StrictModel):
    """What is asked: lengths to make prompts of, or a JSONL file of prompts."""

    input_tokens: Lengths | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "Prompts":
        if (self.input_tokens is None) == (self.file is None):
            raise ValueError("needs either input_tokens (lengths of made prompts) or file (JSONL)")
        return self


class Output(StrictModel):
    """How much is asked for. `forced` asks the engine to ignore its end token."""

    tokens: Lengths = Lengths(value=128)
    mode: Literal["forced", "natural"] = "natural"


class Arrivals(StrictModel):
    """When requests come: at a rate, whatever the target does, or from users who wait."""

    process: Literal["poisson", "constant", "closed"] = "poisson"
    rate: Number | None = Field(default=None, gt=0, le=100_000)  # requests a second
    users: Count | None = Field(default=None, ge=1, le=100_000)
    think_time: Duration = 0.0  # between an answer and the user's next request

    @model_validator(mode="after")
    def _fits_process(self) -> "Arrivals":
        if self.process == "closed":
            if self.users is None:
                raise ValueError("closed needs users, for example `users: 8`")
            if self.rate is not None:
                raise ValueError("closed has users, not a rate: its rate is what the target allows")
        else:
            if self.rate is None:
                raise ValueError(f"{self.process} needs a rate in requests a second")
            if self.users is not None:
                raise ValueError(f"{self.process} has a rate, not users; users are for closed")
            if self.think_time:
                raise ValueError(f"{self.process} has no think_time; that is for closed")
        return self

    @property
    def open_loop(self) -> bool:
        return self.process != "closed"


class TimeoutSpec(StrictModel):
    """When to give up, from the moment that the request is sent; drain is for the run's end."""

    connect: Duration = Field(default=5.0, gt=0)
    first_token: Duration | None = Field(default=None, gt=0)
    total: Duration = Field(default=300.0, gt=0)
    drain: Duration = 30.0


class Talk(StrictModel):
    """How to talk to the target and what to keep, whatever is asked of it."""

    target: str | None = None
    dialect: Dialect = "openai-chat"
    model: str | None = None
    timeouts: TimeoutSpec = TimeoutSpec()
    headers: dict[str, str] = Field(default_factory=dict)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    keep_text: bool = False
    # A fresh one each time: a repeated seed repeats its prompts, which a server may have cached.
    seed: Count = Field(default_factory=lambda: random.SystemRandom().randrange(2**31), ge=0)
    slo: str | None = None
    warmup: Duration | None = None  # load that comes before what is measured; None: the SLO's

    @field_validator("headers")
    @classmethod
    def _headers_are_lines(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ValueError(f"{name!r} is not a header name")
            if not value.isprintable():
                raise ValueError(f"the value of {name!r} holds characters that no header may hold")
        return headers

    @field_validator("extra_body")
    @classmethod
    def _body_leaves_ours(cls, body: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        ours = {"model", "messages", "prompt", "stream"} & body.keys()
        if ours:
            raise ValueError(f"Prony sets {', '.join(sorted(ours))} itself")
        return body

    def resolved(self) -> dict[str, Any]:
        """What run.json keeps: every value that was used, but header values, which may be keys."""
        facts = self.model_dump(mode="json", exclude_none=True)
        facts["headers"] = sorted(self.headers)
        return facts


class Scenario(Talk):
    """One kind of load: what is asked, how often, for how long."""

    name: str = Field(default="scenario", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    prompts: Prompts
    output: Output = Output()
    arrivals: Arrivals
    duration: Duration | None = Field(default=None, gt=0)  # of what is measured
    requests: Count | None = Field(default=None, ge=1)  # that are measured

    @model_validator(mode="after")
    def _ends(self) -> "Scenario":
        if self.duration is None and self.requests is None:
            raise ValueError("needs a duration (such as 30s) or a number of requests")
        return self


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
    prompts = scenario.prompts
    if prompts.file is None or "prompts.file" in changes:
        return scenario
    # A file's own paths are relative to it.
    beside = prompts.model_copy(update={"file": str(path.parent / prompts.file)})
    return scenario.model_copy(update={"prompts": beside})


def talk_from(overrides: Mapping[str, object]) -> Talk:
    """How to talk to the target where there is no scenario, only options. Raises FileError."""
    return loads("{}", "options", Talk, _overrides(overrides))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of scenario files, as committed in docs/scenario.schema.json."""
    schema = Scenario.model_json_schema(mode="validation")
    schema["title"] = "Prony scenario"
    for definition in ("Lengths",):
        # The short forms that the model takes before validation.
        full = schema["$defs"].pop(definition)
        schema["$defs"][definition] = {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\d+(-|\.\.)\d+$"},
                full,
            ]
        }
    return schema


def _not_found(name: str) -> str:
    known = shipped.names("scenarios")
    if Path(name).suffix in {".yaml", ".yml"}:
        return f"{name}: no such scenario file"
    return (
        f"no scenario is called {name!r}{nearest(name, known)} "
        f"(shipped: {', '.join(known)}; or give the path of a YAML file)"
    )


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
        room["prompts"] = {}
    if isinstance(arrivals, dict) and "arrivals.process" not in changed:
        closed = arrivals.get("process") == "closed"
        if "arrivals.users" in changed and not closed:
            room["arrivals"] = {"process": "closed"}
        elif "arrivals.rate" in changed and "arrivals.users" not in changed and closed:
            room["arrivals"] = {"process": "poisson"}
    return room


def _overrides(changes: Mapping[str, object]) -> tuple[Override, ...]:
    return tuple(_override(key, value) for key, value in changes.items())


def _override(key: str, value: object) -> Override:
    option = _OPTION_OF.get(key, f"--set {key}")
    if isinstance(value, str) and key not in _AS_TEXT:
        value = read_value(value)
    return Override(option, tuple(key.split(".")), value)
