"""Whether `prony diagnose` names the cause: servers with a known fault in, a confusion matrix out.

Each cause is made by --inject, by the server's limits, by the load, or by what stands between, in
two intensities and with several seeds. The runs are real ones; the server is the reference server
with the tiny model, in one process that changes it between them. `accuracy` is the share of runs
whose first verdict is the cause; `false_blame` the share of healthy runs in which anything is
blamed. Each run is judged a second time by what vLLM's metrics alone would have told of it.

    python benchmarks/diagnose.py [--quick] [--seeds N] [--only CAUSE ...] [--keep DIR]
                                  [--metric-names vllm]    # the figures are of the second look
    python benchmarks/diagnose.py --judge DIR     # runs that were kept, by the verdicts as they are
    python benchmarks/diagnose.py --remedies      # the same load before and after the change
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.between import relay
from benchmarks.load_in_turn import LoadInTurn

from prony.diagnosis.judge import Diagnosis, diagnose
from prony.diagnosis.read import diagnosis_of, evidence_of
from prony.diagnosis.server_side import Series
from prony.server_metrics import kept_samples
from prony_loadgen.folder import RunFolder
from prony_loadgen.summary import measured, summarise
from prony_server.in_turn import InTurn
from prony_server.vllm_names import VLLM

QUICK = ("none", "tiny KV pool", "one slot", "slow tokenizer", "host-bound", "starved generator")
SECONDS, QUICK_SECONDS = 6.0, 4.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One intensity of a cause."""

    load: dict[str, Any]
    server: dict[str, Any] = field(default_factory=dict)
    at_once: int | None = None  # requests that a relay lets through
    bytes_per_s: float | None = None  # at which a relay reads
    starved: tuple[float, float] | None = None  # seconds that the client stands still, of so many


@dataclass(frozen=True, slots=True)
class Cause:
    expected: str  # the verdict that must come first
    settings: tuple[Setting, ...]


def users(
    n: int, prompt: int | dict[str, Any] = 64, output: int | dict[str, Any] = 48
) -> dict[str, Any]:
    return {"arrivals": {"process": "closed", "users": n}, **_sizes(prompt, output)}


def rate(
    r: float, prompt: int | dict[str, Any] = 64, output: int | dict[str, Any] = 48
) -> dict[str, Any]:
    return {"arrivals": {"process": "poisson", "rate": r}, **_sizes(prompt, output)}


def _sizes(prompt: int | dict[str, Any], output: int | dict[str, Any]) -> dict[str, Any]:
    return {"prompts": {"input_tokens": prompt}, "output": {"tokens": output, "mode": "forced"}}


def streams_and_long_prompts(share: float, tokens: int) -> dict[str, Any]:
    """Six users who mostly get long answers; a share of requests are prompts that take a while.

    Closed, so that the prompts take the same part of a fast machine's time and of a slow one's.
    """
    return {
        "arrivals": {"process": "closed", "users": 6},
        "mix": [
            {"name": "streams", "weight": 1 - share, **_sizes(32, 96)},
            {"name": "prompts", "weight": share, **_sizes(tokens, 4)},
        ],
    }


def injected(*faults: str, **limits: Any) -> dict[str, Any]:
    return {"inject": list(faults), **limits}


