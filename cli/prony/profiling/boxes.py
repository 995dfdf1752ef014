"""Flame graphs and timelines as HTML: a tree of calls or a stretch of a trace in, boxes out.

A box lies where its share of the width is, so that a page needs no script to show it.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from prony.profiling.call_tree import Node
from prony_loadgen.words import ms, share

MOST_BOXES: Final = 2_500
THINNEST: Final = 0.001  # of the width
DEEPEST: Final = 48  # rows
ROW: Final = 16  # pixels


@dataclass(frozen=True, slots=True)
class Box:
    """One call: where it lies, as shares of the width, and in which row."""

    left: float
    width: float
    row: int
    name: str
    told: str  # what is said when one points at it


def flame(tree: Node) -> list[Box]:
    """The calls of a tree, callers above what they called; thin ones are left out."""
    if tree.total <= 0:
        return []
    boxes: list[Box] = []
    waiting = [(tree, 0.0, 0)]
    while waiting and len(boxes) < MOST_BOXES:
        node, left, row = waiting.pop(0)
        width = node.total / tree.total
        own = f"; {share(node.own / tree.total)} its own" if node.own else ""
        told = f"{node.name}: {share(width)}, {ms(node.total)}{own}"
        boxes.append(Box(left, min(width, 1 - left), row, node.name, told))
        if row + 1 >= DEEPEST:
            continue
        for child in sorted(node.children.values(), key=lambda each: -each.total):
            if child.total / tree.total >= THINNEST:
                waiting.append((child, left, row + 1))
            left += child.total / tree.total
    return boxes


def boxes_html(boxes: Sequence[Box], label: str, kind: str = "") -> str:
    """The boxes in a frame of their own; `label` is for those who cannot see it."""
    rows = 1 + max((box.row for box in boxes), default=0)
    inner = "".join(_box(box) for box in boxes)
    return (
        f'<div class="boxes {kind}" role="img" aria-label="{escape(label)}" '
        f'style="height:{rows * ROW}px">{inner}</div>'
    )


def strip_html(busy: Sequence[float], label: str) -> str:
    """How busy something was in each part of the time, dark where it was all busy."""
    bars = "".join(
        f'<rect x="{x}" width="1.05" height="1" opacity="{min(1.0, each):.2f}"/>'
        for x, each in enumerate(busy)
        if each >= 0.01
    )
    return (
        f'<svg class="strip" viewBox="0 0 {len(busy)} 1" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{bars}</svg>'
    )


def busy_parts(
    spans: Iterable[tuple[float, float]], start: float, end: float, parts: int
) -> list[float]:
    """What share of each of so many equal parts of the time the spans cover.

    The spans are in order of their starts; where they overlap, the time counts once.
    """
    seconds = [0.0] * parts
    length = (end - start) / parts
    if length <= 0:
        return seconds
    for left, right in _apart(spans):
        left, right = max(left, start), min(right, end)
        at = left
        while at < right:
            part = min(parts - 1, int((at - start) / length))
            edge = right if part == parts - 1 else min(right, start + (part + 1) * length)
            if edge <= at:  # a rounded edge
                edge = min(right, at + length)
            seconds[part] += edge - at
            at = edge
    return [each / length for each in seconds]


def _apart(spans: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    reached = float("-inf")
    for left, right in spans:
        if right > reached:
            yield max(left, reached), right
            reached = right


def _box(box: Box) -> str:
    wide = max(box.width * 100, 0.02)
    # A name belongs where there is room for some letters of it.
    text = escape(box.name) if wide > 2.5 else ""
    return (
        f'<i style="left:{box.left * 100:.3f}%;width:{wide:.3f}%;top:{box.row * ROW}px;'
        f'background:{colour(box.name)}" title="{escape(box.told)}">{text}</i>'
    )


def colour(name: str) -> str:
    """The same for the same name: warm and light, for dark letters."""
    number = zlib.crc32(name.encode("utf-8", "replace"))
    return f"hsl({20 + number % 40},{60 + number // 64 % 25}%,{66 + number // 4096 % 14}%)"
