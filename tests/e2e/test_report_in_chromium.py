"""The report in a real browser without a network: it draws, in every size, without an error."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.chromium import Page, page
from tests.loadgen.synthetic_run import run_of, synthetic_run
from tests.needs import needs_program

from prony_loadgen.report import report_html

PLOTS = ("plot-ttft", "plot-tpot", "plot-e2e", "plot-timeline")


@pytest.fixture
def browser() -> Iterator[Page]:
    with page(needs_program("chromium")) as opened:
        yield opened


def write(folder: Path, html: str) -> Path:
    file = folder / "report.html"
    file.write_text(html, encoding="utf-8")
    return file


def drawn_paths(browser: Page, plot: str) -> int:
    """How many lines and areas a plot shows: 0 where it stayed empty."""
    found = browser.evaluate(
        f"document.querySelectorAll('#{plot} svg.main-svg .trace path').length"
    )
    return int(found)


def test_it_opens_offline_with_all_plots_drawn_and_no_error(browser: Page, tmp_path: Path) -> None:
    file = write(tmp_path, report_html(*synthetic_run()))
    browser.open(file)
    assert browser.errors == []
    assert browser.requests == [file.as_uri()]
    assert {plot: drawn_paths(browser, plot) > 0 for plot in PLOTS} == dict.fromkeys(PLOTS, True)
    assert browser.evaluate("document.querySelector('h1').textContent") == "INCONCLUSIVE"


def test_it_fits_a_phone_and_its_plots_follow_the_width(browser: Page, tmp_path: Path) -> None:
    browser.open(write(tmp_path, report_html(*synthetic_run())))
    for width in (390, 1280):
        browser.look(width=width)
        browser.wait_for(
            "[...document.querySelectorAll('.js-plotly-plot')].every("
            "plot => Math.abs(plot._fullLayout.width - plot.clientWidth) <= 1)"
        )
        assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.errors == []


def test_it_is_dark_for_who_prefers_that_and_light_again(browser: Page, tmp_path: Path) -> None:
    browser.open(write(tmp_path, report_html(*synthetic_run())))
    grounds = []
    for dark in (True, False):
        browser.look(width=1280, dark=dark)
        browser.wait_for(
            "document.getElementById('plot-ttft')._fullLayout.paper_bgcolor === "
            "getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()"
        )
        grounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(16, 19, 22)", "rgb(244, 245, 243)"]
    assert browser.errors == []


def test_a_run_without_requests_and_one_where_all_fail_open_without_an_error(
    browser: Page, tmp_path: Path
) -> None:
    browser.open(write(tmp_path, report_html(run_of([]), [])))
    browser.open(write(tmp_path, report_html(*synthetic_run(requests=60, failures=1.0))))
    assert browser.errors == []
    assert drawn_paths(browser, "plot-timeline") > 0
