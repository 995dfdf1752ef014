"""What three boards ask for, answered by a real run: seconds go in, a JSON file comes out.

A tool for developers, see docs/dashboards.md: draw.py makes the README's pictures of that file.
"""

import argparse
import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

from prony.live_boards import scraped
from prony_dashboards.boards import boards
from prony_dashboards.check import fill_in, resolve
from prony_dashboards.findings import targets_of
from prony_dashboards.prometheus import Prometheus

BOARDS: Final = ("overview", "latency", "engine")
STEP: Final = 2  # seconds; what the docs tell to scrape at
WINDOW: Final = "8s"  # $__rate_interval is four scrapes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--seconds", type=int, default=120, help="of load (default: 120)")
    args = parser.parse_args()
    program = shutil.which("prometheus")
    if program is None:
        print("needs prometheus (Debian: apt-get install prometheus)", file=sys.stderr)
        return 3
    made = boards()
    with scraped(program) as prometheus:
        time.sleep(args.seconds)
        end = int(time.time())
        asked = [answered(made[f"prony/{n}.json"], prometheus, args.seconds) for n in BOARDS]
    told = {"from": (end - args.seconds) * 1000, "to": end * 1000, "boards": asked}
    args.out.write_text(json.dumps(told), encoding="utf-8")
    return 0


def answered(board: dict[str, Any], prometheus: Prometheus, span: float) -> dict[str, Any]:
    """The board, each of its targets with the `series` that Prometheus found for it."""
    values, _ = resolve(board, prometheus)
    values |= {"__rate_interval": WINDOW, "__interval": f"{STEP}s", "__range": f"{span}s"}
    for panel, target in targets_of(board):
        found = prometheus.query_range(fill_in(target["expr"], values), span, STEP)
        if isinstance(found, str):
            raise SystemExit(f"{panel['title']}: {found}")
        target["series"] = [
            {
                "name": _legend(fill_in(target["legendFormat"], values), series["metric"]),
                "labels": series["metric"],
                "values": series["values"],
            }
            for series in found
        ]
    board["values"] = {
        v["name"]: values[v["name"]] for v in board["templating"]["list"] if v["name"] in values
    }
    return board


def _legend(form: str, labels: dict[str, str]) -> str:
    if form == "__auto":
        return ", ".join(labels.values()) or "Value"
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), form)


if __name__ == "__main__":
    sys.exit(main())
