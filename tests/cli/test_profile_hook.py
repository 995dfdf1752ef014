"""The profiler hooks of vLLM and SGLang, by what they answer over a socket, and who has none."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.fake_profiler import FakeProfiler

from prony.__main__ import main
from prony.profiling.hook import (
    Bounds,
    Hook,
    HookError,
    capture,
    collect,
    file_names,
    find_hook,
)
from prony_loadgen.target import parse_target


def at_once(waited: list[float]) -> Callable[[float], bool]:
    """A wait that is over when it begins; `waited` holds how long it would have been."""

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return False

    return wait


def hook_of(server: FakeProfiler, folder: Path | None = None) -> Hook:
    return find_hook(parse_target(server.url), None if folder is None else str(folder))


def test_vllm_is_started_and_stopped_and_its_files_are_taken_where_they_can_be_seen(
    tmp_path: Path,
) -> None:
    there, here, waited = tmp_path / "there", tmp_path / "here", list[float]()
    there.mkdir()
    (there / "old.pt.trace.json").write_text("{}")
    os.utime(there / "old.pt.trace.json", (1.0, 1.0))
    with FakeProfiler("vllm", there) as server:
        hook = hook_of(server, there)
        made = capture(hook, Bounds(seconds=3.0, steps=20), "asked", at_once(waited))
        assert not server.running
    assert hook.kind.name == "vllm"
    assert server.asked == [{"max_iterations": 20, "num_steps": 20}]
    assert waited == pytest.approx([3.0], abs=0.1)
    assert made.ended is not None and made.failure is None
    made = collect(hook, made, here, 1)
    assert made.files == ("1-rank0.1.pt.trace.json",)
    assert [path.name for path in here.iterdir()] == ["1-rank0.1.pt.trace.json"]


def test_where_the_files_cannot_be_seen_it_is_said_where_they_lie(tmp_path: Path) -> None:
    with FakeProfiler("vllm", tmp_path) as server:
        hook = hook_of(server)
        made = collect(hook, capture(hook, Bounds(), "asked", at_once([])), tmp_path / "here", 1)
    assert made.files == ()
    assert made.on_server is not None and "torch_profiler_dir" in made.on_server


def test_sglang_ends_by_itself_after_its_steps_and_that_is_no_failure(tmp_path: Path) -> None:
    with FakeProfiler("sglang", tmp_path) as server:
        hook = hook_of(server, tmp_path)
        made = capture(hook, Bounds(steps=5), "asked", at_once([]))
    assert server.asked == [
        {"num_steps": 5, "output_dir": str(tmp_path), "activities": ["CPU", "GPU"]}
    ]
    assert made.failure is None and made.ended is not None


def test_no_capture_is_longer_than_ten_seconds_whatever_is_asked_for(tmp_path: Path) -> None:
    waited: list[float] = []
    with FakeProfiler("sglang", tmp_path) as server:
        capture(hook_of(server), Bounds(seconds=3600.0), "asked", at_once(waited))
    assert sum(waited) <= 10.0


def test_a_profile_that_is_taken_already_is_not_taken_over(tmp_path: Path) -> None:
    with FakeProfiler("vllm", tmp_path) as server:
        server.running = True
        made = capture(hook_of(server), Bounds(), "asked", at_once([]))
        assert server.running
    assert made.refused and "already (HTTP 409)" in str(made.failure)


def test_a_server_that_does_not_stop_is_told_as_one_whose_profile_has_no_end(
    tmp_path: Path,
) -> None:
    with FakeProfiler("vllm", tmp_path, refuses_to_stop=True) as server:
        made = capture(hook_of(server), Bounds(), "asked", at_once([]))
    assert made.ended is None and not made.refused
    assert "HTTP 500: the engine is dead" in str(made.failure)


def test_a_vllm_without_a_profiler_is_told_which_option_it_needs() -> None:
    with FakeProfiler("vllm", None) as server, pytest.raises(HookError) as error:
        hook_of(server)
    assert "HTTP 404" in str(error.value) and "--profiler-config" in str(error.value)


def test_the_command_says_what_is_missing_and_ends_with_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeProfiler("other", None) as server:
        assert main(["profile", "--target", server.url, "--seconds", "1"]) == 2
    said = capsys.readouterr().err
    assert "404" in said and "--profile-dir" in said
    assert main(["profile", "--target", "http://127.0.0.1:9", "--seconds", "11"]) == 2
    assert "at most 10" in capsys.readouterr().err
    assert main(["profile"]) == 2
    assert "either --target" in capsys.readouterr().err


def test_the_command_profiles_fetches_and_prints_the_top(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with FakeProfiler("vllm", there) as server:
        options = ["--seconds", "0.2", "--server-dir", str(there), "--out", str(tmp_path / "out")]
        assert main(["profile", "--target", server.url, *options]) == 0
    said = capsys.readouterr().out
    assert "fetched" in said and "aten::mm" in said
    assert main(["profile", str(tmp_path / "out")]) == 0
    assert "aten::mm" in capsys.readouterr().out


def test_a_capture_never_lies_over_an_older_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, options = tmp_path / "there", ["--seconds", "0.2", "--out", str(tmp_path / "out")]
    there.mkdir()
    with FakeProfiler("vllm", there) as server:
        assert main(["profile", "--target", server.url, *options]) == 0
        assert main(["profile", "--target", server.url, *options]) == 2
    assert "holds a capture already" in capsys.readouterr().err
    assert len(server.asked) == 1


def test_a_file_that_is_no_profile_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text("2026 ready")
    assert main(["profile", str(tmp_path / "a.log")]) == 2
    assert "a.log: not a Chrome trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    "told",
    ["5", '{"files": 5}', "[" * 100_000, '["../a.json", "a/b", "..", ".a", "a\\u001b[31m.json"]',
     json.dumps(["a" * 400])],
)  # fmt: skip
def test_of_the_names_that_a_server_tells_none_is_taken_that_could_do_harm(told: str) -> None:
    assert file_names(told.encode()) == ()
    assert file_names(b'{"files": [{"name": "a.json"}, "b.json"]}') == ("a.json", "b.json")


def test_whoever_is_interrupted_leaves_no_profiler_at_work(tmp_path: Path) -> None:
    def interrupted(seconds: float) -> bool:
        raise KeyboardInterrupt

    with FakeProfiler("vllm", tmp_path) as server:
        with pytest.raises(KeyboardInterrupt):
            capture(hook_of(server), Bounds(), "asked", interrupted)
        assert len(server.asked) == 1 and not server.running
