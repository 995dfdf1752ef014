"""Which tests hold which real-world case: of stream framing (F), content (K), transport (T),
measurement (M), and datasets and traces (D).

A case with a stream in streams/ is held by test_streams.py, which names it; the others are listed.
"""

import ast
import errno
import json
from pathlib import Path

import pytest

from prony_loadgen.connection import Addresses, ClientError, _failure
from prony_loadgen.target import parse_target

HERE = Path(__file__).parent
# Where the case collection has numbers without a case: F05, for instance, was merged into F07.
WITH_STREAMS = (
    "F01 F02 F04 F07 F08 F09 F11 F12 F13 F15 F18 F19 F20 F22 F23 F24 F25 F26 F27 F30 F31 "
    "K01 K02 K03 K04 K05 K06 K07 K10 K13 K14 K16 K17 K18 K21 K23 T01 T04 T05"
)
OTHERS = {
    "T01": [
        "test_a_429_is_recorded_with_its_wait_and_never_tried_again",
        "test_a_gateways_429_is_waited_for_by_the_probe_and_recorded_by_the_run",
    ],
    "T06": [
        "test_a_stream_that_stalls_ends_at_the_limit_between_tokens",
        "test_a_stream_that_stalls_ends_at_the_total_limit_with_what_it_had",
        "test_a_server_that_says_nothing_ends_at_the_first_token_limit",
    ],
    "T07": ["test_tokens_that_keep_coming_meet_the_limit_between_them_however_long_it_takes"],
    "T09": ["test_two_hundred_streams_at_once_all_complete"],
    "T10": [
        "test_running_out_of_local_ports_is_our_fault_and_ends_the_run",
        "test_running_out_of_file_descriptors_is_our_fault_and_ends_the_run",
    ],
    "T11": ["test_localhost_finds_a_server_that_listens_on_ipv4_only"],
    "T12": [
        "test_this_machine_is_never_reached_through_a_proxy",
        "test_what_runs_on_this_machine_is_never_asked_for_through_a_proxy",
        "test_an_https_target_is_reached_through_a_tunnel",
    ],
    "T13": [
        "test_a_certificate_that_nobody_vouches_for_is_a_connect_error_with_a_remedy",
        "test_a_server_with_a_certificate_of_ones_own_is_talked_to",
    ],
    "T15": ["test_slow_headers_are_part_of_ttft_and_hold_up_nobody"],
    "M01": ["test_m01_tpot_leaves_the_first_token_out"],
    "M02": ["test_m02_ten_quick_refusals_of_a_hundred_raise_p99_and_not_lower_it"],
    "M03": ["test_m03_no_success_is_null_for_successes_and_never_0"],
    "M04": [
        "test_m04_a_freeze_of_5_s_is_in_the_latency_from_the_intended_time",
        "test_m04_a_freeze_is_felt_by_all_who_come_meanwhile_in_open_loop",
        "test_m04_closed_loop_hardly_sees_it_and_says_that_it_is_closed",
    ],
    "M05": ["test_m05_500_a_second_asked_and_300_managed_is_invalid_with_both_rates"],
    "M07": [
        "test_m07_a_negative_duration_is_never_a_sample",
        "test_m07_a_negative_duration_is_a_bug_and_invalid",
    ],
    "M08": [
        "test_m08_the_smallest_median_p99_and_largest_stand_in_order_and_unrounded",
        "test_m08_half_a_millisecond_is_not_rounded_to_a_whole_one",
    ],
    "M09": [
        "test_m09_workers_are_merged_by_their_records_not_by_their_percentiles",
        "test_m09_merged_percentiles_are_those_of_the_pool_and_not_the_mean_of_two",
    ],
    "M11": ["test_m11_the_warm_up_is_in_no_figure_and_is_counted"],
    "M12": [
        "test_m12_requests_cut_by_the_end_are_neither_good_nor_bad_and_their_tokens_stand_apart"
    ],
    "M13": ["test_m13_usage_against_10_chunks"],
    "M17": [
        "test_m17_locusts_event_covers_the_whole_stream_with_ttft_beside_it_and_fires_once",
        "test_failed_requests_are_failures_in_locust_too",
    ],
    "D02": ["test_d02_prompts_that_cannot_fit_the_context_are_an_error_before_load"],
    "D04": [
        "test_d04_rows_of_a_file_that_are_sent_again_are_counted",
        "test_no_two_prompts_of_a_run_start_alike",
        "test_other_seeds_start_their_prompts_otherwise",
    ],
    "D05": [
        "test_d05_a_tokenizers_prompts_in_a_scenario",
        "test_with_a_tokenizer_every_prompt_is_exact_after_encoding_it_again",
        "test_prompts_have_the_asked_tokens_by_the_servers_own_count",
    ],
    "D06": [
        "test_d06_a_byte_order_mark_windows_line_ends_and_blank_lines_are_no_rows",
        "test_every_bad_row_of_a_prompts_file_is_named",
        "test_a_prompts_file_without_prompts_is_an_error",
    ],
    "D07": [
        "test_d07_a_trace_in_the_wrong_unit_is_an_error_before_load",
        "test_d07_the_other_way_round_too",
        "test_d07_a_unit_is_never_guessed",
    ],
    "D09": ["test_d09_milliseconds_are_not_rounded_away"],
    "D11": ["test_d11_a_trace_is_sent_once_in_order_unless_more_is_asked"],
}


def test_every_case_of_the_five_groups_has_its_tests() -> None:
    cases = [json.loads(path.read_text())["case"] for path in (HERE / "streams").glob("*.json")]
    assert set(WITH_STREAMS.split()) == set(cases)
    written = {
        node.name
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    missing = {case: set(names) - written for case, names in OTHERS.items()}
    assert not any(missing.values()), missing


def test_running_out_of_local_ports_is_our_fault_and_ends_the_run() -> None:
    addresses = Addresses(parse_target("http://127.0.0.1:8000"))
    # Before any connection the same code may mean that the address does not exist here.
    assert "127.0.0.1:8000" in _failure(errno.EADDRNOTAVAIL, addresses, 0)
    addresses.succeeded(0)
    with pytest.raises(ClientError, match="no local port is left"):
        _failure(errno.EADDRNOTAVAIL, addresses, 0)
