"""What the target says of itself during a run: a judge goes in; one that also keeps that comes out.

The target's /metrics is asked once a second from just before the load to its end, then read by the
map of engines into RUN/server_metrics.jsonl.gz, and the report draws it under the client's times.

A line of that file holds `at`, on the run's clock, the concepts as running totals, and `samples`:
the values of the page's series, in the order of the last line that holds `series`.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prony.beside import Beside
from prony.output import unless_unwritable
from prony_loadgen.exposition import read_page
from prony_loadgen.folder import RunFolder
from prony_loadgen.plan import Plan
from prony_loadgen.scrape import Scraped, Scraper
from prony_loadgen.settings import Judge
from prony_loadgen.target import Target

FILE = "server_metrics.jsonl.gz"


class WithServer(Beside):
    """A judge whose run also keeps the target's own metrics."""

    def __init__(self, judge: Judge, target: Target) -> None:
        super().__init__(judge)
        self._scraper = Scraper(target)

    def plan(self, plan: Plan, window: tuple[float, float]) -> list[str]:
        """Called just before the load."""
        lines = self._judge.plan(plan, window)
        self._scraper.start()
        return lines

    def finish(self, folder: RunFolder) -> int:
        """Called after the load, before it is judged: the report shows what was kept."""
        facts = folder.read_run()
        scraped = self._scraper.stop()
        with unless_unwritable(folder.path / FILE):
            facts["server_metrics"] = keep(folder.path, scraped, facts["origin_unix"])
            folder.write_run(facts)
        return self._judge.finish(folder)


def keep(path: Path, scraped: Scraped, origin: float) -> dict[str, Any]:
    """Writes the file into the run folder and returns what run.json says of it.

    Without one readable page there is no file: "not collected", with the reason.
    """
    # Here, for it brings prometheus_client and so ssl, which Locust must have patched before.
    from prony_dashboards.reading import recognised, values, wanted

    facts: dict[str, Any] = {"collected": False, "engine": None, "pages": 0,
                             "failed": scraped.failed, "skipped_lines": 0,
                             "why": scraped.why}  # fmt: skip
    texts = scraped.texts()
    engine = None
    for _, text in texts:
        if engine := recognised(read_page(text).samples.keys()):
            break
    if engine is None:
        if texts:
            facts["why"] = "the page is of no engine that is known (see docs/dashboards.md)"
        return facts
    names = wanted(engine)
    order: list[Any] = []
    with gzip.open(path / FILE, "wt", encoding="utf-8") as file:
        for at, text in texts:
            page = read_page(text, names)
            facts["skipped_lines"] += page.skipped
            series = [(n, labels, v) for n, each in page.samples.items() for labels, v in each]
            line = {
                "at": round(at - origin, 3),
                **values(engine, page.samples),
                "samples": [value if isfinite(value) else None for _, _, value in series],
            }
            if (now := [[name, labels] for name, labels, _ in series]) != order:
                order = now
                file.write(json.dumps({"series": order}) + "\n")
            file.write(json.dumps(line, allow_nan=False) + "\n")
    return {**facts, "collected": True, "engine": engine.name, "pages": len(texts)}


def scraped_labels(run: Mapping[str, Any]) -> dict[str, str]:
    """The labels that a Prometheus adds to what it scrapes; `run` is a run.json."""
    about = run.get("server_metrics") or {}
    url = str((run.get("target") or {}).get("url") or "")
    instance = urlsplit(url if "://" in url else f"http://{url}").netloc or "target"
    return {"job": str(about.get("engine") or "target"), "instance": instance}


def kept(path: Path) -> Iterator[dict[str, float]]:
    """What was kept of each page's concepts; nothing where the folder has no such file."""
    for line in _lines(path):
        if "at" in line:
            yield {name: value for name, value in line.items() if name != "samples"}


def kept_samples(path: Path) -> Iterator[tuple[float, list[tuple[str, dict[str, str], float]]]]:
    """What was kept of each page's series: its time on the run's clock, and name, labels, value."""
    order: list[Any] = []
    for line in _lines(path):
        order = line.get("series", order)
        if "samples" in line:
            yield (
                line["at"],
                [
                    (name, labels, value)
                    for (name, labels), value in zip(order, line["samples"], strict=False)
                    if value is not None
                ],
            )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(path / FILE, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)
    except (OSError, EOFError, ValueError):
        return  # absent, or torn: the lines before are good
