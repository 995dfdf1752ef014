"""Why a run may mislead: its facts go in, doubts with numbers and remedies come out.

`note` explains a number, `warn` weakens it, `invalid` forbids any verdict.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from prony_loadgen.steady import not_steady
from prony_loadgen.summary import (
    KNOWN_OF_INCOMPLETE,
    METRICS,
    NO_ANSWER,
    Measured,
    failed,
    in_flight,
    is_empty,
)
from prony_loadgen.summary import percentile as nearest_rank

Grade = Literal["note", "warn", "invalid"]

SEND_LAG = 0.010  # seconds that are allowed whatever the objective
SEND_LAG_OF_TTFT = 0.02
RATE_MISSED = 0.01
FEW_AT_ONCE = 0.01  # of the answers: a short one may come in one read
CPU_WAIT_SHARE = 0.1  # of the time, all threads together
CALIBRATED_TO = 0.05  # a load is not known more exactly
CPU_SHARE = 0.8  # of one core: the client is one thread a process
SHORT_OUTPUT = 0.95
INPUT_DIFFERS = 0.2
COUNTS_DIFFER = 0.02
IMPLAUSIBLE = 2.0  # times what was asked for and what came
OVER_LIMIT = 0.01  # of the requests
RESENT = 0.01
RETRIED = 0.01
MOSTLY_EMPTY = 0.5
BUNCHED = 0.1
# Under these a percentile is decided by one or two requests.
ENOUGH = {"p99": 100, "p95": 20, "p90": 10}


@dataclass(frozen=True, slots=True)
class Doubt:
    """One reason to distrust a run."""

    id: str
    grade: Grade
    message: str  # what was seen, with its numbers
    remedy: str
    numbers: Mapping[str, float | int | str | None]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "numbers": dict(self.numbers)}


def find_doubts(
    run: Mapping[str, Any], measured: Measured, tightest_ttft: float | None = None
) -> list[Doubt]:
    """All doubts of a run (run.json and its measured part), gravest first.

    `tightest_ttft` is the smallest TTFT limit, in seconds, that the run is judged by.
    """
    found = [
        *_broken_clock(measured),
        *_lost_records(run, measured),
        *_lost_workers(run),
        *_task_errors(run),
        *_send_lag(measured, tightest_ttft),
        *_rate_missed(measured),
        *_no_output(measured),
        *_cut_short(measured),
        *_dropped(measured),
        *_client_busy(run),
        *_client_starved(run),
        *_beyond_calibration(run, measured),
        *_not_steady(measured),
        *_stream_shape(measured),
        *_token_counts(measured),
        *_usage_implausible(measured),
        *_over_limit(measured),
        *_short_output(run, measured),
        *_input_differs(measured),
        *_empty(measured),
        *_resent(measured),
        *_retried(measured),
        *_incomplete(measured),
        *_few_samples(measured),
        *_closed_loop(measured),
        *_profiled(measured),
    ]
    order = ("invalid", "warn", "note")
    return sorted(found, key=lambda doubt: order.index(doubt.grade))


def _broken_clock(measured: Measured) -> Iterator[Doubt]:
    negative = sum(
        any((getattr(record, metric) or 0.0) < 0 for metric in METRICS)
        for record in measured.records
    )
    if negative:
        yield Doubt(
            "negative_duration",
            "invalid",
            f"{negative:,} requests have a negative duration; they are in no figure",
            "this is a bug of Prony or of the records: please report it with the run folder",
            {"requests": negative},
        )


def _lost_records(run: Mapping[str, Any], measured: Measured) -> Iterator[Doubt]:
    made, held = run.get("records"), len(measured.records) + len(measured.outside)
    if isinstance(made, int) and held < made:
        yield Doubt(
            "lost_records",
            "invalid",
            f"requests.jsonl.gz holds {held:,} of the run's {made:,} records: it is cut, damaged "
            "or gone, and so is what they would have shown",
            "take the run folder from where it was made; a copy or an upload may have ended early",
            {"records": held, "of": made},
        )


def _lost_workers(run: Mapping[str, Any]) -> Iterator[Doubt]:
    workers = run.get("workers") or []
    grade: Grade = "warn" if run.get("lost_worker") == "warn" else "invalid"
    for worker in workers:
        name = f"worker {worker['index']} ({worker['host']}, pid {worker['pid']})"
        early = worker["ended_early"]
        if not worker["lost"] and not early:
            continue
        why = worker["lost"] or "it was ended before its part was done"
        yield Doubt(
            "lost_worker",
            grade,
            f"{name} of {len(workers)} is lost: {why}; {worker['records']:,} of its requests are "
            "recorded, the rest of its share counts as dropped",
            "look at that process and machine; --lost-worker warn judges such a run all the same",
            {"worker": worker["index"], "records": worker["records"], "of": len(workers)},
        )
    vague = max((w.get("clock_uncertainty") or 0.0 for w in workers), default=0.0)
    if vague > SEND_LAG:
        yield Doubt(
            "worker_clocks",
            "warn",
            f"the clocks of master and workers are known to within {vague * 1000:.0f} ms only: "
            "their requests may be so far off the common schedule",
            "workers nearer to the master, or on its machine",
            {"uncertainty_s": vague},
        )


def _task_errors(run: Mapping[str, Any]) -> Iterator[Doubt]:
    """Tasks of a locustfile that raised: Locust goes on, with less load than was written."""
    processes = run.get("workers") or [run.get("client") or {}]
    told = [found for process in processes if (found := process.get("task_errors"))]
    if told:
        count = sum(found["count"] for found in told)
        yield Doubt(
            "task_errors",
            "invalid",
            f"the locustfile's own code raised {count:,} times (first: {told[0]['first']}); each "
            "time its user left out what comes after",
            "mend the locustfile; a request that fails raises nothing: look at record.outcome, "
            "and let the SLO judge it",
            {"count": count},
        )


def _send_lag(measured: Measured, tightest_ttft: float | None) -> Iterator[Doubt]:
    lags = [lag for r in measured.records if (lag := r.send_lag) is not None]
    p99 = nearest_rank(lags, 0.99)
    allowed = max(SEND_LAG, SEND_LAG_OF_TTFT * (tightest_ttft or 0.0))
    # Under 100 requests the p99 is the worst one: a single hiccup is no late client.
    late = sum(lag > allowed for lag in lags)
    if measured.loop == "open" and p99 is not None and p99 > allowed and late > 1:
        yield Doubt(
            "send_lag",
            "invalid",
            f"our own client sent late: 99 % of requests within {p99 * 1000:.1f} ms, the worst "
            f"{max(lags) * 1000:.1f} ms, where {allowed * 1000:.0f} ms are allowed; the latencies "
            "are partly its own",
            "a lower rate, a machine with less other work, or a core of its own for the client",
            {"p99_s": p99, "max_s": max(lags), "allowed_s": allowed},
        )


def _rate_missed(measured: Measured) -> Iterator[Doubt]:
    """Open loop: whether what was sent in the window came at the pace of the schedule."""
    sent = [(r.intended, r.sent) for r in measured.records if r.sent is not None]
    if measured.loop != "open" or len(sent) < 2:
        return
    asked_for = max(i for i, _ in sent) - min(i for i, _ in sent)
    took = max(s for _, s in sent) - min(s for _, s in sent)
    if asked_for <= 0:
        return
    # A few ms on a short window are lag, which is judged as such, not a rate.
    slower = took > asked_for * (1 + RATE_MISSED) and took - asked_for > SEND_LAG
    attempts = len(sent) + measured.dropped
    if not slower and measured.dropped <= RATE_MISSED * attempts:
        return
    asked, offered = attempts / asked_for, len(sent) / max(took, asked_for)
    yield Doubt(
        "rate_missed",
        "invalid",
        f"the schedule asked for {asked:.2f} requests/s, {offered:.2f} were sent "
        f"({(1 - offered / asked) * 100:.1f} % fewer); the results are those of a lower load",
        "a lower rate, a machine with less other work, or a core of its own for the client",
        {"asked_per_s": asked, "offered_per_s": offered, "dropped": measured.dropped},
    )


def _no_output(measured: Measured) -> Iterator[Doubt]:
    if not measured.records:
        yield Doubt(
            "no_requests",
            "warn",
            "no request lies in the measurement window",
            "a longer run, or a shorter warm-up",
            {"requests": 0, "outside_window": len(measured.outside)},
        )
    answered = sum(r.ok for r in measured.records)
    empty = sum(is_empty(r) for r in measured.records)
    if empty > MOSTLY_EMPTY * answered:
        share = f"{empty:,} ({empty / answered * 100:.0f} %) without any output"
        yield Doubt(
            "no_output",
            "invalid",
            f"{answered:,} requests were answered, "
            + (share if empty < answered else "but not one with any output"),
            "ask the server by hand (curl); check model, prompt template and max_tokens",
            {"answered": answered, "empty": empty},
        )


def _cut_short(measured: Measured) -> Iterator[Doubt]:
    if measured.interrupted:
        what = "was interrupted" if measured.ended else "has not ended: it goes on, or was killed"
        yield Doubt(
            "interrupted",
            "warn",
            f"the run {what}; {len(measured.records):,} requests were measured",
            "let it run to its end: a part of a run can only show a breach",
            {"requests": len(measured.records)},
        )
    elif measured.stopped_early is not None:
        remedies = {
            "max_total_tokens": "a higher max_total_tokens, or fewer requests",
            NO_ANSWER: "see what became of the server; a duration instead of requests goes on",
        }
        known = [w for start, w in remedies.items() if measured.stopped_early.startswith(start)]
        yield Doubt(
            "stopped_early",
            "note",
            f"the run was stopped early ({measured.stopped_early})",
            known[0]
            if known
            else "none needed for the breach; for full figures set measure.stop_on_breach: false",
            {"requests": len(measured.records)},
        )


def _dropped(measured: Measured) -> Iterator[Doubt]:
    if measured.dropped:
        yield Doubt(
            "dropped",
            "warn",
            f"{measured.dropped:,} of {measured.attempts:,} scheduled requests were never sent; "
            "they count as bad",
            "a lower rate, or a longer drain at the end",
            {"dropped": measured.dropped, "scheduled": measured.attempts},
        )


def _client_busy(run: Mapping[str, Any]) -> Iterator[Doubt]:
    cpu = (run.get("client") or {}).get("cpu_share")
    if cpu is not None and cpu > CPU_SHARE:
        yield Doubt(
            "client_cpu",
            "warn",
            f"the load generator used {cpu * 100:.0f} % of a core; close to its limit it times "
            "tokens late",
            "a lower rate, or a core of its own for the client",
            {"cpu_share": cpu},
        )


def _client_starved(run: Mapping[str, Any]) -> Iterator[Doubt]:
    waited = (run.get("client") or {}).get("cpu_wait_share")
    if waited is not None and waited > CPU_WAIT_SHARE:
        yield Doubt(
            "client_starved",
            "note",
            f"the load generator waited for a processor {waited * 100:.0f} % of the time, while "
            "other work had it: what it was late by is that work's doing",
            "a core of its own for the client (taskset), or a machine of its own",
            {"cpu_wait_share": waited},
        )


def _beyond_calibration(run: Mapping[str, Any], measured: Measured) -> Iterator[Doubt]:
    """Whether a process read more than this machine was found to read right."""
    processes = run.get("workers") or [{"index": 0, **(run.get("client") or {})}]
    for process in processes:
        known = process.get("calibration")
        if known is None:
            continue
        busiest = _reads_per_second(measured, process["index"])
        trusted = known["reads_per_s"]
        if busiest <= trusted * (1 + CALIBRATED_TO):
            continue
        found = known["limit_found"]
        yield Doubt(
            "beyond_calibration",
            "invalid" if found else "warn",
            f"a process of the load generator read {busiest:,.0f} tokens/s, where this machine is "
            f"calibrated up to {trusted:,.0f}"
            + ("; beyond it latencies are partly the client's own" if found else ""),
            "more processes (--processes) on cores of their own, or a lower load"
            if found
            else "prony calibrate without --quick tries higher loads",
            {"reads_per_s": busiest, "trusted_per_s": trusted, "worker": process["index"]},
        )


def _reads_per_second(measured: Measured, worker: int) -> float:
    """What the busiest 5 % of the seconds had; tokens that came together are one read."""
    start, end = measured.window
    seconds: Counter[int] = Counter()
    for record in measured.records + measured.outside:
        if record.worker == worker:
            seconds.update(int(at) for at in {a.at for a in record.arrivals} if start <= at < end)
    if not seconds:
        return 0.0
    every = [float(seconds[second]) for second in range(int(start), math.ceil(end))]
    return nearest_rank(every, 0.95) or 0.0


def _not_steady(measured: Measured) -> Iterator[Doubt]:
    changed = not_steady(measured)
    if changed is not None:
        start, end = measured.window
        yield Doubt(
            "not_steady",
            "warn",
            f"the run had not settled: {changed}; its figures depend on when one looks",
            "a longer warm-up (warmup: auto finds one), a longer run, or a load that is held",
            {"from_s": start, "to_s": end, "changed": changed},
        )


def _stream_shape(measured: Measured) -> Iterator[Doubt]:
    ok = [r for r in measured.records if r.ok]
    whole = sum("not_streamed" in r.flags for r in ok)
    if whole:
        yield Doubt(
            "not_streamed",
            "warn",
            f"{whole:,} of {len(ok):,} answers came whole, not as a stream; they have no TTFT, "
            "TPOT or ITL",
            "make the server (or the proxy before it) stream: stream: true was asked for",
            {"requests": whole, "of": len(ok)},
        )
    at_once = sum("coalesced" in r.flags for r in ok)
    if at_once:
        yield Doubt(
            "coalesced",
            "warn" if at_once > FEW_AT_ONCE * len(ok) else "note",
            f"{at_once:,} of {len(ok):,} answers were streamed, but arrived all at one moment; "
            "their TTFT is that of the whole answer, and they have no TPOT",
            "look for what buffers between server and client: a proxy, compression",
            {"requests": at_once, "of": len(ok)},
        )
    streams = [r for r in ok if "coalesced" not in r.flags and len(r.arrivals) > 1]
    later = sum(len(r.arrivals) - 1 for r in streams)
    together = sum(a.at == b.at for r in streams for a, b in pairwise(r.arrivals))
    if together > BUNCHED * later:
        yield Doubt(
            "bunched",
            "note",
            f"{together:,} of {later:,} chunks arrived at the same moment as the one before; "
            "inter-token latencies are partly those of the network or of the reader",
            "judge the pace by TPOT, which does not depend on it",
            {"chunks": together, "of": later},
        )


def _token_counts(measured: Measured) -> Iterator[Doubt]:
    ok = [r for r in measured.records if r.ok and r.arrivals]
    estimated = sum(r.output_tokens_from == "chunks" for r in ok)
    if estimated:
        yield Doubt(
            "estimated_tokens",
            "note",
            f"in {estimated:,} of {len(ok):,} answers the server told no token count; chunks were "
            "counted instead, so TPOT and tokens/s are estimates",
            "a server that honours stream_options.include_usage",
            {"requests": estimated, "of": len(ok)},
        )
    counted = [r for r in ok if r.output_tokens_from == "usage" and r.output_tokens]
    usage = sum(r.output_tokens or 0 for r in counted)
    told = sum(arrival.tokens for r in counted for arrival in r.arrivals)
    if not counted or abs(usage - told) <= COUNTS_DIFFER * max(usage, told):
        return
    numbers = {"usage_tokens": usage, "stream_tokens": told}
    if usage > told:
        yield Doubt(
            "usage_over_chunks",
            "note",
            f"the server counts {usage:,} output tokens, the streams had {told:,} chunks "
            f"({usage / told:.2f} tokens a chunk); the server's count is used",
            "none needed; inter-token latencies spread each chunk over its tokens",
            numbers,
        )
    else:
        yield Doubt(
            "usage_under_chunks",
            "warn",
            f"the server counts {usage:,} output tokens, but {told:,} arrived in its streams; "
            "the server's count is used, so TPOT may be too high and tokens/s too low",
            "compare one answer by hand: some servers leave reasoning or tool calls out of usage",
            numbers,
        )


def _usage_implausible(measured: Measured) -> Iterator[Doubt]:
    counted = [
        r
        for r in measured.records
        if r.ok and r.output_tokens_from == "usage" and r.asked_output_tokens is not None
    ]
    usage = sum(r.output_tokens or 0 for r in counted)
    asked = sum(r.asked_output_tokens or 0 for r in counted)
    told = sum(arrival.tokens for r in counted for arrival in r.arrivals)
    if usage > IMPLAUSIBLE * max(asked, told):
        yield Doubt(
            "usage_implausible",
            "invalid",
            f"the server counts {usage:,} output tokens where {asked:,} were asked for and its "
            f"streams had {told:,}: neither its tokens/s nor TPOT can be believed",
            "compare usage.completion_tokens of one answer with its text, by hand (curl)",
            {"usage_tokens": usage, "asked": asked, "stream_tokens": told},
        )


def _over_limit(measured: Measured) -> Iterator[Doubt]:
    pairs = [
        (r.asked_output_tokens, r.output_tokens)
        for r in measured.records
        if r.ok and r.asked_output_tokens is not None and r.output_tokens is not None
    ]
    over = [(asked, got) for asked, got in pairs if got > asked]
    if len(over) > OVER_LIMIT * len(pairs):
        asked, got = max(over, key=lambda pair: pair[1] - pair[0])
        yield Doubt(
            "over_limit",
            "warn",
            f"{len(over):,} of {len(pairs):,} answers had more output tokens than were asked for "
            f"(the worst {got:,} for {asked:,}): the load was heavier than planned, or the count "
            "is wrong",
            "see whether the server takes max_tokens as we send it, and what its usage counts",
            {"requests": len(over), "of": len(pairs), "worst_asked": asked, "worst_got": got},
        )


def _resent(measured: Measured) -> Iterator[Doubt]:
    sent = [r for r in measured.records if r.sent is not None]
    resent = sum("resent" in r.flags for r in sent)
    if resent:
        yield Doubt(
            "resent",
            "warn" if resent > RESENT * len(sent) else "note",
            f"{resent:,} of {len(sent):,} requests were sent a second time, because the server "
            "closed their kept connection as they came; the time lost is in their latency",
            "a keep-alive timeout of server and proxies that is longer than the pauses between "
            "requests; where they fail at once and close, their logs say so",
            {"requests": resent, "of": len(sent)},
        )


def _retried(measured: Measured) -> Iterator[Doubt]:
    again = [r for r in measured.records if r.earlier]
    if again:
        tries, of = sum(len(r.earlier) for r in again), len(measured.records)
        yield Doubt(
            "retried",
            "warn" if len(again) > RETRIED * of else "note",
            f"{len(again):,} of {of:,} requests were tried again, {tries:,} times in all, because "
            "the target refused them at first; each counts once, with its wait in its latency, "
            f"and the target was asked {of + tries:,} times",
            "a lower rate, or a higher limit at the target; without `retry` each refusal is a "
            "failed request",
            {"requests": len(again), "attempts": tries, "of": of},
        )


def _short_output(run: Mapping[str, Any], measured: Measured) -> Iterator[Doubt]:
    pairs = [
        (r.asked_output_tokens, r.output_tokens)
        for r in measured.records
        if r.ok and r.asked_output_tokens is not None and r.output_tokens is not None
    ]
    asked, got = sum(a for a, _ in pairs), sum(g for _, g in pairs)
    if not pairs or got >= SHORT_OUTPUT * asked:
        return
    output = (run.get("scenario") or {}).get("output") or {}
    forced = isinstance(output, Mapping) and output.get("mode") == "forced"
    yield Doubt(
        "short_output",
        "warn" if forced else "note",
        f"{asked:,} output tokens were asked for, {got:,} came ({got / asked * 100:.0f} %): the "
        "load was lighter than planned",
        "the engine does not take ignore_eos: plan with natural lengths (output.mode: natural)"
        if forced
        else "none needed where lengths are natural; output.mode: forced sets them on engines "
        "that take ignore_eos",
        {"asked": asked, "got": got},
    )


def _input_differs(measured: Measured) -> Iterator[Doubt]:
    pairs = [
        (r.asked_input_tokens, r.prompt_tokens)
        for r in measured.records
        if r.ok and r.asked_input_tokens is not None and r.prompt_tokens is not None
    ]
    asked, got = sum(a for a, _ in pairs), sum(g for _, g in pairs)
    if pairs and asked and abs(got - asked) > INPUT_DIFFERS * asked:
        yield Doubt(
            "input_differs",
            "note",
            f"prompts of {asked:,} tokens were planned, the server counts {got:,} "
            f"({got / asked:.2f} times): its tokenizer cuts finer or coarser, or its template adds",
            "none needed if load is compared by the server's own count; else plan other lengths",
            {"asked": asked, "got": got},
        )


def _empty(measured: Measured) -> Iterator[Doubt]:
    empty = sum(is_empty(r) for r in measured.records)
    if empty:
        yield Doubt(
            "empty",
            "warn",
            f"{empty:,} of {len(measured.records):,} requests finished without any output; they "
            "are in no latency",
            "look at their finish_reason in requests.jsonl.gz",
            {"requests": empty, "of": len(measured.records)},
        )


def _incomplete(measured: Measured) -> Iterator[Doubt]:
    incomplete = [r for r in measured.records if r.outcome == "incomplete"]
    if incomplete and not measured.cut_short:
        started = sum(bool(r.arrivals) for r in incomplete)
        yield Doubt(
            "incomplete",
            "note",
            f"{len(incomplete):,} requests were still running at the end ({started:,} had begun "
            f"to answer); of these only {', '.join(sorted(KNOWN_OF_INCOMPLETE - {'send_lag'}))} "
            "can be known",
            "a longer run, so that they matter less, or a longer drain",
            {"requests": len(incomplete), "started": started},
        )


def _few_samples(measured: Measured) -> Iterator[Doubt]:
    n = sum((r.ok and not is_empty(r)) or failed(r) for r in measured.records) + measured.dropped
    short = [name for name, enough in ENOUGH.items() if 0 < n < enough]
    if short:
        # One in a hundred needs a hundred to be seen once.
        wanted = math.ceil(ENOUGH[short[0]])
        yield Doubt(
            "few_samples",
            "note",
            f"{n:,} requests are too few for {', '.join(short)}: there it is one or two requests "
            "that decide",
            f"at least {wanted:,} measured requests, better ten times as many",
            {"requests": n, "wanted": wanted},
        )


def _profiled(measured: Measured) -> Iterator[Doubt]:
    start, end = measured.window
    lost = sum(
        start <= r.intended < end and in_flight(r, measured.profiled) for r in measured.outside
    )
    if measured.profiled:
        spans = ", ".join(f"{a:.1f} to {b:.1f} s" for a, b in measured.profiled)
        yield Doubt(
            "profiled",
            "note",
            f"a profiler was at work from {spans}: the {lost:,} requests in flight then are in no "
            "figure and in no objective, and that time counts for no rate",
            "a capture is kept to 10 s at most; a longer run has more besides",
            {"requests": lost, "seconds": round(end - start - measured.seconds, 3)},
        )


def _closed_loop(measured: Measured) -> Iterator[Doubt]:
    if measured.loop == "closed":
        yield Doubt(
            "closed_loop",
            "note",
            "closed loop: a slow server is asked less often, so these latencies cannot show what "
            "a queue would have done",
            "arrivals: {process: poisson, rate: ...} for what users who keep coming would feel",
            {"requests": len(measured.records)},
        )
