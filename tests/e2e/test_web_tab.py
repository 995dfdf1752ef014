"""Locust's web UI with our tab, in a browser, while a run is on."""

import os
import signal
import sys
from pathlib import Path

from tests.e2e.chromium import page
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.locust_process import Process, free_port, nothing_is_left_running
from tests.needs import needs_program

SLO = ["--slo", "errors < 1%", "--slo", "ttft p99 < 500ms", "--slo", "tpot p90 < 20ms"]
CHARTS = ("Time to first token", "Time per output token", "End to end", "Output tokens a second",
          "In flight", "Requests a second")  # fmt: skip
DRAWN = "document.querySelectorAll('#prony-tab svg path').length >= 12"


def test_the_tab_draws_a_run_that_goes_on_and_asks_nobody_else(tmp_path: Path) -> None:
    """PRONY_SCREENSHOTS=DIR keeps the picture there, as locust-tab.png."""
    chromium = needs_program("chromium")
    seconds = os.environ.get("PRONY_SCREENSHOT_AFTER", "4")
    port = free_port()
    with (
        nothing_is_left_running(),
        FakeServer(first_token=0.04, gap=0.006) as server,
        page(chromium) as browser,
    ):
        web = ["--web", "--web-port", str(port)]
        load = ["--rate", "12", "--duration", "100s", "--warmup", "0s", "--processes", "2"]
        command = [sys.executable, "-m", "prony", "run", "chat", "--target", server.url, *web]
        process = Process([*command, *load, *SLO, "--out", "out"], tmp_path)
        home = f"http://127.0.0.1:{port}/?tab=prony"
        process.until(lambda: f"web UI: {home}" in process.said)
        process.until(lambda: len(server.bodies) > 12 * int(seconds))
        for domain in ("Page", "Runtime", "Log", "Network"):
            browser.call(f"{domain}.enable")
        browser.look(width=1280, height=1000)
        browser.call("Page.navigate", url=home)
        browser.wait_for(DRAWN)
        said = str(browser.evaluate("document.getElementById('prony-tab').innerText"))
        for title in CHARTS:
            assert title in said
        assert "running" in said and "0 failed" in said
        assert "ttft p99 < 500ms" in said and "bad so far" in said
        # The other tabs are Locust's own, and ours leaves with its tab.
        click = (
            "[...document.querySelectorAll('[role=tab]')].find(t => t.textContent == '{}').click()"
        )
        browser.evaluate(click.format("Statistics"))
        browser.wait_for("!document.getElementById('prony-tab')")
        browser.evaluate(click.format("LLM latency"))
        browser.wait_for(DRAWN)
        browser.screenshot(tmp_path / "tab.png", whole=False)
        if folder := os.environ.get("PRONY_SCREENSHOTS"):
            browser.screenshot(Path(folder) / "locust-tab.png", whole=False)
        assert browser.errors == []
        ours = f"http://127.0.0.1:{port}/"
        assert [url for url in browser.requests if not url.startswith((ours, "data:"))] == []
        process.process.send_signal(signal.SIGINT)
        assert process.end() == 4, process.said
