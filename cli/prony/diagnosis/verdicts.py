"""What can hold a server back: one function a verdict, evidence in, a finding or nothing out.

The table RULES at the end is what there is; judge.py asks each of them. A finding's cost is the
part of a mean request's time that it explains, in seconds: what one would save without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from prony.diagnosis.evidence import Client, Evidence, Server
from prony.diagnosis.thresholds import limit
from prony_loadgen.words import ms


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that holds a server back, as it was seen."""

    cost: float  # seconds of a mean request
    confidence: float  # 0..1
    why: str  # a sentence with the numbers that decided
    numbers: Mapping[str, float | str | None] = field(default_factory=dict)
    harm: bool = False  # it counts whatever its share of the latency is


Decide = Callable[[Evidence], Found | None]


# --- the instrument and the way to the server ---------------------------------------------------


def load_generator(e: Evidence) -> Found | None:
    """Our own client sent late, or had no processor to do it with."""
    client = e.client
    if client is None or not client.e2e:
        return None
    ttft = client.ttft or client.e2e
    share, both = client.send_lag / ttft, (client.send_lag + client.read_lag) / ttft
    if not client.doubts or share < limit("send_lag") or both < limit("client_lag"):
        return None
    return Found(
        client.send_lag + client.connect,
        0.95,
        f"requests left {_ms(client.send_lag)} late on average and {_ms(client.send_lag_p99)} at "
        f"the 99th percentile, {_percent(share)} of their TTFT, and what came back waited up to "
        f"{_ms(client.read_lag)} for us",
        {
            "send_lag_ms": client.send_lag * 1000,
            "send_lag_p99_ms": client.send_lag_p99 * 1000,
            "read_lag_ms": client.read_lag * 1000,
            "client_cpu_share": client.cpu_share,
            "client_cpu_wait_share": client.cpu_wait_share,
        },
        harm=True,
    )


def upstream_limit(e: Evidence) -> Found | None:
    """A fixed number of requests is let through at a time, before the server."""
    client, server = e.client, e.server
    before, found = e.outside_before, client.cap if client is not None else None
    if client is None or server is None or found is None or before is None or not client.e2e:
        return None
    waited = min(before, client.until_headers or 0.0)
    if waited < limit("blamed") * client.e2e or not _is_capped(client):
        return None
    inside = _of_requests(server)
    return Found(
        waited,
        0.6 + 0.35 * (found.share - limit("capped")) / (1 - limit("capped")),
        f"requests waited {_ms(waited)} for the answer's headers, and {_percent(found.share)} of "
        f"that time exactly {found.answered} others were being answered: {client.in_flight:.1f} "
        f"were in flight at the client, {inside:.1f} in the server",
        {
            "let_through": found.answered,
            "share_of_waiting": found.share,
            "in_flight_client": client.in_flight,
            "in_flight_server": inside,
            "before_server_ms": before * 1000,
        },
    )


def network(e: Evidence) -> Found | None:
    """The way between, or a reader that takes what comes too slowly."""
    client, server = e.client, e.server
    if client is None or server is None or not client.e2e:
        return None
    back, before, front = e.outside_stream or 0.0, e.outside_before or 0.0, e.front or 0.0
    # Without the server's own word, a stream that is written late may wait for its reader.
    told = server.write_wait
    waited = (e.front_stream or 0.0) if told is None else min(front, told)
    capped = _is_capped(client)
    # A loop that is late holds up the first bytes too; what it explains is not the network's.
    late = _loop_wait(server)
    before = 0.0 if capped or late is None else max(0.0, before - late)
    cost = back + waited + before
    if cost < limit("blamed") * client.e2e:
        return None
    return Found(
        cost,
        0.5 if before > waited + back or (told is None and waited > back) else 0.9,
        f"streams took {_ms(back)} longer to read than to write, the server waited {_ms(waited)} "
        f"for readers, and {_ms(before)} passed before it saw a request",
        {
            "on_the_way_back_ms": back * 1000,
            "write_wait_ms": waited * 1000,
            "before_server_ms": before * 1000,
        },
    )


