"""`prony baseline` and the gate against it: no baseline, a damaged one, enough of one, creeping."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_gate import folder_of, verdict
from tests.loadgen.synthetic_run import run_of, synthetic_run
from tests.loadgen.test_compare import slower

from prony.__main__ import main
from prony_slo.annotations import annotations
from prony_slo.junit import junit_xml
from prony_slo.markdown import verdict_markdown

SLO = """\
objectives:
  - {{id: ttft, good: {{ttft: 5s}}, at_least: 90%}}
regression:
  baseline: {{ref: main, mode: {mode}, missing: {missing}}}
  checks:
    - {{metric: ttft, stat: p50, tolerance: 60%}}
    - {{metric: tpot, stat: p50, tolerance: 30%}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    write_slo(tmp_path)
    return tmp_path


def prony(*argv: str | Path) -> tuple[int, str]:
    """`prony ARGV` in this process: none of these commands imports Locust."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main([str(each) for each in argv])
    return code, said.getvalue()


def write_slo(place: Path, mode: str = "stored", missing: str = "inconclusive") -> None:
    (place / "gate.yaml").write_text(SLO.format(mode=mode, missing=missing))


def run(place: Path, day: int, number: int, *, by: float = 1.0, **changed: Any) -> Path:
    """A finished run of that day, all its answers `by` times as slow."""
    seed = 100 * day + number
    _, records = synthetic_run(seed=seed, requests=120, failures=0.0, slo=())
    records = [slower(record, by * (1 + 0.002 * (seed % 7))) for record in records]
    facts = run_of(records, seed=seed, slo=())
    facts |= {"run_id": f"d{day}n{number}", "started_at": f"2026-11-{day:02}T09:0{number}:00Z"}
    facts["scenario"] = {**facts["scenario"], "seed": seed}
    return folder_of(place / f"runs/d{day}n{number}", {**facts, **changed}, records)


def accept(*argv: str | Path) -> tuple[int, str]:
    return prony("baseline", "accept", *argv, "--slo", "gate.yaml")


def judged(folder: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    code, _ = prony("gate", folder, "--slo", "gate.yaml", *argv)
    return code, verdict(folder)


def test_q07_without_a_baseline_the_command_that_makes_one_is_named(place: Path) -> None:
    code, found = judged(run(place, 1, 1))
    assert (code, found["verdict"]) == (3, "inconclusive")
    assert found["objectives"][0]["verdict"] == "pass"
    check = found["regression"]["checks"][0]
    assert check["text"] == (
        "no baseline yet: make one with `prony baseline accept RUN --slo gate.yaml`"
    )
    assert check["place"] == "gate.yaml:6" and check["file"] == "gate.yaml"
    _, found = judged(run(place, 2, 2), "--baseline", "kept/mian.json")
    text = found["regression"]["checks"][0]["text"]
    assert "accept RUN --slo gate.yaml --baseline kept/mian.json`" in text
    # A gate never makes one, whatever it says.
    assert not (place / "baselines").exists()
    code, text = prony("baseline", "show", "--slo", "gate.yaml")
    assert code == 3 and "make one with `prony baseline accept RUN --slo gate.yaml`" in text


def test_interleaved_names_the_ab_test_instead(place: Path) -> None:
    write_slo(place, mode="interleaved")
    code, found = judged(run(place, 1, 1))
    assert code == 3
    text = found["regression"]["checks"][0]["text"]
    assert "`prony ab chat --a BASE --b NEW --slo gate.yaml`" in text
    assert judged(place / "runs/d1n1", "--no-regression")[0] == 0


def test_a_first_pull_request_passes_where_the_file_says_so(place: Path) -> None:
    write_slo(place, missing="warn")
    code, found = judged(run(place, 1, 1))
    assert (code, found["verdict"]) == (0, "pass")
    assert found["regression"]["checks"][0]["verdict"] == "inconclusive"
    # The option wins over the file, either way.
    assert judged(place / "runs/d1n1", "--missing-baseline", "fail")[0] == 1
    write_slo(place)
    assert judged(place / "runs/d1n1", "--missing-baseline", "warn")[0] == 0


@pytest.mark.parametrize("text", ["", '{"schema": 1, "kind": "prony-bas', '{"schema": 9}', "[NaN]"])
def test_q07_a_damaged_baseline_is_never_a_missing_one(text: str, place: Path) -> None:
    write_slo(place, missing="warn")
    (place / "baselines").mkdir()
    (place / "baselines/main.json").write_text(text)
    code, found = judged(run(place, 1, 1))
    assert (code, found["verdict"], found["regression"]["verdict"]) == (4, "invalid", "invalid")
    assert found["objectives"][0]["verdict"] == "pass"
    assert "baselines/main.json" in found["regression"]["checks"][0]["text"]
    # Every view names the file, and none says that the measurement is at fault.
    told = annotations(found)[0]
    assert told.startswith("::error file=gate.yaml,line=6") and "baselines/main.json" in told
    assert "INVALID" in verdict_markdown(found).splitlines()[0]
    assert "the baseline cannot be read" in verdict_markdown(found)
    report = junit_xml(found)
    assert "cannot be trusted" not in report and 'type="invalid"' in report
    # Nor does accepting a run write over what might be mended.
    assert accept("runs/d1n1")[0] == 2
    assert (place / "baselines/main.json").read_text() == text


def test_runs_are_taken_before_and_after_the_options(place: Path) -> None:
    first, second = run(place, 1, 1), run(place, 2, 1)
    code, text = prony("baseline", "accept", "--slo", "gate.yaml", first, second)
    assert code == 0 and "2 run(s) added" in text
    code, text = prony("baseline", "show", "--slo", "gate.yaml")
    assert code == 0 and "2 runs of 2 session(s)" in text


def test_an_slo_that_compares_nothing_has_no_baseline_to_show_or_make(place: Path) -> None:
    (place / "plain.yaml").write_text("objectives: [{id: a, good: {ttft: 5s}, at_least: 90%}]\n")
    for argv in (["show"], ["accept", run(place, 1, 1)]):
        code, text = prony("baseline", *argv, "--slo", "plain.yaml")
        assert code == 2 and "no `regression:` with `checks:`" in text


def test_a_baseline_that_the_gate_would_not_read_by_itself_is_told(place: Path) -> None:
    write_slo(place, mode="interleaved")
    code, text = accept(run(place, 1, 1))
    assert code == 0 and "(--baseline baselines/main.json), or by `mode: stored`" in text
    code, text = accept(run(place, 2, 1), "--baseline", "kept.json")
    assert code == 0 and "interleaved" not in text
    write_slo(place)
    assert "interleaved" not in accept(run(place, 3, 1))[1]


def test_enough_sessions_pass_the_same_build_and_fail_a_slower_one(place: Path) -> None:
    for day in range(1, 5):
        code, text = accept(*(run(place, day, number) for number in (1, 2)))
        assert code == 0
        assert ("not enough yet" in text) == (day < 4)
    before = (place / "baselines/main.json").read_bytes()
    assert judged(run(place, 8, 1))[0] == 0
    code, found = judged(run(place, 8, 2, by=2.0))
    assert (code, found["regression"]["verdict"]) == (1, "breach")
    # Neither a pass nor a breach has moved it.
    assert (place / "baselines/main.json").read_bytes() == before
    code, text = prony("baseline", "show", "--slo", "gate.yaml")
    assert code == 0
    assert "8 runs of 4 session(s), 2026-11-01 to 2026-11-04" in text
    assert "sessions scatter by" in text


def test_several_new_runs_are_compared_together(place: Path) -> None:
    for day in range(1, 5):
        accept(*(run(place, day, number) for number in (1, 2)))
    both = [run(place, 8, 1), run(place, 8, 2)]
    code, _ = prony("gate", *both, "--slo", "gate.yaml", "--out", "both")
    assert (code, verdict(place / "both")["regression"]["verdict"]) == (0, "pass")


def test_small_steps_are_seen_against_the_anchor(place: Path) -> None:
    write_slo(place)
    for day in range(1, 5):
        accept(*(run(place, day, number) for number in (1, 2)))
    accept(run(place, 5, 1), "--anchor", "v1.0")
    # Each step is within the tolerance of the one before; somebody accepts them all.
    for step, day in enumerate(range(6, 23)):
        accept(*(run(place, day, number, by=1 + 0.04 * step) for number in (1, 2)))
    code, found = judged(run(place, 25, 1, by=1.66))
    verdicts = {row["id"]: row["verdict"] for row in found["regression"]["checks"]}
    assert verdicts["tpot p50 since v1.0"] == "breach"
    assert verdicts["tpot p50"] != "breach"
    assert code == 1


def test_q07_another_workload_is_not_compared_and_not_accepted(place: Path) -> None:
    for day in range(1, 5):
        accept(*(run(place, day, number) for number in (1, 2)))
    other = run(place, 9, 1, scenario={"name": "chat", "arrivals": {"rate": 99}, "warmup": 3.0})
    code, found = judged(other)
    assert code == 3
    assert "another setting (workload:" in found["regression"]["checks"][0]["text"]
    code, text = accept(other)
    assert code == 2 and "name another baseline" in text


def test_what_cannot_be_accepted_is_told_and_changes_nothing(place: Path) -> None:
    accept(run(place, 1, 1))
    before = (place / "baselines/main.json").read_bytes()
    cut = run(place, 1, 2, interrupted=True)
    for argv, told in (
        (("runs/d1n1",), "in the baseline already"),
        ((cut,), "cut short"),
        (("no-such-run",), "no such run folder"),
    ):
        code, text = accept(*argv)
        assert (code, told in text) == (2, True), text
    code, text = prony("baseline", "accept", "runs/d1n1", "--slo", "chat")
    assert code == 2 and "has no `regression:`" in text
    assert (place / "baselines/main.json").read_bytes() == before
    assert json.loads(before)["schema"] == 1
