"""From a run folder to a verdict and its views: what happens after a run, and again whenever asked.

In come a run folder and the SLO's names; out come run.json with summary, doubts and verdict, the
report beside it, and an exit code.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from prony.observability import write_client_spans
from prony_loadgen.doubts import Doubt, find_doubts
from prony_loadgen.folder import RunFolder
from prony_loadgen.plan import Plan
from prony_loadgen.record import RequestRecord
from prony_loadgen.report import report_html
from prony_loadgen.summary import Measured, measured, summarise
from prony_loadgen.terminal import print_summary, summary_markdown
from prony_slo.gate import PRECEDENCE, BreachWatch, can_decide, goodput, judge
from prony_slo.objective import load_slo
from prony_slo.promise import SloFile


class Judge:
    """Judges one run, from its plan to its end; sessions find it through the entry point."""

    def __init__(self, slo: Sequence[str], scenario_slo: str | None = None) -> None:
        """`slo` names files or holds inline objectives; without any, the scenario's own SLO counts.

        Raises FileError where one of them is wrong.
        """
        self.names = tuple(slo) or ((scenario_slo,) if scenario_slo else ())
        self.slo = load_slo(self.names) if self.names else None
        self.folder: RunFolder | None = None  # of the run, once it was judged
        self._watch: BreachWatch | None = None

    @property
    def warmup(self) -> float | None:
        """Seconds of warm-up that the SLO asks for where the scenario sets none."""
        return self.slo.measure.warmup if self.slo else None

    def plan(self, plan: Plan, window: tuple[float, float]) -> list[str]:
        """Whether the planned run can decide the SLO, a line an objective."""
        if self.slo is None:
            return []
        self._watch = BreachWatch(self.slo, plan.measured, window)
        return can_decide(self.slo, plan.measured)

    def breached(self, record: RequestRecord) -> str | None:
        """Why the run may stop now: a breach is certain and the SLO asks to stop on one."""
        if self._watch is not None and self._watch.add(record):
            return self._watch.reason
        return None

    def finish(self, folder: RunFolder) -> int:
        """Judges the finished run, writes and prints its views; returns the exit code."""
        self.folder = folder
        facts = judge_folder(folder, self.names)
        write_client_spans(folder.traces, facts, folder.records())
        show(folder, facts)
        code: int = facts["exit_code"]
        return code


def judge_folder(folder: RunFolder, names: Sequence[str]) -> dict[str, Any]:
    """Judges a run folder and writes run.json and the views; returns the facts of run.json.

    Without `names` the SLO that the run was made with counts. Raises FileError for a folder that
    is no run, or for a wrong SLO.
    """
    facts = folder.read_run()
    names = tuple(names) or tuple(facts.get("slo") or ())
    slo = load_slo(names) if names else None
    records = list(folder.records())
    part = measured(facts, records, warmup=slo.measure.warmup if slo else None)
    doubts = find_doubts(facts, part, slo.tightest_ttft if slo else None)
    summary = summarise(part)
    if slo is not None:
        summary["rates"].update(goodput(slo, part))
    facts |= {
        "slo": list(names),
        "summary": summary,
        "doubts": [doubt.to_json() for doubt in doubts],
        **_verdict(slo, part, doubts),
    }
    folder.write_run(facts)
    write_views(folder, facts, records)
    return facts


def write_views(
    folder: RunFolder, facts: dict[str, Any], records: Sequence[RequestRecord] | None = None
) -> None:
    """report.html and summary.md: nothing is in them that is not in the run's own files."""
    if records is None:
        records = list(folder.records())
    folder.report.write_text(report_html(facts, records), encoding="utf-8")
    (folder.path / "summary.md").write_text(summary_markdown(facts), encoding="utf-8")


def show(folder: RunFolder, facts: dict[str, Any]) -> None:
    """Prints the summary of a judged run."""
    print_summary(facts, Console(), folder.path)


def worst(codes: Iterable[int]) -> int:
    """The exit code of several runs together: the gravest of theirs."""
    codes = set(codes)
    return next((code for code in PRECEDENCE if code in codes), 0)


def _verdict(slo: SloFile | None, part: Measured, doubts: Sequence[Doubt]) -> dict[str, Any]:
    if slo is not None:
        return judge(slo, part, doubts).to_json()
    if part.interrupted or any(doubt.grade == "invalid" for doubt in doubts):
        return {"verdict": "invalid", "exit_code": 4, "objectives": []}
    if not any(record.ok for record in part.records):
        # Nothing was asked of it, yet a run without one answer must not look fine to a script.
        return {"verdict": "inconclusive", "exit_code": 3, "objectives": []}
    return {"verdict": None, "exit_code": 0, "objectives": []}
