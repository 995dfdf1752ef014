"""What is known of a machine's measuring error, and what it says of a run."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.loadgen.test_recorder import record

from prony_loadgen import calibration
from prony_loadgen.calibration import Calibration, Level, keep, kept, level, reads_of
from prony_loadgen.doubts import find_doubts
from prony_loadgen.ground_truth import Truth
from prony_loadgen.record import Arrival, RequestRecord
from prony_loadgen.summary import Measured

GOOD = Level(64, 3000.0, 100, 0.0002, 0.001, 0.00001, 0.0001, 0.001, 1.0, 0.1, 0.01, 0.1)
BAD = replace(GOOD, streams=512, reads_per_s=25_000.0, ttft_p99=0.02)


def known(*levels: Level) -> Calibration:
    return Calibration(levels, 200_000.0, False, "2026-01-01T00:00:00+00:00")


def asked(number: int, error: float = 0.0) -> tuple[RequestRecord, Truth]:
    """A request that was answered after 100 ms, and seen `error` late."""
    sent = float(number)
    writes = (sent + 0.1, sent + 0.12, sent + 0.14)
    told = replace(
        record(number),
        intended=sent,
        sent=sent,
        trace_id=f"{number:032x}",
        arrivals=tuple(Arrival(at + error, 1, "text") for at in writes),
    )
    return told, Truth(f"{number:032x}", sent, writes, 3)


def test_errors_are_those_of_each_request_beside_its_own_truth() -> None:
    pairs = [asked(number, error=0.001 if number else 0.005) for number in range(100)]
    records, truths = [r for r, _ in pairs], [t for _, t in reversed(pairs)]
    found = level(
        64, records, truths, window=(0.0, 100.0), due=100, client={"cpu_share": 0.2},
        server_cpu=0.1,
    )  # fmt: skip
    assert (found.requests, found.pace, found.client_wait) == (100, 1.0, None)
    assert found.ttft_p50 == pytest.approx(0.001) == found.ttft_p99
    assert found.itl_p99 == pytest.approx(0.0, abs=1e-9)
    assert found.reads_per_s == 3.0
    assert found.trusted


def test_a_load_whose_requests_were_not_sent_is_not_trusted() -> None:
    pairs = [asked(number) for number in range(90)]
    found = level(
        64, [r for r, _ in pairs], [t for _, t in pairs], window=(0.0, 100.0), due=100,
        client={"cpu_share": 0.2}, server_cpu=0.1,
    )  # fmt: skip
    assert (found.pace, found.trusted) == (0.9, False)


def test_all_loads_up_to_the_largest_trusted_one_must_be_trusted() -> None:
    later = replace(GOOD, streams=1024, reads_per_s=50_000.0)
    assert known(later, BAD, GOOD).trustworthy == GOOD
    assert known(GOOD, BAD).limit_found and not known(GOOD).limit_found
    assert known(BAD).trustworthy is None
    assert known(BAD).summary()["reads_per_s"] == 0.0


def test_it_is_kept_for_this_machine_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRONY_CACHE", str(tmp_path))
    assert kept() is None
    path = keep(known(GOOD, BAD))
    assert path.is_relative_to(tmp_path)
    assert kept() == known(GOOD, BAD)
    # Another processor, kernel, Python or Prony is another machine.
    other = {**calibration.machine(), "python": "4.0"}
    keep(replace(known(GOOD), machine=other))
    assert kept() == known(GOOD, BAD)
    path.write_text(json.dumps({"schema": 1}))
    assert kept() is None


def test_tokens_that_came_together_are_one_read() -> None:
    together = tuple(Arrival(at, 1, "text") for at in (1.0, 1.0, 1.0, 2.0))
    assert reads_of(replace(record(1), arrivals=together)) == 2


def busy(reads_per_s: int, worker: int = 0) -> Measured:
    records = [
        replace(
            record(second),
            worker=worker,
            arrivals=tuple(
                Arrival(second + n / reads_per_s, 1, "text") for n in range(reads_per_s)
            ),
        )
        for second in range(20)
    ]
    return Measured(tuple(records), (), (0.0, 20.0), "open")


def graded(run: Mapping[str, object], measured: Measured) -> dict[str, str]:
    return {doubt.id: doubt.grade for doubt in find_doubts(run, measured)}


def test_above_the_trustworthy_load_a_run_is_invalid() -> None:
    client = {"calibration": known(replace(GOOD, reads_per_s=300.0), BAD).summary()}
    assert graded({"client": client}, busy(400))["beyond_calibration"] == "invalid"
    assert "beyond_calibration" not in graded({"client": client}, busy(290))


def test_above_what_was_tried_it_is_only_doubtful() -> None:
    client = {"calibration": known(replace(GOOD, reads_per_s=300.0)).summary()}
    assert graded({"client": client}, busy(400))["beyond_calibration"] == "warn"


def test_each_worker_is_held_against_its_own_machine() -> None:
    strong = known(replace(GOOD, reads_per_s=900.0), BAD).summary()
    weak = known(replace(GOOD, reads_per_s=100.0), BAD).summary()
    about = {"host": "h", "pid": 1, "records": 20, "lost": None, "ended_early": False}
    run = {"workers": [{**about, "index": 0, "calibration": weak},
                       {**about, "index": 1, "calibration": strong}]}  # fmt: skip
    assert "beyond_calibration" not in graded(run, busy(400, worker=1))
    assert graded(run, busy(400, worker=0))["beyond_calibration"] == "invalid"


def test_without_a_calibration_nothing_is_said() -> None:
    assert "beyond_calibration" not in graded({"client": {"calibration": None}}, busy(400))


def test_a_client_that_waits_for_a_processor_is_told_apart_from_a_slow_one() -> None:
    starved = graded({"client": {"cpu_share": 0.1, "cpu_wait_share": 0.4}}, busy(10))
    slow = graded({"client": {"cpu_share": 0.95, "cpu_wait_share": 0.01}}, busy(10))
    assert starved["client_starved"] == "note" and "client_cpu" not in starved
    assert slow["client_cpu"] == "warn" and "client_starved" not in slow
