"""A run folder, or pages of a server that is watched, in; the evidence, or its diagnosis, out."""

from collections.abc import Mapping, Sequence
from typing import Any

from prony.diagnosis.client_side import seen_by_client
from prony.diagnosis.evidence import Evidence
from prony.diagnosis.judge import Diagnosis, diagnose
from prony.diagnosis.server_side import Page, seen_by_server, series_of, without
from prony.diagnosis.thresholds import limit
from prony.profiling.captures import FOLDER, profile_facts
from prony.profiling.facts import ProfileFacts
from prony.server_metrics import kept_samples
from prony_dashboards.engines import ENGINES
from prony_dashboards.reading import recognised, wanted
from prony_loadgen.exposition import read_page
from prony_loadgen.folder import RunFolder
from prony_loadgen.record import RequestRecord
from prony_loadgen.scrape import Scraped
from prony_loadgen.summary import measured


def diagnosis_of(
    folder: RunFolder, run: Mapping[str, Any], records: Sequence[RequestRecord]
) -> Diagnosis:
    """What a run folder shows, with its profiles where it has any."""
    path = folder.path
    profile = profile_facts(path, run) if (path / FOLDER).is_dir() else None
    return diagnose(evidence_of(run, records, list(kept_samples(path)), profile))


def evidence_of(
    run: Mapping[str, Any],
    records: Sequence[RequestRecord],
    pages: Sequence[Page],
    profile: ProfileFacts | None = None,
) -> Evidence:
    """What run.json, the records and the kept pages of the server's metrics show.

    The pages are those of the measured window and after it, until the last request had ended; the
    page before it is where their counters start from. What a profiler disturbed is left out, where
    enough requests are left.
    """
    part = measured(run, records)
    engine = ENGINES.get((run.get("server_metrics") or {}).get("engine") or "")
    start = part.window[0]
    first = max((i for i, (at, _) in enumerate(pages) if at <= start), default=0)
    looked_at = pages[first:]
    left_out = part.profiled if len(part.records) >= limit("few") else ()
    server = None
    if engine is not None:
        server = seen_by_server(engine, without(engine, looked_at, left_out))
    span = None if server is None else (looked_at[0][0], looked_at[-1][0])
    return Evidence(seen_by_client(run, part, span, left_out), server, profile, bool(left_out))


def evidence_of_pages(scraped: Scraped) -> Evidence:
    """What the pages of a server say that nobody of ours put load on."""
    texts = scraped.texts()
    for _, text in texts:
        engine = recognised(read_page(text).samples.keys())
        if engine is not None:
            names = wanted(engine)
            pages: list[Page] = [
                (at, series_of(read_page(body, names).samples)) for at, body in texts
            ]
            return Evidence(server=seen_by_server(engine, pages))
    return Evidence()
