"""A /metrics page of any server, read with patience: text and wanted names in, samples out.

Takes Prometheus's text format and OpenMetrics, names with colons, and quoted UTF-8 names. What it
cannot read it counts and leaves out: a page that is wrong in one line is right in the others.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

Labels = dict[str, str]

_PLAIN: Final = re.compile(r"([A-Za-z_:][\w:]*)\s*(?:\{(.*?)\})?\s+(\S+)(?:\s+[\d.eE+-]+)?$")
_QUOTED: Final = re.compile(r'\{\s*"((?:[^"\\]|\\.)*)"\s*,?\s*(.*?)\}\s+(\S+)(?:\s+[\d.eE+-]+)?$')
_LABEL: Final = re.compile(r'\s*"?([\w:.]+)"?\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES: Final = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class Page:
    """What was read of a page."""

    samples: dict[str, list[tuple[Labels, float]]]  # by the sample's name
    skipped: int  # lines that are no samples


def read_page(text: str, wanted: Collection[str] | None = None) -> Page:
    """The samples of the wanted names; None wants all. Of a series that comes twice the last one
    counts."""
    found: dict[str, dict[tuple[tuple[str, str], ...], tuple[Labels, float]]] = {}
    skipped = 0
    for line in text.split("\n"):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        sample = _sample(line.split(" # ", 1)[0].rstrip())  # an exemplar follows a hash
        if sample is None:
            skipped += 1
            continue
        name, labels, value = sample
        if wanted is None or name in wanted:
            found.setdefault(name, {})[tuple(sorted(labels.items()))] = labels, value
    return Page({name: list(series.values()) for name, series in found.items()}, skipped)


def _sample(line: str) -> tuple[str, Labels, float] | None:
    match = _QUOTED.match(line) if line.startswith("{") else _PLAIN.match(line)
    if match is None:
        return None
    labels = _labels(match[2] or "")
    if labels is None:
        return None
    try:
        return match[1], labels, float(match[3])  # takes NaN, +Inf and 1e+09 too
    except ValueError:
        return None


def _labels(text: str) -> Labels | None:
    labels, at = {}, 0
    while at < len(text.rstrip()):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        labels[match[1]] = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), match[2])
        at = match.end()
    return labels
