"""Whether one build is slower than another: interleaved pairs of runs, judged as they come.

Both builds answer the same requests at the same times (one seed a pair, a new one for each), in
random order, on the machine as it is that minute; the changes of the pairs are the sample. After
each pair from the third on it is decided whether that is enough; the level allows for looking.

--a and --b are URLs, or commands with {port} that Prony starts, waits for and stops:

  prony ab chat --a 'old/serve --port {port}' --b 'new/serve --port {port}' --slo gate.yaml
"""

import argparse
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony.errors import UsageError
from prony.gate import add_policy, add_slo
from prony.run import assignments

if TYPE_CHECKING:
    from prony.judging import Asked
    from prony.servers import Side
    from prony_slo.noise import NoiseProfile
    from prony_slo.pairs import Change, Pair
    from prony_slo.promise import Regression, SloFile
    from prony_slo.regression import RegressionResult

HELP = "whether one build is slower than another: interleaved pairs"

# A pair whose run cannot be trusted is left out and repeated, so often at most.
UNTRUSTED = 3
STOP_WAIT = 120.0  # seconds that an interrupted run may take to finish its folder


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("scenario", metavar="SCENARIO", help="a shipped one or a file")
    add("--a", required=True, metavar="URL|CMD", help="the build before: a URL, or a command")
    add("--b", required=True, metavar="URL|CMD", help="the build on trial")
    add_slo(parser)
    add_policy(parser)
    add("--pairs", metavar="N|MIN-MAX", help="in place of the SLO's regression.pairs (3-10)")
    add("--out", type=Path, metavar="DIR", help="of all runs (default: a new one in runs/)")
    add("--seed", type=int, metavar="N", help="of the order and of the pairs' seeds")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any key of the scenario")
    add("--model", metavar="NAME", help="default: the only one that each server lists")
    add(
        "--wait", type=float, default=600.0, metavar="S", help="how long a server may take to start"
    )
    add(
        "--one-at-a-time",
        action="store_true",
        help="start each server for its run only, where both do not fit beside each other",
    )


def run(args: argparse.Namespace) -> int:
    from prony.gate import asked
    from prony.servers import parse_side
    from prony_loadgen.folder import new_folder
    from prony_loadgen.scenario import load_scenario
    from prony_slo.objective import load_slo

    sides = {name: parse_side(name, getattr(args, name)) for name in "ab"}
    what = asked(args)
    scenario = load_scenario(args.scenario, assignments(args.set))
    names = what.slo or ((scenario.slo,) if scenario.slo else ())
    if not names:
        raise UsageError("--slo: name the SLO whose regression checks compare the builds")
    slo = load_slo(names)
    regression = _with_pairs(_checks_of(slo, scenario.arrivals.open_loop), args.pairs)
    slo = replace(slo, regression=regression)
    out = args.out or new_folder(f"ab-{scenario.name}")
    if args.out is not None:
        _make(out)
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**31)
    test = _Test(args, replace(what, slo=names), slo, regression, sides, out, seed)
    with test.interruptible(), ExitStack() as stack:
        if not args.one_at_a_time:
            for side in sides.values():
                test.urls[side.name] = stack.enter_context(test.serving(side))
        test.run_pairs()
    return test.finish()


