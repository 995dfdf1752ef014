"""What a run looks like while it goes on: finished requests in, figures of the last seconds out.

Percentiles are a sketch's, within 1 %; the exact ones come from the records, when the run is over.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Self

from prony_loadgen.record import RequestRecord
from prony_loadgen.sketch import Sketch

LATENCIES = ("ttft", "tpot", "e2e")
SHARES = (0.5, 0.9, 0.99)
RECENT = 5.0  # seconds that one point of the timeline looks back
HISTORY = 1800  # points kept


class Live:
    """Counts and sketches of requests. Those of several seconds or workers add up."""

    def __init__(self, *, gaps: bool = False) -> None:
        """`gaps` counts every token's gap too, which costs half a microsecond a token."""
        self.gaps = gaps
        self.sketches = {name: Sketch() for name in (*LATENCIES, "itl", "send_lag")}
        self.outcomes: Counter[tuple[str, str]] = Counter()  # by outcome and class
        self.tokens = 0
        self.offered = 0

    @property
    def finished(self) -> int:
        return sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        return sum(n for (outcome, _), n in self.outcomes.items() if outcome != "ok")

    def add(self, record: RequestRecord) -> None:
        """Counts a finished request. Latencies are those of requests that succeeded."""
        self.outcomes[record.outcome, record.cls] += 1
        self.tokens += record.output_tokens or 0
        self._note("send_lag", record.send_lag)
        if not record.ok:
            return
        for name in LATENCIES:
            self._note(name, getattr(record, name))
        if self.gaps:
            for seconds, weight in record.itl:
                if seconds >= 0 and (times := round(weight)):
                    self.sketches["itl"].add(seconds, times)

    def merge(self, other: "Live") -> None:
        for name, sketch in self.sketches.items():
            sketch.merge(other.sketches[name])
        self.outcomes.update(other.outcomes)
        self.tokens += other.tokens
        self.offered += other.offered

    def to_json(self) -> dict[str, Any]:
        """For a message to the master."""
        sketches = {name: s.to_json() for name, s in self.sketches.items() if s.count}
        outcomes = [[outcome, cls, n] for (outcome, cls), n in self.outcomes.items()]
        return {
            "sketches": sketches,
            "outcomes": outcomes,
            "tokens": self.tokens,
            "offered": self.offered,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        live = cls()
        for name, numbers in told["sketches"].items():
            live.sketches[name] = Sketch.from_json(numbers)
        live.outcomes = Counter({(outcome, name): n for outcome, name, n in told["outcomes"]})
        live.tokens, live.offered = told["tokens"], told["offered"]
        return live

    def _note(self, name: str, seconds: float | None) -> None:
        # A negative one is a broken clock, which the doubts count.
        if seconds is not None and seconds >= 0:
            self.sketches[name].add(seconds)


class Timeline:
    """A run's seconds: the one under way, the last few, and a point for each that has gone."""

    def __init__(self) -> None:
        self.gaps = False  # see Live
        self.points: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.in_flight = 0
        self._gone = Live()
        self._second = Live()
        self._recent: deque[tuple[float, Live]] = deque()  # with the second's end
        self._began = 0.0

    def add(self, record: RequestRecord) -> None:
        self._second.add(record)

    def offered(self, requests: int = 1) -> None:
        """So many more were handed to the client."""
        self._second.offered += requests

    def merge(self, other: Live) -> None:
        """What a worker saw in a second."""
        self._second.merge(other)

    def tick(self, now: float, in_flight: int) -> Live:
        """Ends the second under way, at `now` on the run's clock; returns what was seen in it."""
        second, self._second = self._second, Live(gaps=self.gaps)
        self.in_flight = in_flight
        self._gone.merge(second)
        self._recent.append((now, second))
        while self._recent and self._recent[0][0] <= now - RECENT + 1e-3:
            self._began = self._recent.popleft()[0]
        self.points.append(self._point(now))
        return second

    def total(self) -> Live:
        """Everything up to this moment."""
        total = Live()
        total.merge(self._gone)
        total.merge(self._second)
        return total

    def line(self, now: float) -> str:
        """ "12 s  8.1/s  5 in flight  TTFT p50 31 ms p99 88 ms  0 errors"; `now` in seconds."""
        point = self.points[-1] if self.points else self._point(now)
        p50, _, p99 = point["ttft"] or self._gone.sketches["ttft"].percentiles(SHARES)
        ttft = "–" if p50 is None or p99 is None else f"p50 {_ms(p50)}  p99 {_ms(p99)}"
        failed = self._gone.failed
        return (
            f"{max(now, 0):5.0f} s  {point['requests_per_s']:6.1f}/s  "
            f"{self.in_flight:4d} in flight  "
            f"TTFT {ttft}  {failed} {'error' if failed == 1 else 'errors'}"
        )

    def _point(self, now: float) -> dict[str, Any]:
        recent = Live()
        for _, second in self._recent:
            recent.merge(second)
        # The first seconds of a run are fewer than a point looks back.
        seconds = max(now - max(self._began, now - RECENT), 1e-3)
        percentiles = {
            name: recent.sketches[name].percentiles(SHARES) if recent.sketches[name].count else None
            for name in LATENCIES
        }
        return {
            "at": round(now, 2),
            **percentiles,
            "requests_per_s": recent.finished / seconds,
            "tokens_per_s": recent.tokens / seconds,
            "errors_per_s": recent.failed / seconds,
            "in_flight": self.in_flight,
        }


def _ms(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"
