"""The profiler on its leash: what it costs while armed, how soon it captures, what it finds.

Against the reference server with the tiny model, in processes of their own:

* armed: closed-loop runs in pairs, one with `on-breach` armed by an objective that holds and one
  without, in turn and each first as often; tokens/s, and the load generator's processor time. And
  what an armed hook does, timed by itself on the records of such a run, as a share of the run's
  time (`armed_work`): more it cannot take from anybody, however much the machine wavers.
* breach: an objective that cannot hold; seconds from the request that broke the rule to the start
  of the capture, and how long it was.
* gate: a run with a capture in its middle and one without, judged by the same SLO.
* share: a server that logs in its decode loop for 2 ms a step. The truth is 2 ms times its steps,
  of the time in which its engine was busy meanwhile; py-spy's capture says its own share.

    python benchmarks/profile_hook.py [--quick] [--pairs N] [--seconds S]
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Locust first: importing it patches sockets.
from prony_loadgen.locust_user import run as drive

# isort: split
from rich.console import Console
from rich.table import Table

from prony.judging import Asked as Judged
from prony.judging import Judge, judge_folder
from prony.profiling.armed import Profiling, parse_asked
from prony.profiling.captures import Capture, profile_facts
from prony.profiling.hook import Bounds, capture, collect, find_hook
from prony.profiling.rule import Rule
from prony_loadgen.exposition import read_page
from prony_loadgen.fetch import fetch
from prony_loadgen.folder import RunFolder
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import Scenario
from prony_loadgen.settings import Judge as AnyJudge
from prony_loadgen.settings import NoJudge, for_scenario
from prony_loadgen.target import Target, parse_target
from prony_server.telemetry import ITERATION_SECONDS, STAGE_SECONDS, THREAD_CPU
from prony_slo.objective import load_slo

USERS, TOKENS = 4, 32
HOLDS, CANNOT = "ttft p99 < 60s", "ttft p99 < 100us"
LOGGED = 0.002  # seconds of each step


@dataclass(frozen=True)
class Server:
    target: Target
    pid: int


@contextmanager
def server(folder: Path, name: str, *options: str) -> Iterator[Server]:
    log = folder / f"{name}.log"
    captures = folder / f"{name}-captures"
    captures.mkdir()
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "prony", "serve", "tiny", "--port", "0", "--torch-threads", "1",
             "--profile-dir", str(captures), "--profiler", "py-spy", *options],
            stdout=subprocess.PIPE, stderr=said, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("ready "):
                raise SystemExit(f"the server did not start: {log.read_text()[-500:]}")
            yield Server(parse_target(line.split()[1]), process.pid)
        finally:
            process.kill()
            process.communicate()


def scenario(seconds: float, seed: int, warmup: float = 0.5) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "hook",
            "prompts": {"input_tokens": 16},
            "output": {"tokens": TOKENS, "mode": "forced"},
            "arrivals": {"process": "closed", "users": USERS},
            "warmup": f"{warmup}s",
            "duration": f"{seconds}s",
            "seed": seed,
        }
    )


def driven(judge: AnyJudge, at: Server, seconds: float, seed: int, out: Path) -> RunFolder:
    settings = for_scenario(scenario(seconds, seed), at.target, "tiny", judge, out=out)
    settings.lines()  # as `prony run` does: a judge learns the plan by it
    drive(settings, quiet=True)
    return RunFolder(out)


class Quiet(Judge):
    """The judge of `prony run`, without what it prints."""

    def finish(self, folder: RunFolder) -> int:
        code: int = judge_folder(folder, self._asked)["exit_code"]
        return code


def armed(asked: str, slo: str, at: Server, judge: AnyJudge, **bounds: Any) -> Profiling:
    return Profiling(
        judge, load_slo([slo]), at.target, parse_asked(asked, **bounds), say=lambda text: None
    )


# --- what it costs --------------------------------------------------------------------------------


def cost(at: Server, folder: Path, pairs: int, seconds: float) -> dict[str, Any]:
    """Armed against not, in pairs."""
    tokens: list[float] = []
    cpu: list[float] = []
    order = [True, False] * ((pairs + 1) // 2)
    random.Random(7).shuffle(order)
    for pair in range(pairs):
        seen = {}
        for with_hook in (order[pair], not order[pair]):
            judge = armed("on-breach", HOLDS, at, NoJudge()) if with_hook else NoJudge()
            began = time.process_time()
            run = driven(judge, at, seconds, pair, folder / f"cost-{pair}-{with_hook}")
            used = time.process_time() - began
            told = sum(record.output_tokens or 0 for record in run.records())
            seen[with_hook] = (told / run.read_run()["client"]["seconds"], used / max(told, 1))
        tokens.append(1 - seen[True][0] / seen[False][0])
        cpu.append(seen[True][1] / seen[False][1] - 1)
    low, high = interval(tokens)
    records = list(run.records())
    return {
        "armed_work": work(records, run.read_run()["client"]["seconds"]),
        "armed_overhead": round(statistics.median(tokens), 5),
        "armed_overhead_low": low,
        "armed_overhead_high": high,
        "armed_client_cpu": round(statistics.median(cpu), 5),
        "pairs": pairs,
    }


def work(records: list[RequestRecord], seconds: float) -> float:
    """What the rule of an armed hook costs a run of these records, as a share of its seconds."""
    took = []
    for _ in range(200):
        rule = Rule(load_slo([HOLDS]), (0.0, seconds))
        began = time.perf_counter()
        for record in records:
            rule.add(record)
        for _ in range(math.ceil(seconds)):
            rule.tick()
        took.append(time.perf_counter() - began)
    return round(statistics.median(took) / seconds, 7)


def interval(values: list[float]) -> tuple[float | None, float | None]:
    """Order statistics that hold the median with 95 %; None of under six values."""
    n, ordered = len(values), sorted(values)
    for k in range(n // 2, 0, -1):
        outside = 2 * sum(math.comb(n, i) for i in range(k)) / 2**n
        if outside <= 0.05:
            return round(ordered[k - 1], 5), round(ordered[n - k], 5)
    return None, None


# --- how soon it captures, and what the gate makes of it ------------------------------------------


def breach(at: Server, folder: Path, times: int) -> dict[str, Any]:
    found = []
    for number in range(times):
        judge = armed("on-breach", CANNOT, at, Quiet([CANNOT]), seconds=1.0)
        run = driven(judge, at, 7.0, number, folder / f"breach-{number}").read_run()
        (made,) = run["profile"]["captures"]
        found.append((made["window"][0] - made["breached"], made["window"][1] - made["window"][0]))
    return {
        "breach_to_capture_s": round(max(first for first, _ in found), 3),
        "capture_s": round(max(length for _, length in found), 3),
        "breaches": times,
    }


def gate(at: Server, folder: Path, seconds: float) -> dict[str, Any]:
    slo = ["ttft p90 < 2s", "errors < 20%"]
    plain = driven(Quiet(slo), at, seconds, 1, folder / "gate-without").read_run()
    profiling = armed(f"at={seconds / 2:g}s", slo[0], at, Quiet(slo), seconds=min(2, seconds / 4))
    folder_with = driven(profiling, at, seconds, 1, folder / "gate-with")
    with_one = folder_with.read_run()
    unmarked = RunFolder(folder / "gate-unmarked")
    unmarked.path.mkdir()
    facts = {k: v for k, v in with_one.items() if k != "profile"}
    unmarked.write_run(facts)
    unmarked.requests.write_bytes(folder_with.requests.read_bytes())
    all_of_it = judge_folder(unmarked, Judged(tuple(slo)))

    def p99(run: dict[str, Any]) -> float:
        return float(run["summary"]["tpot"]["all"]["p99"])

    return {
        "verdict_without": plain["verdict"],
        "verdict_with": with_one["verdict"],
        "left_out": with_one["summary"]["requests"]["profiled"],
        "tpot_p99_without_ms": round(p99(plain) * 1000, 2),
        "tpot_p99_with_ms": round(p99(with_one) * 1000, 2),
        "tpot_p99_not_left_out_ms": round(p99(all_of_it) * 1000, 2),
    }


# --- what it finds --------------------------------------------------------------------------------


def share(logging: Server, folder: Path, seconds: float) -> dict[str, Any]:
    """py-spy's share of `log_request` beside what the server's own clocks say of the same time."""
    hook = find_hook(logging.target)
    made: list[Capture] = []
    told: list[tuple[float, float, float]] = []

    def profiled() -> None:
        time.sleep(1.0)  # the load has begun
        told.append(totals(logging))
        made.append(capture(hook, Bounds(seconds=min(seconds, 10.0)), "asked", _sleep))
        told.append(totals(logging))

    thread = threading.Thread(target=profiled)
    thread.start()
    driven(NoJudge(), logging, seconds + 2.0, 3, folder / "share")
    thread.join()
    kept = collect(hook, made[0], folder / "profile", 1)
    if kept.failure:
        raise SystemExit(f"no capture: {kept.failure}")
    facts = profile_facts(folder / "profile")
    engine = None if facts is None else facts.thread("engine")
    if engine is None or engine.host_spot is None:
        raise SystemExit("the capture has no engine's thread")
    cpu, busy, steps = (now - then for now, then in zip(told[1], told[0], strict=True))
    seen, truth = engine.share_of("log_request"), steps * LOGGED / busy
    return {
        "log_request_share": round(seen, 4),
        "log_request_truth": round(truth, 4),
        "share_error_points": round(abs(seen - truth) * 100, 2),
        # On a quiet machine 1: else the engine's thread waited for a processor, and a share of the
        # clock is not a share of what a profiler sees at work.
        "engine_cpu_of_busy": round(cpu / busy, 3),
        "named": engine.host_spot[0],
    }


def totals(at: Server) -> tuple[float, float, float]:
    """Processor seconds of the engine's thread, seconds in which it was busy, and its steps."""
    text = fetch(at.target, "/metrics", 10.0).body.decode()
    samples = read_page(text).samples
    cpu = sum(v for labels, v in samples[THREAD_CPU] if labels.get("thread") == "engine")
    busy = sum(v for labels, v in samples[STAGE_SECONDS] if labels.get("stage") != "idle")
    return cpu, busy, sum(value for _, value in samples[f"{ITERATION_SECONDS}_count"])


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="within 50 s on two cores")
    parser.add_argument("--pairs", type=int, help="of the armed runs (default: 30, quick: 2)")
    parser.add_argument("--seconds", type=float, help="of one run (default: 6, quick: 1.5)")
    args = parser.parse_args()
    pairs = args.pairs or (2 if args.quick else 30)
    seconds = args.seconds or (1.5 if args.quick else 6.0)
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prony-hook-")))
        os.chdir(folder)  # runs/latest is of nobody's runs
        plain = stack.enter_context(server(folder, "plain"))
        logging = stack.enter_context(
            server(folder, "logging", "--inject", f"log-in-decode={LOGGED * 1000:g}ms")
        )
        found |= cost(plain, folder, pairs, seconds)
        found |= breach(plain, folder, 1 if args.quick else 5)
        found |= gate(plain, folder, 4.0 if args.quick else 30.0)
        found |= share(logging, folder, 2.5 if args.quick else 10.0)
        os.chdir("/")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for name, value in found.items():
        table.add_row(name.replace("_", " "), str(value))
    Console().print(table)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
