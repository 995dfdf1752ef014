"""Drafts and times in, ready requests out; and who gives them to the client, a second ahead.

The client sends each at its deadline, so a busy moment here costs nothing while it is shorter
than that second.
"""

import json
import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prony_loadgen.client import Request
from prony_loadgen.dialects import DIALECTS
from prony_loadgen.prompt import Prompt
from prony_loadgen.quality import Expect
from prony_loadgen.target import fitted

# Where nobody asked for a number of tokens, users who hang up do so within so many chunks.
CANCEL_WITHIN = 64
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
    left_out: tuple[str, ...] = ()  # fields that the target refuses
    renamed: tuple[tuple[str, str], ...] = ()  # fields that it takes under another name
    # The share of users who hang up in the middle of their answer, drawn from the seed.
    cancel_share: float = 0.0
    seed: int = 0
    # Whether answers are looked at, which needs their text although nobody stores it.
    quality: bool = False

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
        expect: Expect | None = None,
        needs_text: bool = False,
        forced: bool | None = None,
    ) -> Request:
        """The request for `prompt`; `intended` is absolute monotonic time.

        `needs_text` is whether its answer's text is wanted, whatever is stored; `forced` is whether
        the engine is to ignore its end token (None: as the form has it).
        """
        name = dialect or self.dialect
        ignore_eos = self.ignore_eos if forced is None else forced
        body = DIALECTS[name].body(
            prompt,
            model=self.model,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            extra={**self.extra_body, **(extra or {})},
        )
        body = fitted(body, self.left_out, self.renamed)
        return Request(
            id=id,
            cls=cls,
            dialect=name,
            # Half of a surrogate pair, which UTF-8 cannot hold, goes as its escape.
            body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(
                errors="backslashreplace"
            ),
            intended=intended,
            asked_input_tokens=prompt.asked_tokens,
            asked_output_tokens=max_tokens,
            keep_text=self.keep_text or self.quality or needs_text,
            expect=expect,
            natural=not ignore_eos,
            # From the system, not from the seed: two runs of one seed must not share traces.
            trace_id=secrets.token_hex(16),
            span_id=secrets.token_hex(8),
            prompt_words=prompt_words(prompt),
            hang_up_after=self._patience(id, max_tokens),
        )

    def _patience(self, id: str, max_tokens: int | None) -> int | None:
        """After how many chunks this request's user hangs up; None where they stay to the end."""
        if not self.cancel_share:
            return None
        rng = random.Random(f"{self.seed} cancel {id}")
        if rng.random() >= self.cancel_share:
            return None
        return rng.randint(1, max(1, (max_tokens or CANCEL_WITHIN) - 1))


def prompt_words(prompt: Prompt) -> int | None:
    """The words of a prompt that is only text, by white space; None where it is not.

    In scripts that put no space between words this counts far too few, which is on the safe side.
    """
    if prompt.messages is None:
        return None if prompt.text is None else len(prompt.text.split())
    texts = [message.get("content") for message in prompt.messages]
    if not all(isinstance(text, str) for text in texts):
        return None
    return sum(len(text.split()) for text in texts if isinstance(text, str))


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