def admission(e: Evidence) -> Found | None:
    """Requests are refused: who comes back later has waited as long as they were told to."""
    client, server = e.client, e.server
    waited = 0.0
    if client is not None:
        share = client.refused / client.requests
        again = client.retry_after or client.e2e or 0.0
        waited = client.retry_wait if client.retried else 0.0
    elif server is not None and server.rejected is not None and server.requests:
        share = server.rejected / (server.requests + server.rejected)
        again = server.e2e or 0.0
    else:
        return None
    retried = client.retried / client.requests if client is not None else 0.0
    if share + retried < limit("refused"):
        return None
    why = f"{_percent(share + retried)} of the requests were refused (429 or 503)"
    if waited:
        why += f"; {_percent(retried)} were let in when they came again: {_ms(waited)} a request"
    if share and again:
        why += f"; whoever comes back as told has waited {_ms(again)}"
    return Found(
        share * again + waited,
        0.95,
        why,
        {"refused_share": share, "retry_after_s": again, "retried_share": retried,
         "retry_wait_ms": waited * 1000},
        harm=True,
    )  # fmt: skip


def failures(e: Evidence) -> Found | None:
    """Requests fail otherwise: broken streams, errors, time-outs."""
    client = e.client
    if client is None:
        return None
    lost = client.failed - client.refused
    share = lost / client.requests
    if share < limit("failed"):
        return None
    return Found(
        share * (client.e2e or 0.0),
        0.95,
        f"{lost:,} of {client.requests:,} requests failed ({_percent(share)})",
        {"failed_share": share},
        harm=True,
    )


# --- the server's front end ---------------------------------------------------------------------


def tokenizing(e: Evidence) -> Found | None:
    """Making token ids takes long, and on the event loop holds up everybody else meanwhile."""
    server = e.server
    own = e.own
    if server is None or server.tokenize is None or not own or not server.requests:
        return None
    load = min(0.9, server.requests / server.seconds * server.tokenize)
    # One server with constant service (M/D/1): what a request waits for those before it.
    behind = load * server.tokenize / (2 * (1 - load))
    lag = 0.0 if server.loop_lag is None else server.loop_lag
    waited = min(max(behind, lag), (e.outside_before or 0.0) + (e.front or 0.0))
    cost = server.tokenize + waited
    if server.tokenize < 0.5 * limit("blamed") * own or cost < limit("blamed") * own:
        return None
    return Found(
        cost,
        0.9,
        f"a prompt took {_ms(server.tokenize)} to tokenize, {_percent(server.tokenize / own)} of "
        f"a request's time, and requests waited about {_ms(waited)} for others' prompts",
        {"tokenize_ms": server.tokenize * 1000, "waited_ms": waited * 1000,
         "loop_lag_ms": None if server.loop_lag is None else server.loop_lag * 1000},
    )  # fmt: skip


def blocked_loop(e: Evidence) -> Found | None:
    """Something else than tokenizing holds up the event loop."""
    server, own = e.server, e.own
    if server is None or server.loop_lag is None or not own:
        return None
    lag, p99 = _other_lag(server), server.loop_lag_p99 or 0.0
    around = (e.outside_before or 0.0) + (e.front or 0.0)
    prompts = tokenizing(e)
    if prompts is not None:  # what requests waited for others' prompts is told there
        around = max(0.0, around - (prompts.cost - (server.tokenize or 0.0)))
    cost = min(around, LOOP_TURNS * lag)
    least = max(limit("blamed") * own, limit("around") * (e.e2e or own))
    if p99 < limit("loop_lag") or cost < least:
        return None
    return Found(
        cost,
        0.85,
        f"the event loop came {_ms(server.loop_lag)} late on average and up to {_ms(p99)} at the "
        f"99th percentile, of which tokenizing explains {_ms(server.loop_lag - lag)}; requests "
        f"spent {_ms(around)} around it",
        {"loop_lag_ms": server.loop_lag * 1000, "loop_lag_p99_ms": p99 * 1000,
         "around_ms": around * 1000, "loop_cpu_share": server.loop_cpu},
    )  # fmt: skip


