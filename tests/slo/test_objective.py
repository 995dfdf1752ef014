"""SLO files, as people write them: what is read, and the line of every mistake."""

import json
from pathlib import Path

import pytest

from prony_loadgen.strict_yaml import FileError
from prony_slo.objective import load_slo, read_slo
from prony_slo.promise import (
    Band,
    Baseline,
    Condition,
    Floor,
    Marked,
    Measure,
    Query,
    Share,
    SloFile,
)
from prony_slo.schema import schema

DOCS = Path(__file__).parents[2] / "docs"


def read(folder: Path, text: str, name: str = "gate.yaml") -> SloFile:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_slo(path)


def errors(folder: Path, text: str) -> list[str]:
    with pytest.raises(FileError) as caught:
        read(folder, text)
    return caught.value.lines


def objective_error(folder: Path, line: str) -> str:
    """The one error of a file whose third line is this objective."""
    told = errors(folder, f"objectives:\n  # the objective:\n  - {line}\n")
    assert len(told) == 1, told
    assert told[0].startswith("gate.yaml:3"), told
    return told[0]


ONE_CHECK = "checks: [{metric: ttft, stat: p50, tolerance: 5%}]"


def check(keys: str) -> str:
    return f"regression: {{checks: [{{{keys}}}]}}"


WHOLE = """\
apiVersion: prony/v1
kind: SLOFile
metadata: {name: chat-gate, service: llm-chat}
defaults:
  severity: fail
  confidence: 0.9
  on_inconclusive: warn
  min_requests: 300
measure:
  warmup: 3s
  violations: [error, timeout, dropped, unfinished]
  stop_on_breach: true
objectives:
  - {id: ttft,     good: {ttft: "<= 500ms"}, at_least: 99%, scenario: chat}
  - {id: goodput,  good: {ttft: "< 0.5s", tpot: "50ms"}, at_least: 0.95}
  - {id: e2e-p99,  metric: e2e, percentile: 99.9, at_most: 12s, severity: warn, confidence: 99%}
  - {id: errors,   metric: error_rate, at_most: 0.5%}
  - {id: tput,     metric: output_tokens_per_s, at_least: 1200}
  - {id: good-rps, metric: goodput_rps, of: goodput, at_least: 8}
  - id: gpu
    metric: gpu_utilization
    at_least: 60%
    at_most: 80%
"""


def test_every_form_of_an_objective(tmp_path: Path) -> None:
    slo = read(tmp_path, WHOLE)
    assert slo.name == "gate"
    assert slo.measure == Measure(warmup=3.0, unfinished_is_bad=True, stop_on_breach=True)
    assert [o.promise for o in slo.objectives] == [
        Share((Condition("ttft", 0.5),), 0.01),
        Share((Condition("ttft", 0.5, inclusive=False), Condition("tpot", 0.05)), 0.05),
        Share((Condition("e2e", 12.0),), 0.001),
        Share((), 0.005),
        Floor("output_tokens_per_s", 1200),
        Floor("goodput_rps", 8, of="goodput"),
        Band("gpu_utilization", 0.6, 0.8),
    ]
    assert slo.objectives[0].scenario == "chat"
    assert [o.severity for o in slo.objectives[1:4]] == ["fail", "warn", "fail"]
    assert [o.confidence for o in slo.objectives[1:4]] == [0.9, 0.99, 0.9]
    assert slo.objectives[0].on_inconclusive == "warn"
    assert slo.objectives[0].min_requests == 300


def test_an_objective_knows_its_line(tmp_path: Path) -> None:
    places = {o.id: o.place for o in read(tmp_path, WHOLE).objectives}
    assert places["ttft"] == "gate.yaml:14"
    assert places["gpu"] == "gate.yaml:20"


def test_only_objectives_are_needed(tmp_path: Path) -> None:
    slo = read(tmp_path, "objectives: [{id: e, metric: error_rate, at_most: 1%}]")
    assert slo.measure == Measure()
    assert (slo.objectives[0].confidence, slo.objectives[0].min_requests) == (0.95, 30)


