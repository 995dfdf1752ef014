"""What the load generator itself takes."""

import json
import os
import subprocess
import sys

from prony_loadgen.effort import Effort, waited

TELL = """
import json, os, sys, time
from prony_loadgen.effort import Effort
os.sched_setaffinity(0, {int(sys.argv[1])})
print("ready", flush=True)
sys.stdin.readline()
effort = Effort()
ends = time.monotonic() + 1.0
while time.monotonic() < ends:
    pass
print(json.dumps(effort.facts()))
"""


def shares(rivals: int) -> dict[str, float]:
    """The effort of a busy loop that shares its processor with so many others."""
    cpu = str(min(os.sched_getaffinity(0)))
    command = [sys.executable, "-c", TELL, cpu]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(1 + rivals)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate()[0] for process in processes]
    facts: dict[str, float] = json.loads(said[0])
    return facts


def test_a_process_that_must_share_its_processor_says_how_long_it_waited() -> None:
    crowded = shares(rivals=3)
    # Three others want the same: it has at most about a third, and waits for the rest.
    assert crowded["cpu_wait_share"] > 0.4
    assert crowded["cpu_share"] < 0.6
    assert 0.8 < crowded["cpu_share"] + crowded["cpu_wait_share"] < 1.2


def test_what_is_taken_is_counted_from_now_on() -> None:
    assert waited() is not None
    facts = Effort().facts()
    assert set(facts) == {"cpu_share", "cpu_wait_share"}
