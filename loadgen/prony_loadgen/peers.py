"""A run in the words of other tools: its records go in, their layout and definitions come out.

The same word means different numbers there, so each number that differs from ours is named, with
the reason. Definitions were read in the peers' sources, in the versions named here; requests are
those of our measurement window that were answered, since none of them counts the others.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from prony_loadgen.record import RequestRecord
from prony_loadgen.summary import Measured, is_empty, percentile, tokens_inside, value

Of = Callable[[RequestRecord], float | None]
Samples = Callable[[RequestRecord], Sequence[float]]

SENT: Final = (
    "from the moment it was sent; ours is from the moment the schedule intended it, so that "
    "waiting in the client counts"
)
TO_THE_END: Final = "to the end of the stream, the late usage chunk and [DONE] included; ours ends "
TO_THE_END_TOKEN: Final = TO_THE_END + "with the last token"
INTERPOLATED: Final = "percentiles are interpolated between requests; ours are of one request"
ALL_TIME: Final = (
    "all tokens over the time from the first request sent to the last answered; ours counts what "
    "arrived inside the window"
)
OWN_TIME: Final = (
    "over the time from the first request sent to the last answered; ours is over the window"
)
AT_ONCE: Final = "answers that came at one moment count as 0; ours have no TPOT"
# Below this, relative, two numbers print alike.
SAME: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Peer:
    """How another tool defines its latencies; all in seconds."""

    name: str
    ttft: Of
    tpot: Of
    e2e: Of
    itl: Samples
    why: dict[str, str]  # what of -> why it can differ from ours
    interpolates: bool = True
    percentiles: tuple[float, ...] = (50, 99)


@dataclass(frozen=True, slots=True)
class Number:
    """One number of their output beside ours."""

    label: str
    theirs: float | None
    ours: float | None
    why: str

    @property
    def differs(self) -> bool:
        if self.theirs is None or self.ours is None:
            return self.theirs is not self.ours
        return not math.isclose(self.theirs, self.ours, rel_tol=SAME, abs_tol=1e-9)


@dataclass(frozen=True, slots=True)
class Told:
    """A run as a peer would have told it."""

    text: str
    numbers: tuple[Number, ...] = field(default=())

    @property
    def differing(self) -> tuple[Number, ...]:
        return tuple(number for number in self.numbers if number.differs)


def told(peer: str, measured: Measured) -> Told:
    """The run as `peer` (one of PEERS) prints it, with every number beside ours."""
    facts = _Facts(PEERS[peer], measured)
    lines, numbers = _LAYOUTS[peer](facts)
    return Told("\n".join(lines) + "\n", tuple(numbers))


def explained(told: Told) -> str:
    """The differing numbers, a line each, for people."""
    if not told.differing:
        return "Every number above is what Prony's own definitions give too.\n"
    lines = ["Numbers that differ from Prony's, and why:"]
    for number in told.differing:
        lines.append(
            f"  {number.label}: {_plain(number.theirs)} there, {_plain(number.ours)} here: "
            f"{number.why}"
        )
    return "\n".join(lines) + "\n"


def _sent(record: RequestRecord) -> float:
    return record.intended if record.sent is None else record.sent


def _ttft_from_send(record: RequestRecord) -> float | None:
    return record.arrivals[0].at - _sent(record) if record.arrivals else None


def _last_token_from_send(record: RequestRecord) -> float | None:
    return record.arrivals[-1].at - _sent(record) if record.arrivals else None


def _end_from_send(record: RequestRecord) -> float | None:
    return record.ended - _sent(record) if record.arrivals else None


def _after_first(record: RequestRecord) -> float | None:
    """(last token - first token) / (tokens - 1)."""
    n = record.output_tokens or 0
    return (record.arrivals[-1].at - record.arrivals[0].at) / (n - 1) if n > 1 else None


def _after_first_to_the_end(record: RequestRecord) -> float | None:
    """(end of the stream - first token) / (tokens - 1)."""
    n = record.output_tokens or 0
    return (record.ended - record.arrivals[0].at) / (n - 1) if n > 1 else None


def _written(record: RequestRecord) -> float:
    """GuideLLM's start: when the header was written, so after connecting."""
    return _sent(record) if record.connected is None else record.connected


