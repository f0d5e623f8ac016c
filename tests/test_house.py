"""What the report about the house counts, by a small package."""

from tests.house import House, table

SOURCE = '''"""A module.

Two lines more.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

Clock = Callable[[], float]
LIMIT = 3  # not a line of prose


class Shape(Protocol):
    def area(self) -> float: ...


class Base(Shape):
    # A comment.
    def __init__(self, clock: Clock, done: Callable[[], None] | None, count: int) -> None:
        self._private = partial(print, 1)


class Child(Base):
    def area(self) -> float:
        return (lambda: 1.0)()
'''

HOUSE = House({"core/fleet/one.py": SOURCE, "cli.py": "def area() -> None: ...\n"})


def test_public_names_are_counted_once():
    names = {"Clock", "LIMIT", "Shape", "Base", "Child", "area"}
    assert HOUSE.public_names() == names


def test_the_longest_chain_of_classes_leaves_protocols_out():
    assert HOUSE.chains()[0] == ["Base", "Child"]


def test_parameters_that_are_functions_are_found_behind_aliases_and_in_unions():
    assert HOUSE.callables() == ["Base.clock", "Base.done"]


def test_wide_constructors_have_more_than_six_parameters():
    parameters = ", ".join(f"p{n}: int" for n in range(7))
    wide = House({"a.py": f"class A:\n    def __init__(self, {parameters}): ...\n"})
    assert (wide.wide_constructors(), HOUSE.wide_constructors()) == ({"A": 7}, {})


def test_lambdas_and_partials_are_counted_together():
    assert HOUSE.closures() == 2


def test_prose_is_docstrings_and_lines_that_are_comments():
    assert HOUSE.prose_lines() == 5


def test_rooms_are_folders_two_levels_deep_in_core():
    assert HOUSE.packages() == {".": (1, 1), "core/fleet": (1, len(SOURCE.splitlines()))}


def test_the_table_has_a_row_for_each_count_and_each_room():
    text = table(HOUSE, HOUSE)
    assert "| inheritance depth | 2 (Base <- Child) |" in text
    assert "| core/fleet | 1 |" in text
