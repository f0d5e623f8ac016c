"""Keys of a prompt's blocks."""

from router.core.request_facts import KEYS_AT_A_TIME
from tests.core.kv_events.test_source_blocks import prompt


def test_each_key_covers_all_tokens_before_its_end() -> None:
    ids = list(range(12))
    keys = list(prompt(ids).keys(4))
    assert len(keys) == len(set(keys)) == 3
    assert list(prompt([*ids, 99]).keys(4)) == keys
    assert list(prompt([*ids[:11], 99]).keys(4))[:2] == keys[:2]
    changed = list(prompt([99, *ids[1:]]).keys(4))
    assert not set(changed) & set(keys)


def test_keys_are_computed_once_and_as_far_as_they_are_wanted() -> None:
    asked = prompt(list(range(400)))
    first = next(asked.keys(4))
    assert len(asked._keys[4]) == KEYS_AT_A_TIME
    again = asked.keys(4)
    assert (next(again), len(list(again))) == (first, 99)
    assert list(asked.keys(4)) == list(prompt(list(range(400))).keys(4))
    assert len(list(asked.keys(3))) == 133


def test_a_prompt_that_ends_with_a_block_computes_it() -> None:
    assert len(list(prompt(range(8), is_whole=True).keys(4))) == 1
    assert len(list(prompt(range(9), is_whole=True).keys(4))) == 2
    assert list(prompt([], is_whole=True).keys(4)) == []


def test_a_salt_changes_every_key_of_a_prompt_that_has_a_block() -> None:
    plain, salted = prompt(range(8)), prompt(range(8), salt="mine")
    assert not set(plain.keys(4)) & set(salted.keys(4))
    assert list(prompt(range(3), salt="mine").keys(4)) == []


def test_tokens_are_converted_into_estimated_ones() -> None:
    asked = prompt(range(100))
    asked.estimated = 50
    assert asked.as_estimated(100) == 50
    assert asked.as_estimated(30) == 15
    assert prompt([]).as_estimated(0) == 0
