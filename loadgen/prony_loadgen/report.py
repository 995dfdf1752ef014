"""The report: run.json and its records in, one HTML file out that opens anywhere, offline.

Figures come from run.json, so that the report cannot differ from the terminal; the records give
the plots and the tables of single requests.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from prony_loadgen import plots, words
from prony_loadgen.record import RequestRecord
from prony_loadgen.server_plot import Lines, server_figure
from prony_loadgen.summary import failed, value
from prony_loadgen.words import count, ms, number, rate, seconds, share, stat

PAGE: Final = Path(__file__).parent / "report_page"
DISTRIBUTIONS: Final = ("ttft", "tpot", "e2e")
SLOWEST: Final = 15  # requests listed one by one
ERRORS: Final = 12  # kinds of error shown with an example
TEXT: Final = 110  # characters of a text or an error that a table shows
LOUD: Final = ("invalid", "warn")  # grades that stand above the numbers

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page that somebody else made."""

    id: str
    title: str
    note: str
    html: Markup


def report_html(
    run: dict[str, Any],
    records: Sequence[RequestRecord],
    server: Lines = (),
    more: Sequence[Section] = (),
) -> str:
    """The whole page. Its size has a bound: a long run's plots keep a stated part of its points.

    `server` is what the run kept of the target's own metrics, where it did; `more` stands behind
    it.
    """
    window = _window(run)
    inside = [record for record in records if window[0] <= record.intended < window[1]]
    limits = words.limits(run)
    figures: dict[str, plots.Figure] = {}
    word, meaning = words.verdict(run)
    doubts = [_doubt(each) for each in run.get("doubts") or []]
    if run.get("loop") == "closed":
        doubts.append({"tone": "inconclusive", "grade": "closed loop", "loud": True,
                       "message": words.CLOSED_LOOP, "remedy": ""})  # fmt: skip
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined
    )
    slowest = _slowest(inside)
    page = {
        "run": {"prony": "", **run},
        "word": word,
        "meaning": meaning,
        "tone": _tone(run.get("verdict")),
        "facts": _facts(run, window),
        "closed": run.get("loop") == "closed",
        "loud": [doubt for doubt in doubts if doubt["loud"]],
        "quiet": [doubt for doubt in doubts if not doubt["loud"]],
        "tiles": _tiles(run),
        "objectives": [_objective(each) for each in words.judged(run)],
        "latency": _latency_rows(run, words.FIRST_METRICS),
        "latency_more": _latency_rows(run, words.MORE_METRICS),
        "agreement": _agreement(run),
        "never": words.NEVER,
        "classes": _classes(run),
        "distributions": [
            _distribution(metric, inside, limits.get(metric, []), figures)
            for metric in DISTRIBUTIONS
        ],
        "timeline": _timeline(run, records, window, limits.get("ttft", []), figures),
        "server": _server(run, server, records, window, figures),
        "more": more,
        "schedule": _schedule(run),
        "outcomes": _outcomes(run),
        "errors": (errors := _errors(inside)),
        "errors_note": _errors_note(errors, inside),
        "tokens": _tokens(run, inside, figures),
        "slowest": slowest,
        "texts": any(row["text"] for row in slowest),
        "reproduce": _reproduce(run),
        "css": Markup((PAGE / "page.css").read_text(encoding="utf-8")),
        "js": Markup((PAGE / "page.js").read_text(encoding="utf-8")),
        "plotly": Markup(in_script(get_plotlyjs())),
    }
    page["figures"] = Markup(in_script(json.dumps(figures, allow_nan=False)))
    return environment.get_template("page.html").render(page)


def in_script(text: str) -> str:
    """Text that may stand in a <script>: neither its end nor a comment's start can occur in it."""
    if text.lstrip()[:1] in "{[":  # JSON knows this escape for every "<"
        return text.replace("<", "\\u003c")
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _window(run: dict[str, Any]) -> tuple[float, float]:
    # The summary's is without the warm-up that was found in the run, or that an SLO asks for.
    start, end = (run.get("summary") or {}).get("window") or run.get("window") or (0.0, 0.0)
    return float(start), float(end)


def _tone(verdict: Any) -> str:
    return str(verdict) if verdict in words.VERDICTS else "none"


