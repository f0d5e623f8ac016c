"""`pd-router serve`: one process, or several that share the port and state."""

import logging
from collections.abc import Sequence

from router import __version__
from router.commands.sockets import Sockets
from router.commands.workers import Workers
from router.settings import Settings, SettingsSource
from router.web.app import Router
from router.web.discovery import sources_of
from router.web.server import Server

__all__ = ["run"]

log = logging.getLogger(__name__)

MAX_NAMED = 16
"""Most engines of a pool that are named in the first log line."""


def run(settings: Settings, source: SettingsSource) -> int:
    """Serve until a signal. Returns the exit status. The settings are read again from `source`."""
    sockets = Sockets(settings)
    _announce(settings, str(source))
    if settings.workers > 1:
        return Workers(settings, sockets, source).run()
    router = Router(settings, source=source)
    server = Server(
        router,
        admin_sockets=sockets.admin[0],
        succession=sockets.succession,
        is_preceded=sockets.is_preceded,
    )
    server.run(sockets=sockets.public[0])
    return router.lifecycle.exit_status


def _announce(settings: Settings, configured_by: str) -> None:
    """Log one line about what is started."""
    strategies: list[str] = [settings.load_balancing_strategy]
    for role, own in (
        ("prefill", settings.prefill_load_balancing_strategy),
        ("decode", settings.decode_load_balancing_strategy),
    ):
        if own is not None:
            strategies.append(f"{role}:{own}")
    fields: dict[str, object] = {
        "version": __version__,
        "prefill": _names(settings.prefill),
        "decode": _names(settings.decode),
        "encode": _names(settings.encode) if settings.encode else None,
        "threshold": settings.routing_threshold,
        "strategy": ",".join(strategies),
        "connector": settings.disagg_connector_type,
        "workers": settings.workers,
        "configuration": configured_by or None,
    }
    if found := [source.name for source in sources_of(settings)]:
        fields["discovery"] = ",".join(found)
    log.info("starting", extra={"fields": fields})


def _names(urls: Sequence[str]) -> str:
    """The names of engines, as many as fit into a line."""
    text = ",".join(urls[:MAX_NAMED])
    return f"{text},and {len(urls) - MAX_NAMED} more" if len(urls) > MAX_NAMED else text or "none"
