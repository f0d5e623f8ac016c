"""Fleets for tests, and what their engines do."""

from typing import Any

from router.core.events import LegAnswered, LegFailed, Probed
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds
from router.core.membership.entry import Entry
from router.core.values import Endpoint, FailureKind, Role
from tests.core.fixtures import D0

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()


def fleet_of(*endpoints: Endpoint, stale_after: float = 5.0) -> Fleet:
    """A fleet without any observation."""
    return Fleet(endpoints, Ledger(), HealthThresholds(), stale_after)


def card(name: str, **members: Any) -> dict[str, Any]:
    """An entry of /v1/models."""
    return {"id": name, "object": "model", **members}


def up(endpoint: Endpoint, *cards: dict[str, Any]) -> Probed:
    """A good probe; without cards the engine's models are unknown."""
    return Probed(endpoint, HealthSignal.OK, cards or None)


def fleet_up(*endpoints: Endpoint) -> Fleet:
    """A fleet of engines that are up."""
    fleet = fleet_of(*endpoints)
    for endpoint in endpoints:
        fleet.observe(up(endpoint), 0.0)
    return fleet


def taking(fleet: Fleet, role: Role, model: str | None = None, now: float = 0.0) -> list[Endpoint]:
    """Who may take a request for a model."""
    return [it.endpoint for it in Selection(fleet).candidates(role, model, NO_ENDPOINTS, now)]


def full(fleet: Fleet, endpoint: Endpoint, now: float = 0.0, seconds: float = 0.5) -> None:
    """An engine refuses a request at once because it has enough of them."""
    fleet.observe(
        LegAnswered(endpoint, 503, 0.0, counts_against_engine=False, full_seconds=seconds), now
    )


def eject(fleet: Fleet, endpoint: Endpoint) -> None:
    """Five failures in a row."""
    for _ in range(5):
        fleet.observe(LegAnswered(endpoint, 500, 0.1), 0.0)


def down(fleet: Fleet, endpoint: Endpoint) -> None:
    """Three failed probes in a row."""
    for _ in range(3):
        fleet.observe(Probed(endpoint, HealthSignal.FAILED), 0.0)


def break_stream(fleet: Fleet, asked_at: float, now: float) -> None:
    """An answer of D0 breaks off."""
    fleet.observe(LegFailed(D0, FailureKind.BROKEN, asked_at), now)


def entries(*endpoints: Endpoint, **members: Any) -> list[Entry]:
    """A roster of these engines."""
    return [Entry(endpoint, row, **members) for row, endpoint in enumerate(endpoints)]
