"""A finished run on the boards: from its folder into a Prometheus, every panel at its own time."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.loadgen.synthetic_run import synthetic_run
from tests.needs import needs_program
from tests.server.live_server import live_server
from tests.starting import run_program

from prony.errors import UsageError
from prony.openmetrics import as_openmetrics
from prony.replay import replayed
from prony_dashboards.boards import boards
from prony_loadgen.folder import RunFolder

ORIGIN = 1_790_000_000.0


def test_a_real_runs_panels_are_all_there_at_its_own_time(tmp_path: Path) -> None:
    for program in ("prometheus", "promtool"):
        needs_program(program)
    options = ["run", "chat", "--rate", "8", "--duration", "8s", "--out", "run", "--quiet"]
    with live_server() as server:
        prony(tmp_path, *options, "--target", server.url)
    done = prony(tmp_path, "replay", "run", "--check")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "5 boards, " in done.stdout and ": 0 empty, " in done.stdout
    # The run's region is marked by the same query as live.
    facts = RunFolder(tmp_path / "run").read_run()
    (mark,) = (
        each
        for each in boards()["shared/load.json"]["annotations"]["list"]
        if each["name"] == "Load tests"
    )
    with replayed(RunFolder(tmp_path / "run")) as (prometheus, _, span):
        found = prometheus.query_range(mark["expr"], span[1] - span[0], 1)
    assert not isinstance(found, str)
    assert [series["metric"]["run_id"] for series in found] == [facts["run_id"]]


def prony(folder: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    return run_program("prony", *argv, cwd=folder)


def test_counts_rise_from_nothing_to_what_the_run_had() -> None:
    run, records = synthetic_run()
    run |= {"origin_unix": ORIGIN}
    lines = list(as_openmetrics(run, records, []))
    assert lines[-1] == "# EOF\n"
    offered = [line.split() for line in lines if line.startswith("prony_loadgen_offered_total")]
    assert float(offered[0][1]) == 0 and float(offered[-1][1]) == len(records)
    assert float(offered[0][2]) == ORIGIN - 2
    flying = [
        float(line.split()[1])
        for line in lines
        if line.startswith("prony_loadgen_requests_in_flight")
    ]
    assert max(flying) > 0 and flying[0] == flying[-1] == 0


def test_the_servers_series_keep_their_labels_and_get_a_job_and_an_instance() -> None:
    run, records = synthetic_run()
    run |= {"origin_unix": ORIGIN, "server_metrics": {"engine": "vllm"}}
    run["target"] = {**run["target"], "url": "http://h:8000/v1"}
    page = (1.5, [("vllm:x", {"model_name": 'a"b'}, 3.0)])
    (line,) = (each for each in as_openmetrics(run, records, [page]) if each.startswith("vllm"))
    wanted = 'vllm:x{model_name="a\\"b",job="vllm",instance="h:8000"} 3.0 1790000001.500\n'
    assert line == wanted
    parse: Any = text_string_to_metric_families
    assert list(parse(line.replace("vllm:x", "x") + "# EOF\n"))


def test_a_folder_without_requests_is_a_mistake(tmp_path: Path) -> None:
    facts = {"schema": 1, "origin_unix": 0, "run_id": "r", "window": [0, 1], "loop": "open"}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    with pytest.raises(UsageError, match="no request was recorded"), replayed(RunFolder(tmp_path)):
        pass
