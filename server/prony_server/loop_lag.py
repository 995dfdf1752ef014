"""How late the event loop comes to what is due: a loop that is watched goes in, latenesses out.

Asked at moments of a fixed grid, those too that passed while the loop was held up: so the figures
are what anything that became due at any moment had to wait, and a long hold-up is no single sample.
"""

import asyncio
from collections.abc import Callable

EVERY = 0.1  # seconds; a look costs some 0.1 ms of processor time


async def watch_loop(lagged: Callable[[float], None], every: float = EVERY) -> None:
    """Runs until it is cancelled; `lagged` is told seconds."""
    loop = asyncio.get_running_loop()
    due = loop.time() + every
    while True:
        await asyncio.sleep(due - loop.time())
        due = tell(due, loop.time(), every, lagged)


def tell(due: float, now: float, every: float, lagged: Callable[[float], None]) -> float:
    """Tells how late each moment of the grid is that has come; returns the next one."""
    while due <= now:
        lagged(now - due)
        due += every
    return due
