"""Making the real small model: what is there is left alone, and nothing half-made is left."""

from pathlib import Path

import pytest

from prony_server.smollm2 import main


def test_a_model_that_is_there_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main([str(tmp_path)]) == 0
    assert "is there already" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_with_something_else_is_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert main([str(tmp_path)]) == 2
    assert "exists but is no model folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "b"]])
def test_anything_but_one_folder_gets_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "usage: python -m prony_server.smollm2 DEST" in capsys.readouterr().err
