"""Load through Locust: users whose requests are timed per token, and a scenario as a user.

The only module that imports locust, which patches the process's sockets and threads. In a
locustfile, `from prony_loadgen import LLMUser` is enough: a run folder is written and judged for
each test that Locust runs. `prony run` uses Locust as a library, through `run`.
"""

import logging
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import gevent
from gevent.event import Event
from locust import User, task
from locust import events as _events
from locust.env import Environment
from locust.event import Events
from locust.exception import (
    InterruptTaskSet,
    RescheduleTask,
    RescheduleTaskImmediately,
    StopTest,
    StopUser,
)
from locust.runners import MasterRunner, WorkerRunner
from locust.util.timespan import parse_timespan
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from prony_loadgen.command_line import told
from prony_loadgen.crew import Crew
from prony_loadgen.drive import Load, LoadOver
from prony_loadgen.endpoint import reach
from prony_loadgen.fleet import Fleet
from prony_loadgen.job import TO_MASTER, job_of
from prony_loadgen.locust_options import add_options
from prony_loadgen.progress import Progress
from prony_loadgen.prompt import Prompt
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import Scenario
from prony_loadgen.settings import Judge, Observer, Settings, for_scenario
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.target import Target
from prony_loadgen.telemetry import LoadMetrics
from prony_loadgen.token_count import BY_WORDS
from prony_loadgen.token_probe import tokens_at
from prony_loadgen.under_way import INVALID
from prony_loadgen.web_tab import WebTab
from prony_loadgen.wiring import Users, Wiring, WorkerWiring, crew_of, workers_of

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
        return self._load().think_time()

    @task
    def drive(self) -> None:
        load = self._load()
        if load.settings.loop == "open":
            load.dispatch()
            raise StopUser
        draft = load.next_draft()
        if draft is None:
            raise StopUser
        try:
            for record in load.converse(draft):
                _fire(self.environment, load, record, self.context())
        except LoadOver:
            raise StopUser from None


