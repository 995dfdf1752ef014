"""Panels on what an engine exports of a concept; where it exports nothing, words instead."""

from collections.abc import Sequence
from typing import Any

from prony_dashboards.engines import Concept, Engine
from prony_dashboards.panels import Panel, Query, stat, words


def percentiles(
    engine: Engine, concept: Concept, qs: Sequence[float] = (0.5, 0.9, 0.99)
) -> list[Query]:
    """The quantiles of a concept; the highest carries the exemplars that open a trace."""
    if not engine.has(concept):
        return []
    by = engine.sources[concept].by
    kind = f"{{{{{by}}}}} " if by else ""
    return [
        Query(engine.quantile(q, concept), legend=f"{kind}p{100 * q:g}", exemplar=q == max(qs))
        for q in qs
    ]


def of(
    engine: Engine,
    concepts: Sequence[Concept],
    kind: Any,
    title: str,
    description: str,
    queries: Sequence[Query],
    **look: Any,
) -> Panel:
    """A panel of `kind` (stat or timeseries) whose description adds what this engine leaves out.

    `queries` are those of the concepts that the engine has; without any the panel is a sentence.
    """
    said = engine.says(*concepts)
    if not any(engine.has(concept) for concept in concepts):
        side = 4 if kind is stat else 8
        return words(title, said, width=look.get("width", side), height=look.get("height", side))
    return kind(title, f"{description} {said}".strip(), queries, **look)  # type: ignore[no-any-return]