@dataclass
class _Test:
    """One A/B test under way."""

    args: argparse.Namespace
    asked: "Asked"
    slo: "SloFile"
    regression: "Regression"
    sides: Mapping[str, "Side"]
    out: Path
    seed: int
    urls: dict[str, str] = field(default_factory=dict)
    pairs: list["Pair"] = field(default_factory=list)
    changes: dict[str, list["Change"]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)  # of verdict.json, a and b
    untrusted: list[str] = field(default_factory=list)
    profile: "NoiseProfile | None" = None
    results: tuple["RegressionResult", ...] = ()
    interrupted: bool = False
    child: "subprocess.Popen[bytes] | None" = None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the run under way in order, and then the test."""

        def interrupt(*_: object) -> None:
            self.interrupted = True
            if self.child is not None:
                self.child.send_signal(signal.SIGINT)

        before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def serving(self, side: "Side") -> Any:
        from prony.servers import running

        if side.command is not None:
            print(f"{side.name}: starting {side.command}", flush=True)
        return running(side, self.out / f"server-{side.name}.log", self.args.wait)

    def run_pairs(self) -> None:
        """Pairs until the checks have decided, or the most that are allowed are there."""
        from prony_slo.pairs import change
        from prony_slo.regression import decided, judge_changes

        rng = random.Random(self.seed)
        number = 0
        while len(self.pairs) < self.regression.max_pairs:
            number += 1
            # Drawn in one fixed order, so that the seed alone says what was sent.
            pair_seed, order = rng.randrange(2**31), rng.choice(("ab", "ba"))
            parts = self._run_pair(number, pair_seed, order)
            if not self._whole():
                return
            if parts is None:
                continue
            self.pairs.append(parts)
            for check in self.regression.checks:
                self.changes.setdefault(check.id, []).append(change(check, parts))
            self.results = judge_changes(self.regression, self.changes, self.profile)
            self._write_state()
            self._say_results()
            if len(self.pairs) >= self.regression.min_pairs and decided(self.results):
                return

    def finish(self) -> int:
        """Judges, writes and prints; the exit code."""
        from prony.comparing import Compared
        from prony.judging import judge_together, show_together
        from prony_loadgen.folder import RunFolder
        from prony_slo.regression import undecided

        trials = [RunFolder(Path(run["folder"])) for run in self.runs if run["side"] == "b"]
        results = self.results or tuple(
            undecided(check, f"{len(self.pairs)} pairs") for check in self.regression.checks
        )
        broken = any(r.verdict == "breach" and r.severity == "fail" for r in results)
        if not trials:
            print("no pair was finished, so there is no verdict", file=sys.stderr)
            return 4
        against = f"{self.regression.baseline.ref or 'a'}, {len(self.pairs)} pairs"
        told = judge_together(
            trials,
            self.asked,
            self.out,
            slo=self.slo,
            compared=Compared(results, "interleaved", against),
            entries=self.runs,
            # What a test that was cut has shown already, it has shown.
            cut=None if self._whole() else (1 if broken else 4),
        )
        self._learn()
        show_together(told, self.out)
        for name in self.untrusted:
            print(f"left out: {name}")
        code: int = told["exit_code"]
        return code

    def _whole(self) -> bool:
        return not self.interrupted and len(self.untrusted) <= UNTRUSTED

    def _run_pair(self, number: int, seed: int, order: str) -> "Pair | None":
        """One run of each side; None where one cannot be trusted, or after an interruption."""
        from prony.judging import read_part
        from prony_loadgen.folder import RunFolder
        from prony_slo.pairs import Pair
        from prony_slo.verdict_file import judged_run

        parts, entries = {}, []
        for side in order:
            folder = RunFolder(self.out / f"pair-{number:02}-{side}")
            why = self._run_once(side, folder.path, seed)
            if self.interrupted:
                return None
            if why is not None:
                if not self.pairs:  # nothing was compared yet, so this is a mistake of the asker
                    raise UsageError(f"--{side}: the run could not begin: {why}")
                self._leave_out(number, side, why)
                return None
            facts, parts[side] = read_part(folder, self.slo)
            self._note_server(folder, facts, side)
            if facts["verdict"] == "invalid":
                grave = [
                    doubt["message"] for doubt in facts["doubts"] if doubt["grade"] == "invalid"
                ]
                self._leave_out(number, side, grave[0] if grave else "the run broke off")
                return None
            entries.append(judged_run(folder.path, facts, side=side, pair=len(self.pairs) + 1))
            if self.profile is None:
                self._look_ahead(facts, parts[side].attempts)
        self.runs += sorted(entries, key=lambda entry: str(entry["side"]))
        return Pair(parts["a"], parts["b"])

    def _leave_out(self, number: int, side: str, why: str) -> None:
        self.untrusted.append(f"pair {number}, its {side} cannot be trusted: {why}")
        print(self.untrusted[-1], flush=True)

    def _run_once(self, side: str, folder: Path, seed: int) -> str | None:
        """One run, in a process of its own because Locust patches the process it is in.

        Returns why there is no run to judge, where there is none.
        """
        from prony.ci import quiet_environment

        with ExitStack() as stack:
            url = self.urls.get(side) or stack.enter_context(self.serving(self.sides[side]))
            command = [sys.executable, "-m", "prony", "run", self.args.scenario, "--target", url]
            command += ["--seed", str(seed), "--out", str(folder), "--quiet", "--no-regression"]
            command += [part for name in self.asked.slo for part in ("--slo", name)]
            command += [part for change in self.args.set for part in ("--set", change)]
            command += ["--model", self.args.model] if self.args.model else []
            log = self.out / "runs.log"
            with log.open("ab") as out:
                # Of its own session: an interruption is handed on once, in order.
                self.child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    env=quiet_environment(), start_new_session=True,
                )  # fmt: skip
                try:
                    code = self._await(self.child)
                finally:
                    self.child = None
        if code != 2 and (folder / "run.json").exists():
            return None
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else f'it ended with {code}'} (all of it: {log})"

    def _await(self, child: "subprocess.Popen[bytes]") -> int:
        while True:
            try:
                return child.wait(STOP_WAIT if self.interrupted else None)
            except subprocess.TimeoutExpired:
                child.kill()

    def _note_server(self, folder: Any, facts: dict[str, Any], side: str) -> None:
        """Which build it was, where the command says so: a part of the run's fingerprint."""
        command = self.sides[side].command
        if command is not None:
            facts["server"] = {**(facts.get("server") or {}), "command": command}
            folder.write_run(facts)

    def _look_ahead(self, facts: Mapping[str, Any], requests: int) -> None:
        """What the noise profile of this setting lets the test see, said before it decides."""
        from prony.noise_store import load
        from prony_slo.fingerprint import setting
        from prony_slo.regression import outlook

        self.profile = load(setting(facts))
        for line in outlook(self.regression, self.profile, requests):
            print(f"ahead: {line}", flush=True)

    def _say_results(self) -> None:
        done = len(self.pairs)
        if done < self.regression.min_pairs:
            print(f"pair {done} of at least {self.regression.min_pairs}", flush=True)
            return
        for result in self.results:
            print(f"pair {done}: {result.id}: {result.verdict}: {result.text}", flush=True)

    def _write_state(self) -> None:
        """pairs.json: every change that was seen, for whoever wants to judge again."""
        state = {
            "schema": 1,
            "seed": self.seed,
            "a": _said(self.sides["a"]),
            "b": _said(self.sides["b"]),
            "runs": self.runs,
            "untrusted": self.untrusted,
            "changes": {
                check: [{"value": each.value, "requests": each.requests, "note": each.note,
                         "floor": each.floor} for each in found]
                for check, found in self.changes.items()
            },
        }  # fmt: skip
        text = json.dumps(state, indent=1, ensure_ascii=False, allow_nan=False)
        (self.out / "pairs.json").write_text(
            text + "\n", encoding="utf-8", errors="backslashreplace"
        )

    def _learn(self) -> None:
        from prony.noise_store import save

        if self.profile is None or len(self.pairs) < 2:
            return
        try:
            path = save(self.profile.learned(self.changes))
        except OSError as error:
            print(f"the noise profile was not kept: {error}", file=sys.stderr)
            return
        print(f"noise profile  {path}", flush=True)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _said(side: "Side") -> str:
    return side.url or side.command or ""


