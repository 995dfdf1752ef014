"""From when on a number counts as a symptom: one table, each value with where it comes from.

Shares are of a mean request's time or of the engine's busy time, so that a slow or a busy machine
moves both sides. docs/bottlenecks.md shows this table; a test holds the two equal.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number, what it is a number of, and its source."""

    value: float
    of: str
    source: str


OWN: Final = "ours, from the runs of benchmarks/diagnose.py"

TABLE: Final[dict[str, Threshold]] = {
    "blamed": Threshold(0.12, "of a request's time: less is no bottleneck", OWN),
    "queue": Threshold(0.12, "of a request's time in the queue", OWN),
    "kv_full": Threshold(0.9, "of the KV cache in use while requests wait",
                         "vLLM's optimization guide; llm-d's playbook (kv > 90 %)"),
    "kv_free": Threshold(0.7, "of the KV cache in use: under it, it is not what is short", OWN),
    "kv_taken": Threshold(0.3, "of the KV cache at its fullest: under it, room is not short", OWN),
    "slots_full": Threshold(0.8, "of max_num_seqs in a mean batch while requests wait", OWN),
    "held": Threshold(0.9, "of the most requests that were seen to run, whenever others wait", OWN),
    "budget_full": Threshold(0.7, "of max_num_batched_tokens in a mean iteration with a prompt",
                             OWN),
    "piece": Threshold(64.0, "tokens: an iteration of so few costs about the same with one", OWN),
    "host": Threshold(0.5, "of the engine's busy time outside the model",
                      "SGLang's scheduler stages; our own healthy runs of a tiny model reach 0.4"),
    "host_large": Threshold(0.3, "the same, where the model runs on a GPU",
                            "vLLM #6854: 5-13 ms bubbles between iterations"),
    "spiky": Threshold(3.0, "times the usual gap: the 99th percentile of gaps", OWN),
    "long_piece": Threshold(128.0, "prompt tokens in an iteration: fewer hold up nobody", OWN),
    "coincident": Threshold(0.6, "of the spikes' time in which a newcomer's prompt was worked on",
                            OWN),
    "growth": Threshold(2.0, "times the TPOT that a request has alone", OWN),
    "crowd": Threshold(8.0, "requests that run at a time, before a batch counts as large", OWN),
    "decode": Threshold(0.6, "of a request's time in decode", OWN),
    "dram": Threshold(0.6, "of the GPU memory's bandwidth in use",
                      "NVIDIA DCGM: some 0.8 is the most that can be reached"),
    "prefill": Threshold(0.25, "of a request's time in prefill", OWN),
    "prefix_hits": Threshold(0.5, "of prompt tokens found in the prefix cache", OWN),
    "loop_lag": Threshold(0.02, "seconds, the 99th percentile of the event loop's lag",
                          "research: front ends of vLLM (#25301) and ATOM (#2161)"),
    "around": Threshold(0.06, "of a request's time around the engine, on however busy a machine",
                        OWN),
    "capped": Threshold(0.75, "of the time that requests waited for headers, the same number of "
                        "others was being answered", OWN),
    "waiters": Threshold(0.35, "of the requests waited so for their headers", OWN),
    "refused": Threshold(0.01, "of the requests refused with 429 or 503", OWN),
    "failed": Threshold(0.01, "of the requests failed otherwise", OWN),
    "copies": Threshold(0.1, "of the profiled time in copies between host and device", OWN),
    "host_wait": Threshold(0.2, "of the GPU's time in which it waited for the host",
                           "HTA's idle time breakdown"),
    "leak": Threshold(0.5e6, "bytes a second of resident memory", OWN),
    "leak_share": Threshold(0.001, "of the resident memory, a second", OWN),
    "leak_straight": Threshold(0.85, "r squared of the line of resident memory", OWN),
    "leak_straight_short": Threshold(0.97, "the same, in under a minute", OWN),
    "throttled": Threshold(0.05, "of the time with clocks held back", "DCGM's violation counters"),
    "knee": Threshold(0.95, "of what was offered was done with", OWN),
    "send_lag": Threshold(0.2, "of TTFT by which our own client sent late, where it is in doubt",
                          OWN),
    "client_lag": Threshold(0.6, "of TTFT, together with how late it read", OWN),
    "disturbed": Threshold(0.35, "of its busy time in which the engine's thread got no processor",
                           OWN),
    "few": Threshold(20, "requests: fewer weaken every verdict", OWN),
}  # fmt: skip


def limit(name: str) -> float:
    return TABLE[name].value
