"""Show a finished run on the boards, at its own time: a colleague's, or what CI kept.

A Prometheus of its own gets the run's series (promtool tsdb create-blocks-from openmetrics) and
listens on the loopback until Ctrl-C. --check asks every query of the boards instead, and ends.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony.errors import UsageError, port

if TYPE_CHECKING:
    from prony_dashboards.prometheus import Prometheus
    from prony_loadgen.folder import RunFolder

HELP = "show a finished run on the boards, at its own time"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", nargs="?", metavar="RUN", help="a run folder (default: runs/latest)")
    add("--port", type=port, default=9090, help="of the Prometheus, on 127.0.0.1 (default: 9090)")
    add("--check", action="store_true", help="run the boards' queries at the run's time, and end")


def run(args: argparse.Namespace) -> int:
    from prony_loadgen.folder import resolve

    folder = resolve(args.folder)
    with replayed(folder, None if args.check else args.port) as (prometheus, facts, span):
        if args.check:
            return _check(prometheus, facts)
        start, end = (round(edge * 1000) for edge in span)
        print(f"run {facts['run_id']} is at {prometheus.url} until Ctrl-C")
        print(
            "In Grafana: a Prometheus data source with that URL and a scrape interval of 1s, then"
        )
        for uid in ("prony-load", _overview(facts), "prony-compare"):
            print(f"  /d/{uid}?from={start}&to={end}&var-run_id={facts['run_id']}")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0


@contextmanager
def replayed(
    folder: "RunFolder", port: int | None = None
) -> "Iterator[tuple[Prometheus, dict[str, Any], tuple[float, float]]]":
    """A Prometheus that holds the run, the run's facts, and when it began and ended.

    Raises UsageError where a program is missing or does not do its part.
    """
    from prony.openmetrics import as_openmetrics, extent
    from prony.server_metrics import kept_samples
    from prony_dashboards.prometheus import Prometheus, PrometheusError

    facts = folder.read_run()
    records = list(folder.records())
    if not records:
        raise UsageError(f"{folder.path}: no request was recorded, so there is nothing to show")
    prometheus, promtool = (_program(name) for name in ("prometheus", "promtool"))
    span = extent(facts, records)
    with tempfile.TemporaryDirectory(prefix="prony-replay-") as scratch:
        text, data = Path(scratch) / "run.om", Path(scratch) / "data"
        with text.open("w", encoding="utf-8") as file:
            file.writelines(as_openmetrics(facts, records, kept_samples(folder.path)))
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text),
                   str(data)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UsageError(f"promtool refuses the run: {(done.stderr or done.stdout).strip()}")
        text.unlink()
        try:
            with Prometheus.over(prometheus, data, span[1], port) as server:
                yield server, facts, span
        except PrometheusError as error:
            raise UsageError(str(error)) from None


def _check(prometheus: "Prometheus", facts: dict[str, Any]) -> int:
    from prony_dashboards.boards import boards
    from prony_dashboards.check import check_live
    from prony_dashboards.findings import ALERT, GPU, HOST, RULES

    made = boards()
    engine = (facts.get("server_metrics") or {}).get("engine")
    names = ["shared/load.json", "shared/compare.json"]
    if engine is not None:
        names += [f"{engine}/{kind}.json" for kind in ("overview", "latency", "engine")]
    chosen = {name: made[name] for name in names}
    checked = check_live(chosen, prometheus, {ALERT, GPU, HOST, RULES}, patience=0)
    for finding in checked.wrong:
        print(f"empty: {finding}")
    print(
        f"{checked.boards} boards, {checked.queries} queries at the run's time: "
        f"{len(checked.wrong)} empty, {len(checked.empty)} empty as declared"
    )
    if engine is None:
        print("the run kept nothing of the server's own metrics, so its boards were left out")
    return 1 if checked.wrong else 0


def _overview(facts: dict[str, Any]) -> str:
    from prony_dashboards.board import uid
    from prony_dashboards.engines import ENGINES

    engine = (facts.get("server_metrics") or {}).get("engine") or "prony"
    return uid("overview", ENGINES[engine])


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"replay needs {name} (Debian: apt-get install prometheus)")
    return found
