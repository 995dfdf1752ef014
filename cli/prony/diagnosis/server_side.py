"""The server's view, for a diagnosis: pages of its metrics and the map of engines in, a Server out.

Ratios are of sums over the whole span, never means of ratios or quantiles of quantiles. How many
requests wait and run is told by Little's law from the times in queue and engine, where the engine
tells them: a gauge that is looked at once a second misses what lies between.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite

import numpy as np

from prony.diagnosis.evidence import Server, Steps
from prony_dashboards.engines import Concept, Engine, Source
from prony_dashboards.reading import matches

Series = Sequence[tuple[str, Mapping[str, str], float]]  # name, labels, value
Page = tuple[float, Series]  # when, on one clock in seconds

# What a diagnosis misses most where an engine does not tell it.
WANTED: tuple[Concept, ...] = (
    "queue_time", "prefill_time", "decode_time", "kv_usage", "slots", "token_budget",
    "preemptions", "iteration_time", "iteration_tokens", "scheduler_stages", "tokenize_time",
    "loop_lag",
)  # fmt: skip
SHORT_LEAK = 4  # pages; fewer draw no line


def seen_by_server(engine: Engine, pages: Sequence[Page]) -> Server | None:
    """What the first and the last page, and the gauges between them, say; None of under two."""
    if len(pages) < 2:
        return None
    look = _Look(engine, pages)
    seconds = pages[-1][0] - pages[0][0]
    requests = look.events("e2e") or look.events("requests")
    e2e, queue = look.mean("e2e"), look.mean("queue_time")
    prefill, decode = look.phase("prefill_time", requests), look.phase("decode_time", requests)
    if engine.name == "tgi":  # it times decode by iteration; what is left of a request is decode
        known = None not in (e2e, queue, prefill)
        decode = max(0.0, (e2e or 0) - (queue or 0) - (prefill or 0)) if known else None
    prompt_tokens, prefills = look.gained("prompt_tokens"), look.prefill_steps()
    hits = look.share("prefix_hits")
    memory, growth, steady = look.line("memory")
    running = look.per_second("prefill_time", "decode_time")
    return Server(
        engine=engine.name,
        seconds=seconds,
        requests=requests,
        e2e=e2e,
        ttft=look.mean("ttft"),
        queue=queue,
        prefill=prefill,
        decode=decode,
        itl=look.mean("itl"),
        itl_p50=look.quantile("itl", 0.5),
        itl_p99=look.quantile("itl", 0.99),
        tokenize=look.mean("tokenize_time"),
        detokenize=look.mean("detokenize_time"),
        write_wait=look.mean("write_wait"),
        running=look.gauge("running") if running is None else running,
        running_most=look.most("running"),
        running_held=look.gauge("running", whenever="waiting"),
        waiting=_first(look.per_second("queue_time"), look.gauge("waiting")),
        slots=look.last("slots"),
        budget=look.last("token_budget"),
        kv=look.gauge("kv_usage", whenever="waiting"),
        kv_most=look.most("kv_usage"),
        preemptions=_over(look.gained("preemptions"), requests),
        prefix_hits=hits,
        prompt_tokens=_over(prompt_tokens, requests),
        generation_tokens=_over(look.gained("generation_tokens"), requests),
        steps=look.steps(),
        longer_steps=look.longer("iteration_time"),
        batch=look.mean("batch_size"),
        step_tokens=look.mean("iteration_tokens"),
        prefill_step_tokens=_over(
            None if prompt_tokens is None else prompt_tokens * (1 - (hits or 0.0)), prefills
        ),
        stages=look.by("scheduler_stages"),
        forward=look.forward(),
        gpu=engine.name != "prony" or look.gauge("gpu_active") is not None,
        loop_lag=look.mean("loop_lag"),
        loop_lag_p99=look.quantile("loop_lag", 0.99),
        engine_cpu=_over(look.gained("engine_cpu"), seconds),
        loop_cpu=_over(look.gained("loop_cpu"), seconds),
        cpu=_over(look.gained("cpu"), seconds),
        memory=memory,
        memory_growth=growth,
        memory_steady=steady,
        out_of_memory=look.gained("out_of_memory"),
        device_retries=look.gained("device_retries"),
        rejected=look.gained("rejected"),
        gpu_active=look.gauge("gpu_active"),
        gpu_dram=look.gauge("gpu_dram"),
        gpu_throttled=look.gauge("gpu_throttled"),
        missing=tuple(dict.fromkeys(engine.absent[c] for c in WANTED if c in engine.absent)),
    )


def series_of(samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]) -> Series:
    """A page's samples in a row, without those that are NaN or infinite: they say nothing."""
    return [(name, labels, value) for name, each in samples.items()
            for labels, value in each if isfinite(value)]  # fmt: skip


