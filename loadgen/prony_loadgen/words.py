"""How every view says things: numbers of run.json in, the same few words and units out."""

import math
from typing import Any, Final

# What each verdict means, for people who do not know the word yet.
VERDICTS: Final = {
    "pass": ("PASS", "every objective is met"),
    "breach": ("BREACH", "an objective is broken"),
    "inconclusive": ("INCONCLUSIVE", "the data cannot decide; this is not a pass"),
    "invalid": ("INVALID", "the measurement cannot be trusted, so nothing is judged by it"),
}
NOT_JUDGED: Final = ("NOT JUDGED", "no SLO was named; judge it with `prony gate --slo ...`")

CLOSED_LOOP: Final = (
    "Closed loop: each user waits for an answer before sending again, so a slow server is asked "
    "less often. These latencies cannot show what a queue would have done to users who keep "
    "coming; use open-loop arrivals (poisson, constant) for that."
)

# What run.json calls a metric -> what people call it.
METRICS: Final = {
    "ttft": ("TTFT", "time to first token, from the moment the schedule intended the request"),
    "ttfo": ("TTFO", "time to first visible output, from the intended moment"),
    "tpot": ("TPOT", "time per output token after the first, per request"),
    "itl": ("ITL", "inter-token latency, weighted by tokens"),
    "e2e": ("E2E", "last generated token, from the intended moment"),
    "ttft_from_send": ("TTFT from send", "time to first token from the moment it was really sent"),
    "max_gap": ("longest gap", "the longest wait between two tokens of a request"),
    "send_lag": ("send lag", "how late our own client sent, after the intended moment"),
}

FIRST_METRICS: Final = ("ttft", "tpot", "e2e", "itl")
MORE_METRICS: Final = ("ttfo", "ttft_from_send", "max_gap", "send_lag")

SHAPES: Final = {
    "ramp": "ramp",
    "steps": "steps",
    "stages": "stages",
    "spike": "with a spike",
    "on_off": "on and off",
}

UNKNOWN: Final = "–"  # not measured: never shown as 0
NEVER: Final = "never"  # infinity: so many attempts failed that this percentile has no end


def number(value: Any) -> float | None:
    """A number of run.json, where infinity is the string "inf" and unknown is null."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def stat(run: dict[str, Any], metric: str, which: str, name: str) -> float | None:
    """summary.<metric>.<all|ok>.<name>, or None where the run does not hold it."""
    figures = (run.get("summary") or {}).get(metric) or {}
    return number((figures.get(which) or {}).get(name))


def ms(seconds: float | None, unit: bool = True) -> str:
    """Seconds as milliseconds to three digits or so: 0.0123 is "12.3 ms", 2.5 is "2,500 ms"."""
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    if math.isinf(seconds):
        return NEVER
    value = seconds * 1000
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:,.{digits}f}" + (" ms" if unit else "")


def rate(value: float | None) -> str:
    """A rate or a count per second to about three digits, without its unit."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    digits = 0 if value == 0 or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.0f}"


def counted(value: float | None, thing: str) -> str:
    """A number of things: "1 attempt", "351 attempts"."""
    return f"{count(value)} {thing}" + ("" if value == 1 else "s")


def share(value: float | None) -> str:
    """0.0123 as "1.23 %". Near 0 % and near 100 % two significant digits of the rest stay, so that
    99.999 % never reads as 100 %."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    percent = round(value * 100, 9)
    if abs(percent) >= 100.5:
        return f"{percent:,.0f} %"
    if percent != 0 and abs(percent) < 0.995:
        return f"{percent:.2g} %"
    missing = 100 - percent
    digits = math.ceil(-math.log10(missing)) + 1 if 0 < missing < 0.1 else 2
    return f"{percent:.{digits}f}".rstrip("0").rstrip(".") + " %"


def seconds(value: float | None) -> str:
    """A duration for people: "20.0 s", "3 min 20 s"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 120:
        return f"{value:.1f} s"
    whole = round(value)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"


