"""A running server on a terminal: looks at its metrics in, a page with the current verdict out.

The figures and the verdict are those of `prony diagnose`, over the last seconds.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prony.diagnosis.evidence import Evidence, Server
from prony.diagnosis.judge import Diagnosis, diagnose
from prony.diagnosis.server_side import Page, Series, seen_by_server, series_of
from prony_dashboards.engines import Engine
from prony_dashboards.reading import recognised, values, wanted
from prony_loadgen.exposition import read_page
from prony_loadgen.fetch import FetchError, fetch
from prony_loadgen.scrape import ACCEPT, LARGEST, PATHS, telling
from prony_loadgen.target import Target, TargetError
from prony_loadgen.words import count, ms, rate, share

RECENT: Final = 5.0  # seconds that the figures look back
KEPT: Final = 30.0  # seconds that the verdict looks back
HISTORY: Final = 40  # values of a small chart
VERDICTS: Final = 3  # shown
TIMEOUT: Final = 5.0  # for one page
BARS: Final = " ▁▂▃▄▅▆▇█"


class Blind(Exception):
    """The target's metrics cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known at one moment."""

    url: str
    engine: Engine
    server: Server | None  # None: too few looks yet
    tokens: float | None  # a second, whatever ended
    diagnosis: Diagnosis | None
    charts: dict[str, tuple[float, ...]]
    trouble: str | None = None  # why the last look failed


class Watch:
    """The looks at one target, the last few kept."""

    def __init__(self, target: Target, now: Callable[[], float] = time.monotonic) -> None:
        self._target, self._now = target, now
        self._paths = [target.path(path, versioned=False) for path in PATHS]
        self._engine: Engine | None = None
        self._pages: deque[Page] = deque()
        self._charts: dict[str, deque[float]] = {}

    def look(self) -> Frame:
        """Asks once. Raises Blind where it never got an answer that can be read."""
        trouble = None
        try:
            self._pages.append(self._page())
        except Blind as error:
            if self._engine is None:
                raise
            trouble = str(error)
        assert self._engine is not None
        while self._pages and self._pages[0][0] < self._now() - KEPT:
            self._pages.popleft()
        since = self._now() - RECENT - 0.5
        recent = [page for page in self._pages if page[0] >= since]
        server = seen_by_server(self._engine, recent)
        tokens = _tokens(self._engine, recent)
        if server is not None and trouble is None:
            self._chart(server, tokens)
        return Frame(
            self._target.url,
            self._engine,
            server,
            tokens,
            self._diagnosis(),
            {name: tuple(seen) for name, seen in self._charts.items()},
            trouble,
        )

    def _diagnosis(self) -> Diagnosis | None:
        assert self._engine is not None
        server = seen_by_server(self._engine, list(self._pages))
        return None if server is None else diagnose(Evidence(server=server))

    def _chart(self, server: Server, tokens: float | None) -> None:
        for name, value in (("tokens/s", tokens), *_charted(server)):
            if value is not None:
                self._charts.setdefault(name, deque(maxlen=HISTORY)).append(value)

    def _page(self) -> Page:
        failures: list[str] = []
        for path in list(self._paths):
            try:
                answer = fetch(self._target, path, TIMEOUT, headers=[ACCEPT], most=LARGEST)
            except (FetchError, TargetError) as error:
                failures.append(f"{path}: {error}")
                continue
            if answer.status != 200:
                failures.append(f"{path}: HTTP {answer.status}")
                continue
            self._paths = [path]
            text = answer.body.decode("utf-8", "replace")
            if self._engine is None:
                self._engine = recognised(read_page(text).samples.keys())
            if self._engine is None:
                raise Blind(f"{path}: of no engine that is known (see docs/dashboards.md)")
            return self._now(), series_of(read_page(text, wanted(self._engine)).samples)
        raise Blind(telling(failures))


def page(frame: Frame) -> RenderableType:
    """The page of a moment, for a terminal of any width."""
    parts: list[RenderableType] = [
        Text.assemble((frame.engine.title, "bold"), f" at {frame.url}", style="")
    ]
    if frame.trouble is not None:
        parts.append(Text(f"no answer: {frame.trouble}", style="bold red"))
    if frame.server is None:
        parts.append(Text("waiting for a second look ...", style="dim"))
        return Group(*parts)
    parts += [Text(f"over the last {frame.server.seconds:.0f} s", style="dim"), Text("")]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for style in ("dim", "", "dim", ""):
        table.add_column(no_wrap=True, style=style)
    for row in _rows(frame.server, frame.tokens, frame.charts):
        table.add_row(*row)
    parts += [table, Text(""), *_verdicts(frame.diagnosis)]
    return Group(*parts)


