"""What the engine's loop does with its time: ends of stages come in, seconds of each go out.

Each moment of the loop belongs to exactly one, so that they sum to its wall time. Imports nothing,
since the metrics' names must be readable without torch.
"""

from typing import Final

STAGES: Final = (
    "idle",  # waiting for work
    "admit",  # taking in submissions and aborts
    "schedule",  # choosing the batch
    "build",  # packing it into tensors
    "forward",  # the model
    "sample",  # from logits to token ids on the host
    "emit",  # moving sequences on, and handing tokens out
)
IDLE, ADMIT, SCHEDULE, BUILD, FORWARD, SAMPLE, EMIT = range(len(STAGES))

_NOTHING = (0.0,) * len(STAGES)


class StageClock:
    """Told by the loop when each stage ended; tells anybody what was spent on each so far.

    What a step has spent counts once the step is over, and idle time while it goes on, so that no
    total ever falls.
    """

    def __init__(self) -> None:
        self._seconds = list(_NOTHING)
        self._since = 0.0
        self._told = _NOTHING
        # Seconds of every stage, and since when the loop has been idle: replaced at once.
        self._published: tuple[tuple[float, ...], float | None] = (_NOTHING, None)

    def start(self, now: float) -> None:
        self._since = now

    def ended(self, stage: int, now: float) -> None:
        """All since the last stage's end was this one's."""
        self._seconds[stage] += now - self._since
        self._since = now

    def publish(self, idle: bool = False) -> None:
        """Lets `total` see all up to the last stage's end; `idle`: and that idle time has begun."""
        self._published = (tuple(self._seconds), self._since if idle else None)

    def lap(self) -> tuple[float, ...]:
        """Seconds of each stage since the last lap."""
        seconds = tuple(self._seconds)
        told, self._told = self._told, seconds
        return tuple(b - a for a, b in zip(told, seconds, strict=True))

    def total(self, now: float) -> tuple[float, ...]:
        """Seconds of each stage so far, for any thread; `now` is taken before the call."""
        seconds, idle_since = self._published
        if idle_since is None:
            return seconds
        return (seconds[IDLE] + max(0.0, now - idle_since), *seconds[1:])
