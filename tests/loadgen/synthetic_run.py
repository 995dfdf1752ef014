"""A run as the load generator would leave it, made from a seed: for tests of what reads runs."""

import math
import random
from collections.abc import Sequence
from typing import Any

from prony_loadgen.doubts import find_doubts
from prony_loadgen.record import Arrival, Outcome, RequestRecord
from prony_loadgen.summary import measured, percentile, summarise
from prony_slo.gate import judge
from prony_slo.objective import load_slo

WARMUP = 3.0
DURATION = 27.0
RATE = 15.0
SLO = ("ttft p95 < 300ms", "tpot p99 < 30ms", "errors < 3%")


def synthetic_run(
    seed: int = 7,
    requests: int = 400,
    failures: float = 0.01,
    loop: str = "open",
    slo: Sequence[str] = SLO,
) -> tuple[dict[str, Any], list[RequestRecord]]:
    """run.json as a dict, and its records: a steady server with one hiccup and a few failures."""
    rng = random.Random(seed)
    duration = DURATION * requests / 400
    records = []
    at = 0.0
    for index in range(requests):
        at += rng.expovariate(requests / duration)
        records.append(_record(rng, index, at, duration, failures))
    return run_of(records, loop=loop, seed=seed, slo=slo), records


def _record(
    rng: random.Random, index: int, at: float, duration: float, failures: float
) -> RequestRecord:
    lag = rng.expovariate(4000)
    sent = at + lag
    cls = "chat" if rng.random() < 0.7 else "summarise"
    asked_in = round(rng.lognormvariate(5 if cls == "chat" else 6, 0.4))
    asked_out = max(2, round(rng.lognormvariate(3.4, 0.5)))
    base: dict[str, Any] = {
        "id": f"r{index:05d}",
        "cls": cls,
        "intended": at,
        "sent": sent,
        "asked_input_tokens": asked_in,
        "asked_output_tokens": asked_out,
        "trace_id": f"{rng.getrandbits(128):032x}",
        "span_id": f"{rng.getrandbits(64):016x}",
    }
    if rng.random() < failures:
        outcome: Outcome = rng.choice(("http_error", "timeout", "stream_error"))
        status, error = {
            "http_error": (503, '503 Service Unavailable: {"error": {"message": "queue full"}}'),
            "timeout": (200, "no token for 5.0 s"),
            "stream_error": (200, "engine died <b>in</b> the stream"),
        }[outcome]
        return RequestRecord(
            **base,
            headers=sent + 0.004,
            arrivals=(),
            ended=sent + (5.0 if outcome == "timeout" else 0.01),
            outcome=outcome,
            status=status,
            error=error,
        )
    hiccup = 0.25 * max(0.0, 1 - abs(at - duration * 0.6) / (duration * 0.04))
    cold = 0.08 * math.exp(-at)
    first = sent + 0.018 + asked_in * 0.00004 + rng.expovariate(90) + hiccup + cold
    pace = rng.lognormvariate(math.log(0.0085), 0.12)
    times = [first]
    for _ in range(asked_out - 1):
        times.append(times[-1] + max(0.0004, rng.gauss(pace, pace * 0.2)))
    return RequestRecord(
        **base,
        headers=sent + 0.003,
        arrivals=tuple(Arrival(time, 1, "text") for time in times),
        ended=times[-1] + 0.001,
        outcome="ok",
        status=200,
        finish_reason="length",
        usage={"prompt_tokens": asked_in, "completion_tokens": asked_out},
        prompt_tokens=asked_in,
        output_tokens=asked_out,
        output_tokens_from="usage",
        text="A Prony brake measures <torque> & power: " + "the drum turns, " * 4,
    )


def run_of(
    records: list[RequestRecord],
    loop: str = "open",
    seed: int = 7,
    warmup: float = WARMUP,
    slo: Sequence[str] = SLO,
) -> dict[str, Any]:
    """run.json for these records, summed up and judged by the real summary and gate."""
    end = max((record.intended for record in records), default=warmup) + 0.05
    window = [min(warmup, end / 2), end]
    late = sum(1 for record in records if (record.send_lag or 0) > 0.01)
    lags = [record.send_lag for record in records if record.send_lag is not None]
    run: dict[str, Any] = {
        "schema": 1,
        "prony": "0.1.0",
        "run_id": "20261130-174501-chat",
        "command": "prony run chat --target http://127.0.0.1:8000 --seed 7 --slo chat",
        "scenario": {
            "name": "chat",
            "dialect": "openai-chat",
            "arrivals": {"process": "poisson", "rate": RATE}
            if loop == "open"
            else {"process": "closed", "users": 8},
            "warmup": warmup,
            "seed": seed,
        },
        "target": {"url": "http://127.0.0.1:8000", "model": "tiny", "dialect": "openai-chat"},
        "seed": seed,
        "started_at": "2026-11-30T17:45:01.250Z",
        "origin_unix": 1796060701.25,
        "ended_at": "2026-11-30T17:45:31.900Z",
        "interrupted": False,
        "stopped_early": None,
        "loop": loop,
        "window": window,
        "schedule": {
            "planned": len(records),
            "offered": len(records),
            "on_time": len(records) - late,
            "late": late,
            "dropped": 0,
            "send_lag_p50": percentile(lags, 0.5),
            "send_lag_p99": percentile(lags, 0.99),
            "asked_rate": RATE,
            "offered_rate": len(records) / max(end, 1e-9),
        },
        "host": {"os": "Linux 6.1", "python": "3.11.7", "cpus": 2, "cpu": "Example CPU"},
        "versions": {"prony": "0.1.0", "locust": "2.47.0", "httptools": "0.9.0"},
        "client": {"cpu_share": 0.21},
    }
    part = measured(run, records)
    run["summary"] = summarise(part)
    doubts = find_doubts(run, part)
    run |= {"doubts": [doubt.to_json() for doubt in doubts], "verdict": None, "exit_code": 0}
    run["objectives"] = []
    return run | (judge(load_slo(list(slo)), part, doubts).to_json() if slo else {})