def front_end(e: Evidence) -> Found | None:
    """Time in front of the engine, of a server that does not say what it does there."""
    server = e.server
    if server is None or server.loop_lag is not None or not e.e2e:
        return None
    front = max(0.0, (e.front or 0.0) - (e.front_stream or 0.0))
    cost = front + (e.outside_before or 0.0)
    if cost < limit("blamed") * e.e2e or _is_capped(e.client):
        return None
    return Found(
        cost,
        0.5,
        f"{_ms(front)} of a request's time passed in the server before its engine, and "
        f"{_ms(e.outside_before or 0.0)} before it saw the request",
        {"front_ms": front * 1000,
         "before_server_ms": (e.outside_before or 0.0) * 1000},
    )  # fmt: skip


# --- waiting for a place ------------------------------------------------------------------------


def kv_capacity(e: Evidence) -> Found | None:
    """Requests wait, or are thrown out again, for lack of room in the KV cache."""
    server = e.server
    if server is None or not e.e2e:
        return None
    thrown_out = _thrown_out(server)
    cost = (server.queue or 0.0) + thrown_out
    preempted = (server.preemptions or 0.0) > 0.05
    if cost < limit("queue") * e.e2e or not (preempted or _short_of(server) == "kv"):
        return None
    full = server.kv is not None and server.kv >= limit("kv_full")
    return Found(
        cost,
        0.95 if preempted else 0.85 if full else 0.6,
        f"requests waited {_ms(server.queue or 0.0)}, the KV cache was {_percent(server.kv)} full "
        f"while they did, and each was preempted {server.preemptions or 0:.2f} times "
        f"({_ms(thrown_out)} of waiting again)",
        {"queue_ms": (server.queue or 0.0) * 1000, "kv": server.kv, "kv_most": server.kv_most,
         "preemptions_per_request": server.preemptions, "batch": server.batch,
         "max_num_seqs": server.slots},
    )  # fmt: skip


def batch_slots(e: Evidence) -> Found | None:
    """All places of the batch are taken while the KV cache has room."""
    server = e.server
    if server is None or not e.e2e or _short_of(server) != "slots":
        return None
    cost = server.queue or 0.0
    if cost < limit("queue") * e.e2e:
        return None
    told = server.slots is not None
    most = server.slots if told else server.running_most
    return Found(
        cost,
        0.9 if told else 0.6,
        f"requests waited {_ms(cost)} while {server.batch or server.running or 0:.1f} of "
        f"{most or 0:.0f} places were taken and the KV cache was {_percent(server.kv)} full",
        {"queue_ms": cost * 1000, "batch": server.batch, "max_num_seqs": server.slots,
         "running_most": server.running_most, "kv": server.kv},
    )  # fmt: skip


def prefill_budget(e: Evidence) -> Found | None:
    """Prompts go in small pieces, each of which pays for a whole iteration."""
    server = e.server
    if server is None or not e.e2e or not _fills_budget(server):
        return None
    overhead = _fixed_share(server)
    if overhead is None:
        return None
    waits = _waits_for_budget(server)
    cost = overhead * ((server.prefill or 0.0) + waits)
    if cost < limit("blamed") * e.e2e:
        return None
    filled = (server.prefill_step_tokens or 0.0) / (server.budget or inf)
    pieces = (server.prompt_tokens or 0.0) / (server.budget or inf)
    return Found(
        cost,
        0.85,
        f"a prompt of {server.prompt_tokens or 0:.0f} tokens took {pieces:.1f} iterations of at "
        f"most {server.budget:.0f} tokens, which were {_percent(filled)} full; "
        f"{_percent(overhead)} of such an iteration's time does not depend on its tokens",
        {"prompt_tokens": server.prompt_tokens, "max_num_batched_tokens": server.budget,
         "filled": filled, "fixed_share": overhead, "queue_ms": (server.queue or 0.0) * 1000,
         "prefill_ms": (server.prefill or 0.0) * 1000},
    )  # fmt: skip


