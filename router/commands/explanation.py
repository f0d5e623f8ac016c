"""What would happen to a request, decided by the router's own parts without network.

All engines are considered up and idle, and to have listed no models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from router.commands.usage import UsageError
from router.core.events import FellBack, Probed
from router.core.health import HealthSignal
from router.core.plans.nixl import nixl
from router.core.plans.steps import Call, Check, Lease, Plan
from router.core.prefix.trust import KnownPrefix
from router.core.request_facts import Facts
from router.core.routing.ranking import Ranking
from router.core.values import Decision, Endpoint, Mode, Role
from router.settings import Settings
from router.web.discovery import endpoints_of
from router.web.routing_parts import fleet_of, scheduler_of

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decisions for a request."""

    facts: Facts
    decision: Decision
    threshold: int | Literal["auto"]
    strategies: Mapping[Role, str]
    rankings: Mapping[Role, Ranking]
    known: Mapping[Role, tuple[KnownPrefix | None, ...]]
    """What is known of the prompt in each candidate's prefix cache."""
    prefill: Call | None
    """The prefill leg's request; None if there is none, or if another connector writes it."""
    fallbacks: tuple[FellBack, ...]
    """Fallbacks that would occur whatever the engines answer."""
    prefix_cache: str
    """The setting for engines' prefix caches."""
    inferred_from: str | None
    """The key of the body from which the route was inferred; None if the user named the route."""


def explain(settings: Settings, facts: Facts, inferred_from: str | None) -> Explanation:
    """Decide the request as a router that has just started would. Raises UsageError if no decode
    engine is known without network."""
    endpoints = endpoints_of(settings, with_draining=False)
    if all(endpoint.role is not Role.DECODE for endpoint in endpoints):
        raise UsageError(
            "no decode engine is named, or all are draining: name one with --decode or in "
            "--engines-file, because explain uses no network to find them"
        )
    fleet = fleet_of(settings, endpoints=endpoints)
    for member in fleet:
        fleet.observe(Probed(member.endpoint, HealthSignal.OK), 0.0)
    scheduler = scheduler_of(settings, fleet, tries=False)
    decision = scheduler.decide(facts, 0.0)
    is_remote = decision.mode is Mode.REMOTE
    # The order in which a plan leases engines.
    roles = (Role.DECODE, Role.PREFILL) if is_remote else (Role.DECODE,)
    rankings = {role: scheduler.rank(role, facts) for role in roles}
    chosen = {role: ranking.endpoint for role, ranking in rankings.items()}
    call: Call | None = None
    fallbacks: tuple[FellBack, ...] = ()
    if is_remote and settings.disagg_connector_type == "nixl":
        call, fallbacks = _first_call(nixl(facts), chosen)
    common = settings.load_balancing_strategy
    return Explanation(
        facts,
        decision,
        settings.routing_threshold,
        {
            Role.PREFILL: settings.prefill_load_balancing_strategy or common,
            Role.DECODE: settings.decode_load_balancing_strategy or common,
        },
        rankings,
        {role: scheduler.known_prefixes(role, facts, of) for role, of in rankings.items()},
        call,
        fallbacks,
        settings.prefix_cache,
        inferred_from,
    )


def _first_call(
    plan: Plan, chosen: Mapping[Role, Endpoint]
) -> tuple[Call | None, tuple[FellBack, ...]]:
    """Run a plan with the chosen engines up to its first call."""
    fallbacks = []
    step = next(plan)
    while isinstance(step, Check | Lease | FellBack):
        if isinstance(step, FellBack):
            fallbacks.append(step)
        step = plan.send(chosen[step.role] if isinstance(step, Lease) else None)
    plan.close()
    return (step if isinstance(step, Call) else None), tuple(fallbacks)
