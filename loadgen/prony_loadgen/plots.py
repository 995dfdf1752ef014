"""The report's plots: records in, Plotly figures as plain dicts out.

A figure holds no colour but names such as "$data" that the page resolves from its style sheet, so
that one figure is right in light, in dark and on paper. Times are drawn in milliseconds.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from prony_loadgen.record import RequestRecord
from prony_loadgen.words import NEVER, ms, share

Figure = dict[str, Any]
Limit = tuple[float, float | None]  # seconds, and the share that must keep within it

MOST_POINTS: Final = 4000  # requests drawn as single points
MOST_STEPS: Final = 600  # vertices of a line
TAIL: Final = (0.5, 0.9, 0.99, 0.999, 0.9999)
COLOURS: Final = ("$data", "$second", "$limit", "$good")  # of runs that are compared
DASHES: Final = ("solid", "dash", "dot")


def distribution(
    values: Sequence[float], failed: int, limits: Sequence[Limit], label: str
) -> Figure | None:
    """One metric's histogram above its cumulative curve, on one logarithmic time axis.

    `values` are seconds of the attempts that got there; `failed` never did: they lift the total,
    so the curve ends below 100 %. The share axis is stretched towards 100 %, where objectives lie.
    None where there is nothing to draw.
    """
    if not values:
        return None
    # A positive floor: the axis is logarithmic and a zero would have no place on it.
    found = np.maximum(np.sort(np.asarray(values, dtype=float)) * 1000, 1e-3)
    total = len(found) + failed
    edges = [found[0], found[-1], *(limit * 1000 for limit, _ in limits)]
    low, high = min(edges) / 1.25, max(edges) * 1.25
    # Up to the last success or the strictest objective; beyond them is nothing to see.
    shares = [len(found) / total, 0.9, *(at_least for _, at_least in limits if at_least)]
    top = max(_stretched(each, total) for each in shares) * 1.06

    traces = [_histogram(found, low, high), *_curve(found, total, high, label)]
    traces.append(_markers(found, total, low, high))
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for limit, at_least in limits:
        shapes.append(_line("x", limit * 1000, "x", "paper"))
        text = f"SLO {limit * 1000:,g} ms"
        if at_least is not None:
            text += f", {share(at_least)}"
        if at_least is not None and (1 - at_least) * 2 * total >= 1:
            shapes.append(_line("y", _stretched(at_least, total), "paper", "y2"))
        notes.append(
            {
                "x": math.log10(limit * 1000), "xref": "x", "y": 1, "yref": "paper",
                "text": text, "showarrow": False, "yanchor": "bottom",
                "xanchor": _anchor(limit * 1000, low, high),
                "font": {"color": "$limit", "size": 11},
            }
        )  # fmt: skip
    if failed:
        # Between the two drawings, where no curve and no label can be.
        text = f"{failed:,} of {total:,} {NEVER}"
        notes.append(
            {"x": 1, "xref": "paper", "y": 0.72, "yref": "paper", "text": text, "showarrow": False,
             "xanchor": "right", "yanchor": "bottom", "bgcolor": "$paper",
             "font": {"color": "$bad", "size": 11}}
        )  # fmt: skip
    ticks = [p for p in TAIL if _stretched(p, 10**9) <= top]
    return {
        "data": traces,
        "layout": {
            "height": 330,
            "xaxis": {**_log_ticks(low, high), "title": {"text": f"{label} (ms)"}, "anchor": "y2"},
            "yaxis": {"domain": [0.8, 1], "showticklabels": False, "showgrid": False,
                      "zeroline": False, "rangemode": "tozero", "fixedrange": True},
            "yaxis2": {"domain": [0, 0.72], "range": [-0.02, top], "fixedrange": True,
                       "tickvals": [0, *(_stretched(p, total) for p in ticks)],
                       "ticktext": ["0 %", *(share(p) for p in ticks)],
                       "title": {"text": "attempts within"}},
            "shapes": shapes,
            "annotations": notes,
            "showlegend": False,
            "margin": {"l": 62, "r": 12, "t": 22, "b": 44},
        },
    }  # fmt: skip


def overlaid(samples: Sequence[tuple[str, Sequence[float], int]], label: str) -> Figure | None:
    """Cumulative curves of several runs on one logarithmic time axis, for a comparison.

    `samples` are (name, seconds of the attempts that got there, attempts that never did). None
    where no run has any.
    """
    known = [(name, np.maximum(np.sort(np.asarray(v, float)) * 1000, 1e-3), failed)
             for name, v, failed in samples if len(v)]  # fmt: skip
    if not known:
        return None
    low = min(float(found[0]) for _, found, _ in known) / 1.25
    high = max(float(found[-1]) for _, found, _ in known) * 1.25
    most = max(len(found) + failed for _, found, failed in known)
    shares = [0.9, *(len(found) / (len(found) + failed) for _, found, failed in known)]
    top = max(_stretched(each, most) for each in shares) * 1.06
    traces: list[Figure] = []
    for index, (name, found, failed) in enumerate(known):
        curve, _ = _curve(found, len(found) + failed, high, label)
        curve["line"] = {"shape": "hv", "width": 2, "color": COLOURS[index % len(COLOURS)],
                         "dash": DASHES[index // len(COLOURS) % len(DASHES)]}  # fmt: skip
        traces.append({**curve, "yaxis": "y", "name": name, "showlegend": True})
    ticks = [p for p in TAIL if _stretched(p, 10**9) <= top]
    return {
        "data": traces,
        "layout": {
            "height": 320,
            "xaxis": {**_log_ticks(low, high), "title": {"text": f"{label} (ms)"}},
            "yaxis": {"range": [-0.02, top], "fixedrange": True,
                      "tickvals": [0, *(_stretched(p, most) for p in ticks)],
                      "ticktext": ["0 %", *(share(p) for p in ticks)],
                      "title": {"text": "attempts within"}},
            "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02,
                       "yanchor": "bottom"},
            "margin": {"l": 62, "r": 12, "t": 30, "b": 44},
        },
    }  # fmt: skip


def timeline(
    records: Sequence[RequestRecord], window: tuple[float, float], limits: Sequence[Limit]
) -> Figure | None:
    """TTFT, tokens per second and requests in flight over the run, on one time axis.

    None where no request was made.
    """
    if not records:
        return None
    ended = max(record.ended for record in records)
    span = max(ended, window[1], 1e-3)
    answered = [r for r in records if r.ttft is not None and r.ok]
    lost = [r for r in records if not r.ok and r.outcome != "incomplete"]
    traces, ceiling, axis = _latency_traces(records, answered, lost, span, limits)
    width, rates = _tokens_per_second(records, span)
    edges = [index * width for index in range(len(rates) + 1)]
    traces.append(
        {
            "type": "scatter", "mode": "lines", "x": _rounded(edges), "xaxis": "x", "yaxis": "y2",
            "y": _rounded([*rates, rates[-1] if rates else 0], 1), "line": {"shape": "hv",
            "color": "$data", "width": 1.5}, "fill": "tozeroy", "fillcolor": "$data-soft",
            "name": "output tokens/s", "showlegend": False,
            "hovertemplate": "%{y:,.0f} tokens/s<extra></extra>",
        }
    )  # fmt: skip
    times, level = in_flight(records, span)
    traces.append(
        {
            "type": "scatter", "mode": "lines", "x": times, "y": level, "xaxis": "x", "yaxis": "y3",
            "line": {"shape": "hv", "color": "$data", "width": 1}, "fill": "tozeroy",
            "fillcolor": "$data-soft", "name": "in flight", "showlegend": False,
            "hovertemplate": "%{y} in flight<extra></extra>",
        }
    )  # fmt: skip
    shapes = [_line("y", min(limit * 1000, ceiling), "paper", "y") for limit, _ in limits]
    notes: list[dict[str, Any]] = []
    for start, end, text in ((0.0, window[0], "warm-up"), (window[1], span, "drain")):
        if end - start > span * 0.002:
            shapes.append(
                {"type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0,
                 "y1": 1, "fillcolor": "$shade", "line": {"width": 0}, "layer": "below"}
            )  # fmt: skip
            if end - start > span * 0.05:
                notes.append(
                    {"x": (start + end) / 2, "xref": "x", "y": 1, "yref": "paper", "text": text,
                     "showarrow": False, "yanchor": "bottom", "font": {"color": "$muted",
                     "size": 11}}
                )  # fmt: skip
    return {
        "data": traces,
        "layout": {
            "height": 560,
            "hovermode": "closest",
            "xaxis": {"range": [0, span], "title": {"text": "seconds since the schedule began"},
                      "anchor": "y3", "showgrid": True, "zeroline": False},
            "yaxis": {"domain": [0.47, 1], **axis, "title": {"text": "TTFT (ms)"}},
            "yaxis2": {"domain": [0.235, 0.41], "rangemode": "tozero", "nticks": 4,
                       "title": {"text": "tokens/s"}, "fixedrange": True},
            "yaxis3": {"domain": [0, 0.175], "rangemode": "tozero", "nticks": 4,
                       "title": {"text": "in flight"}, "fixedrange": True, "tickformat": "d"},
            "shapes": shapes,
            "annotations": notes,
            "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02,
                       "yanchor": "bottom"},
            "margin": {"l": 62, "r": 12, "t": 34, "b": 44},
        },
    }  # fmt: skip


def asked_and_got(pairs: Sequence[tuple[int, int]]) -> Figure | None:
    """Output tokens got against asked, one point a request, with the line where both are equal."""
    if not pairs:
        return None
    counted: dict[tuple[int, int], int] = {}
    for pair in pairs:
        counted[pair] = counted.get(pair, 0) + 1
    shown = _thinned(sorted(counted))
    top = max(max(pair) for pair in shown) * 1.06
    return {
        "data": [
            {"type": "scatter", "mode": "lines", "x": [0, top], "y": [0, top],
             "line": {"color": "$muted", "width": 1, "dash": "dot"}, "hoverinfo": "skip"},
            {"type": "scatter", "mode": "markers", "x": [asked for asked, _ in shown],
             "y": [got for _, got in shown], "customdata": [counted[pair] for pair in shown],
             "marker": {"color": "$data", "size": 5, "opacity": 0.55},
             "hovertemplate": "asked %{x}, got %{y}: %{customdata} requests<extra></extra>"},
        ],
        "layout": {
            "height": 300, "showlegend": False,
            "xaxis": {"range": [0, top], "title": {"text": "output tokens asked"}},
            "yaxis": {"range": [0, top], "title": {"text": "got"}},
            "margin": {"l": 62, "r": 12, "t": 12, "b": 44},
        },
    }  # fmt: skip


def drawn(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Which requests become single points: all, or the slowest 1,000 and every k-th of the rest."""
    if len(records) <= MOST_POINTS:
        return list(records)
    slowest = sorted(records, key=lambda record: record.ttft or 0.0, reverse=True)[:1000]
    kept = {id(record) for record in slowest}
    rest = [record for record in records if id(record) not in kept]
    step = math.ceil(len(rest) / (MOST_POINTS - 1000))
    return sorted([*slowest, *rest[::step]], key=lambda record: record.intended)


