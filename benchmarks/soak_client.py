"""A long run through one process: what stays behind of each request in memory, files and sockets.

Requests of 10 tokens go through a real session (client, recorder, run folder) to the ground-truth
server, as fast as 16 users ask. Memory is looked at once a tenth of the way, after what grows only
at first has grown, and at the end; so are open files, of which sockets are some.

    python benchmarks/soak_client.py [--requests N] [--quick]
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from prony_loadgen.ground_truth import MODEL, GroundTruth, Pace

# Locust first: importing it patches sockets.
from prony_loadgen.locust_user import run
from prony_loadgen.record import RequestRecord
from prony_loadgen.scenario import Scenario
from prony_loadgen.settings import NoJudge, for_scenario
from prony_loadgen.target import parse_target

REQUESTS, QUICK = 100_000, 5_000
USERS, TOKENS = 16, 10


class Watch(NoJudge):
    """Sees every record, and looks at the process when a tenth and when all have come."""

    watching = True

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self.seen = 0
        self.bad = 0
        self.looks: list[tuple[int, int, int]] = []  # requests, bytes, open files

    def breached(self, record: RequestRecord) -> str | None:
        self.seen += 1
        self.bad += not record.ok
        if self.seen in (self._requests // 10, self._requests - USERS):
            gc.collect()
            self.looks.append((self.seen, _resident(), _open_files()))
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} requests")
    options = parser.parse_args()
    requests = options.requests or (QUICK if options.quick else REQUESTS)
    watch = Watch(requests)
    facts = {
        "name": "soak",
        "prompts": {"input_tokens": 8},
        "output": {"tokens": TOKENS},
        "arrivals": {"process": "closed", "users": USERS},
        "requests": requests,
        "warmup": "0s",
        "seed": 1,
    }
    files_before = _open_files()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, GroundTruth(Pace()) as server:
        os.chdir(folder)
        scenario = Scenario.model_validate(facts)
        settings = for_scenario(
            scenario, parse_target(server.url), MODEL, watch, out=Path(folder) / "out"
        )
        code = run(settings, quiet=True)
        size = (Path(folder) / "out" / "requests.jsonl.gz").stat().st_size
        os.chdir("/")
    seconds = time.monotonic() - began
    gc.collect()
    (first, memory, files), (last, memory_after, files_after) = watch.looks
    grown = (memory_after - memory) / (last - first)
    left = _open_files() - files_before
    print(f"requests      {watch.seen:,} in {seconds:.0f} s, {watch.bad:,} not ok, code {code}")
    print(f"memory        {memory / 1e6:,.1f} MB after {first:,}, {memory_after / 1e6:,.1f} MB "
          f"after {last:,}: {grown:,.0f} bytes a request")  # fmt: skip
    print(f"open files    {files} after {first:,}, {files_after} after {last:,}; {left} left open")
    print(f"records file  {size / watch.seen:,.0f} bytes a request")
    figures = {
        "requests": watch.seen,
        "bytes_per_request": round(grown, 1),
        "files_grown": files_after - files,
        "files_left": left,
        "not_ok": watch.bad,
    }
    print(json.dumps(figures))
    sys.exit(0 if grown < 1000 and files_after <= files and not watch.bad else 1)


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
