"""Answers of DNS servers, and which of them are accepted."""

import contextlib
import io
from collections.abc import AsyncIterator
from functools import partial

import dns.asyncresolver
import dns.name
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from router.core.membership.engine_names import DnsName
from router.core.urls import normalise
from router.discovery.dns import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    AcceptedAnswer,
    Answer,
    Host,
    LookupFailed,
    SystemResolver,
    _url,
)
from router.settings import SettingsError, load
from router.web.discovery import discovery_sources
from tests.discovery.dns_server import Server, serving

ANSWERS = st.lists(st.frozensets(st.sampled_from("abc"), max_size=2), max_size=12)


def test_an_empty_answer_is_believed_when_it_comes_twice() -> None:
    accepted = AcceptedAnswer()
    accepted.update("ab")
    accepted.update("")
    assert accepted.urls == {"a", "b"}
    accepted.update("")
    assert accepted.urls == frozenset()


def test_a_first_answer_is_held_unless_it_is_empty() -> None:
    for heard, is_held in (([], False), (["a"], True), ([""], False), (["", ""], True)):
        accepted = AcceptedAnswer()
        for urls in heard:
            accepted.update(urls)
        assert accepted.is_held == is_held


def test_an_answer_between_two_empty_ones_ends_the_doubt() -> None:
    accepted = AcceptedAnswer()
    for heard in ("a", "", "b", ""):
        accepted.update(heard)
    assert accepted.urls == {"b"}


@given(ANSWERS)
def test_the_last_plausible_answer_counts(answers: list[frozenset[str]]) -> None:
    accepted = AcceptedAnswer()
    for answer in answers:
        accepted.update(answer)
    if not answers or answers[-2:] == [frozenset()] * 2:
        assert not accepted.urls
    else:
        assert accepted.urls == next((each for each in reversed(answers) if each), frozenset())


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(0, SHORTEST_SECONDS), (5, 5), (86400, LONGEST_SECONDS)]
)
def test_a_ttl_is_kept_within_limits(ttl: float, seconds: float) -> None:
    assert Answer((Host("a", 1),), ttl).seconds == seconds


calm = pytest.mark.usefixtures("calm")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    server.ttl = 17
    server.put("a.example", "A", ["10.0.0.1"])
    server.put("_h._tcp.example", "SRV", ["5 0 8001 A.example.", "0 0 0 ."])
    async with serving(server):
        yield server


@given(
    st.text(max_size=20) | st.text("ab.:-[]_", max_size=20) | st.ip_addresses().map(str),
    st.integers(0, 65535),
)
def test_any_record_is_an_engine_or_a_failed_question(host: str, port: int) -> None:
    with contextlib.suppress(LookupFailed):
        assert normalise(_url(Host(host, port))).startswith("http://")


@pytest.mark.parametrize("host", ["a:b", "::::", "a b", "", "[::1]"])
def test_a_record_that_leads_nowhere_is_a_failed_question(host: str) -> None:
    with pytest.raises(LookupFailed, match="correct it"):
        _url(Host(host, 80))


@calm
async def test_addresses_get_the_requested_port(server: Server) -> None:
    answer = await SystemResolver(server.resolver()).ask(DnsName("a.example", 8000), "A")
    assert answer == Answer((Host("10.0.0.1", 8000),), 17.0)


@calm
async def test_srv_records_bring_their_own(server: Server) -> None:
    answer = await SystemResolver(server.resolver()).ask(DnsName("_h._tcp.example", None), "SRV")
    assert answer.hosts == (Host("a.example", 8001),)


@calm
async def test_no_records_of_the_kind_are_no_failure(server: Server) -> None:
    answer = await SystemResolver(server.resolver()).ask(DnsName("a.example", 8000), "AAAA")
    assert answer.hosts == ()


@calm
async def test_search_domains_are_used(server: Server) -> None:
    """As in a pod, where `decode.default.svc` is short for a name of the cluster."""
    resolver = server.resolver()
    resolver.search = [dns.name.from_text("none.example"), dns.name.from_text("example")]
    answer = await SystemResolver(resolver).ask(DnsName("a", 80), "A")
    assert answer.hosts == (Host("10.0.0.1", 80),)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [("NXDOMAIN", "nxdomain"), ("SERVFAIL", "unanswered"), ("SILENCE", "unanswered")],
)
@calm
async def test_failures_are_distinguished(server: Server, failure: str, kind: str) -> None:
    server.failure = failure
    with pytest.raises(LookupFailed) as caught:
        await SystemResolver(server.resolver()).ask(DnsName("a.example", 80), "A")
    assert caught.value.kind == kind


def test_without_a_server_to_ask_the_cause_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    of_an_empty_file = partial(dns.asyncresolver.Resolver, io.StringIO(""))
    monkeypatch.setattr(dns.asyncresolver, "Resolver", of_an_empty_file)
    text = r"^discovery by DNS: no nameservers; check /etc/resolv.conf$"
    with pytest.raises(SettingsError, match=text):
        discovery_sources(load({"dns_decode": ["engines.example:8000"]}))


def test_it_works_on_the_routers_own_loop() -> None:
    async def ask() -> Answer:
        server = Server()
        server.put("a.example", "A", [f"10.0.0.{number}" for number in range(100)])
        async with serving(server):
            return await SystemResolver(server.resolver()).ask(DnsName("a.example", 80), "A")

    assert len(uvloop.run(ask()).hosts) == 100
