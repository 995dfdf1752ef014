"""The report as text: what it says, what it must not let through, and how large it may grow."""

import json
import re
from typing import Any

import pytest
from plotly.offline import get_plotlyjs
from tests.loadgen.synthetic_run import run_of, synthetic_run

from prony_loadgen import plots
from prony_loadgen.record import Arrival, RequestRecord
from prony_loadgen.report import report_html

LIBRARY = len(get_plotlyjs())


def page_of(run: dict[str, Any], records: list[RequestRecord]) -> str:
    """The report without the plotting library, which would drown every search."""
    return report_html(run, records).replace(get_plotlyjs(), "(library)")


def text_of(page: str) -> str:
    """What a reader sees, roughly: without tags, scripts, styles and runs of blanks."""
    page = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.S)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def figures_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    assert match is not None
    found: dict[str, Any] = json.loads(match[1])
    return found


def record(index: int, **facts: Any) -> RequestRecord:
    at = index * 0.1
    usual: dict[str, Any] = {
        "id": f"r{index}", "cls": "chat", "intended": at, "sent": at, "headers": at + 0.01,
        "arrivals": (Arrival(at + 0.05, 1, "text"), Arrival(at + 0.07, 1, "text")),
        "ended": at + 0.08, "outcome": "ok", "output_tokens": 2,
    }  # fmt: skip
    return RequestRecord(**(usual | facts))


@pytest.mark.parametrize(
    ("verdict", "word"),
    [("pass", "PASS"), ("breach", "BREACH"), ("inconclusive", "INCONCLUSIVE"),
     ("invalid", "INVALID"), (None, "NOT JUDGED")],
)  # fmt: skip
def test_the_verdict_is_told_in_a_word_and_in_a_colour(verdict: str | None, word: str) -> None:
    run, records = synthetic_run(slo=())
    page = page_of(run | {"verdict": verdict}, records)
    assert f"<h1>{word}</h1>" in page
    assert f'<header class="{verdict or "none"}">' in page


def test_the_header_names_run_target_model_scenario_load_and_time() -> None:
    text = text_of(page_of(*synthetic_run()))
    for fact in ("20261130-174501-chat", "http://127.0.0.1:8000", "tiny", "chat, poisson 15.0/s",
                 "2026-11-30 17:45:01 UTC", "24.0 s after 3.0 s of warm-up"):  # fmt: skip
        assert fact in text


def test_figures_are_those_of_run_json_and_carry_their_unit() -> None:
    run, records = synthetic_run()
    run["summary"]["ttft"]["all"]["p99"] = 1.2345
    assert "TTFT p99 1,234 ms" in text_of(page_of(run, records)).replace("all attempts ", "")


def test_objectives_show_verdict_promise_bounds_n_and_finding() -> None:
    run, records = synthetic_run(slo=["ttft p95 < 300ms"])
    page = page_of(run, records)
    (objective,) = run["objectives"]
    text = text_of(page)
    for part in ("PASS", "ttft &lt; 300 ms for 95 % of requests", "0.1 % to 1.78 %", "351"):
        assert part in text
    assert objective["text"].split(" | ")[0].replace("<", "&lt;") in text
    assert '<svg class="gauge"' in page


def test_an_objective_that_only_warns_says_so_and_is_not_counted_in_the_headline() -> None:
    run, records = synthetic_run()
    for each in run["objectives"][1:]:
        each |= {"verdict": "breach", "severity": "warn"}
    text = text_of(page_of(run | {"verdict": "pass"}, records))
    assert "the objective is met" in text
    assert text.count("warning only") == 2


def test_an_invalid_doubt_stands_above_the_numbers_with_its_remedy() -> None:
    run, records = synthetic_run()
    run["doubts"] = [
        {
            "id": "late",
            "grade": "invalid",
            "message": "sends ran 0.4 s late",
            "remedy": "fewer users",
        },
        {"id": "few", "grade": "note", "message": "a short run", "remedy": "", "numbers": {}},
    ]
    text = text_of(page_of(run | {"verdict": "invalid"}, records))
    assert "Why this run cannot be trusted" in text
    assert text.index("sends ran 0.4 s late fewer users") < text.index("Objectives")
    assert text.index("a short run") > text.index("Reproduce")


def test_a_closed_loop_is_marked_with_what_it_cannot_show() -> None:
    open_run, closed_run = (
        text_of(page_of(*synthetic_run(loop=loop))) for loop in ("open", "closed")
    )
    assert "Closed loop: each user waits" in closed_run
    assert "closed loop, 8 users" in closed_run
    assert "Closed loop" not in open_run


def test_what_a_server_or_a_model_said_cannot_become_markup_or_script() -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    records = [
        record(0, text=evil, cls=evil),
        record(1, outcome="http_error", error=evil, arrivals=()),
    ]
    run = run_of(records, warmup=0) | {"run_id": evil}
    run["target"]["model"] = evil
    run["doubts"] = [{"id": "x", "grade": "warn", "message": evil, "remedy": evil}]
    page = page_of(run, records)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == page.count("</script>") == 3
    assert "&lt;img src=x onerror=alert(2)&gt;" in page


def test_a_record_id_that_ends_the_script_stays_inside_the_figures() -> None:
    evil = "</script><b>"
    records = [record(0, id=evil)]
    page = page_of(run_of(records, warmup=0), records)
    assert figures_of(page)["plot-timeline"]["data"][0]["text"] == [evil]


