"""`prony quantize`: a table of what integer weights cost and bring, or one line on what is bad."""

import json

import pytest

from prony.__main__ import main


def test_each_way_to_hold_a_model_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "tiny", "--quantize", "int8", "--torch-threads", "1", "--json"]) == 0
    whole, int8 = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (whole["name"], whole["kl"], whole["agreement"]) == ("as it is", 0.0, 1.0)
    assert int8["name"] == "int8"
    assert int8["weight_bytes"] < 0.45 * whole["weight_bytes"]
    assert 0 < int8["kl"] < 0.01
    assert int8["agreement"] > 0.9
    assert min(int8["tokens_per_s"], int8["batch_tokens_per_s"]) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "--quantize", "int3"], "expected int8, int4 or int8,int4, got 'int3'"),
        (["tiny", "--quantize", ","], "expected int8, int4 or int8,int4, got ','"),
        (["tiny", "--group-size", "48"], "invalid choice: 48"),
        (["./absent"], "no such folder"),
        (["tiny", "--prompts", "./absent.jsonl"], "absent.jsonl: cannot be read"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["quantize", *arguments])
    except SystemExit as end:  # argparse's own
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err
