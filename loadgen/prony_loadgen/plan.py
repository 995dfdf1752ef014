"""What a run will send, before it sends anything: a scenario in, counts out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from prony_loadgen.prompts import Outline, fits, outlines, rows_of, trace_of
from prony_loadgen.scenario import MOST_REQUESTS, Scenario
from prony_loadgen.schedule import schedule
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.token_count import BY_WORDS, TokenCount

_SHOWN = 5  # prompts that do not fit, by name


@dataclass(frozen=True, slots=True)
class Plan:
    """Exact in open loop; in closed loop the target decides what is None here."""

    requests: int | None  # all of them, warm-up and measured
    measured: int | None  # those after the warm-up
    input_tokens: int | None  # None where the prompts come from a file: nobody has counted them
    output_tokens: int | None  # asked for; in natural mode the most that can come
    seconds: float | None  # until the last request is sent
    # What is known of what is asked: how many rows there are and are sent again, for run.json.
    workload: dict[str, Any] = field(default_factory=dict)

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
        return [f"plan: {', '.join(parts)}", *self._notes()]

    def _notes(self) -> Iterator[str]:
        known = self.workload
        if turns := known.get("later_turns"):
            yield f"plan: and {turns:,} later turns, each after the answer before it"
        if again := known.get("reused_rows"):
            then = (
                "come from a row again, with other words"
                if "out_of_order" in known
                else "repeat an earlier prompt, which a server may have cached"
            )
            rows = f"note: {known['rows']:,} rows are sent in order, then again"
            yield f"{rows}: {again:,} requests {then}"
        if known.get("too_long"):
            yield (
                f"note: {known['too_long']:,} of the first {known['requests']:,} prompts do not "
                "fit the context: others take their place"
            )
        if known.get("skipped_rows"):
            yield f"note: {known['skipped_rows']:,} rows of the trace have no output: left out"
        if known.get("out_of_order"):
            yield (
                f"note: {known['out_of_order']:,} rows of the trace came late in its file; they "
                "are sent in the order of their times"
            )


def make_plan(
    scenario: Scenario, limit: float | None = None, tokens: TokenCount = BY_WORDS
) -> Plan:
    """The plan of `scenario`.

    Raises FileError where a file of it is bad, or prompts do not fit the context and may not be
    left out.
    """
    stream = outlines(scenario, tokens)
    first = next(stream)  # reads what files there are
    if not scenario.arrivals.open_loop:
        _refuse_too_long(scenario, list(islice(chain([first], stream), 1000)), tokens)
        return _closed(scenario, limit)
    times = schedule(scenario, limit)
    sent = _bounded(islice(chain([first], stream), len(times)))
    _refuse_too_long(scenario, sent, tokens)
    counted = [outline.input_tokens for outline in sent]
    known = [tokens for tokens in counted if tokens is not None]
    later = [turn for outline in sent for turn in outline.turns]
    return Plan(
        requests=len(times),
        measured=sum(at >= scenario.set_warmup for at in times),
        input_tokens=sum(known) if len(known) == len(counted) and not later else None,
        output_tokens=sum(o.output_tokens for o in sent) + sum(t.output_tokens for t in later),
        seconds=times[-1] if times else 0.0,
        workload=_workload(scenario, sent, len(later), tokens),
    )


def _bounded(stream: Iterator[Outline]) -> list[Outline]:
    """All of them. Raises FileError where their later turns make them more than may be planned."""
    sent: list[Outline] = []
    total = 0
    for outline in stream:
        total += 1 + len(outline.turns)
        if total > MOST_REQUESTS:
            raise FileError(
                [f"turns: more than {MOST_REQUESTS:,} requests with all later turns: fewer turns, "
                 "a lower rate or a shorter duration"]
            )  # fmt: skip
        sent.append(outline)
    return sent


def minutes(seconds: float) -> str:
    """ "33 s", "2 min 5 s"."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


def _closed(scenario: Scenario, limit: float | None) -> Plan:
    ends = [] if scenario.duration is None else [scenario.set_warmup + scenario.duration]
    ends += [] if limit is None else [limit]
    measured = scenario.requests
    exact = scenario.requests if not scenario.warmup and not ends else None
    return Plan(exact, measured, None, None, min(ends, default=None))


