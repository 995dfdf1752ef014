"""Load through Locust: users whose requests are timed per token, and a scenario as a user.

The only module that imports locust, which patches the process's sockets and threads. In a
locustfile, `from prony_loadgen import LLMUser` is enough: a run folder is written and judged for
each test that Locust runs. `prony run` uses Locust as a library, through `run`.
"""

import logging
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import gevent
from gevent.event import Event
from locust import User, task
from locust import events as _events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.event import Events
from locust.exception import (
    InterruptTaskSet,
    RescheduleTask,
    RescheduleTaskImmediately,
    StopTest,
    StopUser,
)
from locust.runners import LocalRunner
from locust.util.timespan import parse_timespan
from prometheus_client import CollectorRegistry, start_http_server

from prony_loadgen.drive import INVALID, Load, LoadOver
from prony_loadgen.endpoint import reach
from prony_loadgen.progress import Progress
from prony_loadgen.prompt import Prompt
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import Scenario, load_scenario, talk_from
from prony_loadgen.settings import (
    Judge,
    Observer,
    Settings,
    for_scenario,
    for_tasks,
    installed_judge,
)
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.target import Target, TargetError
from prony_loadgen.telemetry import LoadMetrics

__all__ = ["LLMError", "LLMUser", "RunOptions", "ScenarioUser", "run", "run_scenario"]

Messages = str | Sequence[Mapping[str, Any]]

_hooks: Any = _events  # untyped in Locust

# The run under way in each of Locust's environments.
_LOADS: WeakKeyDictionary[Environment, Load] = WeakKeyDictionary()


class LLMError(Exception):
    """What Locust shows for a request that failed: the record's outcome and error."""


class LLMUser(User):
    """A Locust user whose requests stream from a language model and are timed per token."""

    abstract = True

    def chat(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = None,
        name: str = "chat",
        **extra: Any,
    ) -> RequestRecord:
        """Asks for a chat completion, waits for the end of its stream and returns the record.

        `messages` is one user message as text, or a list of messages. `name` is the class of the
        request in Locust's statistics and in the run folder; `extra` goes into the body
        (temperature, stop, ...). A request that fails returns a record too: see its `outcome`.
        """
        if isinstance(messages, str):
            prompt = Prompt(text=messages)
        else:
            prompt = Prompt(messages=tuple(messages))
        return self._ask(prompt, "openai-chat", name, max_tokens, extra)

    def complete(
        self, prompt: str, *, max_tokens: int | None = None, name: str = "complete", **extra: Any
    ) -> RequestRecord:
        """Asks for a completion of a text; otherwise like `chat`."""
        return self._ask(Prompt(text=prompt), "openai-completions", name, max_tokens, extra)

    def _ask(
        self,
        prompt: Prompt,
        dialect: str,
        name: str,
        max_tokens: int | None,
        extra: Mapping[str, Any],
    ) -> RequestRecord:
        load = self._load()
        try:
            record = load.ask(prompt, cls=name, max_tokens=max_tokens, dialect=dialect, extra=extra)
        except LoadOver:
            raise StopUser from None
        # Here, not where records come in: a listener may stop this very user.
        _fire(self.environment, load, record, self.context())
        return record

    def _load(self) -> Load:
        load = _LOADS.get(self.environment)
        if load is None:
            raise StopUser("no run is under way: an LLMUser works once Locust has started a test")
        return load


