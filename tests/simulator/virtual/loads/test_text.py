"""Texts that grow and branch."""

from itertools import count

from router.simulator.virtual.loads.text import Text
from router.simulator.virtual.values import Turn


def test_a_text_names_its_full_blocks():
    text = Text(count(), 16, 40)
    assert (text.tokens, [*text.contents]) == (40, [0, 1])
    text.grow(7)
    assert [*text.contents] == [0, 1]
    text.grow(1)
    assert text.contents == (0, 1, 2)


def test_branches_have_whole_blocks_in_common_and_nothing_else():
    text = Text(count(), 16, 40)
    one, other = text.branch(8), text.branch(24)
    assert (one.contents, other.contents) == ((0, 1, 2), (0, 1, 3, 4))
    assert text.contents == (0, 1)


def test_a_turn_asks_with_the_text_and_adds_the_answer_to_it():
    text = Text(count(), 16, 40)
    assert text.turn(10, pause=2.0) == Turn(40, 10, (0, 1, 2), 2.0)
    assert text.tokens == 50
