"""Traces and stacks whose shares are known: what the readers make of them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from prony.profiling.captures import profile_facts
from prony.profiling.facts import ProfileFacts
from prony.profiling.stacks import StacksError, stacks_facts
from prony.profiling.trace import read_trace
from prony.profiling.trace_events import PIECE, TraceError
from prony.profiling.trace_facts import trace_facts
from prony.profiling.views import profile_page

Event = dict[str, Any]


def event(cat: str, name: str, ts: float, dur: float, tid: int = 7, **args: Any) -> Event:
    """Times in microseconds, as a Chrome trace has them."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def kernel(name: str, ts: float, dur: float, launch: float, correlation: int) -> list[Event]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", launch, 2.0, correlation=correlation),
        event("kernel", name, ts, dur, 99, correlation=correlation, stream=7, device=0),
    ]


def gpu_run() -> list[Event]:
    """1,000 us on one stream: 700 busy, 200 host wait, 4 kernel wait, 96 other; 100 in a copy.

    From 300 on the GPU is dry, and the host launches at 450. From 700 a queued kernel starts 4 us
    later; at 800 a copy of 1 MB was queued long before, and starts only at 900.
    """
    return [
        *kernel("gemm", 0, 300, launch=-20, correlation=1),
        *kernel("softmax", 500, 200, launch=450, correlation=2),
        *kernel("gemm", 704, 100, launch=600, correlation=3),
        event("cuda_runtime", "cudaMemcpyAsync", 650, 3.0, correlation=4),
        event("gpu_memcpy", "Memcpy HtoD", 900, 100, 99, correlation=4, stream=7, device=0,
              bytes=1_000_000),
        # Not work of its own: it repeats what lies within it.
        event("gpu_user_annotation", "ProfilerStep#1", 0, 1000, 99),
    ]  # fmt: skip


def written(path: Path, events: list[Event], packed: bool = False, **more: Any) -> Path:
    text = json.dumps({"schemaVersion": 1, **more, "traceEvents": events, "traceName": "t"})
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_the_idle_time_of_a_gpu_run_is_split_by_what_it_waited_for(
    tmp_path: Path, packed: bool
) -> None:
    name = "t.pt.trace.json" + (".gz" if packed else "")
    facts = trace_facts(written(tmp_path / name, gpu_run(), packed))
    split = facts.idle
    assert split is not None and split.span == pytest.approx(1000e-6)
    assert split.busy == pytest.approx(0.700)
    assert split.host_wait == facts.host_wait == pytest.approx(0.200)
    assert split.kernel_wait == pytest.approx(0.004)
    assert split.other == pytest.approx(0.096)
    assert split.busy + split.idle == pytest.approx(1.0)


def test_copies_gaps_and_kernels_of_a_gpu_run(tmp_path: Path) -> None:
    facts = trace_facts(written(tmp_path / "t.trace.json", gpu_run()))
    assert facts.memcpy_share == pytest.approx(0.100)
    assert facts.memcpy_bytes == 1_000_000
    assert facts.gaps is not None
    gaps = (facts.gaps.count, facts.gaps.p50, facts.gaps.longest)
    assert gaps == pytest.approx((3, 96e-6, 200e-6))
    top = next(o for o in facts.operators if o.device == "gpu")
    assert (top.name, top.calls) == ("gemm", 2)
    assert (top.seconds, top.share) == pytest.approx((400e-6, 4 / 7))


def test_two_streams_that_take_turns_are_one_busy_gpu(tmp_path: Path) -> None:
    events = [
        event("kernel", "a", 0, 100, 1, stream=1, device=0, correlation=1),
        event("kernel", "b", 50, 100, 2, stream=2, device=0, correlation=2),
    ]
    split = trace_facts(written(tmp_path / "t.trace.json", events)).idle
    assert split is not None and split.busy == 1.0


def cpu_run() -> list[Event]:
    """`linear` of 100 us calls `addmm` of 60, which calls itself for 20; and then a copy of 50."""
    return [
        event("cpu_op", "aten::addmm", 20, 20),
        event("cpu_op", "aten::linear", 0, 100),
        event("cpu_op", "aten::addmm", 10, 60),
        event("cpu_op", "aten::copy_", 100, 50),
        event("cpu_op", "aten::linear", 0, 30, tid=8),
    ]


