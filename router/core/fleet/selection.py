"""Which engines of a fleet may take a request, how much of its prompt they hold, and its lease."""

from collections.abc import Iterable, Sequence
from random import Random

from router.core.candidate import Candidate
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Lease
from router.core.fleet.leg_timer import LegTimer
from router.core.fleet.pool import part
from router.core.kv_events import Lookup
from router.core.request_facts import NO_KEYS, Facts, PrefixKeys
from router.core.speed.leg_counts import LegCounts
from router.core.values import Endpoint, Role

__all__ = ["Selection"]


class Selection:
    """Selects engines of a fleet. It has no state of its own."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pools = fleet.pools

    def candidates(
        self,
        role: Role,
        model: str | None,
        exclude: frozenset[Endpoint],
        now: float,
        *,
        moves: bool = False,
    ) -> list[Candidate]:
        """The engines of a role that may take a request for `model` now, as of `Pool.eligible`."""
        pool = self._pools[role]
        if exclude:
            return pool.eligible(model, exclude, now, moves=moves)
        kept = pool.kept.get(model)
        if kept is None:
            kept = pool.eligible(model, exclude, now)
            # Clients can send any model name.
            if model is None or model in self._fleet.models.known():
                pool.kept[model] = kept
        return kept

    def sample(
        self,
        role: Role,
        facts: Facts,
        exclude: frozenset[Endpoint],
        now: float,
        rng: Random,
        *,
        moves: bool = False,
    ) -> list[Candidate]:
        """Like `candidates`, for a role with `Pool.holders`: from a random subset, which is the
        same for all attempts of a request, plus engines that were sent the beginning of its
        prompt."""
        if facts.draw is None:
            facts.draw = rng.random()
        pool, model, draw = self._pools[role], facts.model, facts.draw
        found = pool.sample(model, exclude, now, draw, moves=moves)
        if not found:
            found = part(self.candidates(role, model, exclude, now, moves=moves), draw)
        if found and pool.holders is not None:
            for keys in (facts.prefix, facts.session):
                if keys is not None:
                    known = (self._fleet.members.get(each) for each in pool.holders.of(keys))
                    holders = [one for one in known if one is not None and not one.is_drained]
                    pool.add_holders(found, holders, model, exclude, now, moves=moves)
        return found

    def usable_of(
        self, endpoints: Iterable[Endpoint], exclude: frozenset[Endpoint]
    ) -> list[Candidate]:
        """The candidates among these endpoints that may get a request, stalled or not, in the given
        order; silent ones only if there are no others."""
        known = (self._fleet.members.get(each) for each in endpoints if each not in exclude)
        members = [member for member in known if member is not None and not member.is_drained]
        up = [member.view for member in members if member.health.is_up]
        return up or [member.view for member in members if member.health.is_silent]

    def is_usable(self, endpoint: Endpoint) -> bool:
        """Whether the engine may get further requests."""
        return bool(self.usable_of((endpoint,), frozenset()))

    def up_since(self, endpoint: Endpoint) -> float | None:
        """Since when the engine is up; None if it is not in rotation."""
        member = self._fleet.members.get(endpoint)
        return member.since if member is not None and member.in_rotation else None

    def incompatible(
        self, role: Role, partner: Endpoint | None, model: str | None
    ) -> frozenset[Endpoint]:
        """The engines of a role that cannot exchange KV caches of a model with `partner`. Without a
        partner: the prefill engines that cannot exchange with any decode engine that may get
        requests."""
        other = None if partner is None else self._fleet.members.get(partner)
        if other is None and (partner is not None or role is not Role.PREFILL):
            return frozenset()
        return self._fleet.models.incompatible(role, other, model)

    def uncached(
        self,
        candidates: Sequence[Candidate],
        tokens: int,
        prefix: PrefixKeys,
        lookup: Lookup | None = None,
    ) -> list[int]:
        """How many of a prompt's tokens each candidate would have to compute."""
        members = self._fleet.members
        if lookup is not None:
            return [
                members[c.endpoint].prompts.uncached(tokens, prefix, lookup) for c in candidates
            ]
        first = prefix.keys[0]  # most engines hold nothing of a prompt
        return [
            members[c.endpoint].prompts.uncached(tokens, prefix) if first in c.held_keys else tokens
            for c in candidates
        ]

    def lookup(self, facts: Facts, prefix: PrefixKeys) -> Lookup | None:
        """What the engines' KV-cache events show of the prompt. None if nothing, or without
        `cache_events`."""
        events = self._fleet.cache_events
        assert events is not None, "engines publish them"
        is_adapter = facts.model is not None and facts.model in self._fleet.models.adapters()
        return events.lookup(facts, prefix, facts.model if is_adapter else None)

    def lease(
        self,
        endpoint: Endpoint,
        tokens: int,
        pending: int = 0,
        prefix: PrefixKeys = NO_KEYS,
        regret: int | None = None,
    ) -> Lease:
        """Count a request on the endpoint until the lease is released.

        The engine computes `pending` of its `tokens`, after which its KV cache holds `prefix`.
        `regret`: how many of them another candidate holds; None if the engine does not compute the
        prompt.
        """
        member = self._fleet.members[endpoint]
        claim = None
        if prefix.keys:
            prompts = member.prompts
            claim = prompts.sent.claim(prefix)
            if regret is not None:
                prompts.coverage.add(tokens, prompts.known_by(None), regret)
            self._pools[endpoint.role].note_holder(prefix, endpoint)
        return Lease(member.view.load, endpoint, tokens, pending, claim)

    def keep_session(self, endpoint: Endpoint, session: PrefixKeys) -> None:
        """Note that the engine serves the session, here and, if prompts are shared, elsewhere."""
        sent = self._fleet.members[endpoint].prompts.sent
        sent.hold(session)
        if sent.new_prompts is not None:
            sent.new_prompts.append(session)
        self._pools[endpoint.role].note_holder(session, endpoint)

    def watched_lease(
        self,
        endpoint: Endpoint,
        facts: Facts,
        pending: int,
        prefix: PrefixKeys,
        lookup: Lookup | None,
        regret: int | None = None,
    ) -> Lease:
        """Like `lease`, with KV-cache events: the answer may reveal the prompt's token ids and
        whether the prediction was right."""
        member, events = self._fleet.members[endpoint], self._fleet.cache_events
        prompts, cache = member.prompts, member.prompts.events
        assert events is not None, "engines publish them"
        assert cache is not None, "each has one then"
        held = None if lookup is None else prompts.held(prefix, lookup)
        # An engine that loads the prompt counts what it loads, or what the prefill engine held.
        predicted = cache.held(lookup.match) if lookup is not None and pending else None
        claim = prompts.sent.claim(prefix, held)
        if regret is not None:
            prompts.coverage.add(facts.tokens, prompts.known_by(lookup), regret)
        self._pools[endpoint.role].note_holder(prefix, endpoint)
        feedback = events.feedback(facts, prefix, cache, predicted)
        return Lease(member.view.load, endpoint, facts.tokens, pending, claim, feedback)

    def leg(
        self,
        lease: Lease,
        now: float,
        *,
        tracks_first_token: bool,
        sequences: int = 1,
        computes: bool = True,
    ) -> LegTimer:
        """Create the timer of a leg on a leased endpoint. `tracks_first_token`: it is a stream or a
        prefill. `sequences`: number of choices generated concurrently. `computes`: the engine
        computes the lease's prompt."""
        member = self._fleet.members.get(lease.endpoint)
        # The speed of an engine that has left is discarded.
        counts = LegCounts() if member is None else member.speed.counts
        if not computes:
            return LegTimer(counts, None, 0, now, tracks_first_token=tracks_first_token)
        work = lease.pending_there
        if work > lease.pending:
            work = max(lease.pending, work - int(counts.progress(now)))
        return LegTimer(counts, lease, work, now, tracks_first_token, sequences)
