"""The fleet: every endpoint with its health, models, load and speed.

Changed by `apply`, `observe`, `observe_shared` and `tick` only. Time is an argument; no I/O. Events
of engines that are not in it (any more) are ignored.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from router.core import health
from router.core.capacity import Capacity
from router.core.events import (
    Ejected,
    Event,
    LegAnswered,
    LegDone,
    LegFailed,
    PrefixesHeld,
    Probed,
    RequestEnded,
    Scraped,
    SharedEvent,
)
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.ledger import Lease, Ledger
from router.core.leg_timer import LegTimer
from router.core.member import Member
from router.core.pool_monitor import ExclusionConfig, PoolMonitor
from router.core.prefix.cache_events import CacheEvents, Lookup
from router.core.prefix.kv_source import EngineCache
from router.core.roster import Entry
from router.core.speed_estimator import SpeedEstimator
from router.core.token_ratios import TokenRatios
from router.core.urls import split_rank
from router.core.values import NO_KEYS, Candidate, Endpoint, Facts, FailureKind, PrefixKeys, Role

__all__ = ["Fleet", "is_unreachable"]


SUBSET_SIZE = 32
"""Largest random subset of a pool that one request considers. The best of 32 is hardly worse than
the best of a thousand, and the cost does not grow with the pool."""

MAX_NEWS = 30_000
"""Keys in one event, or those of one prompt: they take half a megabyte, what a socket takes."""

OF_ENGINES = (LegDone, LegAnswered, Probed, Scraped, LegFailed)

BROKEN_KINDS = (FailureKind.BROKEN, FailureKind.RESET)

FAILURES = {
    FailureKind.REFUSED: "it refused a connection",
    FailureKind.RESET: "it closed a connection before it answered a request",
    FailureKind.BROKEN: "it broke an answer off",
    FailureKind.TIMEOUT: "it sent nothing for longer than the time-outs allow",
    FailureKind.STALLED: "it produced no tokens, with open streams",
}
"""How a request failed, where the event names no cause."""

SAME_CRASH_SECONDS = 1.0
"""Answers that break within this time, sent before the first of them broke, are one crash."""


UP: Final = State.UP


class Fleet:
    """All endpoints by role. Gauges older than `stale_after` seconds count as absent.

    Who is in it `apply` says; `endpoints` are those with which it begins.
    `speed_of` makes an endpoint's speed estimator; by default it measures this process only. With
    `shares_prefixes`, `held_prefixes` tells what other processes should know. With `cache_events`
    the engines' KV-cache events tell what they hold, where there are any.
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
        self.ledger = ledger
        self.cache_events = cache_events
        self.token_ratios = TokenRatios()
        """Of the models that engines serve."""
        self._thresholds = thresholds
        self._stale_after = stale_after
        self._speed_of = speed_of
        self._max_num_seqs = max_num_seqs
        self._shares_prefixes = shares_prefixes
        self._joined = 0
        self._members: dict[Endpoint, Member] = {}
        self._pools: dict[Role, tuple[Member, ...]] = dict.fromkeys(Role, ())
        self._in_use = self._pools
        """Those that are not drained."""
        self.is_mixed = False
        """Whether engines in use differ in version, or in what a model's name stands for: then
        prefill and decode engines are paired (`strangers`)."""
        self._known: frozenset[str] | None = None
        self._adapters: frozenset[str] | None = None
        self._kept: dict[tuple[Role, str | None], list[Candidate]] = {}
        """Candidates by role and known model, until something changes who they are, or a tick:
        gauges get stale without an event."""
        self._monitors = {
            role: PoolMonitor(role, (), exclusion_config or ExclusionConfig()) for role in Role
        }
        self.apply([Entry(endpoint, row) for row, endpoint in enumerate(endpoints)], -math.inf)

    def configure(self, exclusion_config: ExclusionConfig) -> None:
        """Exclude engines by this configuration from now on."""
        for monitor in self._monitors.values():
            monitor.configure(exclusion_config)

    def apply(self, entries: Iterable[Entry], now: float) -> None:
        """Make the fleet what the roster says.

        What is known of engines that stay is kept. Leases on those that are gone, or that another
        engine has replaced, end as always and count nowhere.
        """
        before, members = self._members, {}
        for entry in entries:
            member = before.get(entry.endpoint)
            if member is None or (member.row, member.identity) != (entry.row, entry.identity):
                member = self._new_member(entry, now)
                _inherit(member, before, now)
            _take_over(member, entry, now)
            members[entry.endpoint] = member
        for endpoint in before.keys() - members.keys():
            self.ledger.forget(endpoint)
        self._members = members  # another object: who iterates over the old one is not disturbed
        self._pools = {
            role: tuple(m for m in members.values() if m.endpoint.role is role) for role in Role
        }
        self._in_use = {
            role: tuple(member for member in pool if not member.is_drained)
            for role, pool in self._pools.items()
        }
        for role, monitor in self._monitors.items():
            monitor.watch(self._pools[role])
        self._known = self._adapters = None
        self._kept.clear()
        self._compare()

    def _new_member(self, entry: Entry, now: float) -> Member:
        endpoint = entry.endpoint
        member = Member(
            Candidate(endpoint, self._joined, self.ledger.renew(endpoint)),
            row=entry.row,
            identity=entry.identity,
            joined_at=now,
            speed=self._speed_of(endpoint),
            capacity=Capacity(self._max_num_seqs(endpoint)),
            cache=None if self.cache_events is None else EngineCache(),
        )
        member.view.held_keys = member.prefixes.keys
        if self._shares_prefixes:
            member.prefixes.news = []
        self._joined += 1
        return member

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def pool(self, role: Role) -> tuple[Member, ...]:
        """The members of a role, in the order in which they are named."""
        return self._pools[role]

    def has_in_use(self, role: Role) -> bool:
        """Whether the role has engines that are not drained."""
        return bool(self._in_use[role])

    def knows(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint is in the fleet."""
        return endpoint in self._members

    def member(self, endpoint: Endpoint) -> Member:
        """The member of an endpoint. Raises KeyError."""
        return self._members[endpoint]

    @property
    def is_ready(self) -> bool:
        """Whether a decode engine is up."""
        return any(m.health.is_usable for m in self._in_use[Role.DECODE])

    def lease(
        self, endpoint: Endpoint, tokens: int, pending: int = 0, prefix: PrefixKeys = NO_KEYS
    ) -> Lease:
        """Count a request on the endpoint until the lease is released.

        `pending` of its `tokens` are computed by this engine, whose KV cache holds `prefix` then.
        """
        member = self._members[endpoint]
        claim = member.prefixes.claim(prefix) if prefix.keys else None
        return Lease(member.view.load, endpoint, tokens, pending, claim)

    def watched_lease(
        self,
        endpoint: Endpoint,
        facts: Facts,
        pending: int,
        prefix: PrefixKeys,
        lookup: Lookup | None,
    ) -> Lease:
        """The same, where engines tell of their caches: the answer may tell more of the prompt, and
        whether the prediction was right."""
        member, events = self._members[endpoint], self.cache_events
        assert events is not None, "engines tell"
        assert member.cache is not None, "each has one then"
        held = None if lookup is None else member.held(prefix, lookup)
        predicted = None if lookup is None else member.cache.held(lookup.match)
        claim = member.prefixes.claim(prefix, held)
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
        """What engines' KV-cache events tell of the prompt; None if nothing. Only with
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
        """The timer of a leg on a leased endpoint. `tracks_first_token`: a stream or a prefill,
        `sequences`: answers generated side by side, `computes`: it computes the lease's prompt."""
        member = self._members.get(lease.endpoint)
        # Nobody wants to know the speed of an engine that is gone.
        speed = SpeedEstimator() if member is None else member.speed
        if not computes:
            return LegTimer(speed, None, 0, now, tracks_first_token=tracks_first_token)
        return LegTimer(speed, lease, lease.pending_there, now, tracks_first_token, sequences)

    def candidates(
        self,
        role: Role,
        model: str | None,
        exclude: frozenset[Endpoint],
        now: float,
        rng: Random | None = None,
    ) -> list[Candidate]:
        """The endpoints of a role that may take a request for `model` now.

        With `rng`, a random subset of a large pool. Stalled and ejected engines are included
        only if there are no others, or if too many are (panic).
        """
        pool = self._in_use[role]
        if exclude or len(pool) > SUBSET_SIZE:
            return self._chosen_among(role, model, exclude, now, rng)
        kept = self._kept.get((role, model))
        if kept is None:
            kept = self._chosen_among(role, model, exclude, now, rng)
            if model is None or model in self.known_models():  # clients may name any model
                self._kept[role, model] = kept
        return kept

    def _chosen_among(
        self,
        role: Role,
        model: str | None,
        exclude: frozenset[Endpoint],
        now: float,
        rng: Random | None,
    ) -> list[Candidate]:
        pool = self._in_use[role]
        skip = not self._monitors[role].is_panic
        if rng is not None and len(pool) > SUBSET_SIZE:
            # Every n-th: neighbours in the list share a rack, and may be slow together.
            step = -(-len(pool) // SUBSET_SIZE)
            some = pool[int(rng.random() * step) :: step]
            if found := self._eligible(some, model, exclude, now, skip_blocked=skip):
                return found
        found = self._eligible(pool, model, exclude, now, skip_blocked=skip)
        return found or self._eligible(pool, model, exclude, now, skip_blocked=False)

    def _eligible(
        self,
        members: Iterable[Member],
        model: str | None,
        exclude: frozenset[Endpoint],
        now: float,
        *,
        skip_blocked: bool,
    ) -> list[Candidate]:
        oldest = now - self._stale_after
        found = []
        for member in members:
            if (
                member.health.state is not UP
                or (model is not None and member.models is not None and model not in member.models)
                or (
                    skip_blocked  # as in Member.is_blocked
                    and (member.stall.since is not None or member.outlier.until is not None)
                )
                or member.view.endpoint in exclude
            ):
                continue
            view = member.view
            if member.gauges_at < oldest:
                view.other_requests = None
            found.append(view)
        return found

    def first_usable(
        self, endpoints: Iterable[Endpoint], exclude: frozenset[Endpoint]
    ) -> list[Candidate]:
        """The first of these endpoints that may get a request, stalled or not; none if none may."""
        for endpoint in endpoints:
            member = self._members.get(endpoint)
            if member is not None and member.is_usable and endpoint not in exclude:
                return [member.view]
        return []

    def tick(self, now: float) -> None:
        """Update speeds and exclusions; call it every `TICK_SECONDS`."""
        self._kept.clear()
        for monitor in self._monitors.values():
            monitor.tick(now)

    def held_prefixes(self) -> Iterator[PrefixesHeld]:
        """What engines have computed for this process since the last call."""
        for member in self._members.values():
            some: list[PrefixKeys] = []
            size = 0
            for prefix in member.prefixes.take_news():
                if some and size + len(prefix.keys) > MAX_NEWS:
                    yield PrefixesHeld(member.endpoint, tuple(some))
                    some, size = [], 0
                some.append(prefix)
                size += len(prefix.keys)
            if some:
                yield PrefixesHeld(member.endpoint, tuple(some))

    def _compare(self) -> None:
        """Find out whether the engines in use are of one kind."""
        versions: set[str] = set()
        roots: set[tuple[str, str]] = set()
        for pool in self._in_use.values():
            for member in pool:
                if member.version is not None:
                    versions.add(member.version)
                for card in member.cards or ():
                    if isinstance(card.get("root"), str):
                        roots.add((card["id"], card["root"]))
        self.is_mixed = len(versions) > 1 or len({name for name, _ in roots}) < len(roots)

    def strangers(
        self, role: Role, partner: Endpoint | None, model: str | None
    ) -> frozenset[Endpoint]:
        """The engines of a role that cannot exchange KV caches of a model with `partner`. Without
        one, the prefill engines that can with no decode engine that may get new requests."""
        if partner is not None:
            known = self._members.get(partner)
            others = [] if known is None else [known]
        elif role is Role.PREFILL:
            others = [m for m in self._in_use[Role.DECODE] if m.health.is_usable]
        else:
            others = []
        return frozenset(
            member.endpoint
            for member in self._in_use[role]
            if others and not any(member.agrees_with(other, model) for other in others)
        )

    def expected_delay(self, member: Member) -> float | None:
        """Expected seconds of a request of mean length there, now; None if not known."""
        return self._monitors[member.endpoint.role].expected_delay(member)

    def pool_median(self, role: Role) -> float | None:
        """A pool's median seconds per token (prefill: per prompt token); None if not known."""
        return self._monitors[role].pool_median

    def models(self) -> dict[str, dict[str, Any]]:
        """The model cards of all usable engines by id; of duplicates the first."""
        cards: dict[str, dict[str, Any]] = {}
        for member in self._in_use[Role.DECODE]:
            if member.health.is_usable:
                for card in member.cards or ():
                    cards.setdefault(card["id"], card)
        return cards

    def known_models(self) -> frozenset[str]:
        """Every model that any decode engine has listed, usable now or not."""
        if self._known is None:
            self._known = frozenset().union(*(m.models or () for m in self._pools[Role.DECODE]))
        return self._known

    def adapters(self) -> frozenset[str]:
        """The models that are LoRA adapters of others."""
        if self._adapters is None:
            cards = (card for m in self._pools[Role.DECODE] for card in m.cards or ())
            self._adapters = frozenset(c["id"] for c in cards if c.get("parent") is not None)
        return self._adapters

    def base_models(self) -> frozenset[str]:
        """The distinct base models; aliases and adapters of one count once."""
        return frozenset(
            str(card.get("root") or card["id"])
            for member in self._pools[Role.DECODE]
            for card in member.cards or ()
            if card.get("parent") is None
        )

    def ended(self, record: RequestEnded) -> None:
        """A request is over: learn how many tokens its text had."""
        if record.prompt_tokens and record.model in self.known_models():
            self.token_ratios.learn(record.model, record.text_bytes, record.prompt_tokens)

    def observe(self, event: Event, now: float) -> None:
        """Update from an event; those that concern no engine are ignored."""
        if not isinstance(event, OF_ENGINES):
            return
        member = self._members.get(event.endpoint)
        if member is None:
            return
        if isinstance(event, LegDone):  # the frequent ones first
            self._monitors[event.endpoint.role].answered(member, now, is_good=True)
        elif isinstance(event, LegAnswered):
            if member.health.streak and member.health.state is UP:
                # It resets failed probes in a row, but only a probe brings an engine up.
                self._see(member, HealthSignal.OK, now)
            # What another engine did at the same URL was asked of it before.
            is_error = event.status >= 500 and event.is_own_doing
            if is_error and now - event.seconds >= member.joined_at:
                member.failed(f"it answered a request with {event.status}", now)
                self._count_failure(member, now)
        elif isinstance(event, Probed):
            self._probed(member, event, now)
        elif isinstance(event, Scraped):
            self._scraped(member, event, now)
        else:
            self._failed(member, event, now)

    def observe_shared(self, event: SharedEvent, now: float) -> None:
        """Update from an event of another worker process."""
        self._kept.clear()
        member = self._members.get(event.endpoint)
        if member is None:  # this process has heard of it too late, or not yet
            return
        if isinstance(event, Probed):
            self._probed(member, event, now)
        elif isinstance(event, Scraped):
            self._scraped(member, event, now)
        elif isinstance(event, Ejected):
            member.failed(event.cause, now)
            self._monitors[event.endpoint.role].ejected_elsewhere(member, event.since, event.until)
        elif isinstance(event, PrefixesHeld):
            for prefix in event.prefixes:
                member.prefixes.hold(prefix)
        elif is_unreachable(event):
            member.failed(event.cause or FAILURES[event.kind], now)
            self._see(member, HealthSignal.FAILED, now)

    def _failed(self, member: Member, event: LegFailed, now: float) -> None:
        if event.asked_at < member.joined_at:  # another engine was asked, at the same URL
            return
        member.failed(event.cause or FAILURES[event.kind], now)
        if is_unreachable(event):
            self._see(member, HealthSignal.FAILED, now)
        if event.kind is FailureKind.STALLED:  # the pool monitor's own verdict
            return
        # All answers of an engine that crashes break together and count as one failure. Those that
        # were sent after the crash count separately.
        is_together = now - member.failing_since < SAME_CRASH_SECONDS
        if event.kind in BROKEN_KINDS and is_together and event.asked_at <= member.failing_since:
            return
        self._count_failure(member, now)

    def _count_failure(self, member: Member, now: float) -> None:
        self._kept.clear()
        if not member.outlier.streak:
            member.failing_since = now
        self._monitors[member.endpoint.role].answered(member, now, is_good=False)

    def _see(self, member: Member, signal: HealthSignal, now: float) -> None:
        before = member.health.state
        if member.since is None:
            member.since = now
        member.health = health.after(member.health, signal, self._thresholds)
        if member.health.state is not before:
            member.since = now
            self._kept.clear()
        if member.health.state is State.UP and before is not State.UP:
            self._monitors[member.endpoint.role].joined(member, now)

    def _probed(self, member: Member, event: Probed, now: float) -> None:
        if event.error is not None:
            member.failed(event.error, now)
        self._see(member, event.signal, now)
        if event.version is not None and event.version != member.version:
            member.version = event.version
            self._compare()
        if event.cards is not None and event.cards != member.cards:
            self._known = self._adapters = None
            self._kept.clear()
            member.cards = event.cards
            member.models = frozenset(card["id"] for card in event.cards)
            self._compare()

    def _scraped(self, member: Member, event: Scraped, now: float) -> None:
        member.gauges, member.gauges_at = event.gauges, now
        if event.gauges is not None:
            member.scraped_at = now
        view, gauges = member.view, event.gauges
        has_transfers = bool(self._pools[Role.PREFILL]) and event.endpoint.role is Role.DECODE
        member.queue.observe(gauges, has_transfers=has_transfers)
        if gauges is not None:
            member.observe_cache(gauges)
        running = gauges.running if gauges else None
        if running is None or gauges is None:
            view.other_requests = None
            return
        member.capacity.observe_running(running, now)
        waiting = gauges.waiting or 0
        # Gauges lag by a step: own requests that have just ended are not other clients'.
        others = max(0, running + waiting - max(event.own, member.own_lately))
        # Damped: routers that all follow the same old gauges would oscillate together.
        before = view.other_requests
        view.other_requests = others if before is None else _half_way(before, others)
        member.calibrate(gauges, others)


def _inherit(member: Member, before: Mapping[Endpoint, Member], now: float) -> None:
    """A rank is as well as the engine of which it was a part until now, and the other way round:
    nobody need wait for its first probe."""
    url, rank = split_rank(member.endpoint.url)
    role = member.endpoint.role
    if rank is not None:
        known = before.get(Endpoint(url, role))
    else:
        ranks = (m for e, m in before.items() if e.role is role and e.url.startswith(url + "#"))
        known = next(ranks, None)
    if known is not None and known.identity == member.identity and known.health.is_usable:
        member.health, member.since = known.health, now
        member.cards, member.models, member.version = known.cards, known.models, known.version


def _take_over(member: Member, entry: Entry, now: float) -> None:
    """Take over what may change of an engine's entry."""
    member.source = entry.source
    member.leaving_since = entry.leaving_since
    member.kv_events_port = entry.kv_events_port
    member.is_drained = entry.is_draining or entry.leaving_since is not None
    if not member.is_drained:
        member.drained_since = None
    elif member.drained_since is None:
        member.drained_since = now


def is_unreachable(failure: LegFailed) -> bool:
    """Whether a failed leg means that the engine cannot be reached."""
    return failure.kind in (FailureKind.REFUSED, FailureKind.RESET)


def _half_way(before: int, now: int) -> int:
    return now if abs(now - before) <= 1 else (before + now) // 2
