"""Measured runs for tests of the judge, made from the latencies that a test wants in view."""

import math
from collections.abc import Sequence
from typing import Any

from prony_loadgen.record import Arrival, Outcome, RequestRecord
from prony_loadgen.summary import Measured
from prony_slo.promise import Condition, Objective, Share, SloFile


def request(
    at: float = 0.0,
    *,
    ttft: float | None = 0.1,
    tpot: float = 0.01,
    tokens: int = 10,
    outcome: Outcome = "ok",
    **facts: Any,
) -> RequestRecord:
    """One request intended at `at`: its first token after `ttft`, the others `tpot` apart.

    `ttft=None` makes one without any output.
    """
    times = [] if ttft is None else [at + ttft + i * tpot for i in range(tokens)]
    known: dict[str, Any] = {
        "id": f"r{at:g}",
        "cls": "chat",
        "intended": at,
        "sent": at,
        "headers": at,
        "arrivals": tuple(Arrival(t, 1, "text") for t in times),
        "ended": times[-1] if times else at,
        "outcome": outcome,
        "finish_reason": "length" if outcome == "ok" else None,
        "output_tokens": len(times) or None,
        "output_tokens_from": "usage" if times else None,
    }
    return RequestRecord(**(known | facts))


def refused(at: float = 0.0, after: float = 0.001) -> RequestRecord:
    """One request that the server refused quickly."""
    return request(
        at, ttft=None, outcome="connect_error", ended=at + after, error="connection refused"
    )


def cut(at: float = 0.0, *, ended: float, ttft: float | None = None) -> RequestRecord:
    """One request that was still running when the run ended, at `ended`."""
    return request(at, ttft=ttft, tokens=2, outcome="incomplete", ended=ended, output_tokens=None)


def many(n: int, **facts: Any) -> list[RequestRecord]:
    """`n` equal requests, ten a second."""
    return [request(i / 10, **facts) for i in range(n)]


def with_slow(n: int, slow: int, *, fast: float = 0.1, slowly: float = 2.0) -> list[RequestRecord]:
    """`n` requests, `slow` of them with a slow first token, evenly among the others."""
    places = {int((i + 0.5) * n / slow) for i in range(slow)}
    return [request(i / 10, ttft=slowly if i in places else fast) for i in range(n)]


def with_burst(n: int, slow: int) -> list[RequestRecord]:
    """`n` requests, of which the first `slow` have a slow first token, one after the other."""
    return [request(i / 10, ttft=2.0 if i < slow else 0.1) for i in range(n)]


def run_of(records: Sequence[RequestRecord], **facts: Any) -> Measured:
    """A measured run of these records; its window ends after the last one begins."""
    last = max((record.intended for record in records), default=9.0)
    known: dict[str, Any] = {
        "records": tuple(records),
        "outside": (),
        "window": (0.0, math.floor(last) + 1.0),
        "loop": "open",
    }
    return Measured(**(known | facts))


def slo_of(*objectives: Objective, **facts: Any) -> SloFile:
    return SloFile("test", objectives, **facts)


def ttft_under(limit: float, bad_share: float, **facts: Any) -> Objective:
    """The objective "at most `bad_share` of requests have a TTFT above `limit` seconds"."""
    return Objective("ttft", Share((Condition("ttft", limit),), bad_share), "test.yaml:1", **facts)


def errors_under(bad_share: float, **facts: Any) -> Objective:
    return Objective("errors", Share((), bad_share), "test.yaml:2", **facts)
