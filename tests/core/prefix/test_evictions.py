"""Evicted chunks that are asked for again, and which engines were sent a prompt last."""

import pytest

from router.core.prefix.held import (
    MAX_HOLDERS,
    MAX_REMEMBERED,
    NOT_SAMPLED,
    NOTED_BITS,
    Evictions,
    RecentHolders,
)
from router.core.prefix.keys import prefix_keys
from router.core.request_facts import PrefixKeys
from router.core.values import Endpoint, Role
from tests.core.fixtures import D0, D1, request

CHUNK = 512


def prompt(letter: str, chunks: int = 32) -> PrefixKeys:
    """The keys of a prompt that consists of this letter: random, in each run others."""
    return prefix_keys(request(prompt=chunks * CHUNK * letter))


def keys(*numbers: int) -> PrefixKeys:
    """Keys as given; noted are the last one, and multiples of eight."""
    return PrefixKeys(numbers, tuple(128 * (place + 1) for place in range(len(numbers))))


def test_a_new_prompt_has_no_holder() -> None:
    holders = RecentHolders()
    holders.note(prompt("a"), D0)
    assert holders.of(prompt("b")) == ()


def test_it_is_the_engine_that_got_the_longest_part_of_the_prompt() -> None:
    holders = RecentHolders()
    holders.note(keys(8, 16, 3), D0)
    holders.note(keys(8, 24, 5), D1)
    assert holders.of(keys(8, 16, 3, 7)) == (D0,)
    assert holders.of(keys(8, 24, 5, 7)) == (D1,)
    assert holders.of(keys(8, 7)) == (D1, D0)


def test_among_equal_holders_the_latest_are_known() -> None:
    holders = RecentHolders()
    engines = [Endpoint(f"http://e{number}", Role.DECODE) for number in range(2 * MAX_HOLDERS)]
    for engine in (*engines, engines[-1]):
        holders.note(prompt("a"), engine)
    assert holders.of(prompt("a")) == tuple(reversed(engines[-MAX_HOLDERS:]))


def test_few_keys_of_a_long_prompt_are_noted() -> None:
    holders, long = RecentHolders(), prompt("a", chunks=2000)
    holders.note(long, D0)
    assert len(holders) < len(long.keys) / NOTED_BITS * 2


def test_the_least_recently_used_are_forgotten() -> None:
    holders = RecentHolders(max_keys=2)
    holders.note(keys(1), D0)
    holders.note(keys(2), D0)
    holders.note(keys(1), D0)
    holders.note(keys(3), D1)
    assert holders.of(keys(1)) == (D0,)
    assert holders.of(keys(2)) == ()
    assert holders.of(keys(3)) == (D1,)


SAMPLED = NOT_SAMPLED + 1
"""The keys of the sample are multiples of it."""

MANY = 20 * MAX_REMEMBERED


def test_unrepeated_prompts_are_not_wanted() -> None:
    evictions = Evictions()
    for number in range(MANY):
        evictions.computed(SAMPLED * (number + 9))
        evictions.evicted(SAMPLED * number)
    assert evictions.wanted_share < 0.01


@pytest.mark.parametrize("every", [1, 4])
def test_it_is_the_share_of_wanted_evictions(every: int) -> None:
    evictions = Evictions()
    for number in range(MANY):
        evictions.evicted(SAMPLED * number)
        if number % every == 0:
            evictions.computed(SAMPLED * number)
    assert evictions.wanted_share == pytest.approx(1 / every, rel=0.05)


@pytest.mark.parametrize(("share", "weight"), [(0.0, 0.0), (0.05, 0.06), (0.25, 0.79), (0.4, 3.1)])
def test_a_higher_wanted_share_raises_the_cost_per_token(share: float, weight: float) -> None:
    evictions = Evictions()
    evictions.wanted_share = share
    assert evictions.weight == pytest.approx(weight, rel=0.05)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_cost_is_bounded_even_where_all_is_wanted(share: float) -> None:
    evictions = Evictions()
    evictions.wanted_share = share
    assert evictions.weight == 4.0


def test_a_repeated_engine_counts_once() -> None:
    evictions = Evictions()
    evictions.evicted(0)
    evictions.computed(0)
    before = evictions.wanted_share
    evictions.computed(0)
    assert evictions.wanted_share == before > 0.0


def test_old_evictions_do_not_count() -> None:
    evictions = Evictions()
    for number in range(MAX_REMEMBERED + 1):
        evictions.evicted(SAMPLED * number)
    evictions.computed(0)
    assert evictions.wanted_share == 0.0
    evictions.computed(SAMPLED)
    assert evictions.wanted_share > 0.0


def test_a_repeated_eviction_is_remembered_anew() -> None:
    evictions = Evictions()
    evictions.evicted(0)
    for number in range(1, MAX_REMEMBERED):
        evictions.evicted(SAMPLED * number)
    evictions.evicted(0)
    evictions.evicted(SAMPLED * MAX_REMEMBERED)
    evictions.computed(0)
    assert evictions.wanted_share > 0.0


def test_only_a_sample_of_the_chunks_is_followed() -> None:
    evictions = Evictions()
    for key in range(1, SAMPLED):
        evictions.evicted(key)
        evictions.computed(key)
    assert evictions.wanted_share == 0.0


def test_the_wanted_share_is_at_most_one() -> None:
    """A cache may be emptied first, and all of it computed again afterwards."""
    evictions = Evictions()
    for number in range(MAX_REMEMBERED):
        evictions.evicted(SAMPLED * number)
    for number in range(MAX_REMEMBERED):
        evictions.computed(SAMPLED * number)
    assert evictions.wanted_share == 1.0
