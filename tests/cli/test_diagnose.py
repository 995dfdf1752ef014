"""From a run folder, or a server that is watched, to what holds it back."""

import gzip
import json
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from tests.loadgen.synthetic_run import synthetic_run
from tests.server.live_server import live_server

from prony.__main__ import main
from prony.diagnosis.evidence import Cap
from prony.diagnosis.judge import diagnose
from prony.diagnosis.read import evidence_of, evidence_of_pages
from prony.diagnosis.server_side import Page, Series, seen_by_server, without
from prony.diagnosis.stalls import cap, gaps, silences, spikes
from prony.judging import write_views
from prony.server_metrics import keep, kept_samples
from prony_dashboards.engines import ENGINES
from prony_dashboards.pages import at, page, serving
from prony_loadgen.folder import RunFolder
from prony_loadgen.record import Arrival, RequestRecord
from prony_loadgen.scrape import Scraped

WRITTEN = [name for name in ENGINES if name != "prony"]


def stream(
    sent: float, arrivals: list[float], *, id: str = "r", headers: float | None = None
) -> RequestRecord:
    """An answer whose tokens came at these times."""
    return RequestRecord(
        id=id, cls="chat", intended=sent, sent=sent, headers=headers or sent + 0.001,
        arrivals=tuple(Arrival(t, 1, "text") for t in arrivals), ended=arrivals[-1] + 0.001,
        outcome="ok", output_tokens=len(arrivals),
    )  # fmt: skip


def even(start: float, tokens: int, gap: float = 0.01) -> list[float]:
    return [start + gap * n for n in range(tokens)]


def stalled_server(stalls: list[float], length: float) -> list[RequestRecord]:
    """Ten seconds of two streams at a time; no token leaves while the server stands still."""

    def leaves(moment: float) -> float:
        return next((s + length for s in stalls if s <= moment < s + length), moment)

    starts = [n / 4 for n in range(36)]
    return [stream(s, [leaves(t) for t in even(s + 0.01, 50)], id=f"r{s}") for s in starts]


def test_stalls_every_two_seconds_are_seen_with_their_period_and_cost() -> None:
    found = silences(stalled_server([1, 3, 5, 7], 0.3), 0.01, (0, 10))
    assert found.count == 4
    assert found.length == pytest.approx(0.3, abs=0.02)
    assert found.period == pytest.approx(2.0, abs=0.01)
    assert found.cost == pytest.approx(4 * 0.3 * 3 / 36, rel=0.3)  # some three in flight each time


def test_a_stall_that_nobody_saw_leaves_the_period_as_it_is() -> None:
    found = silences(stalled_server([1, 3, 7], 0.3), 0.01, (0, 10))
    assert found.period == pytest.approx(2.0, abs=0.01)


def test_stalls_at_random_times_have_no_period() -> None:
    chance = random.Random(3)
    at_random = sorted(chance.uniform(0, 8.5) for _ in range(6))
    assert silences(stalled_server(at_random, 0.1), 0.01, (0, 10)).period is None


def test_nothing_in_flight_is_no_silence() -> None:
    apart = [stream(0, even(0.01, 20)), stream(5, even(5.01, 20))]
    assert silences(apart, 0.01, (0, 10)).count == 0


