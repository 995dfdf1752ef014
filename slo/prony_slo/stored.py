"""Whether new runs lie within what a stored baseline scatters: figures in, verdicts out.

A stored baseline was measured on another day, so the scatter between sessions (machine, driver,
neighbours) is what counts, and no number of requests or of runs within a session makes up for it.
The new session is judged by a prediction interval over the old ones.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prony_loadgen.summary import Measured
from prony_slo.pairs import run_value
from prony_slo.promise import Check, Regression
from prony_slo.regression import (
    POWER,
    RegressionResult,
    RegressionVerdict,
    amount,
    from_change,
    to_change,
    undecided,
)
from prony_slo.student import t_quantile

FEWEST_RUNS = 8
FEWEST_SESSIONS = 4
SAME_SIZE = 0.8  # runs of fewer than this share of the baseline's requests are not comparable


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What a baseline keeps of one run."""

    session: str  # runs of one session share a machine and a day
    values: Mapping[str, float | None]  # id of the check -> run_value
    requests: int


def stored_run(regression: Regression, run: Measured, session: str) -> StoredRun:
    """What to keep of a run that was accepted as a baseline."""
    values = {check.id: run_value(check, run) for check in regression.checks}
    return StoredRun(session, values, run.attempts)


def judge_stored(
    regression: Regression, history: Sequence[StoredRun], new: Sequence[Measured]
) -> tuple[RegressionResult, ...]:
    """The verdict of every check on the `new` runs, all of one session.

    Inconclusive under 8 runs of 4 sessions, and where a figure is missing on either side.
    """
    here = [stored_run(regression, run, "new") for run in new]
    return tuple(_judge(regression, check, history, here) for check in regression.checks)


def _judge(
    regression: Regression, check: Check, history: Sequence[StoredRun], new: Sequence[StoredRun]
) -> RegressionResult:
    sessions = _by_session(check, history)
    runs = sum(len(values) for values in sessions.values())
    if runs < FEWEST_RUNS or len(sessions) < FEWEST_SESSIONS:
        return undecided(
            check,
            f"the stored baseline has {runs} runs of {len(sessions)} sessions with this figure; "
            f"its scatter is known from {FEWEST_RUNS} runs of {FEWEST_SESSIONS} sessions on",
        )
    mine = [value for run in new if (value := run.values.get(check.id)) is not None]
    if not mine or len(mine) < len(new):
        return undecided(check, f"no data: no {check.metric} in {len(new) - len(mine)} new run(s)")
    usual = statistics.median(run.requests for run in history)
    if min(run.requests for run in new) < SAME_SIZE * usual:
        return undecided(
            check,
            f"{min(run.requests for run in new):,} requests, the baseline's runs have "
            f"{usual:,.0f}: shorter runs scatter more",
        )
    return _within(regression, check, list(sessions.values()), mine)


def _within(
    regression: Regression, check: Check, sessions: Sequence[Sequence[float]], new: Sequence[float]
) -> RegressionResult:
    """The prediction interval of the mean of one more session, over the means of the old ones.

    Hahn and Meeker, "Statistical Intervals", 1991, section 4.7: a mean of as many runs as the old
    ones varies by s^2 (1 + 1 / sessions) around theirs. A session of fewer runs varies more, by
    what its own runs do.
    """
    means = [statistics.fmean(values) for values in sessions]
    count, sign = len(means), -1.0 if check.stat == "rate" else 1.0
    per_session = statistics.harmonic_mean([len(values) for values in sessions])
    fewer = max(0.0, 1 / len(new) - 1 / per_session)
    s2 = statistics.variance(means) * (1 + 1 / count) + _within_variance(sessions) * fewer
    df = count - 1
    worse = sign * (statistics.fmean(new) - statistics.fmean(means))
    half = t_quantile(1 - regression.alpha_each, df) * math.sqrt(s2)
    low, high, tolerance = worse - half, worse + half, to_change(check, check.tolerance)
    verdict: RegressionVerdict = "inconclusive"
    if high < tolerance:
        verdict = "pass"
    elif low > 0:
        verdict = "breach"
    seen = half + t_quantile(POWER, df) * math.sqrt(s2)
    estimate, low, high, mde = (from_change(check, each) for each in (worse, low, high, seen))
    first, second = (high, low) if check.stat == "rate" else (low, high)
    text = (
        f"{amount(check, estimate)} [{amount(check, first)}, {amount(check, second)}] against "
        f"{regression.baseline.ref or 'the baseline'} of {count} sessions, tolerance "
        f"{amount(check, check.tolerance)}"
    )
    if verdict == "inconclusive":
        text += ": the sessions scatter too much to decide; interleaved pairs would (`prony ab`)"
    return RegressionResult(
        id=check.id,
        verdict=verdict,
        severity=check.severity,
        place=check.place,
        text=f"{text} (sees {amount(check, mde)})",
        metric=check.metric,
        stat=check.stat,
        tolerance=check.tolerance,
        estimate=estimate,
        low=low,
        high=high,
        mde=mde,
    )


def _by_session(check: Check, history: Sequence[StoredRun]) -> dict[str, list[float]]:
    sessions: dict[str, list[float]] = {}
    for run in history:
        value = run.values.get(check.id)
        if value is not None:
            sessions.setdefault(run.session, []).append(value)
    return sessions


def _within_variance(sessions: Sequence[Sequence[float]]) -> float:
    """The pooled variance of runs within their sessions; 0 where each has one."""
    df = sum(len(values) - 1 for values in sessions)
    squares = sum(
        (value - statistics.fmean(values)) ** 2 for values in sessions for value in values
    )
    return squares / df if df else 0.0
