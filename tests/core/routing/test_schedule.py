"""The scheduler: the way, the engine, and the refusals."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.candidate import Candidate
from router.core.errors import BadRequest, NoEngine, NotFound
from router.core.events import LegFailed, Probed, Scraped
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds
from router.core.judge.verdict import Exclusion
from router.core.membership.entry import Entry
from router.core.policies import POLICIES, Policy
from router.core.routing.auto_threshold import COLD_THRESHOLD, AutoThreshold
from router.core.routing.schedule import LOAD_FACTOR, Scheduler
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Decision, Endpoint, FailureKind, Gauges, Mode, Role
from router.core.wire.media import IMAGE_TOKENS
from tests.core.fixtures import CHAT, D0, D1, D2, D3, P0, P1, changed, request
from tests.core.fleets import full

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()
FACTS = request(prompt="x" * 40)


def fleet_of(*endpoints: Endpoint, models: Sequence[str] | None = None) -> Fleet:
    """A fleet of up engines that serve these models; None: unknown."""
    fleet = Fleet(endpoints, Ledger(), HealthThresholds(), stale_after=5.0)
    cards = None if models is None else tuple({"id": name} for name in models)
    for endpoint in endpoints:
        fleet.observe(Probed(endpoint, HealthSignal.OK, cards), 0.0)
    return fleet


def scheduler_of(
    fleet: Fleet, policy: Policy = POLICIES["round_robin"], threshold: int = 512
) -> Scheduler:
    """A scheduler with one policy for both roles."""
    return Scheduler(fleet, dict.fromkeys(Role, policy), threshold, Random(0))


def auto_scheduler(fleet: Fleet) -> Scheduler:
    """One whose threshold follows the engines, without tries."""
    policies = dict.fromkeys(Role, POLICIES["round_robin"])
    return Scheduler(fleet, policies, 0, Random(0), auto=AutoThreshold(fleet, 1.0, tries=False))


def chosen(
    scheduler: Scheduler, times: int, exclude: frozenset[Endpoint] = NO_ENDPOINTS
) -> list[Endpoint]:
    """The decode engines of so many requests, each of them over before the next."""
    endpoints = []
    for _ in range(times):
        with scheduler.lease(Role.DECODE, FACTS, exclude, 0.0) as lease:
            endpoints.append(lease.endpoint)
    return endpoints


# Which engine.


def test_a_check_finds_out_whether_a_lease_would_find_an_engine_and_takes_none() -> None:
    fleet = fleet_of(D0, D1)
    scheduler = scheduler_of(fleet)
    scheduler.check(Role.DECODE, FACTS, frozenset({D0}), 0.0)
    assert fleet.ledger.total() == 0
    assert chosen(scheduler, 2) == [D0, D1]
    with pytest.raises(NoEngine, match="decode"):
        scheduler.check(Role.DECODE, FACTS, frozenset({D0, D1}), 0.0)
    with pytest.raises(NoEngine, match="prefill"):
        scheduler.check(Role.PREFILL, FACTS, NO_ENDPOINTS, 0.0)


def test_a_scheduler_continues_the_order_of_its_predecessor() -> None:
    fleet = fleet_of(D0, D1)
    before, after = scheduler_of(fleet), scheduler_of(fleet)
    assert chosen(before, 3) == [D0, D1, D0]
    after.succeed(before)
    assert chosen(after, 3) == [D1, D0, D1]


def test_round_robin_visits_all_in_order() -> None:
    assert chosen(scheduler_of(fleet_of(D0, D1, D2)), 7) == [D0, D1, D2, D0, D1, D2, D0]


def test_each_role_has_its_own_turn() -> None:
    scheduler = scheduler_of(fleet_of(P0, P1, D0, D1))
    assert scheduler.lease(Role.PREFILL, FACTS, NO_ENDPOINTS, 0.0).endpoint == P0
    assert chosen(scheduler, 2) == [D0, D1]
    assert scheduler.lease(Role.PREFILL, FACTS, NO_ENDPOINTS, 0.0).endpoint == P1


def test_an_excluded_engine_is_passed_over_and_the_turn_goes_on() -> None:
    scheduler = scheduler_of(fleet_of(D0, D1, D2))
    assert chosen(scheduler, 1) == [D0]
    assert chosen(scheduler, 1, frozenset({D1})) == [D2]
    assert chosen(scheduler, 3) == [D1, D0, D2]


def test_requests_for_two_models_that_alternate_reach_all_engines_of_both() -> None:
    fleet = fleet_of(D0, D1, D2, D3)
    for endpoint, model in ((D0, "a"), (D1, "a"), (D2, "b"), (D3, "b")):
        fleet.observe(Probed(endpoint, HealthSignal.OK, ({"id": model},)), 0.0)
    scheduler = scheduler_of(fleet)
    turns = [
        scheduler.lease(Role.DECODE, changed(FACTS, model=model), NO_ENDPOINTS, 0.0).endpoint
        for model in "ab" * 4
    ]
    assert turns == [D0, D2, D1, D3] * 2


def test_the_least_loaded_engine_is_chosen_and_equals_take_turns() -> None:
    scheduler = scheduler_of(fleet_of(D0, D1, D2), POLICIES["least_loaded"])
    leases = [scheduler.lease(Role.DECODE, FACTS, NO_ENDPOINTS, 0.0) for _ in range(6)]
    assert [lease.endpoint for lease in leases] == [D0, D1, D2, D0, D1, D2]
    leases[4].release()
    leases[5].release()
    assert chosen(scheduler, 3) == [D1, D2, D1]


def test_a_lease_counts_the_requests_tokens_at_once() -> None:
    fleet = fleet_of(D0)
    scheduler_of(fleet).lease(Role.DECODE, FACTS, NO_ENDPOINTS, 0.0)
    assert (fleet.ledger.in_flight(D0), fleet.ledger.tokens(D0)) == (1, FACTS.tokens)


def test_ranking_takes_nothing_and_does_not_end_the_turn() -> None:
    fleet = fleet_of(D0, D1)
    scheduler = scheduler_of(fleet)
    ranking = scheduler.rank(Role.DECODE, FACTS)
    assert ranking == scheduler.rank(Role.DECODE, FACTS)
    assert ranking.endpoint == D0
    assert [it.endpoint for it in ranking.candidates] == [D0, D1]
    assert ranking.scores == (0.0, 0.0)
    assert fleet.ledger.total() == 0


@pytest.mark.parametrize("role", Role)
def test_without_an_engine_the_client_gets_retry_after(role: Role) -> None:
    with pytest.raises(NoEngine, match=f"No {role} engine"):
        scheduler_of(fleet_of()).lease(role, FACTS, NO_ENDPOINTS, 0.0)


def test_a_policy_sees_the_prompts_tokens_the_time_and_the_random_source() -> None:
    seen = []

    def policy(
        candidates: Sequence[Candidate], uncached: Sequence[int], now: float, rng: Random
    ) -> Sequence[float]:
        seen.append((uncached, now, rng.random()))
        return [0.0] * len(candidates)

    scheduler_of(fleet_of(D0), policy).lease(Role.DECODE, FACTS, NO_ENDPOINTS, 3.5)
    assert seen == [((FACTS.tokens,), 3.5, Random(0).random())]


decodes = [Endpoint(f"http://d{number}", Role.DECODE) for number in range(5)]


@given(
    st.lists(st.floats(min_value=0, max_value=3), min_size=1, max_size=5),
    st.lists(st.frozensets(st.sampled_from(decodes), max_size=3), max_size=12),
)
def test_the_best_score_is_chosen_whoever_was_chosen_before(
    scores: list[float], exclusions: list[frozenset[Endpoint]]
) -> None:
    engines = decodes[: len(scores)]
    score_of = dict(zip(engines, scores, strict=True))
    scheduler = scheduler_of(
        fleet_of(*engines), lambda candidates, *_: [score_of[it.endpoint] for it in candidates]
    )
    for exclude in exclusions:
        free = [engine for engine in engines if engine not in exclude]
        if not free:
            continue
        (choice,) = chosen(scheduler, 1, exclude)
        assert choice in free
        assert score_of[choice] == min(score_of[engine] for engine in free)


@given(st.integers(1, 5), st.integers(0, 23))
def test_equals_are_chosen_equally_often(engines: int, times: int) -> None:
    counts = Counter(chosen(scheduler_of(fleet_of(*decodes[:engines])), times))
    assert max(counts.values(), default=0) - min(counts.get(e, 0) for e in decodes[:engines]) <= 1


# Which way.


def test_the_threshold_and_the_prefill_pool_decide_the_way() -> None:
    remote = Decision(Mode.REMOTE, "at_or_above_threshold")
    assert scheduler_of(fleet_of(P0, D0), threshold=10).decide(FACTS, 0.0) == remote
    assert scheduler_of(fleet_of(P0, D0), threshold=11).decide(FACTS, 0.0).mode is Mode.DIRECT
    alone = scheduler_of(fleet_of(D0), threshold=10).decide(FACTS, 0.0)
    assert alone == Decision(Mode.DIRECT, "no_prefill_pool")


@pytest.mark.parametrize("gone", [P0, D0])
def test_an_automatic_threshold_is_never_remote_without_engines_for_both(gone: Endpoint) -> None:
    fleet = fleet_of(P0, D0)
    scheduler = auto_scheduler(fleet)
    facts = request(prompt="x" * 40_000)
    assert scheduler.decide(facts, 0.0) == Decision(Mode.REMOTE, "cold_default")
    fleet.observe(Probed(gone, HealthSignal.UNAVAILABLE), 0.0)
    decision = scheduler.decide(facts, 0.0)
    assert decision == Decision(Mode.DIRECT, f"no_{gone.role}_engine")


def test_an_automatic_threshold_keeps_direct_only_requests_direct() -> None:
    long = "x" * 40_000
    alone = auto_scheduler(fleet_of(D0)).decide(request(prompt=long), 0.0)
    assert alone == Decision(Mode.DIRECT, "no_prefill_pool")
    several = auto_scheduler(fleet_of(P0, D0)).decide(request(prompt=long, n=2), 0.0)
    assert several == Decision(Mode.DIRECT, "several_answers")


def test_loaded_tokens_are_known_for_the_measurement() -> None:
    facts = request(prompt="x" * 40_000)
    for scheduler, loads in (
        (scheduler_of(fleet_of(P0, D0)), 0),
        (auto_scheduler(fleet_of(P0, D0)), 10_000),
    ):
        lease = scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0, computes=False)
        assert lease.loads == pytest.approx(loads, abs=LOAD_FACTOR)
        assert scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0).loads == 0


def test_the_current_threshold_is_exported() -> None:
    assert scheduler_of(fleet_of(P0, D0), threshold=512).threshold_now == 512.0
    assert auto_scheduler(fleet_of(P0, D0)).threshold_now == COLD_THRESHOLD


# How long a prompt is.


@pytest.mark.parametrize(("text", "tokens"), [("x" * 4000, 1000), ("\u4e2d" * 4000, 3000)])
def test_work_counts_bytes_threshold_counts_characters(text: str, tokens: int) -> None:
    fleet = fleet_of(P0, D0)
    facts = request(prompt=text)
    decision = scheduler_of(fleet, threshold=1001).decide(facts, 0.0)
    assert decision == Decision(Mode.DIRECT, "below_threshold")
    scheduler_of(fleet).lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0)
    assert fleet.ledger.load(D0).pending == tokens
    assert fleet.ledger.tokens(D0) == 1000


def test_an_automatic_threshold_is_compared_with_the_tokens_that_there_probably_are() -> None:
    cjk = request(prompt="\u4e2d" * 4000)
    assert cjk.tokens < COLD_THRESHOLD
    assert auto_scheduler(fleet_of(P0, D0)).decide(cjk, 0.0).mode is Mode.REMOTE


def test_uncached_tokens_are_counted_by_bytes_too() -> None:
    fleet = fleet_of(D0)
    policies = dict.fromkeys(Role, POLICIES["shortest_expected_delay"])
    scheduler = Scheduler(fleet, policies, 0, Random(0), frozenset(Role))
    text = "\u4e2d" * 5120
    for prompt, pending in ((text, 3840), (text + "\u6587" * 5120, 3840)):
        facts = request(prompt=prompt)
        scheduler.decide(facts, 0.0)
        with scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0) as lease:
            assert fleet.ledger.load(D0).pending == pending
            lease.prefilled()


@pytest.mark.parametrize(("pool", "has_keys"), [((D0,), False), ((P0, D0), True)])
def test_caches_are_compared_beside_prefill(pool: tuple[Endpoint, ...], has_keys: bool) -> None:
    fleet = fleet_of(*pool)
    policies = dict.fromkeys(Role, POLICIES["least_loaded"])
    scheduler = Scheduler(fleet, policies, 0, Random(0), compared_roles=frozenset(Role))
    facts = request(prompt="x" * 4000)
    scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0)
    assert (facts.prefix is not None) is has_keys


def test_learned_tokens_per_byte_count_as_work() -> None:
    fleet = fleet_of(D0, models=["m"])
    for _ in range(10):
        fleet.token_ratios.learn("m", 8000, 4000)
    facts = request(prompt="x" * 8000, model="m")
    scheduler = scheduler_of(fleet)
    scheduler.decide(facts, 0.0)
    scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0)
    assert fleet.ledger.load(D0).pending == 4000


@pytest.mark.parametrize(("images", "mode"), [(1, Mode.DIRECT), (10, Mode.REMOTE)])
def test_images_count_in_the_threshold_and_as_work(images: int, mode: Mode) -> None:
    fleet = fleet_of(P0, D0, models=["m"])
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}] * images
    facts = request(CHAT, model="m", messages=[{"role": "user", "content": content}])
    scheduler = scheduler_of(fleet, threshold=4096)
    assert scheduler.decide(facts, 0.0).mode is mode
    fleet.token_ratios.learn("m", 80_000, 10_000, has_media=True)
    scheduler.decide(facts, 0.0)
    scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0)
    assert fleet.ledger.load(D0).pending == images * IMAGE_TOKENS // 2


# Adapters.

CARDS = ({"id": "base"}, {"id": "sql", "parent": "base"}, {"id": "css", "parent": "base"})


def of_adapter(
    model: str,
    policy: str = "shortest_expected_delay",
    busy: int = 0,
    roles: frozenset[Role] = frozenset(Role),
    **gauges: Gauges,
) -> list[Endpoint]:
    """Where two requests for a model go if two engines have these gauges, and the first one has
    this many more requests."""
    fleet = fleet_of(D0, D1)
    for endpoint, name in ((D0, "first"), (D1, "second")):
        fleet.observe(Probed(endpoint, HealthSignal.OK, CARDS), 0.0)
        fleet.observe(Scraped(endpoint, gauges.get(name), 0), 0.0)
    fleet.ledger.load(D0).add(busy, 0, 0)
    scheduler = Scheduler(fleet, {Role.DECODE: POLICIES[policy]}, 0, Random(0), roles)
    facts = request(prompt="x", model=model)
    return [scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0).endpoint for _ in range(2)]


LOADED = Gauges(running=0, adapters=("css", "sql"))
IN_USE = Gauges(running=0, adapters=("css",), adapters_are_full=True)


def test_an_engine_that_has_the_adapter_loaded_is_preferred() -> None:
    assert of_adapter("sql", second=LOADED)[0] == D1
    assert of_adapter("sql", first=LOADED) == [D0, D1]
    assert of_adapter("sql", first=LOADED, busy=9) == [D1, D1]
    assert of_adapter("base", first=LOADED) == [D0, D1]
    assert of_adapter("sql") == of_adapter("sql", first=LOADED, second=LOADED) == [D0, D1]


def test_an_engine_whose_adapters_are_all_in_use_is_avoided() -> None:
    assert of_adapter("sql", first=IN_USE, second=Gauges(running=0)) == [D1, D1]
    assert of_adapter("css", first=IN_USE, second=Gauges(running=0))[0] == D0


def test_adapters_do_not_count_where_caches_do_not() -> None:
    assert of_adapter("sql", "round_robin", roles=frozenset(), first=LOADED) == [D0, D1]


# Which model.


def decide(fleet: Fleet, model: str | None) -> Decision:
    """The decision for a request that names a model, or none."""
    return scheduler_of(fleet).decide(request(prompt="x", model=model), 0.0)


def test_an_unknown_model_is_not_found_in_vllms_words() -> None:
    with pytest.raises(NotFound, match=r"The model `big` does not exist\.") as refusal:
        decide(fleet_of(D0, models=["tiny"]), "big")
    assert refusal.value.param == "model"


@pytest.mark.parametrize("model", ["tiny", "alias"])
def test_a_listed_model_is_served(model: str) -> None:
    assert decide(fleet_of(D0, models=["tiny", "alias"]), model).mode is Mode.DIRECT


def test_while_nothing_is_known_any_model_may_exist() -> None:
    assert decide(fleet_of(D0), "big").mode is Mode.DIRECT


def test_unknown_models_are_accepted_while_a_usable_engines_models_are_unknown() -> None:
    fleet = fleet_of(D0, D1)
    fleet.observe(Probed(D0, HealthSignal.OK, ({"id": "tiny"},)), 0.0)
    assert decide(fleet, "big").mode is Mode.DIRECT


def test_an_absent_engine_with_unknown_models_leaves_no_doubt() -> None:
    fleet = fleet_of(D0, D1)
    fleet.observe(Probed(D0, HealthSignal.OK, ({"id": "tiny"},)), 0.0)
    fleet.observe(Probed(D1, HealthSignal.UNAVAILABLE), 0.0)
    with pytest.raises(NotFound):
        decide(fleet, "big")


def test_while_every_engine_is_away_any_model_may_exist() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), stale_after=5.0)
    assert decide(fleet, "big").mode is Mode.DIRECT


def test_a_model_whose_engine_is_away_is_known_and_has_no_engine() -> None:
    fleet = fleet_of(D0, models=["tiny"])
    fleet.observe(Probed(D0, HealthSignal.UNAVAILABLE), 0.0)
    scheduler = scheduler_of(fleet)
    facts = request(prompt="x", model="tiny")
    assert scheduler.decide(facts, 0.0).mode is Mode.DIRECT
    with pytest.raises(NoEngine):
        scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0)


def test_a_request_without_a_model_goes_to_the_only_one() -> None:
    assert decide(fleet_of(D0, models=["tiny"]), None).mode is Mode.DIRECT
    assert decide(fleet_of(D0), None).mode is Mode.DIRECT


def test_a_request_without_a_model_is_refused_where_there_are_several() -> None:
    with pytest.raises(BadRequest, match="serves a, b") as refusal:
        decide(fleet_of(D0, models=["b", "a"]), None)
    assert refusal.value.param == "model"


# Log of a choice, and the alternatives of a request.


def test_a_choice_is_explained_best_first_and_takes_nothing() -> None:
    fleet = fleet_of(D0, D1)
    scheduler = scheduler_of(fleet, POLICIES["least_loaded"])
    lease = scheduler.lease(Role.DECODE, FACTS, NO_ENDPOINTS, 0.0)
    first, second = scheduler.explained(Role.DECODE, FACTS, 0.0)
    assert first.startswith(
        f"{D1.url} score=0 uncached=10 in_flight=0 other_requests=0 slowdown=1 slow_start_weight=1"
    )
    assert second.startswith(f"{lease.endpoint.url} score=1 uncached=10 in_flight=1")
    assert fleet.ledger.total() == 1


def test_a_request_could_go_to_an_engine_that_is_not_blocked() -> None:
    fleet = fleet_of(D0, D1)
    scheduler = scheduler_of(fleet)
    assert scheduler.has_other(Role.DECODE, FACTS, frozenset({D0}), 0.0)
    full(fleet, D1)
    assert not scheduler.has_other(Role.DECODE, FACTS, frozenset({D0}), 0.0)
    assert scheduler.has_other(Role.DECODE, FACTS, frozenset({D0}), 0.5)
    for _ in range(5):
        fleet.observe(LegFailed(D1, FailureKind.TIMEOUT), 0.5)
    assert not scheduler.has_other(Role.DECODE, FACTS, frozenset({D0}), 0.5)
    assert not scheduler_of(fleet_of(D0)).has_other(Role.DECODE, FACTS, frozenset({D0}), 0.0)


@pytest.mark.parametrize(("computes", "pending"), [(True, FACTS.tokens), (False, 0)])
def test_only_the_computing_engine_has_the_prompt_ahead(computes: bool, pending: int) -> None:
    fleet = fleet_of(D0)
    scheduler = scheduler_of(fleet)
    lease = scheduler.lease(Role.DECODE, FACTS, NO_ENDPOINTS, 0.0, computes=computes)
    assert fleet.ledger.load(D0).pending == lease.pending_there == pending
    leg = scheduler.selection.leg(lease, 0.0, tracks_first_token=True)
    leg.first_token(0.1)
    assert fleet.ledger.load(D0).pending == 0
    lease.release()
    leg.end(0.2)
    assert (fleet.ledger.load(D0).pending, fleet.member(D0).speed.counts.open) == (0, 0)


def test_a_prompt_of_a_few_letters_waits_for_an_engine_that_hangs_no_longer_than_others() -> None:
    fleet = fleet_of(D0, D1)
    fleet.member(D0).speed.counts.is_warm = True
    lease = scheduler_of(fleet).lease(Role.DECODE, request(prompt="Hi!"), frozenset({D1}), 0.0)
    Selection(fleet).leg(lease, 0.0, tracks_first_token=True)
    for tick in range(1, 10):
        fleet.tick(TICK_SECONDS * tick)
    assert fleet.member(D0).exclusion is Exclusion.STALLED  # 2 s are over


def test_a_client_learns_that_all_engines_were_tried() -> None:
    with pytest.raises(NoEngine, match="1 failed this request"):
        scheduler_of(fleet_of(D0)).lease(Role.DECODE, FACTS, frozenset({D0}), 0.0)


def test_an_unserved_model_is_reported_to_the_client() -> None:
    facts = request(prompt="x", model="big")
    with pytest.raises(NoEngine, match="none of these serves the model"):
        scheduler_of(fleet_of(D0, models=["tiny"])).lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0)


def test_requests_before_discovery_get_a_503_that_explains_it() -> None:
    with pytest.raises(NoEngine, match=r"can take this request now: none is known yet\."):
        scheduler_of(fleet_of()).lease(Role.DECODE, FACTS, NO_ENDPOINTS, 0.0)


def test_without_a_prefill_engine_that_takes_requests_all_go_directly() -> None:
    fleet = fleet_of(P0, D0)
    assert scheduler_of(fleet, threshold=10).decide(FACTS, 0.0).mode is Mode.REMOTE
    fleet.apply([Entry(P0, 0, is_draining=True), Entry(D0, 1)], 1.0)
    assert scheduler_of(fleet, threshold=10).decide(FACTS, 0.0).mode is Mode.DIRECT


@pytest.mark.parametrize(
    ("setting", "version", "continues"),
    [
        ("auto", "0.32.0", True),
        ("auto", "0.29.0", False),
        ("on", "0.29.0", True),
        ("off", "0.32.0", False),
    ],
)
def test_streams_go_on_by_default_only_where_engines_are_known_to_take_token_ids(
    setting: str, version: str, continues: bool
) -> None:
    fleet = fleet_of(D0)
    fleet.observe(Probed(D0, HealthSignal.OK, version=version), 0.0)
    policies = dict.fromkeys(Role, POLICIES["round_robin"])
    scheduler = Scheduler(fleet, policies, 1, Random(0), continuation=setting)
    assert scheduler.continues == continues
