"""What a discovery source says the fleet should be."""

from dataclasses import dataclass

from router.core.plans.lmcache_receivers import Receiver
from router.core.values import Endpoint

__all__ = ["Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """An engine that a source names, in one role.

    `identity` tells engines apart that have the same URL one after the other (a pod's UID): when it
    changes, what is known of the old engine (speed, prefix cache, slots) is forgotten. A target
    that is `draining` gets no new requests, and its streams go on.
    """

    endpoint: Endpoint
    identity: str = ""
    is_draining: bool = False
    receiver: Receiver | None = None
    """Where its LMCache takes KV caches, if the source knows."""
    kv_events_port: int | None = None
    """Where it publishes KV-cache events, if its source knows; engines that say so themselves are
    believed more."""