def _facts(run: dict[str, Any], window: tuple[float, float]) -> Row:
    scenario, target = run.get("scenario") or {}, run.get("target") or {}
    shown = [
        ("run", run.get("run_id") or words.UNKNOWN),
        ("target", target.get("url") or words.UNKNOWN),
        ("model", target.get("model") or words.UNKNOWN),
        ("scenario", f"{scenario.get('name') or words.UNKNOWN}, {words.load(run)}"),
        ("started", str(run.get("started_at") or words.UNKNOWN).replace("T", " ")[:19] + " UTC"),
        ("measured", words.measured(run)),
    ]
    shown += [
        (name, told)
        for name, told in (
            ("cost", words.cost(run)),
            ("answers", words.quality(run)),
            ("retries", words.retries(run)),
        )
        if told
    ]
    return {"shown": shown, "scenario": scenario.get("name"), "model": target.get("model")}


def _doubt(doubt: dict[str, Any]) -> Row:
    grade = str(doubt.get("grade"))
    tones = {"invalid": "invalid", "warn": "inconclusive"}
    return {
        "grade": grade,
        "loud": grade in LOUD,
        "tone": tones.get(grade, "none"),
        "message": doubt.get("message") or doubt.get("id"),
        "remedy": doubt.get("remedy") or "",
    }


def _tiles(run: dict[str, Any]) -> list[Row]:
    tiles = []
    for metric in ("ttft", "tpot", "e2e"):
        name, meaning = words.METRICS[metric]
        for q in ("p50", "p99"):
            found, unit = _split(ms(stat(run, metric, "all", q)))
            tiles.append(_tile(f"{name} {q}", found, unit, "all attempts", meaning))
    rates = (run.get("summary") or {}).get("rates") or {}
    tiles.append(_tile("output", rate(number(rates.get("output_tokens_per_s"))), "tokens/s",
                       "arrived in the window"))  # fmt: skip
    tiles.append(_tile("completed", rate(number(rates.get("requests_per_s"))), "requests/s",
                       _asked_rate(run)))  # fmt: skip
    errors, attempts = words.failures(run), words.attempts(run)
    found, unit = _split(share(errors / attempts) if attempts else words.UNKNOWN)
    note = f"{count(errors)} of {words.counted(attempts, 'attempt')}"
    tiles.append(_tile("errors", found, unit, note, alarm=errors > 0))
    account = run.get("schedule") or {}
    held = (number(account.get("late")) or 0) + (number(account.get("dropped")) or 0)
    found, unit = _split(ms(number(account.get("send_lag_p99"))))
    tiles.append(_tile("send lag p99", found, unit, f"{count(held)} late or dropped",
                       words.METRICS["send_lag"][1], alarm=held > 0))  # fmt: skip
    return tiles


def _tile(name: str, found: str, unit: str, note: str, title: str = "", alarm: bool = False) -> Row:
    alarm = alarm or found == words.NEVER
    return {"name": name, "value": found, "unit": unit, "note": note, "title": title,
            "alarm": alarm}  # fmt: skip


def _split(text: str) -> tuple[str, str]:
    found, _, unit = text.partition(" ")
    return found, unit


def _asked_rate(run: dict[str, Any]) -> str:
    asked = number((run.get("schedule") or {}).get("asked_rate"))
    if run.get("loop") == "closed" or asked is None:
        return "closed loop" if run.get("loop") == "closed" else "in the window"
    return f"asked {rate(asked)}/s"


def _objective(each: dict[str, Any]) -> Row:
    facts = words.objective(each)
    low, high = facts["low"], facts["high"]
    return {
        **facts,
        "lines": facts["line"].split(" | "),
        "bounds": "" if low is None else f"{share(low)} to {share(high)}",
        "tone": _tone(each.get("verdict")),
        "gauge": _gauge(facts["share"], facts["low"], facts["high"], facts["allowed"]),
        "n": count(number(each.get("n"))),
    }


