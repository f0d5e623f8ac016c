"""Addresses of a name: kept for a while, renewed in the background, used on when DNS fails."""

import asyncio
import socket

import pytest

from router.net.addresses import FRESH_SECONDS, STALE_SECONDS, Addresses, same_addresses
from tests.net.harness import Harness, eventually


class Lookups:
    """A resolver whose answers, and whose time, a test gives; the last answer is for good."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self._answers = list(answers)
        self.seen = 0
        self.now = 1000.0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def resolve(self, host: str, port: int) -> list[str]:
        self.seen += 1
        await self.may_answer.wait()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def addresses(lookups: Lookups, host: str = "engine.test") -> Addresses:
    return Addresses(host, 80, lookups.resolve, lambda: lookups.now)


DOWN = socket.gaierror(-3, "Temporary failure in name resolution")


async def test_fresh_names_are_not_resolved_again() -> None:
    lookups = Lookups(["10.0.0.1"], ["10.0.0.2"])
    found = addresses(lookups)
    assert await found.get() == ["10.0.0.1"]
    lookups.now += FRESH_SECONDS
    assert await found.get() == ["10.0.0.1"]
    assert lookups.seen == 1


async def test_stale_names_are_renewed_while_used() -> None:
    lookups = Lookups(["10.0.0.1"], ["10.0.0.2"])
    found = addresses(lookups)
    await found.get()
    lookups.now += FRESH_SECONDS + 1
    lookups.may_answer.clear()
    assert await found.get() == ["10.0.0.1"]
    assert await found.get() == ["10.0.0.1"]
    await eventually(lambda: lookups.seen == 2)
    lookups.may_answer.set()
    await eventually(lambda: found._known == ["10.0.0.2"])
    assert await found.get() == ["10.0.0.2"]
    assert lookups.seen == 2


async def test_stale_names_wait_for_a_new_answer() -> None:
    lookups = Lookups(["10.0.0.1"], ["10.0.0.2"])
    found = addresses(lookups)
    await found.get()
    lookups.now += STALE_SECONDS + 1
    assert await found.get() == ["10.0.0.2"]


async def test_failing_resolver_keeps_old_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = Lookups(["10.0.0.1"], DOWN)
    found = addresses(lookups)
    await found.get()
    for age in (FRESH_SECONDS + 1, STALE_SECONDS + 1, 1e6):
        lookups.now = 1000.0 + age
        assert await found.get() == ["10.0.0.1"]
        await eventually(lambda: found._lookup is None)
    assert lookups.seen == 4
    monkeypatch.setattr("router.net.addresses.LOOKUP_TIMEOUT_SECONDS", 0.01)
    lookups.may_answer.clear()  # now it hangs
    assert await found.get() == ["10.0.0.1"]
    found.close()


async def test_without_any_answer_the_resolvers_failure_is_the_reason() -> None:
    found = addresses(Lookups(DOWN))
    with pytest.raises(socket.gaierror, match="name resolution"):
        await found.get()
    found = addresses(Lookups(UnicodeError("label too long")))
    with pytest.raises(UnicodeError):
        await found.get()


async def test_one_lookup_serves_all_callers_and_survives_cancelled_ones() -> None:
    lookups = Lookups(["10.0.0.1"])
    lookups.may_answer.clear()
    found = addresses(lookups)
    asking = [asyncio.ensure_future(found.get()) for _ in range(5)]
    await eventually(lambda: lookups.seen == 1)
    asking[0].cancel()
    lookups.may_answer.set()
    assert await asyncio.gather(*asking[1:]) == [["10.0.0.1"]] * 4
    assert lookups.seen == 1


async def test_expired_names_are_resolved_without_other_knowledge() -> None:
    lookups = Lookups(["10.0.0.1", "10.0.0.2"], ["10.0.0.3"])
    found = addresses(lookups)
    await found.get()
    found.forget("10.0.0.1")
    found.forget("10.0.0.1")
    assert await found.get() == ["10.0.0.2"]
    found.forget("10.0.0.2")
    assert await found.get() == ["10.0.0.3"]


async def test_only_looked_up_prompts_are_cached() -> None:
    found = addresses(Lookups(["10.0.0.1"]))
    assert not found.is_cached
    await found.get()
    assert _is_cached(found)
    found.forget("10.0.0.1")
    assert not _is_cached(found)


def _is_cached(found: Addresses) -> bool:
    return found.is_cached


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%eth0"])
async def test_a_literal_address_is_never_looked_up_nor_forgotten(host: str) -> None:
    lookups = Lookups(DOWN)
    found = addresses(lookups, host)
    assert await found.get() == [host]
    found.forget(host)
    assert await found.get() == [host]
    assert not found.is_cached
    assert lookups.seen == 0


async def test_the_systems_resolver_is_the_default() -> None:
    found = await Addresses("localhost", 80).get()
    assert set(found) <= {"127.0.0.1", "::1"}
    assert len(set(found)) == len(found)


async def test_a_lookup_is_given_up_at_the_end() -> None:
    lookups = Lookups(["10.0.0.1"])
    lookups.may_answer.clear()
    found = addresses(lookups)
    asking = asyncio.ensure_future(found.get())
    await eventually(lambda: lookups.seen == 1)
    found.close()
    found.close()
    with pytest.raises(asyncio.CancelledError):
        await asking


NAMES = {
    "localhost": ["::1", "127.0.0.1"],
    "engine-a.test": ["10.0.0.1"],
    "engine-b.test": ["10.0.0.2"],
    "pool.test": ["10.0.0.2", "10.0.0.3"],
}


async def resolve(host: str, _: int) -> list[str]:
    """A resolver that knows literals and NAMES."""
    if host.endswith(".none"):
        raise socket.gaierror(-2, "Name or service not known")
    return NAMES.get(host, [host])


@pytest.mark.parametrize(
    ("one", "other", "address"),
    [
        ("http://127.0.0.1:8000", "http://localhost:8000", "127.0.0.1:8000"),
        ("http://[::1]:8000", "http://localhost:8000", "[::1]:8000"),
        ("http://engine-b.test/a", "http://pool.test/a", "10.0.0.2:80/a"),
        ("http://10.0.0.1:443", "https://engine-a.test", "10.0.0.1:443"),
    ],
)
async def test_two_names_of_one_address_are_found(one: str, other: str, address: str) -> None:
    [found] = await same_addresses([one, "http://engine-b.test:9", other], resolve)
    assert found == (one, other, address)
    assert found.warning.startswith(f"{one} and {other} both lead to {address}: ")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://127.0.0.1:8000", "http://localhost:8001"),
        ("http://127.0.0.1:8000/a", "http://localhost:8000/b"),
        ("http://engine-a.test", "http://engine-b.test"),
        ("http://name.none", "http://other.none"),
    ],
)
async def test_others_are_not(one: str, other: str) -> None:
    assert await same_addresses([one, other], resolve) == []


async def test_the_router_logs_it_at_startup(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.engine()
    urls = (f"http://127.0.0.1:{engine.port}", f"http://localhost:{engine.port}")
    await harness.router(engine, ready=False, unchecked={"decode": urls})
    await eventually(lambda: "both lead to 127.0.0.1" in caplog.text)