# --- what the model does ------------------------------------------------------------------------


def prefill_compute(e: Evidence) -> Found | None:
    """Long prompts keep the model busy before the first token."""
    server = e.server
    if server is None or not e.e2e or server.prefill is None:
        return None
    if (server.prefix_hits or 0.0) > limit("prefix_hits"):
        return None
    fixed = _fixed_share(server)
    waits = _waits_for_budget(server) if _fills_budget(server) else 0.0
    cost = (server.prefill + waits) * (1 - (fixed or 0.0))
    if server.prefill < limit("prefill") * e.e2e or cost < limit("prefill") * e.e2e:
        return None
    if fixed is not None and fixed > 0.5:
        return None  # it is not the prompts' tokens that take the time
    return Found(
        cost,
        0.85 if fixed is not None else 0.6,
        f"{_percent(server.prefill / e.e2e)} of a request's time was prefill "
        f"({_ms(server.prefill)} for {server.prompt_tokens or 0:.0f} prompt tokens), and "
        f"{_percent(server.prefix_hits or 0.0)} of the tokens came from the prefix cache",
        {"prefill_ms": server.prefill * 1000, "prompt_tokens": server.prompt_tokens,
         "prefix_hits": server.prefix_hits, "fixed_share": fixed},
    )  # fmt: skip


def prefill_interference(e: Evidence) -> Found | None:
    """Others' prompts hold up the tokens of those who already stream."""
    client, server = e.client, e.server
    piece = None if server is None else _first(server.prefill_step_tokens, server.prompt_tokens)
    if not e.e2e or (piece is not None and piece < limit("long_piece")):
        return None
    longer, cost = (None, None) if server is None else _held_up(server)
    spiky = coincident = None
    if client is not None and client.gap_p50:
        spiky = (client.gap_p99 or 0.0) / client.gap_p50
        coincident = client.spikes.with_others
        # Where the engine tells how long its iterations take, that decides whose fault it is.
        seen = client.spikes.cost * (1.0 if longer is not None else coincident)
        cost = seen if cost is None else min(cost, seen)
        # Few long prompts are in no p99 of gaps: they may cost much all the same.
        uneven = longer is not None or spiky >= limit("spiky")
        if not uneven or (longer is None and coincident < limit("coincident")):
            return None
    if cost is None or cost < limit("blamed") * e.e2e:
        return None
    both = longer is not None and (coincident or 0.0) >= limit("coincident")
    told = "" if longer is None else f"; an iteration with a prompt took {_ms(longer)} longer"
    return Found(
        cost,
        0.9 if both else 0.6,
        f"gaps between tokens were {spiky or 0:.0f} times the usual at the 99th percentile, "
        f"{_percent(coincident)} of it while a newcomer's prompt was worked on{told}",
        {"gap_p99_over_p50": spiky, "with_newcomers": coincident,
         "held_up_ms": _thousand(longer)},
    )  # fmt: skip


def _held_up(server: Server) -> tuple[float | None, float | None]:
    """By how much iterations with prompts are longer, and what that cost a request in decode.

    Where the engine does not time its iterations by kind, only a bound of the cost: how uneven the
    gaps are inside it. What is spiky outside of it only is not its iterations' fault.
    """
    tokens, p50, p99 = server.generation_tokens or 0.0, server.itl_p50, server.itl_p99
    decode, mixed = server.step("decode"), server.steps.get("mixed")
    if decode is not None and mixed is not None and mixed.count:
        longer = max(0.0, mixed.seconds - decode)
        share = mixed.count / (mixed.count + server.steps["decode"].count)
        return longer, tokens * share * longer
    if p50 and p99 and p99 / p50 < limit("spiky"):
        return None, 0.0
    if server.itl is None or p50 is None:
        return None, None
    return None, tokens * max(0.0, server.itl - p50)