def _gauge(
    point: float | None, low: float | None, high: float | None, allowed: float | None
) -> Markup:
    """A small drawing of a bad share, the band it may lie in, and the share that is allowed."""
    if low is None or high is None or allowed is None:
        return Markup("")
    top = min(1.0, max(allowed * 2.5, high * 1.15, 1e-6))

    def x(at: float) -> float:
        return round(4 + 182 * min(max(at, 0.0) / top, 1.0), 1)

    dot = "" if point is None else f'<circle class="point" cx="{x(point)}" cy="13" r="4"/>'
    return Markup(
        f'<svg class="gauge" viewBox="0 0 190 26" role="img" aria-label="between {share(low)} and '
        f'{share(high)}, allowed {share(allowed)}"><path class="track" d="M4 13H186"/>'
        f'<path class="range" d="M{x(low)} 13H{x(high)}"/>{dot}'
        f'<path class="limit" d="M{x(allowed)} 3V23"/></svg>'
    )


def _latency_rows(run: dict[str, Any], metrics: Sequence[str]) -> list[Row]:
    rows = []
    for metric in metrics:
        name, meaning = words.METRICS[metric]
        for which in words.shown(run, metric):
            cells = [ms(stat(run, metric, which, q), unit=False)
                     for q in ("mean", "p50", "p90", "p95", "p99", "max")]  # fmt: skip
            cells.append(count(stat(run, metric, which, "n")))
            over = "all attempts" if which == "all" else "successes only"
            rows.append({"name": name if which == "all" else "", "meaning": meaning,
                         "over": over, "cells": cells})  # fmt: skip
    return rows


def _agreement(run: dict[str, Any]) -> str:
    if words.attempts(run) == 0:
        return "Nothing was measured."
    if words.failures(run) == 0:
        return "No attempt failed, so successes alone give the same figures."
    return "Successes alone stand below, labelled so."


