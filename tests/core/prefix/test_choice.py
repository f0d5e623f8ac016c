"""Choices by uncached tokens: scheduler, fleet and policy together."""

from random import Random

import pytest

from router.core.events import LegFailed, Probed, Scraped
from router.core.fleet.fleet import MAX_EVENT_KEYS, Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.pool import SUBSET_SIZE
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds
from router.core.membership.entry import Entry
from router.core.policies import POLICIES
from router.core.prefix.keys import prefix_keys
from router.core.request_facts import Facts
from router.core.routing.schedule import Scheduler
from router.core.values import Decision, Endpoint, FailureKind, Gauges, Mode, Role
from tests.core.fixtures import D0, D1, P0, P1, request

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()
CACHED = frozenset(Role)
TOKENS = 2048
COST = 0.001
"""Mean requests per prompt token, on decode engines."""


def facts_of(*, beginning: str = "a", tokens: int = TOKENS) -> Facts:
    """A request whose prompt consists of one letter."""
    return request(prompt=beginning * 4 * tokens)


def fleet_of(*endpoints: Endpoint) -> Fleet:
    """A fleet of engines that are up and have been measured."""
    fleet = Fleet(endpoints, Ledger(), HealthThresholds(), stale_after=5.0, shares_prefixes=True)
    for endpoint in endpoints:
        fleet.observe(Probed(endpoint, HealthSignal.OK), 0.0)
        view = fleet.member(endpoint).view
        view.prompt_cost = COST
        view.first_token_weight = COST if endpoint.role is Role.DECODE else 0.0
    return fleet


def scheduler_of(
    fleet: Fleet,
    threshold: int = 0,
    cached_roles: frozenset[Role] = CACHED,
    *,
    on_uncached: bool = False,
) -> Scheduler:
    """A scheduler that looks for the shortest delay."""
    policies = dict.fromkeys(Role, POLICIES["shortest_expected_delay"])
    return Scheduler(
        fleet, policies, threshold, Random(0), cached_roles, threshold_on_uncached=on_uncached
    )


def computed(fleet: Fleet, endpoint: Endpoint, facts: Facts) -> None:
    """The engine computed this prompt before, and is idle again."""
    with Selection(fleet).lease(endpoint, facts.tokens, facts.tokens, prefix_keys(facts)) as lease:
        lease.prefilled()


def chosen(scheduler: Scheduler, facts: Facts, role: Role = Role.DECODE) -> Endpoint:
    """The choice for a request that is over at once."""
    with scheduler.lease(role, facts, NO_ENDPOINTS, 0.0) as lease:
        return lease.endpoint


def served(scheduler: Scheduler, facts: Facts) -> Endpoint:
    """The engine that is chosen for a request, and computes its prompt."""
    with scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0) as lease:
        lease.prefilled()
        return lease.endpoint


@pytest.mark.parametrize(("role", "engines"), [(Role.DECODE, (D0, D1)), (Role.PREFILL, (P0, P1))])
def test_a_prompt_goes_where_its_beginning_lies(role: Role, engines: tuple[Endpoint, ...]) -> None:
    fleet = fleet_of(*engines)
    computed(fleet, engines[1], facts_of())
    scheduler = scheduler_of(fleet)
    longer = facts_of(tokens=2 * TOKENS)
    assert [chosen(scheduler, longer, role) for _ in range(5)] == [engines[1]] * 5


def test_without_prefix_cache_it_does_not() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D1, facts_of())
    scheduler = scheduler_of(fleet, cached_roles=frozenset())
    assert {chosen(scheduler, facts_of()) for _ in range(4)} == {D0, D1}
    assert fleet.member(D0).prompts.sent.tokens == 0


def test_tokens_cached_on_all_engines_are_no_evidence() -> None:
    fleet = fleet_of(D0, D1)
    for engine in (D0, D1):
        computed(fleet, engine, facts_of())
    scheduler = scheduler_of(fleet)
    assert [chosen(scheduler, facts_of()) for _ in range(4)] == [D0, D1, D0, D1]


