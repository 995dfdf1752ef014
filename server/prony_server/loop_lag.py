"""How late the event loop comes to what is due: a loop that is watched goes in, latenesses out.

Asked at random moments, those too that passed while the loop was held up: so the figures are what
anything that became due at any moment had to wait, and a long hold-up is no single sample. Moments
at equal distances would beat with what comes back at equal distances itself, and see all of it or
nothing.
"""

import asyncio
import random
from collections.abc import Callable

EVERY = 0.1  # seconds, on average; a look costs some 0.1 ms of processor time


async def watch_loop(lagged: Callable[[float], None], every: float = EVERY) -> None:
    """Runs until it is cancelled; `lagged` is told seconds."""
    loop = asyncio.get_running_loop()
    gap = gaps(every)
    due = loop.time() + gap()
    while True:
        await asyncio.sleep(due - loop.time())
        due = tell(due, loop.time(), gap, lagged)


def gaps(every: float) -> Callable[[], float]:
    """Random distances, `every` on average."""
    chance = random.Random(0)
    return lambda: chance.uniform(0.0, 2 * every)


def tell(
    due: float, now: float, gap: Callable[[], float], lagged: Callable[[float], None]
) -> float:
    """Tells how late each moment is that has come; returns the next one, a `gap` after the last."""
    while due <= now:
        lagged(now - due)
        due += gap()
    return due
