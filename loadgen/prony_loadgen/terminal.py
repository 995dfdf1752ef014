"""The run in a terminal, and the same as Markdown: run.json in, a page of text out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from prony_loadgen import words
from prony_loadgen.words import UNKNOWN, count, ms, number, rate, share, stat

STYLES: Final = {
    "pass": "bold green",
    "breach": "bold red",
    "inconclusive": "bold yellow",
    "invalid": "bold magenta",
}
GRADES: Final = {"invalid": "bold magenta", "warn": "yellow", "note": "dim"}
COLUMNS: Final = ("mean", "p50", "p90", "p95", "p99")


def print_summary(run: dict[str, Any], console: Console, folder: Path | None = None) -> None:
    """Prints what a run found. Narrow or piped output loses colour, never a number."""
    console.print(summary(run))
    if folder is not None:
        # A path that is broken over two lines cannot be clicked or copied.
        path = (str(folder / "report.html"), "bold")
        console.print(Text.assemble("\nreport  ", path), soft_wrap=True)


def summary(run: dict[str, Any]) -> RenderableType:
    """The page that print_summary prints: the verdict first, doubts last."""
    parts: list[RenderableType] = [_head(run)]
    if run.get("loop") == "closed":
        parts.append(Text(words.CLOSED_LOOP, style="yellow"))
    parts += [Text(""), *_objectives(run), _latency(run), Text(""), _pairs(_account(run))]
    parts += _doubts(run)
    return Group(*parts)


def summary_markdown(run: dict[str, Any]) -> str:
    """summary.md: the same as the terminal's page, for a pull request or a CI step."""
    word, meaning = words.verdict(run)
    lines = [f"# {word}: {_escaped(meaning)}", ""]
    lines += [f"- {name}: {_escaped(found)}" for name, found in _facts(run)]
    if run.get("loop") == "closed":
        lines += ["", f"> {words.CLOSED_LOOP}"]
    objectives = [words.objective(each) for each in words.judged(run)]
    if objectives:
        lines += ["", "| verdict | objective | finding |", "| --- | --- | --- |"]
        lines += [
            f"| **{each['word']}**{' (warning only)' if each['warning'] else ''} "
            f"| {_escaped(each['id'])} | {_escaped(each['line'])} |"
            for each in objectives
        ]
    lines += ["", f"| latency (ms) | over | {' | '.join(COLUMNS)} | n |"]
    lines += ["| --- | --- |" + " ---: |" * (len(COLUMNS) + 1)]
    lines += [f"| {' | '.join(cells)} |" for cells in _latency_cells(run)]
    lines += ["", *(f"- {name}: {_escaped(found)}" for name, found in _account(run))]
    doubts = run.get("doubts") or []
    if doubts:
        lines += ["", "## Doubts", ""]
        lines += [
            f"- **{_escaped(str(each.get('grade')))}** {_escaped(str(each.get('message')))}"
            + (f" *{_escaped(str(each['remedy']))}*" if each.get("remedy") else "")
            for each in doubts
        ]
    return "\n".join(lines) + "\n"


def _head(run: dict[str, Any]) -> RenderableType:
    word, meaning = words.verdict(run)
    head = Text.assemble((word, STYLES.get(str(run.get("verdict")), "bold")), "  ", meaning)
    return Group(head, _pairs(_facts(run)))


def _facts(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    target = run.get("target") or {}
    yield "run", str(run.get("run_id") or UNKNOWN)
    yield "target", f"{target.get('model') or UNKNOWN} at {target.get('url') or UNKNOWN}"
    name = (run.get("scenario") or {}).get("name") or UNKNOWN
    yield "load", f"{name}, {words.load(run)}, seed {run.get('seed', UNKNOWN)}"
    yield "measured", words.measured(run)


def _objectives(run: dict[str, Any]) -> Iterator[RenderableType]:
    objectives = words.judged(run)
    if not objectives:
        return
    table = _grid()
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in objectives:
        facts = words.objective(each)
        style = STYLES.get(str(each.get("verdict")), "bold")
        # The gate adds its arithmetic behind a bar: a line of its own, in the background.
        finding, *more = facts["line"].split(" | ")
        said = Text(finding + (" (warning only)" if facts["warning"] else ""))
        for line in more:
            said.append(f"\n{line}", style="dim")
        table.add_row(Text(facts["word"], style=style), Text(facts["id"]), said)
    yield table
    yield Text("")


def _latency(run: dict[str, Any]) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("ms", no_wrap=True)
    table.add_column("over", no_wrap=True, style="dim")
    for name in (*COLUMNS, "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for cells in _latency_cells(run):
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _latency_cells(run: dict[str, Any]) -> Iterator[list[str]]:
    for metric in words.FIRST_METRICS:
        for which in words.shown(run, metric):
            figures = [ms(stat(run, metric, which, name), unit=False) for name in COLUMNS]
            over = "all" if which == "all" else "ok only"
            n = count(stat(run, metric, which, "n"))
            yield [words.METRICS[metric][0], over, *figures, n]


def _account(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    summary = run.get("summary") or {}
    rates = summary.get("rates") or {}
    yield (
        "throughput",
        (
            f"{rate(number(rates.get('output_tokens_per_s')))} output tokens/s, "
            f"{rate(number(rates.get('requests_per_s')))} requests/s"
        ),
    )
    if good := words.goodput(run):
        yield "goodput", good
    if spent := words.cost(run):
        yield "cost", spent
    if told := words.quality(run):
        yield "quality", told
    if again := words.retries(run):
        yield "retries", again
    attempts, failures = words.attempts(run), words.failures(run)
    text = f"{count(failures)} of {words.counted(attempts, 'attempt')}"
    if attempts:
        text += f" ({share(failures / attempts)})"
    kinds = [f"{name} {found:,}" for name, found in (summary.get("outcomes") or {}).items()
             if name != "ok"]  # fmt: skip
    yield "errors", text + (f": {', '.join(kinds)}" if kinds else "")
    account = run.get("schedule") or {}
    on_time, late, dropped = (number(account.get(k)) for k in ("on_time", "late", "dropped"))
    yield (
        "schedule",
        (
            f"offered {count(number(account.get('offered')))} = {count(on_time)} on time "
            f"+ {count(late)} late + {count(dropped)} dropped"
        ),
    )
    yield (
        "send lag",
        (
            f"p50 {ms(number(account.get('send_lag_p50')))}, "
            f"p99 {ms(number(account.get('send_lag_p99')))}"
        ),
    )
    if run.get("loop") != "closed":
        yield (
            "rate",
            (
                f"offered {rate(number(account.get('offered_rate')))}/s, "
                f"asked {rate(number(account.get('asked_rate')))}/s"
            ),
        )


def _doubts(run: dict[str, Any]) -> Iterator[RenderableType]:
    doubts = run.get("doubts") or []
    if not doubts:
        return
    yield Text("")
    table = _grid()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in doubts:
        grade = str(each.get("grade"))
        said = Text(str(each.get("message") or each.get("id")))
        if each.get("remedy"):
            said.append(f"\n{each['remedy']}", style="dim")
        table.add_row(Text(f"doubt: {grade}", style=GRADES.get(grade, "")), said)
    yield table


def _pairs(pairs: Iterator[tuple[str, str]]) -> Table:
    table = _grid()
    table.add_column(no_wrap=True, style="dim", min_width=10)
    table.add_column(overflow="fold")
    for name, found in pairs:
        table.add_row(name, Text(found))
    return table


def _grid() -> Table:
    return Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: a server's message must not become a link or HTML."""
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())
