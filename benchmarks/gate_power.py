"""How often the gate cries wolf, and how often it sees a slower engine: a simulated server, judged.

One engine with continuous batching is simulated: a step decodes every running sequence and prefills
up to 2,048 tokens (first come, first served, 64 slots), takes 7 ms + 0.05 ms a decoding sequence +
0.03 ms a prefilled token, with 5 % jitter, and about every 50 s there is a stall of 120 ms. Prompts
and outputs are lognormal (medians 400 and 150). A slower engine has longer steps. A pair is two
runs of one seed, with own jitter: 1,000 requests in open loop at 60 % load, after 600 of warm-up,
and a closed loop of 32 users. Machine noise multiplies all that a run measured; half its variance
belongs to the session, which the two runs of a pair share.

Pairs are drawn from a pool of simulated ones and go, as changes, through the product's own gate
(prony_slo.regression: p50 TTFT, matched tail, output tokens/s; 3 to 10 pairs; a noise profile of
five earlier gates, 20 degrees of freedom). The naive rule beside it: two runs, "p99 within 10 %".
The absolute part judges runs whose true share of bad requests is 1.01 %, against a limit of 1 %.

    python benchmarks/gate_power.py [--quick] [--trials N] [--pool N] [--seed N]
"""

import argparse
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from prony_slo import intervals
from prony_slo.effective import effective
from prony_slo.noise import NoiseProfile
from prony_slo.pairs import Change, log_ratio, matched_shift
from prony_slo.promise import Check, Regression
from prony_slo.regression import decided, judge_changes, regression_code

STEP, PER_DECODE, PER_PREFILL = 0.007, 0.00005, 0.00003  # seconds
BUDGET, SLOTS, JITTER = 2048, 64, 0.05
STALL, STALL_EVERY = 0.120, 50.0  # seconds, both exponential
RATE, USERS = 12.2, 32  # 60 % of the capacity of 20.4 requests/s
WARMUP, REQUESTS = 600, 1000
SPEEDS = {"unchanged": 1.0, "5 % slower": 1.05, "10 % slower": 1.10}
NOISE = 0.02  # sd of a run
LIMIT, TRUE_SHARE, RUNS = 0.01, 0.0101, 5

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PoolPair:
    """What two runs of one seed gave, without machine noise: changes, + is worse."""

    changes: dict[str, float]  # id of the check -> log ratio
    p99: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Tally:
    """What gates said, as shares of them."""

    passed: float
    failed: float
    undecided: float
    pairs: float  # mean number of pairs that were run


def main() -> None:
    options = _options()
    began = time.perf_counter()
    pool_size = options.pool or (120 if options.quick else 500)
    trials = options.trials or (200 if options.quick else 1000)
    pools, ttfts = _pools(options.seed, pool_size)
    rng = np.random.default_rng(options.seed)

    strict = _regression(p50=0.05, tail=0.10, rate=0.05)
    wide = _regression(p50=0.10, tail=0.10, rate=0.10)
    cases = [
        ("unchanged", NOISE, strict),
        ("5 % slower", NOISE, strict),
        ("10 % slower", NOISE, strict),
        ("unchanged", 0.05, wide),
        ("10 % slower", 0.05, wide),
    ]
    print(f"{trials:,} gates each, drawn from {pool_size} simulated pairs a speed")
    print(
        f"{'engine':12}{'noise':>6}{'tolerances':>15}{'pass':>8}{'fail':>8}{'undecided':>11}"
        f"{'pairs':>7}{'naive p99 fails':>17}"
    )
    tallies = []
    naive = []
    for engine, noise, regression in cases:
        unchanged = pools["unchanged"]
        tally = _gates(regression, pools[engine], unchanged, noise, trials, rng)
        tallies.append(tally)
        naive.append(_naive(pools[engine], noise, trials, rng))
        tolerances = "/".join(f"{check.tolerance * 100:g}" for check in regression.checks)
        print(
            f"{engine:12}{noise:6.0%}{tolerances + ' %':>15}{tally.passed:8.1%}{tally.failed:8.1%}"
            f"{tally.undecided:11.1%}{tally.pairs:7.1f}{naive[-1]:17.1%}"
        )

    met = {runs: _absolute(ttfts, runs, trials, rng) for runs in (1, RUNS)}
    print(f"\nat most {LIMIT:.0%} bad, in truth {TRUE_SHARE:.2%}: met, breached")
    for runs, rows in met.items():
        for method, (passed, breached) in rows.items():
            print(f"{runs} run(s) of {REQUESTS:,}, {method:28}{passed:8.1%}{breached:8.1%}")
    figures: dict[str, Any] = {
        "null_fail": tallies[0].failed,
        "null_pass": tallies[0].passed,
        "null_pairs": round(tallies[0].pairs, 2),
        "power_5pct": tallies[1].failed,
        "power_10pct": tallies[2].failed,
        "null_fail_noise5": tallies[3].failed,
        "power_10pct_noise5": tallies[4].failed,
        "naive_null_fail": naive[0],
        "naive_power_10pct": naive[2],
        "absolute_met_5runs": met[RUNS]["effective sample size"][0],
        "absolute_met_1run": met[1]["effective sample size"][0],
        "absolute_met_1run_independent": met[1]["as if independent"][0],
        "trials": trials,
        "pool": pool_size,
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(figures))


