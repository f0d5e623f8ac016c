"""The fleet: every engine with its health, models, load and speed.

It is changed only by `apply`, `observe`, `observe_shared`, `ended`, `tick` and leases. Time is an
argument; there is no I/O. `Selection` selects engines of it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from router.core.candidate import Candidate
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
    SpeedProbed,
    cause_of,
)
from router.core.fleet import models
from router.core.fleet.ledger import Ledger
from router.core.fleet.models import Models
from router.core.fleet.pool import Pool
from router.core.fleet.transfers import Transfers
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.judge.known_prompts import KnownPrompts
from router.core.judge.member import Member
from router.core.judge.verdict import ExclusionConfig
from router.core.kv_events import CacheEvents, EngineCache
from router.core.membership.entry import Entry
from router.core.prefix.held import HeldPrefixes
from router.core.request_facts import PrefixKeys
from router.core.speed.capacity import Capacity
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.urls import split_rank
from router.core.values import Endpoint, FailureKind, Role
from router.core.wire.tokens import TokenRatios

__all__ = ["Fleet"]

MAX_EVENT_KEYS: Final = 30_000
"""Most keys in one event (except that one prompt's keys stay together): half a megabyte, the size
of a socket's buffer."""

NOT_ITS_FAULT: Final = (FailureKind.EXHAUSTED, FailureKind.NO_ROOM)
"""Kinds of failure that do not count against the engine: it got no request, or the router had no
memory for its answer."""

SHUTDOWN_SECONDS: Final = 60.0
"""Seconds for which good health of an engine does not count after it has refused a request because
it shuts down. In this time its process ends, or else a request tries it again."""

NEVER: Final = -math.inf

SEEN: Final = (Probed, Scraped, SpeedProbed, LegFailed)
"""Further events that concern an engine."""


class Fleet:
    """All engines, in one pool per role.

    `endpoints` are the initial engines; `apply` sets them from the roster. Gauges older than
    `stale_after` seconds are ignored. `speed_of` creates an engine's speed estimator; by default it
    uses only this process's measurements. With `shares_prefixes`, `held_prefixes` yields news for
    other processes and replicas. With `cache_events`, the engines' KV-cache events show which
    prompts they hold. With `stays_in_zone`, engines of different zones exchange no KV caches.
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
        stays_in_zone: bool = False,
    ) -> None:
        config = exclusion_config or ExclusionConfig()
        self.ledger = ledger
        self.cache_events = cache_events
        self.token_ratios = TokenRatios()
        """Tokens per byte of text, for each model."""
        self.pools = {role: Pool(role, config, stale_after) for role in Role}
        self.models = Models(self.pools)
        self.members: dict[Endpoint, Member] = {}
        """A new object at each `apply`, so that iterations over the old one go on."""
        self.transfers: Transfers | None = None
        """The times of KV transfers between zones; None while no engine has a zone."""
        self._thresholds = thresholds
        self._speed_of = speed_of
        self._max_num_seqs = max_num_seqs
        self._shares_prefixes = shares_prefixes
        self._stays_in_zone = stays_in_zone
        self._joined = 0
        self.apply([Entry(endpoint, row) for row, endpoint in enumerate(endpoints)], -math.inf)

    # Its engines.

    def configure(self, exclusion_config: ExclusionConfig) -> None:
        """Set the configuration for exclusions."""
        for pool in self.pools.values():
            pool.judge.configure(exclusion_config)

    def apply(self, entries: Iterable[Entry], now: float) -> None:
        """Set the engines from the roster's entries.

        What is known about engines that stay is kept. Leases on engines that are gone or replaced
        are released as usual and no longer counted.
        """
        before, members = self.members, {}
        for entry in entries:
            member = before.get(entry.endpoint)
            if member is None or member.entry[:3] != entry[:3]:  # another row or identity
                member = self._new_member(entry, now)
                known = _known_part(entry, before)
                if known is not None:
                    member.inherit(known, now)
            member.enter(entry, now)
            member.only_zone = entry.zone if self._stays_in_zone else None
            members[entry.endpoint] = member
        for endpoint in before.keys() - members.keys():
            self.ledger.forget(endpoint)
        self.members = members
        self._zones_changed({member.entry.zone for member in members.values()})
        for role, pool in self.pools.items():
            pool.watch(tuple(m for m in members.values() if m.endpoint.role is role))
        self._models_changed()

    def _zones_changed(self, zones: set[str | None]) -> None:
        if not zones - {None}:
            self.transfers = None
        elif self.transfers is None:
            self.transfers = Transfers()
        else:
            self.transfers.keep(zones)

    def _new_member(self, entry: Entry, now: float) -> Member:
        endpoint = entry.endpoint
        load, speed = self.ledger.renew(endpoint), self._speed_of(endpoint)
        speed.counts.siblings = self.ledger.siblings_on(endpoint)
        sent = HeldPrefixes(self.pools[endpoint.role].evictions)
        if self._shares_prefixes:
            sent.new_prompts = []
        member = Member(
            Candidate(endpoint, self._joined, load, prefill=speed.counts, held_keys=sent.keys),
            joined_at=now,
            speed=speed,
            capacity=Capacity(self._max_num_seqs(endpoint)),
            prompts=KnownPrompts(sent, None if self.cache_events is None else EngineCache()),
        )
        self._joined += 1
        return member

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def pool(self, role: Role) -> tuple[Member, ...]:
        """The members of a role, in the order of the roster."""
        return self.pools[role].members

    def knows(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint is in the fleet."""
        return endpoint in self.members

    def member(self, endpoint: Endpoint) -> Member:
        """The member of an endpoint. Raises KeyError."""
        return self.members[endpoint]

    @property
    def is_ready(self) -> bool:
        """Whether a decode engine may get requests."""
        return any(member.health.may_serve for member in self.pools[Role.DECODE].undrained)

    def is_panic(self, role: Role) -> bool:
        """Whether so few engines of a role are usable that excluded ones get requests too."""
        return self.pools[role].judge.is_panic

    def avoids_slow(self, role: Role) -> bool:
        """Whether a role's policy keeps requests away from slow engines."""
        return self.pools[role].judge.avoids_slow

    def expected_delay(self, member: Member) -> float | None:
        """Expected seconds of a request of mean length on this engine now; None if unknown."""
        return self.pools[member.endpoint.role].judge.expected_delay(member)

    def first_token_delay(self, member: Member, own: int | None, now: float) -> float:
        """Expected seconds to a request's first token on this engine; see PoolJudge."""
        return self.pools[member.endpoint.role].judge.first_token_delay(member, own, now)

    def pool_median(self, role: Role) -> float | None:
        """A pool's median seconds per token (prefill: per prompt token); None if unknown."""
        return self.pools[role].judge.pool_median

    # What changes them.

    def tick(self, now: float) -> None:
        """Update speeds and exclusions. Call it every `TICK_SECONDS`."""
        for pool in self.pools.values():
            pool.judge.tick(now)
        self._changed()

    def _changed(self) -> None:
        """Drop all that was cached of which engines may take a request: one of them has changed, or
        so much time has passed that gauges may be too old. Nothing else drops it."""
        for pool in self.pools.values():
            pool.kept.clear()
        self.models.incompatibles.clear()

    def _models_changed(self) -> None:
        self.models.changed()
        self._changed()

    def ended(self, record: RequestEnded) -> None:
        """Learn from a request that has ended how many tokens its prompt had, and how long the
        transfer of its KV cache took."""
        if record.prompt_tokens and record.model in self.models.known():
            self.token_ratios.learn(
                record.model,
                record.text_bytes,
                record.prompt_tokens,
                has_media=record.media_tokens > 0,
            )
        if self.transfers is not None and record.prefilled_at is not None:
            self._add_transfer(self.transfers, record, record.prefilled_at)

    def _add_transfer(
        self, transfers: Transfers, record: RequestEnded, prefilled_at: float
    ) -> None:
        """Count a transfer, unless something else delayed the first content, as a retry does."""
        first, prefill, decode = record.first_byte, record.prefill, record.decode
        if record.outcome != "ok" or first is None or not record.stream or record.fallbacks:
            return
        if record.asked_at < prefilled_at:  # the prefill's answer was the whole one
            return
        if prefill in self.members and decode in self.members:
            zones = self.members[prefill].entry.zone, self.members[decode].entry.zone
            transfers.add(zones, record.tokens, first - prefilled_at)

    def observe(self, event: Event, now: float) -> None:
        """Update from an event. Those that do not concern an engine of the fleet are ignored."""
        if isinstance(event, LegDone):  # the most frequent kind first
            member = self.members.get(event.endpoint)
            if member is not None:
                outliers = self.pools[event.endpoint.role].judge.outliers
                outliers.answered(member, now, event.model, is_good=True)
        elif isinstance(event, LegAnswered):
            member = self.members.get(event.endpoint)
            if member is not None:
                health = member.health
                if (health.streak or health.unanswered_since is not None) and health.may_serve:
                    # It resets the count of failed probes, and shows that an engine whose probes
                    # only timed out is there; only a probe can bring another one up.
                    self._see(member, HealthSignal.OK, now)
                if member.full_until != NEVER or event.status >= 400:
                    self._answered(member, event, now)
        elif isinstance(event, SEEN):
            member = self.members.get(event.endpoint)
            if member is not None:
                self._observed(member, event, now)

    def observe_shared(self, event: SharedEvent, now: float) -> None:
        """Update from an event of another worker process or of a sibling replica."""
        member = self.members.get(event.endpoint)
        if member is None:  # this process does not know the engine yet, or no longer
            return
        if isinstance(event, PrefixesHeld):
            for prefix in event.prefixes:
                member.prompts.sent.hold(prefix)
                self.pools[event.endpoint.role].note_holder(prefix, event.endpoint)
        elif isinstance(event, Ejected):
            member.failed(event.cause, now)
            self.pools[event.endpoint.role].judge.outliers.ejected_elsewhere(member, event)
            self._changed()
        elif not isinstance(event, LegFailed) or event.kind is FailureKind.SHUTTING_DOWN:
            self._observed(member, event, now)
        elif event.is_unreachable:
            member.failed(cause_of(event), now)
            self._see(member, HealthSignal.FAILED, now)

    def _answered(self, member: Member, event: LegAnswered, now: float) -> None:
        """Update from the status of an answer: an error, a report to be full, or a sign that there
        is room again."""
        asked_at = now - event.seconds
        if asked_at < member.joined_at:  # it came from the previous engine at this URL
            return
        if event.full_seconds:
            if member.full(event.full_seconds, now):
                self._changed()
        elif event.status < 400:
            if asked_at >= member.full_at:  # older ones do not show whether it has room
                member.has_room()
                self._changed()
        elif event.status >= 500 and event.counts_against_engine:
            member.failed(f"it answered a request with {event.status}", now)
            self._count_failure(member, event.model, now)

    def _observed(
        self, member: Member, event: Probed | Scraped | SpeedProbed | LegFailed, now: float
    ) -> None:
        if isinstance(event, Scraped):
            has_transfers = bool(self.pool(Role.PREFILL)) and event.endpoint.role is Role.DECODE
            was_asleep = member.scrapes.is_asleep
            member.observe_gauges(event.gauges, event.own, now, has_transfers=has_transfers)
            member.scrapes.error = event.error
            if member.scrapes.is_asleep is not was_asleep and member.health.is_good:
                member.is_asleep = member.scrapes.is_asleep
                self._see(member, HealthSignal.OK, now)
        elif isinstance(event, Probed):
            self._probed(member, event, now)
        elif isinstance(event, LegFailed):
            self._failed(member, event, now)
        elif event.error is not None:
            member.failed_speed_probes += 1
            member.failed(event.error, now)
        elif event.outcome != "failed":  # else the router itself was the cause
            member.failed_speed_probes = 0

    def _failed(self, member: Member, event: LegFailed, now: float) -> None:
        if event.asked_at < member.joined_at:  # it was a failure of the previous engine at this URL
            return
        if event.kind in NOT_ITS_FAULT:
            return
        member.failed(cause_of(event), now)
        if event.is_unreachable:
            self._see(member, HealthSignal.FAILED, now)
        if event.kind is FailureKind.SHUTTING_DOWN:
            member.shuts_down_until = now + SHUTDOWN_SECONDS
            self._see(member, HealthSignal.UNAVAILABLE, now)
            return
        if event.kind is FailureKind.STALLED:  # the judge has already found that
            return
        if not member.is_part_of_crash(event, now):
            self._count_failure(member, event.model, now)
            if event.kind is FailureKind.TIMEOUT and event.endpoint.role is Role.ENCODE:
                self.pools[Role.ENCODE].judge.outliers.timed_out(member, now)
                self._changed()

    def _count_failure(self, member: Member, model: str | None, now: float) -> None:
        if not member.outlier.streak:
            member.failing_since = now
        outliers = self.pools[member.endpoint.role].judge.outliers
        outliers.answered(member, now, model, is_good=False)
        self._changed()

    def _probed(self, member: Member, event: Probed, now: float) -> None:
        if event.error is not None:
            member.failed(event.error, now)
        before = member.version
        signal = event.signal
        if event.is_asleep is not None:
            member.is_asleep = event.is_asleep
        if signal is HealthSignal.TIMED_OUT and self._has_produced(member, event.asked_at):
            signal = HealthSignal.BUSY
        self._see(member, signal, now, event.asked_at)
        if event.version is not None:
            if member.version not in (None, event.version):
                # A new engine took its place behind a Service without a failed probe in between.
                self.pools[event.endpoint.role].judge.joined(member, now)
            member.version = event.version
        if event.transfer_source is not None:
            member.transfer_source = event.transfer_source
        if member.version != before:
            self.models.versions_changed()
            self._changed()
        if event.cards is not None and not models.are_same(event.cards, member.cards):
            member.set_cards(event.cards)
            self._models_changed()

    def _has_produced(self, member: Member, asked_at: float) -> bool:
        """Whether the engine has produced tokens, known to the last tick, since the first probe was
        sent that it has not answered, `asked_at` or before. Roles and data-parallel ranks of an
        engine share the server that answers /health."""
        unanswered_since = member.health.unanswered_since
        since = asked_at if unanswered_since is None else unanswered_since
        url = split_rank(member.endpoint.url)[0]
        return any(
            other.speed.counts.last_token_at > since and split_rank(other.endpoint.url)[0] == url
            for other in self
        )

    def _see(
        self, member: Member, signal: HealthSignal, now: float, asked_at: float = math.inf
    ) -> None:
        before, could_serve = member.health.state, member.health.may_serve
        member.see(signal, self._thresholds, now, asked_at)
        state, judge = member.health.state, self.pools[member.endpoint.role].judge
        if state is not before or member.health.may_serve != could_serve:
            judge.limit.health_changed()
            self._changed()
        if state is State.UP and before is not State.UP:
            if before is not State.SLEEPING:  # it may be another engine
                member.version = None
            judge.joined(member, now)

    def held_prefixes(self) -> Iterator[PrefixesHeld]:
        """The prompts that engines have computed for this process since the last call."""
        for member in self.members.values():
            some: list[PrefixKeys] = []
            size = 0
            for prefix in member.prompts.sent.take_new_prompts():
                if some and size + len(prefix.keys) > MAX_EVENT_KEYS:
                    yield PrefixesHeld(member.endpoint, tuple(some))
                    some, size = [], 0
                some.append(prefix)
                size += len(prefix.keys)
            if some:
                yield PrefixesHeld(member.endpoint, tuple(some))


def _known_part(entry: Entry, known: Mapping[Endpoint, Member]) -> Member | None:
    """For a data-parallel rank the usable engine that it was a part of, and vice versa."""
    url, rank = split_rank(entry.endpoint.url)
    role = entry.endpoint.role
    if rank is not None:
        found = known.get(Endpoint(url, role))
    else:
        ranks = (m for e, m in known.items() if e.role is role and e.url.startswith(url + "#"))
        found = next(ranks, None)
    if found is None or found.entry.identity != entry.identity or not found.health.is_up:
        return None
    return found
