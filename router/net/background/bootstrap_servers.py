"""Asks the bootstrap servers of prefill engines that run MooncakeConnector for the engines' ids."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import aiohttp

from router.core.urls import split_rank
from router.core.values import TransferSource
from router.core.wire.bootstrap import engine_ids
from router.net.engine.engine_session import (
    ERRORS,
    OWN,
    TIMEOUT,
    Trouble,
    engine_session,
    read_bounded,
    trouble_of,
)
from router.net.watched_files import TLSFiles

__all__ = ["OTHER_RANKS", "BootstrapServers"]

log = logging.getLogger(__name__)

PATH: Final = "/query"

OTHER_RANKS: Final = "other ranks"
"""The `health` of an engine whose bootstrap server lists another number of ranks."""

MAX_ANSWER_BYTES: Final = 1 << 18
"""Largest response in bytes that is read: an address of 40 for each of 64 ranks' 64 workers."""


class BootstrapServers:
    """Asks them. Close it before the event loop ends."""

    def __init__(
        self, url_of: Callable[[str], str], *, timeout_seconds: float, tls: TLSFiles
    ) -> None:
        self.url_of = url_of
        """The URL of an engine's bootstrap server."""
        self._seconds = timeout_seconds
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def find(self, name: str, ranks: Sequence[str]) -> TransferSource | Trouble:
        """Where decode engines find the engine `name`, or why it is not known: `OTHER_RANKS` if it
        has another number of data-parallel ranks than `ranks`, which are their names.

        The server of a node lists the ranks of that node, or of the engine, from 0 on. So they are
        matched by their order.
        """
        url, _ = split_rank(name)
        server = self.url_of(url)
        found = await self._ask(server)
        if isinstance(found, Trouble):
            return found
        names = sorted(ranks, key=lambda each: split_rank(each)[1] or 0)
        if len(found) == len(names):
            return TransferSource(server, found[names.index(name)])
        other = f"lists {len(found)} data-parallel ranks, and the engine's /metrics {len(names)}"
        return _trouble(server, OTHER_RANKS, other)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, server: str) -> tuple[str, ...] | Trouble:
        if self._session is None:  # without a key: the server is no API server, and has no TLS
            self._session = engine_session(None, self._tls.context, timeout_seconds=self._seconds)
        try:
            async with self._session.get(server + PATH, allow_redirects=False) as response:
                body = await read_bounded(response, MAX_ANSWER_BYTES)
                if response.status != 200:
                    return _trouble(server, str(response.status), f"answers {response.status}")
        except TimeoutError:
            return _trouble(server, TIMEOUT, f"has not answered in {self._seconds:g} s")
        except ERRORS as error:
            log.debug("%s%s: %s", server, PATH, error)
            health, advice = trouble_of(error)
            return Trouble(OWN, None) if health == OWN else _trouble(server, health, f"{advice}")
        try:
            return engine_ids(body)
        except ValueError as error:
            return _trouble(server, "no engine id", str(error))


def _trouble(server: str, health: str, what: str) -> Trouble:
    return Trouble(
        health,
        f"its Mooncake bootstrap server {server}{PATH}: {what}; see --mooncake-bootstrap-port",
    )