def in_flight(records: Sequence[RequestRecord], span: float) -> tuple[list[float], list[int]]:
    """How many requests were under way, from each time on; a long run keeps each step's maximum."""
    changes = [(record.sent, 1) for record in records if record.sent is not None]
    changes += [(record.ended, -1) for record in records if record.sent is not None]
    if not changes:
        return [0.0, round(span, 3)], [0, 0]
    changes.sort()
    times = np.array([at for at, _ in changes])
    levels = np.cumsum([by for _, by in changes])
    if len(times) > 4 * MOST_STEPS:
        width = span / MOST_STEPS
        steps = np.minimum((times / width).astype(int), MOST_STEPS - 1)
        highest = np.full(MOST_STEPS, -1)
        np.maximum.at(highest, steps, levels)
        before = 0
        for step in range(MOST_STEPS):  # a step without a change keeps the level before it
            last = np.searchsorted(steps, step, side="right") - 1
            highest[step] = max(highest[step], before)
            before = int(levels[last]) if last >= 0 else 0
        return _rounded([step * width for step in range(MOST_STEPS)]), highest.tolist()
    return _rounded([0.0, *times]), [0, *levels.tolist()]


def _latency_traces(
    records: Sequence[RequestRecord],
    answered: Sequence[RequestRecord],
    lost: Sequence[RequestRecord],
    span: float,
    limits: Sequence[Limit],
) -> tuple[list[Figure], float, dict[str, Any]]:
    """The traces of TTFT over time, the height that stands for "never", and their axis."""
    points = drawn(answered)
    latencies = np.array([record.ttft for record in answered], dtype=float) * 1000
    bounds = [limit * 1000 for limit, _ in limits]
    high = max([*latencies.tolist(), *bounds], default=1000.0)
    low = max(min([*latencies.tolist(), *bounds], default=1.0), 1e-3)
    # A queue that grows is a straight line on a linear axis; a wide spread needs a logarithmic one.
    logarithmic = high / low > 40
    ceiling = high * 1.6 if logarithmic else high * 1.18
    axis: dict[str, Any]
    if logarithmic:
        axis = _log_ticks(low / 1.3, ceiling * 1.15, most=6)
        axis["tickvals"] = [value for value in axis["tickvals"] if value < ceiling / 1.2]
        axis["ticktext"] = axis["ticktext"][: len(axis["tickvals"])]
    else:
        ticks = _linear_ticks(high)
        axis = {"type": "linear", "range": [0, ceiling * 1.06], "tickmode": "array",
                "tickvals": ticks, "ticktext": [f"{value:,g}" for value in ticks]}  # fmt: skip
    if lost:
        axis["tickvals"] = [*axis["tickvals"], ceiling]
        axis["ticktext"] = [*axis["ticktext"], NEVER]
    traces: list[Figure] = [
        {
            "type": "scatter", "mode": "markers", "name": "requests",
            "x": _rounded(record.intended for record in points),
            "y": _rounded(((record.ttft or 0.0) * 1000 for record in points), 2),
            "text": [record.id for record in points], "xaxis": "x", "yaxis": "y",
            "marker": {"color": "$data", "size": 4, "opacity": 0.5},
            "hovertemplate": "%{text}<br>%{y:,.1f} ms at %{x:.2f} s<extra></extra>",
        }
    ]  # fmt: skip
    for q, colour in ((50, "$ink"), (high_percentile(records, span), "$second")):
        times, level = rolling(records, q, span)
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": f"rolling p{q}", "x": _rounded(times),
                "y": [None if v is None else round(min(v * 1000, ceiling), 2) for v in level],
                "xaxis": "x", "yaxis": "y", "line": {"color": colour, "width": 1.6},
                "hovertemplate": f"p{q} %{{y:,.1f}} ms<extra></extra>",
            }
        )  # fmt: skip
    if lost:
        shown = _thinned(lost, 500)
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "failed", "xaxis": "x", "yaxis": "y",
                "x": _rounded(record.intended for record in shown), "y": [ceiling] * len(shown),
                "text": [f"{record.id}: {record.outcome}" for record in shown],
                "marker": {"color": "$bad", "size": 8, "symbol": "x-thin",
                           "line": {"color": "$bad", "width": 1.5}},
                "hovertemplate": "%{text} at %{x:.2f} s<extra></extra>",
            }
        )  # fmt: skip
    return traces, ceiling, axis


