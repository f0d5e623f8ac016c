"""The scheduler: decides a request's mode, and chooses and leases endpoints.

Choosing and leasing are one step, so that two requests never take the same free slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from router.core import threshold
from router.core.errors import BadRequest, NoEngine, NotFound
from router.core.fleet import Fleet
from router.core.ledger import Lease
from router.core.leg_timer import LegTimer
from router.core.policies import Policy
from router.core.values import DECODE, PREFILL, Candidate, Decision, Endpoint, Facts, Role

__all__ = ["Ranking", "Scheduler"]

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates, their scores, and the index of the chosen one."""

    candidates: tuple[Candidate, ...]
    scores: tuple[float, ...]
    chosen: int

    @property
    def endpoint(self) -> Endpoint:
        """The chosen endpoint."""
        return self.candidates[self.chosen].endpoint


class Scheduler:
    """The scheduler of one router process. Its only state is the number of choices."""

    def __init__(
        self, fleet: Fleet, policies: dict[Role, Policy], threshold: int, rng: Random
    ) -> None:
        self._fleet = fleet
        self._policies = policies
        self._threshold = threshold
        self._rng = rng
        self._choices = 0

    def decide(self, facts: Facts) -> Decision:
        """Direct or by remote prefill. Raises NotFound or BadRequest for a bad model."""
        self._check_model(facts)
        return threshold.decide(facts, self._threshold, bool(self._fleet.pool(PREFILL)))

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
        candidates, _, place = self._ranked(role, facts, exclude, now)
        chosen = candidates[place]
        self._choices += 1
        chosen.chosen_at = self._choices
        return self._fleet.lease(chosen.endpoint, facts.tokens, facts.tokens if computes else 0)

    def check(self, role: Role, facts: Facts, exclude: frozenset[Endpoint], now: float) -> None:
        """Raise NoEngine if `lease` would; leases nothing."""
        if not self._fleet.candidates(role, facts.model, exclude, now):
            raise _no_engine(role)

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
        pairs = sorted(zip(ranking.scores, ranking.candidates, strict=True), key=lambda p: p[0])
        return tuple(
            f"{c.endpoint.url} score={score:.3g} in_flight={c.in_flight} "
            f"other_requests={c.other_requests or 0} slowdown={c.slowdown:.3g} "
            f"slow_start_weight={c.slow_start_weight:.2g}"
            for score, c in pairs
        )

    def rank(
        self,
        role: Role,
        facts: Facts,
        exclude: frozenset[Endpoint] = NO_ENDPOINTS,
        now: float = 0.0,
    ) -> Ranking:
        """Score the candidates; leases nothing. Raises NoEngine when there is none."""
        candidates, scores, chosen = self._ranked(role, facts, exclude, now)
        return Ranking(tuple(candidates), tuple(scores), chosen)

    def _ranked(
        self, role: Role, facts: Facts, exclude: frozenset[Endpoint], now: float
    ) -> tuple[Sequence[Candidate], Sequence[float], int]:
        candidates = self._fleet.candidates(role, facts.model, exclude, now, self._rng)
        if not candidates:
            raise _no_engine(role)
        scores = self._policies[role](candidates, facts, now, self._rng)
        return candidates, scores, _least_recent_of_best(candidates, scores)

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


def _no_engine(role: Role) -> NoEngine:
    return NoEngine(f"No {role} engine is available for this request; try again later.")


def _least_recent_of_best(candidates: Sequence[Candidate], scores: Sequence[float]) -> int:
    """The index of the lowest score; among equals, of the least recently chosen.

    Not a round-robin pointer: requests for different models have different candidates, and a common
    pointer would send each model's requests to the same few.
    """
    best = min(scores)
    place = scores.index(best)
    for other in range(place + 1, len(scores)):
        if scores[other] == best and candidates[other].chosen_at < candidates[place].chosen_at:
            place = other
    return place
