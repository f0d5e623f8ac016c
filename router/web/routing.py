"""Routing: the fleet, the scheduler that chooses its engines, and the plan of each request."""

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Final

from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.probing import STALE_SCRAPES, roles_that_use_speed
from router.core.health import HealthThresholds
from router.core.judge import outlier
from router.core.judge.verdict import ExclusionConfig
from router.core.kv_events import CacheEvents
from router.core.limits.budgets import RetryBudget
from router.core.membership.entry import Entry
from router.core.model_alias import parse
from router.core.plans.direct import direct
from router.core.plans.lmcache import lmcache
from router.core.plans.mooncake import mooncake
from router.core.plans.moriio import moriio
from router.core.plans.nixl import nixl
from router.core.plans.renamed import renamed
from router.core.plans.steps import Plan
from router.core.plans.store import store
from router.core.policies import POLICIES, Policy
from router.core.replicas import PeerBoard
from router.core.request_facts import DEFAULT_IMAGE_RULE, Facts, ImageRule, ImageRules
from router.core.routing.auto_threshold import AutoThreshold
from router.core.routing.model_names import ModelNames
from router.core.routing.schedule import Scheduler
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.urls import split_rank
from router.core.values import (
    DIRECT,
    Decision,
    Endpoint,
    Receiver,
    Role,
    TransferSource,
    TransferTarget,
)
from router.net.processes.shared_state import WorkerContext
from router.settings import Settings, SettingsError

__all__ = [
    "ENCODE_STRATEGY",
    "PLANS",
    "SCHEDULING",
    "PlanChoice",
    "Routing",
    "exclusion_of",
    "fleet_of",
    "policies_of",
    "receivers_of",
    "scheduler_of",
]

SCHEDULING: Final = (
    *("routing_threshold", "threshold_on", "max_itl_impact"),
    *("retry_budget", "retries_on_5xx", "stream_continuation", "stored_responses"),
    "uncontinued_models",
    *("load_balancing_strategy", "prefill_load_balancing_strategy"),
    "decode_load_balancing_strategy",
)
"""Settings of the scheduler. It is replaced only if one of them changes, because it loses what it
has learned."""

PLANS: Final = {"nixl": nixl, "store": store}
"""By connector, the plans that need no more than a request's facts."""

ENCODE_STRATEGY: Final = "least_loaded"
"""Of encode engines: their speed is not measured, because they generate nothing."""


class Routing:
    """The `scheduler` and the `plans` of a fleet."""

    scheduler: Scheduler

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self.fleet = fleet
        self._scheduling: tuple[object, ...] = ()
        self._decode = settings.decode
        self.plans = PlanChoice(settings, fleet)
        self.configure(settings, self.read(settings))

    def read(self, settings: Settings) -> ModelNames:
        """Read the names of models. Raises ValueError if they conflict with those of engines. A
        target may be one of engines that join later, if engines are discovered or have changed."""
        names = ModelNames(map(parse, settings.model_aliases), self.fleet)
        is_fixed = not settings.discovers and settings.decode == self._decode
        for problem in names.problems(is_fixed=is_fixed):
            raise ValueError(f"--model-aliases: {problem}")
        return names

    def check_names(self) -> None:
        """The same at the start, when engines have been asked. Raises SettingsError."""
        for problem in self.names.problems(is_fixed=self._is_fixed):
            raise SettingsError(f"--model-aliases: {problem}")

    def configure(self, settings: Settings, names: ModelNames) -> None:
        """Apply the settings, from the next request on."""
        self.names = names
        self._decode, self._is_fixed = settings.decode, not settings.discovers
        scheduling = tuple(getattr(settings, name) for name in SCHEDULING)
        if scheduling != self._scheduling:
            scheduler = scheduler_of(settings, self.fleet)
            if self._scheduling:
                scheduler.succeed(self.scheduler)
            self.scheduler, self._scheduling = scheduler, scheduling
        self.fleet.configure(exclusion_of(settings))
        self.plans.configure(settings)
        self._has_prefill = settings.names_prefill

    def threshold_now(self) -> float:
        """Tokens from which prompts are prefilled remotely at this moment."""
        return self.scheduler.threshold_now

    def has_prefill(self) -> bool:
        """Whether there should be prefill engines, also while there are none."""
        return self._has_prefill


