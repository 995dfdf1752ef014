"""What run.json says of the command that made a run."""

import pytest

from prony_loadgen.command_line import told


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["prony", "run", "chat"], "prony run chat --seed 5"),
        (["/usr/bin/locust", "-f", "my file.py"], "locust -f 'my file.py' --seed 5"),
        (["/lib/locust/__main__.py", "-f", "a.py"], "locust -f a.py --seed 5"),
        (["prony", "run", "--seed", "5"], "prony run --seed 5"),
        (["prony", "run", "--seed=5"], "prony run --seed=5"),
        (["prony", "run", "--set", "seed=5"], "prony run --set seed=5"),
        (["prony", "run", "--set=seed=5"], "prony run --set=seed=5"),
    ],
    ids=str,
)
def test_pasted_into_a_shell_it_makes_the_same_requests(argv: list[str], shown: str) -> None:
    assert told(argv, 5) == shown


@pytest.mark.parametrize(
    "argv",
    [
        ["--header", "X-Key: geheim"],
        ["--header=X-Key: geheim"],
        ["--header", "geheim"],
        ["--set", "headers.X-Key=geheim"],
        ["--set=headers.X-Key=geheim"],
        ["--set", "headers={X-Key: geheim}"],
        ["--proxy", "http://me:geheim@proxy:3128"],
        ["--proxy=http://geheim@proxy"],
        ["--set", "proxy=http://me:geheim@proxy"],
        ["--target", "https://me:geheim@host/v1"],
    ],
    ids=str,
)
def test_no_secret_is_in_it(argv: list[str]) -> None:
    shown = told(["prony", "run", *argv, "--rate", "5"], 5)
    assert "geheim" not in shown and "***" in shown
    assert shown.endswith("--rate 5 --seed 5")
