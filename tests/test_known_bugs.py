"""Every bug of others has a test that exists, or a reason why it cannot happen here."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
ROWS = [
    line.strip("|").split(" | ")
    for line in (TESTS / "KNOWN_BUGS.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| # |", "| where |"))
]
NAMED = re.compile(r"([\w/]+\.py)::(test_\w+)")


@cache
def _tests_of(path: str) -> frozenset[str]:
    file = TESTS / path
    if not file.exists():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, functions)
    )


def test_the_tests_that_are_named_exist() -> None:
    named = [found for row in ROWS for found in NAMED.findall(row[-1])]
    assert len(named) > 100
    assert [f"{path}::{test}" for path, test in named if test not in _tests_of(path)] == []


def test_each_row_has_a_test_or_a_reason() -> None:
    assert [row for row in ROWS if len(row) != 3 or len(row[-1].strip()) < 20] == []


def test_every_scenario_is_covered() -> None:
    numbers = [int(row[0]) for row in ROWS[:57]]
    assert numbers == list(range(1, 58))
