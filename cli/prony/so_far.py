"""What a run shows of each objective while it goes on: an SLO and what was seen in, rows out.

An estimate for people who watch: it counts warm-up too and knows no uncertainty. The verdict is
given at the end, from the records.
"""

from typing import Any

from prony_loadgen.live import LATENCIES, Live
from prony_loadgen.words import share
from prony_slo.promise import Floor, Objective, Share, SloFile


def so_far(slo: SloFile, seen: Live) -> list[dict[str, Any]]:
    """A row an objective: `id`, `promise`, `now`, and `tone` (pass, breach or unknown)."""
    return [
        {"id": objective.id, "promise": str(objective.promise), **_now(objective, seen)}
        for objective in slo.objectives
    ]


def _now(objective: Objective, seen: Live) -> dict[str, str]:
    promise = objective.promise
    if isinstance(promise, Share) and objective.cls is None and objective.stage is None:
        return _share(promise, seen)
    if isinstance(promise, Floor):
        return {"now": "a rate: see the chart", "tone": "unknown"}
    return {"now": "told at the end", "tone": "unknown"}


def _share(promise: Share, seen: Live) -> dict[str, str]:
    if not seen.finished:
        return {"now": "nothing finished yet", "tone": "unknown"}
    unknown = [c.metric for c in promise.conditions if c.metric not in LATENCIES]
    if unknown:
        return {"now": f"{', '.join(unknown)}: told at the end", "tone": "unknown"}
    # Of several conditions, a request may break more than one: the worst of them is the least.
    bad, words = seen.failed / seen.finished, ""
    for condition in promise.conditions:
        sketch = seen.sketches[condition.metric]
        over = sketch.count - sketch.up_to([condition.limit])[0]
        bad = max(bad, (seen.failed + over) / seen.finished)
        (at,) = sketch.percentiles([1 - promise.limit])
        if at is not None:
            words += f"{condition.metric} {at * 1000:,.3g} ms, "
    tone = "pass" if bad <= promise.limit else "breach"
    return {"now": f"{words}{share(bad)} bad so far", "tone": tone}
