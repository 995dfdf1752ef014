"""Drafts and times in, ready requests out; and who gives them to the client, a second ahead.

The client sends each at its deadline, so a busy moment here costs nothing while it is shorter
than that second.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prony_loadgen.client import Request
from prony_loadgen.dialects import DIALECTS
from prony_loadgen.prompt import Prompt

AHEAD = 1.0  # seconds before its time that a request is handed over
SLICE = 20  # so many are made before others may run


@dataclass(frozen=True, slots=True)
class Form:
    """What all requests of a run have in common."""

    dialect: str
    model: str
    ignore_eos: bool
    extra_body: Mapping[str, Any]
    keep_text: bool

    def request(
        self,
        prompt: Prompt,
        *,
        id: str,
        cls: str,
        intended: float,
        max_tokens: int | None,
        dialect: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Request:
        """The request for `prompt`; `intended` is absolute monotonic time."""
        name = dialect or self.dialect
        body = DIALECTS[name].body(
            prompt,
            model=self.model,
            max_tokens=max_tokens,
            ignore_eos=self.ignore_eos,
            extra={**self.extra_body, **(extra or {})},
        )
        return Request(
            id=id,
            cls=cls,
            dialect=name,
            body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
            intended=intended,
            asked_input_tokens=prompt.asked_tokens,
            asked_output_tokens=max_tokens,
            keep_text=self.keep_text,
            # From the system, not from the seed: two runs of one seed must not share traces.
            trace_id=secrets.token_hex(16),
            span_id=secrets.token_hex(8),
        )


def feed(
    requests: Iterator[Request],
    submit: Callable[[Request], None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    going: Callable[[], bool],
) -> None:
    """Submits each of `requests`, which come in order of `intended`, about a second ahead.

    Returns when they are all submitted, or soon after `going` is no longer true.
    """
    for number, request in enumerate(requests, start=1):
        while going() and (wait := request.intended - AHEAD - clock()) > 0:
            sleep(min(wait, 0.1))
        if not going():
            return
        submit(request)
        if number % SLICE == 0:
            sleep(0)