def test_tightest_ttft_is_what_the_clients_own_lag_is_measured_against(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE).tightest_ttft == 0.5
    assert load_slo(["errors < 1%"]).tightest_ttft is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "--slo '': no file, and no SLO that ships with Prony"),
        ("caht", "--slo caht: no file, and no SLO that ships with Prony; did you mean 'chat'?"),
        ("nowhere.yaml", "--slo nowhere.yaml: no such file"),
        (".", "--slo .: a folder; expected an SLO file"),
        ("x" * 300, "--slo xxx"),
    ],
)
def test_an_slo_that_is_none_says_what_it_is_instead(name: str, told: str) -> None:
    with pytest.raises(FileError) as caught:
        load_slo([name])
    assert str(caught.value).startswith(told)


def test_q03_a_misspelt_metric_in_good_names_the_nearest(tmp_path: Path) -> None:
    told = objective_error(tmp_path, "{id: a, good: {tfft: <= 500ms}, at_least: 99%}")
    assert told.startswith(
        "gate.yaml:3: objectives[0].good.tfft: unknown key; did you mean 'ttft'?"
    )


def test_q03_a_misspelt_metric_names_the_nearest(tmp_path: Path) -> None:
    told = objective_error(tmp_path, "{id: a, metric: tfft, percentile: 99, at_most: 1s}")
    assert "did you mean 'ttft'" in told


def test_q03_a_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    told = objective_error(tmp_path, "{id: a, metric: error_rate, at_mots: 1%, at_most: 1%}")
    assert "objectives[0].at_mots: unknown key; did you mean 'at_most'?" in told


def test_q03_an_unknown_key_at_the_top_names_the_nearest(tmp_path: Path) -> None:
    told = errors(tmp_path, "objectives: [{id: e, metric: error_rate, at_most: 1%}]\nmesure: {}\n")
    assert told == [
        "gate.yaml:2: mesure: unknown key; did you mean 'measure'? (valid: apiVersion, defaults, "
        "export, kind, measure, metadata, objectives, regression)"
    ]