def test_a_hit_is_not_worth_any_queue() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D1, facts_of())
    Selection(fleet).lease(D1, 10 * TOKENS, 10 * TOKENS)
    assert chosen(scheduler_of(fleet), facts_of()) == D0


def test_an_engine_without_the_prefix_gets_a_request_that_would_wait_at_its_holder() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D1, facts_of())
    scheduler = scheduler_of(fleet)
    leases = [scheduler.lease(Role.DECODE, facts_of(), NO_ENDPOINTS, 0.0) for _ in range(20)]
    assert leases[0].endpoint == D1
    assert 5 <= sum(lease.endpoint == D0 for lease in leases) <= 10


def test_a_slow_engine_does_not_win_by_its_cache() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D1, facts_of(tokens=100))
    view = fleet.member(D1).view
    view.slowdown, view.is_slow = 8.0, True
    assert chosen(scheduler_of(fleet), facts_of(tokens=300)) == D0


def test_only_uncached_tokens_are_pending() -> None:
    fleet = fleet_of(D0)
    computed(fleet, D0, facts_of())
    lease = scheduler_of(fleet).lease(Role.DECODE, facts_of(tokens=TOKENS + 300), NO_ENDPOINTS, 0.0)
    assert lease.pending_there == 300


def test_at_least_the_last_token_is_computed() -> None:
    fleet = fleet_of(D0)
    computed(fleet, D0, facts_of())
    lease = scheduler_of(fleet).lease(Role.DECODE, facts_of(), NO_ENDPOINTS, 0.0)
    assert lease.pending_there == 1


def test_siblings_follow_the_first_before_it_is_computed() -> None:
    fleet = fleet_of(D0, D1)
    scheduler = scheduler_of(fleet)
    first = scheduler.lease(Role.DECODE, facts_of(tokens=8 * TOKENS), NO_ENDPOINTS, 0.0)
    Selection(fleet).lease(D1, 0, 4 * TOKENS)
    assert chosen(scheduler, facts_of(tokens=8 * TOKENS)) == first.endpoint


def test_when_the_first_fails_nothing_is_held() -> None:
    fleet = fleet_of(D0, D1)
    scheduler = scheduler_of(fleet)
    scheduler.lease(Role.DECODE, facts_of(), NO_ENDPOINTS, 0.0).release()
    assert fleet.member(D0).prompts.sent.tokens == 0


def test_a_conversation_whose_engine_is_gone_goes_on_elsewhere_and_stays_there() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D1, facts_of())
    scheduler = scheduler_of(fleet)
    for _ in range(5):
        fleet.observe(LegFailed(D1, FailureKind.REFUSED), 1.0)
    assert served(scheduler, facts_of()) == D0
    fleet.observe(Probed(D1, HealthSignal.OK), 2.0)
    fleet.observe(Probed(D1, HealthSignal.OK), 3.0)
    assert {chosen(scheduler, facts_of()) for _ in range(5)} == {D0}


def test_an_engine_that_came_back_holds_nothing() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D1, facts_of())
    for _ in range(5):
        fleet.observe(LegFailed(D1, FailureKind.REFUSED), 1.0)
    fleet.observe(Probed(D1, HealthSignal.OK), 2.0)
    fleet.observe(Probed(D1, HealthSignal.OK), 3.0)
    assert fleet.member(D1).prompts.sent.tokens == 0


def test_an_engine_that_finds_nothing_is_not_believed_to_hold_anything() -> None:
    fleet = fleet_of(D0, D1)
    for number in range(20):
        computed(fleet, D1, facts_of())
        gauges = Gauges(running=0, cache_queries=TOKENS * number, cache_hits=0)
        fleet.observe(Scraped(D1, gauges, 0), float(number))
    scheduler = scheduler_of(fleet)
    assert {chosen(scheduler, facts_of()) for _ in range(4)} == {D0, D1}


