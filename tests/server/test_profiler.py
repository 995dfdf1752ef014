"""Captures of a running server: begun and ended over HTTP, and what is in their files."""

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.live_server import JSON, Answer, LiveServer, live_server, until
from tests.server.test_app_endings import ScriptedEngine, ask
from tests.server.test_shutdown import streaming

from prony_server import profiler
from prony_server.app import ServeError
from prony_server.faults import parse_all
from prony_server.profiler import Asked, ProfilerError, PySpyRecording

FAULT = parse_all(["log-in-decode=50ms"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with live_server(profile_dir=folder, api_key="secret") as started:
        yield started


def post(server: LiveServer, path: str, **body: Any) -> Answer:
    key = {"Authorization": "Bearer secret"}
    raw = json.dumps(body).encode() if body else None
    return server.ask("POST", path, raw, {**key, **(JSON if body else {})})


def get(server: LiveServer, path: str) -> Answer:
    return server.get(path, Authorization="Bearer secret")


def generate(server: LiveServer, tokens: int) -> Answer:
    body = {"model": "tiny", "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    return post(server, "/v1/completions", **body)


def captured(server: LiveServer) -> list[str]:
    """The names of all files, once no capture is under way."""
    until(lambda: not get(server, "/profile/files").json["running"], "the capture is written")
    return [file["name"] for file in get(server, "/profile/files").json["files"]]


def test_a_capture_of_some_steps_ends_by_itself_and_holds_the_operators(
    server: LiveServer,
) -> None:
    begun = post(server, "/start_profile", num_steps=4, profile_prefix="run-7")
    assert begun.status == 200
    assert begun.json == {
        "profiler": "torch",
        "num_steps": 4,
        "seconds": profiler.SECONDS,
        "prefix": "run-7",
        "with_stack": False,
    }
    assert generate(server, 10).status == 200
    trace, table = (name for name in captured(server) if "-run-7-" in name)
    assert trace.endswith(".pt.trace.json.gz") and table.endswith(".txt")
    events = json.loads(gzip.decompress(get(server, f"/profile/files/{trace}").body))["traceEvents"]
    embeddings = [event for event in events if event.get("name") == "aten::embedding"]
    assert len(embeddings) == 4  # one a forward
    body = get(server, f"/profile/files/{table}").body.decode()
    assert "aten::embedding" in body and "Self CPU" in body
    # It cost nothing before and costs nothing now: the engine tells its steps to the server alone.
    assert post(server, "/stop_profile").status == 409


def test_one_capture_at_a_time_and_an_idle_engine_can_be_stopped(server: LiveServer) -> None:
    begun = post(server, "/start_profile")
    assert (begun.status, begun.json["num_steps"]) == (200, profiler.STEPS)  # those of the default
    again = post(server, "/start_profile")
    assert again.status == 409 and "/stop_profile" in again.error["message"]
    stopped = post(server, "/stop_profile")
    assert stopped.status == 200 and len(stopped.json["files"]) == 2
    assert set(stopped.json["files"]) <= set(captured(server))
    assert post(server, "/stop_profile").error["code"] == "no_profile"
    assert generate(server, 3).status == 200


def test_a_capture_ends_after_its_seconds_too(server: LiveServer) -> None:
    before = len(captured(server))
    assert post(server, "/start_profile", seconds=0.01).status == 200
    assert len(captured(server)) == before + 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"num_steps": 0}, "'num_steps' must be a whole number from 1 to 2000, got 0"),
        ({"num_steps": True}, "got True"),
        ({"max_iterations": 2001}, "'max_iterations' must be a whole number from 1 to 2000"),
        ({"seconds": 61}, "'seconds' must be a number above 0, at most 60, got 61"),
        ({"profile_prefix": "../x"}, "'profile_prefix' must be 1 to 64 letters, digits and . _ -"),
        ({"num_step": 3}, "unknown parameter 'num_step'; did you mean 'num_steps'?"),
    ],
)
def test_what_cannot_be_captured_is_refused(
    server: LiveServer, body: dict[str, Any], said: str
) -> None:
    refused = post(server, "/start_profile", **body)
    assert refused.status == 400 and said in refused.error["message"]