class ScenarioUser(LLMUser):
    """Sends what a scenario says. In open loop one such user hands over the whole schedule."""

    abstract = True

    def wait_time(self) -> float:
        scenario = self._load().settings.scenario
        return 0.0 if scenario is None else scenario.arrivals.think_time

    @task
    def drive(self) -> None:
        load = self._load()
        if load.settings.loop == "open":
            load.dispatch()
            raise StopUser
        draft = load.next_draft()
        if draft is None:
            raise StopUser
        scenario = load.settings.scenario
        assert scenario is not None
        try:
            record = load.ask(draft.prompt, cls=scenario.name, max_tokens=draft.output_tokens)
        except LoadOver:
            raise StopUser from None
        _fire(self.environment, load, record, self.context())


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a command line says beside the scenario."""

    target: str | None = None
    api_key_env: str | None = None
    out: Path | None = None
    probe: bool = True
    dry_run: bool = False
    metrics_port: int | None = None
    quiet: bool = False
    observers: tuple[Observer, ...] = ()


def run_scenario(scenario: Scenario, judge: Judge, options: RunOptions) -> int:
    """Checks the target, says the plan, runs the scenario and returns the exit code.

    Raises TargetError or FileError for what is found wrong before any load.
    """
    settings = _agreed(scenario, judge, options)
    for line in settings.lines():
        print(line, flush=True)
    if options.dry_run:
        return 0
    if options.metrics_port is not None:
        settings = replace(settings, metrics=_exported(options.metrics_port, settings.run_id))
    return run(settings, quiet=options.quiet)


def run(settings: Settings, *, quiet: bool = False) -> int:
    """Runs what was agreed, with Locust as a library; returns the exit code."""
    # Spawning all users at once is what a scenario means, not a mistake to warn of.
    logging.getLogger("locust.runners").setLevel(logging.ERROR)
    kind = type("ScenarioUser", (ScenarioUser,), {})
    own_events = Events()  # type: ignore[no-untyped-call]
    environment = Environment(user_classes=[kind], events=own_events, host=settings.target.url)
    runner = environment.create_local_runner()
    progress = Progress(None if quiet else sys.stderr)
    over = Event()
    load = Load(
        settings,
        on_record=lambda record: _fire_for_nobody(environment, load, record),
        say=progress.say,
        on_end=over.set,
    )
    _LOADS[environment] = load
    watchers = [
        gevent.signal_handler(number, lambda: progress.note(load.interrupt()))
        for number in (signal.SIGINT, signal.SIGTERM)
    ]
    try:
        users = _users(settings)
        runner.start(users, spawn_rate=users)
        over.wait()
    finally:
        progress.end()
        load.end()
        for watcher in watchers:
            watcher.cancel()
        runner.quit()
    return INVALID if load.exit_code is None else load.exit_code


def _agreed(scenario: Scenario, judge: Judge, options: RunOptions) -> Settings:
    if options.dry_run and not options.probe:
        nowhere = Target(url="", host="", port=0, base_path="")
        return for_scenario(scenario, nowhere, scenario.model or "", judge)
    target, model = reach(scenario, options.target, options.api_key_env, probing=options.probe)
    settings = for_scenario(scenario, target, model, judge, out=options.out)
    return replace(settings, observers=options.observers)


def _users(settings: Settings) -> int:
    """How many Locust users a scenario needs: one hands over all of an open-loop schedule."""
    scenario = settings.scenario
    return 1 if scenario is None else scenario.arrivals.users or 1


def _exported(port: int, run_id: str) -> LoadMetrics:
    registry = CollectorRegistry()
    try:
        # Its thread is a greenlet here: the hub answers scrapes, not the client's thread.
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise FileError([f"--metrics-port {port}: {error.strerror}"]) from None
    return LoadMetrics(registry, run_id)


def _fire(
    environment: Environment, load: Load, record: RequestRecord, context: Mapping[str, Any]
) -> None:
    """Tells Locust's listeners of a finished request, once, with the time to its last token."""
    seconds = record.ended - record.intended if record.e2e is None else record.e2e
    request: Any = environment.events.request
    request.fire(
        request_type="LLM",
        name=record.cls,
        response_time=seconds * 1000,
        response_length=record.output_tokens or 0,
        exception=None if record.ok else LLMError(f"{record.outcome}: {record.error or ''}"),
        context={**context, "ttft": record.ttft, "record": record},
        start_time=load.session.origin_unix + record.intended,
        url=load.settings.target.url,
        response=None,
    )