def simulate_open(seed: int, jitter_seed: int, speed: float) -> Floats:
    """TTFT in seconds of the measured requests of an open-loop run at 60 % load."""
    total = WARMUP + REQUESTS
    prompts, outputs, rng = _work(seed, total)
    at = np.cumsum(rng.exponential(1 / RATE, total)).tolist()
    ttft, _ = _simulate(prompts, outputs, at, speed, np.random.default_rng([seed, jitter_seed, 2]))
    return np.array(ttft[WARMUP:])


def simulate_closed(seed: int, jitter_seed: int, speed: float) -> float:
    """Output tokens/s of 32 users, from the end of the warm-up's last request on."""
    prompts, outputs, _ = _work(seed, WARMUP + REQUESTS)
    rng = np.random.default_rng([seed, jitter_seed, 3])
    _, rate = _simulate(prompts, outputs, [0.0] * USERS, speed, rng, closed=True)
    return rate


def _work(seed: int, total: int) -> tuple[list[int], list[int], np.random.Generator]:
    rng = np.random.default_rng([seed, 1])

    def lognormal(median: float, sigma: float, least: int) -> list[int]:
        drawn = np.rint(median * np.exp(sigma * rng.standard_normal(total)))
        lengths: list[int] = np.maximum(least, drawn).astype(int).tolist()
        return lengths

    return lognormal(400, 0.9, 1), lognormal(150, 0.7, 2), rng


def _simulate(
    prompts: list[int],
    outputs: list[int],
    at: list[float],
    speed: float,
    rng: np.random.Generator,
    closed: bool = False,
) -> tuple[list[float], float]:
    """TTFTs, and the output tokens/s after the warm-up. `at` grows in a closed loop."""
    total = len(prompts)
    jitter: deque[float] = deque()
    next_stall = rng.exponential(STALL_EVERY)
    waiting: deque[list[int]] = deque()
    ends: dict[int, int] = {}  # step -> how many sequences have their last token in it
    ttft = [0.0] * total
    now, came, ended, step, decoding, tokens = 0.0, 0, 0, 0, 0, 0
    since = (0.0, 0)
    while ended < total:
        while came < min(total, len(at)) and at[came] <= now:
            waiting.append([came, prompts[came]])
            came += 1
        if not decoding and not waiting:
            now = at[came]
            continue
        left, begun, running = BUDGET, [], decoding
        while waiting and left and running < SLOTS:
            first = waiting[0]
            if first[1] <= left:
                left -= first[1]
                begun.append(waiting.popleft()[0])
                running += 1
            else:
                first[1] -= left
                left = 0
        if not jitter:
            jitter.extend(np.exp(JITTER * rng.standard_normal(4096)).tolist())
        prefill = PER_PREFILL * (BUDGET - left)
        now += (STEP + PER_DECODE * decoding + prefill) * jitter.popleft() * speed
        if now >= next_stall:
            now += rng.exponential(STALL)
            next_stall = now + rng.exponential(STALL_EVERY)
        step += 1
        tokens += decoding + len(begun)
        gone = ends.pop(step, 0)
        decoding -= gone
        for request in begun:
            ttft[request] = now - at[request]
            decoding += 1
            last = step + outputs[request] - 1
            ends[last] = ends.get(last, 0) + 1
        if gone:
            if ended < WARMUP <= ended + gone:
                since = (now, tokens)
            ended += gone
            if closed:
                at.extend([now] * gone)
    return ttft, (tokens - since[1]) / (now - since[0])


def _pools(seed: int, size: int) -> tuple[dict[str, list[PoolPair]], Floats]:
    """Pairs of each engine speed, and the TTFTs of all baseline runs."""
    pools: dict[str, list[PoolPair]] = {engine: [] for engine in SPEEDS}
    ttfts = []
    for number in range(size):
        work = seed * 1_000_003 + number
        open_a, closed_a = simulate_open(work, 0, 1.0), simulate_closed(work, 0, 1.0)
        ttfts.append(open_a)
        for i, (engine, speed) in enumerate(SPEEDS.items(), start=1):
            open_b, closed_b = simulate_open(work, i, speed), simulate_closed(work, i, speed)
            if engine == "unchanged":
                ttfts.append(open_b)
            pools[engine].append(_pool_pair(open_a, open_b, closed_a, closed_b))
    return pools, np.array(ttfts)


