"""A source before an API server, in one loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import aiohttp
import pytest

from router.core.membership.entry import Target
from router.core.values import DECODE, PREFILL, Role
from router.discovery.api_server import ApiServer
from router.discovery.kubernetes import KubernetesSource
from tests.calm import calm
from tests.discovery.api import Api, serving

__all__ = ["calm"]

SELECTORS = {PREFILL: "role=prefill", DECODE: "role=decode"}


class NoCredentials:
    """Of a server that wants none."""

    async def headers(self) -> dict[str, str]:
        """None."""
        return {}

    async def renew(self) -> None:
        """There is nothing to renew."""


class Watched:
    """A running source and its reports."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.told: list[tuple[Target, ...]] = []
        self.source = KubernetesSource(self.login, SELECTORS, (8000,), chance=Random(1))

    async def login(self) -> ApiServer:
        """To the test's server."""
        session = aiohttp.ClientSession()
        return ApiServer(self.api.url, "default", session, NoCredentials(), {})

    @property
    def urls(self) -> dict[str, Role]:
        """Hosts and roles of the usable engines in the last report."""
        return {
            each.endpoint.url.removeprefix("http://").removesuffix(":8000"): each.endpoint.role
            for each in (self.told or [()])[-1]
            if not each.is_draining
        }

    @property
    def hosts(self) -> set[str]:
        """The hosts alone."""
        return set(self.urls)

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait for a state."""
        while not holds():  # noqa: ASYNC110 - any state, not one that sets an event
            await asyncio.sleep(0.5)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """A server with a prefill engine p and the decode engines a and b."""
    api = Api()
    api.put("p", ip="10.0.0.3", role="prefill")
    api.put("a", ip="10.0.0.1")
    api.put("b", ip="10.0.0.2")
    async with serving(api):
        yield api


@pytest.fixture
async def watched(api: Api) -> AsyncIterator[Watched]:
    """A running source with its first report."""
    watched = Watched(api)
    task = asyncio.create_task(watched.source.watch(watched.told.append))
    try:
        await watched.until(lambda: api.watches == 2)
        yield watched
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
