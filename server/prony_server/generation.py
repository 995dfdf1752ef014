"""One answer while it is made: the engine's outputs in, pieces of text and counts out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prony_server.account import Account
from prony_server.answers import Usage
from prony_server.openai_api import ApiError
from prony_server.streams import Stream
from prony_server.tokenizer import Detokenizer

if TYPE_CHECKING:
    from prony_server.sequence import Output


@dataclass(frozen=True, slots=True)
class Piece:
    """What one output added; the text is empty while a character's other bytes are awaited."""

    text: str
    usage: Usage  # so far, this piece included


class Generation:
    """Call `next` until it is `ended`: by a finish reason or by an error, never by both."""

    def __init__(
        self, stream: Stream, detokenizer: Detokenizer, account: Account, prompt_tokens: int
    ) -> None:
        self.usage = Usage(prompt_tokens, 0)
        self.finish_reason: str | None = None
        self.error: ApiError | None = None
        self._stream = stream
        self._detokenizer = detokenizer
        self._account = account

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    async def next(self) -> list[Piece]:
        """Waits for outputs; gives a piece for each that came."""
        return [self._piece(output) for output in await self._stream.take()]

    def _piece(self, output: Output) -> Piece:
        start = time.monotonic()
        text = self._detokenizer.feed(output.token_ids)
        if output.finish_reason in ("stop", "length"):
            self.finish_reason = output.finish_reason
            text += self._detokenizer.finish()
        elif output.finish_reason is not None:
            reason = output.error or "the server is shutting down and has cut this answer"
            status = 503 if output.finish_reason == "abort" else 500
            self.error = ApiError(status, reason, kind="server_error", code=output.finish_reason)
        self._account.detokenized(start, time.monotonic())
        tokens = self.usage.completion_tokens + len(output.token_ids)
        self.usage = Usage(self.usage.prompt_tokens, tokens)
        return Piece(text, self.usage)
