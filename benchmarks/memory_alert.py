"""A server that leaks 1 MB/s and one that does not, under load, before a real Prometheus.

The shipped rule (dashboards/prometheus/rules/memory.yml) looks at ten minutes and waits five more.
Here all its times are divided by the same number, and nothing else in it is changed; with
`--shorten 1` it is the shipped one, and this takes a quarter of an hour.

    python benchmarks/memory_alert.py [--shorten N] [--quick]
"""

import argparse
import json
import re
import shutil
import sys
import threading
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from prony_dashboards.prometheus import Prometheus
from prony_server.in_turn import InTurn

RULES = Path(__file__).parents[1] / "dashboards/prometheus/rules/memory.yml"
ALERT = "MemoryGrows"
LEAK = "leak=1MB/s"
WINDOW, WAIT = 600.0, 300.0  # the rule's own seconds
SHORTEN = 25.0  # a window under 22 s would hold too few scrapes, of which there is one a second
USERS = 2


def shortened(rules: str, by: float) -> str:
    """The rules with every time in them divided: windows, waiting, and the age of the process."""

    def seconds(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, round(60 * float(found[2]) / by))}s"

    rules = re.sub(r"(\[)(\d+)m(?=\])", seconds, rules)
    rules = re.sub(r"(for: )(\d+)m", seconds, rules)
    return re.sub(r"(?<=_start_time_seconds > )\d+", lambda age: f"{float(age[0]) / by:g}", rules)


def keep_busy(url: str, over: threading.Event) -> None:
    body = {"model": "tiny", "prompt": "lorem ipsum " * 20, "max_tokens": 50, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    while not over.wait(0.05):
        urllib.request.urlopen(asked, timeout=60).read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shorten", type=float)
    parser.add_argument("--quick", action="store_true", help=f"--shorten {SHORTEN:g}, as it is")
    by = parser.parse_args().shorten or SHORTEN
    program = shutil.which("prometheus")
    if program is None:
        sys.exit("prometheus is not installed (Debian: apt-get install prometheus)")
    fired: dict[str, float] = {}
    over = threading.Event()
    with InTurn() as first, InTurn() as second:
        servers = {"leaking": first.start(inject=[LEAK]), "steady": second.start()}
        users = [
            threading.Thread(target=keep_busy, args=(url, over))
            for url in servers.values()
            for _ in range(USERS)
        ]
        for user in users:
            user.start()
        targets = {job: urlsplit(url).netloc for job, url in servers.items()}
        with Prometheus.running(program, targets, shortened(RULES.read_text(), by)) as prometheus:
            began = time.monotonic()
            slopes: dict[str, float] = {}
            # Both have had their time to fire when the leaking one has, but for a few scrapes more.
            while "leaking" not in fired and time.monotonic() - began < 2 * (WINDOW + WAIT) / by:
                time.sleep(1)
                for series in prometheus.query(
                    f'ALERTS{{alertname="{ALERT}",alertstate="firing"}}'
                ):
                    fired.setdefault(series["metric"]["job"], time.monotonic() - began)
                for series in prometheus.query("prony:memory_slope:bytes_per_second"):
                    slopes[series["metric"]["job"]] = float(series["value"][1])
        over.set()
        for user in users:
            user.join()
    print(
        f"the rule's times are divided by {by:g}: {WINDOW / by:g} s of memory, {WAIT / by:g} s more"
    )
    for job in servers:
        alert = f"fires after {fired[job]:.0f} s" if job in fired else "does not fire"
        print(f"{job:<8}  {alert}; memory grows by {slopes.get(job, 0) / 1e6:.2f} MB/s at the end")
    figures = {
        "leaking_fires": "leaking" in fired,
        "steady_fires": "steady" in fired,
        "seconds_to_fire": round(fired["leaking"], 1) if "leaking" in fired else None,
        "leaking_slope": round(slopes.get("leaking", 0.0)),
        "steady_slope": round(slopes.get("steady", 0.0)),
    }
    print(json.dumps(figures))
    sys.exit(0 if fired.keys() == {"leaking"} else 1)


if __name__ == "__main__":
    main()
