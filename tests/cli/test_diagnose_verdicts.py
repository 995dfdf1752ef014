"""What holds a server back: each verdict on evidence that shows it, and on what nearly does.

The healthy request takes 200 ms: 10 ms to the first token, 48 tokens of 4 ms each.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prony.diagnosis.advice import TEXTS
from prony.diagnosis.evidence import (
    Cap,
    Client,
    Evidence,
    Server,
    Silences,
    Spikes,
    StageSeen,
    Steps,
)
from prony.diagnosis.judge import Diagnosis, diagnose
from prony.diagnosis.thresholds import TABLE
from prony.diagnosis.verdicts import RULES
from prony.profiling.facts import IdleSplit, ProfileFacts, ThreadFrames

DOCS = Path(__file__).parents[2] / "docs/bottlenecks.md"

CLIENT = Client(
    requests=200, answered=200, seconds=20.0, e2e=0.2, ttft=0.012, send_lag=0.0005,
    send_lag_p99=0.002, read_lag=0.0002, connect=0.0, until_headers=0.002, in_flight=2.0,
    prompt_tokens=64, output_tokens=48, tpot=0.004, tpot_alone=0.0035, gap_p50=0.004,
    gap_p99=0.006, spikes=Spikes(0.0, 0.0), silences=Silences(0, None, 0.0, None, 0.0),
)  # fmt: skip
SERVER = Server(
    engine="prony", seconds=20.0, requests=200, e2e=0.198, ttft=0.010, queue=0.001, prefill=0.008,
    decode=0.187, tokenize=0.0005, detokenize=0.0003, write_wait=0.001, running=2.0,
    running_most=4, waiting=0.01, slots=32, budget=512, kv=0.1, kv_most=0.2, preemptions=0.0,
    prefix_hits=0.0, prompt_tokens=64, generation_tokens=48,
    steps={"all": Steps(5000, 0.004), "decode": Steps(4800, 0.0039), "prefill": Steps(20, 0.006),
           "mixed": Steps(180, 0.0065)},
    batch=2.0, step_tokens=4.0, prefill_step_tokens=64,
    stages={"idle": 10.0, "admit": 0.1, "schedule": 0.2, "build": 0.8, "forward": 7.5,
            "sample": 0.6, "emit": 0.8},
    loop_lag=0.0005, loop_lag_p99=0.002, engine_cpu=0.45, loop_cpu=0.1, cpu=0.6, memory=1e9,
    memory_growth=1000.0, memory_steady=0.1, out_of_memory=0, rejected=0,
)  # fmt: skip


def server(**changes: Any) -> Server:
    """A server of which this is so; its whole times follow from their parts."""
    made = replace(SERVER, **changes)
    parts = (made.tokenize or 0.0) + (made.queue or 0.0) + (made.prefill or 0.0)
    whole: dict[str, Any] = {"ttft": parts + 0.0005, "e2e": parts + (made.decode or 0.0) + 0.0015}
    return replace(made, **{name: each for name, each in whole.items() if name not in changes})


def found(s: Server | None = SERVER, /, profile: ProfileFacts | None = None, **c: Any) -> Diagnosis:
    """The diagnosis of what a client saw, 2 ms after the server unless `c` says otherwise."""
    seen: dict[str, Any] = {}
    if s is not None and s.e2e is not None and s.ttft is not None:
        seen = {"e2e": s.e2e + 0.002, "ttft": s.ttft + 0.002}
    return diagnose(Evidence(replace(CLIENT, **(seen | c)), s, profile))


def watched(s: Server) -> Diagnosis:
    return diagnose(Evidence(server=s))


def names(diagnosis: Diagnosis) -> list[str]:
    return [verdict.id for verdict in diagnosis.verdicts]


def test_a_healthy_server_has_no_bottleneck_at_this_load() -> None:
    assert names(found()) == ["none"]


def test_a_client_that_sends_30_ms_late_of_50_is_the_bottleneck_whatever_else_is() -> None:
    late: dict[str, Any] = {"send_lag": 0.03, "send_lag_p99": 0.1, "doubts": ("sent late",)}
    verdicts = found(server(queue=0.03, batch=31.0), ttft=0.05, e2e=0.25, **late).verdicts
    assert [v.id for v in verdicts] == ["load_generator", "batch_slots"]
    assert verdicts[1].found.confidence == pytest.approx(0.45)  # of such a run nothing is sure


def test_a_client_that_sends_2_ms_late_of_12_is_not() -> None:
    slightly = found(send_lag=0.002, send_lag_p99=0.012, doubts=("sent late",))
    assert names(slightly) == ["none"]


BEFORE: dict[str, Any] = {
    "e2e": 0.5,
    "ttft": 0.312,
    "until_headers": 0.3,
    "in_flight": 8.0,
}  # 300 ms outside


def test_eight_in_flight_of_which_always_two_are_answered_meet_a_limit_before_the_server() -> None:
    diagnosis = found(**BEFORE, cap=Cap(2, 0.97, 0.7))
    assert names(diagnosis) == ["upstream_limit"]
    assert diagnosis.verdicts[0].found.cost == pytest.approx(0.3, rel=0.02)


def test_waiting_before_the_server_without_a_fixed_number_inside_is_the_network() -> None:
    assert names(found(**BEFORE, cap=Cap(2, 0.4, 0.7))) == ["network"]


def test_one_standstill_in_which_few_waited_is_no_limit() -> None:
    assert "upstream_limit" not in names(found(**BEFORE, cap=Cap(9, 0.97, 0.15)))


def test_streams_that_take_300_ms_longer_to_read_than_to_write_have_a_slow_reader() -> None:
    assert names(found(e2e=0.5)) == ["network"]


def test_a_server_that_waits_for_its_reader_says_so_itself() -> None:
    assert names(found(server(e2e=0.498, write_wait=0.3))) == ["network"]


def test_writing_that_waits_while_the_engine_decodes_costs_nobody_anything() -> None:
    assert names(found(server(write_wait=0.1))) == ["none"]


def test_one_in_five_refused_costs_the_wait_that_they_were_told() -> None:
    diagnosis = found(requests=250, failed=50, refused=50, retry_after=5.0)
    assert names(diagnosis) == ["admission"]
    assert diagnosis.verdicts[0].found.cost == pytest.approx(1.0)


def test_who_was_refused_at_first_and_tried_again_was_not_slowed_down_by_the_network() -> None:
    diagnosis = found(retried=50, retry_wait=1.1, ttft=1.112, e2e=1.3)
    assert names(diagnosis) == ["admission"]
    assert "25 % were let in when they came again: 1,100 ms" in diagnosis.verdicts[0].found.why
    assert diagnosis.split["before a retry"] == pytest.approx(1.1)


def test_where_all_are_refused_nobody_is_said_to_have_waited_0_ms() -> None:
    diagnosis = found(None, refused=200, failed=200, answered=0, e2e=None, ttft=None)
    assert "waited" not in diagnosis.verdicts[0].found.why


def test_one_refusal_in_two_hundred_is_none() -> None:
    assert names(found(failed=1, refused=1)) == ["none"]


def test_failures_that_are_no_refusals_are_told_apart() -> None:
    assert names(found(failed=20, refused=0)) == ["failures"]


def test_40_ms_of_200_in_the_tokenizer_are_the_front_end() -> None:
    slow = server(tokenize=0.04, loop_lag=0.008, loop_lag_p99=0.05)
    assert names(found(slow))[0] == "tokenizing"


def test_4_ms_of_200_in_the_tokenizer_are_not() -> None:
    assert names(found(server(tokenize=0.004))) == ["none"]


LATE_LOOP: dict[str, Any] = {"loop_lag": 0.012, "loop_lag_p99": 0.1, "e2e": 0.22, "ttft": 0.02}


def test_a_loop_that_comes_12_ms_late_without_tokenizing_is_blocked_by_something_else() -> None:
    assert names(found(server(**LATE_LOOP), e2e=0.24, ttft=0.04)) == ["blocked_loop"]


def test_a_loop_that_is_late_while_nothing_is_lost_around_the_engine_is_none() -> None:
    assert names(found(server(loop_lag=0.012, loop_lag_p99=0.1))) == ["none"]


# What vLLM does not tell.
VLLM: dict[str, Any] = {
    "engine": "vllm", "loop_lag": None, "tokenize": None, "stages": {}, "steps": {}, "slots": None,
    "budget": None, "batch": None, "prefill_step_tokens": None,
}  # fmt: skip


def test_an_engine_that_does_not_tell_its_loops_lag_has_a_slow_front_end_of_no_name() -> None:
    assert names(found(server(**VLLM, e2e=0.25, ttft=0.06))) == ["front_end"]


def test_preempted_requests_lack_room_in_the_kv_cache() -> None:
    assert names(found(server(queue=0.1, preemptions=0.4, kv=0.97, batch=4.0))) == ["kv_capacity"]


def test_a_queue_with_free_places_and_iterations_can_only_lack_room_for_tokens() -> None:
    verdict = found(server(queue=0.1, kv=0.75, batch=3.0)).verdicts[0]
    assert (verdict.id, verdict.found.confidence) == ("kv_capacity", 0.6)


def test_a_queue_before_an_engine_that_has_room_for_everybody_lacks_nothing() -> None:
    assert names(found(server(queue=0.1, kv=0.01, kv_most=0.02, batch=3.0))) == ["none"]


def test_a_queue_that_is_most_of_a_request_is_never_said_to_be_no_bottleneck() -> None:
    # As a server with static batching has it: room for everybody, and everybody waits.
    told = found(server(queue=0.4, kv=0.01, kv_most=0.02, batch=3.0))
    assert names(told) == ["cannot_tell"]
    assert "% of a request's time was queue" in told.verdicts[0].found.why
    assert "--batching static" in told.verdicts[0].found.why


def test_a_full_batch_and_a_queue_lack_places() -> None:
    assert names(found(server(queue=0.3, batch=31.0, kv=0.5))) == ["batch_slots"]


def test_a_full_kv_cache_without_a_queue_is_well_used() -> None:
    assert names(found(server(kv=0.98))) == ["none"]


def test_an_engine_that_does_not_tell_its_places_runs_just_so_many() -> None:
    full = server(**VLLM, queue=0.3, kv=0.4, running_held=7.9, running_most=8)
    verdict = found(full).verdicts[0]
    assert (verdict.id, verdict.found.confidence) == ("batch_slots", 0.6)


def test_an_engine_that_runs_now_more_and_now_fewer_while_others_wait_has_free_places() -> None:
    diagnosis = found(server(**VLLM, queue=0.3, kv=0.4, running_held=4.0, running_most=8))
    assert "batch_slots" not in names(diagnosis)


IN_PIECES: dict[str, Any] = {
    "prompt_tokens": 400, "budget": 16, "prefill_step_tokens": 15, "queue": 0.05, "prefill": 0.15,
    "decode": 0.09,
}  # fmt: skip


def test_prompts_of_400_tokens_in_pieces_of_16_pay_for_25_iterations() -> None:
    diagnosis = found(server(**IN_PIECES))
    assert names(diagnosis)[0] == "prefill_budget"
    assert "25.0 iterations" in diagnosis.verdicts[0].found.why


def test_the_same_prompts_in_pieces_that_are_hardly_filled_do_not() -> None:
    assert "prefill_budget" not in names(found(server(**{**IN_PIECES, "budget": 64})))


LONG: dict[str, Any] = {
    "prompt_tokens": 3000, "prefill_step_tokens": 500, "queue": 0.05, "prefill": 0.4,
    "decode": 0.04, "generation_tokens": 8,
    "steps": {"decode": Steps(100, 0.004), "mixed": Steps(300, 0.06)},
}  # fmt: skip


def test_long_prompts_whose_tokens_take_the_time_are_computation_and_no_budget() -> None:
    assert names(found(server(**LONG), output_tokens=8)) == ["prefill_compute"]


def test_long_prompts_that_the_prefix_cache_has_are_not_computed() -> None:
    assert "prefill_compute" not in names(found(server(**LONG, prefix_hits=0.9)))


HELD_UP: dict[str, Any] = {
    "steps": {"decode": Steps(900, 0.004), "mixed": Steps(100, 0.06)},
    "decode": 0.437,
    "prefill_step_tokens": 500,
}


def test_iterations_with_prompts_that_take_56_ms_longer_hold_up_the_streams() -> None:
    diagnosis = found(server(**HELD_UP), gap_p99=0.06, spikes=Spikes(0.2, 0.9))
    assert names(diagnosis) == ["prefill_interference"]
    assert diagnosis.verdicts[0].found.cost == pytest.approx(0.2)  # all that the spikes took


def test_prompts_of_64_tokens_hold_up_nobody() -> None:
    short = server(**{**HELD_UP, "prefill_step_tokens": 64})
    assert names(found(short, gap_p99=0.06, spikes=Spikes(0.2, 0.9))) == ["none"]


def test_of_an_engine_that_does_not_time_iterations_only_spikes_with_newcomers_count() -> None:
    vllm = server(**{**VLLM, "decode": 0.437, "prompt_tokens": 500})
    assert names(found(vllm, gap_p99=0.06, spikes=Spikes(0.2, 0.9))) == ["prefill_interference"]
    assert names(found(vllm, gap_p99=0.06, spikes=Spikes(0.2, 0.2))) == ["none"]


def test_gaps_that_are_even_inside_the_engine_are_not_its_iterations_fault() -> None:
    spiky: dict[str, Any] = {"gap_p99": 0.06, "spikes": Spikes(0.2, 0.9)}
    alike = {"decode": Steps(900, 0.004), "mixed": Steps(100, 0.0045)}
    assert names(found(server(**{**HELD_UP, "steps": alike}), **spiky)) == ["none"]
    even = server(**{**VLLM, "decode": 0.437, "prompt_tokens": 500}, itl_p50=0.005, itl_p99=0.01)
    assert names(found(even, **spiky)) == ["none"]


def test_a_few_very_long_prompts_are_in_no_p99_and_hold_up_the_streams_all_the_same() -> None:
    few = server(**{**HELD_UP, "steps": {"decode": Steps(992, 0.004), "mixed": Steps(8, 0.25)}})
    assert names(found(few, gap_p99=0.009, spikes=Spikes(0.09, 0.9))) == ["prefill_interference"]


def test_decode_that_broke_its_promise_while_alone_already_is_the_models_speed() -> None:
    assert names(found(breached=frozenset({"tpot"}))) == ["decode_bandwidth"]


def test_decode_that_takes_most_of_the_time_and_breaks_nothing_is_no_bottleneck() -> None:
    assert names(found()) == ["none"]


def test_a_broken_promise_that_nothing_explains_is_never_no_bottleneck() -> None:
    diagnosis = found(breached=frozenset({"ttft"}))
    assert names(diagnosis) == ["cannot_tell"]
    assert diagnosis.verdicts[0].found.why.startswith("ttft broke the promise made of it")
    assert "raise the load" not in "".join(diagnosis.verdicts[0].advice)


def test_few_preemptions_do_not_explain_what_large_batches_took() -> None:
    # 100 tokens in 500 ms at a mean iteration of 4 ms: but 4 in 100 requests were preempted.
    busy = {"decode": 0.5, "generation_tokens": 100.0, "kv": 0.96, "batch": 4.0}
    few = server(queue=0.01, preemptions=0.04, **busy)
    assert names(found(few)) == ["none"]
    many = found(server(queue=0.01, preemptions=1.2, **busy))
    assert names(many)[0] == "kv_capacity"


def test_tokens_that_take_three_times_as_long_among_sixteen_are_the_batchs_size() -> None:
    assert names(found(server(batch=16.0, decode=0.5), tpot=0.0105)) == ["batch_growth"]


def test_the_same_among_two_is_not() -> None:
    assert names(found(server(batch=2.0, decode=0.5), tpot=0.0105)) == ["none"]


HOST = {"idle": 5.0, "admit": 0.1, "schedule": 9.0, "build": 0.5, "forward": 4.0, "emit": 0.4}


def test_an_engine_that_spends_two_thirds_of_its_busy_time_scheduling_is_host_bound() -> None:
    diagnosis = found(server(stages=HOST, engine_cpu=0.7))
    assert names(diagnosis) == ["host_bound"]
    assert diagnosis.verdicts[0].found.numbers["stage"] == "schedule"


def test_the_same_in_the_stage_that_hands_tokens_out_is_logging_or_the_like() -> None:
    stages = {**HOST, "schedule": 0.4, "emit": 9.0}
    assert names(found(server(stages=stages, engine_cpu=0.7))) == ["step_output"]


def test_sampling_on_a_gpu_is_the_wait_for_it_and_no_work_of_the_host() -> None:
    stages = {**HOST, "schedule": 0.4, "sample": 9.0}
    assert names(found(server(stages=stages, engine_cpu=0.7))) == ["host_bound"]
    assert names(found(server(stages=stages, gpu=True))) == ["none"]


def test_a_profile_names_the_function_that_the_host_spends_its_time_in() -> None:
    thread = ThreadFrames('Thread 7 "prony-engine"', 5.0, 0.9, (), ("log_request", 0.34))
    profile = ProfileFacts(("a.json",), 5.0, threads=(thread,))
    stages = {**HOST, "schedule": 0.4, "emit": 9.0}
    verdict = found(server(stages=stages, engine_cpu=0.7), profile=profile).verdicts[0]
    assert "34 % of it in log_request" in verdict.found.why


def test_a_profile_whose_gpu_waits_a_third_of_its_time_for_the_host_is_host_bound() -> None:
    idle = IdleSplit(span=5.0, busy=0.6, host_wait=0.33, kernel_wait=0.05, other=0.02)
    assert names(found(profile=ProfileFacts(("a.json",), 5.0, idle=idle))) == ["host_bound"]


def test_a_profile_with_a_quarter_of_its_time_in_copies_shows_the_copies() -> None:
    profile = ProfileFacts(("a.json",), 5.0, memcpy_share=0.25, memcpy_bytes=10**9)
    assert names(found(profile=profile)) == ["host_device_copies"]
    few = ProfileFacts(("a.json",), 5.0, memcpy_share=0.02)
    assert names(found(profile=few)) == ["none"]


def test_iterations_that_ran_out_of_memory_count_whatever_they_cost() -> None:
    assert names(found(server(out_of_memory=3))) == ["memory_exhausted"]
    long = server(out_of_memory=3, prompt_tokens=3000)
    assert "with long prompts" in found(long).verdicts[0].found.why


def test_ten_megabytes_a_second_in_a_straight_line_are_a_leak() -> None:
    assert names(found(server(memory_growth=1e7, memory_steady=0.99))) == ["memory_growth"]


def test_memory_that_jumps_is_not() -> None:
    assert names(found(server(memory_growth=1e7, memory_steady=0.5))) == ["none"]


def test_a_server_that_warms_up_for_twenty_seconds_is_no_leak() -> None:
    assert names(found(server(memory_growth=1e7, memory_steady=0.9, seconds=20.0))) == ["none"]
    grows = found(server(memory_growth=1e7, memory_steady=0.9, seconds=90.0))
    assert names(grows) == ["memory_growth"]


def test_clocks_that_are_held_back_a_third_of_the_time_throttle() -> None:
    assert names(found(server(gpu=True, gpu_throttled=0.3))) == ["throttling"]
    assert names(found(server(gpu=True, gpu_throttled=0.01))) == ["none"]


STALLS = Silences(count=9, length=0.3, total=2.7, period=2.0, cost=0.06, mean_wait=0.02)


def test_silences_of_300_ms_every_two_seconds_are_periodic_stalls() -> None:
    assert names(found(server(decode=0.247), silences=STALLS)) == ["periodic_stalls"]


def test_silences_in_which_the_event_loop_stood_still_are_the_loops() -> None:
    late = server(**{**LATE_LOOP, "loop_lag": 0.02})
    assert names(found(late, e2e=0.26, ttft=0.06, silences=STALLS)) == ["blocked_loop"]


def test_silences_in_which_the_engine_went_on_with_its_iterations_are_prompts() -> None:
    busy = server(decode=0.247, longer_steps={0.005: 900, 0.08: 0})
    assert names(found(busy, silences=STALLS)) == ["none"]
    stood_still = server(decode=0.247, longer_steps={0.005: 900, 0.08: 9})
    assert names(found(stood_still, silences=STALLS)) == ["periodic_stalls"]


def test_silences_as_long_as_some_prompts_are_tokenized_are_no_stalls_of_their_own() -> None:
    slow = server(tokenize=0.1, decode=0.247, loop_lag=0.02, loop_lag_p99=0.1)
    assert names(found(slow, silences=STALLS)) == ["tokenizing"]


def test_silences_without_a_period_are_no_periodic_stalls() -> None:
    assert names(found(silences=replace(STALLS, period=None))) == ["none"]


def test_a_load_in_steps_shows_its_knee() -> None:
    steps = (StageSeen("5/s", 5, 5, 0.2), StageSeen("10/s", 10, 9.9, 0.3),
             StageSeen("20/s", 20, 13, 1.5))  # fmt: skip
    verdict = found(stages=steps).verdicts[0]
    assert verdict.id == "saturation"
    assert verdict.found.numbers["capacity_per_s"] == 10


def test_steps_that_the_server_kept_up_with_have_no_knee() -> None:
    steps = (StageSeen("5/s", 5, 5, 0.2), StageSeen("10/s", 10, 9.9, 0.3))
    assert names(found(stages=steps)) == ["none"]


def test_without_the_servers_metrics_one_cannot_tell_and_it_says_what_is_missing() -> None:
    diagnosis = found(None)
    assert names(diagnosis) == ["cannot_tell"]
    assert "no metrics of the server" in diagnosis.missing[0]


def test_stalls_are_seen_without_the_servers_metrics_too() -> None:
    assert names(found(None, silences=STALLS)) == ["periodic_stalls", "cannot_tell"]


def test_a_server_that_is_only_watched_has_verdicts_too() -> None:
    assert names(watched(server(queue=0.3, batch=31.0))) == ["batch_slots"]
    assert names(watched(SERVER)) == ["none"]
    assert names(watched(server(e2e=None, requests=0))) == ["cannot_tell"]


def test_several_hold_at_once_and_are_ranked_by_what_they_cost() -> None:
    stages = {"idle": 1.0, "schedule": 12.0, "forward": 6.0}
    diagnosis = found(server(queue=0.3, batch=31.0, stages=stages, engine_cpu=0.9))
    assert names(diagnosis) == ["batch_slots", "host_bound"]
    assert diagnosis.verdicts[0].found.cost > diagnosis.verdicts[1].found.cost


def test_few_requests_make_a_verdict_less_sure() -> None:
    verdict = found(server(queue=0.3, batch=31.0), answered=8, requests=8).verdicts[0]
    assert verdict.found.confidence == pytest.approx(0.63)


def test_a_busy_machine_is_noted_and_its_share_is_not_the_servers_own() -> None:
    evidence = Evidence(CLIENT, server(engine_cpu=0.1, loop_cpu=0.02))
    assert evidence.disturbed == pytest.approx(0.76)
    assert evidence.own is not None and evidence.own < 0.06
    assert "busy with other work" in diagnose(evidence).notes[0]
    assert Evidence(CLIENT, server(engine_cpu=0.1, gpu=True)).disturbed is None


def test_every_verdict_has_its_words_and_every_threshold_a_source() -> None:
    assert TEXTS.keys() == RULES.keys() | {"none", "cannot_tell"}
    assert all(text.change.get("any") and text.measure for text in TEXTS.values())
    assert all(each.source for each in TABLE.values())


@pytest.mark.parametrize("engine", ["prony", "vllm", "sglang", "tgi", "trtllm", None])
def test_advice_is_in_the_engines_own_options(engine: str | None) -> None:
    advice = TEXTS["batch_slots"].advice(engine)
    flags = {"prony": "--max-num-seqs", "vllm": "--max-num-seqs",
             "sglang": "--max-running-requests", "tgi": "--max-batch-size"}  # fmt: skip
    assert flags.get(engine or "", "replica") in " ".join(advice)


def test_the_docs_show_every_verdict_and_every_threshold() -> None:
    text = DOCS.read_text(encoding="utf-8")
    missing = [name for name in TEXTS if f"`{name}`" not in text]
    rows = [f"| `{name}` | {each.value:g} | {each.of} | {each.source} |"
            for name, each in TABLE.items()]  # fmt: skip
    assert missing == []
    assert [row for row in rows if row not in text] == []
