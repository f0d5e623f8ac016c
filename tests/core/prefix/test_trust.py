"""Trust in predicted hits: the engine's own counters decide."""

import pytest

from router.core.events import Scraped
from router.core.fleet.fleet import Fleet
from router.core.fleet.selection import Selection
from router.core.prefix.trust import SETTLED_SCRAPES, KnownBy, PrefixTrust
from router.core.values import Endpoint, Gauges, Role
from tests.core.fixtures import D0, D1
from tests.core.kv_events.test_lookups import Cluster, by_ids, chat
from tests.core.prefix.test_choice import (
    TOKENS,
    computed,
    facts_of,
    fleet_of,
    scheduler_of,
    served,
)

PROMPT = 10_000
"""Tokens between two scrapes."""


def told(trust: PrefixTrust, predicted: float, found: float, scrapes: int = 30) -> float:
    """The trust after so many scrapes with these shares of the prompts predicted and found."""
    start = 1 + (trust._before[0] if trust._before else 0)
    for place in range(scrapes):
        tokens = start + PROMPT * place
        trust.observe(tokens, int(predicted * tokens), counted(tokens, int(found * tokens)))
    return trust.share


def counted(queries: int | None, hits: int | None, generated: int | None = None) -> Gauges:
    """The engine's counters."""
    return Gauges(cache_queries=queries, cache_hits=hits, generated=generated)


def test_at_first_predictions_are_believed() -> None:
    trust = PrefixTrust()
    assert trust.share == 1.0
    assert not trust.is_measured


@pytest.mark.parametrize(
    ("predicted", "found", "expected"),
    [(0.5, 0.5, 1.0), (0.5, 0.25, 0.5), (0.8, 0.0, 0.0), (0.4, 0.6, 1.0), (0.5, 0.41, 1.0)],
)
def test_it_is_the_found_share_of_predicted_tokens(
    predicted: float, found: float, expected: float
) -> None:
    trust = PrefixTrust()
    assert told(trust, predicted, found) == pytest.approx(expected, abs=0.01)
    assert trust.is_measured


