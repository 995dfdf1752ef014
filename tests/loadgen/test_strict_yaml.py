"""What a person reads when a YAML file is wrong."""

import math
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from prony_loadgen.strict_yaml import (
    Count,
    Duration,
    FileError,
    Number,
    Override,
    Ratio,
    StrictModel,
    load,
    loads,
    parse_duration,
    parse_ratio,
)


class Inner(StrictModel):
    rate: Number = Field(gt=0)
    kind: Literal["open", "closed"] = "open"


class Outer(StrictModel):
    inner: Inner
    inners: list[Inner] = Field(default_factory=list)
    wait: Duration = 1.0
    share: Ratio = 0.5
    count: Count = 1


def errors(text: str, *overrides: Override) -> list[str]:
    with pytest.raises(FileError) as raised:
        loads(text, "a.yaml", Outer, overrides)
    return raised.value.lines


def test_durations_have_units() -> None:
    texts = ("500ms", "2s", "1.5m", "1h", "250 us", "2 min", "0s", ".5s")
    assert [parse_duration(text) for text in texts] == pytest.approx(
        [0.5, 2, 90, 3600, 0.00025, 120, 0, 0.5]
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2, "needs a unit, for example 2s; got 2"),
        (1.5, "needs a unit, for example 1.5s; got 1.5"),
        ("30", "needs a unit, for example 30s; got '30'"),
        ("2 parsecs", "must be a duration such as 500ms, 2s, 1.5m or 1h; got '2 parsecs'"),
        ("-2s", "must be a duration such as 500ms, 2s, 1.5m or 1h; got '-2s'"),
        (True, "must be a duration such as 500ms, 2s, 1.5m or 1h; got True"),
        (None, "must be a duration such as 500ms, 2s, 1.5m or 1h; got None"),
    ],
)
def test_a_bad_duration_says_what_was_expected(value: object, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_duration(value)
    assert str(raised.value) == message


def test_ratios_are_percent_or_a_share_of_one() -> None:
    values = ("99%", 0.99, "0.99", "1pp", 1, 0, "100 %")
    assert [parse_ratio(value) for value in values] == pytest.approx(
        [0.99, 0.99, 0.99, 0.01, 1, 0, 1]
    )


@pytest.mark.parametrize("value", [99, "101%", -0.1, "many", True, None, math.nan])
def test_a_bad_ratio_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"must be a ratio such as 99% or 0.99"):
        parse_ratio(value)


def test_a_good_file_becomes_a_model(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_bytes(b"\xef\xbb\xbfinner: {rate: 2}\r\nwait: 500ms\r\nshare: 99%\r\n")
    assert load(path, Outer) == Outer.model_validate(
        {"inner": {"rate": 2}, "wait": "500ms", "share": "99%"}
    )


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_valid_one() -> None:
    assert errors("wait: 1s\ninner:\n  rat: 5\n  rate: 5\n") == [
        "a.yaml:3: inner.rat: unknown key; did you mean 'rate'? (valid: kind, rate)"
    ]


def test_an_unknown_key_without_a_near_one_lists_the_valid_ones() -> None:
    assert errors("inner: {rate: 1}\nzzz: 1\n") == [
        "a.yaml:2: zzz: unknown key (valid: count, inner, inners, share, wait)"
    ]


def test_all_errors_of_a_file_come_at_once() -> None:
    text = "inner:\n  rate: -1\n  kind: opem\ninners:\n  - {rate: 1}\n  - {rate: x}\nwait: 5\n"
    assert errors(text) == [
        "a.yaml:2: inner.rate: must be above 0, got -1",
        "a.yaml:3: inner.kind: must be one of open, closed, got 'opem'; did you mean 'open'?",
        "a.yaml:6: inners[1].rate: must be a valid number, unable to parse string as a number, "
        "got 'x'",
        "a.yaml:7: wait: needs a unit, for example 5s; got 5",
    ]


def test_a_missing_key_is_named_at_what_should_hold_it() -> None:
    assert errors("wait: 1s\ninner:\n  kind: open\n") == ["a.yaml:2: inner.rate: is missing"]


def test_a_key_given_twice_is_an_error() -> None:
    assert errors("inner: {rate: 1}\nwait: 1s\nwait: 2s\n") == [
        "a.yaml:3: wait: this key was given before"
    ]


def test_yes_is_not_the_number_one() -> None:
    assert errors("inner: {rate: yes}\n") == ["a.yaml:1: inner.rate: must be a number, got True"]


def test_infinity_and_nan_are_not_numbers() -> None:
    assert errors("inner: {rate: .inf}\n") == [
        "a.yaml:1: inner.rate: must be a finite number, got inf"
    ]
    assert errors("inner: {rate: .nan}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml: the file is empty"),
        ("# only a comment\n", "a.yaml: the file is empty"),
        ("- a\n- b\n", "a.yaml:1: must be a mapping of keys to values, got ['a', 'b']"),
        ("just text", "a.yaml:1: must be a mapping of keys to values, got 'just text'"),
        ("a: 1\nb: [1, 2\nc: 3\n", "a.yaml:3: not valid YAML: expected ',' or ']', but got ':'"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2: not valid YAML: but found another document"),
        ("a: \x07", "a.yaml: not valid YAML: unacceptable character #x0007"),
        ("a: !!python/object:os.system 1\n", "a.yaml:1: not valid YAML: could not determine a"),
        ("a: 2026-13-45\n", "a.yaml: not valid YAML: month must be in 1..12"),
    ],
)
def test_what_is_no_mapping_in_yaml_is_one_clear_line(text: str, message: str) -> None:
    [line] = errors(text)
    assert line.startswith(message)


def test_a_file_that_holds_itself_is_an_error_not_a_hang() -> None:
    assert errors("inner: &x {rate: 1, more: *x}\n")


def test_anchors_and_merge_keys_work() -> None:
    text = "inners: [&base {rate: 3}]\ninner: {<<: *base, kind: closed}\n"
    assert loads(text, "a.yaml", Outer).inner == Inner(rate=3, kind="closed")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere.yaml: No such file or directory"):
        load(tmp_path / "nowhere.yaml", Outer)


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"inner: \xff\xfe")
    with pytest.raises(FileError, match=r"latin.yaml: not UTF-8 text \(invalid start byte at"):
        load(path, Outer)


def test_an_option_replaces_a_value_and_its_errors_name_the_option() -> None:
    rate = Override("--rate", ("inner", "rate"), 7)
    assert loads("inner: {rate: 1}\n", "a.yaml", Outer, (rate,)).inner.rate == 7
    bad = Override("--rate", ("inner", "rate"), -7)
    assert errors("inner: {rate: 1}\n", bad) == ["--rate: must be above 0, got -7"]


def test_an_option_may_set_what_the_file_does_not_hold() -> None:
    kind = Override("--set inner.kind", ("inner", "kind"), "closed")
    rate = Override("--set inner.rate", ("inner", "rate"), 2)
    assert loads("wait: 1s\n", "a.yaml", Outer, (kind, rate)).inner == Inner(rate=2, kind="closed")


def test_an_option_with_an_unknown_key_names_the_nearest_valid_one() -> None:
    typo = Override("--set inner.rat", ("inner", "rat"), 7)
    assert errors("inner: {rate: 1}\n", typo) == [
        "--set inner.rat: unknown key; did you mean 'rate'? (valid: kind, rate)"
    ]
