"""Runs the sources that name engines while the router runs, and judges what they name."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from router.core.membership.engine_networks import EngineNetworks
from router.core.membership.membership import Target
from router.discovery.outage import Outage
from router.discovery.source import Known, Source, WrongConfiguration
from router.web.sources import admitted

__all__ = ["Discovery"]

log = logging.getLogger(__name__)

START_SECONDS: Final = 60.0
"""Age of a router, in seconds, below which a wrong configuration ends it. An older one serves
clients, with this source or without it."""

AGAIN_SECONDS: Final = 10.0
"""Before a source whose configuration has become wrong is asked again; and how long it has to go
well until the log says so."""


class Discovery:
    """`on_targets` gets the engines that a source names, of those in `networks`; `known` tells what
    it has got. `on_wrong_configuration` is called when a source can never work and the router
    `is_starting`."""

    def __init__(
        self,
        networks: EngineNetworks,
        on_targets: Callable[[str, tuple[Target, ...]], None],
        known: Known,
        on_wrong_configuration: Callable[[], None],
        is_starting: Callable[[], bool],
    ) -> None:
        self._networks = networks
        self._on_targets = on_targets
        self._known = known
        self._on_wrong_configuration = on_wrong_configuration
        self._is_starting = is_starting
        self._refused: dict[str, frozenset[str]] = {}
        """By source, why engines that it names are left out, as last logged."""

    async def run(self, source: Source) -> None:
        """Let a source list engines, without end. If its configuration is wrong when the router
        starts it is not asked again. Later, or if it has listed some, perhaps to a process before
        this one, the fleet stays and it is asked again, because its cluster has changed."""

        outage = Outage(source.name, level=logging.ERROR)
        loop, recovery = asyncio.get_running_loop(), None

        def on_targets(targets: tuple[Target, ...]) -> None:
            nonlocal recovery
            self._on_targets(source.name, self._admitted(source.name, targets))
            if recovery is None:
                recovery = loop.call_later(AGAIN_SECONDS, outage.succeeded, source.name)

        while True:
            try:
                await source.watch(on_targets)
            except WrongConfiguration as error:
                if self._is_starting() and self._known(source.name) is None:
                    log.error("discovery by %s: %s", source.name, error)  # noqa: TRY400
                    self._on_wrong_configuration()
                    return
                outage.failed(source.name, str(error), str(error))
            finally:
                # What may be listed but not watched names engines each time before it fails.
                if recovery is not None:
                    recovery.cancel()
                    recovery = None
            await asyncio.sleep(AGAIN_SECONDS)

    def _admitted(self, source: str, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        """The targets within `--engine-networks`; others are logged."""
        kept, refused = admitted(self._networks, targets)
        for text in sorted(refused - self._refused.get(source, frozenset())):
            log.warning("%s names an engine that is left out: %s", source, text)
        self._refused[source] = refused
        return kept
