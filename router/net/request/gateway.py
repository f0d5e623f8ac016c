"""Requests from a gateway that chooses the engines itself (`--direct-mode`)."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from router.core.fleet.fleet import Fleet
from router.core.request_facts import Destinations
from router.core.routing import gateway
from router.core.routing.gateway import AddressBook
from router.core.values import Endpoint
from router.core.wire.headers import block

__all__ = ["Gateway", "Networks"]

Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]

MAX_KNOWN: Final = 1024
"""Most client addresses that are cached."""


class Gateway:
    """Reads the request headers of gateways in the `trusted` networks, and adds the gateway's
    headers to responses."""

    def __init__(self, trusted: Networks) -> None:
        self._known: dict[str, bool] = {}
        self._book = AddressBook()
        self.configure(trusted)

    def configure(self, trusted: Networks) -> None:
        """Set the trusted networks."""
        self._trusted = trusted
        self._known.clear()

    def follow(self, endpoints: Iterable[Endpoint]) -> None:
        """Set the engines that a gateway may choose."""
        self._book = AddressBook(endpoints)

    def destinations(self, fields: Mapping[bytes, bytes], transport: Any) -> Destinations | None:
        """The engines that a trusted gateway has chosen. None if the router is to choose."""
        if gateway.DESTINATION not in fields or not self.trusts(transport):
            return None
        return self._book.destinations(fields)

    def lines(
        self, fields: Mapping[bytes, bytes], transport: Any, fleet: Fleet, endpoint: Endpoint
    ) -> bytes:
        """The header lines that tell a gateway which engine has served its request."""
        if not self.trusts(transport):
            return b""
        lines = [(gateway.SERVED, gateway.address_of(endpoint).encode())]
        wanted = fields.get(gateway.LOAD_FORMAT)
        if wanted is not None and fleet.knows(endpoint):
            report = gateway.load_report(wanted, fleet.member(endpoint))
            if report is not None:
                lines.append((gateway.LOAD_REPORT, report))
        return block(lines)

    def trusts(self, transport: Any) -> bool:
        """Whether the peer of a connection is a trusted gateway."""
        peer = transport.get_extra_info("peername")
        host = peer[0] if isinstance(peer, tuple) and peer else ""
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[host] = self._is_trusted(host)
        return known

    def _is_trusted(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)
