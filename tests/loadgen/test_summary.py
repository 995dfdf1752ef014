"""The numbers of a run, from records with their latencies in view."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slo.runs import cut, many, refused, request, run_of

from prony_loadgen.record import Arrival
from prony_loadgen.summary import (
    METRICS,
    json_number,
    measured,
    percentile,
    summarise,
    tokens_inside,
    value,
    weighted_percentiles,
)


def test_percentiles_are_values_that_occurred_by_nearest_rank() -> None:
    values = [596.0, 596.0, 600.4, 575.0]
    assert percentile(values, 0.25) == 575.0
    assert percentile(values, 0.5) == 596.0
    assert percentile(values, 0.99) == percentile(values, 1.0) == 600.4
    assert percentile([], 0.5) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.integers(1, 100))
def test_the_smallest_value_that_the_share_does_not_exceed(values: list[float], q: int) -> None:
    found = percentile(values, q / 100)
    assert found in values
    assert found == next(
        v for v in sorted(values) if sum(x <= v for x in values) * 100 >= q * len(values)
    )


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 9)), min_size=1, max_size=40),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_a_weight_of_k_counts_like_k_samples(samples: list[tuple[float, int]], q: float) -> None:
    weighted = [(v, float(weight)) for v, weight in samples]
    one_by_one = [v for v, weight in samples for _ in range(weight)]
    assert weighted_percentiles(weighted, [q]) == [percentile(one_by_one, q)]


def test_m01_tpot_leaves_the_first_token_out() -> None:
    summary = summarise(run_of([request(ttft=1.0, tpot=0.01, tokens=10)]))
    assert summary["tpot"]["ok"]["p50"] == pytest.approx(0.010)
    assert summary["e2e"]["ok"]["p50"] == pytest.approx(1.090)
    assert summary["ttft"]["ok"]["p50"] == pytest.approx(1.0)


def test_m02_ten_quick_refusals_of_a_hundred_raise_p99_and_not_lower_it() -> None:
    records = many(90, ttft=0.1, tokens=1) + [refused(i / 10, after=0.001) for i in range(10)]
    summary = summarise(run_of(records))
    assert summary["ttft"]["ok"]["n"] == 90
    assert summary["ttft"]["ok"]["p99"] == pytest.approx(0.1)
    assert summary["ttft"]["all"]["n"] == 100
    assert summary["ttft"]["all"]["p90"] == pytest.approx(0.1)
    assert summary["ttft"]["all"]["p95"] == summary["ttft"]["all"]["p99"] == "inf"
    assert summary["ttft"]["all"]["mean"] == "inf"
    assert summary["rates"]["error_rate"] == pytest.approx(0.1)
    assert summary["outcomes"] == {"ok": 90, "connect_error": 10}


def test_m03_no_success_is_null_for_successes_and_never_0() -> None:
    summary = summarise(run_of([refused(i / 10) for i in range(20)]))
    assert summary["ttft"]["ok"] == dict.fromkeys(
        ("mean", "p50", "p90", "p95", "p99", "min", "max")
    ) | {"n": 0}
    assert summary["ttft"]["all"]["p50"] == "inf"
    assert summary["rates"]["error_rate"] == 1.0
    assert summary["tokens"]["output"]["got"] is None
    assert summary["errors"] == [
        {
            "outcome": "connect_error",
            "status": None,
            "error": "connection refused",
            "count": 20,
        }
    ]


def test_m04_a_freeze_of_5_s_is_in_the_latency_from_the_intended_time() -> None:
    frozen_from, frozen_until = 30.0, 35.0
    records = []
    for i in range(600):
        at = i / 10
        wait = frozen_until - at if frozen_from <= at < frozen_until else 0.0
        records.append(request(at, ttft=wait + 0.010, tokens=1))
    summary = summarise(run_of(records))
    waited = [r for r in records if r.ttft is not None and r.ttft > 0.05]
    assert len(waited) == 50
    assert summary["ttft"]["all"]["p99"] == pytest.approx(4.5, abs=0.1)
    assert summary["ttft"]["all"]["p50"] == pytest.approx(0.010)
    assert summary["loop"] == "open"


def test_m07_a_negative_duration_is_never_a_sample() -> None:
    backwards = request(5.0, ttft=-3600.0, tokens=1)
    summary = summarise(run_of([*many(3), backwards]))
    assert value(backwards, "ttft") is None
    assert summary["ttft"]["all"]["n"] == 3


def test_m08_the_smallest_median_p99_and_largest_stand_in_order_and_unrounded() -> None:
    records = [request(i, ttft=s, tokens=1) for i, s in enumerate((0.596, 0.596, 0.6004, 0.575))]
    ok = summarise(run_of(records))["ttft"]["ok"]
    assert ok["min"] <= ok["p50"] <= ok["p99"] <= ok["max"]
    assert (ok["min"], ok["max"]) == (pytest.approx(0.575), pytest.approx(0.6004))


def test_m09_workers_are_merged_by_their_records_not_by_their_percentiles() -> None:
    records = [request(i / 10, ttft=0.01, tokens=1, worker=1) for i in range(99)]
    records.append(request(9.9, ttft=1.0, tokens=1, worker=2))
    ok = summarise(run_of(records))["ttft"]["ok"]
    assert (ok["p50"], ok["p99"], ok["max"]) == pytest.approx((0.01, 0.01, 1.0))


def test_m11_the_warm_up_is_in_no_figure_and_is_counted() -> None:
    records = [request(i, ttft=2.0 if i < 10 else 0.1, tokens=1) for i in range(40)]
    run = {"window": [10.0, 40.0], "loop": "open", "scenario": {"name": "chat", "warmup": 10.0}}
    summary = summarise(measured(run, records))
    assert summary["ttft"]["all"]["max"] == pytest.approx(0.1)
    assert summary["requests"]["attempts"] == 30
    assert summary["requests"]["outside_window"] == 10
    assert summary["window"] == [10.0, 40.0]


def test_the_slo_files_warm_up_counts_only_where_the_scenario_has_none() -> None:
    records = many(100)
    run = {"window": [0.0, 10.0], "loop": "open", "scenario": {"name": "chat", "warmup": None}}
    assert len(measured(run, records, warmup=3.0).records) == 70
    run["scenario"] = {"name": "chat", "warmup": 1.0}
    run["window"] = [1.0, 10.0]
    assert len(measured(run, records, warmup=3.0).records) == 90


def test_m12_requests_cut_by_the_end_are_neither_good_nor_bad_and_their_tokens_stand_apart() -> (
    None
):
    records = many(60) + [cut(i / 10, ttft=0.1, ended=6.0) for i in range(40)]
    summary = summarise(run_of(records))
    assert summary["requests"]["incomplete"] == 40
    assert summary["requests"]["failed"] == 0
    assert summary["e2e"]["all"]["n"] == 60
    assert summary["rates"]["error_rate"] == 0.0
    assert summary["tokens"]["of_incomplete"] == 80
    assert summary["tokens"]["output"]["got"] == 600


def test_throughput_counts_tokens_that_arrived_inside_the_window_wherever_they_began() -> None:
    # One token a second from 0 to 19 s; the window sees those from 5 to 15.
    long = request(0.0, ttft=0.0, tpot=1.0, tokens=20)
    run = {"window": [5.0, 15.0], "loop": "open"}
    part = measured(run, [long])
    assert part.records == ()
    assert summarise(part)["rates"]["output_tokens_per_s"] == pytest.approx(1.0)


def test_chunks_are_scaled_to_the_true_number_of_tokens() -> None:
    # 4 chunks, but the server counted 12 tokens; half of the chunks are inside the window.
    record = request(0.0, ttft=0.5, tpot=1.0, tokens=4, output_tokens=12)
    assert tokens_inside([record], (0.0, 2.0)) == pytest.approx(6.0)


def test_an_empty_answer_is_ok_and_counted_but_in_no_latency() -> None:
    empty = request(1.0, ttft=None, flags=("empty",))
    summary = summarise(run_of([*many(5), empty]))
    assert summary["requests"]["ok"] == 6
    assert summary["requests"]["empty"] == 1
    assert summary["ttft"]["all"]["n"] == summary["e2e"]["all"]["n"] == 5
    assert summary["rates"]["error_rate"] == 0.0


def test_an_answer_of_one_token_has_a_ttft_and_no_tpot() -> None:
    summary = summarise(run_of([request(tokens=1)]))
    assert summary["ttft"]["ok"]["n"] == 1
    assert summary["tpot"]["ok"]["n"] == 0
    assert summary["tpot"]["ok"]["p50"] is None


def test_an_answer_that_was_not_streamed_has_an_e2e_and_no_ttft() -> None:
    whole = request(ttft=0.5, tokens=1, output_tokens=10, flags=("not_streamed",))
    summary = summarise(run_of([whole]))
    assert summary["ttft"]["ok"]["n"] == summary["tpot"]["ok"]["n"] == 0
    assert summary["e2e"]["ok"]["p50"] == pytest.approx(0.5)


def test_a_chunk_of_three_tokens_is_three_inter_token_samples() -> None:
    record = request(ttft=0.1, tokens=1, output_tokens=4)
    arrivals = (Arrival(0.1, 1, "text"), Arrival(0.4, 3, "text"))
    record = request(ttft=0.1, tokens=1, output_tokens=4, arrivals=arrivals)
    itl = summarise(run_of([record]))["itl"]["ok"]
    assert itl["n"] == 3
    assert itl["p50"] == itl["max"] == pytest.approx(0.1)


def test_a_failed_request_is_the_infinite_gaps_of_the_tokens_it_was_asked_for() -> None:
    # 99 gaps of 10 ms arrived, 100 never came: more than half of all are infinite.
    lost = refused(1.0)
    lost = request(1.0, ttft=None, outcome="timeout", asked_output_tokens=101)
    itl = summarise(run_of([request(tokens=100), lost]))["itl"]
    assert (itl["ok"]["n"], itl["all"]["n"]) == (99, 199)
    assert itl["ok"]["p99"] == pytest.approx(0.01)
    assert itl["all"]["p50"] == "inf"


def test_dropped_arrivals_are_attempts_that_failed() -> None:
    summary = summarise(run_of(many(90), dropped=10))
    assert summary["requests"]["attempts"] == 100
    assert summary["ttft"]["all"]["p95"] == "inf"
    assert summary["rates"]["error_rate"] == pytest.approx(0.1)


def test_the_send_lag_of_a_failed_request_is_still_ours() -> None:
    late = request(1.0, ttft=None, outcome="http_error", sent=1.002)
    summary = summarise(run_of([late]))
    assert summary["send_lag"]["all"]["max"] == pytest.approx(0.002)


def test_gaps_over_200_ms_are_stalls() -> None:
    summary = summarise(run_of([request(tpot=0.201, tokens=3), request(1.0, tpot=0.2, tokens=3)]))
    assert summary["stalls"] == {"over_s": 0.2, "gaps": 2, "requests": 1}


def test_tokens_asked_and_got_are_compared_only_where_both_are_known() -> None:
    records = [
        request(tokens=8, asked_output_tokens=10, asked_input_tokens=50, prompt_tokens=61),
        request(1.0, tokens=10),
    ]
    tokens = summarise(run_of(records))["tokens"]
    assert tokens["output"] == {
        "got": 18,
        "compared_requests": 1,
        "compared_asked": 10,
        "compared_got": 8,
    }
    assert tokens["input"]["compared_got"] == 61


def test_classes_are_summed_up_apart_where_there_is_more_than_one() -> None:
    assert "classes" not in summarise(run_of(many(3)))
    records = [*many(3), request(1.0, ttft=0.9, cls="code")]
    classes = summarise(run_of(records))["classes"]
    assert list(classes) == ["chat", "code"]
    assert classes["code"]["ttft"]["ok"]["p50"] == pytest.approx(0.9)
    assert classes["chat"]["requests"]["attempts"] == 3


def test_arrivals_cancelled_when_a_run_was_cut_are_not_dropped() -> None:
    run = {"window": [0.0, 9.0], "loop": "open", "schedule": {"dropped": 4}}
    assert measured(run, many(30)).dropped == 4
    assert measured(run | {"interrupted": True}, many(30)).dropped == 0
    assert measured(run | {"stopped_early": "a breach"}, many(30)).dropped == 0


def test_a_summary_holds_no_nan_and_no_infinity_but_the_string() -> None:
    rng = random.Random(3)
    records = [
        rng.choice([request(i), refused(i), cut(i, ended=99.0), request(i, ttft=None)])
        for i in range(50)
    ]
    for part in (records, [], [refused()], [request(ttft=None)]):
        text = json.dumps(summarise(run_of(part)), allow_nan=False)
        assert '"inf"' in text or not any(r.outcome == "connect_error" for r in part)
    assert json_number(math.inf) == "inf"
    with pytest.raises(ValueError, match="NaN"):
        json_number(math.nan)


def test_every_metric_has_all_and_ok_with_the_same_keys() -> None:
    summary = summarise(run_of(many(4)))
    for metric in (*METRICS, "itl"):
        for which in ("all", "ok"):
            assert {"mean", "p50", "p90", "p95", "p99", "n"} <= summary[metric][which].keys()
