"""What Locust's events mean for a run: a process of `locust -f` in, a run folder a test out.

A process runs the whole load, or is the master of workers, or one of these. Locust itself is
imported by locust_user.py alone: its objects come in as arguments.
"""

import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import gevent

from prony_loadgen.command_line import told
from prony_loadgen.crew import Crew
from prony_loadgen.drive import Load
from prony_loadgen.endpoint import reach
from prony_loadgen.job import TO_MASTER, TO_WORKERS, job_of
from prony_loadgen.locust_options import changes
from prony_loadgen.progress import Progress
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import Scenario, Talk, load_scenario, talk_from
from prony_loadgen.settings import (
    Settings,
    for_scenario,
    for_tasks,
    installed_judge,
    installed_profiler,
)
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.target import TargetError
from prony_loadgen.token_count import BY_WORDS
from prony_loadgen.token_probe import tokens_at
from prony_loadgen.under_way import INVALID
from prony_loadgen.web_tab import WebTab
from prony_loadgen.worker import Part

Role = Literal["local", "master"]


@dataclass(frozen=True, slots=True)
class Users:
    """What the users of a Locust process need: the load that they are part of, and an audience."""

    join: Callable[[Load | None], None]  # from now on they are part of it; None: of nothing
    tell: Callable[[Load, RequestRecord], None]  # a record that no user waits for


class Wiring:
    """Runs of one Locust process: a folder for each test that it starts and stops."""

    def __init__(
        self,
        environment: Any,
        users: Users,
        *,
        role: Role,
        by_scenario: bool,
        limit: float | None,
    ) -> None:
        """`by_scenario`: its users only send what a scenario says. `limit` is Locust's -t."""
        self._environment = environment
        self._users = users
        self._role = role
        self._by_scenario = by_scenario
        self._options: Any = environment.parsed_options
        self._runner: Any = environment.runner
        self._headless = bool(self._options and self._options.headless)
        self._limit = limit if self._headless else None
        self._ready: tuple[Settings, Talk] | None = None
        self._load: Load | Crew | None = None
        self._crew: Crew | None = None  # also while it musters its workers
        self._leaving = False
        self._tab: WebTab | None = None
        # Locust prints tables of its own to the terminal, so no line is rewritten between them.
        self._progress = Progress(sys.stderr, rewrite=False)

    def install(self) -> None:
        """Listens to Locust. Without a web UI, whatever is wrong ends the process here: exit 2."""
        hooks: Any = self._environment.events
        hooks.test_start.add_listener(self._start)
        hooks.test_stopping.add_listener(self._stopping)
        hooks.test_stop.add_listener(self._stop)
        hooks.quitting.add_listener(self._quit)
        if self._role == "master":
            for kind in TO_MASTER:
                self._runner.register_message(kind, self._heard)
        if self._environment.web_ui is not None:
            self._tab = WebTab(self._environment.web_ui)
        if self._headless:
            try:
                self._ready = self._prepared()
            except (FileError, TargetError) as error:
                self._leave(str(error))
            gevent.signal_handler(signal.SIGINT, self._interrupt)

    def _leave(self, message: str) -> NoReturn:
        print(f"error: {message}", file=sys.stderr)
        if self._role == "master":
            self._runner.quit()  # else its workers would wait for it
        sys.exit(2)

    def _start(self, **_: Any) -> None:
        self._load = None
        try:
            self._begin(*(self._ready or self._prepared()))
        except (FileError, TargetError) as error:
            # With a web UI the target may be mended and the test started again.
            print(f"error: {error}", file=sys.stderr)
            self._users.join(None)
            self._environment.process_exit_code = 2
            gevent.spawn(self._runner.quit if self._headless else self._runner.stop)
        finally:
            self._ready = None

    def _begin(self, settings: Settings, talk: Talk) -> None:
        if self._tab is not None:
            settings = replace(settings, metrics=self._tab.metrics)
        if self._role == "master":
            job = job_of(talk, settings, api_key_env=self._options.api_key_env, limit=self._limit)
            self._crew = crew = crew_of(
                self._runner, settings, job, say=self._progress.say, on_end=self._end_test
            )
            crew.muster(workers_of(self._runner))
            self._load = crew
        else:
            self._load = load = Load(
                settings,
                on_record=lambda record: self._users.tell(load, record),
                say=self._progress.say,
                on_end=self._end_test,
            )
            self._users.join(load)
        if self._tab is not None:
            self._tab.show(self._load)

    def _heard(self, msg: Any, **_: Any) -> None:
        if self._crew is not None:
            self._crew.hear(msg.type, msg.node_id, msg.data)

    def _stopping(self, **_: Any) -> None:
        """Locust is about to stop the test: its -t, its web UI, a shape, or our own end."""
        # Its workers stop first, and then the run would look as if it had come to its end.
        if isinstance(self._load, Crew) and self._load.going and (early := self._early()):
            self._load.mark(early=early)

    def _stop(self, **_: Any) -> None:
        load = self._load
        if load is None:
            return
        early = self._early()
        if gevent.getcurrent() in self._runner.user_greenlets:
            # A listener stopped the test, in a user that is being killed: it may not wait.
            gevent.spawn(load.end, early)
        else:
            load.end(early)

    def _early(self) -> str | None:
        assert self._load is not None
        by_schedule = self._load.settings.loop == "open" and not self._options.run_time
        return "stopped through Locust before its end" if by_schedule else None

    def _quit(self, **_: Any) -> None:
        """Locust is about to read the exit code. What still runs was cut by a signal."""
        again, self._leaving = self._leaving, True
        load = self._load
        if load is None or load.folder is None:
            return
        if load.exit_code is None and (not again or _by_a_signal()):
            self._progress.note(load.interrupt())
        code = load.end()
        judged = load.folder.read_run().get("verdict") is not None
        # Without an SLO, Locust's own rule stays: 1 where requests failed.
        self._environment.process_exit_code = code if code or judged else None

    def _interrupt(self) -> None:
        if self._load is None or self._load.exit_code is not None:
            self._runner.quit()
            if self._role == "master" and self._load is None:
                sys.exit(INVALID)  # Locust may be waiting for workers, which nothing else ends
        else:
            self._progress.note(self._load.interrupt())

    def _end_test(self) -> None:
        if self._leaving:
            return
        if self._headless:
            self._runner.quit()
        else:
            self._runner.stop()

    def _prepared(self) -> tuple[Settings, Talk]:
        """The settings of the next test; also tells Locust how many users they need.

        Raises FileError or TargetError.
        """
        options, environment = self._options, self._environment
        changed = changes(options)
        scenario = None
        if self._by_scenario or options.scenario:
            scenario = load_scenario(options.scenario or "chat", changed)
        talk = scenario or talk_from(changed)
        judge = installed_judge(options.slo, talk.slo)
        url = environment.host or next((k.host for k in environment.user_classes if k.host), None)
        target, model = reach(talk, url, options.api_key_env, probing=not options.no_probe)
        judge = installed_profiler(judge, target, options.profile_when)
        out, limit = self._out(), self._limit
        if self._by_scenario and scenario is not None:
            talk = scenario = self._with_users(scenario)
            tokens = BY_WORDS if options.no_probe else tokens_at(scenario, target, model)
            settings = for_scenario(
                scenario, target, model, judge, out=out, limit=limit, tokens=tokens
            )
        else:
            settings = for_tasks(
                self._name(), talk, target, model, judge,
                facts={"locustfile": environment.locustfile, "users": options.num_users or 1},
                out=out, limit=limit,
            )  # fmt: skip
        settings = replace(
            settings,
            lost_worker=options.lost_worker,
            slo=tuple(options.slo) or ((talk.slo,) if talk.slo else ()),
            command=told(sys.argv, settings.seed),
        )
        for line in settings.lines():
            print(line, flush=True)
        return settings, talk

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
        out = Path(self._options.out) if self._options.out else None
        if out is None or self._headless:
            return out
        number = 1 + sum(1 for _ in out.glob("run-*")) if out.exists() else 1
        return out / f"run-{number}"


