"""What a run needs, agreed before it starts: a scenario or a locustfile in, Settings out."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from math import inf
from pathlib import Path
from typing import Any, Literal, Protocol

from prony_loadgen.dispatch import Form
from prony_loadgen.folder import RunFolder, refuse_used
from prony_loadgen.live import Live
from prony_loadgen.plan import Plan, make_plan
from prony_loadgen.prompt_file import read_prompts
from prony_loadgen.quality import BY_FINISH, BY_TEXT
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import Scenario, Talk
from prony_loadgen.schedule import end_of, schedule, stages_of
from prony_loadgen.strict_yaml import LONGEST, FileError
from prony_loadgen.summary import Stage
from prony_loadgen.target import Target
from prony_loadgen.telemetry import LoadMetrics
from prony_loadgen.token_count import BY_WORDS, TokenCount

Observer = Callable[[RequestRecord], None]


class Judge(Protocol):
    """What judges a run; prony.judging has it. Tests bring their own."""

    @property
    def warmup(self) -> float | None:
        """Seconds of warm-up that the SLO asks for where the scenario sets none."""
        ...

    @property
    def watching(self) -> bool:
        """Whether `breached` can ever say anything, so that it must be shown each record."""
        ...

    def plan(self, plan: Plan, window: tuple[float, float]) -> list[str]:
        """Lines on whether the SLO can be decided with `plan`; printed before load."""
        ...

    def begin(self, origin_unix: float) -> None:
        """The load begins: `origin_unix` is the wall clock's time at the run's second 0."""
        ...

    def breached(self, record: RequestRecord) -> str | None:
        """Takes each record; why the run should stop now, or None."""
        ...

    def so_far(self, seen: Live) -> list[dict[str, Any]]:
        """What can be said of each objective while the run goes on, for people who watch.

        Each has `id`, `promise`, `now` and `tone` ("pass", "breach" or "unknown").
        """
        ...

    def finish(self, folder: RunFolder) -> int:
        """Judges the finished folder, writes and prints what there is to say; the exit code."""
        ...


class NoJudge:
    """Where nothing is installed that judges: the run folder is written, the exit code is 0."""

    warmup: float | None = None
    watching = False

    def plan(self, plan: Plan, window: tuple[float, float]) -> list[str]:
        return []

    def begin(self, origin_unix: float) -> None:
        return None

    def breached(self, record: RequestRecord) -> str | None:
        return None

    def so_far(self, seen: Live) -> list[dict[str, Any]]:
        return []

    def finish(self, folder: RunFolder) -> int:
        return 4 if folder.read_run()["interrupted"] else 0


def installed_judge(slo: Sequence[str], scenario_slo: str | None) -> Judge:
    """The judge that is installed, for those who are not given one. Raises FileError.

    This package must not import it: the arrows point the other way.
    """
    for point in entry_points(group="prony.judge"):
        made: Judge = point.load()(slo, scenario_slo)
        return made
    if slo:
        raise FileError(["--slo: nothing is installed that judges (entry point prony.judge)"])
    return NoJudge()


def installed_profiler(judge: Judge, target: Target, when: str | None) -> Judge:
    """The judge that also takes profiles of the target, where `when` asks. Raises FileError."""
    if when is None:
        return judge
    for point in entry_points(group="prony.profile"):
        made: Judge = point.load()(judge, target, when)
        return made
    raise FileError(
        ["--profile-when: nothing is installed that profiles (entry point prony.profile)"]
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's part of a run: every `of`-th request, from number `index` on."""

    index: int = 0
    of: int = 1

    def share(self, total: int) -> int:
        """How many of `total` requests it makes."""
        return len(range(self.index, total, self.of))


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a run needs and that was checked before it."""

    name: str  # of the scenario or locustfile; names the folder
    facts: Mapping[str, Any]  # what run.json keeps of the scenario
    scenario: Scenario | None  # None where a locustfile's own tasks make the load
    target: Target
    form: Form
    loop: Literal["open", "closed"]
    seed: int
    judge: Judge
    plan: Plan
    warmup: float
    drain: float  # how long to wait at the end for what is in flight
    schedule: Sequence[float] | None = None  # open loop: when each request is due
    ends: float | None = None  # when sending ends, where that is known before
    stages: Sequence[Stage] = ()  # named parts of the schedule
    tokens: TokenCount = BY_WORDS  # what words cost at the target
    out: Path | None = None
    observers: tuple[Observer, ...] = ()
    metrics: LoadMetrics | None = None
    shard: Shard = Shard()
    lost_worker: Literal["invalid", "warn"] = "invalid"  # how a run that lost one is graded
    slo: tuple[str, ...] = ()  # as whoever asked named it, for run.json
    command: str | None = None  # the command line, without its secrets
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def window(self) -> tuple[float, float]:
        """When measuring begins and ends, as far as that is known before."""
        return self.warmup, inf if self.ends is None else self.ends

    @property
    def quality(self) -> tuple[str, ...]:
        """The shares of bad answers that are looked for, as SLO files call them."""
        return BY_TEXT if self.form.quality or self.form.keep_text else BY_FINISH

    def lines(self) -> list[str]:
        """The plan for people, and whether it can decide the SLO."""
        return [*self.target.notes, *self.plan.lines(), *self.judge.plan(self.plan, self.window)]


def for_scenario(
    scenario: Scenario,
    target: Target,
    model: str,
    judge: Judge,
    *,
    out: Path | None = None,
    limit: float | None = None,
    tokens: TokenCount = BY_WORDS,
) -> Settings:
    """The settings of a run that a scenario drives.

    `limit` is when something else (Locust's -t) will end it; `tokens` says what words cost at the
    target (token_probe.py), so that made prompts are as long as was asked. Raises FileError for a
    file that is bad or does not fit the dialect or the context, and for an `out` that holds a run.
    """
    if out is not None:
        refuse_used(out)
    warmup = _warmup(scenario, judge)
    timed = scenario.model_copy(update={"warmup": warmup})
    if scenario.checks is not None:
        read_prompts(Path(scenario.checks), dialect=scenario.dialect)
    plan = make_plan(timed, limit, tokens)
    common = Settings(
        name=scenario.name,
        facts=scenario.resolved(),
        scenario=timed,
        target=target,
        form=_form(scenario, target, model, ignore_eos=scenario.output.mode == "forced"),
        loop="closed",
        seed=scenario.seed,
        judge=judge,
        plan=plan,
        warmup=warmup,
        drain=_drain(scenario),
        out=out,
        tokens=tokens,
    )
    if not scenario.arrivals.open_loop:
        return replace(common, ends=plan.seconds)
    due = schedule(timed, limit)
    ends = end_of(timed, due, limit)
    stages = stages_of(timed, ends)
    return replace(common, loop="open", schedule=due, ends=ends, stages=stages)


def for_tasks(
    name: str,
    talk: Talk,
    target: Target,
    model: str,
    judge: Judge,
    *,
    facts: Mapping[str, Any],
    out: Path | None = None,
    limit: float | None = None,
) -> Settings:
    """The settings of a run whose load a locustfile's own tasks make. Raises FileError."""
    if out is not None:
        refuse_used(out)
    return Settings(
        name=name,
        facts={"name": name, **talk.resolved(), **facts},
        scenario=None,
        target=target,
        form=_form(talk, target, model, ignore_eos=False),
        loop="closed",
        seed=talk.seed,
        judge=judge,
        plan=Plan(None, None, None, None, limit),
        warmup=_warmup(talk, judge),
        drain=_drain(talk),
        ends=None,
        out=out,
    )


def _form(talk: Talk, target: Target, model: str, *, ignore_eos: bool) -> Form:
    return Form(
        dialect=talk.dialect,
        model=model,
        ignore_eos=ignore_eos,
        extra_body=talk.extra_body,
        keep_text=talk.keep_text,
        left_out=target.left_out,
        renamed=target.renamed,
        cancel_share=talk.cancel_share,
        seed=talk.seed,
        quality=not isinstance(talk, Scenario) or talk.quality,
    )


def _warmup(talk: Talk, judge: Judge) -> float:
    if talk.warmup == "auto":
        return 0.0  # found when the run is judged
    own = judge.warmup if talk.warmup is None else talk.warmup
    if own is not None and own > LONGEST:
        raise FileError([f"the SLO's measure.warmup must be at most {LONGEST / 86400:g} days"])
    return own or 0.0


def _drain(talk: Talk) -> float:
    return min(talk.timeouts.drain, talk.timeouts.total)
