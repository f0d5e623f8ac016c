"""The aggregate: every endpoint, whether it can be used, what it serves, how loaded it is.

It learns through `observe` only. Time is an argument; nothing here does I/O.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from router.core import health
from router.core.events import Event, LegAnswered, LegFailed, Probed, Scraped
from router.core.health import Health, Rules, Sight, State
from router.core.ledger import Lease, Ledger
from router.core.values import Candidate, Endpoint, FailureKind, Gauges, Role

__all__ = ["Fleet", "Member"]


@dataclass(slots=True)
class Member:
    """One endpoint and what is known of it."""

    endpoint: Endpoint
    ordinal: int
    health: Health = field(default_factory=Health)
    cards: tuple[dict[str, Any], ...] | None = None
    """The entries of its /v1/models; None until it has told."""
    models: frozenset[str] | None = None
    gauges: Gauges | None = None
    gauges_at: float = 0.0
    others: int | None = None
    """Requests that others put there, as of `gauges_at`."""


class Fleet:
    """All endpoints by role. Gauges older than `stale_after` seconds count as absent."""

    def __init__(
        self, endpoints: Iterable[Endpoint], ledger: Ledger, rules: Rules, stale_after: float
    ) -> None:
        self.ledger = ledger
        self._rules = rules
        self._stale_after = stale_after
        self._members = {e: Member(e, ordinal) for ordinal, e in enumerate(endpoints)}
        self._pools = {
            role: tuple(m for m in self._members.values() if m.endpoint.role is role)
            for role in Role
        }

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def pool(self, role: Role) -> tuple[Member, ...]:
        """The members of a role, in the order they were configured."""
        return self._pools[role]

    def member(self, endpoint: Endpoint) -> Member:
        """What is known of an endpoint."""
        return self._members[endpoint]

    @property
    def is_ready(self) -> bool:
        """Whether any request could be answered."""
        return any(m.health.is_usable for m in self._pools[Role.DECODE])

    def lease(self, endpoint: Endpoint, tokens: int) -> Lease:
        """Count a request on the endpoint until the lease is released."""
        return self.ledger.lease(endpoint, tokens)

    def candidates(
        self, role: Role, model: str | None, exclude: frozenset[Endpoint], now: float
    ) -> list[Candidate]:
        """The endpoints of a role that may take a request for `model` now."""
        return [
            self.candidate(member, now)
            for member in self._pools[role]
            if member.health.state is State.UP
            and (model is None or member.models is None or model in member.models)
            and member.endpoint not in exclude
        ]

    def candidate(self, member: Member, now: float) -> Candidate:
        """What a policy sees of a member."""
        endpoint = member.endpoint
        fresh = now - member.gauges_at <= self._stale_after
        return Candidate(
            endpoint,
            member.ordinal,
            self.ledger.in_flight(endpoint),
            self.ledger.tokens(endpoint),
            member.others if fresh else None,
        )

    def models(self) -> dict[str, dict[str, Any]]:
        """The cards of all usable engines by model id; the first engine that lists one wins."""
        cards: dict[str, dict[str, Any]] = {}
        for member in self._pools[Role.DECODE]:
            if member.health.is_usable:
                for card in member.cards or ():
                    cards.setdefault(card["id"], card)
        return cards

    def known_models(self) -> frozenset[str]:
        """Every model that any decode engine has ever listed, usable now or not."""
        return frozenset().union(*(m.models or () for m in self._pools[Role.DECODE]))

    def base_models(self) -> frozenset[str]:
        """The models behind those names: aliases of one model and its adapters count once."""
        return frozenset(
            str(card.get("root") or card["id"])
            for member in self._pools[Role.DECODE]
            for card in member.cards or ()
            if card.get("parent") is None
        )

    def observe(self, event: Event, now: float) -> None:
        """Learn from an event; events that say nothing of an engine are ignored."""
        match event:
            case Probed():
                self._probed(self._members[event.endpoint], event)
            case Scraped():
                self._scraped(self._members[event.endpoint], event, now)
            case LegFailed() if event.kind in (FailureKind.REFUSED, FailureKind.RESET):
                self._see(self._members[event.endpoint], Sight.FAILED)
            case LegAnswered() if self._members[event.endpoint].health.state is State.UP:
                # An answer clears the doubts; it cannot bring up an engine that probes call down.
                self._see(self._members[event.endpoint], Sight.OK)

    def _see(self, member: Member, sight: Sight) -> None:
        member.health = health.after(member.health, sight, self._rules)

    def _probed(self, member: Member, event: Probed) -> None:
        self._see(member, event.sight)
        if event.cards is not None:
            member.cards = event.cards
            member.models = frozenset(card["id"] for card in event.cards)

    def _scraped(self, member: Member, event: Scraped, now: float) -> None:
        member.gauges, member.gauges_at = event.gauges, now
        running = event.gauges.running if event.gauges else None
        if running is None or event.gauges is None:
            member.others = None
        else:
            member.others = max(0, running + (event.gauges.waiting or 0) - event.own)