def verdict(run: dict[str, Any]) -> tuple[str, str]:
    """The verdict's word and one sentence on what it rests on."""
    word, meaning = VERDICTS.get(str(run.get("verdict")), NOT_JUDGED)
    binding = [each for each in judged(run) if counts(each)]
    total = len(binding)
    same = sum(1 for each in binding if each.get("verdict") == run.get("verdict"))
    if word == "PASS" and total:
        meaning = "the objective is met" if total == 1 else f"all {total} objectives are met"
    elif word == "BREACH" and same:
        meaning = f"{same} of {total} objectives {'is' if same == 1 else 'are'} broken"
    elif word == "INCONCLUSIVE" and same:
        meaning = f"{same} of {total} objectives cannot be decided; this is not a pass"
    elif (
        word == "INVALID"
        and _invalid(run.get("regression"))
        and not _invalid(run.get("objectives"))
    ):
        meaning = "the baseline cannot be read"  # doubts would make the objectives invalid
    if run.get("interrupted"):
        meaning += "; the run was interrupted"
    elif run.get("stopped_early"):
        meaning += f"; stopped early: {run['stopped_early']}"
    return word, meaning


def _invalid(rows: list[dict[str, Any]] | None) -> bool:
    return any(row.get("verdict") == "invalid" for row in rows or [])


