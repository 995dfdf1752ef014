"""The target's own metrics beside a run: read by the map of engines, kept, and drawn."""

import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from tests.loadgen.synthetic_run import synthetic_run
from tests.server.live_server import live_server

from prony.server_metrics import keep, kept
from prony_dashboards.engines import ENGINES
from prony_dashboards.pages import at, page
from prony_dashboards.reading import recognised, values, wanted
from prony_loadgen.exposition import read_page
from prony_loadgen.folder import RunFolder
from prony_loadgen.report import report_html
from prony_loadgen.scrape import Scraped
from prony_loadgen.server_plot import client_means, means, server_figure

WRITTEN = [name for name in ENGINES if name != "prony"]


def scraped(name: str, seconds: int = 10) -> Scraped:
    """Pages of an engine over so many seconds from Unix time 1000 on."""
    pages = [(1000.0 + s, zlib.compress(at(page(name), s).encode())) for s in range(seconds)]
    return Scraped(tuple(pages), 1, None)


@pytest.mark.parametrize("name", WRITTEN)
def test_an_engine_is_recognised_by_its_page(name: str) -> None:
    found = recognised(read_page(page(name)).samples.keys())
    assert found is ENGINES[name]


def test_a_page_of_nobody_we_know_is_not_recognised() -> None:
    assert recognised(["up", "process_cpu_seconds_total", "http_requests_total"]) is None


@pytest.mark.parametrize("name", WRITTEN)
def test_every_concept_of_the_map_is_read_off_the_page(name: str) -> None:
    engine = ENGINES[name]
    found = values(engine, read_page(page(name), wanted(engine)).samples)
    concepts = {each.removesuffix("_count").removesuffix("_sum") for each in found}
    assert concepts - {each for each in concepts if each.endswith("_of")} == set(engine.sources)


def test_a_source_takes_only_the_series_that_it_matches() -> None:
    engine = ENGINES["sglang"]
    found = values(engine, read_page(page("sglang")).samples)
    assert found["prefill_time_sum"] == pytest.approx(1.4 + 0.4)  # forward and chunked
    assert found["decode_time_sum"] == pytest.approx(13.2)
    failures = values(ENGINES["vllm"], read_page(page("vllm")).samples)
    assert failures["failures"] == pytest.approx(0.1)
    assert failures["failures_of"] == pytest.approx(20.0)


def test_a_run_keeps_lines_on_its_own_clock_and_says_how_many(tmp_path: Path) -> None:
    facts = keep(tmp_path, scraped("vllm"), origin=1000.5)
    assert facts == {"collected": True, "engine": "vllm", "pages": 10, "failed": 1,
                     "skipped_lines": 0, "why": None}  # fmt: skip
    lines = list(kept(tmp_path))
    assert [line["at"] for line in lines[:3]] == [-0.5, 0.5, 1.5]
    assert lines[4]["generation_tokens"] - lines[3]["generation_tokens"] == pytest.approx(2400)
    assert lines[0]["running"] == 12


def test_g11_what_was_not_collected_is_said_with_its_reason_and_is_no_zero(tmp_path: Path) -> None:
    facts = keep(tmp_path, Scraped((), 3, "/metrics: HTTP 404"), origin=0)
    assert (facts["collected"], facts["why"]) == (False, "/metrics: HTTP 404")
    assert list(kept(tmp_path)) == []
    unknown = Scraped(((1.0, zlib.compress(b"up 1\n")),), 0, None)
    assert "no engine that is known" in keep(tmp_path, unknown, origin=0)["why"]


def test_the_report_shows_client_and_server_on_one_axis(tmp_path: Path) -> None:
    run, records = synthetic_run()
    run["server_metrics"] = keep(tmp_path, scraped("vllm", 27), origin=1000.0)
    html = report_html(run, records, list(kept(tmp_path)))
    assert "What the server said meanwhile" in html and "plot-server" in html
    assert "What the server (vllm) said of itself" in html


def test_g11_the_report_says_not_collected_and_a_run_that_never_asked_says_nothing() -> None:
    run, records = synthetic_run()
    assert "What the server said" not in report_html(run, records)
    run["server_metrics"] = {"collected": False, "why": "/metrics: HTTP 404"}
    assert "Not collected: /metrics: HTTP 404." in report_html(run, records)


def test_means_between_scrapes_leave_out_idle_seconds_and_restarts() -> None:
    lines = [
        {"at": 0.0, "ttft_count": 10, "ttft_sum": 1.0},
        {"at": 1.0, "ttft_count": 12, "ttft_sum": 1.5},
        {"at": 2.0, "ttft_count": 12, "ttft_sum": 1.5},
        {"at": 3.0, "ttft_count": 1, "ttft_sum": 0.2},
    ]
    assert means(lines, "ttft") == [(1.0, 250.0)]


def test_the_clients_mean_is_over_the_first_tokens_that_came_between_two_scrapes() -> None:
    _, records = synthetic_run()
    edges = [0.0, 10.0, 20.0]
    known = [r for r in records if r.ok and r.ttft is not None]
    inside = [r.ttft for r in known if r.ttft and 10 < r.intended + r.ttft <= 20]
    moment, mean = client_means(edges, records)[1]
    assert moment == 20.0
    assert mean == pytest.approx(1000 * sum(inside) / len(inside))


def test_an_engine_without_a_first_token_time_is_told_in_words(tmp_path: Path) -> None:
    keep(tmp_path, scraped("tgi"), origin=1000.0)
    made = server_figure(list(kept(tmp_path)), [], span=9)
    assert made is not None
    assert made[1] == " The server does not tell its time to first token nor its KV cache use."


def test_a_run_against_a_real_server_keeps_what_it_said(tmp_path: Path) -> None:
    options = ["run", "chat", "--rate", "10", "--duration", "3s", "--out", "run", "--quiet"]
    with live_server() as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "prony", *options, "--target", server.url],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    assert (tmp_path / "run/report.html").exists(), done.stderr
    facts = RunFolder(tmp_path / "run").read_run()
    assert facts["server_metrics"]["engine"] == "prony"
    assert facts["server_metrics"]["failed"] == 0
    lines = list(kept(tmp_path / "run"))
    assert 3 <= len(lines) == facts["server_metrics"]["pages"]
    # A page comes once a second, so up to a second's requests at each end are in none of them.
    during = [line for line in lines if line["at"] >= 0]
    made = len(list(RunFolder(tmp_path / "run").records()))  # those of the warm-up too
    assert 0 < during[-1]["ttft_count"] - during[0]["ttft_count"] <= made
