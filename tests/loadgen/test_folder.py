"""Run folders: made, cut short, and found again."""

import gzip
import json
from pathlib import Path

import pytest
from tests.loadgen.test_recorder import record

from prony_loadgen.folder import RunFolder, refuse_used, resolve
from prony_loadgen.recorder import Recorder
from prony_loadgen.strict_yaml import FileError


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_new_run_gets_a_folder_named_by_time_and_scenario() -> None:
    folder = RunFolder.create(None, "chat")
    assert folder.path.parent == Path("runs")
    assert folder.path.name.endswith("Z-chat")


def test_runs_of_one_second_get_folders_of_their_own() -> None:
    assert len({RunFolder.create(None, "chat").path for _ in range(5)}) == 5


def test_latest_is_the_newest_run_wherever_it_lies(tmp_path: Path) -> None:
    RunFolder.create(None, "one")
    inside = RunFolder.create(None, "two")
    assert resolve(None).path.name == inside.path.name
    RunFolder.create(tmp_path / "elsewhere" / "mine", "three")
    assert resolve(None).path == (tmp_path / "elsewhere" / "mine").resolve()
    assert Path("runs/latest").is_symlink()


def test_a_deleted_latest_gives_way_to_the_newest_that_is_there() -> None:
    old = RunFolder.create(None, "old")
    old.write_run({"schema": 1})
    RunFolder.create(None, "new").path.rmdir()
    assert resolve(None).path == old.path


def test_without_any_run_the_error_says_what_to_do() -> None:
    with pytest.raises(FileError, match="no run in runs/ yet: name a run folder, or run `prony"):
        resolve(None)
    with pytest.raises(FileError, match="nowhere: no such run folder"):
        resolve("nowhere")


def test_out_is_never_written_over_another_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "out", "a").write_run({"schema": 1})
    with pytest.raises(FileError, match="out: holds a run already; name another folder"):
        RunFolder.create(tmp_path / "out", "a")


def test_an_out_of_a_name_longer_than_any_file_has_is_named() -> None:
    with pytest.raises(FileError, match=r"--out n+: File name too long"):
        refuse_used(Path("n" * 5000))


def test_an_out_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match=r"--out .*file/out: Not a directory"):
        RunFolder.create(tmp_path / "file" / "out", "a")


def test_run_json_is_replaced_whole_and_holds_no_nan(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    facts = {"schema": 1, "window": [0.0, 1.5], "loop": "open", "a": "é", "torn": "\ud800"}
    folder.write_run(facts)
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_run({**facts, "a": float("nan")})
    assert folder.read_run() == facts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "run.json: cannot be read"),
        ("[]", r"run.json: not the facts of a run \(no `schema`\)"),
        ('{"schema": 2}', "run.json: schema 2 is newer than this Prony"),
    ],
)
def test_a_run_json_that_is_none_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FileError, match=message):
        RunFolder(tmp_path).read_run()


def test_a_folder_without_run_json_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"not a run folder \(no run.json\)"):
        RunFolder(tmp_path).read_run()


def test_a_records_file_cut_anywhere_gives_its_whole_records(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    records = [record(number) for number in range(30)]
    whole = gzip.compress("".join(each.to_json() + "\n" for each in records).encode())
    for cut in range(0, len(whole) + 1, 7):
        folder.requests.write_bytes(whole[:cut])
        read = list(folder.records())
        assert read == records[: len(read)]
    folder.requests.write_bytes(whole)
    assert list(folder.records()) == records


def test_zeros_after_a_power_cut_do_not_hide_the_records_before_them(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = Recorder(folder.requests)
    for number in range(300):
        recorder.add(record(number))
    recorder.flush()
    with folder.requests.open("ab") as file:
        file.write(bytes(4096))
    assert list(folder.records()) == [record(number) for number in range(300)]
    recorder.close()


def test_files_put_one_after_another_are_read_as_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    parts = [gzip.compress((record(number).to_json() + "\n").encode()) for number in range(3)]
    folder.requests.write_bytes(b"".join(parts))
    assert list(folder.records()) == [record(0), record(1), record(2)]


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    lines = record(1).to_json() + "\n" + json.dumps({"id": "x"}) + "\n"
    folder.requests.write_bytes(gzip.compress(lines.encode()))
    with pytest.raises(FileError, match=r"requests.jsonl.gz:2: not a request record"):
        list(folder.records())


def test_no_records_yet_is_no_records(tmp_path: Path) -> None:
    assert list(RunFolder(tmp_path).records()) == []
