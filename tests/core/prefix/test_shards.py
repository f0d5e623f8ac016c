"""A mapping in many small dictionaries is one mapping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.prefix.shards import SHARDS, Shards

KEYS = st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(max_size=32)


@given(st.dictionaries(KEYS, st.integers(), max_size=50))
def test_what_is_put_in_is_found_again(entries: dict[int | bytes, int]) -> None:
    shards: Shards[int | bytes] = Shards()
    for key, value in entries.items():
        shards.of(key)[key] = value
    assert all(shards.of(key)[key] == value for key, value in entries.items())
    assert dict(shards.pop_old() for _ in entries) == entries
    with pytest.raises(KeyError):
        shards.pop_old()


def test_no_dictionary_gets_large() -> None:
    shards: Shards[int] = Shards()
    for number in range(100 * SHARDS):
        key = hash((number, "block"))
        shards.of(key)[key] = number
    assert max(map(len, shards.dicts)) < 200


def test_what_was_stored_long_ago_goes_first() -> None:
    shards: Shards[int] = Shards()
    count = 8 * SHARDS
    for number in range(count):
        shards.of(number)[number] = number
    gone = {shards.pop_old()[0] for _ in range(count // 2)}
    assert gone == set(range(count // 2))