def _classes(run: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, figures in ((run.get("summary") or {}).get("classes") or {}).items():
        requests = figures.get("requests") or {}
        cells = [name, count(number(requests.get("attempts"))),
                 count(number(requests.get("failed")))]  # fmt: skip
        for metric in DISTRIBUTIONS:
            stats = (figures.get(metric) or {}).get("all") or {}
            cells += [ms(number(stats.get(q))) for q in ("p50", "p99")]
        rows.append(cells)
    return rows


def _distribution(
    metric: str,
    inside: Sequence[RequestRecord],
    limits: Sequence[plots.Limit],
    figures: dict[str, plots.Figure],
) -> Row:
    known = [v for record in inside if (v := value(record, metric)) is not None]
    finite = [v for v in known if math.isfinite(v)]
    name, meaning = words.METRICS[metric]
    figure = plots.distribution(finite, len(known) - len(finite), limits, name)
    shown: Row = {"name": name, "meaning": meaning, "id": "", "why": "", "height": 0, "alt": ""}
    if figure is None:
        lost = len(known)
        return {**shown, "why": f": all of {words.counted(lost, 'attempt')} failed" if lost else ""}
    figures[f"plot-{metric}"] = figure
    return {
        **shown,
        "id": f"plot-{metric}",
        "height": figure["layout"]["height"],
        "alt": f"histogram and cumulative distribution of {name}",
    }


def _timeline(
    run: dict[str, Any],
    records: Sequence[RequestRecord],
    window: tuple[float, float],
    limits: Sequence[plots.Limit],
    figures: dict[str, plots.Figure],
) -> Row:
    figure = plots.timeline(records, window, limits)
    if figure is None:
        return {"id": "", "height": 0, "note": "No request was made."}
    figures["plot-timeline"] = figure
    span = max(max(record.ended for record in records), window[1])
    answered = sum(1 for record in records if record.ok and record.ttft is not None)
    note = (
        f"Each point is one request at the moment it was intended; rolling percentiles look at "
        f"{seconds(plots.rolling_width(span))} around each moment, and {words.NEVER} is where "
        f"failures put them. Shaded: outside the measurement window."
    )
    if found := run.get("warmup_found"):
        end = seconds(found["at"])
        note += f" The warm-up was found in the run: it ends at {end}, by {found['by']}."
    for doubt in run.get("doubts") or []:
        if doubt["id"] == "not_steady":
            note += f" Not steady after it: {doubt['numbers']['changed']}."
    if answered > plots.MOST_POINTS:
        note += (
            f" Points: the slowest 1,000 of {answered:,} and every k-th of the others, at most "
            f"{plots.MOST_POINTS:,}; lines and tables rest on all."
        )
    return {"id": "plot-timeline", "height": figure["layout"]["height"], "note": note}


def _server(
    run: dict[str, Any],
    lines: Lines,
    records: Sequence[RequestRecord],
    window: tuple[float, float],
    figures: dict[str, plots.Figure],
) -> Row:
    """The target's own view; shown as "not collected" only where it was asked for."""
    asked = run.get("server_metrics")
    if not asked:
        return {"shown": False, "id": "", "height": 0, "note": ""}
    span = max([window[1], *(record.ended for record in records)])
    made = server_figure(lines, records, span)
    if made is None:
        why = asked.get("why") or "too few pages came"
        return {"shown": True, "id": "", "height": 0, "note": f"Not collected: {why}."}
    figure, missing = made
    figures["plot-server"] = figure
    note = (
        f"What the server ({asked.get('engine')}) said of itself, asked once a second "
        f"({count(number(asked.get('pages')))} pages, {count(number(asked.get('failed')))} failed),"
        " beside the client. A gap between the two times is time outside the server."
    )
    height = figure["layout"]["height"]
    return {"shown": True, "id": "plot-server", "height": height, "note": note + missing}


def _schedule(run: dict[str, Any]) -> Row:
    account = run.get("schedule") or {}
    counts = {name: number(account.get(name)) for name in ("on_time", "late", "dropped")}
    offered = number(account.get("offered")) or sum(v for v in counts.values() if v)
    colours = {"on_time": "data", "late": "warn", "dropped": "bad"}
    labels = {"on_time": "on time", "late": "late (sent over 10 ms after its moment)",
              "dropped": "dropped (never sent)"}  # fmt: skip
    parts = [
        {
            "name": labels[name],
            "colour": colours[name],
            "count": count(found),
            "share": share(found / offered) if offered and found is not None else words.UNKNOWN,
            "width": round(100 * (found or 0) / offered, 3) if offered else 0,
        }
        for name, found in counts.items()
    ]
    planned = count(number(account.get("planned")))
    rows = [
        ("offered", count(number(account.get("offered"))), f"planned {planned}"),
        ("send lag p50", ms(number(account.get("send_lag_p50"))), ""),
        ("send lag p99", ms(number(account.get("send_lag_p99"))), ""),
    ]  # fmt: skip
    if run.get("loop") != "closed":
        rows.append(("offered rate", f"{rate(number(account.get('offered_rate')))}/s",
                     f"asked {rate(number(account.get('asked_rate')))}/s"))  # fmt: skip
    share_of_core = number((run.get("client") or {}).get("cpu_share"))
    if share_of_core is not None:
        rows.append(("load generator's CPU", share(share_of_core), "of one core"))
    note = "What our own side did: a late send is counted as latency, and a dropped one as bad."
    if run.get("loop") == "closed":
        note = words.CLOSED_LOOP
    alt = ", ".join(f"{part['name']} {part['count']}" for part in parts)
    return {"parts": parts, "rows": rows, "note": note, "alt": alt}


def _outcomes(run: dict[str, Any]) -> Row:
    summary = run.get("summary") or {}
    outcomes = {str(k): int(v) for k, v in (summary.get("outcomes") or {}).items()}
    total = sum(outcomes.values())
    colours = {"ok": "good", "incomplete": "none"}
    rows = [
        {"name": name, "count": count(found), "share": share(found / total),
         "width": round(100 * found / total, 3), "colour": colours.get(name, "bad")}
        for name, found in outcomes.items()
    ]  # fmt: skip
    good = words.goodput(run)
    more = [("goodput: met every objective about single requests", good)] if good else []
    more += [(f"finish reason: {name}", count(found))
            for name, found in (summary.get("finish_reasons") or {}).items()]  # fmt: skip
    more += [
        (f"flag: {name}", count(found)) for name, found in (summary.get("flags") or {}).items()
    ]
    stalls = summary.get("stalls") or {}
    if stalls.get("gaps") is not None:
        over = ms(number(stalls.get("over_s")))
        more.append((f"gaps over {over} (in {count(number(stalls.get('requests')))} requests)",
                     count(number(stalls["gaps"]))))  # fmt: skip
    note = (
        f"Of {words.counted(total, 'attempt')} in the window."
        if total
        else "No attempt in the window."
    )
    return {"rows": rows, "more": more, "note": note}


def _errors(inside: Sequence[RequestRecord]) -> list[Row]:
    """Failures grouped by kind, the largest group first, each with one example."""
    groups: dict[tuple[str, int | None, str], list[RequestRecord]] = {}
    for record in inside:
        if failed(record):
            # Messages often end in a number or an id; their start names the kind.
            kind = (record.outcome, record.status, (record.error or "")[:40])
            groups.setdefault(kind, []).append(record)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))[:ERRORS]
    return [
        {
            "outcome": outcome,
            "status": words.UNKNOWN if status is None else status,
            "count": count(len(members)),
            "members": len(members),
            "first": f"{members[0].intended:.1f} s",
            "example": _short(members[0].error or words.UNKNOWN),
            "id": members[0].id,
        }
        for (outcome, status, _), members in largest
    ]


