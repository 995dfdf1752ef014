"""Whether requests go out when the schedule says: rates, lag, regularity, and how far it reaches.

The whole load generator (Locust, scenario, records), in a process and on a processor of its own,
sends 10-token requests in open loop to a ground-truth server on another. After each run a bare loop
that only waits for the same times, on the same processor, shows what the machine is late by.

    python benchmarks/arrivals.py [--quick] [--runs N]
    python benchmarks/arrivals.py --freeze          60 s at 10/s, the server frozen for 5 s
    python benchmarks/arrivals.py --trace FILE --format azure|mooncake     3 minutes of it at 20x

`rate_error_N` is how far the achieved rate is from N/s, a share; `lag_over_floor_1000` is 1 where
the p99 send lag is under 2 ms, else its ratio to twice the bare loop's (below 1 it is within it).
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from prony_loadgen.ground_truth import MODEL, GroundTruth, Pace

RATES = (50, 200, 1000)
CV_RATE, POISSON_RATE = 100, 200
LIMIT_MS = 2.0
CEILINGS = (1500, 2000, 3000, 4000, 6000, 8000)
TOKENS = 10
BARE_SHARE = 0.5  # of each schedule, for the bare loop

Figures = dict[str, Any]


def main() -> None:
    options = _options()
    if options.job is not None:
        print(json.dumps(_sent(json.loads(options.job))))
    elif options.freeze:
        print(json.dumps(_freeze()))
    elif options.trace is not None:
        print(json.dumps(_replay(options.trace, options.format)))
    else:
        print(json.dumps(_arrivals(options.quick, options.runs)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 short runs: under 50 s")
    parser.add_argument("--runs", type=int, help="runs of each rate (5; 3 with --quick)")
    parser.add_argument("--freeze", action="store_true", help="a server that stands still for 5 s")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="replay its first 3 minutes")
    parser.add_argument("--format", default="azure", choices=("azure", "mooncake"))
    parser.add_argument("--job", help=argparse.SUPPRESS)  # for the process that sends
    return parser.parse_args()


def _arrivals(quick: bool, asked_runs: int | None) -> Figures:
    runs, seconds = asked_runs or (3 if quick else 5), 1.0 if quick else 10.0
    jobs = [("constant", rate, seconds) for rate in RATES]
    jobs += [("constant", CV_RATE, seconds), ("poisson", POISSON_RATE, seconds)]
    found: dict[tuple[str, int], list[Figures]] = {}
    for number in range(runs):
        for (process, rate, _), told in zip(jobs, _run(jobs, seed=number), strict=True):
            found.setdefault((process, rate), []).append(_figures(told, rate))
    print(
        "arrivals         asked/s  sent/s   error  lag p50 ms   p99 | bare loop p99     CV   bare"
    )
    middle = {key: _median(each) for key, each in found.items()}
    for (process, rate), row in middle.items():
        print(
            f"{process:15}{rate:9}{row['rate']:8.1f}{row['rate_error']:8.2%}{row['lag_p50']:12.3f}"
            f"{row['lag_p99']:6.2f} |{row['bare_p99']:14.2f}{row['cv']:7.3f}{row['bare_cv']:7.3f}"
        )
    runs_of_gaps = [each["gaps"] for each in found[("poisson", POISSON_RATE)]]
    pvalue = statistics.median(_kolmogorov(gaps, POISSON_RATE) for gaps in runs_of_gaps)
    pooled = _kolmogorov([gap for gaps in runs_of_gaps for gap in gaps], POISSON_RATE)
    print(
        f"gaps of Poisson arrivals as sent, {len(runs_of_gaps[0]):,} a run: Kolmogorov-Smirnov "
        f"p = {pvalue:.3f}; of all runs together (which sees that two sends in one moment are "
        f"some 0.1 ms apart): {pooled:.3f}"
    )
    thousand, even = middle[("constant", 1000)], middle[("constant", CV_RATE)]
    lag, floor = thousand["lag_p99"], thousand["bare_p99"]
    return {
        **{f"rate_error_{rate}": middle[("constant", rate)]["rate_error"] for rate in RATES},
        "lag_p99_ms_1000": lag,
        "floor_p99_ms_1000": floor,
        "lag_over_floor_1000": 1.0 if lag <= LIMIT_MS else round(lag / (2 * floor), 3),
        "cv_constant_100": even["cv"],
        "cv_bare_100": even["bare_cv"],
        "poisson_ks_pvalue": round(pvalue, 4),
        "poisson_ks_pvalue_pooled": round(pooled, 4),
        "ceiling_rps": _ceiling(CEILINGS[1::2] if quick else CEILINGS, 1.0 if quick else 3.0),
        "runs": runs,
        "seconds": seconds,
    }


def _ceiling(rates: tuple[int, ...], seconds: float) -> int:
    """The highest of the rates that is sent to within 1 %, or 1,000."""
    reached = 1000
    for rate in rates:
        [told] = _run([("constant", rate, seconds)], seed=1)
        row = _figures(told, rate)
        print(f"{'constant':15}{rate:9}{row['rate']:8.1f}{row['rate_error']:8.2%}")
        if row["rate_error"] > 0.01:
            break
        reached = rate
    return reached


def _freeze() -> Figures:
    """Issue 3: 60 s at 10/s, and for 5 s of it nothing moves."""
    with GroundTruth(Pace(ttft=0.01), cpu=_processors()[1]) as server:
        arrivals = {"process": "constant", "rate": 10}
        job = _job(server, _scenario(arrivals, {"fixed": 60.0}))
        timer = threading.Timer(30.0, _stand_still, [_pid_of(server)])
        timer.start()
        [told] = _send(job)
        timer.join()
    ttfts = sorted(told["ttft"])
    p99 = ttfts[int(0.99 * len(ttfts))]
    late = sum(ttft > 0.5 for ttft in ttfts)
    print(
        f"{len(ttfts)} requests, {late} waited over 0.5 s; TTFT p50 {ttfts[len(ttfts) // 2]:.4f} s"
    )
    print(f"p99 {p99:.3f} s, max {ttfts[-1]:.3f} s; send lag p99 {told['lag_p99_ms']:.2f} ms")
    return {"freeze_ttft_p99_s": round(p99, 3), "waited": late, "requests": len(ttfts)}


def _stand_still(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(5)
    os.kill(pid, signal.SIGCONT)


def _pid_of(server: GroundTruth) -> int:
    process = server._process
    assert process is not None
    return process.pid


def _replay(file: Path, form: str) -> Figures:
    """Issue 3: the first 3 minutes at 20x, compared with the file as read here."""
    trace = {"file": str(file.resolve()), "format": form, "first": "3m", "speed_up": 20}
    if form == "mooncake":
        trace["unit"] = "ms"
    with GroundTruth(Pace(ttft=0.005), cpu=_processors()[1]) as server:
        scenario = _scenario({"process": "trace", "trace": trace}, None)
        [told] = _send(_job(server, scenario))
    rows = _rows(file, form)
    lags = [abs(sent - at / 20) for sent, (at, _, _) in zip(told["sent"], rows, strict=True)]
    due = [abs(at - row[0] / 20) for at, row in zip(told["intended"], rows, strict=True)]
    lengths = [
        (asked, got) == (row[1], row[2])
        for asked, got, row in zip(told["asked_input"], told["output"], rows, strict=True)
    ]
    p99 = sorted(lags)[int(0.99 * len(lags))]
    print(
        f"{form}: {len(rows)} requests; intended is off the file by {max(due) * 1e6:.3f} µs at most"
    )
    print(f"sent off the file: p99 {p99 * 1000:.2f} ms, max {max(lags) * 1000:.2f} ms")
    print(f"lengths as in the file: {sum(lengths)} of {len(lengths)}")
    return {
        f"{form}_requests": len(rows),
        f"{form}_offset_error_us": round(max(due) * 1e6, 3),
        f"{form}_lag_p99_ms": round(p99 * 1000, 3),
        f"{form}_lengths_right": sum(lengths) / len(lengths),
    }


def _rows(file: Path, form: str) -> list[tuple[float, int, int]]:
    """(seconds, input, output) of the first 3 minutes, read without the code under test."""
    rows = []
    lines = file.read_text().splitlines()
    for line in lines[1:] if form == "azure" else lines:
        if form == "azure":
            stamp, context, generated = line.split(",")
            hours, minutes, seconds = stamp.split(" ")[1].split(":")
            at = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
            rows.append((at, int(context), int(generated)))
        else:
            told = json.loads(line)
            at = told["timestamp"] / 1000
            rows.append((at, told["input_length"], told["output_length"]))
    first = rows[0][0]
    return [(at - first, i, o) for at, i, o in rows if at - first < 180]


def _figures(told: Figures, rate: int) -> Figures:
    sent = sorted(told["sent"])
    gaps = [after - before for before, after in pairwise(sent)]
    # From first to last: the schedule's own pace, whatever lies before and after.
    asked = (told["intended"][-1] - told["intended"][0]) or 1.0
    achieved = (len(sent) - 1) / (sent[-1] - sent[0])
    return {
        "rate": achieved,
        "rate_error": round(abs(achieved / ((len(sent) - 1) / asked) - 1), 6),
        "lag_p50": told["lag_p50_ms"],
        "lag_p99": told["lag_p99_ms"],
        "bare_p99": told["bare_p99_ms"],
        "cv": round(statistics.pstdev(gaps) / statistics.fmean(gaps), 4),
        "bare_cv": told["bare_cv"],
        "gaps": gaps,
    }


def _median(rows: list[Figures]) -> Figures:
    return {
        name: round(statistics.median(row[name] for row in rows), 6)
        for name in rows[0]
        if name != "gaps"
    }


def _kolmogorov(gaps: list[float], rate: int) -> float:
    from scipy import stats

    return float(stats.kstest(gaps, "expon", args=(0, 1 / rate)).pvalue)


def _run(jobs: list[tuple[str, int, float]], seed: int) -> list[Figures]:
    """What each of the jobs sent, by one process that does them one after another."""
    with GroundTruth(Pace(ttft=0.02, itl=0.002, per_write=TOKENS), cpu=_processors()[1]) as server:
        scenarios = [
            _scenario({"process": process, "rate": rate}, {"fixed": seconds}, seed)
            for process, rate, seconds in jobs
        ]
        return _send(_job(server, *scenarios))


def _scenario(arrivals: Figures, length: Figures | None, seed: int = 0) -> Figures:
    scenario: Figures = {"arrivals": arrivals, "seed": seed, "warmup": "0s"}
    if length is not None:
        scenario["duration"] = f"{length['fixed']}s"
        scenario["prompts"] = {"input_tokens": 10}
        scenario["output"] = {"tokens": TOKENS, "mode": "forced"}
    return scenario


def _job(server: GroundTruth, *scenarios: Figures) -> Figures:
    return {"url": server.url, "scenarios": scenarios, "cpu": _processors()[0]}


def _send(job: Figures) -> list[Figures]:
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: list[Figures] = json.loads(told.splitlines()[-1])
    return found


def _processors() -> tuple[int | None, int | None]:
    """One for the client and one for the server; None where there is only one."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    first, *others = sorted(os.sched_getaffinity(0))
    return (first, others[0]) if others else (None, None)


