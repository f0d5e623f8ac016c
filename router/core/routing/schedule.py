"""The scheduler: decides a request's mode, and chooses and leases endpoints.

Choosing and leasing are one step, so that two requests never take the same free slot.
"""

from collections.abc import Sequence
from operator import itemgetter
from random import Random

from router.core.candidate import Candidate
from router.core.continuation.refusal import refusal
from router.core.errors import BadRequest, NoEngine, NoPartner, NotFound
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Lease
from router.core.fleet.selection import Selection
from router.core.fleet.status import pool_status
from router.core.fleet.transfers import TRY_SHARE
from router.core.kv_events import Lookup
from router.core.limits.budgets import RetryBudget
from router.core.limits.places import Place
from router.core.plans.encode import EncodedMedia, encode
from router.core.plans.steps import Plan
from router.core.policies import Policy
from router.core.prefix.keys import prefix_keys
from router.core.prefix.trust import KnownPrefix
from router.core.request_facts import NO_KEYS, Destinations, Facts, PrefixKeys
from router.core.retry import RETRIES_ON_5XX
from router.core.routing import threshold
from router.core.routing.auto_threshold import AutoThreshold
from router.core.routing.ranking import Ranking, least_recent_first
from router.core.values import DECODE, DIRECT, ENCODE, PREFILL, REMOTE, Decision, Endpoint, Role
from router.core.wire.tokens import MIN_BYTES

__all__ = ["Scheduler"]

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()
NO_ROLES: frozenset[Role] = frozenset()

LOAD_FACTOR = 32
"""How many times longer it takes to compute a prompt token than to load its KV cache from another
engine. If the cache is loaded, an engine that already holds the prompt is only slightly better."""

SESSION_REQUESTS = 4.0
"""Requests in flight that an engine may have more than others and still get those of its sessions.
All policies score in requests."""

ADAPTER_REQUESTS = 1.0
"""The same for an engine that has the request's LoRA adapter loaded. Loading one delays all streams
of an engine, by tens of milliseconds from its memory and a second from its disk, but once: with 4,
engines that load it later have a third of the others' requests (tests/e2e/judgement)."""

FULL_ADAPTERS_REQUESTS = 64.0
"""Requests in flight that an engine may have more than one where the request would wait until
another adapter's have ended."""

SESSION_SHARE = 8
"""One in so many prompt tokens of a session is taken for new where prompts are not compared. (In
`pd-router simulate`, 32 finds hardly more.)"""