def without(
    engine: Engine, pages: Sequence[Page], spans: Sequence[tuple[float, float]]
) -> list[Page]:
    """The pages as if time had stood still in the spans, in which a profiler was at work.

    What counters rose by from the last page before a span to the first after it, and the time
    between the two, is taken from all later pages.
    """
    gauges = {source.metric for source in engine.sources.values() if source.kind == "gauge"}
    kept: list[Page] = []
    lost: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    gap, last = 0.0, None
    for at, series in pages:
        if any(start <= at < end for start, end in spans):
            continue
        if last is not None and any(last[0] < end and start < at for start, end in spans):
            gap += at - last[0]
            before = {_key(name, labels): value for name, labels, value in last[1]}
            for name, labels, value in series:
                key = _key(name, labels)
                rise = value - before.get(key, 0.0)
                # A counter that fell began anew, with the server.
                if name not in gauges and rise > 0:
                    lost[key] = lost.get(key, 0.0) + rise
        last = at, series
        if lost:
            series = [(n, labels, v - lost.get(_key(n, labels), 0.0)) for n, labels, v in series]
        kept.append((at - gap, series))
    return kept


def _key(name: str, labels: Mapping[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


class _Look:
    """The pages by name, as the engine's map reads them."""

    def __init__(self, engine: Engine, pages: Sequence[Page]) -> None:
        self._engine = engine
        self._times = [at for at, _ in pages]
        self._pages = [_by_name(series) for _, series in pages]

    def gained(self, concept: Concept, part: str = "", **labels: str) -> float | None:
        """By how much a counter rose; None where the page does not have it."""
        source = self._engine.sources.get(concept)
        if source is None:
            return None
        if source.kind == "histogram":
            part = part or "_sum"
        first, last = (self._sum(page, source, part, labels) for page in self._ends())
        return _risen(first, last)

    def events(self, concept: Concept, **labels: str) -> float | None:
        """How many: observations of a histogram, or events of a counter."""
        source = self._engine.sources.get(concept)
        histogram = source is not None and source.kind == "histogram"
        return self.gained(concept, "_count" if histogram else "", **labels)

    def mean(self, concept: Concept, **labels: str) -> float | None:
        """Of what a histogram observed meanwhile."""
        source = self._engine.sources.get(concept)
        if source is None or source.kind != "histogram":
            return None
        return _over(self.gained(concept, "_sum", **labels), self.events(concept, **labels))

    def phase(self, concept: Concept, requests: float | None) -> float | None:
        """Seconds of a phase, a request. SGLang observes a phase once a piece: they are summed."""
        source = self._engine.sources.get(concept)
        if source is not None and source.only and self._engine.name == "sglang":
            return _over(self.gained(concept), requests)
        return self.mean(concept)

    def per_second(self, *concepts: Concept) -> float | None:
        """Seconds of a time that was spent each second, which is how many spent it at a time."""
        sums = [self.gained(c, "_sum") for c in concepts if self._is_time(c)]
        known = [each for each in sums if each is not None]
        span = self._times[-1] - self._times[0]
        return sum(known) / span if known and len(known) == len(concepts) and span > 0 else None

    def _is_time(self, concept: Concept) -> bool:
        source = self._engine.sources.get(concept)
        # TGI's and SGLang's prefill and decode are of batches and of pieces, not of requests.
        return source is not None and source.kind == "histogram" and not source.only

    def quantile(self, concept: Concept, share: float) -> float | None:
        """The bound of the bucket in which it lies; None where nothing was observed."""
        source = self._engine.sources.get(concept)
        if source is None or source.kind != "histogram":
            return None
        rises = self._rises(source)
        if not rises or rises[-1][1] <= 0:
            return None
        wanted = share * rises[-1][1]
        found = next(bound for bound, count in rises if count >= wanted)
        return found if found < inf else rises[-2][0] if len(rises) > 1 else None

    def longer(self, concept: Concept) -> dict[float, float]:
        """For each bound of a histogram's buckets, how many observations were above it."""
        source = self._engine.sources.get(concept)
        rises = [] if source is None or source.kind != "histogram" else self._rises(source)
        return {bound: rises[-1][1] - count for bound, count in rises if bound < inf}

    def _rises(self, source: Source) -> list[tuple[float, float]]:
        first, last = (self._buckets(page, source) for page in self._ends())
        return sorted((bound, count - first.get(bound, 0.0)) for bound, count in last.items())

    def by(self, concept: Concept) -> dict[str, float]:
        """A counter's rise for each value of the label that tells its kinds apart."""
        source = self._engine.sources.get(concept)
        if source is None or not source.by:
            return {}
        label = source.by
        kinds = {
            labels[label]
            for labels, _ in self._pages[-1].get(source.metric, ())
            if label in labels and matches(source.only, labels)
        }
        risen = {kind: self.gained(concept, **{label: kind}) for kind in sorted(kinds)}
        return {kind: value for kind, value in risen.items() if value is not None}

    def steps(self) -> dict[str, Steps]:
        """The engine's iterations, all and by kind, where it tells the time of them."""
        found: dict[str, Steps] = {}
        label = "method" if self._engine.name == "tgi" else "kind"
        for kind in ("all", "decode", "prefill", "mixed"):
            labels = {} if kind == "all" else {label: kind}
            count = self.events("iteration_time", **labels)
            mean = self.mean("iteration_time", **labels)
            if count and mean is not None:
                found[kind] = Steps(count, mean)
        return found

    def prefill_steps(self) -> float | None:
        counts = [self.events("iteration_time", kind=kind) for kind in ("prefill", "mixed")]
        known = [each for each in counts if each is not None]
        return sum(known) if known else None

    def forward(self) -> float | None:
        """Seconds in which the model ran."""
        source = self._engine.sources.get("host_share")
        if source is None or source.kind != "counter":
            return None
        return self.gained("host_share")

    def share(self, concept: Concept) -> float | None:
        """A share of 0..1: a gauge that is one, or a counter over what it is a part of."""
        source = self._engine.sources.get(concept)
        if source is None:
            return None
        if not source.of:
            return self.gauge(concept)
        whole = [sum(v for _, v in page.get(source.of, ())) for page in self._ends()]
        return _over(self.gained(concept), whole[1] - whole[0])

    def gauge(self, concept: Concept, whenever: Concept | None = None) -> float | None:
        """The mean of a gauge over the pages; of those where `whenever` was above 0, if any."""
        values = self._levels(concept)
        if whenever is not None:
            told = self._levels(whenever)
            values = [v for v, w in zip(values, told, strict=False) if w] or values
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    def most(self, concept: Concept) -> float | None:
        return max((v for v in self._levels(concept) if v is not None), default=None)

    def last(self, concept: Concept) -> float | None:
        levels = self._levels(concept)
        return levels[-1] if levels else None

    def line(self, concept: Concept) -> tuple[float | None, float | None, float | None]:
        """A gauge's last value, its growth a second, and how straight that line is (r squared)."""
        pairs = [(at, v) for at, v in zip(self._times, self._levels(concept), strict=False)
                 if v is not None]  # fmt: skip
        if not pairs:
            return None, None, None
        if len(pairs) < SHORT_LEAK:
            return pairs[-1][1], None, None
        times, values = np.array(pairs).T
        slope = float(np.polyfit(times, values, 1)[0])
        if float(values.std()) == 0:
            return float(values[-1]), 0.0, 0.0
        return float(values[-1]), slope, float(np.corrcoef(times, values)[0, 1]) ** 2

    def _levels(self, concept: Concept) -> list[float | None]:
        source = self._engine.sources.get(concept)
        if source is None or source.kind != "gauge":
            return []
        return [self._sum(page, source, "", {}) for page in self._pages]

    def _ends(self) -> tuple[dict[str, list[tuple[Mapping[str, str], float]]], ...]:
        return self._pages[0], self._pages[-1]

    @staticmethod
    def _sum(
        page: Mapping[str, Sequence[tuple[Mapping[str, str], float]]],
        source: Source,
        part: str,
        labels: Mapping[str, str],
    ) -> float | None:
        chosen = [
            value
            for told, value in page.get(source.metric + part, ())
            if matches(source.only, told) and labels.items() <= told.items()
        ]
        return sum(chosen) if chosen else None

    @staticmethod
    def _buckets(
        page: Mapping[str, Sequence[tuple[Mapping[str, str], float]]], source: Source
    ) -> dict[float, float]:
        counts: dict[float, float] = {}
        for labels, value in page.get(f"{source.metric}_bucket", ()):
            bound = _bound(labels.get("le", ""))
            if bound is not None and matches(source.only, labels):
                counts[bound] = counts.get(bound, 0.0) + value
        return counts


def _by_name(series: Series) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, labels, value in series:
        found.setdefault(name, []).append((labels, value))
    return found


def _bound(told: str) -> float | None:
    try:
        return float(told)
    except ValueError:
        return None


def _risen(first: float | None, last: float | None) -> float | None:
    if last is None:
        return None
    # A server that was started again counts from nothing.
    return last if first is None or last < first else last - first
