"""Creates the fleet, the scheduler and what plans need of them, from the settings."""

import itertools
import uuid
from collections.abc import Iterator, Sequence
from random import Random

from router.core.fleet.fleet import Fleet
from router.core.fleet.probing import STALE_SCRAPES, roles_that_use_speed
from router.core.health import HealthThresholds
from router.core.judge import outlier
from router.core.judge.verdict import ExclusionConfig
from router.core.kv_events import CacheEvents
from router.core.limits.budgets import RetryBudget
from router.core.policies import POLICIES, Policy
from router.core.routing.auto_threshold import AutoThreshold
from router.core.routing.schedule import Scheduler
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.urls import split_rank
from router.core.values import Endpoint, Receiver, Role
from router.net.processes.shared_state import WorkerContext
from router.settings import Settings
from router.web.replicas import ledger_of

__all__ = [
    "exclusion_of",
    "fleet_of",
    "policies_of",
    "receivers_of",
    "scheduler_of",
    "shown_config",
    "transfer_ids",
]


def fleet_of(
    settings: Settings,
    context: WorkerContext | None = None,
    endpoints: Sequence[Endpoint] = (),
) -> Fleet:
    """Creates the fleet, with these engines in state `starting`."""
    stale_after = STALE_SCRAPES * settings.engine_stats_interval

    def speed_of(endpoint: Endpoint) -> SpeedEstimator:
        return SpeedEstimator(None if context is None else context.column.speed(endpoint))

    def max_num_seqs(endpoint: Endpoint) -> int | None:
        url, _ = split_rank(endpoint.url)
        return settings.max_num_seqs(url) if endpoint.role is Role.DECODE else None

    return Fleet(
        endpoints,
        ledger_of(settings, context),
        HealthThresholds(),
        stale_after,
        exclusion_of(settings),
        speed_of,
        max_num_seqs,
        shares_prefixes=context is not None or settings.shares_prompts,
        cache_events=CacheEvents() if settings.prefix_cache == "events" else None,
    )


def exclusion_of(settings: Settings) -> ExclusionConfig:
    """When engines are excluded."""
    return ExclusionConfig(
        stall_seconds=settings.stall_timeout,
        outliers=outlier.OutlierConfig(
            consecutive=settings.outlier_consecutive_failures,
            base_seconds=settings.outlier_ejection_time,
        ),
        max_excluded=settings.max_excluded_percent / 100,
        slow_start_seconds=settings.slow_start,
        speed_roles=roles_that_use_speed(policies_of(settings)),
    )


def policies_of(settings: Settings) -> dict[Role, Policy]:
    """The policy of each role."""
    common = settings.load_balancing_strategy
    return {
        Role.PREFILL: POLICIES[settings.prefill_load_balancing_strategy or common],
        Role.DECODE: POLICIES[settings.decode_load_balancing_strategy or common],
    }


def scheduler_of(settings: Settings, fleet: Fleet, *, tries: bool = True) -> Scheduler:
    """Creates the scheduler of a fleet. Without `tries`, --routing-threshold auto uses no request
    to measure the other mode."""
    policies = policies_of(settings)
    threshold = settings.routing_threshold
    cached_roles = compared_roles = frozenset[Role]()
    on_uncached = settings.threshold_on == "uncached"
    if settings.prefix_cache != "off":
        cached_roles = roles_that_use_speed(policies)
        compared_roles = frozenset(Role if threshold == "auto" else (Role.DECODE,) * on_uncached)
    auto = None
    if threshold == "auto":
        auto = AutoThreshold(fleet, settings.max_itl_impact, tries=tries)
    return Scheduler(
        fleet,
        policies,
        0 if threshold == "auto" else threshold,
        Random(),
        cached_roles,
        compared_roles=compared_roles,
        threshold_on_uncached=on_uncached,
        auto=auto,
        retry_budget=RetryBudget(settings.retry_budget),
        retries_on_5xx=settings.retries_on_5xx,
    )


def shown_config(settings: Settings) -> dict[str, str]:
    """The settings that are exported as metrics."""
    common = settings.load_balancing_strategy
    return {
        "prefill_strategy": settings.prefill_load_balancing_strategy or common,
        "decode_strategy": settings.decode_load_balancing_strategy or common,
        "routing_threshold": str(settings.routing_threshold),
        "connector": settings.disagg_connector_type,
        "workers": str(settings.workers),
    }


def receivers_of(settings: Settings) -> dict[Endpoint, Receiver]:
    """The KV receiver of each decode engine; empty for connectors that do not need it."""
    return {
        Endpoint(url, Role.DECODE): Receiver(
            given.receiver_host, given.receiver_init_port, given.receiver_alloc_port
        )
        for url, given in settings.receivers.items()
    }


def transfer_ids() -> Iterator[str]:
    """Yields ids that are unique across routers and restarts, because LMCache's notifications are
    counted by them."""
    router = uuid.uuid4().hex
    return (f"{router}-{number}" for number in itertools.count())
