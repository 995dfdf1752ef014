"""Whether a run had settled: a run goes in, where its warm-up ends and what drifts comes out.

All of it looks at the log of TTFT, where a burst weighs less than on the raw values: on those, MSER
takes bursts for transients and cuts the slow part away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from prony_loadgen.record import RequestRecord
from prony_loadgen.summary import Measured, value

Values = npt.NDArray[np.float64]

LEAST = 30.0  # seconds of a warm-up that is to be found, unless somebody says otherwise
MOST = 0.4  # of a run: the most that is cut
BATCHES = 20
LEVEL = 0.01
DRIFT = 0.05  # a change between halves, or over the window, that matters
FEWEST = 100  # requests; fewer cannot show a drift
MSER = 5  # requests a batch, after White 1997
PIECES = 60  # batches in which changes of level are looked for
SHIFT = 0.03  # the least change of level that counts
DEVIATIONS = 4.0  # and how far it must stand out
SHORTEST = 4  # pieces between two changes
MOST_TOGETHER = 0.8  # correlation of neighbouring pieces
PILE_UP = 0.97  # of what came must be done with

_BY = {"least": "the least asked for", "shift": "a change of level", "mser": "MSER-5"}


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a warm-up ends, in seconds on the run's clock, and what says so."""

    at: float
    by: str


def warmup_end(measured: Measured, least: float = 0.0, most: float = MOST) -> Cut:
    """The latest of `least` seconds, the last change of level in the first half, and MSER-5's cut.

    Never beyond the share `most` of what was measured. It is a time when requests are started, the
    same for every metric.
    """
    start, end = measured.window
    times, values = _log_ttft(measured)
    found = {"least": max(start, least)}
    if len(values) >= FEWEST:
        half = (start + end) / 2
        shifts = [at for at in _shifts(times, values) if at <= half]
        found |= {"shift": max(shifts, default=start), "mser": _mser(times, values)}
    by = max(found, key=lambda name: found[name])
    latest = start + most * (end - start)
    if found[by] > latest:
        return Cut(latest, f"{_BY[by]}, held at {most:.0%} of the run")
    return Cut(found[by], _BY[by])


def without_warmup(measured: Measured, least: float = 0.0, most: float = MOST) -> Measured:
    """The run without the warm-up that is found in it."""
    cut = warmup_end(measured, least, most).at
    start, end = measured.window
    if cut <= start:
        return measured
    inside = tuple(r for r in measured.records if r.intended >= cut)
    before = tuple(r for r in measured.records if r.intended < cut)
    return replace(measured, records=inside, outside=measured.outside + before, window=(cut, end))


def not_steady(measured: Measured) -> str | None:
    """What changed while the run was measured, or None.

    The level of TTFT shifts; or the halves of the window differ by over 5 % by Welch's t test over
    20 batch means; or the trend over it is as large; or requests pile up.
    """
    times, values = _log_ttft(measured)
    if len(values) < FEWEST:
        return None
    piled_up = _piled_up(measured)
    if piled_up is not None:
        return piled_up
    means = _batches(values, BATCHES)
    first, second = means[: BATCHES // 2], means[BATCHES // 2 :]
    half = float(second.mean() - first.mean())
    if abs(half) > math.log1p(DRIFT) and _differ(first, second):
        return f"TTFT of the second half is {math.expm1(half):+.0%} against the first"
    slope, error = _slope(means)
    if abs(slope) > math.log1p(DRIFT) and abs(slope / error) > t_quantile(BATCHES - 2):
        return f"TTFT changed by {math.expm1(slope):+.0%} while it was measured"
    shifts = _shifts(times, values)
    if shifts:
        before = values[times < shifts[-1]].mean()
        change = math.expm1(float(values[times >= shifts[-1]].mean() - before))
        return f"the level of TTFT changed by {change:+.0%} at {shifts[-1]:.0f} s"
    return None


def t_quantile(df: float, p: float = 1 - LEVEL / 2) -> float:
    """Student's t below which a share `p` lies (Abramowitz and Stegun 26.7.5).

    For `df` of 5 and more it is right to within 0.5 %.
    """
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df**power for power, term in enumerate(terms, start=1))


