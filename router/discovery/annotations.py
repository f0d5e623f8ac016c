"""Annotations of a pod about its engine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from router.core.values import Receiver

__all__ = ["NO_ANNOTATIONS", "PREFIX", "Annotations", "WrongAnnotation", "read_annotations"]

PREFIX = "pd-router/"

KV_EVENTS_PORT = PREFIX + "kv-events-port"
RECEIVER_HOST = PREFIX + "lmcache-host"
INIT_PORTS = PREFIX + "lmcache-init-ports"
ALLOC_PORTS = PREFIX + "lmcache-alloc-ports"

KNOWN = frozenset({KV_EVENTS_PORT, RECEIVER_HOST, INIT_PORTS, ALLOC_PORTS})

MAX_HOST = 253
"""Longest DNS name in characters."""

MAX_RANKS = 64
"""Most tensor-parallel ranks of one engine."""

_PORT = re.compile(r"[0-9]{1,5}")


class WrongAnnotation(ValueError):
    """An annotation is invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """The values; None for missing annotations."""

    kv_events_port: int | None = None
    """Port of its KV-cache events (vLLM's --kv-events-config)."""
    receiver: Receiver | None = None
    """The address at which its LMCache receives KV caches."""


NO_ANNOTATIONS = Annotations()


def read_annotations(given: Mapping[str, str], host: str) -> Annotations:
    """The annotations of a pod at the address `host`. Raises WrongAnnotation."""
    ours = {key: text for key, text in given.items() if key.startswith(PREFIX)}
    if not ours:
        return NO_ANNOTATIONS
    if strange := sorted(ours.keys() - KNOWN):
        raise WrongAnnotation(f"{strange[0]} is unknown; there are {', '.join(sorted(KNOWN))}")
    port = ours.get(KV_EVENTS_PORT)
    return Annotations(
        kv_events_port=None if port is None else _port(KV_EVENTS_PORT, port),
        receiver=_receiver(ours, host),
    )


def _receiver(ours: Mapping[str, str], host: str) -> Receiver | None:
    if not ours.keys() & {RECEIVER_HOST, INIT_PORTS, ALLOC_PORTS}:
        return None
    init, alloc = (_ports(name, ours.get(name, "")) for name in (INIT_PORTS, ALLOC_PORTS))
    if len(init) != len(alloc):
        raise WrongAnnotation(
            f"{ALLOC_PORTS} names {len(alloc)} ports and {INIT_PORTS} {len(init)}: "
            "one of each per tensor-parallel rank"
        )
    own = ours.get(RECEIVER_HOST) or host
    if len(own) > MAX_HOST:
        raise WrongAnnotation(f"{RECEIVER_HOST} is longer than {MAX_HOST} characters")
    return Receiver(own, init, alloc)


def _ports(name: str, text: str) -> tuple[int, ...]:
    found = text.split(",")
    if len(found) > MAX_RANKS:
        raise WrongAnnotation(f"{name} names more than {MAX_RANKS} ports")
    return tuple(_port(name, each.strip()) for each in found)


def _port(name: str, text: str) -> int:
    if not _PORT.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise WrongAnnotation(f"{name}: {text[:40]!r} is no port")
    return int(text)
