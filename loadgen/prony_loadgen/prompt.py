"""What is sent to a model: a text or chat messages, and how many tokens it was meant to have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of `text` and `messages` is given; `messages` pass through to the server untouched."""

    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    asked_tokens: int | None = None  # the length it was made for; None where it was not made

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError("a prompt is either a text or chat messages, exactly one of them")
