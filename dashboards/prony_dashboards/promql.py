"""The PromQL that every board is made of: metric names and labels in, expressions out.

Idle means a gap: whatever divides by a count, or asks an empty histogram, yields nothing instead
of NaN or 0, so that no panel draws what nobody measured.
"""

from typing import Final

WINDOW: Final = "$__rate_interval"
RANGE: Final = "$__range"  # the whole time shown: what a very short run is judged by


def rate(counter: str, labels: str, by: str = "", window: str = WINDOW) -> str:
    """Events per second, summed over all chosen series or by one label."""
    return f"sum{_by(by)}(rate({counter}{{{labels}}}[{window}]))"


def quantile(q: float, histogram: str, labels: str, by: str = "", window: str = WINDOW) -> str:
    """A quantile over all chosen series together: buckets are summed, never quantiles."""
    groups = f"le, {by}" if by else "le"
    buckets = f"sum by ({groups}) (rate({histogram}_bucket{{{labels}}}[{window}]))"
    return f"histogram_quantile({q}, {buckets}) >= 0"


def mean(histogram: str, labels: str, by: str = "", window: str = WINDOW) -> str:
    """The mean observation: the sum's rate over the count's."""
    return ratio(
        rate(histogram + "_sum", labels, by, window), rate(histogram + "_count", labels, by, window)
    )


def ratio(part: str, whole: str) -> str:
    """`part / whole`, and nothing where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def share(part: str, whole: str) -> str:
    """The same, where a part that has no series yet means that none was counted: 0."""
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def buckets(histogram: str, labels: str) -> str:
    """Observations of each bucket over time, for a heatmap."""
    return f"sum by (le) (increase({histogram}_bucket{{{labels}}}[{WINDOW}]))"


def _by(label: str) -> str:
    return f" by ({label}) " if label else ""
