"""Whether a build is worse than its baseline: pairs of runs in, a verdict with its numbers out.

The pairs are the sample, not the requests: requests of one run share its machine, its minute and
its queue, and a test that takes them as independent fails a tenth to a half of unchanged builds.
Each check is a t test over the changes of the pairs, with the variance of a noise profile
pooled in, at a level that allows to look after every pair. Three ways:

* the change is certainly under the tolerance: pass;
* it is certainly above 0, and not certainly under the tolerance: breach;
* else more pairs are needed.

So an unchanged build is failed, and one that is worse by the tolerance passed, each at most with
probability alpha.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from prony_loadgen.summary import json_number
from prony_slo.noise import Noise, NoiseProfile
from prony_slo.pairs import Change, Pair, change
from prony_slo.promise import Check, Regression, Severity
from prony_slo.sequential import GUARD, level_per_look
from prony_slo.student import f_quantile, t_quantile

RegressionVerdict = Literal["pass", "breach", "inconclusive", "invalid"]
NoiseSource = Literal["profile", "today", "above profile"]

# A variance by counting is not estimated of three pairs, so it has more degrees of freedom.
COUNTED_DF = 60
POWER = 0.95  # of the change that a gate "can see"
MANY_PAIRS = 1000  # to advise more is no advice


@dataclass(frozen=True, slots=True)
class RegressionResult:
    """One check, judged. Changes are fractions of the figure (of `share`: differences), + is worse.

    `text` has the numbers for people, without the id and verdict.
    """

    id: str
    verdict: RegressionVerdict
    severity: Severity
    place: str
    text: str
    metric: str
    stat: str
    tolerance: float
    estimate: float | None = None
    low: float | None = None  # one-sided bounds of the true change, at the level of the check
    high: float | None = None
    mde: float | None = None  # the change that so many pairs see with 95 % power
    pairs: int = 0  # that the verdict rests on
    decided_at: int | None = None  # after how many pairs the verdict fell
    pairs_needed_more: int | None = None
    noise: NoiseSource | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "verdict": self.verdict,
            "severity": self.severity,
            "place": self.place,
            "text": self.text,
            "metric": self.metric,
            "stat": self.stat,
            "tolerance": self.tolerance,
            "estimate": json_number(self.estimate),
            "low": json_number(self.low),
            "high": json_number(self.high),
            "mde": json_number(self.mde),
            "pairs": self.pairs,
            "decided_at": self.decided_at,
            "pairs_needed_more": self.pairs_needed_more,
            "noise": self.noise,
        }


@dataclass(frozen=True, slots=True)
class _Spread:
    """The variance of one pair's change, as well as it is known today."""

    s2: float
    df: float
    source: NoiseSource

    @property
    def sd(self) -> float:
        return math.sqrt(self.s2)


def judge_pairs(
    regression: Regression, pairs: Sequence[Pair], profile: NoiseProfile | None = None
) -> tuple[RegressionResult, ...]:
    """The verdict of every check after these pairs, which are all of the gate so far, in order."""
    changes = {check.id: [change(check, pair) for pair in pairs] for check in regression.checks}
    return judge_changes(regression, changes, profile)


def judge_changes(
    regression: Regression,
    changes: Mapping[str, Sequence[Change]],
    profile: NoiseProfile | None = None,
) -> tuple[RegressionResult, ...]:
    """As judge_pairs, of the changes that were kept of the pairs (by the id of the check).

    A verdict that fell after some pair stays, whatever comes after: the looks were counted.
    """
    return tuple(
        _judge(regression, check, changes.get(check.id, ()), profile) for check in regression.checks
    )


def decided(results: Sequence[RegressionResult]) -> bool:
    """Whether no further pair is needed: a check has failed the build, or all have decided."""
    binding = [result for result in results if result.severity == "fail"]
    if any(result.verdict == "breach" for result in binding):
        return True
    return all(result.verdict != "inconclusive" for result in binding or results)


def regression_code(
    regression: Regression, results: Sequence[RegressionResult], *, baseline_missing: bool = False
) -> int:
    """The exit code that the checks ask for: 0, 1, 3 or 4; a warning never changes it.

    4 is for a baseline that cannot be read, which no severity excuses.
    """
    if baseline_missing:
        return {"inconclusive": 3, "fail": 1, "warn": 0, "pass": 0}[regression.baseline.missing]
    return {"invalid": 4, "breach": 1, "inconclusive": 3, "pass": 0}[regression_verdict(results)]


def regression_verdict(results: Sequence[RegressionResult]) -> RegressionVerdict:
    """The gravest of what the checks found, warnings left out."""
    found = {r.verdict for r in results if r.severity == "fail" or r.verdict == "invalid"}
    grave: tuple[RegressionVerdict, ...] = ("invalid", "breach", "inconclusive")
    return next((verdict for verdict in grave if verdict in found), "pass")


