"""By what prompts are known to be held, and what choices forgo: scheduler and fleet together."""

import pytest

from router.core.events import Scraped
from router.core.fleet.fleet import Fleet
from router.core.prefix.coverage import KnownBy
from router.core.values import Endpoint, Gauges, Role
from tests.core.fixtures import D0, D1
from tests.core.prefix.test_cache_events import Cluster, by_ids, chat
from tests.core.prefix.test_choice import (
    TOKENS,
    computed,
    facts_of,
    fleet_of,
    scheduler_of,
    served,
)

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()


def known(fleet: Fleet, endpoint: Endpoint = D0) -> dict[str, int]:
    """Tokens of an engine's prompts, by what told how much of them it held; no zeros."""
    tokens = fleet.member(endpoint).prefix_coverage.tokens
    return {str(by): count for by, count in tokens.items() if count}


def finds(fleet: Fleet, share: float) -> None:
    """D0 finds this share of what is predicted."""
    prefixes = fleet.member(D0).prefixes
    for step in (1, 2):
        prefixes.prompt_tokens = prefixes.predicted_tokens = 5_000 * step
        hits = int(share * 5_000) * step
        fleet.observe(Scraped(D0, Gauges(cache_queries=5_000 * step, cache_hits=hits), own=0), 0.0)


def test_an_engine_without_prompts_has_no_blind_share() -> None:
    coverage = fleet_of(D0).member(D0).prefix_coverage
    assert coverage.blind_share is None
    assert set(coverage.tokens) == set(KnownBy)


def test_without_events_history_tells() -> None:
    fleet = fleet_of(D0)
    served(scheduler_of(fleet), facts_of())
    assert known(fleet) == {"history": TOKENS}
    assert fleet.member(D0).prefix_coverage.blind_share == 0


@pytest.mark.parametrize(("share", "by"), [(0.51, "history"), (0.49, "nothing")])
def test_where_less_than_half_is_found_nothing_is_known(share: float, by: str) -> None:
    fleet = fleet_of(D0)
    finds(fleet, share)
    served(scheduler_of(fleet), facts_of())
    assert known(fleet) == {by: TOKENS}
    assert fleet.member(D0).prefix_coverage.blind_share == float(by == "nothing")


def test_prompts_that_are_not_looked_up_do_not_count() -> None:
    fleet = fleet_of(D0)
    served(scheduler_of(fleet), facts_of(tokens=100))
    served(scheduler_of(fleet, cached_roles=frozenset()), facts_of())
    with scheduler_of(fleet).lease(Role.DECODE, facts_of(), NO_ENDPOINTS, 0.0, computes=False):
        assert known(fleet) == {}


def test_prompts_whose_kv_cache_is_loaded_do_not_count() -> None:
    cluster = Cluster([D0])
    facts = by_ids()
    with cluster.scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0, computes=False):
        assert known(cluster.fleet) == {}


def test_live_events_tell_of_prompts_whose_ids_are_known() -> None:
    cluster = Cluster([D0])
    cluster.lease(by_ids())
    assert known(cluster.fleet) == {"events": 2048}
    cluster.lease(chat("a" * 4096))
    assert known(cluster.fleet) == {"events": 2048, "history": 1024}


@pytest.mark.parametrize("broken", ["connection", "predictions"])
def test_history_tells_where_events_do_not(broken: str) -> None:
    cluster = Cluster([D0])
    if broken == "connection":
        cluster.sources[D0].is_connected = False
    else:
        cluster.cache(D0).measure(5_000, 0)
    cluster.lease(by_ids())
    assert known(cluster.fleet) == {"history": 2048}


@pytest.mark.parametrize(("confirmed", "by"), [(True, "events"), (False, "nothing")])
def test_events_are_doubted_by_counters_unless_answers_confirm_them(
    confirmed: bool, by: str
) -> None:
    cluster = Cluster([D0])
    finds(cluster.fleet, 0.0)
    if confirmed:
        cluster.cache(D0).measure(5_000, 5_000)
    cluster.lease(by_ids())
    assert known(cluster.fleet) == {by: 2048}


def regret(fleet: Fleet, endpoint: Endpoint) -> int:
    """Tokens that an engine was given to compute although another one held them."""
    return fleet.member(endpoint).prefix_coverage.regret


def test_what_lies_where_the_queue_is_too_long_is_regretted() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D1, facts_of())
    busy = fleet.lease(D1, 10 * TOKENS, 10 * TOKENS)
    scheduler = scheduler_of(fleet)
    assert scheduler.rank(Role.DECODE, facts_of()).regret == TOKENS - 1
    assert served(scheduler, facts_of()) == D0
    assert (regret(fleet, D0), regret(fleet, D1)) == (TOKENS - 1, 0)
    busy.release()
    served(scheduler, facts_of())
    served(scheduler, facts_of(beginning="b"))  # none holds it
    assert (regret(fleet, D0), regret(fleet, D1)) == (TOKENS - 1, 0)


def test_regret_is_in_estimated_tokens() -> None:
    fleet = fleet_of(D0, D1)
    facts = facts_of()
    facts.scale = 2.0
    computed(fleet, D1, facts)
    fleet.lease(D1, 10 * TOKENS, 100 * TOKENS)
    assert served(scheduler_of(fleet), facts) == D0
    assert regret(fleet, D0) == TOKENS - 1


def test_a_sample_of_the_log_tells_what_is_held_and_how_far_it_is_trusted() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D0, facts_of())
    finds(fleet, 0.25)
    first, second = scheduler_of(fleet).explained(Role.DECODE, facts_of(), 0.0)
    assert f" uncached=1536 held={TOKENS} trust=0.25 known_by=nothing in_flight" in first
    assert f" uncached={TOKENS} held=0 trust=1 known_by=history in_flight" in second


def test_the_sample_tells_what_events_say() -> None:
    cluster = Cluster()
    cluster.announce(D1, range(1, 1025))
    first, second = cluster.scheduler.explained(Role.DECODE, by_ids(), 0.0)
    assert first.startswith(f"{D1.url} ")
    assert " uncached=1024 held=1024 trust=1 known_by=events in_flight" in first
    assert " uncached=2048 held=0 trust=1 known_by=events in_flight" in second
