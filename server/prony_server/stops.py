"""Stop strings: an answer's text comes in in pieces, what can be no part of a stop string goes out.

The result does not depend on where the pieces end: the first stop string to be complete counts,
and of several that end at the same character the longest.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    def __init__(self, stops: Sequence[str], include: bool) -> None:
        """`include`: the stop string itself is part of what goes out."""
        self._stops = stops
        self._include = include
        self._held = ""  # the longest end of the text so far that a stop string begins with
        self.found = False

    def feed(self, text: str, heed: bool) -> str:
        """What may be given out now. Stop strings that `text` completes count if `heed` is true.

        After one was `found` nothing more is to be fed.
        """
        known = len(self._held)
        text = self._held + text
        if heed:
            # One whose end is not in the new text was not to be heeded when it came.
            ends = [
                (at + len(stop), at)
                for stop in self._stops
                if (at := text.find(stop, max(0, known - len(stop) + 1))) >= 0
            ]
            if ends:
                self.found = True
                self._held = ""
                end, start = min(ends)
                return text[: end if self._include else start]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held back, at an end without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop`, being longer, begins."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)
