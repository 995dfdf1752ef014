"""When bytes reached this machine: a socket goes in, what it held and the kernel's time come out.

The kernel notes the wall-clock time of each packet (`SO_TIMESTAMPNS`, Linux), so how long we take
to read it adds to no latency. A read that spans several packets has the time of the last.
"""

import socket as sockets
import struct
import sys
import time

# Python names it nowhere. The number is the same on every machine but SPARC, MIPS and PA-RISC.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_ANCILLARY = sockets.CMSG_SPACE(_TIMESPEC.size) if sys.platform == "linux" else 0
READ_SIZE = 65536
# How far the wall clock may move against the monotonic one unnoticed: ntpd turns it by at most
# 0.5 ms a second. More is a step, and times noted before it mean nothing for a while after it.
_STEP = 100_000  # ns
_SLEW = 0.001  # ns a ns
_DISTRUST = 1_000_000_000  # ns
# Three readings that took longer were interrupted, and say nothing.
_READING_TAKES = 20_000  # ns
_FIRST_READINGS = 9


def ask_for_stamps(sock: sockets.socket) -> None:
    """Has the kernel note when packets arrive, where it can."""
    if _ANCILLARY:
        try:
            sock.setsockopt(sockets.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:
            return  # reads then come without a time, and our own clock is used


class Receiver:
    """Reads sockets. One buffer serves them all."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(READ_SIZE))
        self._buffers = [self._memory]

    def receive(self, sock: sockets.socket) -> tuple[bytes, int | None]:
        """What the socket holds, and the wall-clock time in ns at which the last of it came.

        None is a time that the kernel did not note. Raises OSError as `recv` does.
        """
        if not _ANCILLARY:
            return sock.recv(READ_SIZE), None
        size, ancillary, _, _ = sock.recvmsg_into(self._buffers, _ANCILLARY)
        data = self._memory[:size].tobytes()
        for level, kind, content in ancillary:
            if kind == _SO_TIMESTAMPNS and level == sockets.SOL_SOCKET:
                seconds, nanoseconds = _TIMESPEC.unpack_from(content)
                return data, seconds * 1_000_000_000 + nanoseconds
        return data, None


class WallClock:
    """Turns the kernel's wall-clock times into times of the monotonic clock."""

    def __init__(self) -> None:
        # The best of some: one that was interrupted would make the next look like a step.
        _, self._offset, self._checked = min(_reading() for _ in range(_FIRST_READINGS))
        self._distrusted_until = 0

    def check(self) -> None:
        """Takes the difference of the two clocks anew; to be called whenever we woke up."""
        took, offset, now = _reading()
        if took <= _READING_TAKES:
            self.observe(offset, now)

    def observe(self, offset: int, now: int) -> None:
        """Both in ns: wall clock less monotonic clock, and the monotonic clock."""
        moved = abs(offset - self._offset)
        if moved > _STEP + _SLEW * (now - self._checked):
            self._distrusted_until = now + _DISTRUST
        self._offset, self._checked = offset, now

    def arrival(self, stamp: int | None, earliest: float, now: float) -> float | None:
        """The monotonic time in seconds that a stamp means; None where it cannot be trusted.

        What arrived can have done so only after `earliest`, when the connection was last written
        or read, and before `now`.
        """
        if stamp is None or self._checked < self._distrusted_until:
            return None
        at = (stamp - self._offset) * 1e-9
        # The clocks are compared to within a few microseconds.
        if earliest - 2e-5 <= at <= now + 2e-5:
            return min(max(at, earliest), now)
        return None


def _reading() -> tuple[int, int, int]:
    """How long it took, the wall clock less the monotonic one, and the latter at its end; in ns."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return after - before, wall - (before + after) // 2, after