def test_only_captures_can_be_fetched_and_only_with_the_key(
    server: LiveServer, folder: Path
) -> None:
    (folder / "notes.txt").write_text("not a capture")
    (folder / "20260101T000000Z-link-1.txt").symlink_to("/etc/passwd")
    for name in ("notes.txt", "20260101T000000Z-link-1.txt", "..%2F..%2Fetc%2Fpasswd", "%2e%2e"):
        assert get(server, f"/profile/files/{name}").status == 404
    assert all("link" not in name and name != "notes.txt" for name in captured(server))
    for path in ("/profile/files", "/profile/files/notes.txt"):
        assert server.get(path).status == 401
    assert server.ask("POST", "/start_profile").status == 401


def test_without_a_folder_there_are_no_such_routes() -> None:
    assert ask(ScriptedEngine([]), "POST", "/start_profile").status == 404


def test_a_server_that_is_told_to_stop_keeps_what_it_has(tmp_path: Path) -> None:
    with live_server(profile_dir=tmp_path) as server:
        assert server.ask("POST", "/start_profile").status == 200
        assert server.complete(max_tokens=5).status == 200
        server.signal()
        assert server.code.result(timeout=60) == 0
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gz", ".txt"]


def test_a_folder_that_was_removed_is_made_again_and_one_in_the_way_of_it_is_named(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "profiles"
    with live_server(profile_dir=folder) as server:
        folder.rmdir()
        assert server.get("/profile/files").error["code"] == "profiler_failed"
        assert server.get("/profile/files/x").error["code"] == "profiler_failed"
        assert server.ask("POST", "/start_profile").status == 200
        assert len(server.ask("POST", "/stop_profile").json["files"]) == 2
        shutil.rmtree(folder)
        folder.touch()
        refused = server.ask("POST", "/start_profile").error
        assert str(folder) in refused["message"] and "File exists" in refused["message"]
        folder.unlink()
        assert server.ask("POST", "/start_profile").status == 200
        shutil.rmtree(folder)
        folder.touch()  # while the capture runs
        lost = server.ask("POST", "/stop_profile").error
        assert lost["code"] == "profiler_failed" and "Not a directory" in lost["message"]


def test_py_spy_names_the_function_that_holds_the_steps_up(tmp_path: Path) -> None:
    """With what it calls; its share is not judged, since the model's own depends on the machine."""
    with (
        live_server(profile_dir=tmp_path, profiler="py-spy", inject=FAULT) as server,
        streaming(server.address, 4000),
    ):
        begun = server.ask("POST", "/start_profile", b'{"seconds": 1}', JSON)
        assert begun.json["profiler"] == "py-spy"
        [name] = captured(server)
        profile = server.get(f"/profile/files/{name}").json
    frames = [frame["name"] for frame in profile["shared"]["frames"]]
    threads = [each for each in profile["profiles"] if '"prony-engine"' in each["name"]]
    samples = [sample for thread in threads for sample in thread["samples"]]
    stacks = [{frames[at] for at in sample} for sample in samples]
    logging = [stack for stack in stacks if "log_request" in stack]
    assert any("JSONEncoder.encode" in stack or "dumps" in stack for stack in logging)


def test_a_py_spy_that_may_not_look_says_so_with_the_remedy(tmp_path: Path) -> None:
    refused = "Error: Permission Denied: Try running again with elevated permissions"
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho '{refused}' >&2\nexit 1\n")
    program.chmod(0o755)
    recording = PySpyRecording(tmp_path / "x", Asked(), program)
    with pytest.raises(ProfilerError, match=r"Permission Denied.*--cap-add SYS_PTRACE"):
        recording.prepare()


def test_a_folder_that_cannot_be_written_is_known_at_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with (
        pytest.raises(ServeError, match=f"--profile-dir {file}: File exists"),
        live_server(profile_dir=file),
    ):
        pass
    assert list(tmp_path.iterdir()) == [file]
