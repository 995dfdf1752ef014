"""What the checks of a board share: how to walk it, what may be empty, how to say what is wrong."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

# What a panel may need beside the server that its board is about. Its description says so, in these
# words, and the live check takes them by their word.
LOAD: Final = "the load generator's metrics"
GPU: Final = "a GPU exporter"
HOST: Final = "node-exporter"
RULES: Final = "rules made by `prony rules`"
ALERT: Final = "an alert that fires"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with the board, the panel and the query that it is about."""

    panel: str
    query: str
    problem: str
    board: str = ""

    def __str__(self) -> str:
        where = f"{self.board} / {self.panel}" if self.board else self.panel
        return f"{where}: {self.problem}" + (f"\n    {self.query}" if self.query else "")


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


def needing(panel: dict[str, Any], need: str) -> dict[str, Any]:
    """The panel, saying that without `need` it has nothing to show."""
    return {**panel, "description": f"{panel['description']} Empty without {need}."}


def need_of(panel: dict[str, Any]) -> str | None:
    """What the panel says that it needs."""
    match = re.search(r"Empty without (.+)\.$", panel.get("description", ""))
    return match[1] if match else None