def test_q03_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    told = errors(
        tmp_path,
        "objectives:\n  - id: e\n    metric: error_rate\n    at_most: 1%\n    at_most: 2%\n",
    )
    assert told == ["gate.yaml:5: at_most: this key was given before"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{id: a, good: {ttft: '<= 500'}, at_least: 99%}", "needs a unit"),
        ("{id: a, good: {ttft: 500}, at_least: 99%}", "needs a unit"),
        ("{id: a, good: {ttft: '=< 500ms'}, at_least: 99%}", "must be a limit such as '<= 500ms'"),
        ("{id: a, good: {ttft: '>= 500ms'}, at_least: 99%}", "must be a limit such as '<= 500ms'"),
        ("{id: a, good: {ttft: '<= 0ms'}, at_least: 99%}", "must be above 0"),
        ("{id: a, good: {}, at_least: 99%}", "needs a condition"),
        ("{id: a, good: {ttft: 1s}, at_least: 100%}", "99.9% needs 2,995"),
        ("{id: a, good: {ttft: 1s}, at_least: 99}", "must be a ratio such as 99% or 0.99; got 99"),
        ("{id: a, good: {ttft: 1s}}", "at_least: is missing: good needs one, for example 99%"),
        ("{id: a, good: {ttft: 1s}, at_most: 1%, at_least: 99%}", "use at_least"),
        ("{id: a, good: {ttft: 1s}, metric: e2e, at_least: 99%}", "exclude each other"),
        ("{id: a}", "needs `good:` with `at_least:`, or `metric:`"),
        ("{id: a, metric: ttft, at_most: 1s}", "ttft needs a percentile, for example 99"),
        ("{id: a, metric: ttft, percentile: 100.5, at_most: 1s}", "under 100, got 100.5"),
        ("{id: a, metric: ttft, percentile: 100, at_most: 1s}", "what all requests do"),
        ("{id: a, metric: ttft, percentile: 99.99999999999999, at_most: 1s}", "what all requests"),
        ("{id: a, metric: ttft, percentile: .nan, at_most: 1s}", "must be a finite number"),
        ("{id: a, metric: requests_per_s, at_least: .nan}", "must be a finite number"),
        ("{id: a, metric: error_rate, at_most: .nan}", "must be a ratio"),
        ("{id: a, metric: ttft, percentile: p99, at_most: 1s}", "must be a valid number"),
        ("{id: a, metric: ttft, percentile: 99, at_most: 500}", "needs a unit"),
        ("{id: a, metric: ttft, percentile: 99}", "at_most: is missing"),
        ("{id: a, metric: ttft, percentile: 99, at_most: 1s, at_least: 1}", "use at_most"),
        ("{id: a, metric: itl, percentile: 99, at_most: 1s}", "use tpot or max_gap"),
        ("{id: a, metric: error_rate, at_most: 0%}", "that none will ever fail"),
        ("{id: a, metric: error_rate, at_most: 2}", "must be a ratio"),
        ("{id: a, metric: error_rate, percentile: 99, at_most: 1%}", "only latencies have"),
        ("{id: a, metric: output_tokens_per_s, at_most: 100}", "has a minimum: use at_least"),
        ("{id: a, metric: output_tokens_per_s, at_least: 5%}", "must be a number above 0"),
        ("{id: a, metric: requests_per_s, at_least: 0}", "must be a number above 0"),
        ("{id: a, metric: goodput_rps, at_least: 8}", "of: goodput_rps needs the id"),
        ("{id: a, metric: error_rate, of: b, at_most: 1%}", "belongs to goodput_rps only"),
        ("{id: a, metric: goodput_rps, of: b, at_least: 8}", "`of` must be the id of"),
        ("{id: a, metric: gpu_utilization}", "needs at_least or at_most"),
        ("{id: a, metric: gpu_utilization, at_least: 80%, at_most: 60%}", "nothing could pass"),
        ("{id: a, metric: error_rate, at_most: 1%, severity: wran}", "did you mean 'warn'"),
        ("{id: a, metric: error_rate, at_most: 1%, confidence: 100%}", "under 100%"),
        ("{id: a, metric: error_rate, at_most: 1%, confidence: 30%}", "at least 50%"),
        ("{id: a, metric: error_rate, at_most: 1%, confidence: 95}", "must be a ratio"),
        ("{id: a, metric: error_rate, at_most: 1%, min_requests: 0}", "must be at least 1"),
        ("{id: a, promql: up}", "promql needs at_least or at_most, for example 0.95"),
        ("{id: a, promql: up, at_most: 1, at_least: 2}", "nothing could pass"),
        ("{id: a, promql: up, at_most: 95ms}", "must be a ratio such as 99%"),
        ("{id: a, promql: up, metric: e2e, at_most: 1s}", "`promql:` and `metric:` exclude each"),
        ("{id: a, promql: up, good: {ttft: 1s}, at_least: 1}", "exclude each other"),
        ("{id: a, promql: up, at_most: 1, class: chat}", "class: what the server does has no"),
        ("{id: a, metric: mismatch_share, at_most: 0%}", "that none will ever fail"),
        ("{id: a, metric: mismatch_shar, at_most: 1%}", "did you mean 'mismatch_share'"),
        ("{id: a, metric: error_rate, at_most: 1%, clas: chat}", "did you mean 'class'"),
        ("{metric: error_rate, at_most: 1%}", "id: is missing"),
    ],
)
def test_a_mistake_in_an_objective_is_one_line_with_its_place(
    tmp_path: Path, line: str, said: str
) -> None:
    assert said in objective_error(tmp_path, line)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("regression: {checks: []}", "gate.yaml:2: regression.checks"),
        ("regression: {}", "regression.checks: is missing"),
        (f"regression: {{alpha: 1, {ONE_CHECK}}}", "alpha: must be above 0 and at most 0.2"),
        (f"regression: {{pairs: {{min: 5, max: 4}}, {ONE_CHECK}}}", "must be at least min (5)"),
        (f"regression: {{pairs: {{min: 1}}, {ONE_CHECK}}}", "pairs.min: must be at least 2"),
        (f"regression: {{baseline: {{mod: a}}, {ONE_CHECK}}}", "did you mean 'mode'"),
        (f"regression: {{baseline: {{missing: wran}}, {ONE_CHECK}}}", "did you mean 'warn'"),
        (check("metric: ttft, tolerance: 5%"), "checks[0].stat: must be one of p50, p90"),
        (check("metric: ttft, stat: tale, tolerance: 5%"), "did you mean 'tail'"),
        (check("metric: tfft, stat: p50, tolerance: 5%"), "did you mean 'ttft'"),
        (check("metric: ttft, stat: p50, tolerance: 1pp"), "is in a ratio, such as 5%"),
        (check("metric: error_rate, tolerance: 1%"), "is in percentage points, such as 1pp"),
        (check("metric: ttft, stat: p50, tolerance: 0%"), "must be above 0"),
        (check("metric: ttft, stat: p50"), "checks[0].tolerance: is missing"),
        (check("metric: goodput, tolerance: 1pp"), "of: goodput needs the id"),
        (check("metric: goodput, of: e, tolerance: 1pp"), "must be the id of an objective with"),
        (check("metric: ttft, of: e, stat: p50, tolerance: 5%"), "belongs to goodput only"),
        (check("metric: requests_per_s, stat: p50, tolerance: 5%"), "has the stat rate only"),
        ("export: {prometheus: {profil: vllm}}", "did you mean 'profile'"),
        ("export: {prometheus: {profile: tgi}}", "must be one of prony, vllm, sglang"),
        ("export: {prometheus: {window: long}}", "export.prometheus.window"),
        ("measure: {require_steady: 1}", "must be true or false, got 1"),
        ("measure: {warmup: {mode: aout}}", "measure.warmup.mode: must be one of auto, fixed"),
        ("measure: {warmup: {max: 100%}}", "must be above 0% and under 100% of the run"),
        ("measure: {prometheus: 127.0.0.1:9090}", "measure.prometheus"),
        ("measure: {warmup: 3}", "measure.warmup: needs a unit"),
        ("measure: {stop_on_breach: maybe}", "must be true or false, got 'maybe'"),
        ("measure: {violations: [timeout, dropped]}", "error always counts as bad"),
        ("measure: {violations: [error, timeout, droped]}", "did you mean 'dropped'"),
        ("defaults: {confidence: 1.0}", "defaults.confidence: must be at least 50%"),
        ("defaults: {on_inconclusive: fial}", "did you mean 'fail'"),
        ("apiVersion: prony/v2", "must be one of prony/v1"),
    ],
)
def test_a_mistake_beside_the_objectives_names_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    told = errors(tmp_path, f"objectives: [{{id: e, metric: error_rate, at_most: 1%}}]\n{text}\n")
    assert len(told) == 1
    assert told[0].startswith("gate.yaml:2: ")
    assert said in told[0]