def test_an_operators_own_time_is_without_what_it_called(tmp_path: Path) -> None:
    facts = trace_facts(written(tmp_path / "t.trace.json", cpu_run()))
    found = {o.name: (round(o.seconds * 1e6), round(o.total * 1e6), o.calls)
             for o in facts.operators}  # fmt: skip
    assert found == {
        "aten::linear": (40 + 30, 130, 2),
        "aten::addmm": (60, 60, 2),  # its inner call counts once
        "aten::copy_": (50, 50, 1),
    }
    assert facts.memcpy_share == pytest.approx(50 / 180)
    assert dict(facts.cpu_busy) == {"thread 7": 1.0, "thread 8": pytest.approx(0.2)}


def test_a_trace_without_a_gpu_says_so_and_has_no_split(tmp_path: Path) -> None:
    facts = trace_facts(written(tmp_path / "t.trace.json", cpu_run()))
    assert facts.idle is None and facts.host_wait is None
    assert any("no GPU" in note for note in facts.notes)


def test_a_caller_that_ends_as_the_next_begins_did_not_call_it_whatever_a_float_rounds(
    tmp_path: Path,
) -> None:
    at = 1.7e15  # microseconds since 1970: a float knows them to a quarter of one
    events = [event("cpu_op", "a", at, 10.3), event("cpu_op", "b", at + 10.0, 7.0)]
    facts = trace_facts(written(tmp_path / "t.trace.json", events))
    assert {o.name: round(o.seconds * 1e6) for o in facts.operators} == {"a": 10, "b": 7}


def test_a_large_trace_is_read_piece_by_piece_and_cut_where_it_is_too_long(tmp_path: Path) -> None:
    events = [event("cpu_op", f"op{i % 3}", 10.0 * i, 8.0, note="x" * 80) for i in range(9_000)]
    path = written(tmp_path / "t.trace.json.gz", events, packed=True)
    assert len(gzip.decompress(path.read_bytes())) > PIECE
    assert sum(len(calls.starts) for calls in read_trace(path).threads.values()) == 9_000
    cut = read_trace(path, most=100)
    assert cut.notes == ["t.trace.json.gz is cut: its first 100 events are read"]


def test_a_bare_list_and_a_trace_that_breaks_off_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    path = tmp_path / "list.trace.json"
    text = json.dumps(cpu_run())
    path.write_text(text[: text.index("aten::copy_")])
    facts = trace_facts(path)
    assert {o.name for o in facts.operators} == {"aten::addmm", "aten::linear"}
    assert any("breaks off" in note for note in facts.notes)
    whole = written(tmp_path / "t.json.gz", cpu_run(), packed=True, deviceProperties=[{"id": 0}])
    whole.write_bytes(whole.read_bytes()[:-20])
    assert any("breaks off" in note for note in trace_facts(whole).notes)


@pytest.mark.parametrize("text", ["", "hello", "[]", '{"a": 1}', '{"traceEvents": []}', '{"a" 1}'])
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.trace.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"odd\.trace\.json"):
        trace_facts(path)


# Two threads: of the engine's 4 s, 1 s is in json under log_request, 0.5 s in log_request itself
# and 2 s in the model; the other thread worked 1 s.
FRAMES = ["main", "step", "log_request", "dumps", "Model.forward", "serve", "thread (9): engine"]
ENGINE = [([6, 0, 1, 2, 3], 1.0), ([6, 0, 1, 2], 0.5), ([6, 0, 1, 4], 2.0), ([6, 0, 1], 0.5)]
SERVER = [([5], 1.0)]


def speedscope(path: Path) -> Path:
    profiles = [
        {"type": "sampled", "name": name, "unit": "seconds",
         "samples": [stack for stack, _ in seen], "weights": [weight for _, weight in seen]}
        for name, seen in (('Thread 3 "main"', SERVER), ('Thread 9 "engine"', ENGINE))
    ]  # fmt: skip
    frames = [{"name": name, "file": f"/srv/{name}.py", "line": 3} for name in FRAMES]
    told = {"$schema": "https://www.speedscope.app/file-format-schema.json",
            "profiles": profiles, "shared": {"frames": frames}}  # fmt: skip
    path.write_text(json.dumps(told))
    return path


