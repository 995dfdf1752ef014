"""All that boards can show, alive: Prometheus's program goes in, one that scrapes it all comes out.

It scrapes a reference server, the load on it, and a written page of each other engine.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prony.errors import UsageError
from prony_dashboards.engines import ENGINES
from prony_dashboards.pages import page, serving
from prony_dashboards.prometheus import Prometheus, free_port
from prony_slo.objective import load_slo
from prony_slo.rules import rules

RATE = "8"  # requests a second, which a tiny model on one core answers with ease
LONG = "600s"  # longer than any check
WAIT = 30.0  # seconds until everything has been scraped


@contextmanager
def scraped(program: str) -> Iterator[Prometheus]:
    """Prometheus over the reference server under load and a written page of each other engine.

    Raises UsageError where the server or the load does not start, PrometheusError where Prometheus
    does not.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prony-boards-")))
        targets = {
            name: stack.enter_context(serving(page(name))) for name in ENGINES if name != "prony"
        }
        ports = free_port(), free_port()
        targets |= {"prony": f"127.0.0.1:{ports[0]}", "prony-loadgen": f"127.0.0.1:{ports[1]}"}
        made = rules(load_slo(["chat"]), "prony").to_yaml()
        prometheus = stack.enter_context(Prometheus.running(program, targets, made))
        stack.enter_context(_server(ports[0], folder))
        stack.enter_context(_load(*ports, folder))
        prometheus.wait_for_scrapes(WAIT)
        yield prometheus


@contextmanager
def _server(port: int, folder: Path) -> Iterator[None]:
    options = ["serve", "tiny", "--port", str(port), "--torch-threads", "1", "--drain-seconds", "1",
               "--traces", str(folder / "traces.jsonl")]  # fmt: skip
    with _program(options, folder / "server.log", folder) as process:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("ready "):
            raise UsageError(f"the reference server did not start: {_end(folder / 'server.log')}")
        yield


@contextmanager
def _load(server: int, port: int, folder: Path) -> Iterator[None]:
    options = ["run", "chat", "--target", f"http://127.0.0.1:{server}", "--rate", RATE,
               "--duration", LONG, "--out", str(folder / "run"), "--metrics-port", str(port),
               "--quiet"]  # fmt: skip
    with _program(options, folder / "load.log", folder) as process:
        yield
        if process.poll() is not None:
            raise UsageError(f"the load ended before the check: {_end(folder / 'load.log')}")


@contextmanager
def _program(options: list[str], log: Path, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """`prony OPTIONS` in a folder of its own, so that no run of it becomes anybody's latest one."""
    environ = {name: text for name, text in os.environ.items() if name != "PRONY_API_KEY"}
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "prony", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out, text=True, cwd=folder,
            env=environ,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def _end(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-600:] or "it said nothing"