def _charted(server: Server) -> Iterator[tuple[str, float | None]]:
    yield "requests/s", None if server.requests is None else server.requests / server.seconds
    yield "TTFT", server.ttft
    yield "E2E", server.e2e
    yield "running", server.running
    yield "waiting", server.waiting
    yield "KV cache", server.kv


def _rows(
    server: Server, tokens: float | None, charts: dict[str, tuple[float, ...]]
) -> Iterator[list[Any]]:
    requests = None if server.requests is None else server.requests / server.seconds
    cells: list[tuple[str, str, str]] = [
        ("requests/s", rate(requests), "requests/s"),
        ("tokens/s", rate(tokens), "tokens/s"),
        ("TTFT", ms(server.ttft), "TTFT"),
        ("E2E", ms(server.e2e), "E2E"),
        ("queue", ms(server.queue), ""),
        ("prefill", ms(server.prefill), ""),
        ("decode", ms(server.decode), ""),
        ("running", _of(server.running, server.slots), "running"),
        ("waiting", _one(server.waiting), "waiting"),
        ("KV cache", share(server.kv), "KV cache"),
        ("preemptions", f"{_one(server.preemptions)} a request", ""),
        ("prefix hits", share(server.prefix_hits), ""),
        ("loop lag", ms(server.loop_lag), ""),
        ("memory", _memory(server.memory), ""),
    ]
    known = [(name, text, chart) for name, text, chart in cells if not text.startswith("–")]
    charted = [each for each in known if each[2] in charts]
    plain = [each for each in known if each[2] not in charts]
    plain += [(f"in {name}", share(part), "") for name, part in _stages(server)]
    for row in range(max(len(charted), len(plain))):
        left = charted[row] if row < len(charted) else ("", "", "")
        right = plain[row] if row < len(plain) else ("", "", "")
        bars = spark(charts[left[2]]) if left[2] else ""
        yield [left[0], Text.assemble(f"{left[1]:>14}  ", (bars, "cyan")), right[0], right[1]]


def _stages(server: Server) -> Iterator[tuple[str, float]]:
    """What the engine's loop does, the largest parts first."""
    if server.busy:
        for name, seconds in sorted(server.stages.items(), key=lambda each: -each[1])[:4]:
            if name != "idle" and seconds > 0:
                yield name, seconds / server.busy


def _verdicts(diagnosis: Diagnosis | None) -> Iterator[RenderableType]:
    if diagnosis is None:
        return
    for at, verdict in enumerate(diagnosis.verdicts[:VERDICTS]):
        cost = "" if not verdict.found.cost else f", {ms(verdict.found.cost)} a request"
        style = "bold green" if verdict.id == "none" else "bold yellow" if at == 0 else "bold"
        yield Text.assemble(
            (verdict.title, style), (f"  {share(verdict.found.confidence)} sure{cost}", "dim")
        )
        yield Text(verdict.found.why, style="" if at == 0 else "dim")
        if at == 0 and verdict.advice:
            yield Text(f"try: {verdict.advice[0]}")


def spark(values: Sequence[float]) -> str:
    """A small chart of letters; its height is the largest value."""
    top = max(values, default=0.0)
    if top <= 0:
        return BARS[1] * len(values)
    return "".join(BARS[max(1, round(value / top * (len(BARS) - 1)))] for value in values)


def _tokens(engine: Engine, pages: Sequence[Page]) -> float | None:
    """Tokens a second between the first and the last page, whether or not a request ended."""
    if len(pages) < 2:
        return None
    (start, first), (end, last) = pages[0], pages[-1]
    was, now = (_generated(engine, series) for series in (first, last))
    return None if was is None or now is None or now < was else (now - was) / (end - start)


def _generated(engine: Engine, series: Series) -> float | None:
    by_name: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, labels, value in series:
        by_name.setdefault(name, []).append((labels, value))
    return values(engine, by_name).get("generation_tokens")


def _of(value: float | None, whole: float | None) -> str:
    return _one(value) if whole is None else f"{_one(value)} of {count(whole)}"


def _one(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _memory(size: float | None) -> str:
    return "–" if size is None else f"{size / 2**20:,.0f} MiB"
