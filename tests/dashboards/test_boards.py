"""The dashboard as generated and committed: its structure, its expressions, its names."""

import copy
import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from prony_dashboards import boards
from prony_dashboards.findings import panels_of, targets_of
from prony_dashboards.lint import exported_names, lint, selected_names
from prony_loadgen import telemetry as load
from prony_loadgen.shipped import shipped
from prony_loadgen.telemetry import LoadMetrics
from prony_server import telemetry as server
from prony_server.engine import Stats
from prony_server.telemetry import EngineCollector, ServerMetrics

BOARD = boards.server_and_load()

# Shown by nothing on purpose; whoever adds a metric shows it or says here why not.
NOT_SHOWN = {
    server.KV_BLOCKS_USED: "the ratio is shown",
    server.KV_BLOCKS_TOTAL: "the ratio is shown",
    server.GPU_UTILIZATION: "only where there is a GPU: the GPU board's",
    server.GPU_MEMORY_USED: "only where there is a GPU: the GPU board's",
}


def changed(panel: str, old: str, new: str) -> dict[str, Any]:
    """The board with a part of one panel's JSON replaced."""
    board = copy.deepcopy(BOARD)
    for index, each in enumerate(board["panels"]):
        if each["title"] == panel:
            text = json.dumps(each)
            assert old in text
            board["panels"][index] = json.loads(text.replace(old, new))
    return board


def problems(board: dict[str, Any]) -> list[str]:
    return [f"{finding.panel}: {finding.problem}" for finding in lint(board)]


def test_the_committed_dashboards_are_what_the_code_builds() -> None:
    assert boards.stale(shipped("boards")) == []


def test_a_dashboard_edited_by_hand_or_left_over_is_stale(tmp_path) -> None:
    (built,) = boards.build(tmp_path)
    assert boards.stale(tmp_path) == []
    built.write_text(built.read_text().replace("Overview", "overview"))
    (tmp_path / "old.json").write_text("{}")
    assert boards.stale(tmp_path) == [tmp_path / "old.json", built]


def test_a_missing_dashboard_is_stale(tmp_path) -> None:
    assert boards.stale(tmp_path) == [tmp_path / "prony.json"]


def test_the_dashboard_has_nothing_wrong() -> None:
    assert problems(BOARD) == []


def test_every_exported_metric_is_shown_or_listed_as_not_shown() -> None:
    shown = set().union(*(selected_names(target["expr"]) for _, target in targets_of(BOARD)))
    shown = {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in shown
    }
    assert exported_names() - shown == set(NOT_SHOWN)


def test_the_names_that_the_check_knows_are_those_that_the_two_modules_really_export() -> None:
    idle = Stats(running=0, waiting=0, blocks_used=0, blocks_total=1, preemptions=0)
    registry = CollectorRegistry()
    ServerMetrics(registry, "tiny")
    registry.register(EngineCollector(lambda: idle))
    LoadMetrics(registry, "r1")
    families = text_string_to_metric_families(generate_latest(registry).decode())
    exported = {f"{f.name}_total" if f.type == "counter" else f.name for f in families}
    gpu_only = {server.GPU_UTILIZATION, server.GPU_MEMORY_USED}
    assert exported_names() - exported == gpu_only
    assert {name for name in exported if not name.endswith("_created")} <= exported_names()


def test_every_panel_has_a_description_of_more_than_its_title() -> None:
    assert [p["title"] for p in panels_of(BOARD) if len(p["description"]) < 30] == []


def test_building_twice_gives_the_same_text() -> None:
    assert boards.as_text(boards.server_and_load()) == boards.as_text(BOARD)


@pytest.mark.parametrize(
    ("panel", "old", "new", "problem"),
    [
        ("In flight", load.REQUESTS_IN_FLIGHT, "users", "nothing exports users"),
        ("In flight", "sum by (run_id) (", "sum by (run_id) ((", "it does not parse"),
        ("In flight", "$run_id", "$runid", "the board has no variable $runid"),
        ("Preemptions", "$__rate_interval", "$__interval", "empty in short ranges"),
        ("Preemptions", "suffix:preemptions/s", "", "no unit"),
        ("Preemptions", "${datasource}", "ddyfngn31dg5cf", "a fixed data source"),
        ("Iteration time", '"x": 8', '"x": 4', "it lies over Batch size"),
        ("Batch size", '"w": 8', '"w": 25', "over the grid's right edge"),
    ],
)
def test_a_broken_panel_is_found_and_named(panel: str, old: str, new: str, problem: str) -> None:
    found = problems(changed(panel, old, new))
    assert any(line.startswith(panel) and problem in line for line in found), found


def test_a_variable_of_a_renamed_metric_is_found() -> None:
    board = copy.deepcopy(BOARD)
    variable = board["templating"]["list"][-1]
    variable["definition"] = "label_values(prony_runs, run_id)"
    assert problems(board) == ["variable run_id: nothing exports prony_runs"]


def test_a_counter_may_be_called_by_one_name_only() -> None:
    assert "prony_preemptions_total" in exported_names()
    found = problems(changed("Preemptions", "prony_preemptions_total", "prony_preemptions"))
    assert found == ["Preemptions: nothing exports prony_preemptions"]


def test_names_are_found_wherever_they_stand_in_an_expression() -> None:
    expr = (
        'sum by (le) (rate(a_b{x=~"$model"}[$__rate_interval])) / (c_d or e_f * 0) '
        "+ max_over_time(g_h[5m:1s]) > topk(2, -i_j)"
    )
    assert selected_names(expr) == {"a_b", "c_d", "e_f", "g_h", "i_j"}