# gate.md of the research behind Prony, section 5.1
DOCUMENTED = """\
apiVersion: prony/v1
kind: SLOFile
metadata: {name: chat-gate, service: llm-chat}
defaults: {severity: fail, confidence: 0.95, on_inconclusive: inconclusive, min_requests: 300}
measure:
  warmup: {mode: auto, min: 30s, max: 40%}
  violations: [error, timeout, dropped, unfinished]
  require_steady: true
  prometheus: http://127.0.0.1:9090
objectives:
  - {id: ttft,     good: {ttft: "<= 500ms"}, at_least: 99%, scenario: chat, stage: steady}
  - {id: goodput,  good: {ttft: "<= 500ms", tpot: "<= 50ms"}, at_least: 95%, class: short}
  - {id: e2e-p99,  metric: e2e, percentile: 99, at_most: 12s, severity: warn}
  - {id: errors,   metric: error_rate, at_most: 0.5%}
  - {id: tput,     metric: output_tokens_per_s, at_least: 1200, stage: saturate}
  - {id: good-rps, metric: goodput_rps, of: goodput, at_least: 8, stage: steady}
  - {id: same,     metric: mismatch_share, at_most: 2%}
  - id: kv-cache
    promql: max_over_time(avg(vllm:kv_cache_usage_perc{job="vllm"})[$window:5s])
    at_most: 0.95
    severity: warn
regression:
  baseline: {ref: main, mode: interleaved, missing: inconclusive}
  pairs: {min: 3, max: 10}
  alpha: 0.01
  checks:
    - {metric: ttft, stat: p50, tolerance: 5%, stage: steady}
    - {metric: ttft, stat: tail, tolerance: 10%, stage: steady}
    - {metric: goodput, of: goodput, stat: share, tolerance: 1pp, stage: steady}
    - {metric: ttft, stat: p99, tolerance: 20%, class: short, severity: warn}
    - {metric: output_tokens_per_s, stat: rate, tolerance: 5%, stage: saturate}
export:
  prometheus: {job: vllm, window: 30d, profile: vllm}
"""


