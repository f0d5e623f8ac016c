"""Where each decode engine's LMCache takes KV caches, as LMCache's `disagg_spec` names it.

A prefill engine pushes the cache to the ports of its own tensor-parallel rank, so both lists hold
one port per rank. Everything wrong with them is found here, before the first request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from router.core.urls import normalise
from router.core.values import Endpoint

__all__ = ["Receiver", "one_receiver", "receivers_from"]

HOST, INIT, ALLOC = "receiver_host", "receiver_init_port", "receiver_alloc_port"
KEYS = (HOST, INIT, ALLOC)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A decode engine's address for KV caches. Raises ValueError, naming the key that is wrong."""

    host: str
    init_ports: tuple[int, ...]
    alloc_ports: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError(f"{HOST} is empty")
        for key, ports in ((INIT, self.init_ports), (ALLOC, self.alloc_ports)):
            if not ports:
                raise ValueError(f"{key} must hold a port per tensor-parallel rank")
            for port in ports:
                if not _is_port(port):
                    raise ValueError(f"{key}: {port!r} is not a port from 1 to 65535")
        if len(self.init_ports) != len(self.alloc_ports):
            counts = f"{len(self.init_ports)} and {len(self.alloc_ports)}"
            raise ValueError(f"{INIT} and {ALLOC} hold {counts} ports: one of each per rank")

    @property
    def ranks(self) -> int:
        """Tensor-parallel ranks; each of the prefill engine's reports its part as sent."""
        return len(self.init_ports)

    def spec(self, transfer_id: str) -> dict[str, Any]:
        """LMCache's `disagg_spec` for one transfer."""
        return {
            "req_id": transfer_id,
            HOST: self.host,
            INIT: self.init_ports,
            ALLOC: self.alloc_ports,
        }


def _is_port(port: object) -> bool:
    return isinstance(port, int) and not isinstance(port, bool) and 1 <= port <= 65535


def receivers_from(
    registry: Mapping[str, Any], decoders: Iterable[Endpoint]
) -> dict[Endpoint, Receiver]:
    """Read a registry from decode URL to receiver; each decode engine must be in it, no other may.

    Raises ValueError, naming the URL and what is wrong with its entry.
    """
    entries: dict[str, object] = {}
    for url, entry in registry.items():
        if (name := normalise(url)) in entries:
            raise ValueError(f"{name} is given twice")
        entries[name] = entry
    receivers = {}
    for decoder in decoders:
        if decoder.url not in entries:
            raise ValueError(f"{decoder.url} is missing: every decode engine needs a receiver")
        receivers[decoder] = _named(decoder.url, entries.pop(decoder.url))
    if entries:
        raise ValueError(f"{min(entries)} is not a decode engine")
    return receivers


def one_receiver(
    decoders: Iterable[Endpoint], host: str, init_ports: Iterable[int], alloc_ports: Iterable[int]
) -> dict[Endpoint, Receiver]:
    """The receiver of the only decode engine. Raises ValueError: two cannot share one."""
    receiver = Receiver(host, tuple(init_ports), tuple(alloc_ports))
    receivers = dict.fromkeys(decoders, receiver)
    if len(receivers) != 1:
        raise ValueError(f"{len(receivers)} decode engines need one receiver each")
    return receivers


def _named(url: str, entry: object) -> Receiver:
    try:
        return _receiver(entry)
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from None


def _receiver(entry: object) -> Receiver:
    if not isinstance(entry, Mapping):
        raise ValueError(f"must be an object with {', '.join(KEYS)}")  # noqa: TRY004 - one kind
    for key in KEYS:
        if key not in entry:
            raise ValueError(f"{key} is missing")
    for key in entry:
        if key not in KEYS:
            raise ValueError(f"{key} is not known; there are {', '.join(KEYS)}")
    if not isinstance(host := entry[HOST], str):
        raise ValueError(f"{HOST} must be text, got {host!r}")  # noqa: TRY004 - one kind
    return Receiver(host, _ports(INIT, entry[INIT]), _ports(ALLOC, entry[ALLOC]))


def _ports(key: str, ports: object) -> tuple[int, ...]:
    if not isinstance(ports, list | tuple):
        raise ValueError(f"{key} must be a list of ports, one per rank")  # noqa: TRY004 - one kind
    return tuple(ports)
