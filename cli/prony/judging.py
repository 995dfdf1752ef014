"""From run folders to a verdict and its views: what happens after a run, and again whenever asked.

In come run folders and what was asked of them; out come run.json with summary, doubts and verdict,
the report, verdict.json and junit.xml beside it, and an exit code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prony import ci
from prony.comparing import Compared, compare_with_stored, promise_of
from prony.diagnosis.read import diagnosis_of
from prony.diagnosis.view import as_markdown, as_section
from prony.observability import write_client_spans
from prony.output import unless_unwritable
from prony.profiling.views import profile_sections
from prony.server_metrics import kept, kept_samples, scraped_labels
from prony.so_far import so_far
from prony_loadgen import words
from prony_loadgen.doubts import Doubt, find_doubts
from prony_loadgen.folder import RunFolder, replace_text
from prony_loadgen.live import Live
from prony_loadgen.plan import Plan
from prony_loadgen.price import cost
from prony_loadgen.record import RequestRecord
from prony_loadgen.report import report_html
from prony_loadgen.steady import LEAST, MOST, warmup_end, without_warmup
from prony_loadgen.strict_yaml import FileError
from prony_loadgen.summary import Measured, measured, summarise
from prony_loadgen.terminal import STYLES, print_summary, summary_markdown
from prony_slo.counting import is_bad
from prony_slo.gate import VERDICTS, BreachWatch, Judgement, can_decide, goodput, judge
from prony_slo.junit import junit_xml
from prony_slo.markdown import verdict_markdown
from prony_slo.objective import load_slo
from prony_slo.own_scrape import Kept, own_reader
from prony_slo.own_scrape import kept as series_of
from prony_slo.policy import Policy
from prony_slo.promise import OnInconclusive, Query, SloFile
from prony_slo.promql import Reader, http_reader
from prony_slo.verdict_file import document, judged_run, rows, write

_KEPT = (
    "note: the run was judged by {} before; this is another SLO's verdict, in verdict.json and "
    "junit.xml: run.json, report.html and summary.md stay as they are"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What runs are judged by."""

    slo: tuple[str, ...] = ()  # names, files, inline objectives; none: what the run was made with
    policy: Policy = field(default_factory=Policy)
    regression: bool = True  # whether the SLO's regression checks are judged here
    baseline: Path | None = None  # in place of where the SLO's baseline lies
    missing: OnInconclusive | None = None  # in place of the SLO's `regression.baseline.missing`

    def load(self, names: Sequence[str]) -> SloFile | None:
        """The SLO that `names` make, as it is asked for here. Raises FileError."""
        slo = load_slo(names) if names else None
        if slo is None or slo.regression is None or self.missing is None:
            return slo
        baseline = replace(slo.regression.baseline, missing=self.missing)
        return replace(slo, regression=replace(slo.regression, baseline=baseline))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run folder, read."""

    folder: RunFolder
    facts: dict[str, Any]
    records: list[RequestRecord]
    part: Measured
    doubts: list[Doubt]


class Judge:
    """Judges one run, from its plan to its end; sessions find it through the entry point."""

    def __init__(
        self, slo: Sequence[str], scenario_slo: str | None = None, asked: Asked = Asked()
    ) -> None:
        """`slo` names files or holds inline objectives; without any, the scenario's own SLO counts.

        Raises FileError where one of them is wrong.
        """
        names = tuple(slo) or ((scenario_slo,) if scenario_slo else ())
        self._asked = replace(asked, slo=names)
        try:
            self.slo = self._asked.load(names)
        except FileError as error:
            if slo:
                raise
            by_key = [line.replace("--slo ", "the scenario's slo: ", 1) for line in error.lines]
            raise FileError(by_key) from None
        self.folder: RunFolder | None = None  # of the run, once it was judged
        self._watch: BreachWatch | None = None

    @property
    def warmup(self) -> float | None:
        """Seconds of warm-up that the SLO asks for where the scenario sets none."""
        return self.slo.measure.warmup if self.slo else None

    @property
    def watching(self) -> bool:
        """Whether a certain breach is to end the run."""
        return self.slo is not None and self.slo.measure.stop_on_breach

    def plan(self, plan: Plan, window: tuple[float, float]) -> list[str]:
        """Whether the planned run can decide the SLO, a line an objective."""
        if self.slo is None:
            return []
        self._watch = BreachWatch(self.slo, plan.measured, window)
        return can_decide(self.slo, plan.measured)

    def begin(self, origin_unix: float) -> None:
        """The load begins."""

    def breached(self, record: RequestRecord) -> str | None:
        """Why the run may stop now: a breach is certain and the SLO asks to stop on one."""
        if self._watch is not None and self._watch.add(record):
            return self._watch.reason
        return None

    def so_far(self, seen: Live) -> list[dict[str, Any]]:
        """What can be said of each objective while the run goes on."""
        return [] if self.slo is None else so_far(self.slo, seen)

    def finish(self, folder: RunFolder) -> int:
        """Judges the finished run, writes and prints its views; returns the exit code."""
        self.folder = folder
        facts = judge_folder(folder, self._asked)
        with unless_unwritable(folder.traces):
            write_client_spans(folder.traces, facts, folder.records())
        show(folder, facts)
        code: int = facts["exit_code"]
        return code


def judge_folder(folder: RunFolder, asked: Asked = Asked()) -> dict[str, Any]:
    """Judges a run folder, writes run.json and the views and tells CI; returns run.json's facts.

    Judged by an SLO that is not the run's own, its run.json, report and summary stay as they are.
    Raises FileError for a folder that is no run, or for a wrong SLO.
    """
    facts = folder.read_run()
    own = tuple(facts.get("slo") or ())
    names = asked.slo or own
    is_own = not own or names == own
    slo = asked.load(names)
    run = _read(folder, facts, slo)
    summary = summarise(run.part)
    if slo is not None:
        summary["rates"].update(goodput(slo, run.part))
    if price := (facts.get("scenario") or {}).get("price"):
        conditions = slo.goodput if slo is not None else ()
        good = [r for r in run.part.records if r.ok and not is_bad(r, conditions)]
        summary["cost"] = cost(price, run.part, sum(r.output_tokens or 0 for r in good))
    compared = None
    if slo is not None and asked.regression:
        compared = compare_with_stored(slo, names, [(facts, run.part)], asked.baseline)
    told = _document(slo, names, [run], asked.policy, compared)
    facts |= {
        "slo": list(names),
        "summary": summary,
        "doubts": told["doubts"],
        "verdict": told["verdict"],
        "exit_code": told["exit_code"],
        "objectives": told["objectives"],
        "regression": (told["regression"] or {}).get("checks") or [],
    }
    # run.json comes last: nobody finds a verdict in it whose views could not be written.
    with unless_unwritable(folder.path):
        if is_own:
            write_views(folder, facts, run.records)
        write(folder.path, told)
        replace_text(folder.path / "junit.xml", junit_xml(told))
        if is_own:
            folder.write_run(facts)
        else:
            print(f"{_KEPT.format(' '.join(own))}\n", flush=True)
    with unless_unwritable(Path("$GITHUB_STEP_SUMMARY")):
        ci.tell(told)
    return facts


def judge_together(
    folders: Sequence[RunFolder],
    asked: Asked,
    out: Path,
    *,
    slo: SloFile | None = None,
    compared: Compared | None = None,
    entries: Sequence[Mapping[str, Any]] | None = None,
    cut: int | None = None,
) -> dict[str, Any]:
    """Judges runs as one, writes verdict.json and its views into `out` and tells CI.

    Where a test has compared them already, `compared` are its checks, `slo` the SLO with these,
    `entries` all runs that they rest on, and `cut` the code of a test that did not come to its end.
    Returns the document. Raises FileError as judge_folder does.
    """
    first = folders[0].read_run()
    names = asked.slo or tuple(first.get("slo") or ())
    slo = slo or asked.load(names)
    runs = [_read(folder, folder.read_run(), slo) for folder in folders]
    if compared is None and slo is not None and asked.regression:
        parts = [(run.facts, run.part) for run in runs]
        compared = compare_with_stored(slo, names, parts, asked.baseline)
    told = _document(slo, names, runs, asked.policy, compared, entries, cut)
    with unless_unwritable(out):
        out.mkdir(parents=True, exist_ok=True)
        replace_text(out / "summary.md", verdict_markdown(told))
        replace_text(out / "junit.xml", junit_xml(told))
        write(out, told)
    with unless_unwritable(Path("$GITHUB_STEP_SUMMARY")):
        ci.tell(told)
    return told


def write_views(
    folder: RunFolder, facts: dict[str, Any], records: Sequence[RequestRecord] | None = None
) -> None:
    """report.html and summary.md: nothing is in them that is not in the run's own files.

    Raises OSError.
    """
    if records is None:
        records = list(folder.records())
    diagnosis = diagnosis_of(folder, facts, records)
    sections = [as_section(diagnosis), *profile_sections(folder.path, facts)]
    replace_text(folder.report, report_html(facts, records, list(kept(folder.path)), sections))
    summary = f"{summary_markdown(facts)}\n{as_markdown(diagnosis)}"
    replace_text(folder.path / "summary.md", summary)


def show(folder: RunFolder, facts: dict[str, Any]) -> None:
    """Prints the summary of a judged run."""
    print_summary(facts, Console(), folder.path)


def show_together(told: Mapping[str, Any], out: Path) -> None:
    """Prints the verdict on several runs."""
    console = Console()
    word, meaning = words.verdict(
        {"verdict": told["verdict"], "objectives": rows(told), "regression": []}
    )
    style = STYLES.get(str(told["verdict"]), "bold")
    console.print(Text.assemble((word, style), "  ", meaning))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for row in rows(told):
        found = words.objective(row)
        said = found["line"].replace(" | ", "\n") + (" (warning only)" if found["warning"] else "")
        style = STYLES.get(str(row["verdict"]), "bold")
        table.add_row(Text(found["word"], style=style), Text(found["id"]), Text(said))
    console.print(table)
    for doubt in told["doubts"]:
        if doubt["grade"] != "note":
            console.print(Text(f"doubt: {doubt['grade']}  {doubt['message']}"))
    console.print(Text.assemble("\nverdict  ", (str(out / "verdict.json"), "bold")), soft_wrap=True)


def read_part(folder: RunFolder, slo: SloFile | None) -> tuple[dict[str, Any], Measured]:
    """A run's facts and its measured part, as the SLO says that it is measured."""
    run = _read(folder, folder.read_run(), slo)
    return run.facts, run.part