CAUSES = {
    "none": Cause("none", (Setting(rate(5)), Setting(rate(10)))),
    "tiny KV pool": Cause("kv_capacity", (
        Setting(users(10), injected("kv-blocks=18")),
        Setting(users(8), injected("kv-blocks=26")),
    )),
    "one slot": Cause("batch_slots", (
        Setting(users(8), injected("slots=1")),
        Setting(users(4), injected("slots=1")),
    )),
    "slow tokenizer": Cause("tokenizing", (
        Setting(rate(5), injected("slow-tokenizer=100ms")),
        Setting(rate(6), injected("slow-tokenizer=50ms")),
    )),
    "host-bound": Cause("host_bound", (
        Setting(rate(5), injected("host-bound=10ms")),
        Setting(rate(5), injected("host-bound=5ms")),
    )),
    "starved generator": Cause("load_generator", (
        Setting(rate(8), starved=(0.12, 0.2)),
        Setting(rate(8), starved=(0.1, 0.16)),
    )),
    "logging in the loop": Cause("step_output", (
        Setting(rate(5), injected("log-in-decode=8ms")),
        Setting(rate(5), injected("log-in-decode=4ms")),
    )),
    "blocked event loop": Cause("blocked_loop", (
        Setting(rate(8), injected("blocked-loop=100ms")),
        Setting(rate(8), injected("blocked-loop=80ms")),
    )),
    "small prefill budget": Cause("prefill_budget", (
        Setting(users(4, 400, 16), {"max_num_batched_tokens": 16}),
        Setting(users(3, 400, 16), {"max_num_batched_tokens": 12}),
    )),
    "long prompts": Cause("prefill_compute", (
        Setting(rate(1.5, 3000, 8)),
        Setting(rate(2, 2000, 8)),
    )),
    "prefill interference": Cause("prefill_interference", (
        Setting(streams_and_long_prompts(0.2, 3000), {"max_num_batched_tokens": 4096}),
        Setting(streams_and_long_prompts(0.25, 2000), {"max_num_batched_tokens": 4096}),
    )),
    "slow readers": Cause("network", (
        Setting(rate(4), injected("slow-writer=20kB/s")),
        Setting(rate(4), bytes_per_s=20_000),
    )),
    "upstream limit": Cause("upstream_limit", (
        Setting(users(8), at_once=2),
        Setting(users(8), at_once=4),
    )),
    "periodic stalls": Cause("periodic_stalls", (
        Setting(rate(10), injected("stall=300ms/1s")),
        Setting(rate(10), injected("stall=200ms/800ms")),
    )),
    "admission": Cause("admission", (
        Setting(rate(60), injected("slots=2", max_queue=2)),
        Setting(rate(40), injected("slots=1", max_queue=1)),
    )),
    "errors": Cause("failures", (
        Setting(rate(8), injected("error-rate=20%")),
        Setting(rate(8), injected("cut-streams=10%")),
    )),
    "memory leak": Cause("memory_growth", (
        Setting(rate(5), injected("leak=40MB/s")),
        Setting(rate(5), injected("leak=20MB/s")),
    )),
}  # fmt: skip


def documents(tokens: int, shared: int) -> dict[str, Any]:
    """Long prompts that begin alike."""
    load = rate(1.5, tokens, 8)
    load["prompts"] |= {"prefix": {"tokens": shared}}
    return load


@dataclass(frozen=True, slots=True)
class Remedy:
    """The same load before and after one change."""

    change: str
    before: Setting
    after: Setting


def _mended(cause: str, change: str, **server: Any) -> Remedy:
    """After: the cause's load, at the server with these settings, straight."""
    before = CAUSES[cause].settings[0]
    return Remedy(change, before, Setting(before.load, server))


REMEDIES = {
    "kv_capacity": _mended("tiny KV pool", "18 KV blocks -> as many as memory allows"),
    "batch_slots": _mended("one slot", "--max-num-seqs 1 -> 32"),
    "tokenizing": _mended("slow tokenizer", "a tokenizer that does not take 100 ms"),
    "host_bound": _mended("host-bound", "10 ms of Python an iteration -> none"),
    "step_output": _mended("logging in the loop", "8 ms of logging an iteration -> none"),
    "blocked_loop": _mended("blocked event loop", "the call that blocks 100 ms -> a thread"),
    "load_generator": _mended("starved generator", "a client that gets its processor"),
    "prefill_budget": _mended("small prefill budget", "--max-num-batched-tokens 16 -> 512"),
    "prefill_compute": Remedy(
        "--no-enable-prefix-caching -> --enable-prefix-caching",
        Setting(documents(200, 2600), {"enable_prefix_caching": False}),
        Setting(documents(200, 2600)),
    ),
    "prefill_interference": _mended(
        "prefill interference", "--max-num-batched-tokens 4096 -> 128", max_num_batched_tokens=128
    ),
    "network": _mended("slow readers", "readers of 20 kB/s -> fast ones"),
    "upstream_limit": _mended("upstream limit", "2 connections upstream -> straight"),
    "periodic_stalls": _mended("periodic stalls", "300 ms of standstill a second -> none"),
    "admission": _mended("admission", "--max-num-seqs 2 --max-queue 2 -> the defaults"),
}


@dataclass(frozen=True, slots=True)
class Judged:
    cause: str
    intensity: int
    seed: int
    diagnosis: Diagnosis
    said: str = ""

    @property
    def first(self) -> str:
        return self.diagnosis.verdicts[0].id

    @property
    def right(self) -> bool:
        return self.first == CAUSES[self.cause].expected


