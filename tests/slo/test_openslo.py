"""OpenSLO: our file comes back as it was, and other people's files become what can be judged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from prony_loadgen.shipped import shipped
from prony_loadgen.strict_yaml import FileError
from prony_slo.objective import read_slo
from prony_slo.openslo import from_openslo, to_openslo
from prony_slo.promise import Condition, Query, Share, SloFile

WHOLE = Path(__file__).parent / "chat-gate.yaml"


def without_places(slo: SloFile) -> SloFile:
    """The same SLO wherever it was written."""
    regression = slo.regression and replace(
        slo.regression,
        place="",
        checks=tuple(replace(check, place="") for check in slo.regression.checks),
    )
    objectives = tuple(replace(objective, place="") for objective in slo.objectives)
    return replace(slo, name="", objectives=objectives, regression=regression)


def exported(path: Path, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    out = tmp_path / "openslo.yaml"
    out.write_text(to_openslo(path)[0])
    return out, list(yaml.safe_load_all(out.read_text()))


def imported(documents: list[dict[str, Any]], tmp_path: Path) -> tuple[SloFile, tuple[str, ...]]:
    source = tmp_path / "theirs.yaml"
    source.write_text(yaml.safe_dump_all(documents))
    text, notes = from_openslo(source)
    back = tmp_path / "back.yaml"
    back.write_text(text)
    return read_slo(back), notes


@pytest.mark.parametrize(
    "path", [WHOLE, *sorted(shipped("objectives").glob("*.yaml"))], ids=lambda path: path.stem
)
def test_a_file_comes_back_as_it_was(path: Path, tmp_path: Path) -> None:
    _, documents = exported(path, tmp_path)
    back, notes = imported(documents, tmp_path)
    assert without_places(back) == without_places(read_slo(path))
    assert notes == ()


def test_a_document_is_what_openslo_v1_describes(tmp_path: Path) -> None:
    _, (service, ttft, *_) = exported(WHOLE, tmp_path)
    assert (service["kind"], service["metadata"]["name"]) == ("Service", "llm-chat")
    assert (ttft["apiVersion"], ttft["kind"], ttft["metadata"]["name"]) == (
        "openslo/v1", "SLO", "ttft",
    )  # fmt: skip
    spec = ttft["spec"]
    assert spec["service"] == "llm-chat"
    assert spec["timeWindow"] == [{"duration": "30d", "isRolling": True}]
    assert spec["budgetingMethod"] == "Occurrences"
    assert spec["objectives"] == [{"displayName": "ttft", "target": 0.99}]
    ratio = spec["indicator"]["spec"]["ratioMetric"]
    assert ratio["counter"] is True
    query = ratio["good"]["metricSource"]["spec"]["query"]
    assert query == 'sum(vllm:time_to_first_token_seconds_bucket{job="vllm",le="0.5"})'


def test_what_has_no_form_there_is_kept_and_said(tmp_path: Path) -> None:
    _, documents = exported(WHOLE, tmp_path)
    names = [d["metadata"]["name"] for d in documents]
    assert names == ["llm-chat", "ttft", "goodput-ttft", "goodput-tpot", "e2e-p99", "errors"]
    rest = json.loads(documents[0]["metadata"]["annotations"]["prony/rest"])
    kept = [entry["id"] for entry in rest["objectives"] if isinstance(entry, dict)]
    assert kept == ["goodput", "tput", "good-rps", "kv-cache"]
    notes = to_openslo(WHOLE)[1]
    assert any("10 s is watched, which is stricter" in note for note in notes)


def test_a_target_that_was_changed_there_is_taken_from_there(tmp_path: Path) -> None:
    _, documents = exported(WHOLE, tmp_path)
    documents[1]["spec"]["objectives"][0]["target"] = 0.999
    back, notes = imported(documents, tmp_path)
    ttft = back.objectives[0]
    assert isinstance(ttft.promise, Share) and ttft.promise.limit == 0.001
    assert ttft.scenario == "chat" and ttft.stage == "steady"
    assert any("ttft: its target or limit was changed there" in note for note in notes)


def slo(name: str, indicator: dict[str, Any], *objectives: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": {"name": name},
        "spec": {"indicator": {"spec": indicator}, "objectives": list(objectives)},
    }


def query(text: str) -> dict[str, Any]:
    return {"metricSource": {"type": "prometheus", "spec": {"query": text}}}


def test_a_bucket_of_a_histogram_that_we_know_becomes_a_condition(tmp_path: Path) -> None:
    ratio = {
        "good": query('sum(rate(vllm:time_to_first_token_seconds_bucket{le="0.25"}[5m]))'),
        "total": query("sum(rate(vllm:time_to_first_token_seconds_count[5m]))"),
    }
    back, _ = imported([slo("fast", {"ratioMetric": ratio}, {"targetPercent": 99})], tmp_path)
    assert back.objectives[0].promise == Share((Condition("ttft", 0.25),), 0.01)


def test_another_ratio_becomes_a_query_over_the_run(tmp_path: Path) -> None:
    ratio = {
        "good": query('sum(rate(http_requests_total{code!~"5.."}[{{.window}}]))'),
        "total": query("sum(http_requests_total)"),
    }
    back, _ = imported([slo("up", {"ratioMetric": ratio}, {"target": 0.99})], tmp_path)
    assert back.objectives[0].promise == Query(
        '(sum(rate(http_requests_total{code!~"5.."}[$window]))) / '
        "(sum(increase(http_requests_total[$window])))",
        0.99,
        None,
    )


def test_a_threshold_becomes_a_query_and_every_objective_its_own(tmp_path: Path) -> None:
    indicator = {"thresholdMetric": query("avg(kv_usage)")}
    document = slo("kv", indicator, {"op": "lte", "value": 0.9, "displayName": "high"},
                   {"op": "gte", "value": 0.1, "displayName": "low"})  # fmt: skip
    back, _ = imported([document], tmp_path)
    assert {o.id: o.promise for o in back.objectives} == {
        "kv-high": Query("avg(kv_usage)", None, 0.9),
        "kv-low": Query("avg(kv_usage)", 0.1, None),
    }


def test_an_indicator_of_its_own_document_is_found(tmp_path: Path) -> None:
    sli = {
        "apiVersion": "openslo/v1", "kind": "SLI", "metadata": {"name": "errors"},
        "spec": {"ratioMetric": {
            "bad": query('sum(vllm:request_success_total{finished_reason="error"})'),
            "total": query("sum(vllm:request_success_total)")}},
    }  # fmt: skip
    document = slo("errors", {}, {"target": 0.995})
    document["spec"] = {"indicatorRef": "errors", "objectives": [{"target": 0.995}]}
    back, _ = imported([sli, document], tmp_path)
    assert back.objectives[0].promise == Share((), 0.005)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "not valid YAML"),
        ("apiVersion: openslo/v1alpha\nkind: SLO\nmetadata: {name: x}\n", "must be openslo/v1"),
        ("apiVersion: openslo/v1\nkind: SLO\n", "has no metadata.name"),
        ("apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: x}\nspec: {}\n", "has no indicator"),
        ("", "nothing in it can be judged"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    with pytest.raises(FileError, match=told):
        from_openslo(path)
    with pytest.raises(FileError, match="No such file"):
        from_openslo(tmp_path / "none.yaml")
