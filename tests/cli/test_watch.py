"""`prony watch`: a page of what a server says of itself, without load, until Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.loadgen.fake_server import FakeServer
from tests.loadgen.locust_process import nothing_is_left_running
from tests.starting import Program, run_program

from prony.watching import BARS, Blind, Watch, page, spark
from prony_dashboards.engines import ENGINES
from prony_dashboards.pages import at
from prony_dashboards.pages import page as written
from prony_loadgen.target import parse_target


@contextmanager
def serving(pages: Callable[[], str]) -> Iterator[str]:
    """The URL of something whose /metrics is what `pages` gives."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages().encode() if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def printed(renderable: object, width: int = 100) -> str:
    out = StringIO()
    Console(width=width, file=out).print(renderable)
    return out.getvalue()


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "prony"])
def test_every_engine_of_the_map_has_a_page_with_its_rates_and_a_verdict(name: str) -> None:
    now = [0.0]
    with serving(lambda: at(written(name), now[0])) as url:
        watch = Watch(parse_target(url), now=lambda: now[0])
        assert "waiting for a second look" in printed(page(watch.look()))
        for second in (1.0, 2.0, 3.0):
            now[0] = second
            frame = watch.look()
    text = printed(page(frame))
    assert ENGINES[name].title in text and "over the last 3 s" in text
    assert "requests/s" in text and frame.server is not None
    assert frame.diagnosis is not None and frame.diagnosis.verdicts[0].title in text


def test_tokens_are_counted_whether_or_not_a_request_ended() -> None:
    now = [0.0]
    with serving(lambda: at(written("vllm"), now[0])) as url:
        watch = Watch(parse_target(url), now=lambda: now[0])
        watch.look()
        now[0] = 2.0
        assert watch.look().tokens == pytest.approx(2400.0)


def test_a_server_that_falls_silent_is_told_and_what_was_seen_stays() -> None:
    now, told = [0.0], [written("vllm")]
    with serving(lambda: told[0]) as url:
        watch = Watch(parse_target(url), now=lambda: now[0])
        watch.look()
        now[0], told[0] = 1.0, ""
        frame = watch.look()
        assert frame.trouble is not None and "HTTP 404" in printed(page(frame))


def test_a_target_without_metrics_that_are_known_is_refused() -> None:
    with FakeServer() as server, pytest.raises(Blind, match="HTTP 404"):
        Watch(parse_target(server.url)).look()
    with serving(lambda: "up 1\n") as url, pytest.raises(Blind, match="no engine that is known"):
        Watch(parse_target(url)).look()


def test_a_small_chart_is_as_high_as_its_largest_value() -> None:
    assert spark([0.0, 4.0, 8.0]) == BARS[1] + BARS[4] + BARS[8]
    assert spark([0.0, 0.0]) == BARS[1] * 2


def test_once_prints_one_page_and_ends_and_ctrl_c_is_no_failure(tmp_path: Path) -> None:
    looks = threading.Semaphore(0)

    def pages() -> str:
        looks.release()
        return written("vllm")

    with serving(pages) as url, nothing_is_left_running():
        once = run_program("prony", "watch", "--target", url, "--once", "--every", "0.2")
        assert once.returncode == 0 and "vLLM" in once.stdout and "\x1b" not in once.stdout
        with (tmp_path / "out").open("wb") as out:
            while looks.acquire(blocking=False):
                pass
            program = Program(
                "prony", "watch", "--target", url, "--every", "0.2", cwd=tmp_path,
                stdout=out, stderr=out,
            )  # fmt: skip
            for _ in range(4):
                assert looks.acquire(timeout=60)
            program.send_signal(signal.SIGINT)
            assert program.wait(60) == 0, (tmp_path / "out").read_text()
        # A file gets every page: that of each look but the first, which knows no rate yet.
        assert (tmp_path / "out").read_text().count("vLLM") >= 2
