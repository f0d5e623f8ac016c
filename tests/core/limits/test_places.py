"""Where requests that were let in are counted, and that leases keep to it."""

from collections.abc import Sequence
from random import Random

import pytest

from router.core.candidate import Candidate
from router.core.fleet.selection import Selection
from router.core.limits.places import Place, Places, group_of
from router.core.request_facts import Destinations
from router.core.routing.schedule import Scheduler
from router.core.shared_table import SharedTable
from router.core.values import Endpoint, Role
from tests.core.fixtures import D0, D1, D2, request
from tests.core.fleets import NO_ENDPOINTS, fleet_up

FACTS = request()


def first(candidates: Sequence[Candidate], *_: object) -> list[float]:
    """A policy that prefers those that joined first, however full they are."""
    return [float(each.ordinal) for each in candidates]


class Stage:
    """Three engines with so many places each."""

    def __init__(self, per_engine: int | None = 1) -> None:
        self.fleet = fleet_up(D0, D1, D2)
        self.places = Places(per_engine)
        self.scheduler = Scheduler(self.fleet, dict.fromkeys(Role, first), 512, Random(0))

    def lease(self, place: Place, exclude: frozenset[Endpoint] = NO_ENDPOINTS) -> Endpoint:
        """Where a request goes."""
        return self.scheduler.lease(Role.DECODE, FACTS, exclude, 0.0, place=place).endpoint

    def engines(self) -> list[Candidate]:
        """All, in order."""
        return Selection(self.fleet).candidates(Role.DECODE, None, NO_ENDPOINTS, 0.0)


@pytest.mark.parametrize(
    ("per_engine", "chosen"),
    [(None, [D0] * 4), (1, [D0, D1, D2, D0]), (2, [D0, D0, D1, D1])],
)
def test_policy_sees_engines_with_room(per_engine: int | None, chosen: list[Endpoint]) -> None:
    stage = Stage(per_engine)
    assert [stage.lease(Place(stage.places)) for _ in range(4)] == chosen
    assert stage.places.taken == 4


def test_a_reserved_place_does_not_divert_its_request() -> None:
    stage = Stage()
    place = Place(stage.places)
    place.move(stage.engines()[0].load)
    other = Place(stage.places)
    assert stage.lease(other) == D1
    assert stage.lease(place) == D0
    assert stage.places.taken == 2


def test_a_request_that_moves_leaves_its_place_to_others() -> None:
    stage = Stage()
    place = Place(stage.places)
    assert stage.lease(place) == D0
    assert stage.lease(place, frozenset({D0})) == D1
    assert stage.lease(Place(stage.places)) == D0


def test_a_failed_engine_offers_no_place_to_the_request() -> None:
    stage = Stage()
    assert stage.lease(Place(stage.places), frozenset({D1, D2})) == D0
    assert stage.lease(Place(stage.places), frozenset({D1, D2})) == D0


def test_of_engines_that_a_gateway_names_the_first_with_room_is_chosen() -> None:
    """The next ones are there for when it is not."""
    stage = Stage()
    facts = request()
    facts.destinations = Destinations((), (D2, D1, D0))

    def chosen() -> Endpoint:
        place = Place(stage.places)
        return stage.scheduler.lease(Role.DECODE, facts, NO_ENDPOINTS, 0.0, place=place).endpoint

    assert [chosen() for _ in range(4)] == [D2, D1, D0, D2]


def test_the_first_with_room_is_found() -> None:
    stage = Stage()
    one, two, three = stage.engines()
    assert stage.places.with_room([one, two], 0.0) is one
    places = [Place(stage.places) for _ in range(2)]
    for place, engine in zip(places, (one, two), strict=True):
        place.move(engine.load)
    assert stage.places.with_room([one, two, three], 0.0) is three
    assert stage.places.with_room([one, two], 0.0) is None
    for place in places * 2:  # perhaps reported twice
        place.move(None)
    assert stage.places.taken == 0


def test_another_engine_at_the_address_begins_with_none() -> None:
    stage = Stage()
    place = Place(stage.places)
    assert stage.lease(place) == D0
    member = stage.fleet.member(D0)
    member.view.load = stage.fleet.ledger.renew(D0)
    assert stage.lease(Place(stage.places)) == D0
    place.move(None)
    assert stage.lease(Place(stage.places)) == D1


def test_a_group_is_the_model_and_the_engines_that_a_gateway_names() -> None:
    facts = request(model="m")
    assert group_of(facts) == ("m", None)
    facts.destinations = Destinations((), (D1,))
    assert group_of(facts) == ("m", (D1,))


def test_a_request_on_the_same_engine_takes_no_second_place() -> None:
    """That would end the wait of others of its process in the eyes of other processes."""
    shared = SharedTable(memoryview(bytearray(SharedTable.size(2, 1))), 2, 1)
    one, two = shared.column(0), shared.column(1)
    for column in (one, two):
        column.place({D0: 0})
    place = Place(Places(2))
    load, other = one.load(D0), two.load(D0).admitted
    place.move(load)
    load.admitted.wait(10.0)
    other.add(1)
    place.move(load)
    assert (load.admitted.own, other.room(3, 10.0) <= 0) == (1, True)
