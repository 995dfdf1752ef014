"""A Prometheus of our own for a while: targets go in, answers of its HTTP API come out."""

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

READY: Final = 30.0  # seconds that a start may take
SCRAPES: Final = 5  # of each target before its rates can be asked for

# A proxy of the environment has no business between us and our own loopback port.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PrometheusError(RuntimeError):
    """Prometheus did not start, or cannot scrape what it was told to."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    url: str
    targets: Mapping[str, str]
    end: float | None = None  # Unix seconds that queries take for now; None: now

    @classmethod
    @contextmanager
    def running(
        cls, program: str, targets: Mapping[str, str], rules: str | None = None
    ) -> Iterator[Self]:
        """Starts one on a free loopback port with its data in a temporary folder; stops it after.

        `targets` maps a job's name to its "host:port", scraped each second; `rules` is the text of
        a file of rules, evaluated each second.
        """
        with tempfile.TemporaryDirectory(prefix="prony-prometheus-") as folder:
            settings = _config(targets)
            if rules is not None:
                (Path(folder) / "rules.yml").write_text(rules, encoding="utf-8")
                settings["rule_files"] = ["rules.yml"]
            with _program(program, settings, Path(folder), Path(folder) / "data") as url:
                yield cls(url, dict(targets))

    @classmethod
    @contextmanager
    def over(cls, program: str, data: Path, end: float, port: int | None = None) -> Iterator[Self]:
        """One that scrapes nothing and shows what lies in `data`, where "now" is `end`.

        It listens at `port` of the loopback, or a free one. Nothing in `data` is ever too old.
        """
        with tempfile.TemporaryDirectory(prefix="prony-prometheus-") as folder:
            options = ["--storage.tsdb.retention.time=100y"]
            with _program(program, {}, Path(folder), data, port, options) as url:
                yield cls(url, {}, end)

    def wait_for_scrapes(self, patience: float) -> None:
        """Returns once every target was scraped often enough for a rate over four scrapes.

        Raises PrometheusError naming the first target that was not, within `patience` seconds.
        The first scrape comes some five seconds after the start: so long it waits for targets.
        """
        deadline = time.monotonic() + patience
        while True:
            scraped = {
                series["metric"]["job"]: float(series["value"][1])
                for series in self.query("sum by (job) (sum_over_time(up[60s]))")
            }
            missing = [job for job in self.targets if scraped.get(job, 0.0) < SCRAPES]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise PrometheusError(self._why_not(missing[0]))
            time.sleep(0.2)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The expression now; raises PrometheusError where it is refused."""
        found = self.query_instant(expr)
        if isinstance(found, str):
            raise PrometheusError(f"{expr}: {found}")
        return found

    def query_instant(self, expr: str) -> list[dict[str, Any]] | str:
        """The expression's series now, or why it was refused."""
        at = {} if self.end is None else {"time": f"{self.end:.3f}"}
        answer = self._ask("query", {"query": expr, **at})
        if isinstance(answer, str):
            return answer
        found: list[dict[str, Any]] = answer["result"]
        return found

    def query_range(self, expr: str, span: float, step: float) -> list[dict[str, Any]] | str:
        """The expression's series over the last `span` seconds, or why it was refused."""
        now = time.time() if self.end is None else self.end
        times = {"start": f"{now - span:.3f}", "end": f"{now:.3f}", "step": f"{step}"}
        answer = self._ask("query_range", {"query": expr, **times})
        if isinstance(answer, str):
            return answer
        found: list[dict[str, Any]] = answer["result"]
        return found

    def label_values(self, selector: str, label: str) -> list[str]:
        """The values that a label has on the selected series."""
        answer = self._ask(f"label/{urllib.parse.quote(label)}/values", {"match[]": selector})
        if isinstance(answer, str):
            raise PrometheusError(f"label_values({selector}, {label}): {answer}")
        return [str(value) for value in answer]

    def _ask(self, path: str, parameters: Mapping[str, str]) -> Any:
        """The answer's data, or the error's text where Prometheus says that we asked wrongly."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with _OPENER.open(url, timeout=10) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                return str(json.load(error).get("error", error))
        except OSError as error:
            raise PrometheusError(f"Prometheus at {self.url} does not answer: {error}") from None

    def _why_not(self, job: str) -> str:
        for target in self._ask("targets", {"state": "active"})["activeTargets"]:
            if target["labels"]["job"] == job and target["lastError"]:
                return f"{job} at {self.targets[job]} cannot be scraped: {target['lastError']}"
        return f"{job} at {self.targets[job]} was not scraped {SCRAPES} times in time"


@contextmanager
def _program(
    program: str,
    settings: Mapping[str, Any],
    folder: Path,
    data: Path,
    port: int | None = None,
    options: Sequence[str] = (),
) -> Iterator[str]:
    """The URL of a Prometheus that runs with these settings until the block ends."""
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    url = f"http://127.0.0.1:{port or free_port()}"
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
        *options,
    ]
    with (folder / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _wait_until_ready(url, process, log)
            yield url
        finally:
            _stop(process)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: IO[str]) -> None:
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with _OPENER.open(f"{url}/-/ready", timeout=2):
                return
        except OSError:  # refused, or 503 while it loads
            time.sleep(0.05)
    log.seek(0)
    raise PrometheusError(f"Prometheus did not start: {log.read()[-800:].strip()}")


def _config(targets: Mapping[str, str]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]}
            for job, address in targets.items()
        ],
    }


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