def _refuse_too_long(scenario: Scenario, sent: Sequence[Outline], tokens: TokenCount) -> None:
    """Raises FileError where prompts cannot fit the context and the scenario minds it."""
    lines: list[str] = []
    for number, kind in enumerate(scenario.classes or (None,)):
        prompts = None if kind is None else kind.prompts
        if prompts is not None and prompts.too_long != "refuse":
            continue
        mine = [each for each in sent if each.kind == number]
        bad = [each for each in mine if fits(each, prompts, tokens) is False]
        if not bad:
            continue
        context = (prompts and prompts.context) or tokens.context
        where = "prompts" if scenario.mix is None else f"mix.{kind.name}.prompts" if kind else ""
        if kind is None:
            where = "arrivals.trace"
        worst = max(bad, key=lambda each: (each.input_tokens or 0) + each.output_tokens)
        named = sorted({each.row.line for each in bad if each.row is not None})
        if named and prompts is not None:
            some = ", ".join(f"line {line}" for line in named[:_SHOWN])
            where = f"{prompts.file}: {some}" + (" and more" if len(named) > _SHOWN else "")
        asked = "its words" if worst.input_tokens is None else f"{worst.input_tokens:,} tokens"
        lines.append(
            f"{where}: {len(bad):,} of {len(mine):,} requests cannot fit the context of "
            f"{context:,} tokens (the longest: {asked} in, {worst.output_tokens:,} out); "
            + (
                "shorter lengths, or length_scale"
                if kind is None
                else "shorter ones, or too_long: drop (leave them out) or send"
            )
        )
    if lines:
        raise FileError(lines)


def _workload(
    scenario: Scenario, sent: Sequence[Outline], later: int, tokens: TokenCount
) -> dict[str, Any]:
    """What run.json says of what is asked."""
    facts: dict[str, Any] = {"requests": len(sent), "later_turns": later}
    # Of distinct prompts: what is sent again, a server's prefix cache may hold.
    facts["distinct_share"] = 1.0
    if scenario.arrivals.trace is not None:
        trace = trace_of(scenario)
        facts["rows"] = len(trace.rows)
        facts["skipped_rows"] = trace.skipped
        facts["out_of_order"] = trace.out_of_order
        if not scenario.classes:
            # A trace that begins again gets other words.
            facts["reused_rows"] = max(0, len(sent) - len(trace.rows))
            facts["shared_prefix_share"] = _shared(sent)
            return facts
    if any(kind.prompts.too_long == "drop" for kind in scenario.classes):
        every = islice(outlines(scenario, tokens, too_long=True), len(sent))
        prompts = [kind.prompts for kind in scenario.classes]
        facts["too_long"] = sum(fits(o, prompts[o.kind], tokens) is False for o in every)
    files = [k for k in scenario.classes if k.prompts.file is not None]
    rows = [len(rows_of(scenario, kind.prompts)) for kind in files]
    if files:
        seen = len({(o.kind, o.row.line) for o in sent if o.row is not None})
        facts["rows"] = sum(rows)
        facts["reused_rows"] = sum(o.row is not None for o in sent) - seen
        if sent:
            facts["distinct_share"] = round(1 - facts["reused_rows"] / len(sent), 4)
    shared = [_shared_tokens(scenario, outline) for outline in sent]
    known = sum(o.input_tokens or 0 for o in sent)
    facts["shared_prefix_share"] = round(sum(shared) / known, 4) if known else None
    return facts


def _shared_tokens(scenario: Scenario, outline: Outline) -> float:
    """The tokens of a made prompt that others start with too, on average."""
    prefix = scenario.classes[outline.kind].prompts.prefix
    if prefix is None:
        return 0.0
    return float(prefix.hit_share * sum(size for size, _ in prefix.levels))


def _shared(sent: Sequence[Outline]) -> float | None:
    """The share of prompt blocks that an earlier request of the trace had at the same place."""
    seen: set[tuple[int, int, int]] = set()
    hits = total = 0
    for outline in sent:
        for place, block in enumerate(outline.trace_row.blocks if outline.trace_row else ()):
            key = (outline.trace_turn, place, block)
            hits += key in seen
            seen.add(key)
            total += 1
    return round(hits / total, 4) if total else None
