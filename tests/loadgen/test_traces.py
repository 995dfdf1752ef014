"""Traces of real services, in their own formats: when requests came, and how long they were."""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import pytest

from prony_loadgen.lengths import Lengths
from prony_loadgen.plan import make_plan
from prony_loadgen.prompts import drafts
from prony_loadgen.scenario import Scenario, load_scenario
from prony_loadgen.schedule import end_of, schedule
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.traces import TraceSpec, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,API log
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1500, "output_length": 52, "hash_ids": [0, 1, 2]},
    {"timestamp": 27482, "input_length": 1300, "output_length": 26, "hash_ids": [0, 1, 3]},
    {"timestamp": 30535, "input_length": 700, "output_length": 3, "hash_ids": [0, 9]},
]


def written(folder: Path, text: str | Sequence[Mapping[str, object]], name: str = "trace") -> str:
    path = folder / name
    if not isinstance(text, str):
        text = "".join(json.dumps(row) + "\n" for row in text)
    path.write_text(text)
    return str(path)


def spec(file: str, format: str, **keys: object) -> TraceSpec:
    return TraceSpec.model_validate({"file": file, "format": format, **keys})


def replay(file: str, format: str, trace: dict[str, object], **keys: object) -> Scenario:
    arrivals = {"process": "trace", "trace": {"file": file, "format": format, **trace}}
    return Scenario.model_validate({"arrivals": arrivals, "seed": 1, "warmup": "0s", **keys})


def problems(file: str, format: str, **keys: object) -> list[str]:
    with pytest.raises(FileError) as raised:
        read_trace(spec(file, format, **keys))
    return raised.value.lines


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_azures_dates_keep_all_seven_digits(tmp_path: Path, newline: str) -> None:
    trace = read_trace(spec(written(tmp_path, AZURE.replace("\n", newline)), "azure"))
    assert [row.at for row in trace.rows] == pytest.approx([0, 4.314579, 4.541877], abs=1e-9)
    assert [(row.input_tokens, row.output_tokens) for row in trace.rows] == [
        (374, 44),
        (396, 109),
        (879, 55),
    ]


def test_azures_dates_may_have_a_time_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2,3\n"
        "2024-05-10 00:00:00.017335+00:00,4,5\n"
    )
    rows = read_trace(spec(written(tmp_path, text), "azure")).rows
    assert rows[1].at == pytest.approx(0.007405, abs=1e-9)


def test_d09_milliseconds_are_not_rounded_away(tmp_path: Path) -> None:
    rows = [
        {"at": at, "input_tokens": 1, "output_tokens": 1} for at in (0.001, 0.002, 0.009, 0.011)
    ]
    trace = read_trace(spec(written(tmp_path, rows), "jsonl", unit="s"))
    assert [row.at for row in trace.rows] == pytest.approx([0, 0.001, 0.008, 0.010], abs=1e-12)


def test_burstgpts_failures_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read_trace(spec(written(tmp_path, BURST), "burstgpt", unit="s"))
    assert [(row.at, row.input_tokens, row.output_tokens) for row in trace.rows] == [
        (0, 472, 18),
        (113.5, 417, 276),
    ]
    assert trace.skipped == 1


def test_d07_a_trace_in_the_wrong_unit_is_an_error_before_load(tmp_path: Path) -> None:
    file = written(tmp_path, MOONCAKE)
    assert problems(file, "mooncake", unit="s") == [
        "trace: 3 requests with times in s would be one every 15,268 s, over 0.4 days; is its unit "
        "ms or us? If it really is s, set check_unit: false"
    ]
    assert read_trace(spec(file, "mooncake", unit="ms")).rows[2].at == 30.535
    assert read_trace(spec(file, "mooncake", unit="s", check_unit=False)).rows[2].at == 30535


