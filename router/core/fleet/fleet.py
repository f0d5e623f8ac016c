"""The fleet: every endpoint with its health, models, load and speed, and which of them may take a
request.

It is changed only by `apply`, `observe`, `observe_shared`, `ended` and `tick`. Time is an argument;
there is no I/O.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random

from router.core.candidate import Candidate
from router.core.events import PrefixesHeld
from router.core.fleet.eligible import FEWEST, add_holders, eligible, part, sample
from router.core.fleet.ledger import Lease, Ledger
from router.core.fleet.leg_timer import LegTimer
from router.core.fleet.member import Member
from router.core.fleet.observed_pools import ObservedPools
from router.core.fleet.pool_monitor import ExclusionConfig
from router.core.health import HealthThresholds
from router.core.kv_events import CacheEvents, Lookup
from router.core.request_facts import NO_KEYS, Facts, PrefixKeys
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.values import Endpoint, Role

__all__ = ["Fleet"]

MAX_EVENT_KEYS = 30_000
"""Most keys in one event (except that one prompt's keys stay together): half a megabyte, the size
of a socket's buffer."""


class Fleet(ObservedPools):
    """All endpoints by role. Gauges older than `stale_after` seconds are ignored.

    `apply` sets the endpoints; `endpoints` are the initial ones. `speed_of` creates an endpoint's
    speed estimator; by default it uses only this process's measurements. With `shares_prefixes`,
    `held_prefixes` yields news for other processes and replicas. With `cache_events`, the engines'
    KV-cache events tell which prompts they hold.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        ledger: Ledger,
        thresholds: HealthThresholds,
        stale_after: float,
        exclusion_config: ExclusionConfig | None = None,
        speed_of: Callable[[Endpoint], SpeedEstimator] = lambda _: SpeedEstimator(),
        max_num_seqs: Callable[[Endpoint], int | None] = lambda _: None,
        *,
        shares_prefixes: bool = False,
        cache_events: CacheEvents | None = None,
    ) -> None:
        super().__init__(
            endpoints,
            ledger,
            thresholds,
            exclusion_config or ExclusionConfig(),
            speed_of,
            max_num_seqs,
            cache_events,
            shares_prefixes=shares_prefixes,
        )
        self._stale_after = stale_after

    def candidates(
        self,
        role: Role,
        model: str | None,
        exclude: frozenset[Endpoint],
        now: float,
        *,
        moves: bool = False,
    ) -> list[Candidate]:
        """The endpoints of a role that may take a request for `model` now.

        Stalled and ejected engines are included only if there are no others, or if too many are
        excluded (panic). Silent engines are included only if no other is up. Engines that report to
        be full are included only if all others do too.
        `moves`: an engine has failed the request, whose number of attempts is limited, so engines
        that were full count as full until they accept a request.
        """
        if exclude:
            return self._eligible(role, model, exclude, now, _free_at(now, moves=moves))
        kept = self._kept.get((role, model))
        if kept is None:
            kept = self._eligible(role, model, exclude, now, now)
            if model is None or model in self.known_models():  # clients can send any model name
                self._kept[role, model] = kept
        return kept

    def _eligible(
        self,
        role: Role,
        model: str | None,
        exclude: frozenset[Endpoint],
        now: float,
        free_at: float,
    ) -> list[Candidate]:
        is_panic = self.is_panic(role)
        oldest = now - self._stale_after
        return eligible(self._in_use[role], model, exclude, oldest, free_at, is_panic=is_panic)

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
        """Like `candidates`, for a `sampled` role: from a random subset, which is the same for all
        attempts of a request, plus engines that were sent the beginning of its prompt."""
        if facts.draw is None:
            facts.draw = rng.random()
        model, draw, oldest = facts.model, facts.draw, now - self._stale_after
        is_panic, free_at = self.is_panic(role), _free_at(now, moves=moves)
        found = sample(self._in_use[role], model, exclude, oldest, free_at, draw, is_panic=is_panic)
        if len(found) < FEWEST:
            found = part(self.candidates(role, model, exclude, now, moves=moves), draw)
        if found and (holders := self._holders(role, facts)):
            add_holders(found, holders, model, exclude, oldest, free_at, is_panic=is_panic)
        return found

    def _holders(self, role: Role, facts: Facts) -> list[Member]:
        """The engines in use that were last sent the beginning of this prompt."""
        if facts.prefix is None:
            return []
        members = (self._members.get(each) for each in self.sampled[role].of(facts.prefix))
        return [member for member in members if member is not None and not member.is_drained]

    def usable(self, role: Role) -> int:
        """How many engines of a role may get a request now, regardless of its model."""
        pool = self._in_use[role]
        up = [member for member in pool if member.health.is_usable]
        free = [member for member in up if not member.is_blocked]
        if up:
            return len(up if self.is_panic(role) else free or up)  # as `eligible` does
        return sum(member.health.is_silent for member in pool)

    def usable_of(
        self, endpoints: Iterable[Endpoint], exclude: frozenset[Endpoint]
    ) -> list[Candidate]:
        """The candidates among these endpoints that may get a request, stalled or not, in the given
        order; silent ones only if there are no others."""
        known = (self._members.get(each) for each in endpoints if each not in exclude)
        members = [member for member in known if member is not None and not member.is_drained]
        up = [member.view for member in members if member.health.is_usable]
        return up or [member.view for member in members if member.health.is_silent]

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
        member = self._members[endpoint]
        claim = None
        if prefix.keys:
            claim = member.prefixes.claim(prefix)
            if regret is not None:
                member.prefix_coverage.add(tokens, member.known_by(None), regret)
            if self.sampled:
                self._note_holder(prefix, endpoint)
        return Lease(member.view.load, endpoint, tokens, pending, claim)

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
        member, events = self._members[endpoint], self.cache_events
        assert events is not None, "engines tell"
        assert member.cache is not None, "each has one then"
        held = None if lookup is None else member.held(prefix, lookup)
        # An engine that loads the prompt counts what it loads, or what the prefill engine held.
        predicted = member.cache.held(lookup.match) if lookup is not None and pending else None
        claim = member.prefixes.claim(prefix, held)
        if regret is not None:
            member.prefix_coverage.add(facts.tokens, member.known_by(lookup), regret)
        if self.sampled:
            self._note_holder(prefix, endpoint)
        feedback = events.feedback(facts, prefix, member.cache, predicted)
        return Lease(member.view.load, endpoint, facts.tokens, pending, claim, feedback)

    def uncached(
        self,
        candidates: Sequence[Candidate],
        tokens: int,
        prefix: PrefixKeys,
        lookup: Lookup | None = None,
    ) -> list[int]:
        """How many of a prompt's tokens each candidate would have to compute."""
        members = self._members
        if lookup is not None:
            return [members[c.endpoint].uncached(tokens, prefix, lookup) for c in candidates]
        first = prefix.keys[0]  # most engines hold nothing of a prompt
        return [
            members[c.endpoint].uncached(tokens, prefix) if first in c.held_keys else tokens
            for c in candidates
        ]

    def lookup(self, facts: Facts, prefix: PrefixKeys) -> Lookup | None:
        """What the engines' KV-cache events tell about the prompt. None if nothing, or without
        `cache_events`."""
        events = self.cache_events
        assert events is not None, "engines tell"
        is_adapter = facts.model is not None and facts.model in self.adapters()
        return events.lookup(facts, prefix, facts.model if is_adapter else None)

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
        member = self._members.get(lease.endpoint)
        # The speed of an engine that has left is discarded.
        speed = SpeedEstimator() if member is None else member.speed
        if not computes:
            return LegTimer(speed, None, 0, now, tracks_first_token=tracks_first_token)
        work = lease.pending_there
        if work > lease.pending:
            work = max(lease.pending, work - int(speed.progress(now)))
        return LegTimer(speed, lease, work, now, tracks_first_token, sequences)

    def held_prefixes(self) -> Iterator[PrefixesHeld]:
        """The prompts that engines have computed for this process since the last call."""
        for member in self._members.values():
            some: list[PrefixKeys] = []
            size = 0
            for prefix in member.prefixes.take_new_prompts():
                if some and size + len(prefix.keys) > MAX_EVENT_KEYS:
                    yield PrefixesHeld(member.endpoint, tuple(some))
                    some, size = [], 0
                some.append(prefix)
                size += len(prefix.keys)
            if some:
                yield PrefixesHeld(member.endpoint, tuple(some))


def _free_at(now: float, *, moves: bool) -> float:
    """Engines that are full until later than this time are only used if all are."""
    return -math.inf if moves else now
