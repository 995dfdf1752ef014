"""How wrong each client's latencies are: what it reports less what the server really did.

A ground-truth server on a processor of its own answers with the first token after 100 ms (also
jittered by 50) and a token every 20 ms after it, 50 a request, and notes the clock just before each
write. Streams are kept alive and warmed by one request each; their starts are spread evenly over
one cycle, then request follows request. Requests are matched by their trace id.

    python benchmarks/fidelity.py [--quick] [--runs N] [--seconds S]

The figure is p99 of the client's latencies less p99 of the truth's; beside it the p99 of the errors
request by request. Times are from sending, connecting apart. `--quick` runs Prony alone.
"""

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.streaming_clients import processors, run_client

from prony_loadgen.ground_truth import GroundTruth, Pace, Truth

TTFT, ITL, TOKENS = 0.1, 0.02, 50
CYCLE = TTFT + (TOKENS - 1) * ITL


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run, in ms."""

    ttft_p50: float
    ttft_p99: float
    ttft_each_p99: float
    itl_p99: float
    itl_each_p99: float
    connect_p99: float
    requests: int
    pace: float  # tokens sent, as a share of what the pace allows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Prony alone, 3 runs of 2 s a level")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    runs = options.runs or (3 if options.quick else 5)
    seconds = options.seconds or (2.0 if options.quick else 6.0)
    levels = [128, 256, 512]
    rows: list[tuple[str, int, float]] = [("prony", level, 0.0) for level in levels]
    if not options.quick:
        rows += [("prony", level, 0.05) for level in levels]
        rows += [(peer, n, j) for j in (0.0, 0.05) for n in levels for peer in PEERS]
        rows += [("prony", 1024, 0.0), ("prony", 2048, 0.0)]
    print(
        "client     streams jitter | dTTFT ms p50    p99  each p99 | dITL ms p99  each p99 | "
        "connect p99  requests  pace"
    )
    result: dict[str, float] = {}
    for client, streams, jitter in rows:
        figures = _median([_measure(client, streams, jitter, seconds) for _ in range(runs)])
        _print(client, streams, jitter, figures)
        if client == "prony" and not jitter:
            result[f"ttft_err_p99_ms_{streams}"] = round(figures.ttft_p99, 3)
            if streams in levels:
                worst = max(result.get("itl_err_p99_ms", 0.0), abs(figures.itl_p99))
                result["itl_err_p99_ms"] = round(worst, 4)
        elif client != "prony" and not jitter:
            result[f"{client}_ttft_err_p99_ms_{streams}"] = round(figures.ttft_p99, 2)
    print(json.dumps({**result, "runs": runs}))


PEERS = ("fasthttp", "aiohttp")


def _measure(client: str, streams: int, jitter: float, seconds: float) -> Figures:
    ours, servers = processors()
    pace = Pace(ttft=TTFT, jitter=jitter, itl=ITL, tokens=TOKENS)
    with GroundTruth(pace, cpu=servers) as server:
        load = {
            "url": server.url,
            "streams": streams,
            "tokens": TOKENS,
            "seconds": seconds,
            "cycle": CYCLE,
            "json": "ends",
            "times": True,
        }
        report = run_client(client, load, ours)
        truth = {each.id: each for each in server.truth()}
    pairs = [(truth[seen[0]], seen[1], seen[2]) for seen in report["seen"]]
    if not pairs:
        raise SystemExit(f"{client}: no request ended within {seconds:g} s")
    return _figures(pairs, report["connects"], streams, seconds)


def _figures(
    pairs: list[tuple[Truth, float, list[float]]],
    connects: list[float],
    streams: int,
    seconds: float,
) -> Figures:
    theirs = [true.ttft for true, _, _ in pairs]
    ours = [arrivals[0] - sent for _, sent, arrivals in pairs]
    each = [a - b for a, b in zip(ours, theirs, strict=True)]
    true_gaps = [b - a for true, _, _ in pairs for a, b in pairwise(true.writes)]
    gaps = [b - a for _, _, arrivals in pairs for a, b in pairwise(arrivals)]
    gap_errors = [abs(a - b) for a, b in zip(gaps, true_gaps, strict=False)]
    tokens = sum(true.tokens for true, _, _ in pairs)
    ideal = streams * TOKENS * (seconds / CYCLE)
    return Figures(
        ttft_p50=1000 * (_percentile(ours, 0.5) - _percentile(theirs, 0.5)),
        ttft_p99=1000 * (_percentile(ours, 0.99) - _percentile(theirs, 0.99)),
        ttft_each_p99=1000 * _percentile(each, 0.99),
        itl_p99=1000 * (_percentile(gaps, 0.99) - _percentile(true_gaps, 0.99)),
        itl_each_p99=1000 * _percentile(gap_errors, 0.99),
        connect_p99=1000 * _percentile(connects, 0.99) if connects else float("nan"),
        requests=len(pairs),
        pace=tokens / ideal,
    )


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _median(runs: list[Figures]) -> Figures:
    names = Figures.__dataclass_fields__
    return Figures(
        **{name: statistics.median(getattr(run, name) for run in runs) for name in names}
    )


def _print(client: str, streams: int, jitter: float, figures: Figures) -> None:
    print(
        f"{client:10} {streams:7} {jitter * 1000:6.0f} |"
        f"{figures.ttft_p50:13.3f} {figures.ttft_p99:6.3f} {figures.ttft_each_p99:9.3f} |"
        f"{figures.itl_p99:12.4f} {figures.itl_each_p99:9.4f} |"
        f"{figures.connect_p99:12.2f} {figures.requests:9.0f} {figures.pace:5.0%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
