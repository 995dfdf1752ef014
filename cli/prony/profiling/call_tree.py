"""Where time went, as a tree of calls: stacks or nested events in, merged nodes out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

MOST_NODES = 100_000  # of one tree; calls beyond them count for their callers


def printable(told: object) -> str:
    """A name as a profile has it, with nothing that a terminal would obey."""
    name = str(told)
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in name)


@dataclass(slots=True)
class Node:
    """All calls of one name from one place."""

    name: str
    own: float = 0.0  # seconds without what it called
    total: float = 0.0
    calls: int = 0
    children: dict[str, Self] = field(default_factory=dict)

    def child(self, name: str) -> Self:
        """The node of a call of `name` from here."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = type(self)(name)
        return found

    def add(self, stack: Sequence[str], seconds: float) -> None:
        """Counts a sample whose stack, outermost first, was seen for so long below this node."""
        node = self
        node.total += seconds
        for name in stack:
            node = node.child(name)
            node.total += seconds
            node.calls += 1
        node.own += seconds

    def walk(self) -> Iterator[Self]:
        """This node and all below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())