def test_prompts_that_begin_alike_spread_over_engines_that_cache_nothing() -> None:
    fleet = fleet_of(D0, D1)
    scheduler = scheduler_of(fleet)
    for number in range(20):
        served(scheduler, facts_of())
        for engine in (D0, D1):  # --no-enable-prefix-caching: vLLM counts no lookups
            gauges = Gauges(running=0, cache_queries=0, cache_hits=0)
            fleet.observe(Scraped(engine, gauges, 0), float(number))
    assert {chosen(scheduler, facts_of()) for _ in range(4)} == {D0, D1}


def test_the_capacity_is_that_of_the_engine() -> None:
    fleet = fleet_of(D0)
    fleet.observe(Scraped(D0, Gauges(running=0, cache_tokens=1024), 0), 1.0)
    computed(fleet, D0, facts_of())
    assert fleet.member(D0).prompts.sent.tokens == 1024


def test_others_prompts_and_answers_take_room_in_it() -> None:
    fleet = fleet_of(D0)
    for number in range(30):
        computed(fleet, D0, facts_of(beginning=chr(number + 97)))
        asked = 2 * TOKENS * number
        gauges = Gauges(running=0, cache_tokens=100_000, cache_queries=asked, cache_hits=0)
        fleet.observe(Scraped(D0, gauges, 0), float(number))
    assert fleet.member(D0).prompts.sent.capacity == pytest.approx(50_000, rel=0.01)


def test_other_processes_learn_the_prompts_computed_here() -> None:
    fleet, other = fleet_of(D0, D1), fleet_of(D0, D1)
    long = facts_of(tokens=128 * (MAX_EVENT_KEYS // 3))
    for facts in [facts_of(), *[long] * 5]:
        computed(fleet, D1, facts)
    told = list(fleet.held_prefixes())
    assert sum(len(event.prefixes) for event in told) == 6
    sizes = [sum(len(prefix.keys) for prefix in event.prefixes) for event in told]
    assert len(sizes) > 1
    assert max(sizes) <= MAX_EVENT_KEYS
    assert not list(fleet.held_prefixes())
    for event in told:
        other.observe_shared(event, 1.0)
    assert chosen(scheduler_of(other), facts_of()) == D1
    assert not list(other.held_prefixes())


def test_a_fleet_without_siblings_reports_to_none() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), stale_after=5.0)
    computed(fleet, D0, facts_of())
    assert not list(fleet.held_prefixes())


# In pools of which a request considers a sample.

MANY = [Endpoint(f"http://e{number}:8000", Role.DECODE) for number in range(4 * SUBSET_SIZE)]
LETTERS = "abcdefghij"


def test_in_a_large_pool_a_conversation_goes_on_where_it_lies() -> None:
    scheduler = scheduler_of(fleet_of(*MANY))
    first = [served(scheduler, facts_of(beginning=each)) for each in LETTERS]
    assert len(set(first)) > 1
    for turn in range(2, 5):
        longer = [facts_of(beginning=each, tokens=turn * TOKENS) for each in LETTERS]
        assert [served(scheduler, facts) for facts in longer] == first


def test_in_a_large_pool_prompts_go_where_another_process_has_sent_their_beginning() -> None:
    fleet, other = fleet_of(*MANY), fleet_of(*MANY)
    theirs, ours = scheduler_of(other), scheduler_of(fleet)
    first = [served(theirs, facts_of(beginning=each)) for each in LETTERS]
    for event in other.held_prefixes():
        fleet.observe_shared(event, 1.0)
    longer = [facts_of(beginning=each, tokens=2 * TOKENS) for each in reversed(LETTERS)]
    assert [served(ours, facts) for facts in longer] == first[::-1]


def test_in_a_large_pool_the_lease_follows_the_decision() -> None:
    fleet = fleet_of(P0, *MANY)
    scheduler = scheduler_of(fleet, threshold=1000, on_uncached=True)
    for number in range(len(MANY)):
        facts = facts_of(beginning=chr(0x4E00 + number))
        computed(fleet, MANY[number], facts)
        assert scheduler.decide(facts, 0.0) == Decision(Mode.DIRECT, "cached_on_decode")
        with scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0) as lease:
            assert lease.endpoint == MANY[number]