def test_a_file_with_all_sections_is_read_whole(tmp_path: Path) -> None:
    slo = read(tmp_path, DOCUMENTED)
    assert slo.measure == Measure(
        warmup=30.0,
        unfinished_is_bad=True,
        require_steady=True,
        find_warmup=True,
        warmup_max=0.4,
        prometheus="http://127.0.0.1:9090",
    )
    ttft, goodput, *_, same, kv = slo.objectives
    assert (ttft.stage, ttft.scenario, goodput.cls) == ("steady", "chat", "short")
    assert same.promise == Marked("mismatch_share", 0.02)
    query = 'max_over_time(avg(vllm:kv_cache_usage_perc{job="vllm"})[$window:5s])'
    assert kv.promise == Query(query, None, 0.95)
    wanted = {"job": "vllm", "window": "30d", "profile": "vllm"}
    assert slo.export["prometheus"].items() >= wanted.items()
    assert slo.metadata["service"] == "llm-chat"


def test_a_regression_section_is_read_whole(tmp_path: Path) -> None:
    regression = read(tmp_path, DOCUMENTED).regression
    assert regression is not None
    assert regression.baseline == Baseline("main", "interleaved", "inconclusive")
    assert (regression.min_pairs, regression.max_pairs, regression.alpha) == (3, 10, 0.01)
    assert regression.alpha_each == 0.01 / 4  # the warning does not count
    assert regression.place == "gate.yaml:22"
    assert [(c.id, c.tolerance, c.severity, c.place) for c in regression.checks] == [
        ("ttft p50 @steady", 0.05, "fail", "gate.yaml:27"),
        ("ttft tail @steady", 0.10, "fail", "gate.yaml:28"),
        ("goodput share @steady", 0.01, "fail", "gate.yaml:29"),
        ("ttft p99 @short", 0.20, "warn", "gate.yaml:30"),
        ("output_tokens_per_s rate @saturate", 0.05, "fail", "gate.yaml:31"),
    ]
    assert regression.checks[2].conditions == (Condition("ttft", 0.5), Condition("tpot", 0.05))


def test_a_fixed_number_of_pairs_is_one_number(tmp_path: Path) -> None:
    text = (
        "objectives: [{id: e, metric: error_rate, at_most: 1%}]\n"
        f"regression: {{pairs: 5, {ONE_CHECK}}}\n"
    )
    regression = read(tmp_path, text).regression
    assert regression is not None and (regression.min_pairs, regression.max_pairs) == (5, 5)


