"""From the engine's thread to the event loop: outputs of one iteration in, one wake-up out.

Waking the loop costs a system call and hands it the interpreter lock, so it is done once an
iteration and not once a token: `emitter` callbacks collect, `flush` delivers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prony_server.sequence import Output


class Stream:
    """One request's outputs, as its handler awaits them. Lives on the event loop.

    What a slow handler has not taken is kept as token ids, of which there are never more than
    max_tokens; text is made only when it is about to be written.
    """

    def __init__(self, on_last: Callable[[Output], None], sequences: int = 1) -> None:
        """`on_last` is told each sequence's last output even when the handler is gone by then."""
        self._on_last = on_last
        self._left = sequences
        self._outputs: list[Output] = []
        self._arrival = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._left == 0

    def push(self, output: Output) -> None:
        self._outputs.append(output)
        self._arrival.set()
        if output.finish_reason is not None:
            self._left -= 1
            self._on_last(output)

    async def take(self) -> list[Output]:
        """All outputs that came since the last call; at least one."""
        await self._arrival.wait()
        self._arrival.clear()
        taken, self._outputs = self._outputs, []
        return taken


class Bridge:
    """Carries outputs of all requests of one engine over to one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_tokens: Callable[[int], None]) -> None:
        """`on_tokens` is told, on the loop, how many tokens each delivery brought."""
        self._loop = loop
        self._on_tokens = on_tokens
        self._pending: deque[tuple[Stream, Output]] = deque()

    def emitter(self, stream: Stream) -> Callable[[Output], None]:
        def emit(output: Output) -> None:  # in the engine's thread
            self._pending.append((stream, output))
            if output.finish_reason is not None and not output.token_ids:
                self.flush()  # it may come between iterations, when nothing else would flush

        return emit

    def flush(self) -> None:
        """Any thread."""
        if self._pending:
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        tokens = 0
        while self._pending:
            stream, output = self._pending.popleft()
            tokens += len(output.token_ids)
            stream.push(output)
        if tokens:
            self._on_tokens(tokens)
