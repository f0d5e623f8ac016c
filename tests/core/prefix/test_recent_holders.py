"""Who was sent a prompt's beginning last."""

from router.core.prefix.keys import prefix_keys
from router.core.prefix.recent_holders import MAX_HOLDERS, NOTED_BITS, RecentHolders
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


def test_nobody_was_sent_a_new_prompt() -> None:
    holders = RecentHolders()
    holders.note(prompt("a"), D0)
    assert holders.of(prompt("b")) == ()


def test_it_is_who_was_sent_the_longest_part_of_the_prompt() -> None:
    holders = RecentHolders()
    holders.note(keys(8, 16, 3), D0)
    holders.note(keys(8, 24, 5), D1)
    assert holders.of(keys(8, 16, 3, 7)) == (D0,)
    assert holders.of(keys(8, 24, 5, 7)) == (D1,)
    assert holders.of(keys(8, 7)) == (D1, D0)


def test_of_those_who_hold_the_same_the_last_ones_are_known() -> None:
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
