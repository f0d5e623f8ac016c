"""An engine as a source lists it, as the roster holds it, and the orders that operators give about
it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from router.core.values import Endpoint, Receiver, Role

__all__ = ["EVERY", "OPERATOR", "Entry", "Order", "Target", "endpoint_of", "fields_of"]


@dataclass(frozen=True, slots=True)
class Target:
    """An engine listed by a source, in one role.

    `identity` distinguishes successive engines with the same URL (a pod's UID): when it changes,
    everything learned about the old engine (speed, prefix cache, slots) is dropped. A target that
    is `draining` gets no new requests, and its streams continue: there, or with other engines if it
    hands them over.
    """

    endpoint: Endpoint
    identity: str = ""
    is_draining: bool = False
    hands_over: bool = False
    receiver: Receiver | None = None
    """The address at which its LMCache receives KV caches, if the source provides it."""
    kv_events_port: int | None = None
    """The port of its KV-cache events, if its source provides it; what the engine itself reports
    takes precedence."""
    zone: str | None = None
    """The failure domain in which it runs, if its source says so."""


OPERATOR: Final = "operator"
"""The source of engines added by operators."""


EVERY: Final = "*"
"""In place of a URL: all engines of a role, also those that join later."""


class Order(StrEnum):
    """An operator's order about an engine."""

    ADD = "add"
    DRAIN = "drain"
    """No new requests, until `UNDRAIN`."""
    MOVE = "move"
    """As `DRAIN`, and its streams go on with other engines if they can."""
    UNDRAIN = "undrain"
    REMOVE = "remove"
    """It leaves although a source lists it, until `ADD`."""


class Entry(NamedTuple):
    """An engine of the fleet, in one role."""

    endpoint: Endpoint
    row: int = 0
    identity: str = ""
    source: str = OPERATOR
    """The source that lists it, or was the last one to list it."""
    is_draining: bool = False
    """Whether its source or an operator has drained it, so that it gets no new requests."""
    hands_over: bool = False
    """Whether its streams go on with other engines if they can."""
    leaving_since: float | None = None
    """Since when no source lists it; monotonic seconds, which all processes of a host share."""
    changed_in: int = 0
    """The version of the roster in which it began to leave."""
    place: int | None = None
    """Its place among the data-parallel ranks behind its URL, by which vLLM pins requests to it;
    None: the whole engine."""
    receiver: Receiver | None = None
    """The address at which its LMCache receives KV caches, if its source provides it."""
    kv_events_port: int | None = None
    """The port of its KV-cache events, if its source provides it."""
    zone: str | None = None
    """Its zone, if its source provides it."""

    def left(self, now: float, version: int) -> "Entry":
        """The same entry, leaving because no source lists it any more."""
        return self._replace(leaving_since=now, changed_in=version)

    def is_as_wanted(
        self,
        source: str,
        target: Target,
        *,
        is_draining: bool,
        hands_over: bool = False,
        place: int | None = None,
    ) -> bool:
        """Whether nothing has to change: usually true for all but one of a thousand."""
        return (
            self.leaving_since is None
            and self.is_draining == is_draining
            and self.hands_over == hands_over
            and self.source == source
            and self.place == place
            and self.receiver == target.receiver
            and self.kv_events_port == target.kv_events_port
            and self.zone == target.zone
        )


def endpoint_of(pair: list[str]) -> Endpoint:
    """An endpoint from its JSON form."""
    url, role = pair
    return Endpoint(url, Role(role))


def fields_of(encoded: list[Any]) -> list[Any]:
    """The fields after the endpoint from their JSON form; the last three are a receiver, a port and
    a zone."""
    *others, receiver, port, zone = encoded
    return [*others, _receiver(receiver), port, zone]


def _receiver(found: list[Any] | None) -> Receiver | None:
    if found is None:
        return None
    host, init_ports, alloc_ports = found
    return Receiver(host, tuple(init_ports), tuple(alloc_ports))
