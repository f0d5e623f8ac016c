"""What an engine's prefix cache holds: least recently used, tail before head."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.prefix.held import MAX_CHUNKS, Evictions, HeldPrefixes, PrefixClaim
from router.core.request_facts import NO_KEYS, PrefixKeys

CHUNK = 100
"""Tokens of a chunk here."""


def prompt(*path: int) -> PrefixKeys:
    """A prompt; those that begin with the same numbers begin alike."""
    keys = tuple(hash(path[: place + 1]) for place in range(len(path)))
    return PrefixKeys(keys, tuple(CHUNK * (place + 1) for place in range(len(path))))


def held(*prompts: PrefixKeys, capacity: int = 10_000) -> HeldPrefixes:
    """A cache in which these were computed, one after the other."""
    cache = HeldPrefixes()
    cache.resize(capacity)
    for each in prompts:
        cache.claim(each).confirm()
    return cache


def test_an_empty_cache_holds_nothing() -> None:
    assert held().match(prompt(1)) == 0
    assert held(prompt(1)).match(NO_KEYS) == 0


def test_as_much_is_held_as_a_prompt_shares_with_those_before() -> None:
    cache = held(prompt(1, 2, 3), prompt(1, 5))
    assert cache.match(prompt(1, 2, 3, 4)) == 3 * CHUNK
    assert cache.match(prompt(1, 5, 3)) == 2 * CHUNK
    assert cache.match(prompt(2)) == 0


def test_chunks_of_no_tokens_take_room_too() -> None:
    cache = HeldPrefixes()
    cache.resize(1600)
    cache.claim(PrefixKeys(tuple(range(5000)), (0,) * 5000)).confirm()
    assert len(cache) == 100


def test_an_engine_that_claims_any_size_is_remembered_up_to_a_number_of_chunks() -> None:
    cache = HeldPrefixes()
    cache.resize(10**15)
    length = 8_000
    ends = tuple(CHUNK * (place + 1) for place in range(length))
    prompts = [
        PrefixKeys(tuple(range(start, start + length)), ends)
        for start in range(0, MAX_CHUNKS + length, length)
    ]
    most = 0
    for each in prompts:
        cache.claim(each).confirm()
        most = max(most, len(cache))
    assert len(cache) == most == MAX_CHUNKS
    assert cache.tokens == CHUNK * MAX_CHUNKS
    assert cache.match(prompts[-1]) == ends[-1]
    assert cache.match(prompts[0]) < ends[-1], "the longest unused goes first"


def test_shared_blocks_count_once() -> None:
    cache = held(prompt(1, 2, 3), prompt(1, 2, 4))
    assert cache.tokens == 4 * CHUNK
    assert len(cache) == 4


def test_the_longest_unused_goes_first_tail_before_head() -> None:
    cache = held(prompt(1, 2, 3), prompt(4, 5), capacity=4 * CHUNK)
    assert cache.match(prompt(1, 2, 3)) == 2 * CHUNK
    cache.claim(prompt(1, 2))  # used again
    cache.claim(prompt(6, 7))
    assert cache.match(prompt(1, 2)) == 2 * CHUNK
    assert cache.match(prompt(4, 5)) == 0


def test_a_smaller_capacity_evicts_at_once() -> None:
    cache = held(prompt(1, 2, 3))
    cache.resize(CHUNK)
    assert cache.match(prompt(1, 2, 3)) == cache.tokens == CHUNK


def test_an_eviction_of_one_cache_may_cost_another_engine_of_the_pool() -> None:
    evictions = Evictions()
    first, second = HeldPrefixes(evictions), HeldPrefixes(evictions)
    first.claim(PrefixKeys((0,), (CHUNK,)))
    second.claim(PrefixKeys((0,), (CHUNK,)))
    assert evictions.wanted_share == 0.0
    first.resize(0)
    second.claim(PrefixKeys((0,), (CHUNK,)))
    assert evictions.wanted_share == 0.0, "it holds that still"
    second.clear()
    second.claim(PrefixKeys((0,), (CHUNK,)))
    assert evictions.wanted_share > 0.0


def test_a_claimed_prefix_is_expected_at_once() -> None:
    cache = HeldPrefixes()
    cache.claim(prompt(1, 2))
    assert cache.match(prompt(1, 2)) == 2 * CHUNK


def test_a_request_that_failed_before_its_first_token_brought_nothing() -> None:
    cache = held(prompt(1))
    cache.claim(prompt(1, 2)).drop()
    assert cache.match(prompt(1, 2)) == CHUNK
    assert cache.tokens == CHUNK


def test_after_the_first_token_an_end_takes_nothing_back() -> None:
    cache = HeldPrefixes()
    claim = cache.claim(prompt(1, 2))
    claim.confirm()
    claim.drop()
    claim.confirm()
    assert cache.match(prompt(1, 2)) == 2 * CHUNK
    assert cache.prompt_tokens == 2 * CHUNK


def test_of_two_siblings_one_may_fail() -> None:
    cache = HeldPrefixes()
    first, second = cache.claim(prompt(1, 2)), cache.claim(prompt(1, 3))
    first.drop()
    assert cache.match(prompt(1, 3)) == 2 * CHUNK
    second.confirm()
    assert cache.match(prompt(1, 2)) == CHUNK


def test_keys_evicted_before_the_first_token_are_restored_by_it() -> None:
    cache = HeldPrefixes()
    cache.resize(3 * CHUNK)
    claim = cache.claim(prompt(1, 2))
    cache.claim(prompt(3, 4, 5)).confirm()
    assert cache.match(prompt(1, 2)) == 0
    claim.confirm()
    assert cache.match(prompt(1, 2)) == 2 * CHUNK


def test_a_computed_sibling_keeps_the_claim_of_the_other() -> None:
    cache = HeldPrefixes()
    first, second = cache.claim(prompt(1, 2)), cache.claim(prompt(1, 2))
    first.confirm()
    second.drop()
    assert cache.match(prompt(1, 2)) == 2 * CHUNK


def test_a_gap_that_a_failed_request_leaves_is_filled_by_the_next() -> None:
    cache = held(prompt(1))
    cache.claim(prompt(1, 2, 3))
    cache.claim(prompt(1, 2)).drop()
    assert cache.match(prompt(1, 2)) == CHUNK
    cache.claim(prompt(1, 2, 3)).confirm()
    assert cache.match(prompt(1, 2)) == 2 * CHUNK
    assert cache.tokens == 3 * CHUNK


def test_a_new_engine_holds_nothing_and_old_claims_change_nothing() -> None:
    cache = HeldPrefixes()
    claim = cache.claim(prompt(1, 2))
    cache.clear()
    claim.drop()
    assert (cache.tokens, len(cache)) == (0, 0)


def test_predictions_are_counted_when_the_first_token_comes() -> None:
    cache = held(prompt(1, 2))
    claim = cache.claim(prompt(1, 2, 3))
    assert cache.predicted_tokens == 0
    claim.confirm()
    assert cache.predicted_tokens == 2 * CHUNK
    assert cache.prompt_tokens == 5 * CHUNK


def test_only_prompts_computed_for_this_process_are_reported() -> None:
    cache = HeldPrefixes()
    cache.new_prompts = []
    claim = cache.claim(prompt(1))
    assert not cache.new_prompts
    claim.confirm()
    cache.hold(prompt(2))  # by another process's report
    assert cache.new_prompts == [prompt(1)]


class AnyOrder(RuleBasedStateMachine):
    """The bookkeeping is right for any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = HeldPrefixes()
        self.cache.resize(12 * CHUNK)
        self.claims: list[PrefixClaim] = []

    paths = st.lists(st.integers(0, 2), min_size=1, max_size=6)

    @rule(path=paths)
    def claim(self, path: list[int]) -> None:
        """A request is sent."""
        self.claims.append(self.cache.claim(prompt(*path)))

    @rule(path=paths)
    def hold(self, path: list[int]) -> None:
        """Another process reports it as held."""
        self.cache.hold(prompt(*path))

    @rule(which=st.integers(0, 9), is_good=st.booleans())
    def end(self, which: int, is_good: bool) -> None:
        """A request gets its first token, or fails."""
        if self.claims:
            claim = self.claims.pop(which % len(self.claims))
            (claim.confirm if is_good else claim.drop)()

    @rule()
    def clear(self) -> None:
        """The engine is a new one."""
        self.cache.clear()

    @invariant()
    def tokens_are_those_of_the_chunks(self) -> None:
        """Nothing is counted twice, nothing remains."""
        assert self.cache.tokens == CHUNK * len(self.cache) <= self.cache.capacity

    @invariant()
    def provisional_chunks_are_there(self) -> None:
        """No claim remains for what is forgotten."""
        assert set(self.cache._provisional) <= set(self.cache._chunks)


TestAnyOrder = AnyOrder.TestCase


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=20))
def test_a_prefix_is_evicted_after_its_continuations(paths: list[list[int]]) -> None:
    cache = held(*(prompt(*path) for path in paths), capacity=8 * CHUNK)
    for path in paths:
        there = [key in cache._chunks for key in prompt(*path).keys]
        assert there == sorted(there, reverse=True)
        assert cache.match(prompt(*path)) == CHUNK * sum(there)


def test_prefixes_of_requests_in_progress_are_expected_until_present() -> None:
    cache = HeldPrefixes()
    assert cache.expected(prompt(1, 2)) == 0
    cache.claim(prompt(1)).confirm()
    assert cache.expected(prompt(1, 2)) == 0
    claim = cache.claim(prompt(1, 2))
    assert cache.expected(prompt(1, 2, 3)) == cache.match(prompt(1, 2))
    assert cache.expected(prompt(1, 9)) == cache.expected(prompt(9)) == 0
    claim.confirm()
    assert cache.expected(prompt(1, 2)) == 0


def test_a_better_prediction_than_its_own_may_be_given() -> None:
    cache = HeldPrefixes()
    cache.claim(prompt(1, 2), 7).confirm()
    assert cache.predicted_tokens == 7
