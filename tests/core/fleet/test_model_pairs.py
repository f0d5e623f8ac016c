"""Prefill and decode engines exchange KV caches only if vLLM version and model agree, as during a
rolling upgrade."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import NoEngine, NoPartner
from router.core.events import Event, FellBack, Probed, RequestEnded
from router.core.fleet import models
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds
from router.core.judge.member import Kind, Member
from router.core.membership.entry import Entry
from router.core.plans.lmcache import lmcache
from router.core.plans.nixl import nixl
from router.core.plans.steps import Call, Stream
from router.core.policies import POLICIES
from router.core.routing.request_run import RequestRun
from router.core.routing.schedule import Scheduler
from router.core.values import Endpoint, Receiver, Role
from tests.core.fixtures import D0, D1, D2, P0, P1, REFUSED, candidate, changed, reply, request
from tests.core.fleets import full

FACTS = changed(request(prompt="x" * 400, stream=True, model="m"), model="m")
NAMELESS = changed(FACTS, model=None)
PREFILLED = reply(200, b'{"kv_transfer_params":{"remote_host":"p0"}}')
NO_ONE: frozenset[Endpoint] = frozenset()
OLD, NEW = "0.32.0", "0.33.0"


def card(root: str | None, name: str = "m") -> dict[str, Any]:
    """An entry of /v1/models."""
    return {"id": name, "root": root}


class Cluster:
    """Engines with versions, and one request."""

    def __init__(self, stays_in_zone: bool = False, /, **versions: str | None) -> None:
        self.fleet = Fleet(
            (), Ledger(), HealthThresholds(), stale_after=5.0, stays_in_zone=stays_in_zone
        )
        self.versions = {named(name): version for name, version in versions.items()}
        self.fleet.apply([Entry(e, row) for row, e in enumerate(self.versions)], 0.0)
        for endpoint, version in self.versions.items():
            self.tells(endpoint, version=version)
        self.scheduler = Scheduler(
            self.fleet, dict.fromkeys(Role, POLICIES["round_robin"]), 1, Random(0)
        )
        self.events: list[Event] = []
        record = RequestEnded("id", "/v1/completions", 0.0)
        self.run = RequestRun(self.scheduler, self.events.append, record, Random(0))

    def tells(
        self,
        endpoint: Endpoint,
        root: str | None = "/m",
        *,
        version: str | None = None,
        signal: HealthSignal = HealthSignal.OK,
    ) -> None:
        """What a probe brings."""
        self.fleet.observe(Probed(endpoint, signal, (card(root),), version=version), 0.0)

    def lease(self, role: Role, partner: Endpoint | None = None) -> Endpoint:
        """Choose."""
        return self.scheduler.lease(role, FACTS, NO_ONE, 0.0, partner=partner).endpoint

    @property
    def fallbacks(self) -> list[FellBack]:
        """What did not go as planned."""
        return [event for event in self.events if isinstance(event, FellBack)]


def named(name: str) -> Endpoint:
    """An engine by its short name."""
    return {"p0": P0, "p1": P1, "d0": D0, "d1": D1, "d2": D2}[name]


def test_engines_of_one_version_are_not_mixed() -> None:
    assert not Cluster(p0=OLD, d0=OLD, d1=None).fleet.models.is_mixed
    assert Cluster(p0=OLD, d0=OLD, d1=NEW).fleet.models.is_mixed


def test_an_engine_that_is_drained_makes_no_fleet_mixed() -> None:
    cluster = Cluster(p0=OLD, d0=OLD, d1=NEW)
    entries = [Entry(P0, 0), Entry(D0, 1), Entry(D1, 2, is_draining=True)]
    cluster.fleet.apply(entries, 0.0)
    assert not cluster.fleet.models.is_mixed


@pytest.mark.parametrize("prefill", [OLD, NEW])
def test_a_decode_engine_of_the_prefill_engines_version_is_taken(prefill: str) -> None:
    cluster = Cluster(p0=prefill, d0=OLD, d1=NEW)
    expected = D0 if prefill == OLD else D1
    assert [cluster.lease(Role.DECODE, P0) for _ in range(3)] == [expected] * 3
    assert {cluster.lease(Role.DECODE) for _ in range(4)} == {D0, D1}


def test_an_unknown_version_goes_with_all() -> None:
    cluster = Cluster(p0=None, d0=OLD, d1=NEW)
    assert {cluster.lease(Role.DECODE, P0) for _ in range(4)} == {D0, D1}


def test_an_unmatched_engine_has_not_failed_a_request() -> None:
    """Otherwise a full engine would get no request while another one of its version can."""
    cluster = Cluster(p0=OLD, d0=OLD, d1=OLD, d2=NEW)
    full(cluster.fleet, D0)
    cluster.fleet.tick(1.0)
    leases = [cluster.scheduler.lease(Role.DECODE, FACTS, NO_ONE, 1.0, partner=P0) for _ in "12"]
    assert {lease.endpoint for lease in leases} == {D0, D1}


def test_a_prefill_engine_without_a_partner_gets_nothing() -> None:
    cluster = Cluster(p0=OLD, p1=NEW, d0=NEW)
    assert [cluster.lease(Role.PREFILL) for _ in range(3)] == [P1] * 3
    cluster.tells(D0, version=OLD)
    assert [cluster.lease(Role.PREFILL) for _ in range(3)] == [P0] * 3


def test_a_partner_that_is_down_is_none() -> None:
    cluster = Cluster(p0=OLD, p1=NEW, d0=OLD, d1=NEW)
    assert {cluster.lease(Role.PREFILL) for _ in range(4)} == {P0, P1}
    for _ in range(3):
        cluster.tells(D0, signal=HealthSignal.FAILED)
    assert [cluster.lease(Role.PREFILL) for _ in range(3)] == [P1] * 3


def test_an_equal_name_of_another_model_is_no_partner() -> None:
    cluster = Cluster(p0=OLD, d0=OLD, d1=OLD)
    cluster.tells(D0, "/m-v2")
    assert cluster.fleet.models.is_mixed
    assert [cluster.lease(Role.DECODE, P0) for _ in range(3)] == [D1] * 3
    assert Selection(cluster.fleet).incompatible(Role.DECODE, P0, None) == {D0}
    assert Selection(cluster.fleet).incompatible(Role.DECODE, P0, "other") == set()
    cluster.tells(D0, None)
    assert Selection(cluster.fleet).incompatible(Role.DECODE, P0, "m") == set()


def test_of_cards_with_one_name_the_first_counts() -> None:
    cluster = Cluster(p0=OLD, d0=OLD)
    cards = card("/m-v2"), card("/m")
    cluster.fleet.observe(Probed(D0, HealthSignal.OK, cards), 0.0)
    assert Selection(cluster.fleet).incompatible(Role.DECODE, P0, "m") == {D0}


def test_a_partner_that_left_the_fleet_goes_with_all() -> None:
    cluster = Cluster(p0=OLD, p1=NEW, d0=OLD, d1=NEW)
    cluster.fleet.apply([Entry(P1, 1), Entry(D0, 2), Entry(D1, 3)], 0.0)
    assert {cluster.lease(Role.DECODE, P0) for _ in range(4)} == {D0, D1}


def test_missing_partners_and_missing_engines_have_their_own_messages() -> None:
    cluster = Cluster(p0=OLD, d0=NEW)
    with pytest.raises(NoPartner, match="versions, models or zones differ"):
        cluster.lease(Role.DECODE, P0)
    for _ in range(3):
        cluster.tells(D0, signal=HealthSignal.FAILED)
    with pytest.raises(NoEngine, match="No decode engine can take") as raised:
        cluster.lease(Role.DECODE, P0)
    assert not isinstance(raised.value, NoPartner)


ZONES: dict[Endpoint, str | None] = {P0: "a", D0: "b", D1: "a"}


class Zones(Cluster):
    """Engines of one version in zones, and one request."""

    def __init__(self, zones: dict[Endpoint, str | None], *, stays_in_zone: bool) -> None:
        super().__init__(stays_in_zone, p0=OLD, d0=OLD, d1=OLD)
        entries = [Entry(e, row, zone=zones.get(e)) for row, e in enumerate(self.versions)]
        self.fleet.apply(entries, 0.0)


def test_kv_caches_stay_in_their_zone() -> None:
    cluster = Zones(ZONES, stays_in_zone=True)
    assert {cluster.lease(Role.DECODE, P0) for _ in range(9)} == {D1}
    assert {cluster.lease(Role.DECODE) for _ in range(9)} == {D0, D1}
    with pytest.raises(NoPartner):
        Zones({**ZONES, D1: "b"}, stays_in_zone=True).lease(Role.DECODE, P0)
    with pytest.raises(NoPartner):
        Zones({**ZONES, D1: "b"}, stays_in_zone=True).lease(Role.PREFILL)


def test_an_engine_without_a_zone_is_in_all() -> None:
    cluster = Zones({**ZONES, D0: None, D1: "b"}, stays_in_zone=True)
    assert {cluster.lease(Role.DECODE, P0) for _ in range(9)} == {D0}


def test_an_engine_in_the_same_zone_is_preferred_until_it_has_more_requests() -> None:
    cluster = Zones(ZONES, stays_in_zone=False)
    cluster.scheduler = Scheduler(
        cluster.fleet, dict.fromkeys(Role, POLICIES["least_loaded"]), 1, Random(0)
    )
    leases = [cluster.scheduler.lease(Role.DECODE, FACTS, NO_ONE, 0.0, partner=P0) for _ in "123"]
    assert [lease.endpoint for lease in leases] == [D1, D1, D0]
    for lease in leases:
        lease.release()
    assert {cluster.lease(Role.DECODE) for _ in range(4)} == {D0, D1}


def test_zones_whose_transfers_take_equally_long_are_used_equally() -> None:
    cluster = Zones(ZONES, stays_in_zone=False)
    measured(cluster, crossing=0.1)
    assert [cluster.lease(Role.DECODE, P0) for _ in range(40)].count(D0) == 20


def test_another_zone_is_tried_now_and_then_however_slow() -> None:
    cluster = Zones(ZONES, stays_in_zone=False)
    measured(cluster, crossing=10.0)
    tries = [cluster.lease(Role.DECODE, P0) for _ in range(6400)].count(D0)
    assert 50 < tries < 200
    measured(cluster, crossing=0.1)  # the link has become fast
    assert [cluster.lease(Role.DECODE, P0) for _ in range(40)].count(D0) == 20


def measured(cluster: Zones, *, crossing: float) -> None:
    """Transfers within a zone took 0.1 s, and the others so many."""
    transfers = cluster.fleet.transfers
    assert transfers is not None
    for _ in range(256):
        transfers.add(("a", "a"), 100, 0.1)
        transfers.add(("a", "b"), 100, crossing)


def test_a_prefill_engine_of_lmcache_is_preferred_in_the_zone_of_its_decode_engine() -> None:
    cluster = Cluster(p0=OLD, p1=OLD, d0=OLD)
    zones = {P0: "a", P1: "b", D0: "a"}
    cluster.fleet.apply([Entry(e, n, zone=zone) for n, (e, zone) in enumerate(zones.items())], 0.0)
    assert [cluster.lease(Role.PREFILL, D0) for _ in range(20)].count(P0) >= 19
    transfers = cluster.fleet.transfers
    assert transfers is not None
    for _ in range(12):
        for zone in "ab":
            transfers.add((zone, "a"), 100, 0.1)
    assert [cluster.lease(Role.PREFILL, D0) for _ in range(20)].count(P0) == 10


def test_a_prefill_engine_is_chosen_regardless_of_zones_while_no_decode_engine_is() -> None:
    cluster = Cluster(p0=OLD, p1=OLD, d0=OLD, d1=OLD)
    zones = {P0: "a", P1: "b", D0: "a", D1: "a"}
    cluster.fleet.apply([Entry(e, n, zone=zone) for n, (e, zone) in enumerate(zones.items())], 0.0)
    chosen = []
    for _ in range(8):
        record = RequestEnded("id", "/v1/completions", 0.0)
        run = RequestRun(cluster.scheduler, cluster.events.append, record, Random(0))
        run.start(FACTS, nixl(FACTS), 0.0)
        chosen.append(record.prefill)
        assert isinstance(run.settle(PREFILLED, None, 200, 1.0), Stream)
        run.close()
    assert chosen == [P0, P1] * 4


def test_the_whole_way_keeps_to_the_prefill_engines_version() -> None:
    cluster = Cluster(p0=NEW, d0=OLD, d1=NEW, d2=OLD)
    action = cluster.run.start(FACTS, nixl(FACTS), 0.0)
    assert isinstance(action, Call)
    action = cluster.run.settle(PREFILLED, None, 200, 1.0)
    assert isinstance(action, Stream)
    assert action.endpoint == D1
    assert b"remote_host" in action.body


def test_partners_that_go_away_during_the_prefill_leave_the_prompt_to_others() -> None:
    cluster = Cluster(p0=NEW, d0=OLD, d1=NEW)
    cluster.run.start(FACTS, nixl(FACTS), 0.0)
    cluster.tells(D1, signal=HealthSignal.UNAVAILABLE)
    action = cluster.run.settle(PREFILLED, None, 200, 1.0)
    assert isinstance(action, Stream)
    assert (action.endpoint, action.body) == (D0, FACTS.raw)
    assert cluster.fallbacks == [FellBack(Role.DECODE, "no_partner")]


def test_a_partner_that_refuses_leaves_the_prompt_to_others() -> None:
    cluster = Cluster(p0=NEW, d0=OLD, d1=NEW)
    cluster.run.start(FACTS, nixl(FACTS), 0.0)
    action = cluster.run.settle(PREFILLED, None, 200, 1.0)
    assert isinstance(action, Stream)
    assert action.endpoint == D1
    action = cluster.run.settle(REFUSED, REFUSED, 0, 1.0)
    assert isinstance(action, Stream)
    assert (action.endpoint, action.body) == (D0, FACTS.raw)
    assert cluster.fallbacks[-1] == FellBack(Role.DECODE, "no_partner")
    cluster.run.close()
    assert cluster.fleet.ledger.total() == 0


def test_without_any_pair_requests_go_directly() -> None:
    cluster = Cluster(p0=NEW, d0=OLD)
    action = cluster.run.start(FACTS, nixl(FACTS), 0.0)
    assert isinstance(action, Stream)
    assert action.endpoint == D0
    assert cluster.fallbacks == [FellBack(Role.PREFILL, "no_prefill_engine")]


def test_lmcache_prefills_on_an_engine_like_the_decode_engine() -> None:
    cluster = Cluster(p0=OLD, p1=NEW, d0=NEW)
    receivers = {D0: Receiver("r", (1,), (2,))}
    plan = lmcache(NAMELESS, receivers, iter("ab").__next__, notify=False)
    action = cluster.run.start(NAMELESS, plan, 0.0)
    assert isinstance(action, Call)
    assert action.endpoint == P1


# What is kept of a fleet's pairs is what comparing each engine with each other one would say.

ENGINES = (P0, P1, D0, D1, D2)
CARDS = st.lists(
    st.builds(card, st.sampled_from(["/a", "/b", None]), st.sampled_from(["m", "n"])), max_size=3
)
GOOD = st.builds(
    Probed,
    st.sampled_from(ENGINES),
    st.just(HealthSignal.OK),
    st.none() | CARDS.map(tuple),
    version=st.sampled_from([OLD, NEW, None]),
)
BAD = st.builds(Probed, st.sampled_from(ENGINES), st.just(HealthSignal.UNAVAILABLE))
ROSTERS = st.dictionaries(st.sampled_from(ENGINES), st.booleans())
"""Who is in the fleet, and whether it is drained."""
QUERIES = [
    (role, partner, model)
    for role, partner in [(Role.PREFILL, None), (Role.DECODE, None), (Role.PREFILL, D0)]
    + [(Role.DECODE, prefill) for prefill in (P0, P1)]
    for model in ("m", "n", "unknown", None)
]


def root(member: Member, model: str | None) -> str | None:
    """Of the first card with that name."""
    cards = [card for card in member.cards or () if model in (None, card["id"])]
    return cards[0]["root"] if cards else None


def do_agree(one: Member, other: Member, model: str | None) -> bool:
    """The definition in docs/fleet.md."""
    versions = {one.version, other.version} - {None}
    return len(versions) < 2 and len({root(one, model), root(other, model)} - {None}) < 2


def incompatible(
    fleet: Fleet, role: Role, partner: Endpoint | None, model: str | None
) -> set[Endpoint]:
    """Each engine of the role compared with each of its partners."""
    if partner is not None:
        partners = [member for member in fleet if member.endpoint == partner]
    else:
        partners = [m for m in fleet.pool(Role.DECODE) if m.in_rotation and role is Role.PREFILL]
    return {
        one.endpoint
        for one in fleet.pool(role)
        if not one.is_drained
        and partners
        and not any(do_agree(one, other, model) for other in partners)
    }


@given(st.lists(GOOD | BAD | ROSTERS | st.none(), min_size=5, max_size=20))
def test_incremental_ranking_equals_a_full_comparison(
    steps: list[Probed | dict[Endpoint, bool] | None],
) -> None:
    fleet = Cluster(p0=OLD, p1=NEW, d0=OLD, d1=NEW, d2=None).fleet
    for step in steps:
        if isinstance(step, Probed):
            fleet.observe(step, 0.0)
        elif step is not None:
            fleet.apply([Entry(e, ENGINES.index(e), is_draining=step[e]) for e in step], 0.0)
        else:
            fleet.tick(0.0)
        for query in QUERIES:
            assert Selection(fleet).incompatible(*query) == incompatible(fleet, *query)


class Counted(list[Kind]):
    """Partners that count how often they are looked through."""

    times = 0

    def __iter__(self) -> Iterator[Kind]:
        self.times += 1
        return super().__iter__()


def test_a_hundred_engines_of_two_kinds_take_two_comparisons_with_the_partners() -> None:
    members = [Member(candidate(P0), version=OLD if n % 2 else NEW) for n in range(100)]
    partners = Counted([("0.34.0", None, None)])
    assert models.incompatible(members, partners, "m") == {P0}
    assert partners.times == 2


def test_a_foreign_server_is_detected_once_until_a_change() -> None:
    fleet = Cluster(p0=OLD, p1=NEW, d0=NEW, d1=NEW).fleet
    before = Selection(fleet).incompatible(Role.PREFILL, None, "m")
    assert before == {P0}
    assert Selection(fleet).incompatible(Role.PREFILL, None, "m") is before
    by_partner = Selection(fleet).incompatible(Role.PREFILL, D0, "m")
    assert Selection(fleet).incompatible(Role.PREFILL, D1, "m") is by_partner  # of the same kind
    fleet.tick(0.0)  # a set for each model is much to keep for ever
    assert Selection(fleet).incompatible(Role.PREFILL, None, "m") is not before


def test_nothing_is_kept_for_models_that_only_clients_name() -> None:
    fleet = Cluster(p0=OLD, p1=NEW, d0=NEW).fleet
    unknown = Selection(fleet).incompatible(Role.PREFILL, None, "unknown")
    assert unknown == {P0}
    assert Selection(fleet).incompatible(Role.PREFILL, None, "unknown") is not unknown


FORCED = changed(FACTS, forces_tool=True)


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({"p0": "0.19.1", "d0": "0.18.1"}, "at_or_above_threshold"),
        ({"p0": "0.32.0+cpu", "p1": None}, "at_or_above_threshold"),
        ({"p0": None}, "at_or_above_threshold"),
        ({"p0": "0.32.0", "p1": "0.18.1"}, "forced_tool"),
        ({"p0": "0.1.dev7"}, "forced_tool"),
        ({"p0": "next"}, "forced_tool"),
    ],
)
def test_forced_tool_avoids_refusing_prefill(versions: dict[str, str | None], reason: str) -> None:
    cluster = Cluster(**{"d0": None} | versions)
    facts = changed(FORCED)
    assert cluster.scheduler.decide(facts, 0.0).reason == reason
    assert cluster.scheduler.decide(changed(FACTS), 0.0).reason == "at_or_above_threshold"


def test_an_upgrade_lets_forced_tools_prompts_be_prefilled() -> None:
    cluster = Cluster(d0="0.18.1", p0="0.18.1")
    assert cluster.scheduler.decide(changed(FORCED), 0.0).reason == "forced_tool"
    cluster.tells(P0, version="0.32.0")
    assert cluster.scheduler.decide(changed(FORCED), 0.0).reason == "at_or_above_threshold"