def _read(folder: RunFolder, facts: dict[str, Any], slo: SloFile | None) -> _Run:
    records = list(folder.records())
    part = measured(facts, records, warmup=slo.measure.warmup if slo else None)
    if (asked := _warmup_to_find(slo, facts)) is not None:
        cut = warmup_end(part, *asked)
        facts["warmup_found"] = {"at": round(cut.at, 3), "by": cut.by}
        part = without_warmup(part, *asked)
    doubts = find_doubts(facts, part, slo.tightest_ttft if slo else None)
    return _Run(folder, facts, records, part, doubts)


def _warmup_to_find(slo: SloFile | None, facts: dict[str, Any]) -> tuple[float, float] | None:
    """The least and the most of a warm-up that the run itself is to show, if it is."""
    if slo is not None and slo.measure.find_warmup:
        return slo.measure.warmup or 0.0, slo.measure.warmup_max
    by_scenario = (facts.get("scenario") or {}).get("warmup") == "auto"
    return (LEAST, MOST) if by_scenario else None


def _document(
    slo: SloFile | None,
    names: Sequence[str],
    runs: Sequence[_Run],
    policy: Policy,
    compared: Compared | None,
    entries: Sequence[Mapping[str, Any]] | None = None,
    cut: int | None = None,
) -> dict[str, Any]:
    """verdict.json of these runs, judged."""
    doubts = [doubt for run in runs for doubt in run.doubts]
    judgement = _judgement(slo, runs, doubts, compared)
    if cut is not None:
        judgement = replace(judgement, verdict=VERDICTS[cut], exit_code=cut)
    objectives = ci.with_files((r.to_json() for r in judgement.objectives), names)
    regression = None
    if compared is not None and slo is not None and slo.regression is not None:
        # Only a baseline that is missing altogether may be told to be fine.
        effect = slo.regression.baseline.missing if compared.missing else "inconclusive"
        checks = [
            {**r.to_json(), "promise": promise_of(slo.regression, r), "on_inconclusive": effect}
            for r in compared.results
        ]
        regression = compared.to_json(slo.regression, ci.with_files(checks, names))
    told = [doubt.to_json() for doubt in doubts]
    if len(runs) > 1:
        told = [
            {**doubt.to_json(), "message": f"{run.folder.path.name}: {doubt.message}"}
            for run in runs
            for doubt in run.doubts
        ]
    return document(
        verdict=judgement.verdict if slo is not None or judgement.exit_code else None,
        exit_code=judgement.exit_code,
        policy=policy,
        slo=names,
        runs=entries or [judged_run(run.folder.path, run.facts) for run in runs],
        objectives=objectives,
        regression=regression,
        doubts=told,
    )


