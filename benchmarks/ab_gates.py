"""The regression gate on real servers: `prony ab`, again and again, with the truth known.

Two reference servers with the tiny model, on one processor; the load generator on the other. Gates
of a server against its like, which must not fail, and of a server against one whose every forward
takes 20 % longer (`--inject slow-step=20%`), which must not pass. Runs of 300 requests of one user
after a warm-up of 2 s: without a queue, which would turn a change of the machine's speed into a
several times larger one of the latencies. The checks are those that `prony ab` has where the SLO
names none. The noise profile begins empty and is kept from gate to gate.

    python benchmarks/ab_gates.py [--quick] [--gates N] [--users N] [--keep DIR]

--quick: one gate each way.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUESTS, WARMUP = 300, "2s"
SLOWER = "slow-step=20%"
# What exit codes mean to a gate.
PASS, FAIL = 0, 1


@dataclass(frozen=True, slots=True)
class Gate:
    """One `prony ab` and what came of it."""

    slower: bool  # whether b is the slowed one
    code: int
    pairs: int
    seconds: float
    said: tuple[str, ...]  # the last line of each check


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one gate each way")
    parser.add_argument("--gates", type=int, help="each way (6)")
    parser.add_argument("--users", type=int, default=1, help="in closed loop")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run folders there")
    options = parser.parse_args()
    each_way = options.gates or (1 if options.quick else 6)
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise SystemExit("needs two processors: one for the load generator, one for the servers")
    gates = []
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "load.yaml").write_text(json.dumps(load(options.users)))  # JSON is YAML too
        # The two ways in turn, so that both see the machine as it changes.
        for number in range(each_way):
            for slower in (False, True):
                out = folder / f"{'slower' if slower else 'same'}-{number + 1}"
                gates.append(_gate(folder, out, slower, number, processors[0], processors[-1]))
                _say(gates[-1])
    print(json.dumps(_figures(gates)))


def load(users: int) -> dict[str, Any]:
    return {
        "prompts": {"input_tokens": 32},
        "output": {"tokens": 12, "mode": "forced"},
        "arrivals": {"process": "closed", "users": users},
        "warmup": WARMUP,
        "requests": REQUESTS,
    }


def _gate(folder: Path, out: Path, slower: bool, seed: int, client: int, servers: int) -> Gate:
    serve = [sys.executable, "-m", "prony", "serve", "tiny", "--port", "{port}"]
    pinned = ["taskset", "-c", str(servers), *serve]
    a, b = shlex.join(pinned), shlex.join([*pinned, *(["--inject", SLOWER] if slower else [])])
    command = ["taskset", "-c", str(client), sys.executable, "-m", "prony", "ab"]
    command += [str(folder / "load.yaml"), "--a", a, "--b", b, "--slo", "errors < 5%"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--out", str(out), "--seed", str(seed)],
        env={**os.environ, "PRONY_CACHE": str(folder / "cache")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (PASS, FAIL, 3, 4):
        raise SystemExit(f"prony ab ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    state = json.loads((out / "pairs.json").read_text())
    pairs = max(len(changes) for changes in state["changes"].values())
    last = tuple(_after(done.stdout, f"pair {pairs}: "))
    return Gate(slower, done.returncode, pairs, time.monotonic() - began, last)


def _after(text: str, start: str) -> Iterator[str]:
    return (line.removeprefix(start) for line in text.splitlines() if line.startswith(start))


def _say(gate: Gate) -> None:
    build = "20 % slower" if gate.slower else "the same   "
    print(f"{build}  exit {gate.code}  {gate.pairs} pairs  {gate.seconds:.0f} s", flush=True)
    for line in gate.said:
        print(f"    {line}", flush=True)


def _figures(gates: list[Gate]) -> dict[str, Any]:
    same = [gate for gate in gates if not gate.slower]
    slower = [gate for gate in gates if gate.slower]
    return {
        "gates_each_way": len(same),
        "same_failed": sum(gate.code == FAIL for gate in same),
        "same_passed": sum(gate.code == PASS for gate in same),
        "slower_failed": sum(gate.code == FAIL for gate in slower),
        "slower_passed": sum(gate.code == PASS for gate in slower),
        "pairs_same": [gate.pairs for gate in same],
        "pairs_slower": [gate.pairs for gate in slower],
    }


if __name__ == "__main__":
    main()