def rolling_width(span: float) -> float:
    """Seconds of the window that the rolling percentiles look at."""
    return max(2.0, span / 20)


def high_percentile(records: Sequence[RequestRecord], span: float) -> int:
    """Which percentile a rolling window can carry: p99 of under 100 requests is but the slowest."""
    return 99 if len(records) * rolling_width(span) / span >= 100 else 90


def rolling(
    records: Sequence[RequestRecord], q: float, span: float
) -> tuple[list[float], list[float | None]]:
    """TTFT's nearest-rank percentile around each of some hundred moments, failures as infinity."""
    known = sorted(
        (record.intended, record.ttft if record.ok else math.inf)
        for record in records
        if record.outcome != "incomplete" and (record.ttft is not None or not record.ok)
    )
    if not known:
        return [], []
    at = np.array([time for time, _ in known])
    values = np.array([value for _, value in known])
    half = rolling_width(span) / 2
    times = np.linspace(at[0], at[-1], 120 if len(known) > 1 else 1)
    found: list[float | None] = []
    for time in times:
        inside = values[
            np.searchsorted(at, time - half) : np.searchsorted(at, time + half, "right")
        ]
        rank = max(0, math.ceil(q / 100 * len(inside)) - 1)
        found.append(float(np.sort(inside)[rank]) if len(inside) else None)
    return times.tolist(), found


