"""Chooses the plan of a request, from the decision and the KV connector."""

from collections.abc import Iterable

from router.core.membership.entry import Entry
from router.core.plans.direct import direct
from router.core.plans.lmcache import lmcache
from router.core.plans.nixl import nixl
from router.core.plans.steps import Plan
from router.core.request_facts import Facts
from router.core.values import DIRECT, Decision, Endpoint, Receiver
from router.settings import Settings
from router.web.routing_parts import receivers_of, transfer_ids

__all__ = ["PlanChoice"]


class PlanChoice:
    """Creates plans. For LMCache it knows the KV receiver of each decode engine, from the settings
    and from the roster's entries. With `notifies`, plans wait for notifications."""

    def __init__(self, settings: Settings, *, notifies: bool) -> None:
        self._connector = settings.disagg_connector_type
        self._notifies = notifies
        self._transfers = transfer_ids()
        self._named = receivers_of(settings)
        self._found: dict[Endpoint, Receiver] = {}
        """The receivers that the roster's entries name."""
        self._receivers: dict[Endpoint, Receiver] = {}

    def plan(self, facts: Facts, decision: Decision) -> Plan:
        """Create a request's plan."""
        if decision.mode is DIRECT:
            return direct(facts)
        if self._connector == "nixl":
            return nixl(facts)
        return lmcache(facts, self._receivers, self._transfers.__next__, notify=self._notifies)

    def follow(self, entries: Iterable[Entry]) -> None:
        """Set the engines. The settings take precedence over their entries."""
        self._found = {
            each.endpoint: each.receiver for each in entries if each.receiver is not None
        }
        self._receivers = self._found | self._named

    def configure(self, settings: Settings) -> None:
        """Apply new settings."""
        named = receivers_of(settings)
        if named != self._named:
            self._receivers, self._named = self._found | named, named
