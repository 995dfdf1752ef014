"""The boards as generated and committed: their structure, their expressions, their names."""

import copy
import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from prony_dashboards.boards import as_text, boards, build, stale
from prony_dashboards.engines import ENGINES
from prony_dashboards.findings import panels_of, targets_of
from prony_dashboards.lint import lint, not_shown, selected_names
from prony_dashboards.names import exported_names
from prony_loadgen import telemetry as load
from prony_loadgen.shipped import shipped
from prony_loadgen.telemetry import LoadMetrics
from prony_server import telemetry as server
from prony_server.collectors import EngineCollector, ThreadClocks
from prony_server.engine import Stats
from prony_server.stages import STAGES
from prony_server.telemetry import ServerMetrics

BOARDS = boards()


def changed(board: str, panel: str, old: str, new: str) -> dict[str, dict[str, Any]]:
    """All boards, with a part of one panel's JSON replaced in one of them."""
    changed = copy.deepcopy(BOARDS)
    for index, each in enumerate(changed[board]["panels"]):
        if each["title"] == panel:
            text = json.dumps(each)
            assert old in text
            changed[board]["panels"][index] = json.loads(text.replace(old, new))
    return changed


def problems(boards: dict[str, dict[str, Any]]) -> list[str]:
    return [f"{finding.panel}: {finding.problem}" for finding in lint(boards)]


def test_the_committed_boards_are_what_the_code_builds() -> None:
    assert stale(shipped("boards")) == []


def test_a_board_edited_by_hand_or_left_over_is_stale(tmp_path) -> None:
    first, *_ = build(tmp_path)
    assert stale(tmp_path) == []
    first.write_text(first.read_text().replace("Overview", "overview"))
    (tmp_path / "old.json").write_text("{}")
    assert stale(tmp_path) == [tmp_path / "old.json", first]


def test_missing_boards_are_stale(tmp_path) -> None:
    assert len(stale(tmp_path)) == len(BOARDS)


def test_the_boards_have_nothing_wrong() -> None:
    assert problems(BOARDS) == []


def test_every_exported_metric_is_shown_or_listed_as_not_shown() -> None:
    assert not_shown(BOARDS.values()) == []


def test_a_metric_that_no_board_shows_any_more_is_found() -> None:
    without = {name: board for name, board in BOARDS.items() if name != "prony/engine.json"}
    found = [finding.problem for finding in not_shown(without.values())]
    assert f"{server.BATCH_SIZE} is exported and shown nowhere" in found


def test_the_names_that_the_check_knows_are_those_that_the_two_modules_really_export() -> None:
    idle = Stats(0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, stage_seconds=(0.0,) * len(STAGES))
    registry = CollectorRegistry()
    ServerMetrics(registry, "tiny")
    registry.register(EngineCollector(lambda: idle))
    threads = ThreadClocks()
    threads.watch("loop")
    registry.register(threads)
    LoadMetrics(registry, "r1")
    families = text_string_to_metric_families(generate_latest(registry).decode())
    exported = {f"{f.name}_total" if f.type == "counter" else f.name for f in families}
    missing = exported_names() - exported
    assert {name for name in missing if name.startswith(("prony_gpu_", "prony_device_"))} == missing
    assert {server.GPU_UTILIZATION, server.DEVICE_MEMORY_ALLOCATED} <= missing
    assert {name for name in exported if not name.endswith("_created")} <= exported_names()


def test_each_engine_has_a_set_of_its_own_and_all_share_three_boards() -> None:
    assert set(BOARDS) == {
        *(f"{name}/{kind}.json" for name in ENGINES for kind in ("overview", "latency", "engine")),
        *(f"shared/{kind}.json" for kind in ("gpu-host", "load", "compare")),
    }
    assert BOARDS["prony/overview.json"]["uid"] == "prony-overview"
    assert BOARDS["vllm/overview.json"]["uid"] == "prony-vllm-overview"
    assert all(len(board["uid"]) <= 40 for board in BOARDS.values())  # Grafana's limit


@pytest.mark.parametrize("name", ENGINES)
def test_a_set_lets_one_choose_source_engine_model_server_and_run(name: str) -> None:
    variables = [v["name"] for v in BOARDS[f"{name}/overview.json"]["templating"]["list"]]
    wanted = ["datasource", "engine", "model", "instance", "run_id"]
    if ENGINES[name].model_label is None:
        wanted.remove("model")
    assert [each for each in variables if not each.startswith("slo_")] == wanted


