"""One process, one run after another: scenarios come in by lines of JSON, run folders come out.

Loading Locust takes seconds, so the process stays and the runs change. `LoadInTurn` is the side
that asks; `python benchmarks/load_in_turn.py` is the side that sends the load.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self


class LoadInTurn:
    """A process that runs as asked: `run(url, scenario, folder)`."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def run(
        self,
        url: str,
        scenario: dict[str, Any],
        folder: Path,
        starved: tuple[float, float] | None = None,
    ) -> str:
        """Runs the scenario at the URL into the folder; returns what it said, "" if all went well.

        `starved`: of each of the second's seconds the process stands still for the first, as one
        does whose share of the processor is used up.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"url": url, "scenario": scenario, "folder": str(folder)}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        ended = threading.Event()
        thread = None
        if starved is not None:
            thread = threading.Thread(target=self._starve, args=(*starved, ended))
            thread.start()
        answer = self._process.stdout.readline()
        ended.set()
        if thread is not None:
            thread.join()
        return str(json.loads(answer)) if answer else "the process of the load has ended"

    def _starve(self, still: float, every: float, ended: threading.Event) -> None:
        with suppress(ProcessLookupError):
            while not ended.wait(every - still):
                self._process.send_signal(signal.SIGSTOP)
                ended.wait(still)
                self._process.send_signal(signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def main() -> None:
    # Locust first: importing it patches sockets.
    from prony_loadgen.locust_user import run

    # isort: split
    from prony.server_metrics import WithServer
    from prony_loadgen.probe import find_model
    from prony_loadgen.scenario import Scenario
    from prony_loadgen.settings import NoJudge, for_scenario
    from prony_loadgen.target import parse_target
    from prony_loadgen.token_probe import tokens_at

    # Whatever else is printed must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        said = ""
        try:
            scenario = Scenario.model_validate(job["scenario"])
            target, model = find_model(parse_target(job["url"]), None)
            settings = for_scenario(
                scenario,
                target,
                model,
                WithServer(NoJudge(), target),
                out=Path(job["folder"]),
                tokens=tokens_at(scenario, target, model),
            )
            settings.lines()  # the judge is told of the plan, and begins to ask for /metrics
            code = run(settings, quiet=True)
            said = f"exit code {code}" if code else ""
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