def no_baseline(regression: Regression, command: str) -> tuple[RegressionResult, ...]:
    """What is said where there is nothing to compare with; `command` makes it."""
    text = f"no baseline yet: make one with `{command}`"
    return tuple(undecided(check, text) for check in regression.checks)


def outlook(regression: Regression, profile: NoiseProfile | None, requests: int) -> list[str]:
    """Before any load: what the gate will be able to see, a line a check.

    `requests` is what each run will measure.
    """
    lines = []
    for check in regression.checks:
        noise = profile.get(check.id, requests) if profile else None
        if noise is None:
            lines.append(
                f"{check.id}: no noise profile of such runs yet, so what can be seen is known "
                f"after {regression.min_pairs} pairs"
            )
            continue
        if not noise.s2:
            lines.append(f"{check.id}: earlier pairs did not differ, so any change will be seen")
            continue
        seen = smallest_seen(regression, check, noise)
        most = regression.max_pairs
        line = f"{check.id}: up to {most} pairs see a change of {amount(check, seen)}, tolerance "
        line += amount(check, check.tolerance)
        if seen > check.tolerance:
            needed = _pairs_for(regression, _spread_of(noise), to_change(check, check.tolerance))
            more = f"about {needed} pairs" if needed else f"more than {MANY_PAIRS} pairs"
            line += f": too small to be confirmed, it would take {more}, or a wider tolerance"
        lines.append(line)
    return lines


def smallest_seen(regression: Regression, check: Check, noise: Noise) -> float:
    """The change that the most pairs of this gate see with 95 % power, by the noise profile.

    Also the tolerance that so many pairs can confirm where nothing changed.
    """
    level, _ = _levels(regression, noise.df)
    return from_change(check, _mde(_spread_of(noise), regression.max_pairs, level))


def undecided(check: Check, text: str, **numbers: Any) -> RegressionResult:
    """The result of a check that nothing can be said of."""
    return RegressionResult(
        id=check.id,
        verdict="inconclusive",
        severity=check.severity,
        place=check.place,
        text=text,
        metric=check.metric,
        stat=check.stat,
        tolerance=check.tolerance,
        **numbers,
    )


def to_change(check: Check, fraction: float) -> float:
    """A fraction that people write (5 % slower, 5 % fewer tokens/s) as a change, + is worse."""
    if check.stat == "share":
        return fraction
    return -math.log1p(-fraction) if check.stat == "rate" else math.log1p(fraction)


def from_change(check: Check, change: float) -> float:
    """What to_change undoes."""
    if check.stat == "share":
        return change
    return -math.expm1(-change) if check.stat == "rate" else math.expm1(change)


def amount(check: Check, fraction: float) -> str:
    """A fraction, + is worse, as people read the figure: "+4.1 %", "-3.9 %", "+0.5 pp"."""
    if not math.isfinite(fraction):
        return "any size"
    sign = -1 if check.stat == "rate" else 1
    digits = 1 if abs(fraction) < 0.9995 else 0
    return f"{sign * fraction * 100:+,.{digits}f} {'pp' if check.stat == 'share' else '%'}"


def _judge(
    regression: Regression, check: Check, changes: Sequence[Change], profile: NoiseProfile | None
) -> RegressionResult:
    broken = next((i for i, change in enumerate(changes) if change.value is None), None)
    if broken is not None:
        text = f"pair {broken + 1} cannot be compared: {changes[broken].note}"
        return undecided(check, text, pairs=len(changes))
    first, last = regression.min_pairs, regression.max_pairs
    changes = changes[:last]
    if len(changes) < first:
        return undecided(
            check,
            f"{len(changes)} of at least {first} pairs",
            pairs=len(changes),
            pairs_needed_more=first - len(changes),
        )
    noise = profile.get(check.id, min(c.requests for c in changes)) if profile else None
    for pairs in range(first, len(changes) + 1):
        result = _look(regression, check, changes[:pairs], noise)
        if result.verdict != "inconclusive":
            break
    return result