Exporting = Callable[[Collector], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a command line says beside the scenario."""

    target: str | None = None
    api_key_env: str | None = None
    out: Path | None = None
    probe: bool = True
    dry_run: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    exporting: Exporting | None = None  # sends the run's series elsewhere while it goes on
    beside: Callable[[CollectorRegistry], object] | None = None  # adds series of this host
    quiet: bool = False
    processes: int = 1
    web_port: int | None = None  # opens Locust's web UI there
    lost_worker: Literal["invalid", "warn"] = "invalid"
    slo: tuple[str, ...] = ()  # what the judge judges by, as it was named
    argv: tuple[str, ...] = ()  # the command line, its program first
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
    with ExitStack() as stack:
        if options.metrics_port is not None or options.exporting is not None:
            registry = _exported(options)
            settings = replace(settings, metrics=LoadMetrics(registry, settings.run_id))
            if options.exporting is not None:
                stack.enter_context(options.exporting(registry))
        if options.processes > 1:
            job = job_of(scenario, settings, api_key_env=options.api_key_env)
            return run_together(
                settings, job, options.processes, quiet=options.quiet, web_port=options.web_port
            )
        return run(settings, quiet=options.quiet, web_port=options.web_port)


def run(settings: Settings, *, quiet: bool = False, web_port: int | None = None) -> int:
    """Runs what was agreed in this process, with Locust as a library; returns the exit code."""
    environment = _environment(settings)
    runner = environment.create_local_runner()
    progress, over = Progress(None if quiet else sys.stderr), Event()
    tab = None if web_port is None else _opened(environment, web_port)
    if tab is not None:
        settings = replace(settings, metrics=settings.metrics or tab.metrics)
    users = _users_of(environment)
    load = Load(
        settings,
        on_record=lambda record: users.tell(load, record),
        say=progress.say,
        on_end=over.set,
    )
    users.join(load)
    if tab is not None:
        tab.show(load)
    return _through(environment, runner, load, progress, over)


def run_together(
    settings: Settings,
    job: dict[str, Any],
    processes: int,
    *,
    quiet: bool = False,
    web_port: int | None = None,
) -> int:
    """Runs what was agreed in so many processes, this one their master; returns the exit code.

    Raises FileError where they cannot begin: no load was sent then.
    """
    environment = _environment(settings)
    runner = environment.create_master_runner("127.0.0.1", 0)
    progress, over = Progress(None if quiet else sys.stderr), Event()
    crew = crew_of(runner, settings, job, say=progress.say, on_end=over.set)
    for kind in TO_MASTER:
        runner.register_message(kind, lambda msg, **_: crew.hear(msg.type, msg.node_id, msg.data))
    tab = None if web_port is None else _opened(environment, web_port)
    with Fleet("127.0.0.1", runner.server.port, processes) as fleet:
        try:
            fleet.wait_until(lambda: len(runner.clients.ready) == processes)
            if tab is not None:
                crew.settings = replace(settings, metrics=settings.metrics or tab.metrics)
                tab.show(crew)
            crew.muster(workers_of(runner))
        except BaseException:
            runner.quit()
            raise
        return _through(environment, runner, crew, progress, over)


def work(host: str, port: int) -> None:
    """A worker of `run_together`, until its master has no more for it to do."""
    environment = _environment(None)
    environment.create_worker_runner(host, port)
    WorkerWiring(environment, _users_of(environment)).install()
    runner = environment.runner
    assert runner is not None
    runner.greenlet.join()


def _environment(settings: Settings | None) -> Environment:
    # Spawning all users at once is what a scenario means, not a mistake to warn of.
    logging.getLogger("locust.runners").setLevel(logging.ERROR)
    kind = type("ScenarioUser", (ScenarioUser,), {})
    own_events = Events()  # type: ignore[no-untyped-call]
    host = None if settings is None else settings.target.url
    return Environment(user_classes=[kind], events=own_events, host=host)


def _through(
    environment: Environment, runner: Any, run: Load | Crew, progress: Progress, over: Event
) -> int:
    """Lets Locust run it to its end, or to that which a signal or the web UI sets."""
    watchers = [
        gevent.signal_handler(number, lambda: progress.note(run.interrupt()))
        for number in (signal.SIGINT, signal.SIGTERM)
    ]

    def stop(**_: Any) -> None:
        run.end("stopped through Locust before its end")
        over.set()

    hooks: Any = environment.events
    hooks.test_stopping.add_listener(stop)
    try:
        users = _users(run.settings)
        runner.start(users, spawn_rate=users)
        over.wait()
    finally:
        progress.end()
        run.end()
        for watcher in watchers:
            watcher.cancel()
        runner.quit()
        web_ui: Any = environment.web_ui
        if web_ui is not None:
            web_ui.stop()
    return INVALID if run.exit_code is None else run.exit_code


def _opened(environment: Environment, port: int) -> WebTab:
    """Locust's web UI with our tab. Raises FileError where the port is taken."""
    try:
        with socket.create_server(("127.0.0.1", port)) as free:
            port = free.getsockname()[1]
    except OSError as error:
        raise FileError([f"--web-port {port}: {error.strerror}"]) from None
    # Locust's page reads the command line for options of Locust's, which ours has none of.
    del sys.argv[1:]
    web_ui: Any = environment.create_web_ui("127.0.0.1", port, delayed_start=True)
    tab = WebTab(web_ui)
    web_ui.start()
    print(f"web UI: http://127.0.0.1:{port}/?tab=prony", flush=True)
    return tab


def _agreed(scenario: Scenario, judge: Judge, options: RunOptions) -> Settings:
    if options.dry_run and not options.probe:
        nowhere = Target(url="", host="", port=0, base_path="")
        return for_scenario(scenario, nowhere, scenario.model or "", judge)
    target, model = reach(scenario, options.target, options.api_key_env, probing=options.probe)
    tokens = tokens_at(scenario, target, model) if options.probe else BY_WORDS
    settings = for_scenario(scenario, target, model, judge, out=options.out, tokens=tokens)
    return replace(
        settings,
        observers=options.observers,
        lost_worker=options.lost_worker,
        slo=options.slo or ((scenario.slo,) if scenario.slo else ()),
        command=told(options.argv, settings.seed) if options.argv else None,
    )


def _users(settings: Settings) -> int:
    """How many Locust users a scenario needs: one hands over all of an open-loop schedule."""
    scenario = settings.scenario
    return 1 if scenario is None else scenario.arrivals.users or 1


def _exported(options: RunOptions) -> CollectorRegistry:
    """A registry, on a port where one was asked for. Raises FileError where that is taken."""
    registry, port, host = CollectorRegistry(), options.metrics_port, options.metrics_host
    if port is not None:
        try:
            # Its thread is a greenlet here: the hub answers scrapes, not the client's thread.
            start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            where = f"--metrics-port {port} at {host}"
            raise FileError([f"{where}: {error.strerror or error}"]) from None
    if options.beside is not None:
        options.beside(registry)
    return registry


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


# --- locust -f -------------------------------------------------------------------------------


def _on_init(environment: Environment, **_: Any) -> None:
    if not any(issubclass(kind, LLMUser) for kind in environment.user_classes):
        return
    if isinstance(environment.runner, WorkerRunner):
        WorkerWiring(environment, _users_of(environment)).install()
        return
    options: Any = environment.parsed_options
    Wiring(
        environment,
        _users_of(environment),
        role="master" if isinstance(environment.runner, MasterRunner) else "local",
        by_scenario=all(issubclass(kind, ScenarioUser) for kind in environment.user_classes),
        limit=_seconds(options.run_time) if options else None,
    ).install()


def _users_of(environment: Environment) -> Users:
    def join(load: Load | None) -> None:
        if load is None:
            _LOADS.pop(environment, None)
        else:
            _LOADS[environment] = load

    def raised(exception: BaseException, **_: Any) -> None:
        if (load := _LOADS.get(environment)) is not None:
            load.session.task_raised(exception)

    hooks: Any = environment.events
    hooks.user_error.add_listener(raised)
    return Users(join, lambda load, record: _fire_for_nobody(environment, load, record))


def _seconds(run_time: int | str | None) -> float | None:
    if not run_time:
        return None
    return float(parse_timespan(run_time) if isinstance(run_time, str) else run_time)


# Importing this module is what makes `locust -f` know Prony.
_hooks.init_command_line_parser.add_listener(add_options)
_hooks.init.add_listener(_on_init)
