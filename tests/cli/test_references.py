"""Answers kept as references: what a file of prompts and a server make of each other."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.fake_server import MODEL, FakeServer

from prony.__main__ import main


class Saying(FakeServer):
    """Says these one after the other, over and over; the probe gets the first."""

    def __init__(self, *said: str) -> None:
        super().__init__()
        self._said = cycle(said)
        self.asked: list[dict[str, Any]] = []  # the probe's among them

    def words(self, asked: dict[str, Any]) -> list[str]:
        self.asked.append(asked)
        return [next(self._said)]


def prompts(folder: Path, *rows: dict[str, object]) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_come_out_as_they_went_in_with_the_answer_as_their_reference(tmp_path: Path) -> None:
    rows = prompts(
        tmp_path,
        {"prompt": "What is the capital of France?", "contains": "Paris", "output_tokens": 8},
        {"messages": [{"role": "user", "content": "And of Italy?"}], "pattern": "R.me"},
    )
    out = tmp_path / "new" / "expected.jsonl"
    with Saying("Paris, Rome") as server:
        assert main(["references", rows, "--target", server.url, "--out", str(out)]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"prompt": "What is the capital of France?", "output_tokens": 8,
         "reference": "Paris, Rome", "contains": ["Paris"]},
        {"messages": [{"role": "user", "content": "And of Italy?"}], "output_tokens": 32,
         "reference": "Paris, Rome", "pattern": "R.me"},
    ]  # fmt: skip
    assert all(body["temperature"] == 0 for body in server.asked)
    assert [body["max_tokens"] for body in server.asked[1:]] == [8, 8, 32, 32]


def test_rows_that_can_be_no_reference_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = prompts(
        tmp_path,
        {"prompt": "one"},
        {"prompt": "two"},
        {"prompt": "three", "contains": "London"},
        {"prompt": "four"},
        {"prompt": "\ud83d five"},  # half a pair: JSON has it, UTF-8 has not
    )
    out = tmp_path / "expected.jsonl"
    said = ["probe", "one", "one", "two", "other", "Paris", "Paris", " ", " ", "five", "five"]
    with Saying(*said) as server:
        assert main(["references", rows, "--target", server.url, "--out", str(out)]) == 0
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["reference"] for row in kept] == ["one", "five"]
    told = capsys.readouterr()
    assert "prompts.jsonl:2: left out: two answers differ" in told.err
    assert "prompts.jsonl:3: left out: the answer is not what the row expects: 'Paris'" in told.err
    assert "prompts.jsonl:4: left out: an answer without any text" in told.err
    assert f"2 of 5 answers of {MODEL} kept in" in told.out


def test_without_one_reference_there_is_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = prompts(tmp_path, {"prompt": "one"})
    out = tmp_path / "expected.jsonl"
    with Saying("probe", "a", "b") as server:
        assert main(["references", rows, "--target", server.url, "--out", str(out)]) == 2
    assert "answers no row of" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("out", ["file/below", "x" * 300])
def test_a_file_that_cannot_be_made_is_told_before_anything_is_asked(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    rows = prompts(tmp_path, {"prompt": "one"})
    with Saying("a") as server:
        path = str(tmp_path / out)
        assert main(["references", rows, "--target", server.url, "--out", path]) == 2
    assert "--out " in capsys.readouterr().err
    assert server.asked == []


def test_references_are_not_written_over_nor_asked_with_a_key_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    rows = prompts(tmp_path, {"prompt": "one"})
    out = tmp_path / "expected.jsonl"
    out.write_text("kept\n")
    common = ["references", rows, "--target", "127.0.0.1:9"]
    assert main([*common, "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err and out.read_text() == "kept\n"
    common += ["--out", str(tmp_path / "new.jsonl")]
    assert main([*common, "--api-key-env", "NO_SUCH_KEY"]) == 2
    assert "the environment variable NO_SUCH_KEY is not set" in capsys.readouterr().err
    assert main([*common, "--dialect", "openai"]) == 2
    assert "--dialect openai: expected one of openai-chat" in capsys.readouterr().err
