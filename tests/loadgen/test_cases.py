"""Which tests hold which real-world case, of stream framing (F), content (K) and transport (T).

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
}


def test_every_case_of_the_three_groups_has_its_tests() -> None:
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
