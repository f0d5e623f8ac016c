"""The engines that a discovery source lists."""

from dataclasses import dataclass

from router.core.values import Endpoint, Receiver

__all__ = ["Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """An engine listed by a source, in one role.

    `identity` distinguishes successive engines with the same URL (a pod's UID): when it changes,
    everything learned about the old engine (speed, prefix cache, slots) is dropped. A target that
    is `draining` gets no new requests, and its streams continue.
    """

    endpoint: Endpoint
    identity: str = ""
    is_draining: bool = False
    receiver: Receiver | None = None
    """The address at which its LMCache receives KV caches, if the source provides it."""
    kv_events_port: int | None = None
    """The port of its KV-cache events, if its source provides it; what the engine itself reports
    takes precedence."""