def main() -> None:
    options = _options()
    began = time.monotonic()
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    intensities = (0,) if options.quick else (0, 1)
    causes = options.only or (QUICK if options.quick else list(CAUSES))
    judged: dict[str, list[Judged]] = {"prony": [], "vllm": []}

    def judge(cause: str, intensity: int, seed: int, folder: Path, said: str = "") -> None:
        of = (cause, intensity, seed)
        judged["prony"].append(Judged(*of, diagnosed(folder), said))
        judged["vllm"].append(Judged(*of, diagnosed_as_vllm(folder)))
        _say(judged["prony"][-1])

    every = [
        (cause, intensity, seed)
        for seed in range(1, options.seeds + 1)
        for cause in causes
        for intensity in intensities
    ]
    if options.judge:
        for each in every:
            judge(*each, _kept(options.judge, *each))
        _tell(judged, options.metric_names, time.monotonic() - began)
        return
    with ExitStack() as stack:
        kept = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server, load = stack.enter_context(InTurn()), stack.enter_context(LoadInTurn())
        if options.remedies:
            _remedies(server, load, seconds, kept)
            return
        for cause, intensity, seed in every:
            folder = _kept(kept, cause, intensity, seed)
            said = _run(server, load, CAUSES[cause].settings[intensity], seed, seconds, folder)
            judge(cause, intensity, seed, folder, said)
    _tell(judged, options.metric_names, time.monotonic() - began)


def _kept(folder: Path, cause: str, intensity: int, seed: int) -> Path:
    return folder / f"{cause.replace(' ', '-')}-{intensity + 1}-{seed}"


def _tell(judged: dict[str, list[Judged]], names: str, seconds: float) -> None:
    for told, runs in judged.items():
        print(f"\nby the metrics' names of {told}")
        _print(runs)
    print(f"\n{len(judged['prony'])} runs in {seconds:.0f} s")
    vllm = _figures(judged["vllm"])
    also = {"accuracy_vllm": vllm["accuracy"], "false_blame_vllm": vllm["false_blame"]}
    print(json.dumps(_figures(judged[names]) | also))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="six causes, one intensity, one seed")
    add("--seeds", type=int, help="how many (5; 1 with --quick)")
    add("--seconds", type=float, help="of load, a run")
    add("--only", action="append", choices=list(CAUSES), metavar="CAUSE")
    add("--keep", type=Path, metavar="DIR", help="keep the run folders there")
    add("--judge", type=Path, metavar="DIR", help="judge the runs that --keep kept there")
    add("--remedies", action="store_true", help="what each change brings, as a Markdown table")
    add(
        "--metric-names", choices=("prony", "vllm"), default="prony", help="that the figures are of"
    )
    options = parser.parse_args()
    options.seeds = options.seeds or (1 if options.quick else 5)
    return options


def _run(
    server: InTurn,
    load: LoadInTurn,
    setting: Setting,
    seed: int,
    seconds: float,
    folder: Path,
) -> str:
    url = server.start(**setting.server)
    scenario = {"name": "known-cause", **setting.load, "warmup": "0.5s", "seed": seed,
                "duration": f"{seconds}s", "timeouts": {"drain": "3s"}}  # fmt: skip
    with _between(url, setting) as target:
        return load.run(target, scenario, folder, setting.starved)


@contextmanager
def _between(url: str, setting: Setting) -> Iterator[str]:
    if setting.at_once is None and setting.bytes_per_s is None:
        yield url
        return
    port = urlsplit(url).port
    assert port is not None
    with relay(port, setting.at_once, setting.bytes_per_s) as through:
        yield through


def diagnosed(path: Path) -> Diagnosis:
    folder = RunFolder(path)
    return diagnosis_of(folder, folder.read_run(), list(folder.records()))


def diagnosed_as_vllm(path: Path) -> Diagnosis:
    """What the same run shows to whoever has nothing but vLLM's metrics of it."""
    folder = RunFolder(path)
    run = folder.read_run()
    run["server_metrics"] = {**run["server_metrics"], "engine": "vllm"}
    pages = [(at, _renamed(series)) for at, series in kept_samples(path)]
    return diagnose(evidence_of(run, list(folder.records()), pages))