def _tokens_per_second(records: Sequence[RequestRecord], span: float) -> tuple[float, list[float]]:
    """The bins' width in seconds and each bin's rate: 1 s, wider where a run has over 600 s."""
    width = float(max(1, math.ceil(span / MOST_STEPS)))
    totals = [0.0] * max(1, math.ceil(span / width))
    for record in records:
        told = sum(arrival.tokens for arrival in record.arrivals)
        scale = (record.output_tokens or told) / told / width if told else 0.0
        for arrival in record.arrivals:
            totals[min(int(arrival.at / width), len(totals) - 1)] += arrival.tokens * scale
    # The last bin is rarely whole; its rate is over the part that the run filled.
    part = (span - (len(totals) - 1) * width) / width
    if 0 < part < 1:
        totals[-1] /= part
    return width, totals


def _histogram(found: NDArray[np.float64], low: float, high: float) -> Figure:
    bins = np.geomspace(low, high, 49)
    heights, _ = np.histogram(found, bins)
    return {
        "type": "scatter", "mode": "lines", "xaxis": "x", "yaxis": "y",
        "x": _rounded(bins.tolist(), 4), "y": [*heights.tolist(), 0],
        "line": {"shape": "hv", "color": "$data", "width": 1}, "fill": "tozeroy",
        "fillcolor": "$data-soft", "hoverinfo": "skip",
    }  # fmt: skip