def decode_bandwidth(e: Evidence) -> Found | None:
    """Each token costs a reading of all weights: slow alone already, whatever else runs."""
    server, client = e.server, e.client
    if server is None or not e.e2e or server.decode is None:
        return None
    if server.decode < limit("decode") * e.e2e:
        return None
    dram = server.gpu_dram
    read = dram is not None and dram > limit("dram")
    late = client is not None and bool({"tpot", "itl", "e2e"} & client.breached)
    host = _host_share(server)
    if not (read or late) or (host is not None and host > _host_limit(server)):
        return None
    alone = client.tpot_alone if client is not None else None
    pace = client.tpot if client is not None else None
    if alone is not None and pace is not None and pace > limit("growth") * alone:
        return None
    return Found(
        server.decode,
        0.3 if host is None else 0.8 if read else 0.5 if alone is not None else 0.3,
        f"{_percent(server.decode / e.e2e)} of a request's time was decode, {_ms(pace)} a token "
        f"and {_ms(alone)} where a request was alone"
        + (f"; {_percent(dram)} of the memory's bandwidth was in use" if dram is not None else ""),
        {"decode_ms": server.decode * 1000, "tpot_ms": _thousand(pace),
         "tpot_alone_ms": _thousand(alone), "dram": dram, "host_share": host},
    )  # fmt: skip


def batch_growth(e: Evidence) -> Found | None:
    """Tokens come slower the more requests share a batch: as designed, but it is what one feels."""
    client, server = e.client, e.server
    if client is None or server is None or not client.tpot or not client.tpot_alone or not e.e2e:
        return None
    times = client.tpot / client.tpot_alone
    crowd = server.batch or server.running or 0.0
    if times < limit("growth") or crowd < limit("crowd"):
        return None
    grown = (client.tpot - client.tpot_alone) * max(0.0, (client.output_tokens or 1.0) - 1)
    cost = max(0.0, grown - client.spikes.cost)
    if cost < limit("blamed") * e.e2e:
        return None
    return Found(
        cost,
        0.6,
        f"a token took {_ms(client.tpot)} with {crowd:.1f} requests in a batch, and "
        f"{_ms(client.tpot_alone)} where a request was alone",
        {"tpot_ms": client.tpot * 1000, "tpot_alone_ms": client.tpot_alone * 1000, "batch": crowd},
    )


def host_bound(e: Evidence) -> Found | None:
    """Between two forwards the host computes: the scheduler, Python, launches."""
    found = _on_the_host(e, lambda s: {n: t for n, t in s.host.items() if n not in OUTPUT})
    waits = None if e.profile is None else e.profile.host_wait
    if waits is None or waits < limit("host_wait") or not e.e2e:
        return found
    cost = waits * _in_engine(e)
    if found is not None and found.cost > cost:
        return found
    return Found(
        cost,
        0.9,
        f"a profile shows the GPU waiting {_percent(waits)} of its time for the host",
        {"gpu_waits_for_host": waits},
    )


def step_output(e: Evidence) -> Found | None:
    """What is done with each iteration's tokens before the next: logging, callbacks."""
    return _on_the_host(e, lambda server: {n: s for n, s in server.host.items() if n in OUTPUT})


def host_device_copies(e: Evidence) -> Found | None:
    """Copies between host and device, as a profile shows them."""
    profile = e.profile
    if profile is None or profile.memcpy_share is None or not e.e2e:
        return None
    if profile.memcpy_share < limit("copies"):
        return None
    size = profile.memcpy_bytes
    told = "" if size is None else f" ({size / 1e6:,.0f} MB of them)"
    return Found(
        profile.memcpy_share * _in_engine(e),
        0.85,
        f"{_percent(profile.memcpy_share)} of the profiled time went into copies{told}",
        {"memcpy_share": profile.memcpy_share, "memcpy_bytes": size},
    )


# --- memory, clocks, stalls, capacity -----------------------------------------------------------


