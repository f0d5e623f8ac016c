"""Direct mode (`--direct-mode`): a trusted gateway chooses the engines by request headers.

The headers are those of the Gateway API Inference Extension's endpoint picker protocol, llm-d's for
the prefill engine, and ORCA load reports.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import orjson

from router.core.fleet.fleet import Fleet
from router.core.judge.member import Member
from router.core.request_facts import Destinations
from router.core.urls import origin, split_rank
from router.core.values import DECODE, PREFILL, Endpoint, Role
from router.core.wire.headers import block

__all__ = [
    "DESTINATION",
    "GATEWAY_HEADERS",
    "LLM_D_PREFILLER",
    "LOAD_FORMAT",
    "LOAD_REPORT",
    "PREFILLER",
    "SERVED",
    "AddressBook",
    "Gateway",
    "Networks",
    "address_of",
    "load_report",
]

DESTINATION: Final = b"x-gateway-destination-endpoint"
"""The decode engine as `ip:port`. Of a comma-separated list the first usable one is taken."""

PREFILLER: Final = b"x-prefiller-host-port"
"""The prefill engine in the same format. Without it the decode engine computes the prompt."""

LLM_D_PREFILLER: Final = b"x-llm-d-prefiller-host-port"
"""The newer name of that header. llm-d's endpoint pickers that know it set both, and its sidecars
prefer the older one, so reading the older one is sufficient."""

SERVED: Final = b"x-gateway-destination-endpoint-served"
"""In a response: the decode engine that it comes from."""

LOAD_FORMAT: Final = b"endpoint-load-metrics-format"
"""TEXT or JSON: asks for the engine's load in the response."""

LOAD_REPORT: Final = b"endpoint-load-metrics"

GATEWAY_HEADERS: Final = frozenset(
    {
        DESTINATION,
        b"x-gateway-destination-endpoint-subset",
        SERVED,
        PREFILLER,
        LLM_D_PREFILLER,
        b"x-prefiller-url",
        b"x-encoder-hosts-ports",
        b"x-llm-d-encoder-hosts-ports",
        b"x-kv-cache-source-host-port",
        b"x-llm-d-kv-cache-source-host-port",
        b"x-data-parallel-host-port",
        LOAD_FORMAT,
    }
)
"""Headers of gateways and endpoint pickers. They are never forwarded, because llm-d's routing
sidecar in front of an engine connects to the hosts that they name (server-side request forgery)."""

MAX_NAMED: Final = 16
"""Most addresses of one header that are considered."""

MAX_KNOWN: Final = 1024
"""Most client addresses that are cached."""

Networks: TypeAlias = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


def address_of(endpoint: Endpoint) -> str:
    """An endpoint as gateways write it: `10.0.0.1:8000`, `[fd00::1]:8000`."""
    place = origin(split_rank(endpoint.url)[0])
    host = f"[{place.host}]" if ":" in place.host else place.host
    return f"{host}:{place.port}"


class AddressBook:
    """The endpoints by role and address. Data-parallel ranks have the address of their engine."""

    def __init__(self, endpoints: Iterable[Endpoint] = ()) -> None:
        self._found: dict[tuple[Role, str], tuple[Endpoint, ...]] = {}
        for endpoint in endpoints:
            key = endpoint.role, address_of(endpoint)
            self._found[key] = (*self._found.get(key, ()), endpoint)

    def destinations(self, fields: Mapping[bytes, bytes]) -> Destinations | None:
        """The engines named in a request's headers. None if they name no decode engine. Addresses
        that belong to no engine are ignored."""
        decode = fields.get(DESTINATION)
        if decode is None:
            return None
        prefill = fields.get(PREFILLER, fields.get(LLM_D_PREFILLER))
        return Destinations(
            () if prefill is None else self._named(PREFILL, prefill), self._named(DECODE, decode)
        )

    def _named(self, role: Role, value: bytes) -> tuple[Endpoint, ...]:
        names = value.decode("latin-1").split(",", MAX_NAMED)[:MAX_NAMED]
        found = (self._found.get((role, name.strip().lower()), ()) for name in names)
        return tuple(endpoint for group in found for endpoint in group)


def load_report(wanted: bytes, member: Member) -> bytes | None:
    """An engine's load in one of ORCA's formats, with vLLM's metric names. None for an unknown
    format. Requests are the router's current ones plus what the engine's gauges count beyond
    them."""
    kind = wanted.strip().upper()
    if kind not in (b"TEXT", b"JSON"):
        return None
    view, gauges = member.view, member.scrapes.gauges
    metrics: dict[str, float] = {
        "num_requests_running": float(view.load.requests + round(view.other_requests or 0))
    }
    if gauges is not None:
        if gauges.kv_usage is not None:
            metrics["kv_cache_usage_perc"] = gauges.kv_usage
        if gauges.waiting is not None:
            metrics["num_requests_waiting"] = float(gauges.waiting)
    if kind == b"JSON":
        return b"JSON " + orjson.dumps({"named_metrics": metrics})
    pairs = (f"named_metrics.{name}={value:g}" for name, value in metrics.items())
    return b"TEXT " + ", ".join(pairs).encode()


class Connection(Protocol):
    """A client's transport."""

    def get_extra_info(self, name: str) -> Any:
        """asyncio's information on a transport: `peername` is the client's address and port."""


class Gateway:
    """Reads the request headers of gateways in trusted networks, and adds the gateway's headers to
    responses. At first no network is trusted."""

    def __init__(self) -> None:
        self._trusted: Networks = ()
        self._known: dict[str, bool] = {}
        self._book = AddressBook()

    def configure(self, trusted: Networks) -> None:
        """Set the trusted networks."""
        self._trusted = trusted
        self._known.clear()

    def follow(self, endpoints: Iterable[Endpoint]) -> None:
        """Set the engines that a gateway may choose."""
        self._book = AddressBook(endpoints)

    def destinations(
        self, fields: Mapping[bytes, bytes], transport: Connection
    ) -> Destinations | None:
        """The engines that a trusted gateway has chosen. None if the router is to choose."""
        if DESTINATION not in fields or not self.trusts(transport):
            return None
        return self._book.destinations(fields)

    def lines(
        self, fields: Mapping[bytes, bytes], transport: Connection, fleet: Fleet, endpoint: Endpoint
    ) -> bytes:
        """The header lines that name the engine which has served the request."""
        if not self.trusts(transport):
            return b""
        lines = [(SERVED, address_of(endpoint).encode())]
        wanted = fields.get(LOAD_FORMAT)
        if wanted is not None and fleet.knows(endpoint):
            report = load_report(wanted, fleet.member(endpoint))
            if report is not None:
                lines.append((LOAD_REPORT, report))
        return block(lines)

    def trusts(self, transport: Connection) -> bool:
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