def _renamed(series: Series) -> Series:
    """A page's series as `--metric-names vllm` shows them."""
    kept = [each for each in series if each[0].startswith("process_")]
    for name, renaming in VLLM.items():
        summed: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for ours, labels, value in series:
            part = ours.removeprefix(renaming.name)
            if part == ours or part not in ("", "_bucket", "_sum", "_count"):
                continue
            if (told := renaming.told(labels)) is not None:
                key = name + part, tuple(told.items())
                summed[key] = summed.get(key, 0.0) + value
        kept += [(full, dict(told), value) for (full, told), value in summed.items()]
    return kept


def _remedies(server: InTurn, load: LoadInTurn, seconds: float, kept: Path) -> None:
    """One pair of runs a remedy; the tables of docs/bottlenecks.md are of these."""
    print("| verdict before | change | E2E, TTFT before | after | verdict after |")
    print("| --- | --- | ---: | ---: | --- |")
    figures = {}
    for name, remedy in REMEDIES.items():
        told = []
        for when, setting in (("before", remedy.before), ("after", remedy.after)):
            folder = kept / f"remedy-{name}-{when}"
            _run(server, load, setting, 1, seconds, folder)
            found = diagnosed(folder)
            part = summarise(measured(RunFolder(folder).read_run(), RunFolder(folder).records()))
            e2e, ttft = (part[m]["ok"]["mean"] for m in ("e2e", "ttft"))
            told.append((found.verdicts[0].id, e2e, ttft))
        (first, e2e, ttft), (then, e2e_after, ttft_after) = told
        print(
            f"| `{first}` | {remedy.change} | {_both(e2e, ttft)} | {_both(e2e_after, ttft_after)} "
            f"| `{then}` |",
            flush=True,
        )
        figures[name] = {"named": first == name, "e2e_ratio": round((e2e_after or 0) / e2e, 4)}
    print(json.dumps(figures))


def _both(e2e: float | None, ttft: float | None) -> str:
    return ", ".join("-" if each is None else f"{each * 1000:,.0f} ms" for each in (e2e, ttft))


def _say(judged: Judged) -> None:
    found = ", ".join(
        f"{v.id} {v.found.cost * 1000:.0f} ms {v.found.confidence:.2f}"
        for v in judged.diagnosis.verdicts[:4]
    )
    mark = "  " if judged.right else "x "
    e2e = f"{(judged.diagnosis.e2e or 0) * 1000:.0f} ms"
    print(f"{mark}{judged.cause:22}{judged.intensity + 1} seed {judged.seed}: E2E {e2e}: {found}"
          + (f"  [{judged.said}]" if judged.said else ""), flush=True)  # fmt: skip


def _print(judged: list[Judged]) -> None:
    seen = Counter((j.cause, j.first) for j in judged)
    names = [n for n in dict.fromkeys(c.expected for c in CAUSES.values())
             if any(found == n for _, found in seen)]  # fmt: skip
    names += sorted({found for _, found in seen} - set(names))
    causes = list(dict.fromkeys(j.cause for j in judged))
    print("\nfirst verdict (columns) of runs with a known cause (rows)")
    print(" " * 22 + "".join(f"{i + 1:>4}" for i in range(len(names))))
    for cause in causes:
        row = "".join(f"{seen[cause, name] or '.':>4}" for name in names)
        print(f"{cause:22}{row}   {CAUSES[cause].expected}")
    print("\n".join(f"{i + 1:>4} {name}" for i, name in enumerate(names)))


def _figures(judged: list[Judged]) -> dict[str, Any]:
    healthy = [j for j in judged if j.cause == "none"]
    blamed = [j for j in healthy if j.first not in ("none", "cannot_tell")]
    among = [any(v.id == CAUSES[j.cause].expected for v in j.diagnosis.verdicts) for j in judged]
    return {
        "runs": len(judged),
        "causes": len({j.cause for j in judged}),
        "accuracy": round(sum(j.right for j in judged) / len(judged), 4),
        "named_at_all": round(sum(among) / len(judged), 4),
        "false_blame": round(len(blamed) / len(healthy), 4) if healthy else None,
        "by_cause": {
            cause: round(sum(j.right for j in mine) / len(mine), 3)
            for cause in dict.fromkeys(j.cause for j in judged)
            if (mine := [j for j in judged if j.cause == cause])
        },
    }


if __name__ == "__main__":
    main()
