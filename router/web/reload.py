"""Applies new settings to the parts of a running router. Requests in progress continue with the old
ones."""

from dataclasses import dataclass

from router.core.fleet.fleet import Fleet
from router.settings import Settings
from router.telemetry.logs import set_level
from router.telemetry.metrics import Metrics
from router.web.admin import OperationsHandler
from router.web.client_parts import (
    admission_gate,
    admission_limits,
    answer_budget_of,
    byte_budget_of,
    cors_of,
    key_file_of,
    key_rows_of,
    limits_of,
    prefill_from,
    timeouts_of,
    trusted_gateways,
)
from router.web.client_side import ClientSide
from router.web.discovery import SETTINGS, targets_of
from router.web.engine_side import EngineSide
from router.web.fleet_sync import FleetSync
from router.web.request_handler import RequestHandler
from router.web.routing_parts import exclusion_of, scheduler_of, shown_config

__all__ = ["SCHEDULING", "Parts", "reload"]

SCHEDULING = (
    *("routing_threshold", "threshold_on", "max_itl_impact"),
    *("retry_budget", "retries_on_5xx"),
    *("load_balancing_strategy", "prefill_load_balancing_strategy"),
    "decode_load_balancing_strategy",
)
"""Settings of the scheduler. It is replaced only if one of them changes, because it loses what it
has learned."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that have reloadable settings."""

    handler: RequestHandler
    admin_handler: OperationsHandler
    fleet: Fleet
    sync: FleetSync
    engines: EngineSide
    clients: ClientSide
    metrics: Metrics


def reload(parts: Parts, before: Settings, settings: Settings) -> None:
    """Apply `settings`, which differ from `before` only in reloadable ones. Raises OSError or
    ValueError, without any change, if a key file cannot be read."""
    network = parts.handler.network
    show = parts.metrics.show_key_limits
    keys = key_file_of(
        settings.api_key_file, network.api_keys, key_rows_of(parts.clients.context), show
    )
    admin_keys = key_file_of(settings.admin_key_file, parts.admin_handler.key_file)
    network.api_keys = keys
    network.limits, network.timeouts = limits_of(settings), timeouts_of(settings)
    network.byte_budget.limit = byte_budget_of(settings).limit
    network.answer_budget.limit = answer_budget_of(settings).limit
    network.sample = settings.decision_log_sample
    network.names_engines = settings.engine_header == "on"
    if network.gateway is not None:
        network.gateway.configure(trusted_gateways(settings))
    parts.handler.cors = cors_of(settings)
    parts.handler.configure(network.limits)
    parts.admin_handler.configure(network.limits, admin_keys)
    _reload_routing(parts, before, settings)
    _reload_admission(parts, settings)
    parts.engines.configure(settings)
    parts.clients.plans.configure(settings)
    parts.metrics.info.config = shown_config(settings)
    if settings.log_level != before.log_level:
        set_level(settings.log_level)
    if parts.sync.is_leader:
        parts.sync.on_targets(SETTINGS, targets_of(settings))


def _reload_routing(parts: Parts, before: Settings, settings: Settings) -> None:
    """Apply the settings by which engines are chosen, from the next request on."""
    network = parts.handler.network
    if any(getattr(before, name) != getattr(settings, name) for name in SCHEDULING):
        scheduler = scheduler_of(settings, parts.fleet)
        scheduler.succeed(network.scheduler)
        network.scheduler = scheduler
    parts.fleet.configure(exclusion_of(settings))
    parts.clients.body_parser.prefill_from = prefill_from(settings)


def _reload_admission(parts: Parts, settings: Settings) -> None:
    """Apply the admission limits. A gate stays if there was one, because the requests that it
    admitted have to release their places."""
    network = parts.handler.network
    if network.admission is not None:
        network.admission.configure(admission_limits(settings))
    else:
        network.admission = admission_gate(
            settings,
            parts.fleet,
            parts.clients.start_limiter,
            parts.metrics,
            parts.clients.context,
        )