class Scheduler:
    """The scheduler of one router process. Its state is the number of choices, and what is encoded.

    `cached_roles`: roles in which engines' prefix caches are taken into account;
    `compared_roles`: others in which they are while there are prefill engines. With
    `threshold_on_uncached` the threshold applies to the tokens that the decode engine would have to
    compute. `auto` replaces the constant threshold.
    """

    def __init__(
        self,
        fleet: Fleet,
        policies: dict[Role, Policy],
        threshold: int,
        rng: Random,
        cached_roles: frozenset[Role] = NO_ROLES,
        *,
        compared_roles: frozenset[Role] = NO_ROLES,
        threshold_on_uncached: bool = False,
        auto: AutoThreshold | None = None,
        retry_budget: RetryBudget | None = None,
        retries_on_5xx: int = RETRIES_ON_5XX,
        continuation: str = "off",
        uncontinued_models: frozenset[str] = frozenset(),
        follows_stored: bool = False,
    ) -> None:
        self.fleet = fleet
        self.selection = Selection(fleet)
        self._prefill = fleet.pools[PREFILL]
        self._policies = policies
        self._threshold = threshold
        self._rng = rng
        self._cached_roles = cached_roles
        self._compared_roles = compared_roles
        self._threshold_on_uncached = threshold_on_uncached
        self._auto = auto
        self.retry_budget = retry_budget
        """None: retries are not limited."""
        self.retries_on_5xx = retries_on_5xx
        """Most retries of a request whose engine answered with one of SERVER_ERRORS."""
        self._continuation = continuation
        self._uncontinued_models = uncontinued_models
        self.follows_stored = follows_stored
        """Whether requests that refer to a stored response go to the engine that has it."""
        self.encoded = EncodedMedia(self.selection.up_since)
        self._choices = 0

    def succeed(self, other: "Scheduler") -> None:
        """Take over the state of the scheduler that this one replaces."""
        self._choices = other._choices  # noqa: SLF001 - one of its own kind
        self.encoded = other.encoded

    @property
    def encodes(self) -> bool:
        """Whether there is an encode pool."""
        return bool(self.fleet.pools[ENCODE].undrained)

    def encoding(self, plan: Plan, facts: Facts, now: float) -> Plan:
        """The plan of a request with media, which are encoded first if there is an encode pool."""
        if not self.encodes:
            return plan
        model = self.fleet.models.base_of(facts.model)
        return encode(plan, facts, model, self.encoded, now)

    @property
    def continues(self) -> bool:
        """Whether streams go on with another engine when theirs fails behind the first token."""
        setting = self._continuation
        return setting == "on" or (setting == "auto" and self.fleet.models.all_take_prompt_ids)

    def refusal(self, facts: Facts) -> str | None:
        """Why a stream cannot be continued; None if it can."""
        models, uncontinued = self.fleet.models, self._uncontinued_models
        if uncontinued and {facts.model, models.base_of(facts.model)} & uncontinued:
            return "model"
        return refusal(facts, takes_chats=models.takes_prompt_ids)

    @property
    def threshold_now(self) -> float:
        """Prompt tokens from which prompts are currently prefilled remotely."""
        return float(self._threshold) if self._auto is None else self._auto.tokens

    def decide(self, facts: Facts, now: float) -> Decision:
        """Decide between direct and remote prefill. Raises NotFound or BadRequest for an invalid
        model."""
        known = self.fleet.models.known()
        if facts.model not in known:
            self._check_model(facts, known)
        refuses = facts.forces_tool and self.fleet.models.refuses_forced_tools
        if refuses and facts.direct_reason is None:
            facts.direct_reason = "forced_tool"
        if facts.destinations is not None:
            return self._as_named(facts, facts.destinations)
        has_prefill_pool = bool(self._prefill.undrained)
        if self._auto is not None and has_prefill_pool:
            self._set_scale(facts)
            decision = threshold.decide(facts, 0, has_prefill_pool)
            return decision if decision.mode is DIRECT else self._by_delay(facts, now, self._auto)
        decision = threshold.decide(facts, self._threshold, has_prefill_pool)
        if decision.mode is REMOTE and self._threshold_on_uncached and self._threshold:
            decision = self._by_uncached(facts, now, decision)
        # From here on tokens stand for work, whereas a constant threshold is compared with the
        # plain estimate.
        if facts.text_bytes >= MIN_BYTES or facts.media_tokens:
            self._set_scale(facts)
        return decision

    def _as_named(self, facts: Facts, named: Destinations) -> Decision:
        if facts.text_bytes >= MIN_BYTES or facts.media_tokens:
            self._set_scale(facts)
        if named.prefill and facts.direct_reason is not None:
            return Decision(DIRECT, facts.direct_reason)
        return Decision(REMOTE if named.prefill else DIRECT, "gateway")

    def _set_scale(self, facts: Facts) -> None:
        facts.scale = self.fleet.token_ratios.scale(facts)

    def _by_uncached(self, facts: Facts, now: float, otherwise: Decision) -> Decision:
        try:
            ranking = self.rank(DECODE, facts, now=now)
        except NoEngine:  # the plan will raise it
            return otherwise
        is_cached = ranking.uncached[ranking.chosen] < self._threshold
        return Decision(DIRECT, "cached_on_decode") if is_cached else otherwise

    def _by_delay(self, facts: Facts, now: float, auto: AutoThreshold) -> Decision:
        try:
            decode = self.rank(DECODE, facts, now=now)
        except NoEngine:  # the plan will raise it
            return Decision(DIRECT, "no_decode_engine")
        try:
            prefill = self.rank(PREFILL, facts, now=now)
        except NoEngine:
            return Decision(DIRECT, "no_prefill_engine")
        return auto.decide(decode.prompt, prefill.prompt, now, self._rng, is_stream=facts.stream)

    def lease(
        self,
        role: Role,
        facts: Facts,
        exclude: frozenset[Endpoint],
        now: float,
        *,
        computes: bool = True,
        partner: Endpoint | None = None,
        place: Place | None = None,
    ) -> Lease:
        """Choose an endpoint and lease it. Raises NoEngine if there is none.

        `computes`: the engine computes the prompt instead of loading its KV cache. `partner`: the
        engine of the other role with which it exchanges the KV cache. Raises NoPartner if there are
        engines but none can exchange with it. `place`: the request's place from admission, which
        moves to the endpoint. Endpoints without room are chosen only if all have none.
        """
        moves = bool(exclude)
        if self.fleet.models.is_mixed and facts.destinations is None:
            exclude = self._paired(role, facts, exclude, now, partner)
        ranked = self._ranked(role, facts, exclude, now, computes, partner, moves=moves)
        if place is not None:
            if not place.fits(ranked[0][ranked[3]].load, now):
                full = place.full(self._usable(role, facts, exclude, now), now)
                if self._candidates(role, facts, exclude | full, now):
                    others = exclude | full
                    ranked = self._ranked(role, facts, others, now, computes, partner, moves=moves)
            place.move(ranked[0][ranked[3]].load)
        candidates, uncached, _, index, prefix, lookup = ranked
        chosen = candidates[index]
        self._choices += 1
        chosen.chosen_at = self._choices
        # Even a prompt that is estimated at 0 tokens has to be computed.
        pending = (uncached[index] or 1) if computes else 0
        regret: int | None = None
        if computes and prefix.keys:
            regret = uncached[index] - min(uncached)
            if facts.scale != 1.0:
                regret = int(regret / facts.scale)
        selection, endpoint = self.selection, chosen.endpoint
        if self.fleet.cache_events is None or not prefix.keys:
            lease = selection.lease(endpoint, facts.tokens, pending, prefix, regret)
        else:
            lease = selection.watched_lease(endpoint, facts, pending, prefix, lookup, regret)
        if facts.session is not None:
            selection.keep_session(endpoint, facts.session)
        if self._auto is not None and not computes:
            lease.loads = LOAD_FACTOR * uncached[index]
        return lease

    def lease_healthy(self, role: Role, facts: Facts, now: float) -> Lease:
        """Lease an engine for what a request can do without: one that is up, and neither stalled
        nor ejected. Raises NoEngine if there is none."""
        members = self.fleet.pools[role].undrained
        unhealthy = [m.endpoint for m in members if m.is_ejected_or_stalled or not m.health.is_up]
        return self.lease(role, facts, frozenset(unhealthy), now)

    def _paired(
        self,
        role: Role,
        facts: Facts,
        exclude: frozenset[Endpoint],
        now: float,
        partner: Endpoint | None,
    ) -> frozenset[Endpoint]:
        """`exclude` plus the engines that cannot exchange KV caches with the partner; if no partner
        has been chosen yet, with any engine."""
        selection, model = self.selection, facts.model
        incompatible = selection.incompatible(role, partner, model)
        if not incompatible or not selection.candidates(role, model, exclude, now):
            return exclude
        if not selection.candidates(role, model, exclude | incompatible, now):
            raise NoPartner(
                f"No {role} engine can exchange KV caches now: versions, models or zones differ."
            )
        return exclude | incompatible

    def check(self, role: Role, facts: Facts, exclude: frozenset[Endpoint], now: float) -> None:
        """Raise NoEngine if `lease` would, without a lease."""
        if not self._candidates(role, facts, exclude, now):
            raise self._no_engine(role, facts, exclude)

    def has_other(self, role: Role, facts: Facts, than: frozenset[Endpoint], now: float) -> bool:
        """Whether another endpoint that is not stalled, ejected or full could take the request."""
        others = (self.fleet.member(c.endpoint) for c in self._candidates(role, facts, than, now))
        return any(
            not member.is_ejected_or_stalled and not member.is_full(now) for member in others
        )

    def has_sooner(
        self, slow: Endpoint, facts: Facts, than: frozenset[Endpoint], now: float
    ) -> bool:
        """Whether another decode engine that is not stalled, ejected or full saves more time of the
        rest of an answer than it costs all users that it computes the prompt again."""
        judge = self.fleet.pools[DECODE].judge
        rest = judge.rest_seconds(self.fleet.member(slow))
        others = (self.fleet.member(c.endpoint) for c in self._candidates(DECODE, facts, than, now))
        return any(
            judge.seconds_of_moving(each, facts.tokens, now) + judge.rest_seconds(each) < rest
            for each in others
            if not each.is_ejected_or_stalled and not each.is_full(now)
        )

    def explained(self, role: Role, facts: Facts, now: float) -> tuple[str, ...]:
        """The current candidates with their figures as text, best first."""
        ranking = self.rank(role, facts, now=now)
        known = self.known_prefixes(role, facts, ranking)
        rows = zip(ranking.scores, ranking.uncached, ranking.candidates, known, strict=True)
        return tuple(
            f"{c.endpoint.url} score={score:.3g} uncached={own}{_held(prefix)} "
            f"in_flight={c.in_flight} other_requests={round(c.other_requests or 0)} "
            f"slowdown={c.slowdown:.3g} slow_start_weight={c.slow_start_weight:.2g}"
            for score, own, c, prefix in sorted(rows, key=itemgetter(0))
        )

    def known_prefixes(
        self, role: Role, facts: Facts, ranking: Ranking
    ) -> tuple[KnownPrefix | None, ...]:
        """What is known of the prompt on each candidate; None where prefix caches do not count."""
        fleet = self.fleet
        prefix = self._prefix(role, facts)
        if not prefix.keys:
            return (None,) * len(ranking.candidates)
        lookup = None if fleet.cache_events is None else self.selection.lookup(facts, prefix)
        return tuple(
            fleet.member(c.endpoint).prompts.known_prefix(prefix, lookup)
            for c in ranking.candidates
        )

    def rank(
        self,
        role: Role,
        facts: Facts,
        exclude: frozenset[Endpoint] = NO_ENDPOINTS,
        now: float = 0.0,
    ) -> Ranking:
        """Score the candidates without a lease. Raises NoEngine if there are none."""
        candidates, uncached, scores, chosen, _, _ = self._ranked(role, facts, exclude, now)
        return Ranking(tuple(candidates), tuple(uncached), tuple(scores), chosen)

    def _ranked(
        self,
        role: Role,
        facts: Facts,
        exclude: frozenset[Endpoint],
        now: float,
        computes: bool = True,
        partner: Endpoint | None = None,
        *,
        moves: bool = False,
    ) -> tuple[Sequence[Candidate], Sequence[int], Sequence[float], int, PrefixKeys, Lookup | None]:
        prefix = self._prefix(role, facts)
        fleet, selection = self.fleet, self.selection
        if facts.destinations is not None:
            candidates = self._candidates(role, facts, exclude, now)
        elif fleet.pools[role].holders is not None:
            candidates = selection.sample(role, facts, exclude, now, self._rng, moves=moves)
        else:
            candidates = selection.candidates(role, facts.model, exclude, now, moves=moves)
        if not candidates:
            raise self._no_engine(role, facts, exclude)
        least_recent_first(candidates)
        uncached: Sequence[int]
        lookup: Lookup | None = None
        if prefix.keys:
            if fleet.cache_events is not None:
                lookup = selection.lookup(facts, prefix)
            uncached = selection.uncached(candidates, facts.tokens, prefix, lookup)
            if facts.scale != 1.0:
                uncached = [max(1, int(facts.scale * own)) for own in uncached]
        else:
            tokens = facts.tokens if facts.scale == 1.0 else int(facts.scale * facts.tokens)
            uncached = (tokens,) * len(candidates)
        if not computes:
            uncached = [own // LOAD_FACTOR for own in uncached]
        policy = self._policies[role]
        if facts.session is None:
            scores = policy(candidates, uncached, now, self._rng)
        else:
            known = bool(prefix.keys)
            uncached, scores = self._of_session(
                facts.session, policy, candidates, uncached, now, known
            )
        if partner is not None or fleet.models.has_adapters:
            scores = self._of_adapter(role, facts.model, candidates, scores)
            scores = self._of_zone(partner, facts.tokens, candidates, scores)
        return candidates, uncached, scores, scores.index(min(scores)), prefix, lookup

    def _of_adapter(
        self,
        role: Role,
        model: str | None,
        candidates: Sequence[Candidate],
        scores: Sequence[float],
    ) -> Sequence[float]:
        """The scores, changed for a request of a LoRA adapter by where it is loaded."""
        if model not in self.fleet.models.adapters() or not self._compares_caches(role):
            return scores
        found = []
        for c, score in zip(candidates, scores, strict=True):
            gauges = self.fleet.member(c.endpoint).scrapes.gauges
            if gauges is not None and model in gauges.adapters:
                score -= ADAPTER_REQUESTS
            elif gauges is not None and gauges.adapters_are_full:
                score += FULL_ADAPTERS_REQUESTS
            found.append(score)
        return found

    def _of_zone(
        self,
        partner: Endpoint | None,
        tokens: int,
        candidates: Sequence[Candidate],
        scores: Sequence[float],
    ) -> Sequence[float]:
        """The scores, higher for engines in other zones than the partner's by what transfers from
        or to there take longer."""
        transfers = self.fleet.transfers
        if transfers is None or partner is None:
            return scores
        other = self.fleet.members.get(partner)
        home = None if other is None else other.entry.zone
        if home is None or self._rng.random() < TRY_SHARE:
            return scores
        costs: dict[str | None, float] = {home: 0.0}
        found = []
        for c, score in zip(candidates, scores, strict=True):
            zone = self.fleet.member(c.endpoint).entry.zone
            if zone not in costs:
                pair = (home, zone) if partner.role is PREFILL else (zone, home)
                costs[zone] = transfers.requests(pair, home, tokens)
            found.append(score + costs[zone])
        return found

    def _of_session(
        self,
        session: PrefixKeys,
        policy: Policy,
        candidates: Sequence[Candidate],
        uncached: Sequence[int],
        now: float,
        is_known: bool,
    ) -> tuple[Sequence[int], Sequence[float]]:
        """The tokens that each candidate would have to compute of a session's prompt, and the
        scores. `is_known`: the prompt itself shows these tokens."""
        key = session.keys[0]
        homes = [key in c.held_keys for c in candidates]
        if not is_known:
            tokens = zip(uncached, homes, strict=True)
            uncached = [max(1, own // SESSION_SHARE) if home else own for own, home in tokens]
        scores = policy(candidates, uncached, now, self._rng)
        stays = (
            home and not c.is_slow and c.load.requests < c.slots
            for c, home in zip(candidates, homes, strict=True)
        )
        pairs = zip(scores, stays, strict=True)
        return uncached, [score - SESSION_REQUESTS if stay else score for score, stay in pairs]

    def _candidates(
        self, role: Role, facts: Facts, exclude: frozenset[Endpoint], now: float
    ) -> list[Candidate]:
        """The engines that may take the request; of those that a gateway names, only the first
        usable one."""
        usable = self._usable(role, facts, exclude, now)
        return usable if facts.destinations is None else usable[:1]

    def _usable(
        self, role: Role, facts: Facts, exclude: frozenset[Endpoint], now: float
    ) -> list[Candidate]:
        """The engines that may take the request. Of those that a gateway names, all usable ones."""
        named = facts.destinations
        if named is None:
            return self.selection.candidates(role, facts.model, exclude, now)
        endpoints = named.prefill if role is PREFILL else named.decode
        return self.selection.usable_of(endpoints, exclude)

    def _prefix(self, role: Role, facts: Facts) -> PrefixKeys:
        """The keys of the request's prompt, computed once; none where prefix caches do not count.

        Prompts are long, so a pool without prefill engines pays for no comparison with them.
        """
        if not self._compares_caches(role):
            return NO_KEYS
        if facts.prefix is None:
            facts.prefix = prefix_keys(facts)
        return facts.prefix

    def _compares_caches(self, role: Role) -> bool:
        """Whether what engines hold counts in their choice."""
        if role in self._cached_roles:
            return True
        return role in self._compared_roles and bool(self._prefill.undrained)

    def _no_engine(self, role: Role, facts: Facts, exclude: frozenset[Endpoint]) -> NoEngine:
        """The error with the pool's status and why no engine was chosen. It contains no addresses,
        because clients get it."""
        if facts.destinations is not None:
            return NoEngine(
                f"No {role} engine that the gateway chose can take this request: they are not in "
                "this router's fleet, not up, or have failed it."
            )
        pool = self.fleet.pool(role)
        why = pool_status(pool)
        if exclude:
            why += f"; {len(exclude)} failed this request"
        elif any(member.in_rotation for member in pool):
            why += "; none of these serves the model"
        return NoEngine(f"No {role} engine can take this request now: {why}.")

    def _check_model(self, facts: Facts, known: frozenset[str]) -> None:
        """Check a model that no engine has listed. Raises NotFound or BadRequest."""
        if facts.model is None:
            if len(self.fleet.models.base()) > 1:
                names = ", ".join(sorted(known))
                raise BadRequest(f"`model` is required; this router serves {names}.", "model")
        elif known and not self._some_model_is_unknown():
            # vLLM's wording.
            raise NotFound(f"The model `{facts.model}` does not exist.", "model")

    def _some_model_is_unknown(self) -> bool:
        """Whether a usable engine's models are unknown (its /v1/models requires a key)."""
        pool = self.fleet.pool(DECODE)
        return any(m.models is None and m.in_rotation for m in pool)


def _held(known: KnownPrefix | None) -> str:
    if known is None:
        return ""
    return f" held={known.held} trust={known.trust:.2g} known_by={known.known_by}"
