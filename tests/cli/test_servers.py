"""A side of an A/B test: a URL as it is, a command started, waited for and stopped."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prony.errors import UsageError
from prony.servers import Side, parse_side, running
from prony_loadgen.fetch import FetchError, fetch
from prony_loadgen.target import parse_target

SERVER = f"{sys.executable} -m tests.cli.slow_server {{port}} 0 0"


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:8000", "https://x.example/v1", "localhost:8000", "[::1]:8000/v1"]
)
def test_an_address_is_a_url(text: str) -> None:
    assert parse_side("a", text) == Side("a", url=text)


def test_a_command_needs_a_place_for_its_port() -> None:
    assert parse_side("b", "serve --port {port}") == Side("b", command="serve --port {port}")
    with pytest.raises(UsageError, match=r"--b 'serve tiny'.*\{port\}"):
        parse_side("b", "serve tiny")
    with pytest.raises(UsageError, match="No closing quotation"):
        parse_side("b", "serve 'x {port}")


def answers(url: str) -> bool:
    try:
        return fetch(parse_target(url), "/v1/models", 5.0).status == 200
    except FetchError:
        return False


def test_a_command_is_started_answers_and_is_stopped(tmp_path: Path) -> None:
    with running(Side("a", command=SERVER), tmp_path / "log", wait=60) as url:
        assert answers(url)
    assert not answers(url)


def test_children_of_a_shell_are_stopped_too(tmp_path: Path) -> None:
    side = Side("a", command=f"sh -c '{SERVER} & wait'")
    with running(side, tmp_path / "log", wait=60) as url:
        assert answers(url)
    assert not answers(url)


def test_a_url_is_left_alone(tmp_path: Path) -> None:
    with running(Side("a", url="http://127.0.0.1:9"), tmp_path / "log", wait=0) as url:
        assert url == "http://127.0.0.1:9"
    assert not (tmp_path / "log").exists()


def test_a_server_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    side = Side("b", command="sh -c 'echo no such model {port} >&2; exit 3'")
    with (
        pytest.raises(UsageError, match=r"--b: the server ended with 3 .*: no such model"),
        running(side, tmp_path / "log", wait=60),
    ):
        pass


def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    side = Side("a", command="sh -c 'echo $$ {port}; exec sleep 600'")
    with (
        pytest.raises(UsageError, match=r"not ready within 0\.3 s"),
        running(side, tmp_path / "log", wait=0.3),
    ):
        pass
    pid = int((tmp_path / "log").read_text().split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="--a: no-such-program: No such file"),
        running(Side("a", command="no-such-program {port}"), tmp_path / "log", wait=1),
    ):
        pass


def test_ready_503_is_waited_for_until_it_is_200(tmp_path: Path) -> None:
    program = tmp_path / "warming.py"
    program.write_text(
        "import sys, http.server\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    asked = 0\n"
        "    def do_GET(self):\n"
        "        H.asked += self.path == '/ready'\n"
        "        print(self.path, flush=True)\n"  # first: after its answer it may be stopped
        "        self.send_response(200 if H.asked > 2 else 503)\n"
        "        self.send_header('content-length', '0')\n"
        "        self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
    )
    side = Side("a", command=f"{sys.executable} {program} {{port}}")
    with running(side, tmp_path / "log", wait=60):
        pass
    asked = [line for line in (tmp_path / "log").read_text().splitlines() if line[0] == "/"]
    assert asked == ["/ready"] * 3


def test_the_port_of_a_command_is_free() -> None:
    from prony.servers import _free_port

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", _free_port()))


def test_a_server_that_ignores_sigterm_is_killed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import prony.servers

    monkeypatch.setattr(prony.servers, "STOP_WAIT", 0.2)
    process = subprocess.Popen(
        [sys.executable, "-c", "import signal, sys, time\n"
         "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n"
         "time.sleep(600)"],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    prony.servers._stop(process)  # type: ignore[arg-type]
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