def _curve(found: NDArray[np.float64], total: int, high: float, label: str) -> list[Figure]:
    """The cumulative curve: every sample up to 400, then an even grid and the slowest 200."""
    count = len(found)
    ranks = np.arange(1, count + 1)
    if count > 600:
        ranks = np.unique(np.concatenate([np.linspace(1, count, 400).astype(int), ranks[-200:]]))
    shares = [rank / total for rank in ranks.tolist()]
    x = _rounded(found[ranks - 1].tolist(), 4)
    y = [round(_stretched(value, total), 4) for value in shares]
    curve = {
        "type": "scatter", "mode": "lines", "xaxis": "x", "yaxis": "y2", "x": [x[0], *x],
        "y": [0, *y], "customdata": [0, *(round(value * 100, 3) for value in shares)],
        "line": {"shape": "hv", "color": "$data", "width": 2},
        "hovertemplate": f"%{{customdata}} % of attempts: {label} within %{{x:,.2f}} ms"
        "<extra></extra>",
    }  # fmt: skip
    # From the slowest success on nothing arrives any more: the rest never did.
    tail = {
        "type": "scatter", "mode": "lines", "xaxis": "x", "yaxis": "y2", "x": [x[-1], high],
        "y": [y[-1], y[-1]], "line": {"color": "$bad" if count < total else "$data", "width": 1.5,
        "dash": "dot"}, "hoverinfo": "skip",
    }  # fmt: skip
    return [curve, tail]


