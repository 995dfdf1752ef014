"""The command line: what people type goes in; scenario keys, or a clear error, come out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.loadgen.fake_server import FakeServer
from tests.starting import run_program

import prony.run
from prony_loadgen.scenario import load_scenario


def options(*argv: str) -> dict[str, object]:
    import argparse

    parser = argparse.ArgumentParser()
    prony.run.configure(parser)
    return prony.run.overrides(parser.parse_args(argv))


def said(*argv: str, cwd: Path | None = None) -> tuple[int, str]:
    """In a process of its own, because `prony run` imports Locust, which patches the process."""
    known = {name: value for name, value in os.environ.items() if name != "OPENAI_BASE_URL"}
    done = run_program("prony", *argv, cwd=cwd, environ=known)
    return done.returncode, done.stdout + done.stderr


def test_every_short_option_reaches_its_key_of_the_scenario() -> None:
    changes = options(
        "chat", "--rate", "5", "--duration", "10s", "--input-tokens", "16-64",
        "--output-tokens", "32", "--model", "m", "--dialect", "openai-completions",
        "--header", "X-Team: a:b", "--extra-body", '{"top_k": 20}', "--keep-text",
        "--seed", "7", "--timeout", "20s", "--warmup", "1s", "--set", "name=mine",
    )  # fmt: skip
    scenario = load_scenario("chat", changes)
    assert (scenario.arrivals.rate, scenario.duration, scenario.requests) == (5, 10, None)
    assert (scenario.model, scenario.dialect, scenario.seed) == ("m", "openai-completions", 7)
    assert (scenario.headers, scenario.extra_body) == ({"X-Team": "a:b"}, {"top_k": 20})
    assert (scenario.keep_text, scenario.timeouts.total, scenario.warmup) == (True, 20, 1)
    assert scenario.name == "mine"


def test_concurrency_means_closed_loop_whatever_the_scenario_says() -> None:
    scenario = load_scenario("chat", options("chat", "--concurrency", "8"))
    assert (scenario.arrivals.process, scenario.arrivals.users) == ("closed", 8)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("run", "chatt", "--target", "x"), "did you mean 'chat'"),
        (("run", "--target", "http://127.0.0.1:9", "--rate", "fast"), "--rate"),
        (("run", "--target", "http://127.0.0.1:9", "--slo", "tfft p99 < 1s"), "ttft"),
        (("run", "--target", "http://127.0.0.1:9"), "127.0.0.1:9"),
        (("run", "--target", "https://example.invalid"), "example.invalid"),
        (("run", "--set", "arrivals.rate"), "KEY=VALUE"),
        (("run", "--header", "secret"), "Name: value"),
        (("run", "--extra-body", "[1]"), "object"),
        (("gate", "no-such-folder"), "no-such-folder"),
        (("report", "no-such-folder"), "no-such-folder"),
        (("serve", "no/such/folder"), "no/such/folder"),
        (("serve", "tiny", "--port", "99999"), "65535"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_clear_text_and_exit_2(argv: tuple[str, ...], told: str) -> None:
    code, text = said(*argv)
    assert code == 2
    assert told in text
    assert "Traceback" not in text


def test_a_misspelt_slo_key_names_the_right_one(tmp_path: Path) -> None:
    slo = tmp_path / "mine.yaml"
    slo.write_text("objectives:\n  - id: a\n    good: {tfft: '<= 1s'}\n    at_least: 95%\n")
    code, text = said("run", "--target", "http://127.0.0.1:9", "--slo", str(slo))
    assert code == 2
    assert "mine.yaml:3" in text and "'ttft'" in text


def test_a_dry_run_says_the_plan_and_sends_no_load(tmp_path: Path) -> None:
    with FakeServer() as server:
        code, text = said("run", "--target", server.url, "--dry-run", cwd=tmp_path)
        assert code == 0
        assert "320 measured" in text and "can be decided" in text
        assert len(server.bodies) <= 1  # the probe
    assert not (tmp_path / "runs").exists()


def test_help_names_every_command_and_the_exit_codes() -> None:
    code, text = said("--help")
    assert code == 0
    for word in ("demo", "serve", "run", "gate", "report", "dashboards", "inconclusive"):
        assert word in text


def test_a_reader_that_leaves_does_not_change_the_exit_code(tmp_path: Path) -> None:
    with FakeServer() as server:
        run = f"{sys.executable} -m prony run --target {server.url} --requests 5 --rate 50"
        judged = f"{run} --warmup 0s --slo 'errors < 90%' --out out"
        command = f"{judged} | head -1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert done.returncode == facts["exit_code"]
    assert len(done.stdout.splitlines()) == 1


def test_a_full_disk_behind_stdout_does_not_change_the_exit_code() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "prony", "--help"]
        assert subprocess.run(command, stdout=full, check=False).returncode == 0