def _fire_for_nobody(environment: Environment, load: Load, record: RequestRecord) -> None:
    """The same for a request that no user waits for: a listener has no user here to stop."""
    try:
        _fire(environment, load, record, {})
    except (StopUser, InterruptTaskSet, RescheduleTask, RescheduleTaskImmediately):
        pass
    except StopTest as error:
        print(f"stopping the test: {error}", file=sys.stderr)
        options, runner = environment.parsed_options, environment.runner
        assert runner is not None
        gevent.spawn(runner.quit if options and options.headless else runner.stop)


# --- locust -f: options, and what Locust's events mean for a run -----------------------------


def _add_options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("Prony", "how the load is made, timed and judged")

    def add(option: str, **about: Any) -> None:
        name = option.removeprefix("--").replace("-", "_").upper()
        group.add_argument(option, env_var=f"PRONY_{name}", **about)

    add("--scenario", metavar="NAME", help="a shipped scenario or a YAML file")
    add(
        "--slo",
        action="append",
        default=[],
        metavar="SLO",
        help="a name, a file, or 'ttft p99 < 500ms'",
    )
    add("--out", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
    add("--model", metavar="NAME", help="default: the only one that the server lists")
    add("--dialect", metavar="NAME", help="for the scenario: openai-chat or openai-completions")
    add("--api-key-env", metavar="VAR", help="the environment variable with the key")
    add("--warmup", metavar="TIME", help="load that comes before what is measured")
    add("--seed", metavar="N", help="the same seed sends the same requests at the same times")
    add("--keep-text", action="store_const", const=True, help="store the output texts")
    add("--no-probe", action="store_true", help="leave out the request before the load")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any key of the scenario")


def _on_init(environment: Environment, **_: Any) -> None:
    if any(issubclass(kind, LLMUser) for kind in environment.user_classes):
        _Wiring(environment).install()


class _Wiring:
    """Runs of one Locust process: a folder for each test that it starts and stops."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._options: Any = environment.parsed_options
        self._runner: Any = environment.runner
        self._headless = bool(self._options and self._options.headless)
        self._by_scenario = all(issubclass(k, ScenarioUser) for k in environment.user_classes)
        self._ready: Settings | None = None
        self._load: Load | None = None
        self._leaving = False
        # Locust prints tables of its own to the terminal, so no line is rewritten between them.
        self._progress = Progress(sys.stderr, rewrite=False)

    def install(self) -> None:
        """Listens to Locust. Without a web UI, whatever is wrong ends the process here: exit 2."""
        if not isinstance(self._runner, LocalRunner):
            self._refuse_workers()
        hooks: Any = self._environment.events
        hooks.test_start.add_listener(self._start)
        hooks.test_stop.add_listener(self._stop)
        hooks.quitting.add_listener(self._quit)
        if self._headless:
            try:
                self._ready = self._prepared()
            except (FileError, TargetError) as error:
                _leave(str(error))
            gevent.signal_handler(signal.SIGINT, self._interrupt)

    def _refuse_workers(self) -> NoReturn:
        if self._options.worker and self._options.processes:
            sys.exit(2)  # the master of these processes says it
        _leave("--master, --worker and --processes are not supported yet; run one process")

    def _start(self, **_: Any) -> None:
        try:
            load = self._begun(self._ready or self._prepared())
        except (FileError, TargetError) as error:
            # With a web UI the target may be mended and the test started again.
            print(f"error: {error}", file=sys.stderr)
            _LOADS.pop(self._environment, None)
            self._load = None
            self._environment.process_exit_code = 2
            gevent.spawn(self._runner.stop)
            return
        self._ready = None
        self._load = _LOADS[self._environment] = load

    def _begun(self, settings: Settings) -> Load:
        load = Load(
            settings,
            on_record=lambda record: _fire_for_nobody(self._environment, load, record),
            say=self._progress.say,
            on_end=self._end_test,
        )
        return load

    def _stop(self, **_: Any) -> None:
        """Locust stopped the test: its -t, its web UI, a shape, or our own end."""
        if self._load is None:
            return
        by_schedule = self._load.settings.loop == "open" and not self._options.run_time
        early = "stopped through Locust before its end" if by_schedule else None
        if gevent.getcurrent() in self._runner.user_greenlets:
            # A listener stopped the test, in a user that is being killed: it may not wait.
            gevent.spawn(self._load.end, early)
        else:
            self._load.end(early)

    def _quit(self, **_: Any) -> None:
        """Locust is about to read the exit code. What still runs was cut by a signal."""
        self._leaving = True
        load = self._load
        if load is None:
            return
        if load.exit_code is None:
            self._progress.note(load.interrupt())
        code = load.end()
        judged = load.session.folder.read_run().get("verdict") is not None
        # Without an SLO, Locust's own rule stays: 1 where requests failed.
        self._environment.process_exit_code = code if code or judged else None

    def _interrupt(self) -> None:
        if self._load is None or self._load.exit_code is not None:
            self._runner.quit()
        else:
            self._progress.note(self._load.interrupt())

    def _end_test(self) -> None:
        if self._leaving:
            return
        if self._headless:
            self._runner.quit()
        else:
            self._runner.stop()

    def _prepared(self) -> Settings:
        """The settings of the next test; also tells Locust how many users they need.

        Raises FileError or TargetError.
        """
        options, environment = self._options, self._environment
        changes = self._changes()
        scenario = None
        if self._by_scenario or options.scenario:
            scenario = load_scenario(options.scenario or "chat", changes)
        talk = scenario or talk_from(changes)
        judge = installed_judge(options.slo, talk.slo)
        url = environment.host or next((k.host for k in environment.user_classes if k.host), None)
        target, model = reach(talk, url, options.api_key_env, probing=not options.no_probe)
        limit = _seconds(options.run_time) if self._headless else None
        if self._by_scenario and scenario is not None:
            scenario = self._with_users(scenario)
            settings = for_scenario(scenario, target, model, judge, out=self._out(), limit=limit)
        else:
            settings = for_tasks(
                self._name(), talk, target, model, judge,
                facts={"locustfile": environment.locustfile, "users": options.num_users or 1},
                out=self._out(), limit=limit,
            )  # fmt: skip
        for line in settings.lines():
            print(line, flush=True)
        return settings

    def _changes(self) -> dict[str, object]:
        options = self._options
        changes: dict[str, object] = {}
        for key in ("model", "dialect", "warmup", "seed", "keep_text"):
            if (value := getattr(options, key)) is not None:
                changes[key] = value
        for assignment in options.set:
            key, equals, value = assignment.partition("=")
            if not equals:
                raise FileError([f"--set {assignment}: expected KEY=VALUE"])
            changes[key] = value
        return changes

    def _with_users(self, scenario: Scenario) -> Scenario:
        """Closed loop takes Locust's -u; open loop needs one user whatever it says."""
        options = self._options
        if scenario.arrivals.open_loop:
            if (options.num_users or 1) > 1:
                print("note: an open-loop scenario is sent by one user; -u is ignored")
            options.num_users, options.spawn_rate = 1, 1
            for kind in self._environment.user_classes:
                kind.fixed_count = 1
            return scenario
        users = options.num_users or scenario.arrivals.users
        options.num_users, options.spawn_rate = users, options.spawn_rate or users
        arrivals = scenario.arrivals.model_copy(update={"users": users})
        return scenario.model_copy(update={"arrivals": arrivals})

    def _name(self) -> str:
        stem = Path(self._environment.locustfile or "locustfile").stem
        return re.sub(r"[^A-Za-z0-9._-]+", "-", stem)

    def _out(self) -> Path | None:
        """With a web UI one process makes many runs: --out then holds a folder for each."""
        out: Path | None = self._options.out
        if out is None or self._headless:
            return out
        number = 1 + sum(1 for _ in out.glob("run-*")) if out.exists() else 1
        return out / f"run-{number}"


def _leave(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _seconds(run_time: int | str | None) -> float | None:
    if not run_time:
        return None
    return float(parse_timespan(run_time) if isinstance(run_time, str) else run_time)


# Importing this module is what makes `locust -f` know Prony.
_hooks.init_command_line_parser.add_listener(_add_options)
_hooks.init.add_listener(_on_init)
