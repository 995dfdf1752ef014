"""Faults to find: how they are written, and that each is a real slowness of its kind.

Times are only ever bounded from below: what a fault takes at least holds on the busiest machine.
"""

import asyncio
import re
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.server.live_server import LiveServer, live_server, until

from prony_server import injection
from prony_server.config import ConfigError, ServeConfig
from prony_server.faults import KINDS, FaultError, parse, parse_all


@pytest.mark.parametrize(
    ("text", "value", "every"),
    [
        ("slow-tokenizer=20ms", 0.02, None),
        ("host-bound=500us", 0.0005, None),
        ("log-in-decode=0.5s", 0.5, None),
        ("blocked-loop=50ms", 0.05, 0.2),
        ("blocked-loop=50ms/1s", 0.05, 1.0),
        ("stall=300ms", 0.3, 2.0),
        ("kv-blocks=32", 32, None),
        ("slots=1", 1, None),
        ("slow-step=20%", 0.2, None),
        ("slow-step=250%", 2.5, None),
        ("slow-prefill=4", 4, None),
        ("slow-prefill=1.5x", 1.5, None),
        ("leak=1MB/s", 1e6, None),
        ("slow-writer=2kB/s", 2000, None),
        ("slow-writer=1KiB/s", 1024, None),
        ("copies=8", 8, None),
        ("error-rate=1%", 0.01, None),
        ("cut-streams=.5%", 0.005, None),
    ],
)
def test_a_fault_is_a_name_and_a_value_with_its_unit(
    text: str, value: float, every: float | None
) -> None:
    fault = parse(text)
    assert fault.value == pytest.approx(value) and fault.every == every and str(fault) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slow-tokeniser=20ms", "inject: there is no fault 'slow-tokeniser'; did you mean "
         "slow-tokenizer=20ms? there are slow-tokenizer, log-in-decode, "),
        ("", "there is no fault ''"),
        ("slots", "inject: slots must be a whole number, such as slots=1; got ''"),
        ("slots=0", "got '0'"),
        ("slots=1.5", "got '1.5'"),
        ("host-bound=5", "inject: host-bound must be a time with its unit (us, ms, s), at most "
         "60s, such as host-bound=5ms; got '5'"),
        ("host-bound=-5ms", "got '-5ms'"),
        ("host-bound=61s", "got '61s'"),
        ("host-bound=5ms/1s", "got '5ms/1s'"),  # every step has no other period
        ("stall=300ms/0s", "or with its period stall=300ms/2s; got '300ms/0s'"),
        ("stall=300ms/", "got '300ms/'"),
        ("error-rate=101%", "inject: error-rate must be a share in %, at most 100%"),
        ("error-rate=0.01", "got '0.01'"),
        ("slow-prefill=1", "must be a factor above 1"),
        ("leak=1MB", "must be bytes a second with their unit"),
        ("leak=1XB/s", "got '1XB/s'"),
        ("leak=nanMB/s", "got 'nanMB/s'"),
    ],
)  # fmt: skip
def test_what_is_no_fault_is_told_with_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(FaultError, match=re.escape(said)):
        parse(text)


def test_a_fault_may_be_given_once() -> None:
    with pytest.raises(ConfigError, match="inject: slots is given 2 times"):
        ServeConfig("tiny", inject=parse_all(["slots=1", "leak=1MB/s", "slots=2"]))


def test_each_fault_has_its_effect_and_an_example_that_reads() -> None:
    effects = {
        *injection.LIMITS,
        *injection.IN_FORWARD,
        *injection.EACH_STEP,
        *injection.ON_ANSWERS,
        *injection.BESIDE,
        "slow-tokenizer",
        "error-rate",
    }
    assert effects == set(KINDS)
    assert {name for name, kind in KINDS.items() if kind.each_step} == set(injection.EACH_STEP)
    for name, kind in KINDS.items():
        parse(f"{name}={kind.example}")


def test_generate_has_no_steps_to_slow_down() -> None:
    with pytest.raises(ConfigError, match="inject: stall=1s needs an engine with steps"):
        ServeConfig("tiny", batching="generate", inject=(parse("stall=1s"),))


def took(server: LiveServer, **body: Any) -> dict[str, float]:
    """The seconds of each phase of one answer."""
    server.spans.clear()
    assert server.chat(**body).status == 200
    spans = server.wait_for_spans("chat tiny")
    return {
        name: (span.end_time - span.start_time) / 1e9
        for name, span in spans.items()
        if span.end_time and span.start_time
    }


