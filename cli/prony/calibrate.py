"""How wrong is your load tester? Measures it against a server that knows what it really did.

Without --tool it is Prony's own: a ground-truth server runs on a processor of its own, load rises,
and the largest one at which this machine can be trusted is kept for the doubts of later runs.
With --tool it is any program that is told a URL: --tool 'mytool --url {url} --users {streams}', or
--tool fasthttpuser, which is Locust's FastHttpUser reading lines.
"""

import argparse
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from prony.errors import UsageError

HELP = "this machine's own measuring error, or that of another load tester"

TTFT, JITTER, ITL, TOKENS = 0.1, 0.05, 0.02, 100
CYCLE = TTFT + (TOKENS - 1) * ITL  # seconds that one stream takes
LEVELS = (32, 64, 128, 256, 512, 1024, 2048)
QUICK = (64, 256, 512)
SECONDS, QUICK_SECONDS = 6.0, 3.0
BURST_STREAMS, BURST_TOKENS, A_WRITE = 32, 200, 20
TOOL_STREAMS, TOOL_SECONDS = 128, 10


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--quick", action="store_true", help="three loads of 3 s each")
    add("--tool", metavar="CMD", help="another tool's command with {url}, or fasthttpuser")
    add("--streams", type=int, default=TOOL_STREAMS, metavar="N", help="{streams} of --tool")
    add("--seconds", type=int, default=TOOL_SECONDS, metavar="S", help="{seconds} of --tool")
    add("--reported", metavar="REGEX", help="finds its p99 TTFT, in ms, in what the tool prints")


def run(args: argparse.Namespace) -> int:
    if args.tool is not None:
        return _tool(args)
    if args.reported:
        raise UsageError("--reported goes with --tool")
    return _own(quick=args.quick)


def _own(*, quick: bool) -> int:
    # Locust first: importing it patches sockets, which others must find patched.
    from prony_loadgen import locust_user  # noqa: F401
    from prony_loadgen.calibration import Calibration, Level, keep

    console = Console()
    seconds = QUICK_SECONDS if quick else SECONDS
    client, server = _processors()
    where = f"client on processor {client}, server on {server}"
    if client == server:
        where = "client and server share the only processor: expect large errors"
    console.print(f"TTFT {TTFT * 1000:.0f} ms, a token each {ITL * 1000:.0f} ms; {where}\n")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("streams", "tokens/s", "TTFT ms", "p99", "ITL ms", "p99", "lag p99", "busy", ""):
        table.add_column(title, justify="right")
    levels: list[Level] = []
    with _pinned(client):
        for streams in QUICK if quick else LEVELS:
            found = _settled(streams, seconds, server)
            levels.append(found)
            errors = (found.ttft_p50, found.ttft_p99, found.itl_p50, found.itl_p99)
            table.add_row(
                f"{streams:,}", f"{found.reads_per_s:,.0f}",
                *(f"{each * 1000:.2f}" for each in (*errors, found.send_lag_p99)),
                f"{found.client_cpu:.0%}", "trusted" if found.trusted else "not trusted",
            )  # fmt: skip
            if not found.trusted:
                break
        ceiling = _ceiling(seconds, server)
    console.print("errors of each request beside its truth, p50 and p99:")
    console.print(table)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    calibration = Calibration(tuple(levels), ceiling, quick, when)
    console.print(f"\nceiling  {ceiling:,.0f} tokens/s in one process, {A_WRITE} tokens a write")
    _tell_trust(console, calibration)
    if calibration.trustworthy is None and calibration.disturbed:
        console.print("not kept: it says more of that other work than of this machine")
    else:
        console.print(f"kept in  {keep(calibration)}", soft_wrap=True)
    return 0 if calibration.trustworthy else 4


def _tell_trust(console: Console, calibration: Any) -> None:
    from prony_loadgen.calibration import ITL_ERROR, PACE, SERVER_BUSY, TTFT_ERROR, WAITED

    good, last = calibration.trustworthy, calibration.levels[-1]
    if good is None:
        console.print(
            "trusted  no load: stop what else runs here, then calibrate again", style="bold red"
        )
    else:
        more = "" if calibration.limit_found else "; more was not tried"
        console.print(
            f"trusted  up to {good.streams:,} streams or {good.reads_per_s:,.0f} tokens/s a process"
            f"{more}", style="bold",
        )  # fmt: skip
    if not last.trusted:
        reasons = []
        if last.pace < PACE:
            reasons.append(f"{last.pace:.1%} of the requests were sent")
        if last.ttft_p99 > TTFT_ERROR:
            reasons.append(f"p99 TTFT error over {_ms(TTFT_ERROR)}")
        if last.itl_p99 > ITL_ERROR:
            reasons.append(f"p99 ITL error over {_ms(ITL_ERROR)}")
        if (last.client_wait or 0.0) > WAITED:
            reasons.append(f"other work kept the client waiting {last.client_wait:.0%} of the time")
        if last.server_cpu > SERVER_BUSY:
            reasons.append("the ground-truth server was busy itself")
        console.print(f"limit    at {last.streams:,} streams: {', '.join(reasons)}")


