"""Sketches: within 1 % of the exact percentile, and the same however they were filled."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_loadgen.sketch import ERROR, Sketch
from prony_loadgen.summary import percentile

SHARES = (0.0, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
latencies = st.floats(1e-9, 1e5)
samples = st.lists(latencies, min_size=1, max_size=300)


def filled(values: list[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


def facts(sketch: Sketch) -> tuple[object, ...]:
    return sketch.bins, sketch.tiny, sketch.count, sketch.least, sketch.most


@given(samples)
def test_every_percentile_is_within_one_percent_of_the_exact_one(values: list[float]) -> None:
    for share, found in zip(SHARES, filled(values).percentiles(SHARES), strict=True):
        exact = percentile(values, share)
        assert found is not None and exact is not None
        assert abs(found - exact) <= ERROR * exact


@given(samples)
def test_percentiles_ascend_from_the_least_value_to_the_largest(values: list[float]) -> None:
    found = [at for at in filled(values).percentiles(SHARES) if at is not None]
    assert found == sorted(found)
    assert found[0] >= min(values)
    assert found[-1] == max(values)


@given(st.lists(st.lists(latencies, max_size=60), min_size=1, max_size=6))
def test_sketches_added_in_any_order_are_the_sketch_of_everything(parts: list[list[float]]) -> None:
    pooled = filled([value for part in parts for value in part])
    for ordered in (parts, parts[::-1]):
        merged = Sketch()
        for part in ordered:
            merged.merge(filled(part))
        assert facts(merged) == facts(pooled)
        assert math.isclose(merged.total, pooled.total, rel_tol=1e-9, abs_tol=1e-12)


@given(samples)
def test_a_sketch_survives_its_message(values: list[float]) -> None:
    sketch = filled(values)
    again = Sketch.from_json(json.loads(json.dumps(sketch.to_json())))
    assert (facts(again), again.total) == (facts(sketch), sketch.total)
    assert facts(Sketch.from_json(Sketch().to_json())) == facts(Sketch())


def test_nothing_is_known_of_no_values_and_zero_is_a_value() -> None:
    assert Sketch().percentiles([0.5]) == [None]
    sketch = filled([0.0, 0.0, 2.0])
    assert sketch.percentiles([0.5, 1.0]) == [0.0, pytest.approx(2.0, rel=ERROR)]


def test_m09_merged_percentiles_are_those_of_the_pool_and_not_the_mean_of_two() -> None:
    quick, slow = filled([0.010] * 99), filled([1.0])
    quick.merge(slow)
    p50, p99, most = quick.percentiles([0.5, 0.99, 1.0])
    assert p50 == p99 == pytest.approx(0.010, rel=ERROR)
    assert most == 1.0


def test_m08_half_a_millisecond_is_not_rounded_to_a_whole_one() -> None:
    assert filled([0.0006] * 9).percentiles([0.5]) == [pytest.approx(0.0006, rel=ERROR)]
    worst = filled([0.596, 0.596, 0.6004]).percentiles([0.99])[0]
    assert worst is not None and worst <= 0.6004


@given(samples)
def test_a_histogram_of_a_sketch_counts_each_value_once(values: list[float]) -> None:
    edges = [10.0**power for power in range(-10, 8)]
    counts = filled(values).up_to(edges)
    assert counts == sorted(counts) and counts[-1] == len(values)
    for edge, count in zip(edges, counts, strict=True):
        assert sum(v <= edge * (1 - ERROR) for v in values) <= count
        assert count <= sum(v <= edge * (1 + 2 * ERROR) for v in values)
