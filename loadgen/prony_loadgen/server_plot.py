"""Client and server on one time axis: what a run kept of the target's metrics in, a figure out."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from prony_loadgen.record import RequestRecord

Lines = Sequence[Mapping[str, float]]
Figure = dict[str, Any]


def server_figure(
    lines: Lines, records: Sequence[RequestRecord], span: float
) -> tuple[Figure, str] | None:
    """The figure over the run's `span` seconds, and a sentence on what it cannot show.

    `lines` are in time's order; each holds `at` and the concepts of the map of engines. None where
    there are fewer than two.
    """
    inside = [line for line in lines if -1.0 <= line["at"] <= span + 1.0]
    if len(inside) < 2:
        return None
    traces: list[Figure] = []
    server = means(inside, "ttft")
    if server:
        traces.append(_line("server", server, "y", "$warn"))
    client = client_means([line["at"] for line in inside], records)
    if client:
        traces.append(_line("client", client, "y", "$data"))
    for name, colour in (("running", "$data"), ("waiting", "$bad")):
        points = [(line["at"], line[name]) for line in inside if name in line]
        if points:
            traces.append(_line(name, points, "y2", colour))
    full = [(line["at"], 100 * line["kv_usage"]) for line in inside if "kv_usage" in line]
    if full:
        traces.append(_line("KV cache", full, "y3", "$data"))
    missing = [
        what
        for what, points in (("time to first token", server), ("KV cache use", full))
        if not points
    ]
    note = f" The server does not tell its {' nor its '.join(missing)}." if missing else ""
    layout = {
        "height": 480,
        "hovermode": "x unified",
        "xaxis": {"range": [0, span], "title": {"text": "seconds since the schedule began"},
                  "anchor": "y3", "showgrid": True, "zeroline": False},
        "yaxis": {"domain": [0.62, 1], "rangemode": "tozero", "title": {"text": "mean TTFT (ms)"}},
        "yaxis2": {"domain": [0.3, 0.55], "rangemode": "tozero", "nticks": 4,
                   "title": {"text": "requests"}, "fixedrange": True},
        "yaxis3": {"domain": [0, 0.22], "range": [0, 100], "nticks": 3,
                   "title": {"text": "KV cache (%)"}, "fixedrange": True},
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 62, "r": 12, "t": 34, "b": 44},
    }  # fmt: skip
    return {"data": traces, "layout": layout}, note


def means(lines: Lines, concept: str) -> list[tuple[float, float]]:
    """Milliseconds: the mean of what a histogram observed between two scrapes, where it did."""
    points = []
    known = [line for line in lines if f"{concept}_count" in line and f"{concept}_sum" in line]
    for before, after in pairwise(known):
        count = after[f"{concept}_count"] - before[f"{concept}_count"]
        if count > 0:  # below 0 the server was restarted
            seconds = after[f"{concept}_sum"] - before[f"{concept}_sum"]
            points.append((after["at"], 1000 * seconds / count))
    return points


def client_means(
    edges: Sequence[float], records: Sequence[RequestRecord]
) -> list[tuple[float, float]]:
    """Milliseconds: the mean TTFT of the requests whose first token came between two scrapes."""
    sums = [0.0] * len(edges)
    counts = [0] * len(edges)
    for record in records:
        if not record.ok or record.ttft is None:
            continue
        index = bisect_left(edges, record.intended + record.ttft)
        if 0 < index < len(edges):
            sums[index] += record.ttft
            counts[index] += 1
    return [
        (at, 1000 * total / count)
        for at, total, count in zip(edges, sums, counts, strict=True)
        if count
    ]


def _line(name: str, points: Sequence[tuple[float, float]], axis: str, colour: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "xaxis": "x",
        "yaxis": axis,
        "x": [round(at, 2) for at, _ in points],
        "y": [round(value, 3) for _, value in points],
        "line": {"color": colour, "width": 1.5},
    }
