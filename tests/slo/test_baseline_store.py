"""A stored baseline: only people move it, and whatever is wrong with it is a reason, not a pass."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.slo.runs import many, run_of

from prony_loadgen.summary import Measured
from prony_slo.baseline_store import (
    MOST_SESSIONS,
    BaselineError,
    BaselineFile,
    accept,
    history,
    mismatch,
    read,
    sessions,
    short_of,
    write,
)
from prony_slo.fingerprint import fingerprint, workload
from prony_slo.promise import Check, Condition, Regression
from prony_slo.stored import judge_stored

TTFT = Check("ttft p50", "ttft", "p50", 0.05, "gate.yaml:9")
GOOD = Check(
    "goodput", "goodput", "share", 0.01, "gate.yaml:10", conditions=(Condition("ttft", 0.5),)
)
REGRESSION = Regression((TTFT, GOOD))


def facts(number: int, *, day: int = 1, hour: int = 9, **changed: Any) -> dict[str, Any]:
    known = {
        "run_id": f"r{day}-{hour}-{number}",
        "started_at": f"2026-11-{day:02}T{hour:02}:{number:02}:00.000Z",
        "prony": "0.1.0",
        "scenario": {"name": "chat", "arrivals": {"rate": 12}, "seed": number},
        "target": {"url": "http://127.0.0.1:8000", "model": "m", "dialect": "openai-chat"},
        "host": {"machine": "x86_64", "usable_cpus": 2},
        "verdict": "pass",
        "interrupted": False,
    }
    return known | changed


def part(ttft: float = 0.1) -> Measured:
    return run_of(many(300, ttft=ttft))


def filled(days: int = 4, runs: int = 2) -> BaselineFile:
    accepted = [
        (facts(number, day=day), part(0.1 + 0.0005 * (day + number)))
        for day in range(1, days + 1)
        for number in range(runs)
    ]
    return accept(None, REGRESSION, accepted)


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    kept = accept(filled(), REGRESSION, [(facts(5, day=9), part())], anchor="v1")
    write(tmp_path / "deep/main.json", kept)
    assert read(tmp_path / "deep/main.json") == kept
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["main.json"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ('{"schema": 1, "kind": "prony-base', "half-written"),
        ("[]", "not a baseline"),
        ('{"kind": "prony-baseline", "schema": 2}', "schema 2, this Prony reads 1"),
        ('{"kind": "prony-baseline", "schema": 1}', "damaged"),
        ('{"kind": "prony-baseline", "schema": 1, "fingerprint": {}, "checks": {}, "anchor": null,'
         ' "runs": [{"run_id": "a", "started_at": "2026-11-01T09:00:00Z", "requests": 1,'
         ' "values": {"ttft p50": NaN}}]}', "NaN"),
        ('{"kind": "prony-baseline", "schema": 1, "fingerprint": {}, "checks": {}, "anchor": null,'
         ' "runs": [{"run_id": "a", "started_at": "yesterday", "requests": 1, "values": {}}]}',
         "damaged"),
    ],
    ids=["empty", "half-written", "no baseline", "other schema", "keys missing", "NaN", "no time"],
)  # fmt: skip
def test_a_baseline_that_is_damaged_says_why_and_is_not_called_missing(
    text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "main.json"
    path.write_text(text)
    with pytest.raises(BaselineError, match=reason) as caught:
        read(path)
    assert not caught.value.missing


def test_a_baseline_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="no baseline at") as caught:
        read(tmp_path / "main.json")
    assert caught.value.missing


def test_runs_of_one_hour_are_one_session_however_they_were_accepted() -> None:
    kept = accept(None, REGRESSION, [(facts(0), part())])
    kept = accept(kept, REGRESSION, [(facts(50), part()), (facts(0, hour=12), part())])
    assert [len(session) for session in sessions(kept.runs)] == [2, 1]


def test_it_says_what_is_missing_before_it_can_decide() -> None:
    assert "2 runs of 1 sessions" in str(short_of(filled(days=1).runs))
    assert short_of(filled(days=4).runs) is None


def test_a_run_is_kept_once_and_a_bad_one_not_at_all() -> None:
    kept = filled()
    for changed, reason in (
        ({}, "in the baseline already"),
        ({"run_id": "x", "verdict": "invalid"}, "cannot be trusted"),
        ({"run_id": "x", "scenario": {"arrivals": {"rate": 24}}}, "another setting"),
        ({"run_id": "x", "target": {"model": "other"}}, "model: m there, other here"),
    ):
        with pytest.raises(BaselineError, match=reason):
            accept(kept, REGRESSION, [(facts(0) | changed, part())])


def test_old_sessions_are_let_go_and_the_anchor_stays() -> None:
    kept = accept(None, REGRESSION, [(facts(0), part())], anchor="v1")
    for day in range(2, MOST_SESSIONS + 4):
        kept = accept(kept, REGRESSION, [(facts(0, day=day), part())])
    assert len(sessions(kept.runs)) == MOST_SESSIONS
    assert kept.anchor is not None and kept.anchor.runs[0].run_id == "r1-9-0"


def test_an_unchanged_build_passes_and_a_slower_one_does_not() -> None:
    kept = filled()
    past = history(kept, REGRESSION, kept.runs)
    assert judge_stored(REGRESSION, past, [part(0.1015)])[0].verdict == "pass"
    assert judge_stored(REGRESSION, past, [part(0.13)])[0].verdict == "breach"


def test_a_check_whose_meaning_changed_has_no_past() -> None:
    kept = filled()
    other = Regression((replace(GOOD, conditions=(Condition("ttft", 0.2),)),))
    assert all(run.values == {} for run in history(kept, other, kept.runs))
    (result,) = judge_stored(other, history(kept, other, kept.runs), [part()])
    assert result.verdict == "inconclusive" and "0 runs" in result.text


def test_another_workload_model_or_machine_is_named() -> None:
    kept = filled()
    assert mismatch(kept, facts(0)) is None
    other = facts(0, host={"machine": "aarch64", "usable_cpus": 8})
    assert "hardware: x86_64, 2 cpus there, aarch64, 8 cpus here" in str(mismatch(kept, other))


def test_the_seed_and_the_target_are_no_part_of_the_workload() -> None:
    one = {"arrivals": {"rate": 5}, "seed": 1, "target": "http://a"}
    same = {"target": "http://b", "arrivals": {"rate": 5}, "seed": 2}
    assert workload(one) == workload(same) != workload({"arrivals": {"rate": 6}})


def test_server_flags_are_a_part_of_the_fingerprint_where_they_are_known() -> None:
    known = facts(0, server={"command": "serve --a"})
    assert fingerprint(known)["server.command"] == "serve --a"
    assert mismatch(filled(), known) is not None


def test_no_file_holds_nan_or_infinity(tmp_path: Path) -> None:
    write(tmp_path / "main.json", filled())
    text = (tmp_path / "main.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
