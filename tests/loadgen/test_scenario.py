"""Scenario files and the options that change them."""

import json
import random
import re
from pathlib import Path

import pytest

from prony_loadgen import shipped
from prony_loadgen.lengths import Lengths
from prony_loadgen.scenario import OPTIONS, Prompts, Scenario, json_schema, load_scenario
from prony_loadgen.strict_yaml import FileError, loads

SMALL = """
prompts: {input_tokens: 16}
arrivals: {rate: 5}
duration: 10s
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def prompts_of(scenario: Scenario) -> Prompts:
    assert scenario.prompts is not None
    return scenario.prompts


def problems(text: str) -> list[str]:
    with pytest.raises(FileError) as raised:
        loads(text, "mine.yaml", Scenario)
    return raised.value.lines


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, SMALL))
    assert scenario.name == "mine"
    assert scenario.arrivals.process == "poisson"
    assert scenario.output.mode == "natural"
    assert scenario.dialect == "openai-chat"


def test_without_a_seed_each_load_draws_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    assert load_scenario(path).seed != load_scenario(path).seed
    assert load_scenario(path, {"seed": "7"}).seed == 7


def test_what_belongs_to_another_process_is_an_error() -> None:
    closed = SMALL.replace("{rate: 5}", "{process: closed, rate: 5, users: 2}")
    assert problems(closed) == [
        "mine.yaml:3: arrivals: closed has users, not a rate: its rate is what the target allows"
    ]
    assert problems(SMALL.replace("{rate: 5}", "{process: closed}")) == [
        "mine.yaml:3: arrivals: closed needs users, for example `users: 8`"
    ]
    assert problems(SMALL.replace("{rate: 5}", "{process: constant}")) == [
        "mine.yaml:3: arrivals: constant needs a rate in requests a second"
    ]
    assert problems(SMALL.replace("{rate: 5}", "{rate: 5, users: 3}")) == [
        "mine.yaml:3: arrivals: poisson has a rate, not users; users are for closed"
    ]


def test_a_scenario_needs_an_end() -> None:
    assert problems(SMALL.replace("duration: 10s", "")) == [
        "mine.yaml:2: needs a duration (such as 30s) or a number of requests"
    ]


def test_prompts_are_made_or_read_not_both() -> None:
    both = SMALL.replace("{input_tokens: 16}", "{input_tokens: 16, file: a.jsonl}")
    assert problems(both) == [
        "mine.yaml:2: prompts: needs either input_tokens (lengths of made prompts) or file (JSONL)"
    ]


def test_a_prompts_file_lies_beside_its_scenario(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("{input_tokens: 16}", "{file: a.jsonl}"))
    assert prompts_of(load_scenario(path)).file == str(tmp_path / "a.jsonl")
    # On the command line it is where the user is.
    assert prompts_of(load_scenario(path, {"prompts.file": "b.jsonl"})).file == "b.jsonl"


def test_what_prony_puts_in_the_body_cannot_be_replaced() -> None:
    assert problems(SMALL + "extra_body: {stream: false, temperature: 0}\n") == [
        "mine.yaml:5: extra_body: Prony sets stream itself"
    ]


def test_a_header_that_breaks_its_line_is_an_error() -> None:
    assert problems(SMALL + 'headers: {X-A: "a\\r\\nX-B: b"}\n') == [
        "mine.yaml:5: headers: the value of 'X-A' holds characters that no header may hold"
    ]
    assert problems(SMALL + "headers: {'X A': b}\n") == [
        "mine.yaml:5: headers: 'X A' is not a header name"
    ]


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "TraceParent"])
def test_a_header_that_prony_sets_itself_is_an_error(name: str) -> None:
    assert problems(SMALL + f"headers: {{{name}: '5'}}\n") == [
        f"mine.yaml:5: headers: Prony sets {name} itself; leave it out"
    ]


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("{temperature: .nan}", "temperature is nan, a number that JSON does not know"),
        ("{a: {b: [1, -.inf]}}", "a.b[1] is -inf, a number that JSON does not know"),
        ("{since: 2026-01-02}", "since is a date, which JSON does not know"),
        (f"{{a: {'[' * 70}{']' * 70}}}", "is nested over 64 levels deep"),
    ],
)
def test_an_extra_body_that_is_no_json_is_an_error(body: str, wrong: str) -> None:
    [line] = problems(SMALL + f"extra_body: {body}\n")
    assert line.startswith("mine.yaml:5: extra_body: ")
    assert wrong in line
    with pytest.raises(FileError, match="--extra-body: a is inf, a number") as raised:
        load_scenario("chat", {"extra_body": {"a": float("inf")}})
    assert len(raised.value.lines) == 1


def test_header_values_are_not_kept_since_they_may_be_keys(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL + "headers: {X-Key: secret-value}\n")
    kept = load_scenario(path).resolved()
    assert kept["headers"] == ["X-Key"]
    assert "secret-value" not in json.dumps(kept)


def test_a_rate_option_keeps_the_process_of_an_open_loop_file(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("{rate: 5}", "{process: constant, rate: 5}"))
    arrivals = load_scenario(path, {"arrivals.rate": "9"}).arrivals
    assert (arrivals.process, arrivals.rate) == ("constant", 9)


def test_concurrency_makes_any_scenario_closed_and_a_rate_makes_it_open(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    closed = load_scenario(path, {"arrivals.users": "3"}).arrivals
    assert (closed.process, closed.users, closed.rate) == ("closed", 3, None)
    path = written(tmp_path, SMALL.replace("{rate: 5}", "{process: closed, users: 3}"))
    opened = load_scenario(path, {"arrivals.rate": "3"}).arrivals
    assert (opened.process, opened.users, opened.rate) == ("poisson", None, 3)


def test_requests_replace_a_duration_and_the_reverse(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    changed = load_scenario(path, {"requests": "20"})
    assert (changed.requests, changed.duration) == (20, None)
    both = load_scenario(path, {"requests": "20", "duration": "5s"})
    assert (both.requests, both.duration) == (20, 5)


def test_an_error_names_the_option_that_brought_it(tmp_path: Path) -> None:
    changes = {"arrivals.rate": "-1", "duration": "10", "timeouts.totl": "3s"}
    with pytest.raises(FileError) as raised:
        load_scenario(written(tmp_path, SMALL), changes)
    assert set(raised.value.lines) == {
        "--rate: must be at least 0.000001, got -1",
        "--duration: needs a unit, for example 10s; got 10",
        "--set timeouts.totl: unknown key; did you mean 'total'? "
        "(valid: between_tokens, connect, drain, first_token, total)",
    }


def test_a_model_called_like_a_number_stays_a_text(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    assert load_scenario(path, {"model": "0123"}).model == "0123"
    assert load_scenario(path, {"model": "qwen3: 8b"}).model == "qwen3: 8b"


def test_every_option_sets_a_key_that_exists() -> None:
    values = {
        "headers": {"X-A": "b"},
        "extra_body": {"top_k": 1},
        "arrivals.users": "2",
        "duration": "1s",
        "timeouts.total": "1s",
        "warmup": "1s",
        "dialect": "openai-completions",
        "keep_text": True,
        "tls.insecure": True,
    }
    for key in OPTIONS.values():
        load_scenario("chat", {key: values.get(key, "3")})


def test_an_unknown_scenario_names_the_nearest_and_all_that_ship() -> None:
    with pytest.raises(FileError, match=r"no scenario is called 'chta'; did you mean 'chat'\?"):
        load_scenario("chta")
    with pytest.raises(FileError, match=r"nowhere.yaml: no such scenario file"):
        load_scenario("nowhere.yaml")
    with pytest.raises(FileError, match=r"^tests: a folder; expected a scenario file"):
        load_scenario("tests")
    with pytest.raises(FileError, match=r"no scenario is called ''"):
        load_scenario("")


@pytest.mark.parametrize("name", shipped.names("scenarios"))
def test_every_shipped_scenario_loads(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description
    assert scenario.slo


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (64, {64}),
        ("3..5", {3, 4, 5}),
        ("3-5", {3, 4, 5}),
        ({"distribution": "uniform", "min": 2, "max": 3}, {2, 3}),
    ],
)
def test_lengths_in_their_forms(value: object, seen: set[int]) -> None:
    lengths, rng = Lengths.model_validate(value), random.Random(1)
    assert {lengths.sample(rng) for _ in range(200)} == seen


def test_lognormal_lengths_have_their_median_and_keep_their_bounds() -> None:
    lengths = Lengths(distribution="lognormal", median=64, sigma=0.5, min=16, max=256)
    rng = random.Random(1)
    drawn = sorted(lengths.sample(rng) for _ in range(4001))
    assert drawn[2000] == pytest.approx(64, abs=3)
    assert drawn[0] >= 16 and drawn[-1] <= 256
    assert sum(drawn) / len(drawn) == pytest.approx(lengths.expected(), rel=0.03)


def test_normal_lengths_have_their_mean_and_are_at_least_one() -> None:
    lengths = Lengths(distribution="normal", mean=5, stddev=10)
    rng = random.Random(1)
    assert min(lengths.sample(rng) for _ in range(500)) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"distribution": "normal", "mean": 5}, "normal needs stddev"),
        ({"distribution": "fixed", "value": 5, "sigma": 1}, "fixed does not take sigma"),
        ({"distribution": "uniform", "min": 5, "max": 4}, "min is above max: 5 > 4"),
        ("many", "must be a number of tokens, a range such as 16..256"),
    ],
)
def test_bad_lengths_say_what_they_need(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lengths.model_validate(value)


def test_the_committed_schema_is_the_models() -> None:
    path = Path(__file__).parents[2] / "docs" / "scenario.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == json_schema()


def test_the_example_in_the_docs_is_a_scenario_that_sets_every_key() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    [example, *_] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    scenario = loads(example, "docs/scenarios.md", Scenario)
    # A mix stands in place of prompts, output and turns, in an example of its own.
    assert scenario.model_fields_set == set(Scenario.model_fields) - {"name", "mix"}


def test_the_docs_name_every_option_and_every_shipped_scenario() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    for word in (*OPTIONS, *shipped.names("scenarios")):
        assert f"`{word}`" in text
