"""A gateway's choice of engines, in its order; engines outside the fleet are ignored."""

import ipaddress
from random import Random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import NoEngine
from router.core.events import Probed, Scraped
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.gateway.protocol import (
    DESTINATION,
    LOAD_FORMAT,
    LOAD_REPORT,
    MAX_KNOWN,
    PREFILLER,
    SERVED,
    AddressBook,
    Gateway,
    address_of,
    load_report,
)
from router.core.health import HealthSignal, HealthThresholds
from router.core.policies import POLICIES
from router.core.request_facts import Destinations, Facts
from router.core.routing.schedule import Scheduler
from router.core.values import Decision, Endpoint, Gauges, Mode, Role
from tests.core.fixtures import D0, D1, D2, P0, P1, changed, request

NO_ONE: frozenset[Endpoint] = frozenset()
BOOK = AddressBook((P0, P1, D0, D1))
LONG = request(prompt="x" * 4000)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1", "10.0.0.1:80"),
        ("https://d0/base", "d0:443"),
        ("http://[fd00::1]:8000", "[fd00::1]:8000"),
        ("http://d0:8000#3", "d0:8000"),
    ],
)
def test_an_endpoint_is_named_by_host_and_port(url: str, address: str) -> None:
    assert address_of(Endpoint(url, Role.DECODE)) == address


@pytest.mark.parametrize(
    ("decode", "prefill", "expected"),
    [
        (b"d0:8000", None, Destinations((), (D0,))),
        (b"D1:8000, d0:8000", b"p1:8000", Destinations((P1,), (D1, D0))),
        (b"p0:8000,nobody:1,d0:8000", b"d0:8000", Destinations((), (D0,))),
        (b"", b"", Destinations((), ())),
        (b"\xff\x00", None, Destinations((), ())),
        (None, b"p0:8000", None),
        (b",".join([b"nobody:1"] * 16 + [b"d0:8000"]), None, Destinations((), ())),
    ],
)
def test_headers_name_engines_of_the_fleet(
    decode: bytes | None, prefill: bytes | None, expected: Destinations | None
) -> None:
    fields = {DESTINATION: decode, PREFILLER: prefill}
    given_ = {name: value for name, value in fields.items() if value is not None}
    assert BOOK.destinations(given_) == expected


def test_the_address_of_an_engine_with_ranks_names_all_of_them() -> None:
    ranks = [Endpoint(f"{D0.url}#{rank}", Role.DECODE) for rank in range(2)]
    found = AddressBook(ranks).destinations({DESTINATION: b"d0:8000"})
    assert found == Destinations((), tuple(ranks))


@given(st.binary())
def test_no_header_is_an_error(value: bytes) -> None:
    found = BOOK.destinations({DESTINATION: value, PREFILLER: value})
    assert found is not None
    assert {e.role for e in found.decode} <= {Role.DECODE}


