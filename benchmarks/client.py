"""How many streamed tokens a second one processor can receive and time: Prony against its peers.

Every client reads from the same ground-truth server, which has a processor of its own and sends
20 tokens a write as fast as they are taken; 32 streams, kept alive, 500 tokens an answer. Clients
take turns on the other processor; a ratio is the median over rounds of that round's two figures.

    python benchmarks/client.py [--quick] [--rounds N] [--seconds S]

fasthttp is Locust's FastHttpUser reading lines; aiohttp runs on asyncio's default loop. All note
the time of each token; "ends" decodes the JSON of the first and last events only, "all" of each.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.streaming_clients import processors, run_client

from prony_loadgen.ground_truth import GroundTruth, Pace

STREAMS, TOKENS, PER_WRITE = 32, 500, 20
VARIANTS = [(client, how) for how in ("ends", "all") for client in ("prony", "fasthttp", "aiohttp")]
Variant = tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 rounds of 1.5 s")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.quick else 5)
    seconds = options.seconds or (1.5 if options.quick else 4.0)
    ours, servers = processors()
    figures: dict[Variant, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for number in range(rounds):
        order = VARIANTS if number % 2 == 0 else VARIANTS[::-1]
        for variant in order:
            figures[variant].append(_measure(variant, seconds, ours, servers))
    _print(figures)


def _measure(variant: Variant, seconds: float, ours: int, servers: int) -> dict[str, float]:
    client, how = variant
    with GroundTruth(Pace(tokens=TOKENS, per_write=PER_WRITE), cpu=servers) as server:
        load = {
            "url": server.url,
            "streams": STREAMS,
            "tokens": TOKENS,
            "seconds": seconds,
            "cycle": 0.0,
            "json": how,
            "times": False,
        }
        before = server.cpu_seconds()
        seen = run_client(client, load, ours)
        server_cpu = server.cpu_seconds() - before
    return {
        "tokens_per_s": seen["tokens"] / seconds,
        "us_per_token": seen["cpu"] / seen["tokens"] * 1e6,
        "server_share": server_cpu / seconds,
    }


def _print(figures: dict[Variant, list[dict[str, float]]]) -> None:
    def median(variant: Variant, figure: str) -> float:
        return statistics.median(each[figure] for each in figures[variant])

    def over(peer: str, how: str) -> float:
        pairs = zip(figures["prony", how], figures[peer, how], strict=True)
        return statistics.median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in pairs)

    print(f"{'client':10} {'JSON of':8} {'tokens/s':>10} {'µs CPU/token':>13} {'server CPU':>11}")
    for variant in VARIANTS:
        print(
            f"{variant[0]:10} {variant[1]:8} {median(variant, 'tokens_per_s'):10,.0f} "
            f"{median(variant, 'us_per_token'):13.2f} {median(variant, 'server_share'):11.0%}"
        )
    result = {
        "tokens_per_s": round(median(("prony", "ends"), "tokens_per_s")),
        "us_per_token": round(median(("prony", "ends"), "us_per_token"), 3),
        "over_fasthttp": round(over("fasthttp", "ends"), 2),
        "over_aiohttp": round(over("aiohttp", "ends"), 2),
        "us_per_token_all_json": round(median(("prony", "all"), "us_per_token"), 3),
        "over_fasthttp_all_json": round(over("fasthttp", "all"), 2),
        "over_aiohttp_all_json": round(over("aiohttp", "all"), 2),
        "rounds": len(figures["prony", "ends"]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