def _pool_pair(open_a: Floats, open_b: Floats, closed_a: float, closed_b: float) -> PoolPair:
    p50, p99 = (
        tuple(float(np.quantile(run, q, method="inverted_cdf")) for run in (open_a, open_b))
        for q in (0.5, 0.99)
    )
    changes = {
        "ttft p50": log_ratio(p50[0], p50[1]),
        "ttft tail": matched_shift(open_a, open_b),
        "output_tokens_per_s rate": log_ratio(closed_a, closed_b, higher_is_worse=False),
    }
    return PoolPair({k: v for k, v in changes.items() if v is not None}, (p99[0], p99[1]))


def _regression(p50: float, tail: float, rate: float) -> Regression:
    return Regression(
        (
            Check("ttft p50", "ttft", "p50", p50, ""),
            Check("ttft tail", "ttft", "tail", tail, ""),
            Check("output_tokens_per_s rate", "output_tokens_per_s", "rate", rate, ""),
        )
    )


def _gates(
    regression: Regression,
    pool: Sequence[PoolPair],
    unchanged: Sequence[PoolPair],
    noise: float,
    trials: int,
    rng: np.random.Generator,
) -> Tally:
    codes: list[int] = []
    used: list[int] = []
    for _ in range(trials):
        profile = NoiseProfile({}, {})
        for _ in range(5):
            profile = profile.learned(_draw(unchanged, 5, noise, rng))
        changes = _draw(pool, regression.max_pairs, noise, rng)
        for pairs in range(regression.min_pairs, regression.max_pairs + 1):
            seen = {check: each[:pairs] for check, each in changes.items()}
            results = judge_changes(regression, seen, profile)
            if decided(results):
                break
        codes.append(regression_code(regression, results))
        used.append(pairs)
    said = {code: codes.count(code) / trials for code in (0, 1, 3)}
    return Tally(said[0], said[1], said[3], sum(used) / trials)


def _draw(
    pool: Sequence[PoolPair], pairs: int, noise: float, rng: np.random.Generator
) -> dict[str, list[Change]]:
    """Pairs of the pool with machine noise: what is left of it between two runs of a session."""
    chosen = [pool[i] for i in rng.choice(len(pool), pairs, replace=False)]
    # One open-loop and one closed-loop run a side, so two differences of run noise a pair. The
    # variance of a difference of two halves of noise^2 is noise^2.
    open_, closed = rng.normal(0, noise, (2, pairs))
    return {
        check: [
            Change(pair.changes[check] + (closed if "rate" in check else open_)[i], REQUESTS)
            for i, pair in enumerate(chosen)
        ]
        for check in chosen[0].changes
    }


def _naive(pool: Sequence[PoolPair], noise: float, trials: int, rng: np.random.Generator) -> float:
    """How often a run of the build has a p99 over 10 % above one of the baseline (another seed)."""
    before, after = rng.integers(len(pool), size=(2, trials))
    apart = np.exp(rng.normal(0, noise * np.sqrt(2), trials))
    ratios = [
        pool[b].p99[1] / pool[a].p99[0] * factor
        for a, b, factor in zip(before, after, apart, strict=True)
    ]
    return float(np.mean(np.array(ratios) > 1.1))


def _absolute(
    ttfts: Floats, runs: int, trials: int, rng: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """Method -> how often it says met, and breached, at a true share just above the limit."""
    bad = ttfts > np.quantile(ttfts, 1 - TRUE_SHARE)
    methods = ("effective sample size", "as if independent")
    met, breached = (dict.fromkeys(methods, 0) for _ in range(2))
    for _ in range(trials):
        drawn = [bad[i] for i in rng.integers(len(bad), size=runs)]
        worth = effective(drawn, 0.95)
        n, count = runs * REQUESTS, int(sum(run.sum() for run in drawn))
        for method, k, of in (
            (methods[0], worth.bad, worth.n),
            (methods[1], float(count), float(n)),
        ):
            met[method] += intervals.upper(k, of, 0.95) <= LIMIT
            breached[method] += intervals.lower(k, of, 0.95) > LIMIT
    return {method: (met[method] / trials, breached[method] / trials) for method in methods}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How often the gate cries wolf.")
    parser.add_argument("--quick", action="store_true", help="200 trials from a smaller pool")
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--pool", type=int, default=0, help="simulated pairs of each speed")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
