"""A run on the boards' time axis: a judge goes in; one that also tells a Grafana comes out.

Start, stages, end and a breach become annotations with the tag `prony`, which every board shows.
A Grafana that does not answer is named once and never disturbs the run.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prony.beside import Beside
from prony_loadgen.folder import RunFolder
from prony_loadgen.plan import Plan
from prony_loadgen.settings import Judge

TAG = "prony"


@dataclass(frozen=True, slots=True)
class Mark:
    """One annotation; times are Unix seconds."""

    start: float
    end: float | None
    text: str
    tags: tuple[str, ...]


class Annotating(Beside):
    """A judge whose run is told to a Grafana; `api` is a grafana_client.GrafanaApi."""

    def __init__(
        self,
        judge: Judge,
        api: Any,
        now: Callable[[], float] = time.time,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        super().__init__(judge)
        self._api, self._now, self._say = api, now, say
        self._run: int | None = None  # the annotation of the run under way
        self._lost = False

    def plan(self, plan: Plan, window: tuple[float, float]) -> list[str]:
        """Called just before the load starts: the mark that grows into the run's region."""
        lines = self._judge.plan(plan, window)
        answer = self._tell(Mark(self._now(), None, "load test starts", (TAG, "run")))
        self._run = answer.get("id") if isinstance(answer, dict) else None
        return lines

    def finish(self, folder: RunFolder) -> int:
        """Called after the load: the exact times, and what came of it."""
        code = self._judge.finish(folder)
        run, *others = marks(folder.read_run(), self._now())
        self._complete(run)
        for mark in others:
            self._tell(mark)
        return code

    def _complete(self, run: Mark) -> None:
        if self._run is None:
            self._tell(run)
            return
        number = self._run
        self._guarded(
            lambda: self._api.annotations.partial_update_annotation(
                number,
                time_from=_ms(run.start),
                time_to=None if run.end is None else _ms(run.end),
                tags=list(run.tags),
                text=run.text,
            )
        )

    def _tell(self, mark: Mark) -> Any:
        return self._guarded(
            lambda: self._api.annotations.add_annotation(
                time_from=_ms(mark.start),
                time_to=None if mark.end is None else _ms(mark.end),
                tags=list(mark.tags),
                text=mark.text,
            )
        )

    def _guarded(self, call: Callable[[], Any]) -> Any:
        if self._lost:
            return None
        try:
            return call()
        except Exception as error:  # whatever it is, the run is worth more than its annotation
            self._lost = True
            self._say(f"note: Grafana does not take annotations, so none are written: {error}")
            return None


def marks(facts: dict[str, Any], ended: float) -> Iterator[Mark]:
    """What a judged run.json says of its times: the run first, then its stages, then a breach."""
    origin = float(facts["origin_unix"])
    run_id = facts["run_id"]
    tags = (TAG, f"run_id:{run_id}")
    scenario = facts.get("scenario") or {}
    start, end = (origin + float(edge) for edge in facts.get("window") or (0.0, ended - origin))
    verdict = facts.get("verdict")
    said = f"{scenario.get('name', 'run')} {run_id}: {verdict or 'finished'}"
    yield Mark(origin, end, said, (*tags, "run"))
    if start > origin:
        yield Mark(origin, start, "warm-up, not measured", (*tags, "stage"))
    at = origin
    for stage in (scenario.get("arrivals") or {}).get("stages") or ():
        length = float(stage["length"])
        yield Mark(at, at + length, f"stage {stage['name']}", (*tags, "stage"))
        at += length
    broken = [each for each in facts.get("objectives") or () if each.get("verdict") == "breach"]
    for each in broken:
        yield Mark(end, None, f"SLO breached: {each.get('id')}", (*tags, "slo-breach"))


def _ms(at: float) -> int:
    return round(at * 1000)
