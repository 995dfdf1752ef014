"""A run told to a Grafana while it goes on: its start, its end and what came of it."""

import os
from pathlib import Path
from typing import Any

from tests.dashboards.fake_grafana import TOKEN, FakeGrafana
from tests.loadgen.fake_server import FakeServer
from tests.starting import run_program

from prony.annotations import Annotating, marks
from prony.grafana import connect
from prony_loadgen.folder import RunFolder
from prony_loadgen.plan import Plan
from prony_loadgen.settings import NoJudge

FACTS: dict[str, Any] = {
    "schema": 1,
    "loop": "open",
    "run_id": "r1",
    "origin_unix": 1000.0,
    "window": [5.0, 65.0],
    "interrupted": False,
    "verdict": "breach",
    "scenario": {
        "name": "chat",
        "arrivals": {"stages": [{"name": "low", "length": 30}, {"name": "high", "length": 35}]},
    },
    "objectives": [{"id": "ttft", "verdict": "breach"}, {"id": "errors", "verdict": "pass"}],
}


def run_folder(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.write_run(FACTS)
    return folder


def judged(grafana: FakeGrafana, path: Path, said: list[str]) -> Annotating:
    api = connect(grafana.url, environ={"GRAFANA_TOKEN": TOKEN})
    judge = Annotating(NoJudge(), api, now=lambda: 999.5, say=said.append)
    judge.plan(Plan(None, None, None, None, None), (0.0, 60.0))
    return judge


def test_the_start_is_told_at_once_and_grows_into_the_runs_region(tmp_path: Path) -> None:
    with FakeGrafana().listening() as grafana:
        judge = judged(grafana, tmp_path, [])
        assert grafana.annotations[1]["text"] == "load test starts"
        assert grafana.annotations[1]["time"] == 999_500
        assert judge.finish(run_folder(tmp_path)) == 0
        run = grafana.annotations[1]
    assert (run["text"], run["time"], run["timeEnd"]) == ("chat r1: breach", 1_000_000, 1_065_000)
    assert run["tags"] == ["prony", "run_id:r1", "run"]
    texts = [each["text"] for each in grafana.annotations.values()]
    assert texts[1:] == ["warm-up, not measured", "stage low", "stage high", "SLO breached: ttft"]


def test_stages_follow_one_another_from_the_runs_zero() -> None:
    stages = [m for m in marks(FACTS, 0) if m.text.startswith("stage")]
    assert [(m.start, m.end) for m in stages] == [(1000, 1030), (1030, 1065)]


def test_a_grafana_that_refuses_is_named_once_and_the_run_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    with FakeGrafana().listening() as grafana:
        grafana.refused = {"POST /api/annotations": 403}
        judge = judged(grafana, tmp_path, said)
        assert judge.finish(run_folder(tmp_path)) == 0
    assert len(said) == 1 and "none are written" in said[0]
    assert grafana.annotations == {}


def test_a_run_of_the_command_line_is_told_from_its_start_to_its_end(tmp_path: Path) -> None:
    options = ["run", "chat", "--rate", "20", "--requests", "6", "--warmup", "0s", "--quiet"]
    with FakeServer() as server, FakeGrafana().listening() as grafana:
        done = run_program(
            "prony", *options, "--out", "run", "--target", server.url, "--grafana", grafana.url,
            cwd=tmp_path, environ={**os.environ, "GRAFANA_TOKEN": TOKEN},
        )  # fmt: skip
        facts = RunFolder(tmp_path / "run").read_run()
    assert "note: Grafana" not in done.stderr and "Warning" not in done.stderr, done.stderr
    run = grafana.annotations[1]
    assert run["time"] == round(facts["origin_unix"] * 1000)
    assert run["timeEnd"] > run["time"]
    assert f"run_id:{facts['run_id']}" in run["tags"]
