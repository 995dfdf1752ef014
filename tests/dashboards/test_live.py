"""All boards against a real server under real load and written pages, through a real Prometheus."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.needs import needs_program

from prony.live_boards import scraped
from prony_dashboards.board import Board
from prony_dashboards.boards import boards
from prony_dashboards.check import check_live, query_all
from prony_dashboards.findings import ALERT, GPU, HOST
from prony_dashboards.prometheus import Prometheus, PrometheusError
from prony_loadgen.telemetry import REQUESTS_IN_FLIGHT

BOARDS = boards()


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Prometheus]:
    """A Prometheus that has scraped the server, its load and a page of each other engine."""
    with scraped(needs_program("prometheus")) as server:
        yield server


def test_every_query_of_every_board_finds_data_or_says_what_it_needs(
    prometheus: Prometheus,
) -> None:
    checked = check_live(BOARDS, prometheus, missing={GPU, HOST, ALERT})
    assert [str(finding) for finding in checked.wrong] == []
    assert checked.boards == 18 and checked.queries > 300
    assert {finding.board for finding in checked.empty} >= {"Prony: GPU and host"}


def test_a_panel_is_excused_only_by_the_need_that_it_names(prometheus: Prometheus) -> None:
    gpu = {"gpu": BOARDS["shared/gpu-host.json"]}
    checked = check_live(gpu, prometheus, missing={HOST}, patience=0)
    assert {finding.panel for finding in checked.wrong} >= {"Power", "SM clock"}
    assert "Memory of the host" in {finding.panel for finding in checked.empty}


def test_a_broken_query_is_found_and_named_with_its_panel(prometheus: Prometheus) -> None:
    board = copy.deepcopy(BOARDS["shared/load.json"])
    edit(board, "In flight", lambda expr: expr.replace(REQUESTS_IN_FLIGHT, "users_running"))
    edit(board, "Send lag", lambda expr: expr.replace("$run_id", "$run"))
    edit(board, "Outcomes", lambda expr: expr + ")")
    edit(board, "Share of failed requests", lambda _: "0 * up / 0")
    found = {finding.panel: finding.problem for finding in query_all(board, prometheus)}
    assert found.pop("Outcomes").startswith("Prometheus refuses it: ")
    assert found == {
        "In flight": "it finds nothing",
        "Send lag": "$run is not resolved",
        "Share of failed requests": "it finds only NaN",
    }


def test_a_variable_without_any_value_is_found(prometheus: Prometheus) -> None:
    board = copy.deepcopy(BOARDS["shared/load.json"])
    run = board["templating"]["list"][-1]
    run["definition"] = "label_values(prony_runs, run_id)"
    assert [str(finding) for finding in query_all(board, prometheus)] == [
        "Prony: Load generator / variable run_id: it has no value\n"
        "    label_values(prony_runs, run_id)"
    ]


def test_the_load_test_is_marked_on_the_time_axis_without_anybodys_pushing_it(
    prometheus: Prometheus,
) -> None:
    (mark,) = (
        each for each in BOARDS["prony/overview.json"]["annotations"]["list"]
        if each["name"] == "Load tests"
    )  # fmt: skip
    (series,) = prometheus.query(mark["expr"])
    assert set(series["metric"]) == {"run_id"}


def test_g10_idle_panels_are_gaps_and_never_nan_or_zero(prometheus: Prometheus) -> None:
    """Asked about a run that does not exist, all the client's panels have nothing at all."""
    board = copy.deepcopy(BOARDS["shared/load.json"])
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            target["expr"] = target["expr"].replace('"$run_id"', '"no such run"')
    findings = query_all(board, prometheus)
    assert {finding.problem for finding in findings} == {"it finds nothing"}
    assert len(findings) == sum(len(panel.get("targets", ())) for panel in board["panels"])


def test_a_target_that_cannot_be_scraped_is_named() -> None:
    program = needs_program("prometheus")
    with (
        Prometheus.running(program, {"dead": "127.0.0.1:1"}) as server,
        pytest.raises(PrometheusError, match=r"dead at 127\.0\.0\.1:1 "),
    ):
        server.wait_for_scrapes(patience=0)


def test_a_prometheus_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(PrometheusError, match=r"did not start"),
        Prometheus.running(sys.executable, {}),  # takes none of Prometheus's options
    ):
        pass


def test_the_command_does_all_of_it_and_says_what_it_did() -> None:
    needs_program("prometheus")
    done = subprocess.run(
        [sys.executable, "-m", "prony", "dashboards", "check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "18 boards, " in done.stdout and ", 0 errors" in done.stdout
    assert "No Grafana was run" in done.stdout


def edit(board: Board, title: str, change: Callable[[str], str]) -> None:
    """Changes the queries of the board's panel of this title."""
    (panel,) = (each for each in board["panels"] if each["title"] == title)
    for target in panel["targets"]:
        target["expr"] = change(target["expr"])