def _errors_note(errors: Sequence[Row], inside: Sequence[RequestRecord]) -> str:
    total = sum(1 for record in inside if failed(record))
    shown = sum(row["members"] for row in errors)
    lost = words.counted(total, "failed attempt")
    note = f"{lost}, grouped by outcome, status and the start of the message."
    return note if shown == total else f"{note} The {len(errors)} largest groups are shown."


def _tokens(
    run: dict[str, Any], inside: Sequence[RequestRecord], figures: dict[str, plots.Figure]
) -> Row:
    tokens = (run.get("summary") or {}).get("tokens") or {}
    rows = []
    for side in ("input", "output"):
        found = tokens.get(side) or {}
        asked, got = number(found.get("compared_asked")), number(found.get("compared_got"))
        ratio = share(got / asked) if asked and got is not None else words.UNKNOWN
        compared = count(number(found.get("compared_requests")))
        rows.append([side, compared, count(asked), count(got), ratio])
    pairs = [
        (record.asked_output_tokens, record.output_tokens)
        for record in inside
        if record.ok and record.asked_output_tokens is not None and record.output_tokens is not None
    ]
    note = "Over successes that know both numbers, counted by the server's usage."
    figure = None
    if any(asked != got for asked, got in pairs):
        figure = plots.asked_and_got(pairs)
    elif pairs:
        note += " Every request got as many output tokens as it asked for."
    if estimated := tokens.get("estimated_requests"):
        note += (
            f" {estimated:,} requests came without usage: their tokens are estimated by chunks, "
            "which understates a server that sends several tokens a chunk."
        )
    if unknown := tokens.get("unknown_requests"):
        note += f" {unknown:,} requests have no count."
    if figure is not None:
        figures["plot-tokens"] = figure
    height = figure["layout"]["height"] if figure else 0
    return {"rows": rows, "note": note, "id": "plot-tokens" if figure else "", "height": height}


def _slowest(inside: Sequence[RequestRecord]) -> list[Row]:
    known = [record for record in inside if record.ttft is not None]
    slowest = sorted(known, key=lambda record: record.ttft or 0.0, reverse=True)[:SLOWEST]
    return [
        {
            "id": record.id,
            "cls": record.cls,
            "at": f"{record.intended:.2f} s",
            "ttft": ms(record.ttft, unit=False),
            "e2e": ms(record.e2e, unit=False),
            "tokens_in": count(record.prompt_tokens),
            "tokens_out": count(record.output_tokens),
            "trace": record.trace_id or words.UNKNOWN,
            "text": _short(record.text or record.reasoning or ""),
        }
        for record in slowest
    ]


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= TEXT else flat[: TEXT - 1] + "…"


def _reproduce(run: dict[str, Any]) -> Row:
    def rows(facts: Any) -> list[tuple[str, str]]:
        return [(str(name), _plain(found)) for name, found in (facts or {}).items()]

    run_facts = {"run": run.get("run_id"), "seed": run.get("seed"),
                 "started": run.get("started_at"), "ended": run.get("ended_at"),
                 "exit code": run.get("exit_code")}  # fmt: skip
    return {
        "command": words.command(run),
        "tables": [rows(run_facts) + rows(run.get("versions")), rows(run.get("host"))],
        "scenario": json.dumps(run.get("scenario") or {}, indent=2, ensure_ascii=False),
    }


def _plain(found: Any) -> str:
    if found is None:
        return words.UNKNOWN
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
