"""The sources that list engines: the settings themselves, a file, Kubernetes and DNS. Creates and
runs them, and checks what they list."""

import asyncio
import logging
import time
from typing import Final

from router.core.membership import engines_file
from router.core.membership.engine_names import EngineNetworks
from router.core.membership.entry import Target
from router.core.membership.roster import MAX_ENDPOINTS, Roster
from router.core.values import DECODE, ENCODE, PREFILL, Endpoint, Role
from router.discovery.dns import DnsSource, SystemResolver
from router.discovery.file import FileSource
from router.discovery.kubernetes import KubernetesSource
from router.discovery.kubernetes_login import kubernetes_login
from router.discovery.source import (
    Known,
    OnAnswer,
    Outage,
    Source,
    WrongConfiguration,
    nothing_known,
)
from router.settings import Settings, SettingsError
from router.web.fleet_sync import FleetSync
from router.web.lifecycle import Lifecycle

__all__ = [
    "SETTINGS",
    "Discovery",
    "admitted",
    "discovery_sources",
    "dns_source",
    "endpoints_of",
    "first_roster",
    "kubernetes_source",
    "new_roster",
    "sources_of",
    "targets_of",
]

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 10.0
"""Seconds until a source with an invalid configuration is queried again, and for which it has to
work before the log says so."""


SETTINGS = "settings"
"""The source of the engines in `--prefill`, `--decode` and `--encode`."""


class Discovery:
    """Gives `sync` the engines that sources list within `networks`. A source that can never work
    ends a router that is starting, by its `lifecycle`."""

    def __init__(self, networks: EngineNetworks, sync: FleetSync, lifecycle: Lifecycle) -> None:
        self._networks = networks
        self._sync = sync
        self._lifecycle = lifecycle
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
            self._sync.on_targets(source.name, self._admitted(source.name, targets))
            if recovery is None:
                recovery = loop.call_later(AGAIN_SECONDS, outage.succeeded, source.name)

        while True:
            try:
                await source.watch(on_targets)
            except WrongConfiguration as error:
                is_known = self._sync.roster.named_by(source.name) is not None
                if self._lifecycle.is_starting and not is_known:
                    log.error("discovery by %s: %s", source.name, error)  # noqa: TRY400
                    self._lifecycle.fail()
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


def sources_of(
    settings: Settings,
    on_answer: OnAnswer = lambda server: None,
    known: Known = nothing_known,
) -> list[Source]:
    """Creates the discovery sources, which report their answers to `on_answer`. Raises
    SettingsError if an extra is not installed."""
    path = settings.engines_file
    found: list[Source] = [] if path is None else [FileSource(path, on_answer=on_answer)]
    return found + discovery_sources(settings, on_answer, known)


def new_roster(settings: Settings) -> Roster:
    """Creates an empty roster."""
    # Twice the engines of the settings, because all of them may be replaced at once.
    rows = max(MAX_ENDPOINTS, 2 * len(targets_of(settings)))
    return Roster(rows, settings.engine_leave_timeout)


def first_roster(settings: Settings) -> Roster:
    """Creates the roster with all engines that are known without waiting."""
    roster = new_roster(settings)
    for source, targets in _first_targets(settings).items():
        roster.set_targets(source, targets, time.monotonic())
    return roster


def endpoints_of(settings: Settings, *, with_draining: bool = True) -> list[Endpoint]:
    """The endpoints that are known without waiting; prefill engines of the settings come first."""
    return [
        target.endpoint
        for targets in _first_targets(settings).values()
        for target in targets
        if with_draining or not target.is_draining
    ]


def targets_of(settings: Settings) -> tuple[Target, ...]:
    """The engines in the settings."""
    return (
        *(Target(Endpoint(url, Role.PREFILL)) for url in settings.prefill),
        *(Target(Endpoint(url, Role.DECODE)) for url in settings.decode),
        *(Target(Endpoint(url, Role.ENCODE)) for url in settings.encode),
    )


def admitted(
    networks: EngineNetworks, targets: tuple[Target, ...]
) -> tuple[tuple[Target, ...], frozenset[str]]:
    """The targets within the networks, and the reasons why others are ignored."""
    judged = [(target, networks.refusal(target.endpoint.url)) for target in targets]
    kept = tuple(target for target, why in judged if why is None)
    refused = (f"{target.endpoint.url}: {why}" for target, why in judged if why is not None)
    return kept, frozenset(refused)


def _first_targets(settings: Settings) -> dict[str, tuple[Target, ...]]:
    found = {SETTINGS: targets_of(settings)}
    path = settings.engines_file
    if path is not None:
        named = engines_file.read(path.read_bytes())
        found[FileSource(path).name], _ = admitted(EngineNetworks(settings.engine_networks), named)
    return found


def discovery_sources(
    settings: Settings,
    on_answer: OnAnswer = lambda server: None,
    known: Known = nothing_known,
) -> list[Source]:
    """All discovery sources. Raises SettingsError if an extra is not installed, or if there is no
    DNS server to ask."""
    try:
        found = (kubernetes_source(settings, on_answer), dns_source(settings, on_answer, known))
    except (ImportError, ValueError) as error:
        raise SettingsError(str(error)) from None
    return [each for each in found if each is not None]


def kubernetes_source(settings: Settings, on_answer: OnAnswer) -> KubernetesSource | None:
    """The source that watches pods; None if it is off. Raises ImportError."""
    selectors = {
        PREFILL: settings.k8s_prefill_selector,
        DECODE: settings.k8s_decode_selector,
        ENCODE: settings.k8s_encode_selector,
    }
    given = {role: selector for role, selector in selectors.items() if selector is not None}
    if not given:
        return None
    is_lmcache = settings.disagg_connector_type == "lmcache"
    return KubernetesSource(
        kubernetes_login(settings.k8s_config_file, settings.k8s_namespace),
        given,
        settings.k8s_port,
        needs_receivers=is_lmcache and settings.decoder_registry is None,
        on_answer=on_answer,
    )


def dns_source(settings: Settings, on_answer: OnAnswer, known: Known) -> DnsSource | None:
    """The source that queries DNS servers; None if it is off. Raises ImportError."""
    names = {
        PREFILL: settings.dns_prefill,
        DECODE: settings.dns_decode,
        ENCODE: settings.dns_encode,
    }
    if not any(names.values()):
        return None
    return DnsSource(names, SystemResolver(), on_answer=on_answer, known=known)