def _with_ttft_inside(record: RequestRecord) -> float | None:
    """GuideLLM: (last token - start) / tokens."""
    n = record.output_tokens or 0
    return (record.arrivals[-1].at - _written(record)) / n if n else None


def _gaps(record: RequestRecord) -> list[float]:
    times = [arrival.at for arrival in record.arrivals]
    return [b - a for a, b in pairwise(times)]


def _gaps_by_token(record: RequestRecord) -> list[float]:
    return [gap for gap, weight in record.itl for _ in range(max(1, round(weight)))]


def _mean_repeated(record: RequestRecord) -> list[float]:
    mean = _after_first(record)
    return [] if mean is None else [mean] * ((record.output_tokens or 1) - 1)


def _mean_once(record: RequestRecord) -> list[float]:
    mean = _after_first(record)
    return [] if mean is None else [mean]


PEERS: Final[dict[str, Peer]] = {
    "vllm": Peer(
        "vLLM bench serve 0.33",
        _ttft_from_send,
        _after_first,
        _last_token_from_send,
        _gaps,
        {
            "ttft": SENT,
            "tpot": AT_ONCE,
            "itl": "each chunk is one sample; ours weights a chunk of k tokens as k",
            "e2e": SENT,
            "tokens": ALL_TIME,
            "requests": OWN_TIME,
        },
    ),
    "sglang": Peer(
        "SGLang bench_serving 0.5.23",
        _ttft_from_send,
        _after_first_to_the_end,
        _end_from_send,
        _gaps_by_token,
        {
            "ttft": SENT,
            "tpot": TO_THE_END_TOKEN,
            "itl": "a gap counts once a token, in whole tokens",
            "e2e": f"{SENT}, {TO_THE_END_TOKEN}",
            "tokens": ALL_TIME,
            "requests": OWN_TIME,
        },
    ),
    "guidellm": Peer(
        "GuideLLM 0.8.1",
        lambda r: r.arrivals[0].at - _written(r) if r.arrivals else None,
        _with_ttft_inside,
        lambda r: r.ended - _written(r) if r.arrivals else None,
        _mean_repeated,
        {
            "ttft": "from the moment the request's header was written, so without connecting; "
            "ours is from the moment the schedule intended it",
            "tpot": "the time to first token is inside it: (last token - start) / tokens; ours is "
            "the time after the first token / (tokens - 1)",
            "itl": "the mean of each request, once a token; ours is of single gaps",
            "e2e": f"from the header written, {TO_THE_END_TOKEN}",
            "tokens": ALL_TIME,
            "requests": OWN_TIME,
        },
        interpolates=False,
        percentiles=(50, 95),
    ),
    "aiperf": Peer(
        "AIPerf 0.13.0",
        _ttft_from_send,
        _after_first,
        _last_token_from_send,
        _mean_once,
        {
            "ttft": SENT,
            "tpot": "called inter token latency there: one mean a request",
            "itl": "one mean a request; ours is of single gaps, weighted by tokens",
            "e2e": SENT,
            "tokens": ALL_TIME,
            "requests": OWN_TIME,
        },
        percentiles=(99, 90, 50),
    ),
}  # fmt: skip


