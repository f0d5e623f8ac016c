from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.simulator.model.blocks import (
    BlockPool,
    EventLog,
    Removed,
    block_hash,
    blocks_for,
    chain,
    link,
)


def test_blocks_are_counted_up():
    assert [blocks_for(tokens, 16) for tokens in (1, 16, 17, 32)] == [1, 1, 2, 2]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(0, 9))
def test_a_block_depends_on_all_tokens_before_its_end_and_on_none_after(tokens, salt):
    contents = chain(tokens, 4, salt)
    for place, content in enumerate(contents):
        assert chain(tokens[: 4 * place + 4], 4, salt)[-1] == content
    changed = chain([tokens[0] + 1, *tokens[1:]], 4, salt)
    assert all(one != other for one, other in zip(contents, changed, strict=True))


def test_a_link_continues_a_chain():
    assert link([5, 6], chain([1, 2, 3, 4], 4, 7)[0]) == chain([1, 2, 3, 4, 5, 6], 4, 7)[1]


def test_the_first_block_is_1():
    assert BlockPool(3).take(3) == [1, 2, 3]


def test_usage_is_the_share_that_is_held():
    pool = BlockPool(4)
    taken = pool.take(3)
    assert pool.usage == pytest.approx(0.75)
    pool.release(taken)
    assert pool.usage == 0.0


def test_a_block_that_is_given_to_another_has_lost_its_content():
    pool = BlockPool(1)
    pool.fill(pool.take(1)[0], 0, 42)
    pool.release([1])
    assert pool.read([1]) == [42]
    pool.take(1)
    assert pool.read([1]) != [42]


def test_a_prefix_is_found_until_its_block_is_given_to_another():
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.fill(first, 0, 42)
    pool.fill(second, 1, 43)
    pool.release([first, second])
    assert pool.cached([42, 43]) == [first, second]
    pool.take(1)  # the tail of the sequence goes first
    assert pool.cached([42, 43]) == [first]
    pool.take(1)
    assert pool.cached([42, 43]) == []


def test_a_prefix_ends_at_the_first_block_that_is_not_there():
    pool = BlockPool(2)
    pool.fill(pool.take(1)[0], 1, 43)
    assert pool.cached([42, 43]) == []


def test_shared_blocks_are_free_when_both_release_them():
    pool = BlockPool(2)
    taken = pool.take(1)
    pool.hold(taken)
    pool.release(taken)
    assert pool.free == 1
    pool.release(taken)
    assert pool.free == 2


def test_shared_blocks_that_are_free_are_not_available_twice():
    pool = BlockPool(2)
    taken = pool.take(1)
    pool.release(taken)
    assert (pool.available(), pool.available(taken)) == (2, 1)


def test_the_longest_unused_block_is_taken_first():
    pool = BlockPool(3)
    one, two, three = pool.take(3)
    for block in (one, two, three):
        pool.fill(block, block, 42)
    pool.release([two])
    pool.release([one])
    pool.release([three])
    assert pool.take(3) == [two, one, three]


def test_blocks_that_no_prompt_can_find_are_taken_before_all_others():
    pool = BlockPool(5)
    full, part, other, tail = pool.take(4)
    pool.fill(full, 0, 42)
    pool.fill(other, 0, 43)
    pool.release([full, part])
    pool.release([other, tail])
    assert pool.take(3) == [tail, part, 5]
    assert pool.cached([42]) == [full]
    assert pool.cached([43]) == [other]


def test_without_prefix_caching_the_last_blocks_released_are_taken_first():
    pool = BlockPool(3, keep_prefixes=False)
    one, two, three = pool.take(3)
    assert not pool.fill(one, 0, 42)
    pool.release([one])
    pool.release([two, three])
    assert pool.take(3) == [three, two, one]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_of_equal_blocks_one_is_found_until_all_are_given_to_others(order):
    pool = BlockPool(4)
    equal = pool.take(3)
    for block in equal:
        assert pool.fill(block, 0, 42)
    assert pool.cached([42]) == [equal[0]]
    for place in order:
        pool.release([equal[place]])
    pool.take(1)  # the one that has always been free
    for count in range(3):
        left = [block for place, block in enumerate(equal) if place not in order[:count]]
        assert pool.cached([42]) == [left[0]]
        assert pool.take(1) == [equal[order[count]]]
    assert pool.cached([42]) == []


def test_each_of_equal_blocks_is_announced_when_it_is_lost():
    pool = BlockPool(2, events=EventLog(is_on=True))
    for block in pool.take(2):
        pool.fill(block, 3, 42)
        pool.release([block])
    pool.take(2)
    assert pool.events.take() == [Removed(block_hash(3, 42))] * 2