def test_d07_the_other_way_round_too(tmp_path: Path) -> None:
    rows = [{"at": at, "input_tokens": 1, "output_tokens": 1} for at in (0.0, 0.1, 0.2)]
    [line] = problems(written(tmp_path, rows), "jsonl", unit="ms")
    assert "3 requests with times in ms would be 10,000 a second" in line


def test_d07_a_unit_is_never_guessed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs unit: .*mooncake files as published: ms"):
        spec("x", "mooncake")
    with pytest.raises(ValueError, match="azure traces have dates"):
        spec("x", "azure", unit="s")


def test_every_bad_row_is_named_with_its_line_and_value(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:15:52,ten,5\nyesterday,1,2\n1,2\n"
    assert problems(written(tmp_path, text), "azure") == [
        "trace:5: ContextTokens must be a whole number of tokens, got 'ten'",
        "trace:6: TIMESTAMP must be a date such as 2023-11-16 18:15:46.68, got 'yesterday'",
        "trace:7: 2 columns, the header has 3",
    ]
    rows = [{"timestamp": "x", "input_length": 1, "output_length": 1, "hash_ids": []}]
    assert problems(written(tmp_path, rows), "mooncake", unit="ms") == [
        "trace:1: timestamp must be a number, got 'x'"
    ]
    rows = [{"at": 1, "input_tokens": 1, "output_tokens": 1, "colour": 1}]
    assert problems(written(tmp_path, rows), "jsonl", unit="ms") == [
        "trace:1: unknown key 'colour' (valid: at, class, input_tokens, output_tokens, prefix)"
    ]


def test_a_file_of_another_format_says_what_is_missing(tmp_path: Path) -> None:
    assert problems(written(tmp_path, BURST), "azure") == [
        "trace:1: no column 'TIMESTAMP'; this format has TIMESTAMP, ContextTokens, GeneratedTokens"
    ]
    assert problems(written(tmp_path, ""), "jsonl", unit="s") == ["trace: no requests in it"]
    [line] = problems(str(tmp_path / "nowhere.csv"), "azure")
    assert line.endswith("nowhere.csv: No such file or directory")


def test_rows_out_of_order_are_put_in_order_and_counted(tmp_path: Path) -> None:
    rows = [{"at": at, "input_tokens": 1, "output_tokens": 1} for at in (5, 3, 9)]
    trace = read_trace(spec(written(tmp_path, rows), "jsonl", unit="s"))
    assert [row.at for row in trace.rows] == [0, 2, 6]
    assert trace.out_of_order == 1


def test_skip_and_first_are_the_files_own_time(tmp_path: Path) -> None:
    file = written(tmp_path, MOONCAKE)
    scenario = replay(file, "mooncake", {"unit": "ms", "first": "28s", "speed_up": 20})
    assert schedule(scenario) == [0.0, 27.482 / 20]
    later = replay(file, "mooncake", {"unit": "ms", "skip": "20s"})
    assert schedule(later) == pytest.approx([7.482, 10.535])
    assert problems(file, "mooncake", unit="ms", skip="60s") == [
        "trace: nothing is left after skip and first: it lasts 30.5 s"
    ]


def test_d11_a_trace_is_sent_once_in_order_unless_more_is_asked(tmp_path: Path) -> None:
    rows = [{"at": n, "input_tokens": n + 1, "output_tokens": 2} for n in range(37)]
    file = written(tmp_path, rows)
    once = replay(file, "jsonl", {"unit": "s"})
    plan = make_plan(once)
    assert (plan.requests, plan.workload["reused_rows"]) == (37, 0)
    asked = [draft.prompt.asked_tokens for draft in islice(drafts(once), 37)]
    assert asked == [n + 1 for n in range(37)]

    again = replay(file, "jsonl", {"unit": "s"}, requests=100)
    plan, times = make_plan(again), schedule(again)
    assert (plan.requests, plan.workload["reused_rows"]) == (100, 63)
    assert plan.lines()[1] == (
        "note: 37 rows are sent in order, then again: 63 requests come from a row again, with "
        "other words"
    )
    # It goes on a mean gap after its last row.
    assert times == [float(n) for n in range(100)]
    assert end_of(again, times, None) == 100.0


def test_lengths_come_from_the_file_and_can_be_scaled(tmp_path: Path) -> None:
    file = written(tmp_path, MOONCAKE)
    scenario = replay(file, "mooncake", {"unit": "ms", "length_scale": 0.02})
    plan = make_plan(scenario)
    assert (plan.input_tokens, plan.output_tokens) == (30 + 26 + 14, 1 + 1 + 1)


def test_equal_hash_ids_are_equal_starts_of_prompts(tmp_path: Path) -> None:
    scenario = replay(written(tmp_path, MOONCAKE), "mooncake", {"unit": "ms"}, requests=4)
    one, two, three, again = [str(d.prompt.text).split() for d in islice(drafts(scenario), 4)]
    assert [len(words) for words in (one, two, three, again)] == [1500, 1300, 700, 1500]
    assert one[:1024] == two[:1024] != three[:1024]
    assert one[:512] == three[:512]
    assert one[1024:1300] != two[1024:]
    # Sent again, it finds nothing of itself in a cache.
    assert not set(zip(one, one[1:], one[2:], one[3:], strict=False)) & set(
        zip(again, again[1:], again[2:], again[3:], strict=False)
    )
    assert make_plan(scenario).workload["shared_prefix_share"] == pytest.approx(3 / 11, abs=1e-4)


def test_another_seed_shares_no_prefix_with_this_one(tmp_path: Path) -> None:
    file = written(tmp_path, MOONCAKE)
    starts = {
        tuple(
            str(next(drafts(replay(file, "mooncake", {"unit": "ms"}, seed=seed))).prompt.text)[:30]
        )
        for seed in range(20)
    }
    assert len(starts) == 20


def test_with_prompts_a_trace_only_says_when(tmp_path: Path) -> None:
    file = written(tmp_path, AZURE)
    scenario = replay(file, "azure", {}, prompts={"input_tokens": 7}, output={"tokens": 9})
    [draft] = islice(drafts(scenario), 1)
    assert (draft.prompt.asked_tokens, draft.output_tokens) == (7, 9)
    assert len(schedule(scenario)) == 3


def test_classes_of_our_own_format_are_those_of_the_requests(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"at": 0, "input_tokens": 5, "output_tokens": 1, "class": "chat"},
        {"at": 1, "input_tokens": 5, "output_tokens": 1},
    ]
    scenario = replay(written(tmp_path, rows), "jsonl", {"unit": "s"}, name="mine")
    assert [draft.cls for draft in islice(drafts(scenario), 2)] == ["chat", "mine"]


def test_a_trace_lies_beside_its_scenario(tmp_path: Path) -> None:
    written(tmp_path, AZURE, "azure.csv")
    yaml = "arrivals: {process: trace, trace: {file: azure.csv, format: azure}}\n"
    scenario = load_scenario(written(tmp_path, yaml, "mine.yaml"))
    assert make_plan(scenario).requests == 3


def test_empirical_lengths_are_drawn_from_a_list_or_a_trace(tmp_path: Path) -> None:
    import random

    rng = random.Random(1)
    some = Lengths.model_validate({"distribution": "empirical", "values": [3, 3, 90]})
    assert {some.sample(rng) for _ in range(100)} == {3, 90}
    assert some.expected() == 32
    file = written(tmp_path, AZURE)
    of = {"distribution": "empirical", "file": file, "format": "azure", "of": "output"}
    drawn = Lengths.model_validate(of)
    assert {drawn.sample(rng) for _ in range(100)} == {44, 109, 55}
    with pytest.raises(ValueError, match="empirical needs values"):
        Lengths.model_validate({"distribution": "empirical"})
