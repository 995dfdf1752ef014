"""The summary in a terminal and as Markdown."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.loadgen.synthetic_run import run_of, synthetic_run

from prony_loadgen import words
from prony_loadgen.terminal import print_summary, summary_markdown


def printed(run: dict[str, Any], width: int = 80, folder: Path | None = None) -> str:
    """What goes into a pipe: no colour, `width` columns."""
    out = io.StringIO()
    print_summary(run, Console(file=out, width=width), folder)
    return out.getvalue()


def joined(text: str) -> str:
    return " ".join(text.split())


def test_it_prints_verdict_latencies_throughput_schedule_and_where_the_report_is() -> None:
    run, _ = synthetic_run()
    text = joined(printed(run, folder=Path("runs/a-run")))
    assert text.startswith("INCONCLUSIVE 1 of 3 objectives cannot be decided; this is not a pass")
    for part in ("ms over mean p50 p90 p95 p99 n", "TTFT all", "TPOT all", "E2E all", "ITL all",
                 "486 output tokens/s", "14.5 requests/s",
                 "offered 400 = 400 on time + 0 late + 0 dropped", "send lag p50 0.18 ms, p99",
                 "errors 2 of 351 attempts (0.57 %): timeout 1, stream_error 1"):  # fmt: skip
        assert part in text
    assert text.endswith("report runs/a-run/report.html")


def test_no_line_is_wider_than_80_columns_and_no_number_is_cut() -> None:
    run, _ = synthetic_run()
    run["summary"]["e2e"]["all"] |= dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 1234.5678)
    run["summary"]["itl"]["all"]["n"] = 12_345_678
    lines = printed(run).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "…" not in "".join(lines)
    assert joined(printed(run)).count("1,234,568") == 5


def test_a_pipe_gets_no_escape_codes() -> None:
    assert "\x1b" not in printed(synthetic_run()[0])


def test_the_path_of_the_report_is_never_broken_over_lines() -> None:
    folder = Path("/home/somebody/with/a/rather/long/path/to/the/project/runs/20261130-174501-chat")
    assert f"{folder}/report.html" in printed(synthetic_run()[0], width=80, folder=folder)


def test_each_objective_has_its_verdict_and_finding() -> None:
    text = joined(printed(synthetic_run()[0], width=200))
    assert "PASS ttft p95 < 300ms 0.57 % of 351 requests miss ttft < 300 ms" in text
    assert "INCONCLUSIVE tpot p99 < 30ms 0.57 % of 351 requests" in text


def test_successes_stand_apart_only_where_something_failed() -> None:
    assert "ok only" in printed(synthetic_run(failures=0.01)[0])
    assert "ok only" not in printed(synthetic_run(failures=0.0)[0])


def test_doubts_come_with_their_remedy() -> None:
    run, _ = synthetic_run()
    run["doubts"] = [{"grade": "invalid", "message": "sent 0.4 s late", "remedy": "fewer users"}]
    assert "doubt: invalid sent 0.4 s late fewer users" in joined(printed(run))


def test_a_closed_loop_says_what_it_cannot_show() -> None:
    run, _ = synthetic_run(loop="closed")
    assert "Closed loop: each user waits" in joined(printed(run))
    assert "closed loop, 8 users" in joined(printed(run))
    assert "Closed loop: each user waits" in summary_markdown(run)


def test_goodput_is_printed_where_an_slo_said_what_is_good() -> None:
    run, _ = synthetic_run()
    run["summary"]["rates"] |= {"goodput_per_s": 14.25, "goodput_share": 0.9875}
    assert "goodput 14.2 requests/s, 98.75 % of attempts" in joined(printed(run))


def test_a_folder_of_a_crashed_run_is_printed_too() -> None:
    assert joined(printed({"interrupted": True})).startswith("NOT JUDGED")
    assert summary_markdown({}).startswith("# NOT JUDGED")


def test_a_run_without_requests_prints_dashes() -> None:
    text = joined(printed(run_of([])))
    assert "TTFT all – – – – – 0" in text


def test_a_run_where_all_fail_prints_never() -> None:
    assert "TTFT all never never never never never 30" in joined(
        printed(synthetic_run(requests=60, failures=1.0)[0])
    )


def test_an_interrupted_run_and_one_that_stopped_early_say_so() -> None:
    run, _ = synthetic_run()
    assert "the run was interrupted" in joined(printed(run | {"interrupted": True}))
    assert "stopped early: too slow" in joined(printed(run | {"stopped_early": "too slow"}))


def test_brackets_in_a_message_are_printed_as_they_are() -> None:
    run, _ = synthetic_run()
    run["doubts"] = [{"grade": "warn", "message": "[bold]x[/bold] [/nothing]", "remedy": ""}]
    assert "[bold]x[/bold] [/nothing]" in printed(run)


def test_markdown_has_the_same_numbers_and_escapes_what_others_said() -> None:
    run, _ = synthetic_run()
    run["doubts"] = [{"grade": "warn", "message": "<b>a|b</b> [x](y)", "remedy": "*do*"}]
    text = summary_markdown(run)
    assert text.startswith("# INCONCLUSIVE: 1 of 3 objectives cannot be decided")
    assert "| **PASS** | ttft p95 \\< 300ms |" in text
    assert "| TTFT | all | never | 38.2 |" in text
    assert "\\<b\\>a\\|b\\</b\\> \\[x\\](y) *\\*do\\**" in text
    tables = [line for line in text.splitlines() if line.startswith("| TTFT")]
    assert {line.count("|") for line in tables} == {9}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0000123, "0.01 ms"), (0.00123, "1.23 ms"), (0.009994, "9.99 ms"), (0.0123, "12.3 ms"),
     (0.09994, "99.9 ms"), (0.123, "123 ms"), (2.5, "2,500 ms"), (0.0, "0.00 ms"),
     (float("inf"), "never"), (None, "–")],
)  # fmt: skip
def test_times_are_milliseconds_to_three_digits(seconds: float | None, text: str) -> None:
    assert words.ms(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.0000123, "0.0012 %"), (0.00567, "0.57 %"), (0.0123, "1.23 %"),
     (0.1, "10 %"), (0.5, "50 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"),
     (0.99999, "99.999 %"), (1.0, "100 %"), (1.002, "100.2 %"), (5.212, "521 %"), (None, "–")],
)  # fmt: skip
def test_shares_are_percent(share: float | None, text: str) -> None:
    assert words.share(share) == text


def test_only_a_known_number_is_a_number() -> None:
    assert words.number("inf") == float("inf")
    unknown: list[object] = [None, "n/a", True, []]
    assert [words.number(value) for value in unknown] == [None] * 4
