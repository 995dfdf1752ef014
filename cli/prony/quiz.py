"""Find the fault: a server with something hidden in it is put under load, and you name the cause.

Starts the reference server with the tiny model, sends it load for some seconds, shows what `prony
watch` shows but for the verdict, and asks. Then comes what `prony diagnose` says, and why. Ctrl-C
leaves at any moment and stops the server. Exit 0, whatever the answer.
"""

import argparse
import json
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prony.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from prony.diagnosis.judge import Diagnosis

HELP = "a server with a hidden fault: watch it, name the cause, see the diagnosis"
SECONDS, EVERY = 20.0, 1.0
CHOICES: Final = 4
START_WAIT: Final = 180.0  # seconds that the server may take to be ready
STOP_WAIT: Final = 20.0  # seconds that the load may take to end once it is told to


@dataclass(frozen=True, slots=True)
class Question:
    """A server and a load; the verdict that is right for them is the key in QUESTIONS."""

    fault: str | None  # as --inject takes it; None: the server is healthy
    load: Mapping[str, Any]


def _users(number: int) -> dict[str, Any]:
    return {"process": "closed", "users": number}


def _rate(requests: float) -> dict[str, Any]:
    return {"process": "poisson", "rate": requests}


# The intensities are those at which benchmarks/diagnose.py tells them apart.
QUESTIONS: Final[Mapping[str, Question]] = {
    "none": Question(None, _rate(5)),
    "kv_capacity": Question("kv-blocks=18", _users(10)),
    "batch_slots": Question("slots=1", _users(8)),
    "tokenizing": Question("slow-tokenizer=100ms", _rate(5)),
    "host_bound": Question("host-bound=10ms", _rate(5)),
    "step_output": Question("log-in-decode=8ms", _rate(5)),
    "blocked_loop": Question("blocked-loop=100ms", _rate(8)),
    "periodic_stalls": Question("stall=300ms/1s", _rate(10)),
    "network": Question("slow-writer=20kB/s", _rate(4)),
}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seed", type=int, metavar="N", help="the same seed asks the same question")
    add("--seconds", type=float, default=SECONDS, metavar="S",
        help=f"of load, to watch (default: {SECONDS:g})")  # fmt: skip
    add("--answer", choices=sorted(QUESTIONS), help="answer at once, for scripts")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    if find_spec("torch") is None or find_spec("aiohttp") is None:
        raise UsageError("the reference server needs torch: pip install 'prony[server]'")
    if not 2 <= args.seconds <= 600:
        raise UsageError(f"--seconds {args.seconds:g}: expected 2 to 600")
    seed = random.randrange(10_000) if args.seed is None else args.seed
    cause, choices = drawn(seed)
    console = Console(highlight=False)
    try:
        with _stoppable(), tempfile.TemporaryDirectory() as scratch:
            diagnosis = _watched(cause, seed, args.seconds, Path(scratch), console)
            answer = args.answer or _answer(choices)
            _tell(cause, answer, diagnosis, console)
    except KeyboardInterrupt:
        print("\nleft; the server is stopped")
        return 0
    print(f"this one again: prony quiz --seed {seed}")
    return 0


def drawn(seed: int) -> tuple[str, tuple[str, ...]]:
    """The cause that a seed hides, and the answers to choose from, of which it is one."""
    chance = random.Random(seed)
    cause = chance.choice(list(QUESTIONS))
    others = chance.sample([name for name in QUESTIONS if name != cause], CHOICES - 1)
    choices = [cause, *others]
    chance.shuffle(choices)
    return cause, tuple(choices)


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """The choice that was meant by its number or its name, None where neither fits."""
    text = text.strip()
    if text in choices:
        return text
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 3 else 0
    return choices[number - 1] if 1 <= number <= len(choices) else None


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends the quiz as Ctrl-C does: with nothing left running."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _watched(
    cause: str, seed: int, seconds: float, scratch: Path, console: "Console"
) -> "Diagnosis":
    """Serves, loads and shows; returns what the run folder then tells."""
    from prony.diagnosis.read import diagnosis_of
    from prony.servers import Side, running
    from prony_loadgen.folder import RunFolder

    question = QUESTIONS[cause]
    print("starting a server; something may be wrong with it ...", flush=True)
    command = [sys.executable, "-m", "prony", "serve", "tiny", "--port", "{port}"]
    command += ["--drain-seconds", "0"]
    if question.fault is not None:
        command += ["--inject", question.fault]
    side = Side("quiz", command=shlex.join(command))
    folder = RunFolder(scratch / "run")
    with (
        running(side, scratch / "server.log", START_WAIT) as url,
        _loaded(url, question, seed, seconds, folder.path, scratch) as load,
    ):
        _show(url, seconds, load, console)
        code = load.wait()
    # 3 is too little of an answer and 4 a client that cannot be trusted: the diagnosis says so too.
    if code not in (0, 3, 4):
        raise UsageError(f"the load ended with {code}: {_last_line(scratch / 'load.log')}")
    facts, records = folder.read_run(), list(folder.records())
    console.print(_client_saw(facts))
    return diagnosis_of(folder, facts, records)


