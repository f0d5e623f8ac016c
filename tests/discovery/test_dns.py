"""A source with a real DNS server. Time passes only without work (`calm`)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from router.core.membership.engine_names import dns_name
from router.core.membership.entry import Target
from router.core.values import DECODE, PREFILL, Endpoint
from router.discovery.dns import RETRY_SECONDS, DnsSource, SystemResolver
from tests.discovery.dns_server import Server, serving

pytestmark = pytest.mark.usefixtures("calm")

NAME = "decode.default.svc.cluster.local"
OTHER = "prefill.default.svc.cluster.local"
SERVICE = f"_http._tcp.{NAME}"
A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    server.put(NAME, "A", [A, B])
    async with serving(server):
        yield server


class Watched:
    """A running source and its reports; `before`: the report of an earlier process."""

    def __init__(
        self,
        server: Server,
        *decode: str,
        prefill: tuple[str, ...] = (),
        before: tuple[Target, ...] = (),
    ) -> None:
        self.server = server
        self.told: list[tuple[Target, ...]] = []
        resolver = SystemResolver(server.resolver())
        names = {PREFILL: map(dns_name, prefill), DECODE: map(dns_name, decode)}
        known = {"dns": before}.get
        self.source = DnsSource(names, resolver, Random(1), known=known)

    @property
    def urls(self) -> list[str]:
        """The engines of the last report."""
        return [each.endpoint.url.removeprefix("http://") for each in self.told[-1]]

    async def __aenter__(self) -> "Watched":
        self._task = asyncio.create_task(self.source.watch(self.told.append))
        await self.until(lambda: self.told or self.server.asked)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert not self._task.done(), self._task
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    @property
    def first_questions(self) -> int:
        """How often the server was asked for the kind of records that is asked for first."""
        return sum(kind != "AAAA" for _, kind in self.server.asked)

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait for a state."""
        while not holds():  # noqa: ASYNC110 - any state, not one that sets an event
            await asyncio.sleep(0.5)

    async def asked_again(self, times: int = 1) -> None:
        """Wait until the names have been asked again, and all has been answered, or not."""
        known = self.first_questions
        await self.until(lambda: self.first_questions >= known + times)
        await asyncio.sleep(0)


async def test_addresses_are_engines(server: Server) -> None:
    async with Watched(server, f"{NAME}:8000") as watched:
        assert watched.told == [
            (
                Target(Endpoint(f"http://{A}:8000", DECODE)),
                Target(Endpoint(f"http://{B}:8000", DECODE)),
            )
        ]


async def test_ipv6_addresses_are_engines(server: Server) -> None:
    server.records = {(NAME, "AAAA"): ("fd00::1",)}
    async with Watched(server, f"{NAME}:8000") as watched:
        assert watched.urls == ["[fd00::1]:8000"]


async def test_an_engine_with_both_kinds_of_addresses_is_one(server: Server) -> None:
    server.put(NAME, "AAAA", ["fd00::1", "fd00::2"])
    async with Watched(server, f"{NAME}:8000") as watched:
        assert watched.urls == [f"{A}:8000", f"{B}:8000"]


