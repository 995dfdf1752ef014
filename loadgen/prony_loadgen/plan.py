"""What a run will send, before it sends anything: a scenario in, counts out."""

import random
from dataclasses import dataclass
from itertools import islice

from prony_loadgen.arrivals import offsets
from prony_loadgen.prompts import input_lengths, output_lengths, prompt_rows
from prony_loadgen.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Plan:
    """Exact in open loop; in closed loop the target decides what is None here."""

    requests: int | None  # all of them, warm-up and measured
    measured: int | None  # those after the warm-up
    input_tokens: int | None  # None where the prompts come from a file: nobody has counted them
    output_tokens: int | None  # asked for; in natural mode the most that can come
    seconds: float | None  # until the last request is sent

    def lines(self) -> list[str]:
        """The plan for people."""
        parts = []
        if self.requests is not None:
            parts.append(f"{self.requests:,} requests ({self.measured:,} measured)")
        elif self.measured is not None:
            parts.append(f"{self.measured:,} measured requests")
        if self.seconds is not None:
            parts.append(f"in {minutes(self.seconds)}")
        if self.input_tokens is not None:
            parts.append(f"about {self.input_tokens:,} tokens in")
        if self.output_tokens is not None:
            parts.append(f"{self.output_tokens:,} tokens out")
        if self.requests is None or self.seconds is None:
            parts.append("in closed loop the target decides the rest")
        return [f"plan: {', '.join(parts)}"]


def schedule(scenario: Scenario, limit: float | None = None) -> list[float]:
    """The open-loop scenario's offsets, up to `limit` seconds where something else ends the run."""
    arrivals = scenario.arrivals
    assert arrivals.rate is not None
    times = offsets(
        arrivals.process,
        arrivals.rate,
        random.Random(f"{scenario.seed} arrivals"),
        warmup=scenario.warmup or 0.0,
        duration=scenario.duration,
        requests=scenario.requests,
    )
    return times if limit is None else [at for at in times if at < limit]


def make_plan(scenario: Scenario, limit: float | None = None) -> Plan:
    """The plan of `scenario`. Raises FileError where its prompts file is bad."""
    rows = None if scenario.prompts.file is None else prompt_rows(scenario)
    if not scenario.arrivals.open_loop:
        return _closed(scenario, limit)
    times = schedule(scenario, limit)
    count = len(times)
    drawn = islice(output_lengths(scenario), count)
    if rows is None:
        input_tokens, output_tokens = sum(islice(input_lengths(scenario), count)), sum(drawn)
    else:
        input_tokens = None
        own = (rows[number % len(rows)].output_tokens for number in range(count))
        output_tokens = sum(a if a is not None else b for a, b in zip(own, drawn, strict=True))
    return Plan(
        requests=count,
        measured=sum(at >= (scenario.warmup or 0.0) for at in times),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        seconds=times[-1] if times else 0.0,
    )


def minutes(seconds: float) -> str:
    """ "33 s", "2 min 5 s"."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


def _closed(scenario: Scenario, limit: float | None) -> Plan:
    ends = [] if scenario.duration is None else [(scenario.warmup or 0.0) + scenario.duration]
    ends += [] if limit is None else [limit]
    measured = scenario.requests
    exact = scenario.requests if not scenario.warmup and not ends else None
    return Plan(exact, measured, None, None, min(ends, default=None))
