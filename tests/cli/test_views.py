"""`prony compare`, `prony report --as` and `prony rules`: what they print and when they refuse."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.cli.test_gate import folder_of, gate
from tests.loadgen.synthetic_run import run_of, synthetic_run
from tests.loadgen.test_compare import slower
from tests.needs import needs_program

from prony_slo.objective import read_slo


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    facts, records = synthetic_run(failures=0.0, slo=())
    late = [slower(record, 1.5) for record in records]
    return [
        folder_of(tmp_path / "before", facts, records),
        folder_of(tmp_path / "after", run_of(late, slo=()), late),
    ]


def test_compare_prints_a_table_and_writes_a_page(runs: list[Path], tmp_path: Path) -> None:
    code, text = gate("compare", *runs, "--html", "both.html", cwd=tmp_path, COLUMNS="150")
    assert code == 0
    assert "TPOT p50" in text and "worse" in text and "95 % intervals" in text
    assert "plot-tpot" in (tmp_path / "both.html").read_text()


def test_compare_speaks_json_and_markdown(runs: list[Path], tmp_path: Path) -> None:
    found = json.loads(gate("compare", *runs, "--json", cwd=tmp_path)[1])
    tpot = next(line for line in found["lines"] if line["name"] == "TPOT p50")
    assert tpot["cells"][1]["change"] == pytest.approx(1.5, rel=0.01)
    assert tpot["cells"][1]["settled"] == -1
    text = gate("compare", *runs, "--markdown", cwd=tmp_path)[1]
    assert "| TPOT p50 |" in text and "**worse**" in text


def test_compare_needs_two_runs(runs: list[Path], tmp_path: Path) -> None:
    code, text = gate("compare", runs[0], cwd=tmp_path)
    assert code == 2 and "name two" in text


def test_a_run_is_told_as_another_tool_would_and_what_differs_is_named(
    runs: list[Path], tmp_path: Path
) -> None:
    before = (runs[0] / "run.json").read_bytes()
    code, text = gate("report", runs[0], "--as", "vllm", cwd=tmp_path)
    assert code == 0
    assert "============ Serving Benchmark Result ============" in text
    assert "Mean TTFT (ms):" in text
    assert "from the moment it was sent" in text
    assert (runs[0] / "run.json").read_bytes() == before
    code, text = gate("report", runs[0], "--as", "locust", cwd=tmp_path)
    assert code == 2 and "guidellm" in text


def test_rules_go_to_stdout_or_a_file_with_notes_beside(tmp_path: Path) -> None:
    code, _ = gate("rules", "chat", "--engine", "vllm", "--out", "rules.yml", cwd=tmp_path)
    assert code == 0
    checked = subprocess.run(
        [needs_program("promtool"), "check", "rules", "rules.yml"], cwd=tmp_path
    )
    assert checked.returncode == 0
    assert yaml.safe_load((tmp_path / "rules.yml").read_text())["groups"]
    code, text = gate("rules", "chat", "--engine", "vllm", cwd=tmp_path)
    assert code == 0 and "note: errors:" in text and "groups:" in text


def test_openslo_goes_out_and_comes_back(tmp_path: Path) -> None:
    assert gate("rules", "chat", "--openslo", "--out", "open.yaml", cwd=tmp_path)[0] == 0
    code, _ = gate("rules", "open.yaml", "--from-openslo", "--out", "back.yaml", cwd=tmp_path)
    assert code == 0
    assert [o.id for o in read_slo(tmp_path / "back.yaml").objectives] == ["ttft", "tpot", "errors"]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("no-such-slo",), "no-such-slo"),
        (("no-such-slo", "--openslo"), "no such SLO file"),
        (("no-such.yaml", "--from-openslo"), "No such file"),
        (("chat", "--out", "no/such/folder/x"), "--out"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(argv: tuple[str, ...], told: str, tmp_path: Path) -> None:
    code, text = gate("rules", *argv, cwd=tmp_path)
    assert code == 2 and told in text