class Cluster:
    """A scheduler and its engines, all up."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.fleet = Fleet(endpoints, Ledger(), HealthThresholds(), stale_after=5.0)
        for endpoint in endpoints:
            self.probe(endpoint, HealthSignal.OK)
        policies = dict.fromkeys(Role, POLICIES["least_loaded"])
        self.scheduler = Scheduler(self.fleet, policies, 100, Random(0))

    def probe(self, endpoint: Endpoint, signal: HealthSignal) -> None:
        """A probe saw this."""
        self.fleet.observe(Probed(endpoint, signal), 0.0)


def chosen_by_gateway(
    decode: tuple[Endpoint, ...], prefill: tuple[Endpoint, ...] = (), facts: Facts = LONG
) -> Facts:
    """A request that a gateway has given these engines."""
    return changed(facts, destinations=Destinations(prefill, decode))


def test_the_engines_that_are_named_get_the_request_whatever_their_load() -> None:
    cluster = Cluster(P0, P1, D0, D1)
    facts = chosen_by_gateway((D1,), (P1,))
    for _ in range(3):
        assert cluster.scheduler.lease(Role.DECODE, facts, NO_ONE, 0.0).endpoint == D1
        assert cluster.scheduler.lease(Role.PREFILL, facts, NO_ONE, 0.0).endpoint == P1


def test_the_next_one_is_taken_where_the_first_is_down_or_has_failed() -> None:
    cluster = Cluster(D0, D1, D2)
    facts = chosen_by_gateway((D1, D0))
    assert cluster.scheduler.lease(Role.DECODE, facts, frozenset({D1}), 0.0).endpoint == D0
    assert cluster.scheduler.has_other(Role.DECODE, facts, frozenset({D1}), 0.0)
    for _ in range(3):
        cluster.probe(D1, HealthSignal.FAILED)
    assert cluster.scheduler.lease(Role.DECODE, facts, NO_ONE, 0.0).endpoint == D0
    assert not cluster.scheduler.has_other(Role.DECODE, facts, frozenset({D0}), 0.0)


@pytest.mark.parametrize("named", [(), (Endpoint("http://gone", Role.DECODE),)])
def test_without_a_named_engine_there_is_none(named: tuple[Endpoint, ...]) -> None:
    cluster = Cluster(D0)
    facts = chosen_by_gateway(named)
    with pytest.raises(NoEngine, match="that the gateway chose"):
        cluster.scheduler.lease(Role.DECODE, facts, NO_ONE, 0.0)
    with pytest.raises(NoEngine, match="that the gateway chose"):
        cluster.scheduler.check(Role.DECODE, facts, NO_ONE, 0.0)


def test_the_gateway_decides_the_mode() -> None:
    cluster = Cluster(P0, D0)
    decide = cluster.scheduler.decide
    assert decide(chosen_by_gateway((D0,)), 0.0) == Decision(Mode.DIRECT, "gateway")
    assert decide(chosen_by_gateway((D0,), (P0,)), 0.0) == Decision(Mode.REMOTE, "gateway")
    huge = request(prompt="x" * 400_000)
    assert decide(chosen_by_gateway((D0,), (P0,), huge), 0.0).mode is Mode.REMOTE
    short = request(prompt="Hi")
    assert decide(chosen_by_gateway((D0,), (P0,), short), 0.0).mode is Mode.REMOTE
    several = request(prompt="Hi", n=2)
    assert decide(chosen_by_gateway((D0,), (P0,), several), 0.0) == Decision(
        Mode.DIRECT, "several_answers"
    )


def test_a_load_report_has_the_gauges_and_the_requests() -> None:
    cluster = Cluster(D0)
    member = cluster.scheduler.fleet.member(D0)
    assert load_report(b"TEXT", member) == b"TEXT named_metrics.num_requests_running=0"
    lease = cluster.scheduler.lease(Role.DECODE, LONG, NO_ONE, 0.0)
    cluster.fleet.observe(Scraped(D0, Gauges(3, 1, 0.25), own=1), 1.0)
    assert load_report(b" text ", member) == (
        b"TEXT named_metrics.num_requests_running=4, named_metrics.kv_cache_usage_perc=0.25, "
        b"named_metrics.num_requests_waiting=1"
    )
    text = load_report(b"JSON", member)
    assert text is not None
    assert text.startswith(b"JSON ")
    assert orjson.loads(text[5:])["named_metrics"]["kv_cache_usage_perc"] == 0.25
    assert load_report(b"BIN", member) is None
    lease.release()


def test_a_report_omits_unknown_values() -> None:
    cluster = Cluster(D0)
    cluster.fleet.observe(Scraped(D0, Gauges(running=0), own=0), 1.0)
    member = cluster.fleet.member(D0)
    assert load_report(b"TEXT", member) == b"TEXT named_metrics.num_requests_running=0"


class Peer:
    """A client's transport."""

    def __init__(self, host: object) -> None:
        self._peer = host if host is None else (host, 1234)

    def get_extra_info(self, name: str) -> object:
        assert name == "peername"
        return self._peer


NETWORKS = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))
INSIDE, OUTSIDE = Peer("10.1.2.3"), Peer("192.0.2.1")


@pytest.mark.parametrize(
    ("host", "is_trusted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("fd00::1%eth0", True),
        ("192.0.2.1", False),
        ("::1", False),
        ("", False),
        (None, False),
    ],
)
def test_trusted_networks_decide_which_peer_is_a_gateway(
    host: str | None, is_trusted: bool
) -> None:
    gateway = Gateway()
    assert not gateway.trusts(Peer(host))
    gateway.configure(NETWORKS)
    assert gateway.trusts(Peer(host)) == gateway.trusts(Peer(host)) == is_trusted


def test_gateway_remembers_a_bounded_number_of_peers() -> None:
    gateway = Gateway()
    gateway.configure(NETWORKS)
    for number in range(2 * MAX_KNOWN):
        gateway.trusts(Peer(f"10.0.{number // 256}.{number % 256}"))
        assert len(gateway._known) <= MAX_KNOWN
    assert gateway.trusts(INSIDE)


def test_only_a_trusted_gateway_chooses_engines() -> None:
    gateway = Gateway()
    gateway.configure(NETWORKS)
    gateway.follow((D0, D1))
    fields = {DESTINATION: b"d0:8000"}
    assert gateway.destinations(fields, INSIDE) == Destinations((), (D0,))
    assert gateway.destinations(fields, OUTSIDE) is None
    assert gateway.destinations({}, INSIDE) is None


def test_only_a_trusted_gateway_gets_its_headers() -> None:
    gateway = Gateway()
    gateway.configure(NETWORKS)
    fleet = Fleet([D0], Ledger(), HealthThresholds(), stale_after=5.0)
    served = b"%b: d0:8000\r\n" % SERVED
    assert gateway.lines({}, OUTSIDE, fleet, D0) == b""
    assert gateway.lines({}, INSIDE, fleet, D0) == served
    assert gateway.lines({LOAD_FORMAT: b"no such format"}, INSIDE, fleet, D0) == served
    assert gateway.lines({LOAD_FORMAT: b"JSON"}, INSIDE, fleet, D1).startswith(SERVED)
    wanted = {LOAD_FORMAT: b"JSON"}
    fleet.observe(Scraped(D0, Gauges(3, 1, 0.25), own=1), 1.0)
    assert LOAD_REPORT in gateway.lines(wanted, INSIDE, fleet, D0)