def _mser(times: Values, values: Values) -> float:
    """The time from which the mean of the rest is known best, in the first half of the run.

    MSER-5: White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69, 1997.
    """
    batches = len(values) // MSER
    means = values[: batches * MSER].reshape(batches, MSER).mean(axis=1)
    errors = [float(means[at:].var()) / (batches - at) for at in range(batches // 2)]
    at = int(np.argmin(errors))
    return float(times[at * MSER]) if at else -math.inf


def _shifts(times: Values, values: Values) -> list[float]:
    """When the level changes: binary segmentation of batch means (Scott, Knott, Biometrics 30)."""
    pieces = min(PIECES, len(values) // MSER)
    means = _batches(values, pieces)
    deviation = _noise(means)
    starts = [len(part) for part in np.array_split(values, pieces)]
    edges = np.concatenate(([0], np.cumsum(starts)))
    found = _split(means, 0, pieces, deviation)
    return [float(times[edges[at]]) for at in sorted(found)]


def _noise(means: Values) -> float:
    """How far a mean of such pieces strays by chance, times the root of their number.

    From differences, so that a change of level is not taken for noise; and as of an AR(1) process,
    since a queue that is long stays long for a while.
    """
    near = float(np.mean(np.diff(means) ** 2)) / 2
    far = float(np.mean((means[2:] - means[:-2]) ** 2)) / 2
    if near == 0:
        return 0.0
    together = min(max(far / near - 1, 0.0), MOST_TOGETHER)
    return math.sqrt(near * (1 + together)) / (1 - together)


def _split(means: Values, start: int, end: int, deviation: float) -> list[int]:
    if end - start < 2 * SHORTEST:
        return []
    part = means[start:end]
    candidates = np.arange(SHORTEST, len(part) - SHORTEST + 1)
    sums = np.cumsum(part)
    before = sums[candidates - 1] / candidates
    after = (sums[-1] - sums[candidates - 1]) / (len(part) - candidates)
    spread = deviation * np.sqrt(1 / candidates + 1 / (len(part) - candidates))
    change = np.abs(after - before)
    best = int(np.argmax(change / np.maximum(spread, 1e-12)))
    if change[best] < math.log1p(SHIFT) or change[best] < DEVIATIONS * spread[best]:
        return []
    at = start + int(candidates[best])
    left, right = _split(means, start, at, deviation), _split(means, at, end, deviation)
    return [*left, at, *right]


def _log_ttft(measured: Measured) -> tuple[Values, Values]:
    known = sorted(
        (record.intended, seconds)
        for record in measured.records
        if (seconds := value(record, "ttft")) is not None and 0 < seconds < math.inf
    )
    times = np.array([at for at, _ in known])
    return times, np.log(np.array([seconds for _, seconds in known]))


def _batches(values: Values, number: int) -> Values:
    return np.array([part.mean() for part in np.array_split(values, number)])


def _differ(first: Values, second: Values) -> bool:
    """Welch's t test of two equally large samples (Welch, Biometrika 34, 1947)."""
    a, b = first.var(ddof=1) / len(first), second.var(ddof=1) / len(second)
    if a + b == 0:
        return True
    df = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    t = float((second.mean() - first.mean()) / math.sqrt(a + b))
    return abs(t) > t_quantile(float(df))


def _slope(means: Values) -> tuple[float, float]:
    """The fitted change from the first batch to the last, and its standard error."""
    at = np.linspace(-0.5, 0.5, len(means))
    slope = float((at * means).sum() / (at * at).sum())
    rest = means - means.mean() - slope * at
    error = math.sqrt(float((rest**2).sum()) / (len(means) - 2) / float((at * at).sum()))
    return slope, error or math.ulp(1.0)


def _piled_up(measured: Measured) -> str | None:
    """Whether requests came faster than they were done with, in open loop."""
    if measured.loop != "open" or measured.cut_short:
        return None
    start, end = measured.window
    everything = measured.records + measured.outside
    done = sum(r.outcome != "incomplete" and start <= r.ended < end for r in everything)
    if done >= PILE_UP * len(measured.records):
        return None
    # A run that began empty has, at its end, some under way that were not done with.
    halfway = _under_way(everything, (start + end) / 2)
    if _under_way(everything, end) <= 2 * halfway + 3 * math.sqrt(max(halfway, 1)):
        return None
    seconds = measured.seconds
    return (
        f"{done / seconds:.3g} requests/s were done with of {len(measured.records) / seconds:.3g} "
        "that came: they pile up"
    )


def _under_way(records: Sequence[RequestRecord], at: float) -> int:
    return sum(record.intended < at <= record.ended for record in records)