def _settled(streams: int, seconds: float, cpu: int) -> Any:
    """A level as it was seen; where it failed, the middle one of three."""
    found = _level(streams, seconds, cpu)
    if found.trusted:
        return found
    three = [found, *(_level(streams, seconds, cpu) for _ in range(2))]
    return sorted(three, key=lambda level: (not level.trusted, level.ttft_p99))[1]


def _level(streams: int, seconds: float, cpu: int) -> Any:
    from prony_loadgen.calibration import level
    from prony_loadgen.folder import RunFolder
    from prony_loadgen.ground_truth import GroundTruth, Pace

    rate = streams / CYCLE
    with GroundTruth(Pace(ttft=TTFT, jitter=JITTER, itl=ITL), cpu=cpu) as server, _folder() as out:
        before = server.cpu_seconds()
        arrivals = {"process": "constant", "rate": rate}
        settings = _settings(server.url, out, arrivals, TOKENS, warmup=CYCLE, seconds=seconds)
        _drive(settings)
        used = server.cpu_seconds() - before
        truths = server.truth()
        run = RunFolder(out).read_run()
        records = list(RunFolder(out).records())
    assert settings.schedule is not None
    start, end = run["window"]
    due = sum(start <= at < end for at in settings.schedule)
    busy = round(used / run["client"]["seconds"], 4)
    return level(
        streams, records, truths, window=(start, end), due=due, client=run["client"],
        server_cpu=busy,
    )  # fmt: skip


def _ceiling(seconds: float, cpu: int) -> float:
    """Output tokens a second that one process takes when they come as fast as it reads."""
    from prony_loadgen.folder import RunFolder
    from prony_loadgen.ground_truth import GroundTruth, Pace
    from prony_loadgen.summary import tokens_inside

    with GroundTruth(Pace(per_write=A_WRITE), cpu=cpu) as server, _folder() as out:
        arrivals = {"process": "closed", "users": BURST_STREAMS}
        settings = _settings(server.url, out, arrivals, BURST_TOKENS, warmup=0.5, seconds=seconds)
        _drive(settings)
        window: tuple[float, float] = tuple(RunFolder(out).read_run()["window"])
        return tokens_inside(RunFolder(out).records(), window) / (window[1] - window[0])


def _settings(
    url: str, out: Path, arrivals: dict[str, Any], tokens: int, *, warmup: float, seconds: float
) -> Any:
    from prony_loadgen.ground_truth import MODEL
    from prony_loadgen.scenario import Scenario
    from prony_loadgen.settings import NoJudge, for_scenario
    from prony_loadgen.target import parse_target

    facts = {
        "name": "calibrate",
        "prompts": {"input_tokens": 8},
        "output": {"tokens": tokens},
        "arrivals": arrivals,
        "warmup": f"{warmup:.3f}s",
        "duration": f"{seconds:.3f}s",
        "seed": 1,
    }
    scenario = Scenario.model_validate(facts)
    return for_scenario(scenario, parse_target(url), MODEL, NoJudge(), out=out)


def _drive(settings: Any) -> None:
    from prony_loadgen.locust_user import run as drive

    drive(settings, quiet=True)


# What many people use today: a user a stream, which reads lines and decodes each.
_FASTHTTPUSER = """
import json, os, time
from locust import FastHttpUser, events, task

seen = []

class Reader(FastHttpUser):
    @task
    def ask(self):
        body = {"model": "m", "stream": True, "max_tokens": 100,
                "messages": [{"role": "user", "content": "hello"}]}
        began, first = time.perf_counter(), None
        with self.client.post("/v1/chat/completions", json=body, stream=True,
                              catch_response=True) as response:
            for line in iter(lambda: response.stream.readline(b"\\n"), b""):
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:]).get("choices")
                    if choices and choices[0]["delta"].get("content") and first is None:
                        first = time.perf_counter() - began
            response.success()
        if first is not None:
            seen.append(first)

@events.quitting.add_listener
def tell(**_):
    ordered = sorted(seen)
    print(f"p99 TTFT {ordered[-(-len(ordered) * 99 // 100) - 1] * 1000:.3f} ms")
"""
_PRESETS = ("fasthttpuser",)


