"""What both checks of a dashboard share: how to walk a board, and how to say what is wrong."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with the panel and the query that it is about."""

    panel: str
    query: str
    problem: str

    def __str__(self) -> str:
        return f"{self.panel}: {self.problem}" + (f"\n    {self.query}" if self.query else "")


def panels_of(board: dict[str, Any], rows: bool = False) -> Iterator[dict[str, Any]]:
    """All panels, those in collapsed rows too; row headings only where asked for."""
    for panel in board["panels"]:
        if panel["type"] != "row" or rows:
            yield panel
        yield from panel.get("panels") or ()


def targets_of(board: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every query of the board beside its panel."""
    for panel in panels_of(board):
        for target in panel.get("targets") or ():
            yield panel, target