def test_what_an_engine_does_not_export_is_told_in_its_place() -> None:
    panels = {p["title"]: p for p in panels_of(BOARDS["tgi/engine.json"])}
    kv = panels["KV cache by server"]
    assert (kv["type"], kv["options"]["content"]) == (
        "text",
        "TGI does not export how full its KV cache is.",
    )
    rate = {p["title"]: p for p in panels_of(BOARDS["trtllm/overview.json"])}["Errors"]
    assert "TensorRT-LLM counts only requests that succeeded" in rate["description"]


def test_every_panel_has_a_description_of_more_than_its_title() -> None:
    short = [
        (name, panel["title"])
        for name, board in BOARDS.items()
        for panel in panels_of(board)
        if len(panel["description"]) < 20
    ]
    assert short == []


def test_building_twice_gives_the_same_text() -> None:
    assert {n: as_text(b) for n, b in boards().items()} == {
        n: as_text(b) for n, b in BOARDS.items()
    }


@pytest.mark.parametrize(
    ("board", "panel", "old", "new", "problem"),
    [
        ("shared/load.json", "In flight", load.REQUESTS_IN_FLIGHT, "users", "exports users"),
        ("shared/load.json", "In flight", "sum by (run_id) (", "sum by (run_id) ((", "not parse"),
        ("shared/load.json", "In flight", "$run_id", "$runid", "the board has no variable $runid"),
        ("prony/engine.json", "Preemptions", "$__rate_interval", "$__interval", "short ranges"),
        ("prony/engine.json", "Preemptions", "suffix:preemptions/s", "", "no unit"),
        ("prony/engine.json", "Preemptions", "${datasource}", "ddyfngn31dg5cf", "fixed data"),
        ("prony/engine.json", "Iteration time", '"x": 8', '"x": 4', "it lies over Batch size"),
        ("prony/engine.json", "Batch size", '"w": 8', '"w": 25', "over the grid's right edge"),
        ("vllm/engine.json", "Preemptions", "vllm:num_preemptions_total",
         "prony_preemptions_total", "nothing exports prony_preemptions_total"),
        ("vllm/engine.json", "KV cache by server", "vllm:kv_cache_usage_perc",
         "vllm:gpu_cache_usage_perc", "nothing exports vllm:gpu_cache_usage_perc"),
    ],
)  # fmt: skip
def test_a_broken_panel_is_found_and_named(
    board: str, panel: str, old: str, new: str, problem: str
) -> None:
    found = problems(changed(board, panel, old, new))
    assert any(line.startswith(panel) and problem in line for line in found), found


def test_a_variable_of_a_renamed_metric_is_found() -> None:
    broken = copy.deepcopy(BOARDS)
    (variable,) = (
        each
        for each in broken["shared/load.json"]["templating"]["list"]
        if each["name"] == "run_id"
    )
    variable["definition"] = "label_values(prony_runs, run_id)"
    assert problems(broken) == ["variable run_id: nothing exports prony_runs"]


def test_an_annotation_of_a_renamed_metric_is_found() -> None:
    broken = copy.deepcopy(BOARDS)
    for each in broken["shared/load.json"]["annotations"]["list"]:
        if "expr" in each:
            each["expr"] = each["expr"].replace("ALERTS", "ALERTED")
    assert problems(broken) == ["annotation SLO alerts: nothing exports ALERTED"]


def test_a_link_to_a_board_that_is_not_there_and_a_uid_taken_twice_are_found() -> None:
    broken = copy.deepcopy(BOARDS)
    broken["vllm/latency.json"]["uid"] = "prony-vllm-engine"
    assert problems(broken) == [
        "link Latency: no board is at /d/prony-vllm-latency",
        "link Latency: no board is at /d/prony-vllm-latency",
        "(all boards): two boards have the uid prony-vllm-engine",
    ]


def test_a_counter_may_be_called_by_one_name_only() -> None:
    board = "prony/engine.json"
    found = problems(changed(board, "Preemptions", "prony_preemptions_total", "prony_preemptions"))
    assert found == ["Preemptions: nothing exports prony_preemptions"]


def test_names_are_found_wherever_they_stand_in_an_expression() -> None:
    expr = (
        'sum by (le) (rate(a_b{x=~"$model"}[$__rate_interval])) / (c_d or e_f * 0) '
        "+ max_over_time(g_h[5m:1s]) > topk(2, -i_j) + vector($slo_ttft)"
    )
    assert selected_names(expr) == {"a_b", "c_d", "e_f", "g_h", "i_j"}


def test_g09_every_rate_is_over_grafanas_own_window_or_the_whole_time_shown() -> None:
    import re

    windows = {
        window
        for board in BOARDS.values()
        for _, target in targets_of(board)
        for window in re.findall(r"\[([^]]+)\]", target["expr"])
    }
    assert windows == {"$__rate_interval", "$__range", "5m"}  # 5m: slopes of memory
