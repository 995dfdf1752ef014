"""Rates that change: pieces of a rate over time in, arrival times out, and the stages' names.

A process without a scale (one arrival a unit) is stretched by the rate: the n-th arrival falls
where the area under the rate reaches its place. So every process can follow every shape.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prony_loadgen.summary import Stage


class Piece(NamedTuple):
    """A rate that is constant or changes evenly."""

    name: str  # of the stage; "" where it has none
    seconds: float  # infinite for a last one
    start: float  # requests a second at its start ...
    end: float  # ... and at its end


def at_rate(rate: float, name: str = "", seconds: float = math.inf) -> Piece:
    return Piece(name, seconds, rate, rate)


def stretched(units: Iterator[float], pieces: Iterable[Piece]) -> Iterator[float]:
    """The times of the arrivals `units` (which rise from 0 by 1 on average) under the rate.

    Ends where the pieces end.
    """
    unit = next(units)
    began, area = 0.0, 0.0
    for piece in pieces:
        whole = (piece.start + piece.end) / 2 * piece.seconds if piece.end or piece.start else 0.0
        while unit < area + whole:
            yield began + _inverse(piece, unit - area)
            unit = next(units)
        began, area = began + piece.seconds, area + whole


def rate_at(pieces: Iterable[Piece], at: float) -> float:
    """The rate at a time; the last piece's end holds on."""
    began, last = 0.0, 0.0
    for piece in pieces:
        if at < began + piece.seconds:
            if math.isinf(piece.seconds):
                return piece.start
            return piece.start + (piece.end - piece.start) * (at - began) / piece.seconds
        began, last = began + piece.seconds, piece.end
    return last


def stages(pieces: Iterable[Piece], until: float) -> list[Stage]:
    """The named pieces that begin before `until`, cut there."""
    found: list[Stage] = []
    began = 0.0
    for piece in pieces:
        if began >= until:
            break
        if piece.name:
            found.append(Stage(piece.name, began, min(began + piece.seconds, until)))
        began += piece.seconds
    return found


def _inverse(piece: Piece, area: float) -> float:
    """How far into the piece the area under its rate reaches `area`."""
    if not area:
        return 0.0
    if piece.start == piece.end:
        return area / piece.start
    slope = (piece.end - piece.start) / piece.seconds
    # The root that is stable where the slope is small, and right where the rate starts at 0.
    return 2 * area / (piece.start + math.sqrt(max(0.0, piece.start**2 + 2 * slope * area)))