def _markers(found: NDArray[np.float64], total: int, low: float, high: float) -> Figure:
    """p50, p90 and p99 on the curve, each where it exists: beyond the successes it is never."""
    names: dict[tuple[float, float], str] = {}
    for q in (50, 90, 99):
        rank = max(1, math.ceil(q / 100 * total))
        if rank <= len(found):
            at = (float(found[rank - 1]), _stretched(q / 100, total))
            # Few requests have percentiles that are one request, at one place.
            names[at] = f"{names[at]}, p{q}" if at in names else f"p{q}"
    marks = [(name, x, y) for (x, y), name in names.items()]
    return {
        "type": "scatter", "mode": "markers+text", "xaxis": "x", "yaxis": "y2",
        "x": _rounded((x for _, x, _ in marks), 4), "y": _rounded((y for *_, y in marks), 4),
        "text": [f"{name} {ms(x / 1000, unit=False)}" for name, x, _ in marks],
        # The curve rises to the right, so there is room below it at first and above it later.
        "textposition": ["bottom right" if _place(x, low, high) < 0.5 else "top left"
                         for _, x, _ in marks], "textfont": {"color": "$ink", "size": 11},
        "marker": {"color": "$paper", "size": 7, "line": {"color": "$data", "width": 2}},
        "cliponaxis": False, "hoverinfo": "skip",
    }  # fmt: skip


def _stretched(share_within: float, total: int) -> float:
    """A share's height: each nine is one step, so 50 %, 90 %, 99 %, 99.9 % stand apart.

    100 % would be infinitely high; it stands where half a request of `total` would be missing.
    """
    return -math.log10(max(1 - share_within, 1 / (2 * total)))


def _line(axis: str, at: float, xref: str, yref: str) -> dict[str, Any]:
    across = {"x0": at, "x1": at, "y0": 0, "y1": 1} if axis == "x" else {
        "x0": 0, "x1": 1, "y0": at, "y1": at}  # fmt: skip
    style = {"color": "$limit", "width": 1.2, "dash": "dash"}
    return {"type": "line", "xref": xref, "yref": yref, **across, "line": style}


def _anchor(at: float, low: float, high: float) -> str:
    """Where a label hangs on its line so that it stays inside the plot."""
    place = _place(at, low, high)
    return "left" if place < 0.3 else "right" if place > 0.7 else "center"


def _place(at: float, low: float, high: float) -> float:
    """Where a time stands on a logarithmic axis: 0 at its left end, 1 at its right."""
    return math.log(at / low) / math.log(high / low)


def _log_ticks(low: float, high: float, most: int = 7) -> dict[str, Any]:
    """A logarithmic axis from low to high with round ticks, as few as keep it readable."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        values = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(values) <= most:
            break
    values = values[:: math.ceil(len(values) / most)] if values else []
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickmode": "array",
        "tickvals": values,
        "ticktext": [f"{value:,g}" for value in values],
    }


def _linear_ticks(high: float) -> list[float]:
    raw = high / 4
    size = 10 ** math.floor(math.log10(raw))
    step = next(s * size for s in (1, 2, 2.5, 5, 10) if s * size >= raw)
    return [index * step for index in range(math.floor(high / step) + 1)]


def _thinned(items: Sequence[Any], most: int = MOST_POINTS) -> list[Any]:
    return list(items[:: math.ceil(len(items) / most)]) if items else []


def _rounded(values: Iterable[float], digits: int = 3) -> list[float]:
    return [round(float(value), digits) for value in values]
