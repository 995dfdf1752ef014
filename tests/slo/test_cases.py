"""Every gate case of the collection (group 8) has tests, which bear its id."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = ("q01", "q03", "q05", "q06", "q07", "q09", "q11", "q12")


def test_every_case_of_the_group_is_held_by_a_test_of_its_name() -> None:
    names = {
        node.name
        for path in TESTS.glob("*/test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert [case for case in CASES if not any(f"test_{case}_" in name for name in names)] == []
