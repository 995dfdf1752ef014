"""A diagnosis as people read it: in a terminal, in Markdown, or as a section of the report."""

from html import escape

from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prony.diagnosis.judge import Diagnosis, Verdict
from prony_loadgen.report import Section
from prony_loadgen.words import ms

BAR = 32  # characters of a bar that is the whole request
GOOD, UNKNOWN = "none", "cannot_tell"


def as_terminal(diagnosis: Diagnosis) -> RenderableType:
    """The split of a mean request's time, then the verdicts, first things first."""
    parts: list[RenderableType] = []
    if diagnosis.split:
        parts += [Text(f"A mean request took {ms(diagnosis.e2e)}:", style="bold"),
                  _split(diagnosis), Text("")]  # fmt: skip
    for number, verdict in enumerate(diagnosis.verdicts, 1):
        parts += [*_told(verdict, number), Text("")]
    parts += [Text(f"Note: {note}", style="yellow") for note in diagnosis.notes]
    if diagnosis.missing:
        parts.append(Text("Not seen: " + " ".join(diagnosis.missing), style="dim"))
    return Group(*parts)


def as_markdown(diagnosis: Diagnosis) -> str:
    """The section of summary.md."""
    lines = ["## What holds it back", ""]
    lines += ["| | ms a request | sure | because |", "| --- | ---: | ---: | --- |"]
    for verdict in diagnosis.verdicts:
        lines.append(
            f"| **{verdict.title}** | {_cost(verdict)} | {_sure(verdict)} "
            f"| {verdict.found.why.replace('|', '/')} |"
        )
    first = diagnosis.verdicts[0]
    lines += ["", *(f"- {line}" for line in first.advice)]
    return "\n".join(lines) + "\n"


def as_section(diagnosis: Diagnosis) -> Section:
    """The section of the report's page."""
    note = f"A mean request took {ms(diagnosis.e2e)}. " if diagnosis.split else ""
    note += "First things first: by what each costs a mean request, times how sure it is."
    html = _bars(diagnosis) + "".join(map(_verdict_html, diagnosis.verdicts))
    for line in (*diagnosis.notes, " ".join(diagnosis.missing)):
        html += f'<p class="note">{escape(line)}</p>' if line else ""
    return Section("diagnosis", "What holds it back", note, Markup(html))


def _bars(diagnosis: Diagnosis) -> str:
    whole = _whole(diagnosis)
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="num">{ms(taken)}</td>'
        f'<td style="width:55%"><i style="display:block;height:.8em;background:var(--data);'
        f'width:{100 * taken / whole:.2f}%"></i></td></tr>'
        for name, taken in diagnosis.split.items()
    )
    return f'<div class="scroll"><table>{rows}</table></div>' if rows else ""


def _verdict_html(verdict: Verdict) -> str:
    cost = "" if verdict.id == GOOD else f", {_cost(verdict)} ms a request"
    tries = "".join(f"<li>{escape(line)}</li>" for line in verdict.advice)
    return (
        f"<h3>{escape(verdict.title)}{cost}, {_sure(verdict)} sure</h3>"
        f"<p>{escape(verdict.found.why)}.</p><ul>{tries}</ul>"
        f'<p class="note">Surer with: {escape(verdict.measure)}.</p>'
    )


def _split(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    table.add_column(no_wrap=True)
    whole = _whole(diagnosis)
    for name, taken in diagnosis.split.items():
        share = "" if not diagnosis.e2e else f"{taken / diagnosis.e2e * 100:.0f} %"
        bar = "█" * round(BAR * taken / whole)
        table.add_row(f"  {name}", ms(taken), share, Text(bar, style="blue"))
    return table


def _whole(diagnosis: Diagnosis) -> float:
    """Seconds of the longest bar: the mean request, or a part that is longer than it."""
    return max(diagnosis.e2e or 0.0, *diagnosis.split.values(), 0.0) or 1.0


def _told(verdict: Verdict, number: int) -> list[RenderableType]:
    style = {GOOD: "bold green", UNKNOWN: "bold magenta"}.get(verdict.id, "bold yellow")
    head = Text.assemble((f"{number}. {verdict.title}", style))
    if verdict.id != GOOD:
        head.append(f"  {_cost(verdict)} ms a request, {_sure(verdict)} sure")
    body = [
        Text(verdict.found.why),
        *(Text(f"try: {line}", style="cyan") for line in verdict.advice),
        Text(f"surer with: {verdict.measure}", style="dim"),
    ]
    # Padding, so that what does not fit into a line goes on below its beginning.
    return [head, *(Padding(line, (0, 0, 0, 3), expand=False) for line in body)]


def _cost(verdict: Verdict) -> str:
    return ms(verdict.found.cost, unit=False)


def _sure(verdict: Verdict) -> str:
    return f"{verdict.found.confidence * 100:.0f} %"