def _judgement(
    slo: SloFile | None, runs: Sequence[_Run], doubts: Sequence[Doubt], compared: Compared | None
) -> Judgement:
    parts = [run.part for run in runs]
    if slo is not None:
        return judge(
            slo,
            parts,
            doubts,
            regression=compared.results if compared else (),
            baseline_missing=compared.missing if compared else False,
            reader=_reader(slo, runs),
        )
    if any(part.interrupted for part in parts) or any(d.grade == "invalid" for d in doubts):
        return Judgement("invalid", 4, ())
    if not any(record.ok for part in parts for record in part.records):
        # Nothing was asked of it, yet a run without one answer must not look fine to a script.
        return Judgement("inconclusive", 3, ())
    return Judgement("pass", 0, ())


def _reader(slo: SloFile, runs: Sequence[_Run]) -> Reader | None:
    """Who answers `promql` objectives: the Prometheus that is named, else what the runs kept."""
    if slo.measure.prometheus is not None:
        return http_reader(slo.measure.prometheus)
    if not any(isinstance(objective.promise, Query) for objective in slo.objectives):
        return None
    found = [kept_series(run.folder, run.facts) for run in runs]
    return own_reader([each for each in found if each is not None])


def kept_series(folder: RunFolder, facts: dict[str, Any]) -> Kept | None:
    """What a run kept of its target's own metrics, labelled as a replay of it is."""
    if facts.get("origin_unix") is None:
        return None
    pages = kept_samples(folder.path)
    return series_of(pages, facts["origin_unix"], **scraped_labels(facts))
