"""Our server under vLLM's names, as those see it that were made for a vLLM."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.needs import needs_program
from tests.server.live_server import LiveServer, live_server

from prony_dashboards.boards import boards
from prony_dashboards.check import check_live
from prony_dashboards.engines import ENGINES
from prony_dashboards.findings import ALERT, RULES
from prony_dashboards.pages import page
from prony_dashboards.prometheus import Prometheus, free_port
from prony_dashboards.reading import recognised
from prony_server.vllm_names import VLLM

DOCS = Path(__file__).parents[2] / "docs/metrics.md"
parse: Any = text_string_to_metric_families


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(metric_names="vllm") as live:
        live.chat(max_tokens=64)
        live.complete(max_tokens=64)
        assert live.chat(max_tokens=0).status == 400
        yield live


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def families(text: str) -> dict[str, str]:
    return {family.name: family.type for family in parse(text) if "vllm:" in family.name}


def test_the_page_holds_vllms_names_and_those_of_the_process_and_no_other(
    server: LiveServer,
) -> None:
    found = samples(server.get("/metrics").body.decode())
    stored = {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}
    assert {name for name in stored if not name.startswith("process_")} == set(VLLM)
    assert "process_resident_memory_bytes" in found
    assert recognised(found.keys()) is ENGINES["vllm"]


def test_kinds_and_labels_are_those_of_a_vllm(server: LiveServer) -> None:
    ours, theirs = server.get("/metrics").body.decode(), page("vllm")
    kinds = families(theirs)
    for name, kind in families(ours).items():
        assert kinds[name] == kind, name
    wanted = samples(theirs)
    for name, series in samples(ours).items():
        for labels, _ in series:
            if name.startswith("vllm:"):
                assert labels.keys() == wanted[name][0][0].keys(), name
                assert (labels["model_name"], labels["engine"]) == ("tiny", "0")


def test_what_the_boards_of_vllm_ask_for_is_all_there(server: LiveServer) -> None:
    assert {name for name in ENGINES["vllm"].names() if "vllm:" in name} <= set(VLLM)


def test_values_are_ours_summed_over_the_labels_that_vllm_does_not_have(
    server: LiveServer,
) -> None:
    def value(name: str, **more: str) -> float:
        found = samples(server.get("/metrics").body.decode())[name]
        (one,) = (v for labels, v in found if more.items() <= labels.items())
        return one

    assert value("vllm:generation_tokens_total") == 128
    # A chat and a completion; the refused request is no latency.
    assert value("vllm:e2e_request_latency_seconds_count") == 2
    assert value("vllm:e2e_request_latency_seconds_bucket", le="+Inf") == 2
    assert value("vllm:time_to_first_token_seconds_count") == 2
    assert value("vllm:request_success_total", finished_reason="length") == 2


def test_exemplars_are_kept(server: LiveServer) -> None:
    text = server.get("/metrics", Accept="application/openmetrics-text; version=1.0.0").body
    bucket = rb"vllm:time_to_first_token_seconds_bucket{[^}]+}"
    assert re.search(bucket + rb' \S+ # {[^}]*trace_id="', text)


def test_the_documented_table_is_the_map() -> None:
    section = DOCS.read_text().split("\n## vLLM's names\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(vllm:\w+)` \| `(\w+)`", section, re.MULTILINE)
    assert rows == [(name, renaming.name) for name, renaming in VLLM.items()]


def test_a_run_and_vllms_boards_take_it_for_a_vllm(server: LiveServer, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "prony", "run", "chat", "--target", server.url, "--rate", "6",
               "--duration", "600s", "--out", str(tmp_path / "run"), "--metrics-port", str(port),
               "--quiet"]  # fmt: skip
    made = {name: board for name, board in boards().items() if name.startswith("vllm/")}
    program = needs_program("prometheus")
    targets = {"vllm": server.url.removeprefix("http://"), "prony-loadgen": f"127.0.0.1:{port}"}
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run,
        Prometheus.running(program, targets) as prometheus,
    ):
        try:
            prometheus.wait_for_scrapes(90.0)
            checked = check_live(made, prometheus, missing={RULES, ALERT}, patience=30.0)
        finally:
            run.terminate()
            run.wait()
    assert [str(finding) for finding in checked.wrong] == []
    told = json.loads((tmp_path / "run" / "run.json").read_text())["server_metrics"]
    assert (told["engine"], told["collected"]) == ("vllm", True)
