"""What profiles of a server show, as plain data: what the readers of files give, whoever asks.

Shares are of 1, times are seconds. What a profile cannot know is None, never 0.
"""

from dataclasses import dataclass
from typing import Final

PASSED: Final = 0.85  # of a function's time in one it calls: that one says more


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator or kernel, over a whole trace."""

    name: str
    device: str  # "cpu" or "gpu"
    seconds: float  # its own: without what it called
    total: float  # with what it called; a recursive one counts once
    calls: int
    share: float  # of all operators' own time on that device


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python function, over one thread's samples."""

    name: str  # with its class where the profiler tells it, such as "Engine._iterate"
    file: str
    self_share: float  # of the thread's active time: it was at the top of the stack
    total_share: float  # it was anywhere on the stack
    under: str = ""  # the function that called it in most of that time
    passes_on: float = 0.0  # of its time: what it spent in the function that it called most

    def is_called(self, function: str) -> bool:
        """Whether it is `function`, by its own name or with its class before it."""
        return self.name == function or self.name.endswith(f".{function}")


@dataclass(frozen=True, slots=True)
class ThreadFrames:
    """Where one thread spent its time; most inclusive time first."""

    thread: str  # as the profiler calls it, such as 'Thread 4711 "engine"'
    seconds: float  # active: samples in which it waited are not among them
    share: float  # of the active time of all threads
    frames: tuple[Frame, ...]
    # The function in which the heaviest path outside the model branches or works itself, and its
    # share of this thread's active time: what a host-bound thread is bound by.
    host_spot: tuple[str, float] | None = None

    def share_of(self, function: str) -> float:
        """The share of this thread's time under a function of that name; 0 where it never was."""
        return max((f.total_share for f in self.frames if f.is_called(function)), default=0.0)

    def telling(self, most: int) -> tuple[Frame, ...]:
        """At most so many functions, without those that only call another one."""
        telling = [frame for frame in self.frames if frame.passes_on < PASSED]
        return tuple(telling or self.frames)[:most]


@dataclass(frozen=True, slots=True)
class IdleSplit:
    """A GPU's time, from its first kernel to the end of its last, as shares of that span.

    By the definitions of Holistic Trace Analysis (HTA, get_idle_time_breakdown): `host_wait` is
    idle time before a kernel whose launch the CPU began only after the GPU had run dry;
    `kernel_wait` a short gap before a kernel that was queued already; `other` all other idle time.
    """

    span: float  # seconds
    busy: float
    host_wait: float
    kernel_wait: float
    other: float

    @property
    def idle(self) -> float:
        return self.host_wait + self.kernel_wait + self.other


@dataclass(frozen=True, slots=True)
class LaunchGaps:
    """How long a GPU stood still between two pieces of work."""

    count: int
    p50: float  # seconds
    p99: float
    longest: float
    delay_p50: float | None  # from the CPU's launch call to the kernel's start


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """All that the captures of a run, or one file, show together."""

    files: tuple[str, ...]  # what it was read from
    seconds: float  # profiled, all captures together
    windows: tuple[tuple[float, float], ...] = ()  # on the run's clock, where it is a run's
    operators: tuple[Operator, ...] = ()  # own time first, both devices
    threads: tuple[ThreadFrames, ...] = ()  # most active first
    idle: IdleSplit | None = None  # None: no GPU in it
    gaps: LaunchGaps | None = None
    memcpy_share: float | None = None  # of the span (GPU), or of all operators' own time (CPU)
    memcpy_bytes: int | None = None  # as far as the trace tells sizes
    cpu_busy: tuple[tuple[str, float], ...] = ()  # thread of a trace -> share of the time in ops
    notes: tuple[str, ...] = ()  # what is missing or cut, in words

    @property
    def host_wait(self) -> float | None:
        """The share of the GPU's span in which it waited for the CPU; None without a GPU."""
        return None if self.idle is None else self.idle.host_wait

    def thread(self, name: str) -> ThreadFrames | None:
        """The most active thread whose name holds `name`, such as "engine"."""
        return next((thread for thread in self.threads if name in thread.thread), None)

    def share_of(self, function: str) -> tuple[str, float] | None:
        """The thread on which a function took most, and its share of that thread's time."""
        found = [(t.thread, t.share_of(function)) for t in self.threads]
        best = max(found, key=lambda each: each[1], default=None)
        return best if best is not None and best[1] > 0 else None