def memory_exhausted(e: Evidence) -> Found | None:
    """Iterations ran out of memory and were tried again, smaller."""
    server = e.server
    if server is None:
        return None
    times, retries = server.out_of_memory or 0.0, server.device_retries or 0.0
    if not times and not retries:
        return None
    prefill = server.steps.get("prefill"), server.steps.get("mixed")
    prompts = sum(s.count for s in prefill if s is not None)
    where = "with long prompts" if (server.prompt_tokens or 0) > 512 and prompts else "in decode"
    # Each failed try costs its iteration once more.
    step = server.step("all") or 0.0
    cost = times * step / max(server.requests or 1.0, 1.0)
    return Found(
        cost,
        0.95,
        f"{times:.0f} iterations ran out of memory and were tried again with fewer tokens, mostly "
        f"{where}; the allocator had to give memory back {retries:.0f} times",
        {"out_of_memory": times, "alloc_retries": retries},
        harm=True,
    )


def memory_growth(e: Evidence) -> Found | None:
    """Resident memory rises all the time: harmless now, until there is none left."""
    server = e.server
    if server is None or server.memory_growth is None or not server.memory:
        return None
    growth, straight = server.memory_growth, server.memory_steady or 0.0
    least = max(limit("leak"), limit("leak_share") * server.memory)
    long = server.seconds >= 60  # in less, a server that warms up grows almost as straight
    straightest = limit("leak_straight" if long else "leak_straight_short")
    if growth < least or straight < straightest:
        return None
    return Found(
        0.0,
        0.8 if long else 0.5,
        f"resident memory grew by {growth / 1e6:.2f} MB/s to {server.memory / 1e6:,.0f} MB, in a "
        f"straight line (r² {straight:.2f}) over {server.seconds:.0f} s",
        {"growth_bytes_per_s": growth, "memory_bytes": server.memory, "r_squared": straight},
        harm=True,
    )


def throttling(e: Evidence) -> Found | None:
    """The GPU's clocks are held back by heat or power."""
    server = e.server
    if server is None or server.gpu_throttled is None:
        return None
    if server.gpu_throttled < limit("throttled"):
        return None
    return Found(
        server.gpu_throttled * 0.1 * (e.e2e or 0.0),  # a tenth of the clock, as a rule
        0.7,
        f"the GPU's clocks were held back {_percent(server.gpu_throttled)} of the time",
        {"throttled_share": server.gpu_throttled},
        harm=True,
    )


def periodic_stalls(e: Evidence) -> Found | None:
    """Everything stands still at equal distances."""
    client = e.client
    if client is None or client.silences.period is None or not client.e2e:
        return None
    silences = client.silences
    assert silences.period is not None and silences.length is not None
    lag = None if e.server is None else e.server.loop_lag
    if lag is not None and lag > 0.5 * silences.mean_wait:
        return None  # the event loop stands still then, while the engine goes on
    if e.server is not None and silences.length < 2 * (_with_prompts(e.server) or 0.0):
        return None  # so long an iteration with a prompt takes
    took = None if e.server is None else e.server.tokenize
    if took is not None and silences.length < FEW_PROMPTS * took and tokenizing(e) is not None:
        return None  # so long the loop tokenizes some prompts that came together
    if e.server is not None and e.server.longer_steps:
        shorter = [n for bound, n in e.server.longer_steps.items() if bound <= silences.length / 2]
        if shorter and min(shorter) < silences.count / 2:
            return None  # the engine went on meanwhile: it worked on prompts
    if silences.cost < limit("blamed") * client.e2e:
        return None
    return Found(
        silences.cost,
        0.9 if silences.count >= 5 else 0.75,
        f"every {silences.period:.2f} s nothing came for {_ms(silences.length)}, {silences.count} "
        f"times: {_ms(silences.cost)} of a mean request",
        {"period_s": silences.period, "length_ms": silences.length * 1000,
         "count": silences.count},
    )  # fmt: skip