class _Facts:
    """What every layout prints: a peer's figures of the run and ours beside them."""

    def __init__(self, peer: Peer, measured: Measured) -> None:
        self.peer = peer
        self.measured = measured
        self.ok = [r for r in measured.records if r.ok and not is_empty(r)]
        self.failed = len(measured.records) - sum(r.ok for r in measured.records)
        self.tokens = sum(r.output_tokens or 0 for r in self.ok)
        self.prompt_tokens = sum(r.prompt_tokens or 0 for r in self.ok)
        ends = [r.ended for r in self.ok]
        self.seconds = max(ends) - min(_sent(r) for r in self.ok) if ends else 0.0

    def theirs(self, metric: str) -> list[float]:
        of: Of = {"ttft": self.peer.ttft, "tpot": self.peer.tpot, "e2e": self.peer.e2e}[metric]
        return [found for r in self.ok if (found := of(r)) is not None]

    def their_gaps(self) -> list[float]:
        return [gap for r in self.ok for gap in self.peer.itl(r)]

    def ours(self, metric: str) -> list[float]:
        return [found for r in self.ok if (found := value(r, metric)) is not None]

    def our_gaps(self) -> list[float]:
        return [gap for r in self.ok for gap in _gaps_by_token(r)]

    def pairs(self, metric: str) -> tuple[list[float], list[float]]:
        if metric == "itl":
            return self.their_gaps(), self.our_gaps()
        return self.theirs(metric), self.ours(metric)

    def number(self, label: str, metric: str, stat: str | float, unit: float = 1000.0) -> Number:
        """One statistic of a metric, times `unit`: "mean", "min", "max", "std" or a percentile."""
        theirs, ours = self.pairs(metric)
        return Number(
            label,
            _scaled(_stat(theirs, stat, interpolated=self.peer.interpolates), unit),
            _scaled(_stat(ours, stat, interpolated=False), unit),
            self._why(metric, stat),
        )

    def _why(self, metric: str, stat: str | float) -> str:
        why = self.peer.why[metric]
        percentile = isinstance(stat, int | float)
        return f"{why}; {INTERPOLATED}" if percentile and self.peer.interpolates else why

    def rates(self, requests: str, tokens: str) -> list[Number]:
        inside = self.measured.records + self.measured.outside
        start, end = self.measured.window
        finished = sum(r.ok and start <= r.ended < end for r in inside)
        seconds = self.measured.seconds
        return [
            Number(
                requests,
                _rate(len(self.ok), self.seconds),
                _rate(finished, seconds),
                self.peer.why["requests"],
            ),
            Number(
                tokens,
                _rate(self.tokens, self.seconds),
                _rate(tokens_inside(inside, self.measured.window), seconds),
                self.peer.why["tokens"],
            ),
        ]


def _as_vllm(facts: _Facts) -> tuple[list[str], list[Number]]:
    rates = facts.rates("Request throughput (req/s)", "Output token throughput (tok/s)")
    lines = [
        " Serving Benchmark Result ".center(50, "="),
        _wide("Successful requests", f"{len(facts.ok)}"),
        _wide("Failed requests", f"{facts.failed}"),
        _wide("Benchmark duration (s)", _two(facts.seconds)),
        _wide("Total input tokens", f"{facts.prompt_tokens}"),
        _wide("Total generated tokens", f"{facts.tokens}"),
        *(_wide(number.label, _two(number.theirs)) for number in rates),
        _wide(
            "Total token throughput (tok/s)",
            _two(_rate(facts.tokens + facts.prompt_tokens, facts.seconds)),
        ),
    ]
    numbers = list(rates)
    for metric, short, title in (
        ("ttft", "TTFT", "Time to First Token"),
        ("tpot", "TPOT", "Time per Output Token (excl. 1st token)"),
        ("itl", "ITL", "Inter-token Latency"),
        ("e2e", "E2EL", "End-to-end Latency"),
    ):
        lines.append(title.center(50, "-"))
        for name, stat in (("Mean", "mean"), ("Median", 50.0), ("P99", 99.0)):
            number = facts.number(f"{name} {short} (ms)", metric, stat)
            numbers.append(number)
            lines.append(_wide(number.label, _two(number.theirs)))
    lines.append("=" * 50)
    return lines, numbers


