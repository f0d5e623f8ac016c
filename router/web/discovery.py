"""Runs the sources that list engines, and checks what they list."""

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
"""Age of a router in seconds below which an invalid configuration of a source ends it. An older
router has clients to serve, with this source or without it."""

AGAIN_SECONDS: Final = 10.0
"""Seconds until a source with an invalid configuration is queried again, and for which it has to
work before the log says so."""


class Discovery:
    """`on_targets` receives the engines that a source lists within `networks`; `known` returns the
    received ones. `on_wrong_configuration` is called if a source can never work and the router
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
        """For each source the logged reasons why listed engines are ignored."""

    async def run(self, source: Source) -> None:
        """Run a source without end. If its configuration is invalid when the router starts, it is
        not queried again. If it becomes invalid later, or the source has listed engines before
        (perhaps to a previous process), the cluster must have changed: the fleet stays as it is and
        the source is queried again."""

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
                # A source that may list but not watch lists engines each time before it fails.
                if recovery is not None:
                    recovery.cancel()
                    recovery = None
            await asyncio.sleep(AGAIN_SECONDS)

    def _admitted(self, source: str, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        """The targets within `--engine-networks`. Others are logged."""
        kept, refused = admitted(self._networks, targets)
        for text in sorted(refused - self._refused.get(source, frozenset())):
            log.warning("%s names an engine that is left out: %s", source, text)
        self._refused[source] = refused
        return kept