def _look(
    regression: Regression, check: Check, changes: Sequence[Change], noise: Noise | None
) -> RegressionResult:
    """What the check says after these pairs, and no others, were looked at."""
    pairs = len(changes)
    values = [change.value for change in changes if change.value is not None]
    spread = _spread(values, max(change.floor for change in changes), noise)
    worse, same = _levels(regression, noise.df if noise else 0.0)
    mean, tolerance = math.fsum(values) / pairs, to_change(check, check.tolerance)
    error = spread.sd / math.sqrt(pairs)
    # Without any scatter an infinite t quantile is nothing to multiply with.
    low = mean - t_quantile(1 - worse, spread.df) * error if error else mean
    high = mean + t_quantile(1 - same, spread.df) * error if error else mean
    verdict: RegressionVerdict = "inconclusive"
    if high < tolerance:
        verdict = "pass"
    elif low > 0:
        verdict = "breach"
    more = None
    if verdict == "inconclusive":
        total = _settled_by((worse, same), spread, mean, tolerance, pairs)
        more = None if total is None else total - pairs
    estimate, low, high = (from_change(check, each) for each in (mean, low, high))
    mde = from_change(check, _mde(spread, pairs, worse))
    return RegressionResult(
        id=check.id,
        verdict=verdict,
        severity=check.severity,
        place=check.place,
        text=_text(regression, check, verdict, estimate, (low, high), mde, pairs, more, spread),
        metric=check.metric,
        stat=check.stat,
        tolerance=check.tolerance,
        estimate=estimate,
        low=low,
        high=high,
        mde=mde if math.isfinite(mde) else None,
        pairs=pairs,
        decided_at=None if verdict == "inconclusive" else pairs,
        pairs_needed_more=more,
        noise=spread.source,
    )


def _spread(values: Sequence[float], floor: float, noise: Noise | None) -> _Spread:
    """Today's variance, pooled with the profile's unless today is clearly noisier."""
    own = len(values) - 1
    today = float(np.var(values, ddof=1)) if own else 0.0
    if noise is None:
        spread = _Spread(today, own, "today")
    elif own and today > f_quantile(GUARD, own, noise.df) * noise.s2:
        spread = _Spread(today, own, "above profile")
    else:
        pooled = (noise.df * noise.s2 + own * today) / (noise.df + own)
        spread = _Spread(pooled, noise.df + own, "profile")
    if spread.s2 < floor:
        return _Spread(floor, max(spread.df, COUNTED_DF), spread.source)
    return spread


def _levels(regression: Regression, df: float) -> tuple[float, float]:
    """The level of one look for "worse" and for "still the same", of a borrowed variance of `df`.

    Any of the checks alone can fail the build, so they share alpha. To pass, all must hold, so that
    each may take all of it: a build that is worse in one figure passes at most with alpha (Berger,
    "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24, 1982).
    """
    first, last = regression.min_pairs, regression.max_pairs
    worse = level_per_look(regression.alpha_each, first, last, df)
    return worse, level_per_look(regression.alpha, first, last, df)


def _spread_of(noise: Noise) -> _Spread:
    return _Spread(noise.s2, noise.df, "profile")


def _mde(spread: _Spread, pairs: int, level: float) -> float:
    """The change whose lower bound lies above 0 after `pairs` in 95 % of gates."""
    if spread.df <= 0:
        return math.inf
    quantiles = t_quantile(1 - level, spread.df) + t_quantile(POWER, spread.df)
    return quantiles * spread.sd / math.sqrt(pairs)


def _pairs_for(regression: Regression, spread: _Spread, size: float) -> int | None:
    """How many pairs see a change of `size`."""
    one = _mde(spread, 1, _levels(regression, spread.df)[0])
    needed = math.ceil((one / size) ** 2) if size > 0 else MANY_PAIRS + 1
    return needed if needed <= MANY_PAIRS else None


def _settled_by(
    levels: tuple[float, float], spread: _Spread, mean: float, tolerance: float, pairs: int
) -> int | None:
    """How many pairs in all would decide, if mean and variance stayed what they are."""
    for total in range(pairs + 1, MANY_PAIRS + 1):
        worse, same = (
            t_quantile(1 - level, spread.df + total - pairs) * spread.sd / math.sqrt(total)
            for level in levels
        )
        if mean + same < tolerance or mean - worse > 0:
            return total
    return None


def _text(
    regression: Regression,
    check: Check,
    verdict: RegressionVerdict,
    estimate: float,
    bounds: tuple[float, float],
    mde: float,
    pairs: int,
    more: int | None,
    spread: _Spread,
) -> str:
    ref = regression.baseline.ref or "the baseline"
    low, high = sorted(bounds, reverse=check.stat == "rate")
    text = (
        f"{amount(check, estimate)} [{amount(check, low)}, {amount(check, high)}] against {ref}, "
        f"tolerance {amount(check, check.tolerance)}, {pairs} pairs"
    )
    if verdict == "pass" and bounds[0] > 0:
        text += ": worse, within the tolerance"
    if verdict == "inconclusive":
        text += ": " + _advice(regression, pairs, more)
    text += f" (so many pairs see {amount(check, mde)})"
    if spread.source == "above profile":
        text += "; today is noisier than the noise profile, which is left aside"
    return text


def _advice(regression: Regression, pairs: int, more: int | None) -> str:
    if more is None:
        return "no number of pairs would decide it"
    advice = f"about {more} more pair{'' if more == 1 else 's'} would decide it"
    if pairs + more > regression.max_pairs:
        advice += f", and at most {regression.max_pairs} are allowed: widen the tolerance"
    return advice