def test_in_a_large_pool_unusable_holders_are_not_considered() -> None:
    fleet = fleet_of(*MANY)
    scheduler = scheduler_of(fleet)
    first = served(scheduler, facts_of())
    with scheduler.lease(Role.DECODE, facts_of(), frozenset({first}), 0.0) as lease:
        second = lease.endpoint
        lease.prefilled()
    assert second != first
    both = [Entry(each, row, is_draining=each == first) for row, each in enumerate(MANY)]
    fleet.apply(both, 0.0)
    assert {chosen(scheduler, facts_of()) for _ in range(5)} == {second}
    fleet.apply([entry for entry in both if entry.endpoint not in (first, second)], 0.0)
    assert chosen(scheduler, facts_of()) not in (first, second)


def test_a_large_pool_without_cache_lookups_has_no_holders() -> None:
    fleet = fleet_of(*MANY)
    computed(fleet, MANY[0], facts_of())
    scheduler = scheduler_of(fleet, cached_roles=frozenset())
    assert len({chosen(scheduler, facts_of()) for _ in range(8)}) == 8


# After a remote prefill, and instead of one.


def test_a_decode_engine_that_holds_the_prompt_is_a_little_better_after_a_remote_prefill() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D1, facts_of())
    scheduler = scheduler_of(fleet)
    lease = scheduler.lease(Role.DECODE, facts_of(), NO_ENDPOINTS, 0.0, computes=False)
    assert lease.endpoint == D1
    assert lease.pending_there == 0
    again = scheduler.lease(Role.DECODE, facts_of(), NO_ENDPOINTS, 0.0, computes=False)
    assert again.endpoint == D0


def test_the_threshold_may_apply_to_uncached_tokens() -> None:
    fleet = fleet_of(P0, D0, D1)
    scheduler = scheduler_of(fleet, threshold=1000, on_uncached=True)
    remote = Decision(Mode.REMOTE, "at_or_above_threshold")
    assert scheduler.decide(facts_of(), 0.0) == remote
    computed(fleet, D1, facts_of())
    assert scheduler.decide(facts_of(), 0.0) == Decision(Mode.DIRECT, "cached_on_decode")
    assert scheduler.decide(facts_of(tokens=TOKENS + 1000), 0.0) == remote
    assert scheduler_of(fleet, threshold=1000).decide(facts_of(), 0.0) == remote


def test_with_no_decode_engine_up_the_threshold_is_on_the_prompt() -> None:
    fleet = Fleet([P0, D0], Ledger(), HealthThresholds(), stale_after=5.0)
    scheduler = scheduler_of(fleet, threshold=1000, on_uncached=True)
    assert scheduler.decide(facts_of(), 0.0).mode is Mode.REMOTE


def test_zero_prefills_everything_remotely_whatever_is_held() -> None:
    fleet = fleet_of(P0, D0)
    computed(fleet, D0, facts_of())
    scheduler = scheduler_of(fleet, threshold=0, on_uncached=True)
    assert scheduler.decide(facts_of(), 0.0).mode is Mode.REMOTE


@pytest.mark.parametrize("is_stream", [False, True])
def test_any_answer_confirms_the_prompt_is_held(*, is_stream: bool) -> None:
    fleet = fleet_of(D0)
    scheduler = scheduler_of(fleet)
    lease = scheduler.lease(Role.DECODE, facts_of(), NO_ENDPOINTS, 0.0)
    timer = scheduler.selection.leg(lease, 0.0, tracks_first_token=is_stream)
    if is_stream:
        timer.first_token(1.0)
    else:
        timer.unary_answer(1.0)
    timer.end(1.0)
    lease.release()
    assert fleet.member(D0).prompts.sent.tokens == TOKENS
