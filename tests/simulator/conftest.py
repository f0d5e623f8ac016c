"""What the tests of the simulator share: a client, a prefill engine and a decode engine."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from router.simulator import EngineConfig, RunningEngine, serve_engine


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


@pytest.fixture
async def engine() -> AsyncIterator[RunningEngine]:
    """One engine that never ends by itself: 8 tokens asked are 8 tokens got."""
    async with serve_engine(EngineConfig(eos_one_in=0)) as running:
        yield running


@pytest.fixture
async def prefill() -> AsyncIterator[RunningEngine]:
    async with serve_engine(EngineConfig(role="prefill", eos_one_in=0)) as running:
        yield running


@pytest.fixture
async def decode() -> AsyncIterator[RunningEngine]:
    async with serve_engine(EngineConfig(role="decode", eos_one_in=0)) as running:
        yield running