def _as_guidellm(facts: _Facts) -> tuple[list[str], list[Number]]:
    numbers = [
        facts.number(f"{name} {word}", metric, stat, unit)
        for name, metric, unit in (
            ("Request Latency Sec", "e2e", 1.0),
            ("TTFT ms", "ttft", 1000.0),
            ("ITL ms", "itl", 1000.0),
            ("TPOT ms", "tpot", 1000.0),
        )
        for word, stat in (("Mdn", 50.0), ("p95", 95.0))
    ]
    cells = [f"{'–' if n.theirs is None else f'{n.theirs:,.1f}'}" for n in numbers]
    rates = facts.rates("Requests Per Sec Mean", "Output Tok Per Sec Mean")
    loop = "concurrent" if facts.measured.loop == "closed" else "poisson"
    lines = [
        "Request Latency Statistics (Completed Requests)",
        *_grid(
            ["Benchmark", "Request Latency", "", "TTFT", "", "ITL", "", "TPOT", ""],
            ["Strategy", "Sec Mdn", "p95", "ms Mdn", "p95", "ms Mdn", "p95", "ms Mdn", "p95"],
            [[loop, *cells]],
        ),
        "",
        "Server Throughput Statistics (All Requests)",
        *_grid(
            ["Benchmark", "Requests", "Output Tok"],
            ["Strategy", "Per Sec Mean", "Per Sec Mean"],
            [[loop, *(_one(number.theirs) for number in rates)]],
        ),
    ]
    return lines, [*numbers, *rates]


def _as_aiperf(facts: _Facts) -> tuple[list[str], list[Number]]:
    stats: tuple[tuple[str, str | float], ...] = (
        ("avg", "mean"), ("min", "min"), ("max", "max"),
        ("p99", 99.0), ("p90", 90.0), ("p50", 50.0), ("std", "std"),
    )  # fmt: skip
    rows, numbers = [], []
    for label, metric in (
        ("Time to First Token (ms)", "ttft"),
        ("Request Latency (ms)", "e2e"),
        ("Inter Token Latency (ms)", "tpot"),
    ):
        found = [facts.number(f"{label} {name}", metric, stat) for name, stat in stats]
        numbers += found
        rows.append([label, *(_two(number.theirs) for number in found)])
    lengths = [float(r.output_tokens) for r in facts.ok if r.output_tokens]
    rows.append(
        ["Output Sequence Length (tokens)", *(_two(_stat(lengths, s, True)) for _, s in stats)]
    )
    rates = facts.rates("Request Throughput (requests/sec)", "Output Token Throughput (tokens/sec)")
    for label, one in (
        (rates[1].label, _two(rates[1].theirs)),
        (rates[0].label, _two(rates[0].theirs)),
        ("Request Count (requests)", f"{len(facts.ok):,}.00"),
    ):
        rows.append([label, one, *["N/A"] * (len(stats) - 1)])
    lines = ["NVIDIA AIPerf | LLM Metrics", *_grid(["Metric", *(s for s, _ in stats)], None, rows)]
    return lines, [*numbers, *rates]


_LAYOUTS: Final = {
    "vllm": _as_vllm,
    "sglang": _as_vllm,  # SGLang's script grew from vLLM's and prints the same table
    "guidellm": _as_guidellm,
    "aiperf": _as_aiperf,
}


def _stat(values: Sequence[float], stat: str | float, interpolated: bool) -> float | None:
    if not values:
        return None
    if stat == "mean":
        return math.fsum(values) / len(values)
    if stat == "std":
        return float(np.std(values))
    if stat in ("min", "max"):
        return min(values) if stat == "min" else max(values)
    assert isinstance(stat, float)
    return float(np.percentile(values, stat)) if interpolated else percentile(values, stat / 100)


def _scaled(number: float | None, unit: float) -> float | None:
    return None if number is None else number * unit


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _wide(label: str, shown: str) -> str:
    return f"{label + ':':<40} {shown:<10}".rstrip()


def _one(number: float | None) -> str:
    return "–" if number is None else f"{number:,.1f}"


def _two(number: float | None) -> str:
    return "–" if number is None else f"{number:,.2f}"


def _plain(number: float | None) -> str:
    return "nothing" if number is None else f"{number:,.2f}"


def _grid(head: list[str], below: list[str] | None, rows: list[list[str]]) -> Iterator[str]:
    """A table in lines of bars, as wide as its cells."""
    lines = [head, *([below] if below else []), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def line(cells: list[str]) -> str:
        shown = (
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(shown)} |"

    yield line(head)
    if below:
        yield line(below)
    yield "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    yield from (line(row) for row in rows)