class PlanChoice:
    """Creates plans. For LMCache it knows the KV receiver of each decode engine, from the settings
    and from the roster's entries."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._fleet = fleet
        self._connector = settings.disagg_connector_type
        self._notifies = settings.lmcache_notify_bind is not None
        self._transfers = transfer_ids()
        self._found: dict[Endpoint, Receiver] = {}
        """The receivers that the roster's entries name."""
        self.configure(settings)

    def plan(self, facts: Facts, decision: Decision) -> Plan:
        """Create a request's plan."""
        if decision.mode is DIRECT:
            plan = direct(facts)
        elif (of_connector := PLANS.get(self._connector)) is not None:
            plan = of_connector(facts)
        elif self._connector == "mooncake":
            plan = mooncake(facts, self._transfer_source, self._transfers.__next__)
        elif self._connector == "moriio":
            plan = moriio(facts, self._transfer_target, self._transfers.__next__)
        elif facts.tried:  # a continued stream: LMCache's first token has been sent
            plan = direct(facts)
        else:
            notify = self._notifies
            plan = lmcache(facts, self._receivers, self._transfers.__next__, notify=notify)
        return plan if facts.alias is None else renamed(plan, facts, facts.alias)

    def _transfer_source(self, endpoint: Endpoint) -> TransferSource | None:
        return self._fleet.member(endpoint).transfer_source

    def _transfer_target(self, endpoint: Endpoint) -> TransferTarget:
        return self._settings.target(split_rank(endpoint.url)[0])

    def follow(self, entries: Iterable[Entry]) -> None:
        """Set the engines. The settings take precedence over their entries."""
        self._found = {
            each.endpoint: each.receiver for each in entries if each.receiver is not None
        }
        self._receivers = self._found | self._named

    def configure(self, settings: Settings) -> None:
        """Apply the settings."""
        self._settings = settings
        self._named = receivers_of(settings)
        self._receivers = self._found | self._named


def board_of(settings: Settings, context: WorkerContext | None) -> PeerBoard | None:
    """Creates the board with siblings' reports; None without siblings."""
    if not settings.has_peers:
        return None
    # All workers of a replica share its name.
    return PeerBoard(uuid.uuid4().hex if context is None else context.replica)


def ledger_of(settings: Settings, context: WorkerContext | None) -> Ledger:
    """Creates the ledger of a fleet: of this process or of all workers, plus siblings."""
    board = board_of(settings, context)
    return Ledger(peers=board) if context is None else Ledger(context.column.load, board)


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
        stays_in_zone=settings.topology == "strict",
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
        Role.ENCODE: POLICIES[ENCODE_STRATEGY],
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
        roles = (Role.PREFILL, Role.DECODE) if threshold == "auto" else (Role.DECODE,) * on_uncached
        compared_roles = frozenset(roles)
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
        continuation=settings.stream_continuation,
        uncontinued_models=frozenset(settings.uncontinued_models),
        follows_stored=settings.stored_responses == "on",
    )


def receivers_of(settings: Settings) -> dict[Endpoint, Receiver]:
    """The KV receiver of each decode engine; empty for connectors that do not need it."""
    return {
        Endpoint(url, Role.DECODE): Receiver(
            given.receiver_host, given.receiver_init_port, given.receiver_alloc_port
        )
        for url, given in settings.receivers.items()
    }


def image_rules_of(settings: Settings) -> ImageRules | None:
    """The tokens of images by the names that clients give; an alias has those of its first model
    that is named. None if none is."""
    found = {name: _image_rule(given) for name, given in settings.image_tokens.items()}
    for alias in map(parse, settings.model_aliases):
        for model in alias.targets:
            if model in settings.image_tokens:
                found.setdefault(alias.name, found[model])
    return found or None


def _image_rule(given: int | str) -> ImageRule:
    if isinstance(given, int):
        return ImageRule(given, DEFAULT_IMAGE_RULE.pixels)
    width, height = map(int, given.split("x"))
    return ImageRule(0, width * height)


def transfer_ids() -> Iterator[str]:
    """Yields ids that are unique across routers and restarts, because LMCache's notifications are
    counted by them, and Mooncake's and MoRIIO's blocks kept under them."""
    router = uuid.uuid4().hex
    return (f"{router}-{number}" for number in itertools.count())