@contextmanager
def _loaded(
    url: str, question: Question, seed: int, seconds: float, out: Path, scratch: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """The load, in a process of its own; it has ended when the block has."""
    scenario = {
        "arrivals": question.load,
        "prompts": {"input_tokens": 64},
        "output": {"tokens": 48, "mode": "forced"},
        "warmup": "0.5s",
        "duration": f"{seconds}s",
        "timeouts": {"drain": "3s"},
        "seed": seed,
    }
    file = scratch / "load.yaml"
    file.write_text(json.dumps(scenario), encoding="utf-8")  # JSON is YAML too
    command = [sys.executable, "-m", "prony", "run", str(file), "--target", url]
    with (scratch / "load.log").open("wb") as log:
        # In a session of its own: Ctrl-C reaches the quiz, which then stops it in order.
        load = subprocess.Popen(
            [*command, "--out", str(out), "--quiet"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield load
    finally:
        if load.poll() is None:
            load.terminate()
        try:
            load.wait(STOP_WAIT)
        except subprocess.TimeoutExpired:
            load.kill()
            load.wait()


def _show(url: str, seconds: float, load: "subprocess.Popen[bytes]", console: "Console") -> None:
    """Frames of `prony watch` without its verdict, until `seconds` after the first tokens."""
    from rich.live import Live

    from prony.watching import Blind, Watch, page
    from prony_loadgen.target import parse_target

    watch = Watch(parse_target(url))
    print(f"it is under load; {seconds:g} s to watch it (Ctrl-C leaves)\n", flush=True)
    due = time.monotonic()
    until: float | None = None
    with Live(console=console, auto_refresh=False) as live:
        while load.poll() is None and (until is None or time.monotonic() < until):
            try:
                frame = replace(watch.look(), diagnosis=None)
            except Blind as error:
                raise UsageError(f"the server does not answer: {error}") from None
            if until is None and frame.tokens:
                until = time.monotonic() + seconds
            if until is not None:
                live.update(page(frame), refresh=True)
            due = max(due + EVERY, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def _client_saw(run: Mapping[str, Any]) -> str:
    from prony_loadgen.words import ms

    def of(metric: str, point: str) -> str:
        value = run.get("summary", {}).get(metric, {}).get("ok", {}).get(point)
        return ms(value if isinstance(value, float | int) else None)

    return (
        f"the clients saw: TTFT {of('ttft', 'p50')} (p99 {of('ttft', 'p99')}), "
        f"E2E {of('e2e', 'p50')} (p99 {of('e2e', 'p99')}), "
        f"from token to token {of('tpot', 'p50')}"
    )


def _answer(choices: Sequence[str]) -> str | None:
    """Asks until one of them is chosen; None where nobody answers."""
    from prony.diagnosis.advice import TEXTS

    print("What holds it back?")
    for number, name in enumerate(choices, 1):
        print(f"  {number}  {TEXTS[name].title}")
    while True:
        print(f"1 to {len(choices)}: ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            print()
            return None
        answer = chosen(line, choices)
        if answer is not None:
            return answer


def _tell(cause: str, answer: str | None, diagnosis: "Diagnosis", console: "Console") -> None:
    from prony.diagnosis.advice import TEXTS
    from prony.diagnosis.view import as_terminal
    from prony_server.faults import KINDS

    said = "Right" if answer == cause else "No" if answer is not None else "No answer"
    console.print(f"\n[bold]{said}: it is {TEXTS[cause].title}.[/bold]")
    fault = QUESTIONS[cause].fault
    if fault is None:
        print("The server was started as it is, without any fault.")
    else:
        meaning = KINDS[fault.partition("=")[0]].meaning
        print(f"The server was started with --inject {fault}: {meaning}.")
    print("\nWhat `prony diagnose` says of this run:\n")
    console.print(as_terminal(diagnosis))
    names = [verdict.id for verdict in diagnosis.verdicts]
    if names[0] != cause:
        where = "not at all" if cause not in names else f"as number {names.index(cause) + 1}"
        print(f"It names the hidden cause {where} here: a busy machine, or too short a look.")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"
