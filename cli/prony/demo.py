"""The whole loop in a minute: reference server, chat scenario, SLO gate, report.

Starts the server on a free port (no network, no GPU), drives it, judges the run, writes the
report, stops the server, and exits with the verdict's code.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prony.errors import UsageError
from prony.gate import add_slo

HELP = "the whole loop in a minute, on this machine"

# A bigger model gets as many requests as the SLO first-look needs, with one of them bad; the 320 of
# the chat scenario would take a 135M model on two cores six minutes.
FIRST_LOOK, FIRST_LOOK_REQUESTS = "first-look", 50
# Its answers are there to be read, and small models ramble at the API's temperature of 1.
CALM = {"temperature": 0.2, "top_p": 0.9}
STOP_WAIT = 40.0  # seconds; above the server's own drain limit


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="tiny", metavar="MODEL", help="tiny, a folder or a hub name")
    add_slo(parser)
    add("--out", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
    add("--seed", metavar="N", help="the same seed sends the same requests at the same times")


def run(args: argparse.Namespace) -> int:
    from prony.judging import Judge
    from prony.server_metrics import WithServer
    from prony_loadgen.locust_user import RunOptions, run_scenario
    from prony_loadgen.scenario import load_scenario
    from prony_loadgen.target import parse_target

    name = "chat" if args.model == "tiny" else "questions"
    changes: dict[str, Any] = {"keep_text": True}
    if args.seed is not None:
        changes["seed"] = args.seed
    if args.model != "tiny":
        changes |= {"slo": FIRST_LOOK, "extra_body": CALM}
    scenario = load_scenario(name, changes)
    judge = Judge(args.slo, scenario.slo)  # a wrong SLO is told before anything is started
    client_cores, server_cores = _cores()
    with tempfile.TemporaryDirectory() as scratch, _pinned(client_cores):
        traces = Path(scratch, "traces.jsonl")
        with _server(args.model, Path(scratch), traces, server_cores) as url:
            if args.model != "tiny":
                scenario = load_scenario(name, {**changes, **_paced(url, scenario)})
            options = RunOptions(
                target=url, out=args.out, slo=tuple(args.slo), argv=tuple(args.argv)
            )
            code = run_scenario(scenario, WithServer(judge, parse_target(url)), options)
        # Only now has the server written its last spans.
        if judge.folder is not None and traces.exists():
            with judge.folder.traces.open("ab") as whole, traces.open("rb") as part:
                shutil.copyfileobj(part, whole)
    return code


def _paced(url: str, scenario: Any) -> dict[str, Any]:
    """The rate and length that suit a model whose speed nobody knows yet."""
    from prony.pace import sustainable_rate
    from prony_loadgen.probe import find_model
    from prony_loadgen.target import parse_target

    target, model = find_model(parse_target(url), None)
    rate = sustainable_rate(target, model, scenario)
    print(f"a first look: {rate} requests/s are a third of what the model can do here", flush=True)
    return {"arrivals.rate": rate, "requests": FIRST_LOOK_REQUESTS}


def _cores() -> tuple[set[int] | None, set[int] | None]:
    """Cores for the client and for the server: on one core they would measure each other."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    first, *rest = sorted(os.sched_getaffinity(0))
    return ({first}, set(rest)) if rest else (None, None)


@contextmanager
def _pinned(cores: set[int] | None) -> Iterator[None]:
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _server(model: str, scratch: Path, traces: Path, cores: set[int] | None) -> Iterator[str]:
    """The reference server in a process of its own; gives its URL, and stops it at the end."""
    command = [sys.executable, "-m", "prony", "serve", model, "--port", "0"]
    command += ["--traces", str(traces)]
    print(f"starting the reference server with {model} ...", flush=True)
    log = scratch / "server.log"
    with log.open("w") as stderr:
        # In a session of its own, so that Ctrl-C reaches the run, which then stops the server.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
    try:
        if cores is not None:
            os.sched_setaffinity(process.pid, cores)
        yield _url(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_WAIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url(process: "subprocess.Popen[str]", log: Path) -> str:
    """What the server says once it takes requests. Raises UsageError with its reason if it ends."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            return line.split()[1]
    process.wait()
    why = log.read_text().strip().splitlines() or ["it gave no reason"]
    raise UsageError(f"the reference server did not start: {why[-1].removeprefix('prony serve: ')}")
