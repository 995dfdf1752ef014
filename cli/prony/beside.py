"""A judge that passes everything on to another: the base of what does something beside a run."""

from typing import Any

from prony_loadgen.folder import RunFolder
from prony_loadgen.live import Live
from prony_loadgen.plan import Plan
from prony_loadgen.record import RequestRecord
from prony_loadgen.settings import Judge


class Beside:
    """Subclasses take part where they want to, and let the judge behind them judge."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    @property
    def warmup(self) -> float | None:
        return self._judge.warmup

    @property
    def watching(self) -> bool:
        return self._judge.watching

    def plan(self, plan: Plan, window: tuple[float, float]) -> list[str]:
        return self._judge.plan(plan, window)

    def begin(self, origin_unix: float) -> None:
        self._judge.begin(origin_unix)

    def breached(self, record: RequestRecord) -> str | None:
        return self._judge.breached(record)

    def so_far(self, seen: Live) -> list[dict[str, Any]]:
        return self._judge.so_far(seen)

    def finish(self, folder: RunFolder) -> int:
        return self._judge.finish(folder)
