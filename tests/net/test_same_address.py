"""URLs that lead to one address, and those that only look alike."""

import socket

import pytest

from router.net.background.same_address import same_addresses
from tests.net.harness import Harness, eventually

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


async def test_the_router_says_so_when_it_starts(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.engine()
    urls = (f"http://127.0.0.1:{engine.port}", f"http://localhost:{engine.port}")
    await harness.router(engine, ready=False, unchecked={"decode": urls})
    await eventually(lambda: "both lead to 127.0.0.1" in caplog.text)
