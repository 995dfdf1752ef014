"""What load costs: a price and measured requests in, money out; and a purse that can be empty."""

import math
from collections.abc import Mapping
from typing import Any

from prony_loadgen.exchanges import Request
from prony_loadgen.record import RequestRecord
from prony_loadgen.summary import Measured, json_number


def cost(price: Mapping[str, Any], measured: Measured, good_tokens: int) -> dict[str, Any]:
    """The summary's cost of what was measured, by the scenario's price.

    `good_tokens` are the output tokens of the requests that met every objective. A rate is None
    where nothing was answered, or nothing well.
    """
    requests = [r for r in measured.records if r.ok]
    if price.get("per_hour") is not None:
        total = float(price["per_hour"]) * measured.seconds / 3600
    else:
        # What failed midway was computed too, and is paid for where the server says its usage.
        tokens_in = sum(r.prompt_tokens or 0 for r in measured.records)
        tokens_out = sum(r.output_tokens or 0 for r in measured.records)
        total = tokens_in / 1e6 * float(price["input_per_million"])
        total += tokens_out / 1e6 * float(price["output_per_million"])
    return {
        "currency": price.get("currency", "USD"),
        "total": json_number(total),
        "per_1000_requests": json_number(total / len(requests) * 1000) if requests else None,
        "per_million_good_tokens": json_number(total / good_tokens * 1e6) if good_tokens else None,
        "good_tokens": good_tokens,
    }


class Purse:
    """Tokens that may be spent. A request takes the most that it can cost, and gives back the rest.

    Where nobody knows a prompt's tokens, its words are counted, and more once it was seen that they
    cost more.
    """

    def __init__(self, tokens: int) -> None:
        self.left = tokens
        self._held: dict[str, tuple[int, int]] = {}  # tokens of the prompt, and of all of it
        self._dearer = 1.0  # how many tokens a prompt cost for each that was expected, at most

    def take(self, request: Request) -> bool:
        """Whether there is enough for it, which is then taken."""
        asked = request.asked_input_tokens
        expected = (request.prompt_words or 0) if asked is None else asked
        most = math.ceil(expected * self._dearer) + (request.asked_output_tokens or 0)
        if most > self.left:
            return False
        self._held[request.id] = expected, most
        self.left -= most
        return True

    def settle(self, record: RequestRecord) -> None:
        """The request is over: what the server counted is what it cost."""
        expected, held = self._held.pop(record.id, (0, 0))
        if not held:
            return
        if record.outcome == "connect_error":
            self.left += held
        elif record.prompt_tokens is not None and record.output_tokens is not None:
            self.left += held - record.prompt_tokens - record.output_tokens
            if expected:
                self._dearer = max(self._dearer, record.prompt_tokens / expected)