def test_two_that_are_let_in_at_a_time_are_a_cap_of_two() -> None:
    waves = [
        stream(0.0, even(0.5 * (n // 2) + 0.01, 48), headers=0.5 * (n // 2) + 0.005, id=f"r{n}")
        for n in range(8)
    ]
    found = cap(waves)
    assert found is not None and found.answered == 2 and found.share > 0.9


def test_a_network_that_takes_a_while_is_no_cap() -> None:
    slow = [stream(n / 7, even(n / 7 + 0.3, 20 + n % 9), headers=n / 7 + 0.29) for n in range(30)]
    found = cap(slow)
    assert isinstance(found, Cap) and found.share < 0.75


def test_a_gap_during_a_newcomers_prompt_is_its_fault_and_any_other_is_not() -> None:
    streaming = stream(0, [*even(0.01, 10), *even(0.31, 10)], id="old")  # from 0.1 to 0.31 nothing
    newcomer = stream(0.15, even(0.305, 5), id="new")
    assert spikes([streaming, newcomer], 0.01).with_others == 1.0
    later = stream(0.45, even(0.5, 5), id="new")
    assert spikes([streaming, later], 0.01).with_others == 0.0
    assert spikes([streaming], 0.01).cost == pytest.approx(0.2, abs=0.001)


def test_tokens_of_one_read_have_no_gap() -> None:
    assert gaps([stream(0, [0.1, 0.1, 0.1, 0.2])]) == [pytest.approx(0.1)]


def scraped(engine: str, seconds: int = 10) -> Scraped:
    pages = [(1000.0 + s, zlib.compress(at(page(engine), s).encode())) for s in range(seconds)]
    return Scraped(tuple(pages), 0, None)


@pytest.mark.parametrize("engine", WRITTEN)
def test_a_page_of_each_engine_gives_a_server_and_says_what_it_does_not_tell(engine: str) -> None:
    server = evidence_of_pages(scraped(engine)).server
    assert server is not None and server.engine == engine
    assert server.seconds == 9 and server.e2e is not None and server.queue is not None
    assert any("does not export" in line for line in server.missing)
    known = [server.prefill, server.decode]
    assert all(known) if engine != "trtllm" else known == [None, None]


def test_sglangs_stages_give_its_hosts_share_and_its_pieces_of_prefill_are_summed() -> None:
    server = evidence_of_pages(scraped("sglang")).server
    assert server is not None and server.busy == pytest.approx(9 * 0.94)
    assert sum(server.host.values()) == pytest.approx(9 * 0.18)  # all but run_batch and idle
    assert server.prefill == pytest.approx((1.4 + 0.4) / 20)
    assert server.tokenize == pytest.approx(0.002)


def test_a_server_that_was_restarted_counts_from_nothing() -> None:
    pages = scraped("vllm", 6).pages
    restarted = Scraped((pages[5], (1006.0, pages[2][1])), 0, None)
    server = evidence_of_pages(restarted).server
    assert server is not None and server.prompt_tokens is not None and server.prompt_tokens > 0


def test_what_a_profiler_disturbed_is_as_if_it_had_not_been() -> None:
    engine = ENGINES["prony"]
    pages: list[Page] = []
    tokens = lag = 0.0
    for second in range(10):
        # 100 tokens a second, but 7 and a late event loop in the one in which it was profiled.
        profiled = second == 5
        tokens += 7 if profiled else 100
        lag += 0.9 if profiled else 0.001
        series: Series = [
            ("prony_generation_tokens_total", {}, tokens),
            ("prony_requests_running", {}, 50.0 if profiled else 3.0),
            ("prony_event_loop_lag_seconds_sum", {}, lag),
            ("prony_event_loop_lag_seconds_count", {}, 10.0 * (second + 1)),
        ]
        pages.append((float(second), series))
    left = without(engine, pages, [(4.2, 5.3)])
    assert [at for at, _ in left] == [0, 1, 2, 3, 4, 4, 5, 6, 7]
    assert [series[0][2] for _, series in left] == [100, 200, 300, 400, 500, 500, 600, 700, 800]
    assert {series[1][2] for _, series in left} == {3.0}
    server = seen_by_server(engine, left)
    assert server is not None and server.seconds == 7
    assert server.loop_lag == pytest.approx(0.0001)
    assert without(engine, pages, []) == pages


def test_values_that_are_no_numbers_are_as_good_as_absent() -> None:
    odd = page("vllm") + 'vllm:num_requests_waiting{model_name="b"} NaN\n'
    odd += 'vllm:inter_token_latency_seconds_bucket{model_name="b",le="0.1"} +Inf\n'
    odd += 'vllm:inter_token_latency_seconds_bucket{model_name="b"} 1\n'
    pages = [(1000.0 + s, zlib.compress((at(page("vllm"), s) if s else odd).encode()))
             for s in range(4)]  # fmt: skip
    told = diagnose(evidence_of_pages(Scraped((*pages[1:], (1004.0, pages[0][1])), 0, None)))
    json.dumps(told.to_json(), allow_nan=False)


def test_one_page_is_no_span_and_that_is_what_is_said() -> None:
    assert evidence_of_pages(scraped("vllm", 1)).server is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of the synthetic client beside what vLLM's page said meanwhile."""
    run, records = synthetic_run(requests=120)
    made = RunFolder(tmp_path / "run")
    made.path.mkdir()
    run["server_metrics"] = keep(made.path, scraped("vllm", 12), origin=1000.0)
    made.write_run(run)
    with gzip.open(made.requests, "wt") as file:
        file.writelines(record.to_json() + "\n" for record in records)
    return made.path


def test_a_run_folder_is_diagnosed_in_a_table_and_in_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "A mean request took" in told and "ms a request" in told and "surer with" in told
    assert "vLLM does not export how long an iteration takes." in " ".join(told.split())
    assert main(["diagnose", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["engine"] == "vllm" and document["verdicts"][0]["advice"]
    assert sum(document["split_ms"].values()) > 0


def test_the_report_and_the_summary_say_what_holds_it_back(folder: Path) -> None:
    run_folder = RunFolder(folder)
    write_views(run_folder, run_folder.read_run())
    html = (folder / "report.html").read_text()
    assert '<section id="diagnosis">' in html and "What holds it back" in html
    assert "## What holds it back" in (folder / "summary.md").read_text()


@pytest.mark.parametrize(("end", "left_out"), [(6.0, True), (100.0, False)])
def test_profiled_time_is_left_out_where_enough_requests_are_left(
    folder: Path, end: float, left_out: bool
) -> None:
    run = RunFolder(folder).read_run()
    records = list(RunFolder(folder).records())
    run["profile"] = {"captures": [{"window": [4.0, end], "left_out": [4.0, end]}]}
    pages = list(kept_samples(folder))
    evidence = evidence_of(run, records, pages)
    assert evidence.profile_left_out == left_out
    whole = evidence_of(run | {"profile": None}, records, pages)
    assert evidence.server is not None and whole.server is not None
    assert (evidence.server.seconds < whole.server.seconds) == left_out
    assert evidence.client is not None and whole.client is not None
    assert (evidence.client.requests < whole.client.requests) == left_out


def test_a_promise_that_the_gate_found_broken_is_known_to_the_diagnosis(folder: Path) -> None:
    assert main(["gate", str(folder), "--slo", "ttft p99 < 1ms", "--slo", "tpot p50 < 9s"]) == 1
    found = RunFolder(folder)
    client = evidence_of(found.read_run(), list(found.records()), []).client
    assert client is not None and client.breached == {"ttft"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere"),
        (["runs/latest", "--target", "http://127.0.0.1:9"], "a RUN or --target, not both"),
        (["--target", "http://127.0.0.1:9", "--seconds", "0"], "--seconds 0: expected 1 to 3600"),
        (["--target", "http://127.0.0.1:9", "--seconds", "1"], "no metrics: /"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_server_under_anybodys_load_is_diagnosed_live(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(page("sglang")) as address:
        assert main(["diagnose", "--target", f"http://{address}", "--seconds", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["engine"] == "sglang" and document["verdicts"]


def test_a_real_server_with_one_slot_is_found_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["chat", "--concurrency", "6", "--duration", "2s", "--warmup", "0s", "--quiet"]
    with live_server(max_num_seqs=1) as server:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "prony",
                "run",
                *options,
                "--target",
                server.url,
                "--out",
                "run",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    assert (tmp_path / "run/server_metrics.jsonl.gz").exists(), done.stderr
    assert main(["diagnose", str(tmp_path / "run"), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["verdicts"][0]
    assert first["id"] == "batch_slots" and first["numbers"]["max_num_seqs"] == 1
    assert "## What holds it back" in (tmp_path / "run/summary.md").read_text()
