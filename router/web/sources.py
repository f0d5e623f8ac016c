"""Creates the sources of engines: the settings themselves, and the discovery sources."""

import time

from router.core.membership import engines_file
from router.core.membership.engine_networks import EngineNetworks
from router.core.membership.membership import Target
from router.core.membership.roster import MAX_ENDPOINTS, Roster
from router.core.values import Endpoint, Role
from router.discovery.file import FileSource
from router.discovery.source import Known, OnAnswer, Source, nothing_known
from router.settings import Settings
from router.web.discovery_sources import discovery_sources

__all__ = [
    "SETTINGS",
    "admitted",
    "endpoints_of",
    "first_roster",
    "new_roster",
    "sources_of",
    "targets_of",
]

SETTINGS = "settings"
"""The source of the engines in `--prefill` and `--decode`."""


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
    rows = max(MAX_ENDPOINTS, 2 * (len(settings.prefill) + len(settings.decode)))
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
