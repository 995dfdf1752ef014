"""Stalls and their reasons, from the arrival times of many streams: records in, findings out."""

import bisect
import statistics
from collections.abc import Sequence
from itertools import pairwise

from prony.diagnosis.evidence import Cap, Silences, Spikes
from prony_loadgen.record import RequestRecord

SPIKE = 3.0  # times the usual gap
SILENCE = 6.0  # times the usual time between two arrivals of a stream
SHORTEST = 0.02  # seconds; shorter silences are the pace of the streams
TOGETHER = 0.003  # seconds between two arrivals that one iteration made
NEXT = 8  # newcomers that are looked at
FEWEST = 3  # silences that can show a period
ON_TIME = 0.12  # of a period: how far a silence may be off
LONG_WAIT = 0.25  # of the mean time to headers
SEEN = 0.5  # of the silences that a period makes, the fewest that must have been seen
SIMILAR = 0.35  # of the median length


def gaps(records: Sequence[RequestRecord]) -> list[float]:
    """Every gap between two arrivals of one request, shortest first; those of one read are none."""
    return sorted(
        after.at - before.at
        for record in records
        for before, after in pairwise(record.arrivals)
        if after.at > before.at
    )


def spikes(records: Sequence[RequestRecord], usual: float | None) -> Spikes:
    """What gaps of over SPIKE times the usual one took, and whether they came with newcomers.

    An iteration that works on a new prompt holds up all others: the newcomer was sent before the
    gap's end, and its own first token comes after the gap began.
    """
    if not records or not usual:
        return Spikes(0.0, 0.0)
    starts = sorted((r.arrivals[0].at, r.sent or 0.0, r.id) for r in records if r.arrivals)
    took = with_others = 0.0
    for record in records:
        for before, after in pairwise(record.arrivals):
            gap = after.at - before.at
            if gap <= SPIKE * usual:
                continue
            took += gap - usual
            # Of a long prompt only the last piece ends in a token, so any of it counts.
            at = bisect.bisect_right(starts, (before.at + TOGETHER, 0.0, ""))
            if any(sent < after.at and i != record.id for _, sent, i in starts[at : at + NEXT]):
                with_others += gap - usual
    return Spikes(took / len(records), with_others / took if took else 0.0)


def silences(
    records: Sequence[RequestRecord], usual: float | None, window: tuple[float, float]
) -> Silences:
    """When nothing came though something was in flight, and whether such moments have a period."""
    shortest = max(SILENCE * (usual or 0.0), SHORTEST)
    moments = sorted({a.at for r in records for a in r.arrivals})
    # Of one that was tried again nobody knows from when on it was not only waiting to be.
    flights = sorted((r.sent, r.ended) for r in records if r.sent is not None and not r.earlier)
    found: list[tuple[float, float]] = []
    total = cost = 0.0
    under_way: list[tuple[float, float]] = []
    sent_before = 0
    for before, after in pairwise(moments):
        if after - before < shortest:
            continue
        more = bisect.bisect_left(flights, (after, 0.0), lo=sent_before)
        under_way = [each for each in (*under_way, *flights[sent_before:more]) if each[1] >= after]
        sent_before = more
        # A request that came in the meantime waited from then on.
        waited = [max(before, sent) for sent, _ in under_way]
        if not waited or after - min(waited) < shortest:
            continue
        silent = after - min(waited)
        found.append((min(waited), silent))
        total += silent
        cost += sum(after - since for since in waited)
    if not found:
        return Silences(0, None, 0.0, None, 0.0)
    length = statistics.median(silent for _, silent in found)
    period = _period([(at, silent) for at, silent in found], length)
    seconds = max(window[1] - window[0], 1e-9)
    mean_wait = sum(silent * silent for _, silent in found) / 2 / seconds
    return Silences(len(found), length, total, period, cost / max(len(records), 1), mean_wait)


def _period(found: Sequence[tuple[float, float]], length: float) -> float | None:
    """The distance at which silences come again; None where they come as they like.

    They are told by their ends, since what was in flight decides when one is seen to begin. Some
    of them nobody sees, for lack of requests: a distance of several periods counts too.
    """
    largest = max(silent for _, silent in found)
    ends = [at + silent for at, silent in found if silent >= (1 - SIMILAR) * largest]
    if len(ends) < FEWEST:
        return None
    apart = [after - before for before, after in pairwise(ends)]
    period = min(apart)
    if period <= length:
        return None
    off = [abs(each / period - round(each / period)) for each in apart]
    expected = (ends[-1] - ends[0]) / period + 1
    if statistics.mean(off) > ON_TIME or len(ends) < SEEN * expected:
        return None
    return statistics.median(each / round(each / period) for each in apart)


def cap(records: Sequence[RequestRecord]) -> Cap | None:
    """Whether requests without a header waited for one of a fixed number of others to end.

    A pool of connections, before the server or at its door, looks so: the next goes in only when
    one comes out. None where nobody waited.
    """
    events: list[tuple[float, int, int]] = []  # time, change of waiting, change of answered
    for record in records:
        if record.sent is None or record.headers is None:
            continue
        events += [(record.sent, 1, 0), (record.headers, -1, 1), (record.ended, 0, -1)]
    # One that ends as another comes in makes room for it first.
    events.sort(key=lambda each: (each[0], each[2], each[1]))
    waiting = answered = 0
    time_at: dict[int, float] = {}
    for (at, more, change), (until, _, _) in pairwise(events):
        waiting, answered = waiting + more, answered + change
        if waiting and until > at:
            time_at[answered] = time_at.get(answered, 0.0) + until - at
    total = sum(time_at.values())
    if not total:
        return None
    most = max(time_at, key=lambda n: time_at[n])
    waits = [r.headers - r.sent for r in records if r.headers is not None and r.sent is not None]
    long = sum(wait > LONG_WAIT * total / len(waits) for wait in waits)
    return Cap(most, time_at[most] / total, long / len(waits))
