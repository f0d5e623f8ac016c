"""What may name an engine: label selectors, ports of pods, DNS names, and the networks that engines
must be in."""

import re
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from router.core.urls import origin

__all__ = ["DnsName", "EngineNetworks", "dns_name", "label_selector", "pod_port"]

_KEY = r"([a-z0-9.-]+/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"{_KEY}\s*(=|==|!=)\s*{_VALUE}|!?{_KEY}"
    rf"|{_KEY}\s+(in|notin)\s*\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\)",
    re.ASCII,
)

# A port name contains a letter, which distinguishes it from a number.
_PORT_NAME = re.compile(r"(?=[^a-z]*[a-z])[a-z0-9-]{1,15}")

_LABEL = r"[A-Za-z0-9_]([\w-]{0,61}[A-Za-z0-9])?"
_SRV = re.compile(rf"_[\w-]+\._(tcp|udp)(\.{_LABEL})+\.?", re.ASCII)
_HOST = re.compile(rf"(?!_){_LABEL}(\.{_LABEL})*\.?", re.ASCII)

MAX_PORT = 65535


def label_selector(text: str) -> str:
    """Validate a label selector in kubectl's format. An empty one, which selects all pods, is
    invalid. Raises ValueError."""
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", text)]
    if wrong := [part for part in parts if not _REQUIREMENT.fullmatch(part)]:
        raise ValueError(f"must be a label selector like app=vllm,role=decode, got {wrong[0]!r}")
    return ",".join(parts)


def pod_port(port: object) -> int | str:
    """A port of a pod by number or name. Raises ValueError."""
    if isinstance(port, str) and _PORT_NAME.fullmatch(port):
        return port
    if re.fullmatch("[0-9]{1,5}", str(port)) and 1 <= int(str(port)) <= MAX_PORT:
        return int(str(port))
    raise ValueError(f"must be a port's number or name, got {port!r}")


class DnsName(NamedTuple):
    """A name that resolves to engines: by addresses, all with this port, or without a port by SRV
    records."""

    host: str
    port: int | None


def dns_name(text: str) -> DnsName:
    """Parse `host:port` or `_service._tcp.host`. Raises ValueError."""
    if _SRV.fullmatch(text):
        return DnsName(text.lower(), None)
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port):
        raise ValueError(f"must be like host:8000 or _http._tcp.host, got {text!r}")
    if not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f"{text!r} has no valid port")
    return DnsName(host.lower(), int(port))


class EngineNetworks:
    """The networks in which engines listed by a source or added by an operator must be: `networks`
    in CIDR notation; if empty, engines may be anywhere.

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
