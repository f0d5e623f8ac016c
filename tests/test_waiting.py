"""Tests wait for a state, not for a time: whoever sleeps looks again, in a loop."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LOOPS = (ast.While, ast.For, ast.AsyncFor)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _is_fixed(call: ast.Call) -> bool:
    """Whether it is a sleep of so many seconds. `sleep(0)` lets the event loop turn."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "sleep" and call.args):
        return False
    seconds = call.args[0]
    if isinstance(seconds, ast.Constant):
        return seconds.value != 0
    return isinstance(seconds, ast.Name) and seconds.id.isupper()


def naps(node: ast.AST, *, again: bool = False) -> Iterator[int]:
    """The lines with a fixed sleep and no further check."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and _is_fixed(child) and not again:
            yield child.lineno
        inside = isinstance(child, LOOPS) or (again and not isinstance(child, FUNCTIONS))
        yield from naps(child, again=inside)


def test_no_test_sleeps_for_a_state() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("*.py")
        if ".sleep(" in (source := path.read_text())
        for line in naps(ast.parse(source))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import time\ntime.sleep(0.1)", [2]),
        ("async def f():\n    await asyncio.sleep(SOON)", [2]),
        ("while not so():\n    time.sleep(0.1)", []),
        ("while not so():\n    def f():\n        time.sleep(0.1)", [3]),
        ("async def f():\n    await asyncio.sleep(0)", []),
        ("time.sleep(chance.random())", []),
    ],
)
def test_the_findings(source: str, lines: list[int]) -> None:
    assert list(naps(ast.parse(source))) == lines