def saturation(e: Evidence) -> Found | None:
    """More comes than the server can do."""
    client = e.client
    if client is None:
        return None
    told = [s for s in client.stages if s.e2e is not None]
    knee = next((i for i, s in enumerate(told) if s.done < limit("knee") * s.offered), None)
    if len(told) > 1 and knee is not None and knee > 0:
        before, at, last = told[knee - 1], told[knee], told[-1]
        cost = max(0.0, (last.e2e or 0.0) - (told[0].e2e or 0.0))
        return Found(
            cost,
            0.6,
            f"up to {before.offered:.3g} requests/s the server kept up (E2E {_ms(before.e2e)}); of "
            f"{at.offered:.3g} it did {at.done:.3g}",
            {"capacity_per_s": before.offered, "offered_per_s": at.offered,
             "done_per_s": at.done},
            harm=True,
        )  # fmt: skip
    if not client.piled_up or e.server is None:
        return None
    return Found(
        e.server.queue or 0.0,
        0.4,
        f"requests piled up: {client.in_flight:.1f} were in flight on average, more came than "
        "was done with",
        {"in_flight": client.in_flight},
        harm=True,
    )


# --- what several of them need ------------------------------------------------------------------

LOOP_TURNS: Final = 4.0  # how often a request waits for the event loop, one after the other
FEW_PROMPTS: Final = 4  # that come together where requests come as they like
OUTPUT: Final = frozenset({"emit", "process_batch_result"})  # stages that hand tokens out


def _on_the_host(e: Evidence, chosen: Callable[[Server], Mapping[str, float]]) -> Found | None:
    server = e.server
    if server is None or not server.busy or not e.e2e:
        return None
    stages = chosen(server)
    # A stall of the whole server lies in some stage, but is not what each iteration costs.
    still = e.client.silences.total if e.client is not None and e.client.silences.period else 0.0
    seconds = max(0.0, sum(stages.values()) - still)
    share = seconds / max(server.busy - still, 1e-9)
    if share < _host_limit(server):
        return None
    if server.prefill is None or server.decode is None:
        return None
    cost = share * (server.prefill + server.decode)
    if cost < limit("blamed") * e.e2e:
        return None
    name = max(stages, key=lambda each: stages[each])
    most = _steps(server)
    each = "" if most is None else f", {_ms(seconds / most)} of each iteration"
    spot = _spot(e)
    return Found(
        cost,
        min(0.95, 0.6 + share / 3),
        f"{_percent(share)} of the engine's busy time the model did not run{each}; most of it was "
        f"in {name} ({_percent(stages[name] / server.busy)})"
        + ("" if spot is None else f"; a profile saw {_percent(spot[1])} of it in {spot[0]}"),
        {"share": share, "stage": name, "stage_share": stages[name] / server.busy,
         "engine_cpu_share": server.engine_cpu, "function": None if spot is None else spot[0],
         "function_share": None if spot is None else spot[1]},
    )  # fmt: skip


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _in_engine(e: Evidence) -> float:
    """A request's time in prefill and decode; all of it where that is not told."""
    if e.server is None or e.server.prefill is None or e.server.decode is None:
        return e.e2e or 0.0
    return e.server.prefill + e.server.decode


def _spot(e: Evidence) -> tuple[str, float] | None:
    """The function that a profile saw the engine's thread in, outside the model, and its share."""
    thread = None if e.profile is None else e.profile.thread("engine")
    return None if thread is None else thread.host_spot


def _steps(server: Server) -> float | None:
    found = server.steps.get("all")
    return found.count if found is not None and found.count else None


def _host_share(server: Server) -> float | None:
    return sum(server.host.values()) / server.busy if server.busy else None


def _host_limit(server: Server) -> float:
    return limit("host_large") if server.gpu else limit("host")


def _short_of(server: Server) -> str | None:
    """What keeps those who wait from going in: kv, slots or budget; None where nobody waits."""
    if not server.queue:
        return None
    if (server.preemptions or 0.0) > 0.05:
        return "kv"
    kv = server.kv or 0.0
    batch = server.batch if server.batch is not None else server.running
    if server.slots:
        if batch is not None and batch / server.slots >= limit("slots_full"):
            return "slots"
    elif server.running_most and server.running_held and kv < limit("kv_free"):
        # An engine that does not tell its limit runs just so many whenever others wait.
        held = server.running_held / server.running_most >= limit("held")
        return "slots" if held else None
    if kv >= limit("kv_full"):
        return "kv"
    if _fills_budget(server):
        return "budget"
    # Its places are free and its iterations are not full: only room for tokens is left, where some
    # of it is taken. An engine that stands still lets wait, too, and is short of nothing.
    taken = max(kv, server.kv_most or 0.0)
    return "kv" if server.slots and taken >= limit("kv_taken") else None