def test_slow_host_work_and_small_limits_are_really_there() -> None:
    texts = ["slow-tokenizer=80ms", "host-bound=5ms", "log-in-decode=3ms", "copies=1"]
    faults = parse_all([*texts, "kv-blocks=9", "slots=1", "stall=90ms/1ms"])
    with live_server(inject=faults) as server:
        health = server.get("/health")
        assert health.status == 200 and health.json["injected"] == [str(f) for f in faults]
        assert server.metric("prony_kv_blocks_total") == 9
        phases = took(server, max_tokens=5, ignore_eos=True)
        assert phases["tokenize"] >= 0.08
        # Four steps from the first token to the last, each with all that comes after the model.
        assert phases["decode"] >= 4 * (0.005 + 0.003 + 0.09)


def test_errors_come_at_their_rate_and_cut_streams_never_look_finished() -> None:
    faults = parse_all(["error-rate=50%", "cut-streams=50%"])
    with live_server(inject=faults) as server:
        answers = [server.chat(stream=True, max_tokens=100, ignore_eos=True) for _ in range(16)]
        failed = [answer for answer in answers if answer.status == 500]
        assert len(failed) == 8
        assert all("injected fault" in answer.error["message"] for answer in failed)
        events = [answer.events for answer in answers if answer.status == 200]
        cut = [each for each in events if each[-1] != "[DONE]"]
        assert len(cut) == len(events) // 2 == 4
        for each in cut:
            assert all(event["choices"][0]["finish_reason"] is None for event in each)
        # As when a client hangs up, their places are free again.
        server.wait_for("prony_requests_running", 0)


def test_a_slow_writer_holds_back_streams_only() -> None:
    with live_server(inject=parse_all(["slow-writer=100kB/s"])) as server:
        began = time.monotonic()
        body = server.chat(stream=True, max_tokens=100, ignore_eos=True).body
        assert time.monotonic() - began >= len(body) / 100_000
        assert server.chat(max_tokens=100, ignore_eos=True).status == 200


def test_a_leak_stays_in_memory_until_the_server_ends() -> None:
    def most() -> int:  # kB, never falls
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with live_server(inject=parse_all(["leak=100MB/s"])):
        before = most()
        until(lambda: most() - before > 30_000, "30 MB more are resident")


def test_a_blocked_loop_runs_nothing_else_meanwhile() -> None:
    async def longest_gap() -> float:
        tasks = injection.background(parse_all(["blocked-loop=40ms/1ms"]))
        longest, last = 0.0, time.monotonic()
        while longest < 0.04:
            await asyncio.sleep(0)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        for task in tasks:
            task.cancel()
        return longest

    assert asyncio.run(longest_gap()) >= 0.04


@dataclass
class Step:
    chunks: list[int]


@dataclass
class StandIn:
    """An engine and its runner as far as faults see them: each forward takes its own time."""

    spent: float = 0.0
    device: Any = field(default_factory=lambda: torch.device("cpu"))
    _padded: Any = None

    @property
    def _runner(self) -> "StandIn":
        return self

    def _forward(self, step: Step) -> Step:
        began = time.perf_counter()
        injection.burn(0.002)
        self.spent += time.perf_counter() - began
        return step


@pytest.mark.parametrize(
    ("text", "chunks", "share"),
    [("slow-step=50%", [], 0.5), ("slow-prefill=2.5", [7], 1.5), ("slow-prefill=2.5", [], 0.0)],
)
def test_a_slow_forward_takes_its_own_time_and_a_share_of_it_more(
    text: str, chunks: list[int], share: float
) -> None:
    engine, step = StandIn(), Step(chunks)
    injection.into_engine(parse_all([text]), engine)
    began = time.perf_counter()
    assert all(engine._forward(step) is step for _ in range(10))
    assert time.perf_counter() - began >= engine.spent * (1 + share)


def test_without_faults_nothing_is_wrapped() -> None:
    engine = StandIn()
    injection.into_engine((), engine)
    assert vars(engine).keys() == {"spent", "device", "_padded"}


def test_the_readme_has_every_fault() -> None:
    readme = (Path(__file__).parents[2] / "server/README.md").read_text()
    for name, kind in KINDS.items():
        assert f"| `{name}={kind.example}` | {kind.meaning} |" in readme, name
