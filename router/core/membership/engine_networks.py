"""The networks in which engines listed by a source or added by an operator must be."""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from router.core.urls import origin

__all__ = ["EngineNetworks"]


class EngineNetworks:
    """`networks` in CIDR notation; if empty, engines may be anywhere.

    With networks, engines must be given by address: a name's address is up to its DNS server and
    may change after the check.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ip_network(network) for network in networks]

    def refusal(self, url: str) -> str | None:
        """Why an engine is not allowed; None if it is. Raises ValueError for an invalid URL."""
        if not self._networks:
            return None
        host = origin(url).host
        try:
            address = ip_address(host)
        except ValueError:
            return "--engine-networks admits engines by their address, not by a host's name"
        # An IPv4-mapped IPv6 address reaches the IPv4 address.
        mapped = getattr(address, "ipv4_mapped", None)
        address = address if mapped is None else mapped
        if any(address in network for network in self._networks):
            return None
        return f"{address} is in none of --engine-networks"
