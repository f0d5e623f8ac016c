"""The networks in which engines must be that a source or an operator names."""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from router.core.urls import origin

__all__ = ["EngineNetworks"]


class EngineNetworks:
    """`networks` in CIDR notation; with none of them engines may be anywhere.

    Engines are named by address then: what a name means is up to whoever answers for it, and may
    change after it was looked at.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ip_network(network) for network in networks]

    def refusal(self, url: str) -> str | None:
        """Why an engine is not admitted; None if it is. Raises ValueError for what is no URL."""
        if not self._networks:
            return None
        host = origin(url).host
        try:
            address = ip_address(host)
        except ValueError:
            return "--engine-networks admits engines by their address, not by a host's name"
        # What is mapped into IPv6 reaches the IPv4 address.
        mapped = getattr(address, "ipv4_mapped", None)
        address = address if mapped is None else mapped
        if any(address in network for network in self._networks):
            return None
        return f"{address} is in none of --engine-networks"
