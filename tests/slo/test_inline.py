"""Objectives on the command line."""

import pytest

from prony_loadgen.strict_yaml import FileError
from prony_slo.inline import looks_inline, parse_inline
from prony_slo.promise import Condition, Floor, Share


@pytest.mark.parametrize(
    ("text", "promise"),
    [
        ("ttft p99 < 500ms", Share((Condition("ttft", 0.5, inclusive=False),), 0.01)),
        ("ttft p99 <= 0.5s", Share((Condition("ttft", 0.5),), 0.01)),
        ("ttft p99.9<500ms", Share((Condition("ttft", 0.5, inclusive=False),), 0.001)),
        ("  tpot  p95 <  50ms ", Share((Condition("tpot", 0.05, inclusive=False),), 0.05)),
        ("e2e p99 < 2 s", Share((Condition("e2e", 2.0, inclusive=False),), 0.01)),
        ("latency p50 < 1m", Share((Condition("e2e", 60.0, inclusive=False),), 0.5)),
        ("errors < 1%", Share((), 0.01)),
        ("errors <= 0.005", Share((), 0.005)),
        ("error_rate < 0.1 %", Share((), 0.001)),
        ("throughput > 100", Floor("output_tokens_per_s", 100.0)),
        ("requests_per_s >= 2.5", Floor("requests_per_s", 2.5)),
    ],
)
def test_an_expression_is_one_objective(text: str, promise: Share | Floor) -> None:
    assert looks_inline(text)
    slo = parse_inline(text)
    assert [o.promise for o in slo.objectives] == [promise]
    assert slo.objectives[0].id == slo.name == " ".join(text.split())
    assert slo.objectives[0].place == "--slo"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tfft p99 < 500ms", "unknown metric 'tfft'; did you mean 'ttft'?"),
        ("ttft p99 < 500", "the limit needs a unit: 500ms or 500s"),
        ("ttft p99 < 5 furlongs", "the limit must be a duration such as 500ms"),
        ("ttft p99 < 0ms", "the limit must be above 0"),
        ("ttft < 500ms", "needs a percentile: 'ttft p99 < 500ms'"),
        ("ttft p100 < 1s", "above 0 and under 100, got p100"),
        ("ttft p9.9.9 < 1s", "must be a number (p99), got p9.9.9"),
        ("ttft p99 > 500ms", "ttft needs < or <=, got '>'"),
        ("ttft p99 =< 500ms", "ttft needs < or <=, got '=<'"),
        ("ttft p99 500ms", "expected one like 'ttft p99 < 500ms'"),
        ("ttft p99 < 500ms, errors < 1%", "expected one (one --slo each) like"),
        ("itl p99 < 10ms", "use tpot or max_gap"),
        ("goodput > 95%", "write a file with good: {ttft:"),
        ("errors < 1", "a share such as 1% or 0.01, got '1'"),
        ("errors < 0%", "that none will ever fail"),
        ("errors p99 < 1%", "errors has no percentiles"),
        ("throughput < 100", "throughput needs > or >=, got '<'"),
        ("throughput > fast", "must be a number per second, got 'fast'"),
        ("throughput > inf", "must be above 0, got 'inf'"),
        ("throughput > nan", "must be above 0, got 'nan'"),
    ],
)
def test_a_mistake_shows_what_was_given_and_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_inline(text)
    assert str(caught.value).startswith(f"--slo '{text}': ")
    assert said in str(caught.value)


@pytest.mark.parametrize("arg", ["chat", "tutorial", "ci/gate.yaml", "a b/x=1.yml", "./slo"])
def test_names_and_paths_are_not_expressions(arg: str) -> None:
    assert not looks_inline(arg)
