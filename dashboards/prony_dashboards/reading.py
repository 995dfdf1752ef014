"""A server's page by the map of engines: its samples in; which engine it is, and its concepts, out.

What the load generator keeps of a target while a run goes on. The numbers are the page's own:
gauges as they are, counters and histograms as running totals.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from prony_dashboards.engines import ENGINES, Concept, Engine, Source

Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]

# Shares of one thing: the fullest counts. All other gauges add up over a server's parts.
FULLEST: Final[tuple[Concept, ...]] = ("kv_usage", "prefix_hits")
_MATCHER: Final = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def recognised(names: Collection[str]) -> Engine | None:
    """The engine whose page holds these names; None where it is none of the map."""
    known = {
        engine.name: sum(name in names for name in _sample_names(engine) if "process_" not in name)
        for engine in ENGINES.values()
    }
    best = max(known, key=lambda name: known[name])
    return ENGINES[best] if known[best] else None


def values(engine: Engine, samples: Samples) -> dict[str, float]:
    """What the page says of each concept; a concept without a sample is left out, never 0.

    A histogram gives `<concept>_count` and `<concept>_sum`.
    """
    found: dict[str, float] = {}
    for concept, source in engine.sources.items():
        if source.kind == "histogram":
            for part in ("count", "sum"):
                _note(found, f"{concept}_{part}", _chosen(source, samples, f"_{part}"), sum)
        else:
            how = max if concept in FULLEST and source.kind == "gauge" else sum
            _note(found, concept, _chosen(source, samples, ""), how)
            if source.of:
                whole = samples.get(source.of, ())
                _note(found, f"{concept}_of", [value for _, value in whole], sum)
    return found


def wanted(engine: Engine) -> set[str]:
    """The names of all samples that the engine's boards read, buckets among them."""
    histograms = (s.metric for s in engine.sources.values() if s.kind == "histogram")
    return _sample_names(engine) | {f"{name}_bucket" for name in histograms}


def _note(found: dict[str, float], name: str, chosen: list[float], how: object) -> None:
    kept = [value for value in chosen if math.isfinite(value)]  # NaN: idle, not a number to keep
    if kept:
        found[name] = how(kept)  # type: ignore[operator]


def _chosen(source: Source, samples: Samples, part: str) -> list[float]:
    series = samples.get(source.metric + part, ())
    return [value for labels, value in series if matches(source.only, labels)]


def matches(only: str, labels: Mapping[str, str]) -> bool:
    """PromQL's own rule: a label that is missing is an empty one; patterns match whole values."""
    for name, operator, wanted in _MATCHER.findall(only):
        value = labels.get(name, "")
        fits = re.fullmatch(wanted, value) is not None if "~" in operator else value == wanted
        if fits == operator.startswith("!"):
            return False
    return True


def _sample_names(engine: Engine) -> set[str]:
    names = set()
    for source in engine.sources.values():
        parts = ("_count", "_sum") if source.kind == "histogram" else ("",)
        names |= {source.metric + part for part in parts}
        if source.of:
            names.add(source.of)
    return names