# --- in the process that sends ---------------------------------------------------------------


def _sent(job: Figures) -> list[Figures]:
    if job["cpu"] is not None:
        os.sched_setaffinity(0, {job["cpu"]})
    return [_sent_once(job["url"], scenario) for scenario in job["scenarios"]]


def _sent_once(url: str, told: Figures) -> Figures:
    from prony_loadgen.folder import RunFolder
    from prony_loadgen.locust_user import run
    from prony_loadgen.scenario import Scenario
    from prony_loadgen.settings import NoJudge, for_scenario
    from prony_loadgen.target import parse_target

    scenario = Scenario.model_validate(told)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        run(for_scenario(scenario, parse_target(url), MODEL, NoJudge(), out=out), quiet=True)
        records = sorted(RunFolder(out).records(), key=lambda record: (record.intended, record.id))
    bad = [record for record in records if not record.ok or record.sent is None]
    if bad:
        raise SystemExit(f"{len(bad)} requests failed: {bad[0].outcome}: {bad[0].error}")
    intended = [record.intended for record in records]
    lags = sorted(record.send_lag or 0.0 for record in records)
    waited = intended[: max(2, int(BARE_SHARE * len(intended)))]
    bare = _bare_loop(waited)
    gaps = [after - before for before, after in pairwise(bare)]
    late = sorted(at - due for at, due in zip(bare, waited, strict=True))
    return {
        "intended": intended,
        "sent": [record.sent for record in records],
        "lag_p50_ms": round(lags[len(lags) // 2] * 1000, 4),
        "lag_p99_ms": round(lags[int(0.99 * len(lags))] * 1000, 4),
        "bare_p99_ms": round(late[int(0.99 * len(late))] * 1000, 4),
        "bare_cv": round(statistics.pstdev(gaps) / statistics.fmean(gaps), 4),
        "ttft": [record.ttft for record in records],
        "asked_input": [record.asked_input_tokens for record in records],
        "output": [record.output_tokens for record in records],
    }


def _bare_loop(due: list[float]) -> list[float]:
    """When a loop that does nothing else gets to each of the times."""
    origin = time.monotonic() - due[0] + 0.05
    reached = []
    for at in due:
        while (left := origin + at - time.monotonic()) > 0:
            _native_sleep(left)
        reached.append(time.monotonic() - origin)
    return reached


def _native_sleep(seconds: float) -> None:
    from gevent.monkey import get_original

    get_original("time", "sleep")(seconds)


if __name__ == "__main__":
    main()
