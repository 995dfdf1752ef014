"""What the load generator itself took: shares of a processor, from now on until asked.

A client that is too slow uses its processor; one that is starved by other work waits for it. Only
the second is helped by a processor of its own.
"""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_TASKS = Path("/proc/self/task")


class Effort:
    """The processor time of this process since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.monotonic()
        self._waited = waited()

    def facts(self) -> dict[str, Any]:
        """Shares of one processor: used, and waited for while other work had it (Linux).

        The waiting is that of all threads together.
        """
        seconds = max(time.monotonic() - self._wall, 1e-9)
        facts = {"cpu_share": round((time.process_time() - self._cpu) / seconds, 4)}
        now = waited()
        if self._waited is not None and now is not None:
            facts["cpu_wait_share"] = round(max(0.0, now - self._waited) / seconds, 4)
        return facts


def waited() -> float | None:
    """Seconds for which threads of this process were ready to run, but did not.

    None where the system does not tell (it is Linux's /proc/PID/task/TID/schedstat).
    """
    total, known = 0, False
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        with suppress(OSError, IndexError, ValueError):  # a thread that has just ended
            total += int((task / "schedstat").read_text().split()[1])
            known = True
    return total * 1e-9 if known else None