class WorkerWiring:
    """A worker's process: its master says what to do."""

    def __init__(self, environment: Any, users: Users) -> None:
        self._environment = environment
        self._runner: Any = environment.runner
        self._users = users
        self._interrupts = 0
        self._leaving = False
        self._part = Part(self._runner.send_message, on_record=users.tell)

    def install(self) -> None:
        hooks: Any = self._environment.events
        hooks.test_stop.add_listener(self._stop)
        hooks.quitting.add_listener(self._quit)
        for kind in TO_WORKERS:
            self._runner.register_message(kind, self._hear)
        gevent.signal_handler(signal.SIGINT, self._interrupt)

    def _hear(self, msg: Any, **_: Any) -> None:
        self._part.hear(msg.type, msg.data)
        self._users.join(self._part.load)

    def _stop(self, **_: Any) -> None:
        if self._part.load is not None:
            self._part.load.end()

    def _quit(self, **_: Any) -> None:
        again, self._leaving = self._leaving, True
        load = self._part.load
        if load is not None:
            if load.exit_code is None and (not again or _by_a_signal()):
                load.interrupt()
            load.end()
        # The verdict is the master's.
        self._environment.process_exit_code = 0

    def _interrupt(self) -> None:
        """A Ctrl-C in a terminal reaches the master too, which then says what to do."""
        self._interrupts += 1
        if self._interrupts > 1 or not self._part.under_way:
            self._runner.quit()


def _by_a_signal() -> bool:
    """Whether Locust quits here because of one. It does so again as its runner ends meanwhile, in
    the main greenlet, and that is nobody's wish to quit at once.
    """
    return isinstance(gevent.getcurrent(), gevent.Greenlet)


def crew_of(
    runner: Any,
    settings: Settings,
    job: dict[str, Any],
    *,
    say: Callable[[str], None],
    on_end: Callable[[], None],
) -> Crew:
    """The master's side of a run, whose workers are those of Locust's master runner."""
    return Crew(
        settings,
        job,
        send=runner.send_message,
        alive=lambda: {id for id, node in runner.clients.items() if node.state != "missing"},
        say=say,
        on_end=on_end,
    )


def workers_of(runner: Any) -> list[str]:
    """The ids of the workers that can take part, in the order in which they came."""
    nodes = runner.clients.ready + runner.clients.running + runner.clients.spawning
    ids: list[str] = [node.id for node in nodes]
    return sorted(ids, key=runner.get_worker_index)
