"""What worker processes tell each other."""

import pytest

from router.core.events import (
    Ejected,
    Event,
    LegAnswered,
    LegDone,
    LegFailed,
    PrefixesHeld,
    SpeedProbed,
)
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.worker_events import FleetChanges, for_workers
from router.core.health import HealthThresholds
from router.core.request_facts import PrefixKeys
from router.core.values import FailureKind
from tests.core.fixtures import D0, D1
from tests.core.fleets import eject, fleet_up, up


@pytest.mark.parametrize(
    ("event", "is_told"),
    [
        (up(D0), True),
        (SpeedProbed(D0, "failed", "it refused"), True),
        (LegFailed(D0, FailureKind.REFUSED, 0.0), True),
        (LegFailed(D0, FailureKind.BROKEN, 0.0), False),
        (LegAnswered(D0, 500, 0.1), False),
        (LegDone(D0), False),
    ],
)
def test_probes_and_connections_that_fail_are_told_and_each_counts_its_own_answers(
    event: Event, is_told: bool
) -> None:
    assert for_workers(event) is (event if is_told else None)


def test_the_name_of_a_model_that_may_be_long_is_not_told() -> None:
    event = LegFailed(D0, FailureKind.REFUSED, 0.0, model="m" * 100_000)
    assert for_workers(event) == LegFailed(D0, FailureKind.REFUSED, 0.0)


def test_an_ejection_is_told_once() -> None:
    fleet = fleet_up(D0, D1)
    changes = FleetChanges(fleet)
    fleet.tick(0.0)
    assert list(changes.take()) == []
    eject(fleet, D0)
    fleet.tick(0.25)
    [told] = changes.take()
    assert isinstance(told, Ejected)
    assert (told.endpoint, told.since, told.until) == (D0, 0.0, 30.0)
    assert told.cause == "it answered a request with 500"
    assert list(changes.take()) == []


def test_a_restarted_process_is_told_of_ejections_and_the_others_take_them_for_known() -> None:
    fleet, other = fleet_up(D0, D1), fleet_up(D0, D1)
    changes = FleetChanges(fleet)
    eject(fleet, D0)
    fleet.tick(0.25)
    [told] = changes.take()
    other.observe_shared(told, 0.25)
    changes.tell_again()
    assert list(changes.take()) == [told]
    assert list(changes.take()) == []
    before = other.member(D0).outlier
    other.observe_shared(told, 0.5)
    assert other.member(D0).outlier is before
    for second in range(1, 40):
        fleet.tick(float(second))
    changes.tell_again()
    assert list(changes.take()) == []


def test_an_exclusion_that_all_see_by_themselves_and_an_end_are_not_told() -> None:
    fleet = fleet_up(D0, D1)
    eject(fleet, D0)
    fleet.tick(0.25)
    changes = FleetChanges(fleet)
    for second in range(1, 40):
        fleet.tick(float(second))
    assert fleet.member(D0).exclusion is None
    assert list(changes.take()) == []


def test_prompts_that_an_engine_has_computed_are_told() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), 5.0, shares_prefixes=True)
    fleet.observe(up(D0), 0.0)
    changes = FleetChanges(fleet)
    prefix = PrefixKeys((1, 2), (16, 32))
    fleet.lease(D0, 40, 40, prefix).prefilled()
    assert list(changes.take()) == [PrefixesHeld(D0, (prefix,))]
    assert list(changes.take()) == []
