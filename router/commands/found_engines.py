"""The engines that a command queries: those in the settings, and those that discovery finds."""

import asyncio
from collections.abc import Iterable
from typing import Final

from router.core.membership.engine_names import EngineNetworks
from router.core.membership.entry import Target
from router.core.values import Role
from router.discovery.source import Source, WrongConfiguration
from router.settings import Settings, SettingsError
from router.settings.engine_values import Receiver
from router.web.discovery import admitted, discovery_sources

__all__ = ["with_found_engines"]

FIRST_SECONDS: Final = 10.0
"""Time-out in seconds for the first answer of a source."""


async def with_found_engines(settings: Settings) -> tuple[Settings, list[Target]]:
    """The engines currently found by Kubernetes or DNS, and the settings extended by these and
    their LMCache receivers, as a router would do. Raises SettingsError if a source does not answer
    or can never work."""
    told = await asyncio.gather(*map(_first_targets, discovery_sources(settings)))
    networks = EngineNetworks(settings.engine_networks)
    found = [target for targets in told for target in admitted(networks, targets)[0]]
    named = settings.model_copy(
        update={
            "prefill": _urls(settings.prefill, found, Role.PREFILL),
            "decode": _urls(settings.decode, found, Role.DECODE),
            "decoder_registry": _receivers(found) | settings.receivers or None,
            "decoder_host": None,  # if given, it has been added to the registry
        }
    )
    return named, found


def _receivers(found: Iterable[Target]) -> dict[str, Receiver]:
    """Receivers by decode URL, as in a registry."""
    return {
        each.endpoint.url: Receiver(
            receiver_host=each.receiver.host,
            receiver_init_port=each.receiver.init_ports,
            receiver_alloc_port=each.receiver.alloc_ports,
        )
        for each in found
        if each.receiver is not None
    }


def _urls(named: Iterable[str], found: Iterable[Target], role: Role) -> tuple[str, ...]:
    """The URLs in order, without duplicates."""
    urls = (each.endpoint.url for each in found if each.endpoint.role is role)
    return tuple(dict.fromkeys((*named, *urls)))


async def _first_targets(source: Source) -> tuple[Target, ...]:
    first: asyncio.Future[tuple[Target, ...]] = asyncio.get_running_loop().create_future()

    def on_targets(targets: tuple[Target, ...]) -> None:
        if not first.done():
            first.set_result(targets)

    watching = asyncio.ensure_future(source.watch(on_targets))
    try:
        await asyncio.wait(
            (first, watching), timeout=FIRST_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if first.done():
            return first.result()
        if watching.done():
            watching.result()
        raise SettingsError(f"discovery by {source.name}: no answer in {FIRST_SECONDS:g} s")
    except WrongConfiguration as error:
        raise SettingsError(f"discovery by {source.name}: {error}") from None
    finally:
        watching.cancel()
        await asyncio.wait((watching,))