async def test_failures_of_the_kind_of_addresses_that_is_not_used_are_none(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.failing_kinds = {"AAAA"}
    server.put(NAME, "A", [])
    async with Watched(server, f"{NAME}:8000") as watched:
        await watched.until(lambda: "discovery by DNS name" in caplog.text)
        server.put(NAME, "A", [A])
        await watched.until(lambda: watched.told and watched.urls == [f"{A}:8000"])
        caplog.clear()
        asked = len(server.asked)
        await watched.asked_again(times=3)
        assert {kind for _, kind in server.asked[asked:]} == {"A"}
        assert watched.source._names[0]._outage._failing == set()
    assert caplog.text == ""


async def test_srv_records_bring_names_and_ports(server: Server) -> None:
    server.put(SERVICE, "SRV", [f"0 50 8000 Decode-0.{NAME}.", f"0 50 8001 decode-1.{NAME}."])
    async with Watched(server, SERVICE) as watched:
        assert watched.urls == [f"decode-0.{NAME}:8000", f"decode-1.{NAME}:8001"]


async def test_an_srv_record_with_a_root_target_means_no_service(server: Server) -> None:
    server.put(SERVICE, "SRV", ["0 0 0 ."])
    async with Watched(server, SERVICE) as watched:
        await watched.until(lambda: watched.told)
        assert watched.urls == []


async def test_engines_join_and_leave_when_the_ttl_expires(server: Server) -> None:
    server.ttl = 20
    async with Watched(server, f"{NAME}:8000") as watched:
        began = asyncio.get_running_loop().time()
        server.put(NAME, "A", [B, C])
        await watched.until(lambda: watched.urls == [f"{B}:8000", f"{C}:8000"])
        assert 19 < asyncio.get_running_loop().time() - began < 23


async def test_both_roles_are_reported_together(server: Server) -> None:
    server.put(OTHER, "A", [C])
    async with Watched(server, f"{NAME}:8000", prefill=(f"{OTHER}:9000",)) as watched:
        assert [(each.endpoint.role, each.endpoint.url) for each in watched.told[0]] == [
            (DECODE, f"http://{A}:8000"),
            (DECODE, f"http://{B}:8000"),
            (PREFILL, f"http://{C}:9000"),
        ]


async def test_an_address_in_both_roles_is_a_decode_engine(server: Server) -> None:
    server.put(OTHER, "A", [A])
    async with Watched(server, f"{NAME}:8000", prefill=(f"{OTHER}:8000",)) as watched:
        assert {each.endpoint.role for each in watched.told[0]} == {DECODE}


@pytest.mark.parametrize("failure", ["SERVFAIL", "REFUSED", "SILENCE", "NXDOMAIN"])
async def test_the_last_known_engines_stay_while_there_is_no_answer(
    server: Server, caplog: pytest.LogCaptureFixture, failure: str
) -> None:
    caplog.set_level("INFO")
    async with Watched(server, f"{NAME}:8000") as watched:
        server.failure = failure
        await watched.asked_again(times=4)
        assert watched.urls == [f"{A}:8000", f"{B}:8000"]
        server.failure = None
        server.put(NAME, "A", [C])
        await watched.until(lambda: watched.urls == [f"{C}:8000"])
        await watched.until(lambda: "works again" in caplog.text)
    levels = [each.levelname for each in caplog.records if "discovery" in each.message]
    assert levels == ["WARNING", "INFO"]


async def test_an_empty_answer_is_believed_when_it_comes_twice(server: Server) -> None:
    async with Watched(server, f"{NAME}:8000") as watched:
        server.put(NAME, "A", [])
        began = asyncio.get_running_loop().time()
        await watched.until(lambda: watched.told[-1] == ())
        assert asyncio.get_running_loop().time() - began > 2 * RETRY_SECONDS - 1
        assert len(watched.told) == 2


async def test_an_empty_answer_between_others_changes_nothing(server: Server) -> None:
    async with Watched(server, f"{NAME}:8000") as watched:
        server.put(NAME, "A", [])
        await watched.asked_again()
        server.put(NAME, "A", [A, B])
        await watched.asked_again(times=3)
        assert len(watched.told) == 1


async def test_it_starts_before_the_name_exists(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.records = {}
    async with Watched(server, f"{NAME}:8000") as watched:
        assert watched.told == []
        server.put(NAME, "A", [A])
        await watched.until(lambda: watched.told)
        assert watched.urls == [f"{A}:8000"]
    assert f"there is no name {NAME}; check it" in caplog.text


async def test_a_name_that_does_not_exist_does_not_hold_up_the_others(server: Server) -> None:
    async with Watched(server, f"{NAME}:8000", prefill=(f"{OTHER}:9000",)) as watched:
        assert watched.urls == [f"{A}:8000", f"{B}:8000"]
        server.put(NAME, "A", [A])
        await watched.until(lambda: watched.urls == [f"{A}:8000"])


BEFORE = tuple(Target(Endpoint(f"http://{host}:8000", DECODE)) for host in (A, C))


@pytest.mark.parametrize("failure", ["SERVFAIL", "REFUSED", "NXDOMAIN"])
async def test_known_engines_outlast_a_restart(server: Server, failure: str) -> None:
    server.failure = failure
    async with Watched(server, f"{NAME}:8000", before=BEFORE) as watched:
        await watched.asked_again(times=3)
        assert watched.told == []
        server.failure = None
        await watched.until(lambda: watched.told)
        assert watched.urls == [f"{A}:8000", f"{B}:8000"]


async def test_empty_answer_after_restart_counts_when_repeated(server: Server) -> None:
    server.put(NAME, "A", [])
    async with Watched(server, f"{NAME}:8000", before=BEFORE) as watched:
        assert watched.told == []
        await watched.asked_again()
        assert watched.told == [()]


async def test_engines_stay_while_a_name_of_their_role_is_silent(server: Server) -> None:
    prefill = tuple(Target(Endpoint(f"http://{host}:9000", PREFILL)) for host in (A, C))
    async with Watched(
        server, f"{NAME}:8000", prefill=(f"{OTHER}:9000",), before=(*BEFORE, *prefill)
    ) as watched:
        assert watched.urls == [f"{A}:8000", f"{A}:9000", f"{B}:8000", f"{C}:9000"]
        server.put(OTHER, "A", [C])
        await watched.until(lambda: f"{A}:9000" not in watched.urls)
        assert watched.urls == [f"{A}:8000", f"{B}:8000", f"{C}:9000"]


async def test_a_hundred_engines_come_over_tcp(server: Server) -> None:
    server.put(NAME, "A", [f"10.0.{n // 250}.{n % 250}" for n in range(100)])
    async with Watched(server, f"{NAME}:8000") as watched:
        assert len(watched.told[0]) == 100
    assert server.by_tcp


async def test_a_record_that_is_no_host_name_leaves_the_rest_as_it_was(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.put(SERVICE, "SRV", ["0 0 8000 a.example."])
    async with Watched(server, SERVICE) as watched:
        server.put(SERVICE, "SRV", ["0 0 8000 b.example.", r"0 0 8000 a\032b.example."])
        await watched.until(lambda: "leads nowhere" in caplog.text)
        assert watched.urls == ["a.example:8000"]


async def test_a_ttl_of_0_does_not_flood_the_server(server: Server) -> None:
    server.ttl = 0
    async with Watched(server, f"{NAME}:8000") as watched:
        began, asked = asyncio.get_running_loop().time(), watched.first_questions
        await watched.asked_again(times=10)
        asked = watched.first_questions - asked
        assert asyncio.get_running_loop().time() - began > 0.9 * (asked - 1)


async def test_each_name_has_answers_of_its_own(server: Server) -> None:
    answers: list[str] = []
    source = DnsSource(
        {DECODE: [dns_name(f"{NAME}:8000")], PREFILL: [dns_name(f"{OTHER}:8000")]},
        SystemResolver(server.resolver()),
        Random(1),
        answers.append,
    )
    task = asyncio.create_task(source.watch(lambda targets: None))
    while not answers:  # noqa: ASYNC110 - any state, not one that sets an event
        await asyncio.sleep(0.5)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert source.servers == (f"dns {NAME}", f"dns {OTHER}")
    # The other name does not exist.
    assert {*answers} == {f"dns {NAME}"}
