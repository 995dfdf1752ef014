"""A comparison goes in; a table in the terminal, Markdown or an HTML page comes out."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from prony_loadgen import plots, words
from prony_loadgen.compare import LATENCIES, Cell, Comparison, Line
from prony_loadgen.report import PAGE, in_script
from prony_loadgen.summary import value

SETTLED: Final = {1: "better", -1: "worse", 0: ""}
STYLES: Final = {1: "green", -1: "red", 0: "dim"}


def letters(comparison: Comparison) -> list[str]:
    """What the columns are called: A, B, C, ... and from the 27th on a number."""
    count = len(comparison.runs)
    return [ascii_uppercase[i] if i < 26 else f"run {i + 1}" for i in range(count)]


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the table, what differs in configuration, and what the intervals rest on."""
    console.print(_terminal(comparison))


def comparison_markdown(comparison: Comparison) -> str:
    """The same for a pull request."""
    names = letters(comparison)
    lines = [f"- **{name}** {run.name}" for name, run in zip(names, comparison.runs, strict=True)]
    head = ["", *names[:1]]
    for name in names[1:]:
        head += [name, f"{name} / {names[0]}"]
    lines += ["", f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for line in comparison.lines:
        cells = [line.name, figure(line, line.cells[0])]
        for index, cell in enumerate(line.cells[1:], start=1):
            settled = SETTLED[line.settled(index)]
            mark = f" **{settled}**" if settled else ""
            cells += [figure(line, cell), change(line, cell) + mark]
        lines.append(f"| {' | '.join(cells)} |")
    if comparison.differs:
        lines += ["", f"| differs | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
        lines += [f"| {key} | {' | '.join(found)} |" for key, found in comparison.differs]
    return "\n".join([*lines, "", *comparison.notes]) + "\n"


def comparison_html(comparison: Comparison) -> str:
    """One page that opens anywhere, offline, with the latencies' distributions over each other."""
    names = letters(comparison)
    figures: dict[str, plots.Figure] = {}
    drawn = []
    for metric in LATENCIES:
        name, meaning = words.METRICS[metric]
        samples = []
        for letter, run in zip(names, comparison.runs, strict=True):
            known = [v for r in run.part.records if (v := value(r, metric)) is not None]
            finite = [v for v in known if math.isfinite(v)]
            samples.append((letter, finite, len(known) - len(finite) + run.part.dropped))
        found = plots.overlaid(samples, name)
        if found is not None:
            figures[f"plot-{metric}"] = found
            drawn.append({"id": f"plot-{metric}", "name": name, "meaning": meaning,
                          "height": found["layout"]["height"]})  # fmt: skip
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined
    )
    page: dict[str, Any] = {
        "names": names,
        "runs": [
            {"name": run.name, "load": words.load(dict(run.facts)),
             "model": (run.facts.get("target") or {}).get("model") or words.UNKNOWN,
             "verdict": words.verdict(dict(run.facts))[0],
             "n": words.count(run.part.attempts)}
            for run in comparison.runs
        ],
        "lines": [
            {"name": line.name, "first": figure(line, line.cells[0]),
             "others": [(figure(line, cell), change(line, cell), SETTLED[line.settled(i)],
                         {1: "pass", -1: "breach", 0: "none"}[line.settled(i)])
                        for i, cell in enumerate(line.cells[1:], start=1)]}
            for line in comparison.lines
        ],
        "differs": comparison.differs,
        "notes": comparison.notes,
        "drawn": drawn,
        "css": Markup((PAGE / "page.css").read_text(encoding="utf-8")),
        "js": Markup((PAGE / "page.js").read_text(encoding="utf-8")),
        "plotly": Markup(in_script(get_plotlyjs())),
        "figures": Markup(in_script(json.dumps(figures, allow_nan=False))),
    }  # fmt: skip
    return environment.get_template("compare.html").render(page)


def write_html(comparison: Comparison, path: Path) -> None:
    path.write_text(comparison_html(comparison), encoding="utf-8")


def figure(line: Line, cell: Cell) -> str:
    """One figure with its unit."""
    if line.unit == "ms":
        return words.ms(cell.value)
    if line.unit == "share":
        return words.share(cell.value)
    if line.unit == "bytes":
        return words.UNKNOWN if cell.value is None else f"{cell.value / 2**20:,.0f} MiB"
    return words.rate(cell.value)


def change(line: Line, cell: Cell) -> str:
    """ "1.10 [1.05, 1.16]" for a ratio, "+0.4 pp [-0.2, +1.1]" for a share's difference."""
    if cell.change is None:
        return words.UNKNOWN
    if line.unit == "share":
        text = f"{cell.change * 100:+.2f} pp"
        if cell.interval is not None:
            text += f" [{cell.interval[0] * 100:+.2f}, {cell.interval[1] * 100:+.2f}]"
        return text
    text = f"{cell.change:.3f}"
    if cell.interval is not None:
        low, high = cell.interval
        text += f" [{low:.3f}, {'∞' if math.isinf(high) else f'{high:.3f}'}]"
    return text


def _terminal(comparison: Comparison) -> RenderableType:
    names = letters(comparison)
    legend = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for name, run in zip(names, comparison.runs, strict=True):
        about = f"{words.load(dict(run.facts))}, {words.counted(run.part.attempts, 'attempt')}"
        legend.add_row(Text(name, style="bold"), Text(run.name), Text(about, style="dim"))
    return Group(legend, Text(""), _table(comparison, names), *_tail(comparison, names))


def _table(comparison: Comparison, names: list[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("")
    table.add_column(names[0], justify="right", no_wrap=True)
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column(f"{name} / {names[0]}", no_wrap=True)
        table.add_column("", no_wrap=True)
    for line in comparison.lines:
        cells = [Text(line.name), Text(figure(line, line.cells[0]))]
        for index, cell in enumerate(line.cells[1:], start=1):
            settled = line.settled(index)
            cells += [
                Text(figure(line, cell)),
                Text(change(line, cell), style=STYLES[settled]),
                Text(SETTLED[settled], style=STYLES[settled]),
            ]
        table.add_row(*cells)
    return table


def _tail(comparison: Comparison, names: list[str]) -> Iterator[RenderableType]:
    if comparison.differs:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        table.add_column("differs")
        for name in names:
            table.add_column(name, overflow="fold")
        for key, found in comparison.differs:
            table.add_row(Text(key), *(Text(each) for each in found))
        yield Text("")
        yield table
    for note in comparison.notes:
        yield Text("")
        yield Text(note, style="dim")