def test_only_one_of_several_files_may_have_a_regression_section(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(
            f"objectives: [{{id: {name}, metric: error_rate, at_most: 1%}}]\n"
            f"regression: {{{ONE_CHECK}}}\n"
        )
    one = load_slo([str(tmp_path / "a.yaml"), "ttft p99 < 1s"])
    assert one.regression is not None
    with pytest.raises(FileError, match=r"a\.yaml:2 and b\.yaml:2: only one of several files"):
        load_slo([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")])


def test_the_same_check_twice_is_refused(tmp_path: Path) -> None:
    twice = "{metric: ttft, stat: p50, tolerance: 5%}, {metric: ttft, stat: p50, tolerance: 9%}"
    told = errors(
        tmp_path,
        "objectives: [{id: e, metric: error_rate, at_most: 1%}]\n"
        f"regression: {{checks: [{twice}]}}\n",
    )
    assert told == ["gate.yaml:2: the check 'ttft p50' was given before"]


def test_objectives_that_no_value_can_keep_both_are_refused(tmp_path: Path) -> None:
    told = errors(
        tmp_path,
        "objectives:\n"
        "  - {id: busy, metric: gpu_utilization, at_least: 60%}\n"
        "  - {id: idle, metric: gpu_utilization, at_most: 50%}\n",
    )
    assert told == [
        "gate.yaml:3: idle and busy (gate.yaml:2) contradict each other: no value of "
        "gpu_utilization keeps both"
    ]
    queries = "  - {id: a, promql: x, at_least: 2}\n  - {id: b, promql: x, at_most: 1}\n"
    assert "contradict" in errors(tmp_path, f"objectives:\n{queries}")[0]


def test_two_shares_of_one_condition_do_not_contradict_each_other(tmp_path: Path) -> None:
    text = (
        "objectives:\n"
        "  - {id: most, good: {ttft: 500ms}, at_least: 95%}\n"
        "  - {id: nearly, good: {ttft: 500ms}, at_least: 99%}\n"
    )
    assert len(read(tmp_path, text).objectives) == 2


def test_two_objectives_of_one_id_are_refused_with_both_lines(tmp_path: Path) -> None:
    told = errors(
        tmp_path,
        "objectives:\n"
        "  - {id: e, metric: error_rate, at_most: 1%}\n"
        "  - {id: e, metric: error_rate, at_most: 2%}\n",
    )
    assert told == ["gate.yaml:3: the id 'e' is taken by gate.yaml:2"]


def test_a_reference_to_an_unknown_objective_names_the_nearest(tmp_path: Path) -> None:
    told = errors(
        tmp_path,
        "objectives:\n"
        "  - {id: goodput, good: {ttft: 1s}, at_least: 95%}\n"
        "  - {id: rps, metric: goodput_rps, of: godput, at_least: 8}\n",
    )
    assert told[0].startswith("gate.yaml:3: rps: `of` must be the id")
    assert "did you mean 'goodput'" in told[0]


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    told = errors(
        tmp_path,
        "objectives:\n"
        "  - {id: a, good: {tfft: 1s}, at_least: 99%}\n"
        "  - {id: b, metric: error_rate, at_most: 0%}\n",
    )
    assert [line.split(": ")[0] for line in told] == ["gate.yaml:2", "gate.yaml:3"]


def test_no_objectives_are_refused(tmp_path: Path) -> None:
    assert "objectives" in errors(tmp_path, "objectives: []\n")[0]
    assert "objectives: is missing" in errors(tmp_path, "measure: {}\n")[0]


def test_files_and_inline_objectives_add_up(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "measure: {warmup: 5s}\nobjectives: [{id: e, metric: error_rate, at_most: 1%}]\n"
    )
    slo = load_slo([str(path), "impossible", "tpot p95 <= 50ms"])
    assert slo.name == "mine + impossible + tpot p95 <= 50ms"
    assert [o.id for o in slo.objectives] == ["e", "ttft", "tpot p95 <= 50ms"]
    assert slo.measure == Measure(warmup=5.0, stop_on_breach=True)


def test_an_id_that_two_files_share_is_told_apart_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "objectives:\n"
        "  - {id: ttft, good: {ttft: 1s}, at_least: 95%}\n"
        "  - {id: rps, metric: goodput_rps, of: ttft, at_least: 8}\n"
    )
    slo = load_slo([str(path), "impossible"])
    assert [o.id for o in slo.objectives] == ["mine/ttft", "rps", "impossible/ttft"]
    assert slo.objectives[1].promise == Floor("goodput_rps", 8, of="mine/ttft")


def test_the_same_objectives_given_twice_are_refused() -> None:
    for arg in ("impossible", "errors < 1%"):
        with pytest.raises(FileError, match="is taken by"):
            load_slo([arg, arg])


def test_a_misspelt_name_lists_those_that_ship() -> None:
    with pytest.raises(FileError) as caught:
        load_slo(["imposible"])
    assert "did you mean 'impossible'?" in str(caught.value)
    assert "shipped: chat, first-look, impossible, sanity, tutorial" in str(caught.value)


def test_a_path_that_is_not_there_says_so() -> None:
    with pytest.raises(FileError, match=r"--slo ci/gate\.yaml: no such file"):
        load_slo(["ci/gate.yaml"])


def test_the_file_of_the_documentation_is_a_valid_one(tmp_path: Path) -> None:
    example = (DOCS / "slo.md").read_text().split("```yaml\n")[1].split("```")[0]
    slo = read(tmp_path, example)
    assert [o.id for o in slo.objectives] == [
        "ttft", "goodput", "e2e", "errors", "tokens", "requests", "good-rps", "gpu", "kv-cache",
        "short", "same",
    ]  # fmt: skip
    assert slo.regression is not None and len(slo.regression.checks) == 4


def test_the_published_schema_is_that_of_the_code() -> None:
    published = json.loads((DOCS / "slo.schema.json").read_text())
    assert published == schema(), "run: python -m prony_slo.schema > docs/slo.schema.json"
