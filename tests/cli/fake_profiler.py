"""What vLLM and SGLang answer on their profiler's paths, over a real socket.

As read in their sources: vLLM has the routes only where a profiler was configured, says nothing in
its answers and refuses a second start; SGLang also starts by GET, ends by itself after `num_steps`,
and answers in a line of text.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

from prony_dashboards.pages import page

TRACE = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1,
                          "ts": 10.0, "dur": 5.0}]}  # fmt: skip


class FakeProfiler:
    """Serves until it leaves its `with` block. `asked` holds the bodies of all starts."""

    def __init__(
        self,
        engine: Literal["vllm", "sglang", "other"],
        folder: Path | None,
        *,
        refuses_to_stop: bool = False,
    ) -> None:
        """`folder` is where traces go; None: no profiler was configured."""
        self.engine, self.folder, self.refuses_to_stop = engine, folder, refuses_to_stop
        self.asked: list[dict[str, Any]] = []
        self.running = False
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _answer(self, *fake.got(self.path))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                _answer(self, *fake.posted(self.path, json.loads(body)))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def got(self, path: str) -> tuple[int, str]:
        if path == "/metrics" and self.engine != "other":
            return 200, page(self.engine)
        if path == "/start_profile" and self.folder is not None:
            assert self.engine == "vllm", "a GET starts a profile of SGLang"
            return 405, ""
        return 404, ""

    def posted(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        if self.folder is None:
            return 404, '{"detail":"Not Found"}'
        if path == "/start_profile":
            if self.running:
                return 409, "a profile is running"
            self.running = True
            self.asked.append(body)
            return 200, "Start profiling.\n" if self.engine == "sglang" else ""
        if self.refuses_to_stop:
            return 500, "the engine is dead"
        if self.engine == "sglang" and "num_steps" in self.asked[-1]:
            self.running = False
            self._write()
            return 400, "Profiling is not in progress"
        self.running = False
        self._write()
        return 200, ""

    def _write(self) -> None:
        assert self.folder is not None
        (self.folder / f"rank0.{len(self.asked)}.pt.trace.json").write_text(json.dumps(TRACE))


def _answer(handler: BaseHTTPRequestHandler, status: int, text: str) -> None:
    body = text.encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
