"""Messages between worker processes."""

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
from router.core.fleet.selection import Selection
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
def test_failed_probes_and_connections_are_shared_but_answers_count_locally(
    event: Event, is_told: bool
) -> None:
    assert for_workers(event) is (event if is_told else None)


def test_long_model_names_are_not_shown() -> None:
    event = LegFailed(D0, FailureKind.REFUSED, 0.0, model="m" * 100_000)
    assert for_workers(event) == LegFailed(D0, FailureKind.REFUSED, 0.0)


def test_an_ejection_is_logged_once() -> None:
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


def test_a_restarted_process_learns_ejections_from_the_others() -> None:
    fleet, other = fleet_up(D0, D1), fleet_up(D0, D1)
    changes = FleetChanges(fleet)
    eject(fleet, D0)
    fleet.tick(0.25)
    [told] = changes.take()
    other.observe_shared(told, 0.25)
    changes.repeat()
    assert list(changes.take()) == [told]
    assert list(changes.take()) == []
    before = other.member(D0).outlier
    other.observe_shared(told, 0.5)
    assert other.member(D0).outlier is before
    for second in range(1, 40):
        fleet.tick(float(second))
    changes.repeat()
    assert list(changes.take()) == []


def test_local_exclusions_and_ends_are_not_sent_to_other_workers() -> None:
    fleet = fleet_up(D0, D1)
    eject(fleet, D0)
    fleet.tick(0.25)
    changes = FleetChanges(fleet)
    for second in range(1, 40):
        fleet.tick(float(second))
    assert fleet.member(D0).exclusion is None
    assert list(changes.take()) == []


def test_computed_prompts_are_reported() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), 5.0, shares_prefixes=True)
    fleet.observe(up(D0), 0.0)
    changes = FleetChanges(fleet)
    prefix = PrefixKeys((1, 2), (16, 32))
    Selection(fleet).lease(D0, 40, 40, prefix).prefilled()
    assert list(changes.take()) == [PrefixesHeld(D0, (prefix,))]
    assert list(changes.take()) == []
