"""The scheduler: decides a request's mode, and chooses and leases endpoints.

Choosing and leasing are one step, so that two requests never take the same free slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from router.core import threshold
from router.core.errors import BadRequest, NoEngine, NotFound
from router.core.fleet import Fleet
from router.core.ledger import Lease
from router.core.leg_timer import LegTimer
from router.core.policies import Policy
from router.core.prefix.keys import prefix_keys
from router.core.retry_budget import RetryBudget
from router.core.status import pool_status
from router.core.values import (
    DECODE,
    DIRECT,
    NO_KEYS,
    PREFILL,
    REMOTE,
    Candidate,
    Decision,
    Endpoint,
    Facts,
    PrefixKeys,
    Role,
)

__all__ = ["Ranking", "Scheduler"]

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()
NO_ROLES: frozenset[Role] = frozenset()

LOAD_FACTOR = 32
"""How many times longer it takes to compute a prompt token than to load its KV cache from another
engine: an engine that holds the prompt already is only a little better then."""

NEVER: Final = 1 << 62
"""A number that no choice has."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates, the prompt tokens that each would have to compute, their scores, and the index of
    the chosen one."""

    candidates: tuple[Candidate, ...]
    uncached: tuple[int, ...]
    scores: tuple[float, ...]
    chosen: int

    @property
    def endpoint(self) -> Endpoint:
        """The chosen endpoint."""
        return self.candidates[self.chosen].endpoint


class Scheduler:
    """The scheduler of one router process. Its only state is the number of choices.

    `cached_roles`: those in which it counts what an engine's prefix cache holds. With
    `threshold_on_uncached` the threshold is for what the decode engine would have to compute.
    """

    def __init__(
        self,
        fleet: Fleet,
        policies: dict[Role, Policy],
        threshold: int,
        rng: Random,
        cached_roles: frozenset[Role] = NO_ROLES,
        *,
        threshold_on_uncached: bool = False,
        retry_budget: RetryBudget | None = None,
    ) -> None:
        self._fleet = fleet
        self._policies = policies
        self._threshold = threshold
        self._rng = rng
        self._cached_roles = cached_roles
        self._threshold_on_uncached = threshold_on_uncached
        self.retry_budget = retry_budget
        """None: each request may be tried again."""
        self._choices = 0

    def decide(self, facts: Facts, now: float) -> Decision:
        """Direct or by remote prefill. Raises NotFound or BadRequest for a bad model."""
        self._check_model(facts)
        has_prefill_pool = bool(self._fleet.pool(PREFILL))
        decision = threshold.decide(facts, self._threshold, has_prefill_pool)
        if decision.mode is REMOTE and self._threshold_on_uncached and self._threshold:
            try:
                ranking = self.rank(DECODE, facts, now=now)
            except NoEngine:  # the plan says so
                return decision
            if ranking.uncached[ranking.chosen] < self._threshold:
                return Decision(DIRECT, "cached_on_decode")
        return decision

    def lease(
        self,
        role: Role,
        facts: Facts,
        exclude: frozenset[Endpoint],
        now: float,
        *,
        computes: bool = True,
    ) -> Lease:
        """Choose an endpoint and lease it. Raises NoEngine when there is none.

        `computes`: the engine computes the prompt itself, it does not load its KV cache.
        """
        candidates, uncached, _, place = self._ranked(role, facts, exclude, now, computes=computes)
        chosen = candidates[place]
        self._choices += 1
        chosen.chosen_at = self._choices
        pending = uncached[place] if computes else 0
        return self._fleet.lease(chosen.endpoint, facts.tokens, pending, self._prefix(role, facts))

    def check(self, role: Role, facts: Facts, exclude: frozenset[Endpoint], now: float) -> None:
        """Raise NoEngine if `lease` would; leases nothing."""
        if not self._fleet.candidates(role, facts.model, exclude, now):
            raise self._no_engine(role, exclude)

    def leg(
        self,
        lease: Lease,
        now: float,
        *,
        tracks_first_token: bool,
        sequences: int = 1,
        computes: bool = True,
    ) -> LegTimer:
        """The timer of a leg on a leased endpoint; see `Fleet.leg`."""
        return self._fleet.leg(
            lease,
            now,
            tracks_first_token=tracks_first_token,
            sequences=sequences,
            computes=computes,
        )

    def has_other(self, role: Role, facts: Facts, than: frozenset[Endpoint], now: float) -> bool:
        """Whether another endpoint, neither stalled nor ejected, could take the request."""
        others = self._fleet.candidates(role, facts.model, than, now)
        return any(not self._fleet.member(c.endpoint).is_blocked for c in others)

    def explained(self, role: Role, facts: Facts, now: float) -> tuple[str, ...]:
        """The current candidates with their figures, as text, best first."""
        ranking = self.rank(role, facts, now=now)
        triples = zip(ranking.scores, ranking.uncached, ranking.candidates, strict=True)
        ordered = sorted(triples, key=lambda triple: triple[0])
        return tuple(
            f"{c.endpoint.url} score={score:.3g} uncached={own} in_flight={c.in_flight} "
            f"other_requests={c.other_requests or 0} slowdown={c.slowdown:.3g} "
            f"slow_start_weight={c.slow_start_weight:.2g}"
            for score, own, c in ordered
        )

    def rank(
        self,
        role: Role,
        facts: Facts,
        exclude: frozenset[Endpoint] = NO_ENDPOINTS,
        now: float = 0.0,
    ) -> Ranking:
        """Score the candidates; leases nothing. Raises NoEngine when there is none."""
        candidates, uncached, scores, chosen = self._ranked(role, facts, exclude, now)
        return Ranking(tuple(candidates), tuple(uncached), tuple(scores), chosen)

    def _ranked(
        self,
        role: Role,
        facts: Facts,
        exclude: frozenset[Endpoint],
        now: float,
        *,
        computes: bool = True,
    ) -> tuple[Sequence[Candidate], Sequence[int], Sequence[float], int]:
        candidates = self._fleet.candidates(role, facts.model, exclude, now, self._rng)
        if not candidates:
            raise self._no_engine(role, exclude)
        prefix = self._prefix(role, facts)
        uncached: Sequence[int]
        if prefix.keys:
            uncached = self._fleet.uncached(candidates, facts.tokens, prefix)
        else:
            uncached = (facts.tokens,) * len(candidates)
        if not computes:
            uncached = [own // LOAD_FACTOR for own in uncached]
        scores = self._policies[role](candidates, uncached, now, self._rng)
        return candidates, uncached, scores, _least_recent_of_best(candidates, scores)

    def _prefix(self, role: Role, facts: Facts) -> PrefixKeys:
        """The keys of the request's prompt, where the role's choices depend on them."""
        if role not in self._cached_roles:
            return NO_KEYS
        if facts.prefix is None:
            facts.prefix = prefix_keys(facts)
        return facts.prefix

    def _no_engine(self, role: Role, exclude: frozenset[Endpoint]) -> NoEngine:
        """How many there are, and why not one of them; clients learn no address."""
        pool = self._fleet.pool(role)
        why = pool_status(pool)
        if exclude:
            why += f"; {len(exclude)} failed this request"
        elif any(member.health.is_usable for member in pool):
            why += "; none of these serves the model"
        return NoEngine(f"No {role} engine can take this request now: {why}.")

    def _check_model(self, facts: Facts) -> None:
        known = self._fleet.known_models()
        if facts.model is None:
            if len(self._fleet.base_models()) > 1:
                names = ", ".join(sorted(known))
                raise BadRequest(f"`model` is required; this router serves {names}.", "model")
        elif known and facts.model not in known and not self._some_model_is_unknown():
            # vLLM's own words for it.
            raise NotFound(f"The model `{facts.model}` does not exist.", "model")

    def _some_model_is_unknown(self) -> bool:
        """Whether the models of a usable engine are not known (its /v1/models needs a key)."""
        pool = self._fleet.pool(DECODE)
        return any(m.models is None and m.health.is_usable for m in pool)


def _least_recent_of_best(candidates: Sequence[Candidate], scores: Sequence[float]) -> int:
    """The index of the lowest score; among equals, of the least recently chosen.

    Not a round-robin pointer: requests for different models have different candidates, and a common
    pointer would send each model's requests to the same few.
    """
    best = min(scores)
    chosen_at = [
        c.chosen_at if score == best else NEVER for c, score in zip(candidates, scores, strict=True)
    ]
    return chosen_at.index(min(chosen_at))
