"""The client's view of a run, for a diagnosis: run.json and records go in, a Client comes out."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from prony.diagnosis.evidence import Client, StageSeen
from prony.diagnosis.stalls import cap, gaps, silences, spikes
from prony_loadgen.doubts import find_doubts
from prony_loadgen.record import RequestRecord
from prony_loadgen.steady import not_steady
from prony_loadgen.summary import Measured, failed, in_flight, is_check, is_empty, percentile

OURS = ("send_lag", "rate_missed")  # doubts that say that the load generator could not keep up
REFUSED = (429, 503)
FEW = 1.5  # requests in flight: whoever had no more beside it was alone


def seen_by_client(
    run: Mapping[str, Any],
    part: Measured,
    span: tuple[float, float] | None = None,
    left_out: Sequence[tuple[float, float]] = (),
) -> Client | None:
    """`span` is when the server was watched; requests are looked at that ended meanwhile.

    Those in flight at a time that is left out are not. None where no request was made.
    """
    everything = [r for r in (*part.records, *part.outside) if not is_check(r)]
    start, end = span or part.window
    looked_at = list(part.records)
    if span:
        watched = (r for r in everything if start < r.ended <= end)
        looked_at = [r for r in watched if not in_flight(r, left_out)]
    if not looked_at:
        return None
    good = [r for r in looked_at if r.ok and not is_empty(r) and r.ttft is not None]
    found = gaps(good)
    usual = percentile(found, 0.5)
    lags = [lag for r in looked_at if (lag := r.send_lag) is not None]
    refused = [r for r in looked_at if r.status in REFUSED]
    until_headers = _mean([_until_headers(r) for r in good])
    doubts = find_doubts(run, part)
    client = run.get("client") or {}
    concurrent = _in_flight(everything)
    return Client(
        requests=len(looked_at),
        answered=len(good),
        seconds=end - start,
        e2e=_mean([r.e2e for r in good]),
        ttft=_mean([r.ttft for r in good]),
        send_lag=_mean([r.send_lag for r in good]) or 0.0,
        send_lag_p99=percentile(lags, 0.99) or 0.0,
        read_lag=_mean([r.client_lag for r in good]) or 0.0,
        connect=sum(_connecting(r) for r in good) / max(len(good), 1),
        until_headers=until_headers,
        in_flight=concurrent(start, end),
        prompt_tokens=_mean([r.prompt_tokens for r in good]),
        output_tokens=_mean([r.output_tokens for r in good]),
        tpot=_mean([r.tpot for r in good]),
        tpot_alone=_alone(good, concurrent),
        gap_p50=usual,
        gap_p99=percentile(found, 0.99),
        spikes=spikes(good, usual),
        silences=silences(everything, usual, (start, end)),
        cap=cap([r for r in everything if not r.earlier]),
        failed=sum(failed(r) for r in looked_at),
        refused=len(refused),
        retry_after=_mean([r.retry_after for r in refused]),
        retried=sum(_let_in_later(r) for r in good),
        retry_wait=_mean([_until_last_try(r, until_headers or 0.0) for r in good]) or 0.0,
        cpu_share=client.get("cpu_share"),
        cpu_wait_share=client.get("cpu_wait_share"),
        doubts=tuple(d.message for d in doubts if d.id in OURS and d.grade == "invalid"),
        breached=frozenset(
            metric
            for each in run.get("objectives") or ()
            if each.get("verdict") == "breach"
            for metric in each.get("conditions") or ()
        ),
        stages=_stages(part),
        piled_up="pile up" in (not_steady(part) or ""),
    )


def _mean(values: Sequence[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _connecting(record: RequestRecord) -> float:
    if record.connected is None or record.sent is None or record.earlier:
        return 0.0
    return max(0.0, record.connected - record.sent)


def _until_headers(record: RequestRecord) -> float | None:
    if record.headers is None or record.sent is None or record.earlier:
        return None
    return max(0.0, record.headers - max(record.sent, record.connected or record.sent))


def _let_in_later(record: RequestRecord) -> bool:
    return any(attempt.status in REFUSED for attempt in record.earlier)


def _until_last_try(record: RequestRecord, usual: float) -> float:
    """From its first try to its last, whose own time is not kept: headers take as long as usual."""
    if record.headers is None or record.sent is None or not record.earlier:
        return 0.0
    return max(record.earlier[-1].ended - record.sent, record.headers - record.sent - usual)


def _in_flight(records: Sequence[RequestRecord]) -> Callable[[float, float], float]:
    """How many were in flight at a time, on average between two moments."""
    sent = [r.sent for r in records if r.sent is not None]
    ended = [r.ended for r in records if r.sent is not None]
    times = np.array([*sent, *ended])
    order = np.argsort(times, kind="stable")
    times = times[order]
    count = np.cumsum(np.array([1.0] * len(sent) + [-1.0] * len(ended))[order])
    spent = np.concatenate(([0.0], np.cumsum(count[:-1] * np.diff(times))))

    def mean(start: float, end: float) -> float:
        if not len(times) or end <= start:
            return 0.0
        return float(np.diff(np.interp([start, end], times, spent))[0]) / (end - start)

    return mean


def _alone(
    good: Sequence[RequestRecord], in_flight: Callable[[float, float], float]
) -> float | None:
    """The median TPOT of the tenth of the requests that had the fewest others beside them.

    None where even these had company.
    """
    beside = sorted(
        (in_flight(r.arrivals[0].at, r.arrivals[-1].at), r.tpot) for r in good if r.tpot is not None
    )
    least = beside[: max(3, len(beside) // 10)]
    if len(least) < 3 or statistics.fmean(n for n, _ in least) > FEW:
        return None
    return statistics.median(tpot for _, tpot in least)


def _stages(part: Measured) -> tuple[StageSeen, ...]:
    everything = part.records + part.outside
    found = []
    for stage in part.stages:
        seconds = stage.end - stage.start
        mine = [r for r in everything if stage.start <= r.intended < stage.end]
        if seconds <= 0 or not mine:
            continue
        done = sum(r.ok and stage.start <= r.ended < stage.end for r in everything)
        times = [r.e2e for r in mine if r.ok and r.e2e is not None]
        found.append(
            StageSeen(stage.name, len(mine) / seconds, done / seconds, percentile(times, 0.5))
        )
    return tuple(found)
