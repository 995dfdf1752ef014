"""A page in a real headless browser: a file goes in, what the browser saw of it comes out."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websocket

START = 30.0  # seconds that the browser may take to open its debugging port
ANSWER = 30.0

QUIET = (
    "--headless",
    "--no-sandbox",  # CI runs as root in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1280,900",
    # Every name but this machine resolves to nothing: a page that needs the network shows it here.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@dataclass(slots=True)
class Page:
    """An open page. `errors` are its console errors, exceptions, and failed or blocked loads."""

    socket: websocket.WebSocket
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # every URL that it asked for
    _number: int = 0

    def open(self, file: Path) -> None:
        """Loads the file and returns when its scripts have run."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0,
                  downloadThroughput=0, uploadThroughput=0)  # fmt: skip
        address = file.resolve().as_uri()
        self.call("Page.navigate", url=address)
        self.wait_for(f"document.readyState === 'complete' && location.href === '{address}'")

    def wait_for(self, condition: str) -> None:
        """Returns once the script's condition holds; fails after a time limit."""
        deadline = time.monotonic() + ANSWER
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never true: {condition}"
            self.settle()

    def settle(self) -> None:
        """Returns after the browser has drawn: two frames from now."""
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))"
        )

    def evaluate(self, script: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Sets the size of the window and the colour scheme that the reader prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        self.settle()

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """The whole page, or what the window shows of it, as a PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, file: Path) -> None:
        answer = self.call("Page.printToPDF", printBackground=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol; events that come meanwhile are noted."""
        self._number += 1
        self.socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message.get('error')}"
                result: dict[str, Any] = message["result"]
                return result
            if "method" in message:
                self._note(message["method"], message["params"])

    def _note(self, event: str, details: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(details["exceptionDetails"])[:500])
        elif event == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
            self.errors.append(json.dumps(details["args"])[:500])
        elif event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.errors.append(details["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])


@contextlib.contextmanager
def page(program: str) -> Iterator[Page]:
    """A fresh browser with one empty page and no network; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="prony-chromium-", ignore_cleanup_errors=True) as home:
        command = [program, *QUIET, "--remote-debugging-port=0", f"--user-data-dir={home}"]
        with Path(os.devnull).open("w") as nowhere:
            # A session of its own: the program may be a script that leaves children behind.
            process = subprocess.Popen(
                [*command, "about:blank"], stdout=nowhere, stderr=nowhere, start_new_session=True
            )
            try:
                port, path = _debugging_address(Path(home) / "DevToolsActivePort", process)
                with contextlib.closing(_connect(port, path)) as browser:
                    target = Page(browser).call("Target.createTarget", url="about:blank")
                    name = target["targetId"]
                    with contextlib.closing(_connect(port, f"/devtools/page/{name}")) as socket:
                        yield Page(socket)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _connect(port: str, path: str) -> websocket.WebSocket:
    return websocket.create_connection(
        f"ws://127.0.0.1:{port}{path}", timeout=ANSWER, suppress_origin=True, http_no_proxy=["*"]
    )


def _debugging_address(file: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """The port and the path that the browser writes once it listens."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        lines = file.read_text().split("\n") if file.exists() else []
        if len(lines) == 2:
            return lines[0], lines[1]
        time.sleep(0.02)
    raise AssertionError(f"{process.args!r} did not open its debugging port")