def test_the_page_names_no_address_to_load_from_and_forbids_loading() -> None:
    page = page_of(*synthetic_run())
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_the_plotting_library_is_inlined_once() -> None:
    html = report_html(*synthetic_run())
    assert html.count("plotly.js v") == 1
    assert get_plotlyjs() in html


def test_a_run_without_a_request_gives_a_page_with_dashes_not_zeros() -> None:
    page = page_of(run_of([]), [])
    text = text_of(page)
    assert "TTFT p50 –" in text
    assert "No request was made." in text
    assert figures_of(page) == {}


def test_a_folder_of_a_run_that_crashed_before_it_was_judged_still_gives_a_page() -> None:
    run, records = synthetic_run()
    for key in ("summary", "doubts", "verdict", "objectives", "exit_code", "ended_at", "schedule"):
        del run[key]
    text = text_of(page_of(run | {"interrupted": True}, records))
    assert text.startswith("NOT JUDGED")
    assert "the run was interrupted" in text
    assert "NOT JUDGED" in text_of(page_of({}, []))


def test_goodput_is_shown_where_an_slo_said_what_is_good() -> None:
    run, records = synthetic_run()
    assert "goodput" not in text_of(page_of(run, records))
    run["summary"]["rates"] |= {"goodput_per_s": 14.25, "goodput_share": 0.9875}
    assert "14.2 requests/s, 98.75 % of attempts" in text_of(page_of(run, records))


def test_a_run_where_all_fail_says_never_and_groups_the_errors_with_an_example() -> None:
    run, records = synthetic_run(requests=60, failures=1.0)
    page = page_of(run, records)
    text = text_of(page)
    assert "TTFT p50 never" in text
    assert "No request has one: all of 30 attempts failed." in text
    assert "503 Service Unavailable: {&#34;error&#34;: {&#34;message&#34;: &#34;queue full" in text
    assert set(figures_of(page)) == {"plot-timeline"}


def test_one_request_is_drawn() -> None:
    records = [record(0)]
    assert set(figures_of(page_of(run_of(records, warmup=0), records))) == {
        "plot-ttft", "plot-tpot", "plot-e2e", "plot-timeline"
    }  # fmt: skip


def test_failures_keep_the_curve_below_100_percent() -> None:
    figure = plots.distribution([0.05] * 90, 10, [], "TTFT")
    assert figure is not None
    curve = figure["data"][1]
    assert curve["customdata"][-1] == 90.0
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["10 of 100 never"]


def test_an_objective_is_drawn_as_its_limit_and_its_share() -> None:
    run, records = synthetic_run(slo=["ttft p95 < 300ms"])
    layout = figures_of(page_of(run, records))["plot-ttft"]["layout"]
    assert [note["text"] for note in layout["annotations"]] == [
        "SLO 300 ms, 95 %",
        "2 of 351 never",
    ]
    upright, level = layout["shapes"]
    assert upright["x0"] == upright["x1"] == 300
    assert round(level["y0"], 3) == 1.301  # -log10(5 %)


def test_infinite_percentiles_of_run_json_read_never() -> None:
    run, records = synthetic_run()
    run["summary"]["e2e"]["all"]["p99"] = "inf"
    assert "E2E p99 never" in text_of(page_of(run, records))


def test_tokens_that_differ_from_what_was_asked_are_drawn() -> None:
    records = [record(i, asked_output_tokens=16, output_tokens=2 + i) for i in range(5)]
    page = page_of(run_of(records, warmup=0), records)
    assert figures_of(page)["plot-tokens"]["data"][1]["y"] == [2, 3, 4, 5, 6]
    assert "Every request got as many" not in text_of(page)


def test_the_slowest_requests_are_listed_slowest_first_with_trace_and_text() -> None:
    records = [
        record(
            i, arrivals=(Arrival(i * 0.1 + late, 1, "text"),), trace_id=f"{i:032x}", text="Hi  a"
        )
        for i, late in enumerate((0.02, 0.5, 0.1))
    ]
    text = text_of(page_of(run_of(records, warmup=0), records))
    rows = text[text.index("Slowest requests") : text.index("Reproduce")]
    assert re.findall(r"\br\d\b", rows) == ["r1", "r2", "r0"]
    assert f"{1:032x} Hi a" in rows


def test_a_long_run_keeps_its_slowest_points_and_a_bounded_size() -> None:
    run, records = synthetic_run(requests=6_000, failures=0.02)
    page = report_html(run, records)
    points = figures_of(page)["plot-timeline"]["data"][0]
    assert len(points["x"]) <= plots.MOST_POINTS
    slowest = max((r for r in records if r.ok), key=lambda r: r.ttft or 0)
    assert slowest.id in points["text"]
    assert "the slowest 1,000 of 5," in text_of(page)
    assert len(page) - LIBRARY < 600_000


def test_the_same_run_gives_the_same_page() -> None:
    run, records = synthetic_run()
    assert report_html(run, records) == report_html(run, records)


def test_in_flight_rises_with_each_send_and_falls_with_each_end() -> None:
    records = [record(0, sent=0.0, ended=0.3), record(1, sent=0.1, ended=0.2), record(2, sent=None)]
    assert plots.in_flight(records, 0.3) == ([0.0, 0.0, 0.1, 0.2, 0.3], [0, 1, 2, 1, 0])


def test_a_rolling_p99_is_infinite_while_a_failure_is_among_few() -> None:
    records = [record(i) for i in range(100)] + [record(100, outcome="timeout", arrivals=())]
    times, level = plots.rolling(records, 99, span=10.0)
    assert level[0] == pytest.approx(0.05)
    assert level[-1] == float("inf")
    assert times[-1] == pytest.approx(10.0)