def _fills_budget(server: Server) -> bool:
    if server.budget is None or server.prefill_step_tokens is None:
        return False
    return server.prefill_step_tokens >= limit("budget_full") * server.budget


def _waits_for_budget(server: Server) -> float:
    return (server.queue or 0.0) if _short_of(server) == "budget" else 0.0


def _fixed_share(server: Server) -> float | None:
    """The part of an iteration with a prompt that does not depend on its tokens.

    At least what an iteration without a prompt takes; and one of few tokens is mostly overhead.
    """
    decode, mean = server.step("decode"), _with_prompts(server)
    if decode is None or mean is None:
        return None
    few = 1 - server.budget / limit("piece") if server.budget else 0.0
    return min(1.0, max(decode / mean if mean else 0.0, few))


def _with_prompts(server: Server) -> float | None:
    """How long an iteration takes that works on a prompt, the mean."""
    kinds = [s for kind in ("prefill", "mixed") if (s := server.steps.get(kind)) and s.count]
    if not kinds:
        return None
    return sum(s.count * s.seconds for s in kinds) / sum(s.count for s in kinds)


def _thrown_out(server: Server) -> float:
    """What a preempted request waited for its place again: decode that was no iteration's.

    Iterations of large batches take longer and are more requests' at a time, so that a request's
    tokens took longer than the mean iteration without any preemption: no more is told of than that
    each preempted request waited all its time.
    """
    step = server.step("all")
    if not server.preemptions or step is None or server.decode is None:
        return 0.0
    waited = server.decode - (server.generation_tokens or 0.0) * step
    return max(0.0, min(waited, server.preemptions * (server.e2e or server.decode)))


def _loop_wait(server: Server) -> float | None:
    """What a request waited for the event loop; None where the server does not tell its lag."""
    return None if server.loop_lag is None else LOOP_TURNS * server.loop_lag


def _other_lag(server: Server) -> float:
    """The loop's mean lag that tokenizing on it does not explain."""
    if server.loop_lag is None:
        return 0.0
    took, each = server.tokenize or 0.0, (server.requests or 0.0) / server.seconds
    return max(0.0, server.loop_lag - each * took * took / 2)


def _is_capped(client: Client | None) -> bool:
    found = None if client is None else client.cap
    if found is None:
        return False
    # While all stands still for a moment the number inside is the same, too, but few wait.
    return found.share >= limit("capped") and found.waited >= limit("waiters")


def _of_requests(server: Server) -> float:
    """How many requests the server had at a time."""
    if server.requests is None or server.e2e is None:
        return (server.running or 0.0) + (server.waiting or 0.0)
    return server.requests * server.e2e / server.seconds


def _ms(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else ms(seconds)


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{share * 100:.0f} %"


def _thousand(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


RULES: Final[Mapping[str, Decide]] = {
    "load_generator": load_generator,
    "upstream_limit": upstream_limit,
    "kv_capacity": kv_capacity,
    "batch_slots": batch_slots,
    "prefill_budget": prefill_budget,
    "prefill_compute": prefill_compute,
    "prefill_interference": prefill_interference,
    "decode_bandwidth": decode_bandwidth,
    "batch_growth": batch_growth,
    "host_bound": host_bound,
    "step_output": step_output,
    "host_device_copies": host_device_copies,
    "memory_exhausted": memory_exhausted,
    "memory_growth": memory_growth,
    "tokenizing": tokenizing,
    "blocked_loop": blocked_loop,
    "front_end": front_end,
    "network": network,
    "throttling": throttling,
    "admission": admission,
    "failures": failures,
    "saturation": saturation,
    "periodic_stalls": periodic_stalls,
}