def _tool(args: argparse.Namespace) -> int:
    from prony_loadgen.account import nearest_rank
    from prony_loadgen.ground_truth import GroundTruth, Pace

    console = Console()
    client, cpu = _processors()
    with tempfile.TemporaryDirectory(prefix="prony-calibrate-") as folder:
        command = _command(args.tool, Path(folder))
        with (
            GroundTruth(Pace(ttft=TTFT, jitter=JITTER, itl=ITL), cpu=cpu) as server,
            _pinned(client),
        ):
            facts = {"url": server.url, "streams": str(args.streams), "seconds": str(args.seconds)}
            words = [_filled(word, facts) for word in command]
            console.print(f"running {shlex.join(words)}\n", soft_wrap=True, markup=False)
            try:
                done = subprocess.run(words, capture_output=True, text=True, check=False)
            except OSError as error:
                raise UsageError(f"--tool {words[0]}: {error.strerror}") from None
            truths = server.truth()
    printed = done.stdout + done.stderr
    if not truths:
        raise UsageError(
            f"--tool: it sent no request to the server (exit code {done.returncode}); it said:\n"
            + printed[-800:]
        )
    true = nearest_rank(sorted(truth.ttft for truth in truths), 99)
    assert true is not None
    reported = _reported(printed, args.reported)
    console.print(f"true p99 TTFT      {_ms(true)}, of {len(truths):,} requests")
    if reported is None:
        console.print(
            "reported p99 TTFT  not found in what it printed: name it by --reported "
            "'P99 TTFT.*?([0-9.]+)'"
        )
        return 3
    console.print(f"reported p99 TTFT  {_ms(reported)}")
    wrong = reported - true
    console.print(f"its error          {wrong * 1000:+.1f} ms ({wrong / true:+.0%})", style="bold")
    return 0


def _command(tool: str, folder: Path) -> list[str]:
    if tool in _PRESETS:
        file = folder / "fasthttpuser.py"
        file.write_text(_FASTHTTPUSER, encoding="utf-8")
        told = ["--headless", "--only-summary", "--loglevel", "ERROR"]
        load = ["-u", "{streams}", "-r", "{streams}", "-t", "{seconds}s", "-H", "{url}"]
        return [sys.executable, "-m", "locust", "-f", str(file), *told, *load]
    if "{url}" not in tool:
        raise UsageError(
            f"--tool {tool}: expected {{url}} in its command, or one of {', '.join(_PRESETS)}"
        )
    return shlex.split(tool)


def _filled(word: str, facts: dict[str, str]) -> str:
    for name, text in facts.items():
        word = word.replace(f"{{{name}}}", text)
    return word


def _reported(printed: str, pattern: str | None) -> float | None:
    """The p99 TTFT in seconds that a tool printed in ms; by default, where a line names both."""
    if pattern is None:
        pattern = r"(?im)^(?=.*(?:ttft|time to first))(?=.*p?99).*?p?99[^0-9\n]*?([0-9][0-9.,]*)"
    try:
        found = re.search(pattern, printed)
    except re.error as error:
        raise UsageError(f"--reported {pattern}: not a regular expression ({error})") from None
    if found is None or not found.groups():
        return None
    try:
        return float(found[1].replace(",", "")) / 1000
    except ValueError:
        return None


def _processors() -> tuple[int, int]:
    """One for the client, one for the server: the last two that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        raise UsageError("calibrate needs Linux: processes are kept on processors there")
    usable = sorted(os.sched_getaffinity(0))
    return (usable[-2] if len(usable) > 1 else usable[-1]), usable[-1]


@contextlib.contextmanager
def _pinned(cpu: int) -> Iterator[None]:
    """This process, and those that it starts, stay on one processor for a while."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A run folder that nobody needs afterwards; runs/latest does not point at it."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="prony-calibrate-") as folder:
        os.chdir(folder)
        try:
            yield Path(folder) / "run"
        finally:
            os.chdir(here)


def _ms(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.2f} ms" if abs(value) < 10 else f"{value:,.1f} ms"