def judged(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that was judged: objectives, and the checks against a baseline."""
    return [*(run.get("objectives") or []), *(run.get("regression") or [])]


def counts(objective: dict[str, Any]) -> bool:
    """Whether an objective can change the verdict: a warning never does."""
    return objective.get("severity") != "warn"


def objective(each: dict[str, Any]) -> dict[str, Any]:
    """One judged objective as the views show it: words, and its shares for a drawing.

    `low`, `high`, `share` and `allowed` are shares of bad requests; None for an objective that is
    about the whole run, such as a throughput.
    """
    word, _ = VERDICTS.get(str(each.get("verdict")), (str(each.get("verdict") or UNKNOWN), ""))
    low, high = (number(bound) for bound in (each.get("bounds") or (None, None)))
    return {
        "id": str(each.get("id") or UNKNOWN),
        "word": word,
        "warning": not counts(each),
        "promise": str(each.get("promise") or ""),
        "line": str(each.get("text") or ""),
        "share": number(each.get("share")),
        "low": low,
        "high": high,
        "allowed": None if low is None else number(each.get("limit")),
        "place": str(each.get("place") or ""),
    }


def limits(run: dict[str, Any]) -> dict[str, list[tuple[float, float | None]]]:
    """Which limits the objectives set for each latency: seconds, and the share to keep them."""
    found: dict[str, list[tuple[float, float | None]]] = {}
    for each in run.get("objectives") or []:
        allowed = number(each.get("limit"))
        for metric, limit in (each.get("conditions") or {}).items():
            at = number(limit)
            if metric in METRICS and at is not None and at > 0:
                pair = (at, None if allowed is None else 1 - allowed)
                if pair not in (kept := found.setdefault(metric, [])):
                    kept.append(pair)
    return found


def attempts(run: dict[str, Any]) -> int:
    """How many attempts were measured, those that we dropped among them."""
    return int(_requests(run).get("attempts") or 0)


def failures(run: dict[str, Any]) -> int:
    """How many of them failed or were dropped; cut by the end of the run is neither."""
    requests = _requests(run)
    return int(requests.get("failed") or 0) + int(requests.get("dropped") or 0)


def goodput(run: dict[str, Any]) -> str | None:
    """Requests that met every objective about single requests; None where no SLO says which."""
    rates = (run.get("summary") or {}).get("rates") or {}
    per_second, of_all = number(rates.get("goodput_per_s")), number(rates.get("goodput_share"))
    if per_second is None or of_all is None:
        return None
    return f"{rate(per_second)} requests/s, {share(of_all)} of attempts"


def cost(run: dict[str, Any]) -> str | None:
    """What the load cost: "0.84 USD per 1,000 requests, 5.1 USD per million good tokens"."""
    found = (run.get("summary") or {}).get("cost") or {}
    currency = found.get("currency") or ""
    parts = [
        f"{rate(each)} {currency} per {what}"
        for name, what in (("per_1000_requests", "1,000 requests"),
                           ("per_million_good_tokens", "million good tokens"))
        if (each := number(found.get(name))) is not None
    ]  # fmt: skip
    return ", ".join(parts) or None


def retries(run: dict[str, Any]) -> str | None:
    """How often requests were tried again; None where none was."""
    found = (run.get("summary") or {}).get("retries") or {}
    if not (again := number(found.get("requests"))):
        return None
    why = ", ".join(f"{name} {n:,}" for name, n in (found.get("reasons") or {}).items())
    return (
        f"{counted(again, 'request')} tried again, {counted(number(found.get('attempts')), 'time')}"
        f" in all ({why}); {count(number(found.get('ok')))} answered in the end; "
        "their latency counts from the first try"
    )


def quality(run: dict[str, Any]) -> str | None:
    """What the answers showed, where there is anything to say."""
    found = (run.get("summary") or {}).get("quality") or {}
    names = (("truncated_share", "cut short"), ("repetition_share", "repeat themselves"))
    parts = [f"{share(each)} {what}" for name, what in names if (each := number(found.get(name)))]
    missed, of = number(found.get("mismatch_share")), number(found.get("expected_requests"))
    if missed is not None:
        parts.append(f"{share(missed)} of {counted(of, 'checked answer')} not as expected")
    checks = run.get("checks") or {}
    if checks:
        before, after = checks["before"]["mismatch"], checks["after"]["mismatch"]
        parts.append(f"checks not met: {before} before the load, {after} after it")
        parts.append(f"{checks['changed']} read otherwise after it")
    return "; ".join(parts) or None


def shown(run: dict[str, Any], metric: str) -> list[str]:
    """Which rows of a metric say something: successes apart only where they differ from all."""
    figures = (run.get("summary") or {}).get(metric) or {}
    if not figures:
        return []
    same = metric == "send_lag" or figures.get("all") == figures.get("ok")
    return ["all"] if same else ["all", "ok"]


def load(run: dict[str, Any]) -> str:
    """How requests came: "poisson 15/s", "closed loop, 8 users"."""
    arrivals = (run.get("scenario") or {}).get("arrivals") or {}
    if run.get("loop") == "closed":
        users = arrivals.get("users")
        return f"closed loop, {users} users" if users else "closed loop"
    process = str(arrivals.get("process") or "open loop")
    trace = arrivals.get("trace") or {}
    if trace:
        speed = number(trace.get("speed_up")) or 1
        return f"{trace.get('format')} trace" + (f" at {speed:g}x" if speed != 1 else "")
    shape = next((key for key in SHAPES if arrivals.get(key)), None)
    asked = number(arrivals.get("rate"))
    at = "" if asked is None else f" {rate(asked)}/s"
    return f"{process}{at}" + (f", {SHAPES[shape]}" if shape else "")


def measured(run: dict[str, Any]) -> str:
    """How long was measured: "24.0 s after 3.0 s of warm-up"."""
    start, end = run.get("window") or (0.0, 0.0)
    if start <= 0:
        return f"{seconds(end - start)}, no warm-up"
    return f"{seconds(end - start)} after {seconds(start)} of warm-up"


def command(run: dict[str, Any]) -> str:
    """The command that was run, or one that names what is known of it."""
    if run.get("command"):
        return str(run["command"])
    scenario, target = run.get("scenario") or {}, run.get("target") or {}
    parts = ["prony run", str(scenario.get("name") or "chat")]
    for option, found in (("--target", target.get("url")), ("--model", target.get("model")),
                          ("--seed", run.get("seed"))):  # fmt: skip
        if found is not None:
            parts.append(f"{option} {found}")
    return " ".join(parts)


def _requests(run: dict[str, Any]) -> dict[str, Any]:
    return (run.get("summary") or {}).get("requests") or {}