def test_functions_of_each_thread_have_their_shares_of_its_active_time(tmp_path: Path) -> None:
    facts = stacks_facts(speedscope(tmp_path / "s.speedscope.json"))
    engine, other = facts.threads
    assert (engine.thread, engine.seconds, engine.share) == ('Thread 9 "engine"', 4.0, 0.8)
    assert (other.thread, other.seconds) == ('Thread 3 "main"', 1.0)
    found = {f.name: (f.total_share, f.self_share, f.under) for f in engine.frames}
    assert found == {
        "main": (1.0, 0.0, ""),
        "step": (1.0, 0.125, "main"),
        "log_request": (0.375, 0.125, "step"),
        "dumps": (0.25, 0.25, "log_request"),
        "Model.forward": (0.5, 0.5, "step"),
    }
    assert facts.share_of("log_request") == ('Thread 9 "engine"', 0.375)
    assert facts.share_of("forward") == ('Thread 9 "engine"', 0.5)
    assert facts.share_of("nothing") is None


def test_what_only_calls_another_function_is_not_told_first_and_the_host_spot_is_found(
    tmp_path: Path,
) -> None:
    engine = stacks_facts(speedscope(tmp_path / "s.speedscope.json")).thread("engine")
    assert engine is not None
    assert [f.name for f in engine.telling(3)] == ["step", "Model.forward", "log_request"]
    # Of 2 s outside the model 1.5 are under log_request, and of these 1 in dumps.
    assert engine.host_spot == ("dumps", 0.25)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"profiles": [], "shared": {}}',
     '{"profiles": [{"type": "evented", "name": "t"}], "shared": {"frames": []}}',
     '{"profiles": [{"type": "sampled", "name": "t", "unit": "seconds", "samples": [[4]],'
     ' "weights": [1]}], "shared": {"frames": [{"name": "f"}]}}'],
)  # fmt: skip
def test_what_is_no_speedscope_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.speedscope.json"
    path.write_text(text)
    with pytest.raises(StacksError, match=r"odd\.speedscope\.json"):
        stacks_facts(path)


def test_a_folder_of_captures_is_one_set_of_facts_and_a_bad_file_is_named(tmp_path: Path) -> None:
    written(tmp_path / "1-a.pt.trace.json.gz", gpu_run(), packed=True)
    speedscope(tmp_path / "2-b.speedscope.json")
    (tmp_path / "3-c.trace.json").write_text("{")
    facts = profile_facts(tmp_path)
    assert facts is not None
    assert facts.host_wait == pytest.approx(0.2)
    assert facts.share_of("dumps") == ('Thread 9 "engine"', 0.25)
    assert any("3-c.trace.json" in note for note in facts.notes)
    assert profile_facts(tmp_path / "empty") is None


def test_the_page_of_a_profile_loads_nothing_and_escapes_what_the_server_named(
    tmp_path: Path,
) -> None:
    events = [*gpu_run(), event("cpu_op", "<script>alert(1)</script>", 0, 900)]
    written(tmp_path / "1-a.trace.json", events)
    speedscope(tmp_path / "2-b.speedscope.json")
    html = profile_page(tmp_path)
    assert "http://" not in html and "https://" not in html and "src=" not in html
    assert "<script>alert" not in html and "&lt;script&gt;alert" in html
    assert html.count('class="boxes flame"') >= 2
    assert "host wait 20 %" in html
    assert "log_request: 37.5 %" in html


def test_a_hostile_trace_has_no_say_over_the_terminal_and_no_odd_event_ends_the_reading(
    tmp_path: Path,
) -> None:
    odd = [
        event("cpu_op", "\x1b]0;owned\x07mm", 0, 5),
        event("cpu_op", "never", 1e400, 5),
        event("cpu_op", "back", 5, -5),
        {**event("kernel", "k", 1, 2, device={}), "pid": {}, "tid": []},
        {**event("cuda_runtime", "launch", 1, 2), "args": 5, "tid": [1]},
    ]
    facts = trace_facts(written(tmp_path / "odd.trace.json", odd))
    assert {each.name for each in facts.operators} == {"\ufffd]0;owned\ufffdmm", "k", "launch"}
    assert facts.seconds == pytest.approx(5e-6)


def test_a_run_without_a_profile_has_none_whatever_its_other_files_end_in(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "verdict.json").write_text("{}")
    assert profile_facts(tmp_path) is None


def test_facts_are_plain_and_unknown_is_never_zero() -> None:
    nothing = ProfileFacts(("f",), 1.0)
    assert (nothing.idle, nothing.memcpy_share, nothing.host_wait) == (None, None, None)