@pytest.mark.parametrize("per_estimate", [0.5, 4.0])
def test_estimated_tokens_need_not_be_the_engines(per_estimate: float) -> None:
    trust = PrefixTrust()
    for tokens in range(0, 50 * PROMPT, PROMPT):
        real = int(per_estimate * tokens)
        trust.observe(tokens, tokens // 2, counted(real, real // 2))
    assert trust.share == pytest.approx(1.0)
    assert trust.room == pytest.approx(1 / per_estimate)


def test_prompts_of_others_prove_nothing_and_take_room() -> None:
    trust = PrefixTrust()
    for tokens in range(0, 50 * PROMPT, PROMPT):
        trust.observe(tokens, tokens // 2, counted(5 * tokens // 2, tokens // 2))
    assert trust.share == pytest.approx(1.0)
    assert trust.room == pytest.approx(1 / 4)


def test_answers_take_room() -> None:
    trust = PrefixTrust()
    for tokens in range(0, 50 * PROMPT, PROMPT):
        trust.observe(tokens, 0, counted(tokens, 0, tokens))
    assert trust.room == pytest.approx(0.5)


def test_a_prompt_that_is_looked_up_and_not_yet_answered_takes_no_room() -> None:
    """Less room would evict predictions, which more room does not bring back."""
    trust = PrefixTrust()
    prompts = 100 * PROMPT
    for tokens in range(0, prompts + 1, PROMPT):
        trust.observe(tokens, 0, counted(tokens, 0))
    for _ in range(60):  # a minute without requests
        trust.observe(prompts, 0, counted(prompts, 0))
    trust.observe(prompts, 0, counted(prompts + PROMPT, 0))
    assert trust.room == pytest.approx(1.0, rel=0.02)


def test_room_follows_the_demand_of_others() -> None:
    trust = PrefixTrust()
    for tokens in range(0, 200 * PROMPT, PROMPT):
        trust.observe(tokens, 0, counted(tokens, 0))
    queries = start = 200 * PROMPT
    for tokens in range(start, 1500 * PROMPT, PROMPT):
        trust.observe(tokens, 0, counted(queries, 0))
        queries += 2 * PROMPT
    assert trust.room == pytest.approx(0.5, rel=0.05)


def test_it_follows_an_engine_that_changes() -> None:
    trust = PrefixTrust()
    told(trust, 0.5, 0.0)
    assert told(trust, 0.5, 0.5, scrapes=100) == 1.0


def test_few_predicted_tokens_prove_nothing() -> None:
    trust = PrefixTrust()
    trust.observe(0, 0, counted(0, 0))
    trust.observe(PROMPT, 3_000, counted(PROMPT, 0))
    assert trust.share == 1.0


def test_an_engine_without_counters_is_believed() -> None:
    trust = PrefixTrust()
    for tokens in range(0, 30 * PROMPT, PROMPT):
        trust.observe(tokens, tokens, counted(None, None))
    assert not trust.is_measured


def test_counters_that_began_anew_are_not_compared_with_older_ones() -> None:
    trust = PrefixTrust()
    told(trust, 0.5, 0.5)
    trust.observe(40 * PROMPT, 20 * PROMPT, counted(10, 0))
    assert trust.share == pytest.approx(1.0, abs=0.01)


def test_an_engine_that_looks_nothing_up_holds_nothing() -> None:
    trust = PrefixTrust()
    trust.observe(0, 0, counted(0, 0))
    trust.observe(PROMPT, 3_000, counted(0, 0))
    assert not trust.is_measured
    trust.observe(2 * PROMPT, 6_000, counted(0, 0))
    assert trust.share == 0.0
    assert trust.is_measured


def test_its_source_is_reported() -> None:
    trust = PrefixTrust()
    told(trust, 0.5, 0.25)
    recent = trust.recent
    assert recent.predicted == pytest.approx(recent.prompts / 2, rel=0.01)
    assert recent.hits == pytest.approx(recent.queries / 4, rel=0.01)
    assert recent.prompts == pytest.approx(recent.queries)


class Counters:
    """An engine of which half of each prompt is predicted, and the share that it finds."""

    def __init__(self) -> None:
        self.trust = PrefixTrust()
        self._tokens = self._hits = 0

    def finds(self, share: float, scrapes: int) -> bool:
        """Whether predictions are called far off after so many scrapes with this share found."""
        for _ in range(scrapes):
            self._tokens += PROMPT
            self._hits += int(share * PROMPT)
            gauges = counted(self._tokens, self._hits)
            self.trust.observe(self._tokens, self._tokens // 2, gauges)
        return self.trust.is_far_off


def test_predictions_are_far_off_when_they_have_been_for_a_while() -> None:
    engine = Counters()
    assert not engine.finds(0.0, SETTLED_SCRAPES)  # the first one gives no difference
    assert engine.finds(0.0, 1)


def test_they_are_right_again_when_they_are_believed_again() -> None:
    engine = Counters()
    assert engine.finds(0.0, 30)
    assert engine.finds(0.35, 200)  # better, and still off
    assert not engine.finds(0.5, 200)


def test_an_engine_that_wavers_is_judged_once() -> None:
    engine = Counters()
    engine.finds(0.0, 30)
    assert all(engine.finds(share, 3) for _ in range(40) for share in (0.5, 0.0))


NO_ENDPOINTS: frozenset[Endpoint] = frozenset()


def known(fleet: Fleet, endpoint: Endpoint = D0) -> dict[str, int]:
    """Tokens of an engine's prompts, by source of cache knowledge; no zeros."""
    tokens = fleet.member(endpoint).prompts.coverage.tokens
    return {str(by): count for by, count in tokens.items() if count}


def finds(fleet: Fleet, share: float) -> None:
    """D0 finds this share of what is predicted."""
    prefixes = fleet.member(D0).prompts.sent
    for step in (1, 2):
        prefixes.prompt_tokens = prefixes.predicted_tokens = 5_000 * step
        hits = int(share * 5_000) * step
        fleet.observe(Scraped(D0, Gauges(cache_queries=5_000 * step, cache_hits=hits), own=0), 0.0)


def test_an_engine_without_prompts_has_no_blind_share() -> None:
    coverage = fleet_of(D0).member(D0).prompts.coverage
    assert coverage.blind_share is None
    assert set(coverage.tokens) == set(KnownBy)


def test_without_events_history_predicts() -> None:
    fleet = fleet_of(D0)
    served(scheduler_of(fleet), facts_of())
    assert known(fleet) == {"history": TOKENS}
    assert fleet.member(D0).prompts.coverage.blind_share == 0


@pytest.mark.parametrize(("share", "by"), [(0.51, "history"), (0.49, "nothing")])
def test_where_less_than_half_is_found_nothing_is_known(share: float, by: str) -> None:
    fleet = fleet_of(D0)
    finds(fleet, share)
    served(scheduler_of(fleet), facts_of())
    assert known(fleet) == {by: TOKENS}
    assert fleet.member(D0).prompts.coverage.blind_share == float(by == "nothing")


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


def test_live_events_cover_prompts_with_known_ids() -> None:
    cluster = Cluster([D0])
    cluster.lease(by_ids())
    assert known(cluster.fleet) == {"events": 2048}
    cluster.lease(chat("a" * 4096))
    assert known(cluster.fleet) == {"events": 2048, "history": 1024}


@pytest.mark.parametrize("broken", ["connection", "predictions"])
def test_history_covers_prompts_unknown_to_events(broken: str) -> None:
    cluster = Cluster([D0])
    if broken == "connection":
        cluster.sources[D0].is_connected = False
    else:
        cluster.cache(D0).measure(5_000, 0)
    cluster.lease(by_ids())
    assert known(cluster.fleet) == {"history": 2048}


@pytest.mark.parametrize(("confirmed", "by"), [(True, "events"), (False, "nothing")])
def test_counters_overrule_unconfirmed_events(confirmed: bool, by: str) -> None:
    cluster = Cluster([D0])
    finds(cluster.fleet, 0.0)
    if confirmed:
        cluster.cache(D0).measure(5_000, 5_000)
    cluster.lease(by_ids())
    assert known(cluster.fleet) == {by: 2048}


def regret(fleet: Fleet, endpoint: Endpoint) -> int:
    """Tokens that an engine was given to compute although another one held them."""
    return fleet.member(endpoint).prompts.coverage.regret


def test_prefixes_left_for_a_long_queue_count_as_regret() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D1, facts_of())
    busy = Selection(fleet).lease(D1, 10 * TOKENS, 10 * TOKENS)
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
    Selection(fleet).lease(D1, 10 * TOKENS, 100 * TOKENS)
    assert served(scheduler_of(fleet), facts) == D0
    assert regret(fleet, D0) == TOKENS - 1


def test_a_logged_choice_has_held_tokens_and_trust() -> None:
    fleet = fleet_of(D0, D1)
    computed(fleet, D0, facts_of())
    finds(fleet, 0.25)
    first, second = scheduler_of(fleet).explained(Role.DECODE, facts_of(), 0.0)
    assert f" uncached=1536 held={TOKENS} trust=0.25 known_by=nothing in_flight" in first
    assert f" uncached={TOKENS} held=0 trust=1 known_by=history in_flight" in second


def test_the_sample_has_event_predictions() -> None:
    cluster = Cluster()
    cluster.announce(D1, range(1, 1025))
    first, second = cluster.scheduler.explained(Role.DECODE, by_ids(), 0.0)
    assert first.startswith(f"{D1.url} ")
    assert " uncached=1024 held=1024 trust=1 known_by=events in_flight" in first
    assert " uncached=2048 held=0 trust=1 known_by=events in_flight" in second