def _checks_of(slo: "SloFile", open_loop: bool) -> "Regression":
    """The SLO's regression, or the checks that suit most servers."""
    from prony_slo.promise import Check, Regression

    if slo.regression is not None and slo.regression.checks:
        return slo.regression
    place = "prony ab"
    # In open loop a rate is the schedule's; in closed loop the two builds answer different requests
    # in the same time, so no request has a partner.
    by_loop = (
        Check("ttft tail", "ttft", "tail", 0.10, place)
        if open_loop
        else Check("output_tokens_per_s rate", "output_tokens_per_s", "rate", 0.05, place)
    )
    checks = (
        Check("ttft p50", "ttft", "p50", 0.05, place),
        by_loop,
        Check("tpot p50", "tpot", "p50", 0.05, place),
        # Failures of one in a hundred take thousands of requests to compare; objectives judge them.
        Check("error_rate share", "error_rate", "share", 0.01, place, severity="warn"),
    )
    found = slo.regression or Regression(checks)
    return replace(found, checks=checks)


def _with_pairs(regression: "Regression", text: str | None) -> "Regression":
    if text is None:
        return regression
    low, dash, high = text.partition("-")
    try:
        first, last = int(low), int(high if dash else low)
    except ValueError:
        first, last = 0, 0
    if not 2 <= first <= last <= 100:
        raise UsageError(f"--pairs {text}: expected a number such as 5, or a range such as 3-10")
    return replace(regression, min_pairs=first, max_pairs=last)


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None
    if any(out.glob("pair-*")):
        raise UsageError(f"--out {out}: holds pairs already; name another folder")
