"""A request's answers while they are made: the engine's outputs in, text and counts out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prony_server.account import Account
from prony_server.answers import Likelihood, Piece, Scored, Usage
from prony_server.errors import ApiError
from prony_server.stops import StopStrings
from prony_server.streams import Stream
from prony_server.tokenizer import Tokenizer

if TYPE_CHECKING:
    from prony_server.sequence import Output, TokenLogprobs

LEAST_LOGPROB = -9999.0  # JSON has no -Infinity


@dataclass(frozen=True, slots=True)
class Text:
    """How an answer's tokens become text."""

    tokenizer: Tokenizer
    context: Sequence[int]  # the tokens that the answer continues
    lead: str  # what its text begins with
    stop: tuple[str, ...]
    include_stop: bool
    min_tokens: int  # before them no stop string counts
    scored: bool  # logprobs are told


class Choice:
    """One of a request's answers."""

    def __init__(self, index: int, text: Text) -> None:
        self.index = index
        self.tokens = 0
        self.finish_reason: str | None = None
        self.stopped = False  # by a stop string, of which the engine knows nothing
        self._text = text
        self._detokenizer = text.tokenizer.detokenizer(text.context)
        self._stops = StopStrings(text.stop, text.include_stop) if text.stop else None
        self._lead = text.lead
        self._made = self._given = 0  # characters that came, and that were given out
        self._scored: deque[Scored] = deque()  # of tokens whose text is not out

    def take(self, output: Output) -> tuple[str, tuple[Scored, ...] | None]:
        """Text and logprobs that may be given out now."""
        if self._stops is None and not self._text.scored:
            self.tokens += len(output.token_ids)
            given = self._detokenizer.feed(output.token_ids)
        else:
            given = self._take_singly(output)
        if output.finish_reason in ("stop", "length") and not self.stopped:
            given += self._release(self._detokenizer.finish())
            if self._stops is not None and not self.stopped:
                given += self._stops.flush()
            if not self.stopped:
                self.finish_reason = output.finish_reason
        self._given += len(given)
        scored = self._told(bool(given)) if self._text.scored else None
        if self._lead and (given or self.finish_reason):
            given, self._lead = self._lead + given, ""
        return given, scored

    def _take_singly(self, output: Output) -> str:
        given = ""
        for at, token in enumerate(output.token_ids):
            self.tokens += 1
            start = self._made
            text = self._detokenizer.feed((token,))
            given += self._release(text)
            if self._text.scored:
                self._scored.append(self._score(token, output.logprobs[at], start))
            if self.stopped:
                break
        return given

    def _release(self, text: str) -> str:
        self._made += len(text)
        if self._stops is None:
            return text
        text = self._stops.feed(text, heed=self.tokens >= self._text.min_tokens)
        if self._stops.found:
            self.stopped = True
            self.finish_reason = "stop"
        return text

    def _score(self, token: int, told: TokenLogprobs, start: int) -> Scored:
        chosen = self._likelihood(token, told.logprob)
        top = tuple(self._likelihood(other, logprob) for other, logprob in told.top)
        return Scored(chosen, top, start, self._made)

    def _likelihood(self, token: int, logprob: float) -> Likelihood:
        data = self._text.tokenizer.token_bytes(token)
        return Likelihood(_as_text(data), data, max(logprob, LEAST_LOGPROB))

    def _told(self, any_text: bool) -> tuple[Scored, ...]:
        """Those of tokens whose text is out; nothing is told of text that is held back or cut."""
        if self.finish_reason is not None and not self.stopped:
            return tuple(self._scored)
        told: list[Scored] = []
        while any_text and self._scored and self._scored[0].is_within(self._given):
            told.append(self._scored.popleft())
        return tuple(told)


class Generation:
    """Call `next` until it has `ended`: by a finish reason of every choice, or by an error."""

    def __init__(
        self,
        stream: Stream,
        choices: dict[str, Choice],
        account: Account,
        prompt: Usage,
        stopped: Callable[[str], None],
    ) -> None:
        """`choices` by their ids in the engine; `stopped` is told those that need no more of it.

        `prompt`: the usage before anything is generated.
        """
        self.error: ApiError | None = None
        self._stream = stream
        self._choices = choices
        self._account = account
        self._prompt = prompt
        self._stopped = stopped

    def ended(self) -> bool:
        return self.error is not None or not any(
            choice.finish_reason is None for choice in self._choices.values()
        )

    @property
    def finish_reasons(self) -> list[str]:
        """In the order of the choices, without those that have not finished."""
        reasons = (choice.finish_reason for choice in self._choices.values())
        return [reason for reason in reasons if reason is not None]

    @property
    def usage(self) -> Usage:
        """So far."""
        tokens = sum(choice.tokens for choice in self._choices.values())
        return replace(self._prompt, completion_tokens=tokens)

    async def next(self) -> list[Piece]:
        """Waits for outputs; gives a piece for each that counts."""
        pieces = []
        for output in await self._stream.take():
            choice = self._choices[output.request_id]
            # Tokens that the engine made before it heard of a stop string are nobody's.
            if choice.finish_reason is None:
                pieces.append(self._piece(choice, output))
        return pieces

    def _piece(self, choice: Choice, output: Output) -> Piece:
        start = time.monotonic()
        if choice.index == 0:
            # Of the first: the others of one prompt find what that one put into the cache.
            cached = output.phases.cached_tokens
            if cached != self._prompt.cached_tokens:
                self._prompt = replace(self._prompt, cached_tokens=cached)
        text, scored = choice.take(output)
        if choice.stopped:
            self._stopped(output.request_id)
        elif output.finish_reason not in ("stop", "length", None):
            reason = output.error or "the server is shutting down and has cut this answer"
            status = 503 if output.finish_reason == "abort" else 500
            self.error = ApiError(status, reason, kind="server_error", code=output.finish_reason)
        self._account.detokenized(start, time.monotonic())
        return Piece(choice.index, text, scored, choice.finish_reason, self.usage)


def _as_text(data: bytes) -> str:
    """A token's text; where it is a part of a character only, its bytes as OpenAI writes them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
