"""Whether a value can be sent as JSON: one from YAML, an option or a file in, what is wrong out.

Python writes NaN and infinities into what it calls JSON; servers refuse it, each in its own way.
"""

import math
from collections.abc import Iterator
from itertools import count

# Deeper than any request; every parser stops somewhere.
MOST_LEVELS = 64
# YAML's aliases of aliases make of a few lines what no memory holds.
MOST_VALUES = 100_000


def not_json(value: object, place: str = "") -> str | None:
    """The first thing in `value` that JSON does not know, and where; None where there is none."""
    return _wrong(value, place, MOST_LEVELS, count())


def _wrong(value: object, place: str, levels: int, seen: Iterator[int]) -> str | None:
    if next(seen) >= MOST_VALUES:
        return f"{place[:60] or 'it'} makes it more than {MOST_VALUES:,} values"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place or 'it'} is {value}, a number that JSON does not know"
    if value is None or isinstance(value, str | int | float):
        return None
    if not isinstance(value, dict | list | tuple):
        return (
            f"{place or 'it'} is a {type(value).__name__}, which JSON does not know: {value!r:.60}"
        )
    if not levels:
        return f"{place[:60]} is nested over {MOST_LEVELS} levels deep"
    if isinstance(value, dict):
        parts = [(f"{place}.{key}" if place else str(key), inner) for key, inner in value.items()]
    else:
        parts = [(f"{place}[{index}]", inner) for index, inner in enumerate(value)]
    found = (_wrong(inner, where, levels - 1, seen) for where, inner in parts)
    return next((wrong for wrong in found if wrong is not None), None)
