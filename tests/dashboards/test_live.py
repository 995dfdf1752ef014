"""The dashboard against a real server under real load, through a real Prometheus."""

import contextlib
import copy
import dataclasses
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.needs import needs_program

from prony_dashboards import boards
from prony_dashboards.check import check_live, query_all
from prony_dashboards.prometheus import Prometheus, PrometheusError
from prony_loadgen.telemetry import REQUESTS_IN_FLIGHT

RATE = "8"  # requests a second, which a tiny model on one core answers with ease
SERVE = """
import asyncio, sys
from prometheus_client import CollectorRegistry
from prony_server.app import serve
from prony_server.config import ServeConfig
config = ServeConfig(model="tiny", port=0, torch_threads=1, drain_seconds=1)
ready = lambda url: print(url, flush=True)
sys.exit(asyncio.run(serve(config, registry=CollectorRegistry(), tracer=None, ready=ready)))
"""


@contextlib.contextmanager
def tiny_server() -> Iterator[str]:
    """The URL of a reference server in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), "the server did not start"
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=30)


@contextlib.contextmanager
def load_on(url: str, folder: Path) -> Iterator[str]:
    """The "host:port" of the load generator's metrics while `prony run` sends to the server."""
    port = free_port()
    options = ["--target", url, "--rate", RATE, "--duration", "120s", "--out", str(folder / "run"),
               "--metrics-port", str(port), "--quiet"]  # fmt: skip
    command = [sys.executable, "-m", "prony", "run", *options]
    with (folder / "log").open("w+") as log:
        # In its folder, so that a run of a test never becomes anybody's latest run.
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield f"127.0.0.1:{port}"
            assert process.poll() is None, (folder / "log").read_text()
        finally:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server and a load generator, both scraped while requests flow."""
    folder = tmp_path_factory.mktemp("live")
    with tiny_server() as url, load_on(url, folder) as exporter:
        yield {"server": url.removeprefix("http://"), "load": exporter}


@pytest.fixture(scope="module")
def prometheus(targets: dict[str, str]) -> Iterator[Prometheus]:
    """A Prometheus that has scraped both, and that was told of a third target that is dead."""
    dead = {"dead": "127.0.0.1:1"}
    with Prometheus.running(needs_program("prometheus"), targets | dead) as server:
        dataclasses.replace(server, targets=targets).wait_for_scrapes(30)
        yield server


def test_every_query_of_every_panel_finds_data_under_load(targets: dict[str, str]) -> None:
    program = needs_program("prometheus")
    findings = check_live(boards.server_and_load(), targets, program)
    assert [str(finding) for finding in findings] == []


def test_a_broken_query_is_found_and_named_with_its_panel(prometheus: Prometheus) -> None:
    board = copy.deepcopy(boards.server_and_load())
    edit(board, "In flight", lambda expr: expr.replace(REQUESTS_IN_FLIGHT, "users_running"))
    edit(board, "Send lag", lambda expr: expr.replace("$run_id", "$run"))
    edit(board, "Preemptions", lambda expr: expr + ")")
    edit(board, "Share of failed requests", lambda _: "0 * up / 0")
    findings = query_all(board, prometheus)
    found = {finding.panel: finding.problem for finding in findings}
    assert found.pop("Preemptions").startswith("Prometheus refuses it: ")
    assert found == {
        "In flight": "it finds nothing",
        "Send lag": "$run is not resolved",
        "Share of failed requests": "it finds only NaN",
    }


def test_a_variable_without_any_value_is_found(prometheus: Prometheus) -> None:
    board = copy.deepcopy(boards.server_and_load())
    run = board["templating"]["list"][-1]
    run["definition"] = "label_values(prony_runs, run_id)"
    assert [str(finding) for finding in query_all(board, prometheus)] == [
        "variable run_id: it has no value\n    label_values(prony_runs, run_id)"
    ]


def test_a_target_that_cannot_be_scraped_is_named(prometheus: Prometheus) -> None:
    with pytest.raises(PrometheusError, match=r"dead at 127\.0\.0\.1:1 cannot be scraped"):
        prometheus.wait_for_scrapes(patience=0)


def test_a_prometheus_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(PrometheusError, match=r"did not start"),
        Prometheus.running(sys.executable, {}),  # takes none of Prometheus's options
    ):
        pass


def edit(board: boards.Board, title: str, change: Callable[[str], str]) -> None:
    """Changes the queries of the board's panel of this title."""
    (panel,) = (each for each in board["panels"] if each["title"] == title)
    for target in panel["targets"]:
        target["expr"] = change(target["expr"])
