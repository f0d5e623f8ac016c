"""The engines of the fleet, in one pool per role.

`apply` sets the engines from the roster. Time is an argument; there is no I/O.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from router.core import health
from router.core.candidate import Candidate
from router.core.fleet import pairs, served_models
from router.core.fleet.eligible import SUBSET_SIZE
from router.core.fleet.ledger import Ledger
from router.core.fleet.member import Kind, Member
from router.core.fleet.pool_monitor import ExclusionConfig, PoolMonitor
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.kv_events import CacheEvents, EngineCache
from router.core.membership.entry import Entry
from router.core.prefix.held import Evictions, HeldPrefixes, RecentHolders
from router.core.request_facts import PrefixKeys
from router.core.speed.capacity import Capacity
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.urls import split_rank
from router.core.values import Endpoint, Role
from router.core.wire.tokens import TokenRatios

__all__ = ["UNLISTED", "Pools"]

UNLISTED: Final = "\0"
"""Stands for all model names that no decode engine has listed."""


class Pools:
    """The engines by role, each a `Member`, and what is derived from a pool's members.

    `endpoints` are the initial engines. `speed_of` creates an endpoint's speed estimator; by
    default it uses only this process's measurements. With `shares_prefixes`, prompts that engines
    hold are kept for other processes. With `cache_events`, KV-cache events are used.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        ledger: Ledger,
        thresholds: HealthThresholds,
        exclusion_config: ExclusionConfig,
        speed_of: Callable[[Endpoint], SpeedEstimator],
        max_num_seqs: Callable[[Endpoint], int | None],
        cache_events: CacheEvents | None,
        *,
        shares_prefixes: bool,
    ) -> None:
        self.ledger = ledger
        self.cache_events = cache_events
        self.token_ratios = TokenRatios()
        """Tokens per byte of text, for each model."""
        self._thresholds = thresholds
        self._speed_of = speed_of
        self._max_num_seqs = max_num_seqs
        self._shares_prefixes = shares_prefixes
        self._joined = 0
        self._evictions = {role: Evictions() for role in Role}
        self._members: dict[Endpoint, Member] = {}
        self._pools: dict[Role, tuple[Member, ...]] = dict.fromkeys(Role, ())
        self._in_use = self._pools
        """Members that are not drained, by role."""
        self.sampled: dict[Role, RecentHolders] = {}
        """Roles with so many engines in use that each request considers a sample of them, with the
        recent holders of prompts. A role stays in it until only half that many are left, so that
        the holders are not lost when single engines leave and join. (The sample of a smaller pool
        is the whole pool.)"""
        self.is_mixed = False
        """Whether engines in use differ in version or in the root of a served model. Then prefill
        and decode engines are paired (`incompatible`)."""
        self.refuses_forced_tools = False
        """Whether a prefill engine in use is known to refuse requests that force a tool call."""
        self._known: frozenset[str] | None = None
        self._adapters: frozenset[str] | None = None
        self._kept: dict[tuple[Role, str | None], list[Candidate]] = {}
        """Cache of candidates by role and known model. Cleared when an event changes them, and at
        each tick because gauges become stale without an event."""
        self._incompatible: dict[tuple[Role, Kind | None, str | None], frozenset[Endpoint]] = {}
        """Cache of engines that cannot be paired, by role, partner's kind (None: any partner) and
        known model. Cleared like `_kept`."""
        self._monitors = {role: PoolMonitor(role, (), exclusion_config) for role in Role}
        self.apply([Entry(endpoint, row) for row, endpoint in enumerate(endpoints)], -math.inf)

    def configure(self, exclusion_config: ExclusionConfig) -> None:
        """Set the configuration for exclusions."""
        for monitor in self._monitors.values():
            monitor.configure(exclusion_config)

    def apply(self, entries: Iterable[Entry], now: float) -> None:
        """Set the engines from the roster's entries.

        What is known about engines that stay is kept. Leases on engines that are gone or replaced
        are released as usual and no longer counted.
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
        self._members = members  # a new object: iterations over the old one go on
        self._pools = {
            role: tuple(m for m in members.values() if m.endpoint.role is role) for role in Role
        }
        self._in_use = {
            role: tuple(member for member in pool if not member.is_drained)
            for role, pool in self._pools.items()
        }
        self.sampled = {
            role: self.sampled.get(role) or RecentHolders()
            for role, pool in self._in_use.items()
            if len(pool) > (SUBSET_SIZE // 2 if role in self.sampled else SUBSET_SIZE)
        }
        for role, monitor in self._monitors.items():
            monitor.watch(self._pools[role])
        self._models_changed()

    def _new_member(self, entry: Entry, now: float) -> Member:
        endpoint = entry.endpoint
        load, speed = self.ledger.renew(endpoint), self._speed_of(endpoint)
        speed.siblings = self.ledger.siblings_on(endpoint)
        member = Member(
            Candidate(endpoint, self._joined, load, prefill=speed),
            row=entry.row,
            identity=entry.identity,
            joined_at=now,
            speed=speed,
            capacity=Capacity(self._max_num_seqs(endpoint)),
            prefixes=HeldPrefixes(self._evictions[endpoint.role]),
            cache=None if self.cache_events is None else EngineCache(),
        )
        member.view.held_keys = member.prefixes.keys
        if self._shares_prefixes:
            member.prefixes.new_prompts = []
        self._joined += 1
        return member

    def _models_changed(self) -> None:
        """Update what depends on the models that engines serve."""
        self._known = self._adapters = None
        self._kept.clear()
        for monitor in self._monitors.values():
            monitor.models_changed()
        self._compare()

    def _compare(self) -> None:
        """Determine whether the engines in use are of one kind, and what their versions allow."""
        self._incompatible.clear()
        self.is_mixed = pairs.is_mixed(m for pool in self._in_use.values() for m in pool)
        self.refuses_forced_tools = pairs.some_refuse_forced_tools(self._in_use[Role.PREFILL])

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def pool(self, role: Role) -> tuple[Member, ...]:
        """The members of a role, in the order of the roster."""
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
        """Whether a decode engine may get requests."""
        return any(m.health.may_serve for m in self._in_use[Role.DECODE])

    def is_panic(self, role: Role) -> bool:
        """Whether so few engines of a role are usable that excluded ones get requests too."""
        return self._monitors[role].is_panic

    def avoids_slow(self, role: Role) -> bool:
        """Whether a role's policy keeps requests away from slow engines."""
        return self._monitors[role].avoids_slow

    def tick(self, now: float) -> None:
        """Update speeds and exclusions. Call it every `TICK_SECONDS`."""
        self._kept.clear()
        self._incompatible.clear()
        for monitor in self._monitors.values():
            monitor.tick(now)

    def _count_failure(self, member: Member, model: str | None, now: float) -> None:
        self._kept.clear()
        if not member.outlier.streak:
            member.failing_since = now
        self._monitors[member.endpoint.role].outliers.answered(member, now, model, is_good=False)

    def _see(
        self, member: Member, signal: HealthSignal, now: float, asked_at: float = math.inf
    ) -> None:
        before, could_serve = member.health.state, member.health.may_serve
        if member.since is None:
            member.since = now
        member.health = health.after(member.health, signal, self._thresholds, asked_at)
        if member.health.state is not before:
            member.since = now
            if before is State.UP:
                member.up_until = now
            elif member.health.state is State.UP:
                member.up_until = None
        if member.health.state is not before or member.health.may_serve != could_serve:
            self._kept.clear()
            self._incompatible.clear()
            self._monitors[member.endpoint.role].health_changed()
        if member.health.state is State.UP and before is not State.UP:
            self._monitors[member.endpoint.role].joined(member, now)

    def _note_holder(self, prefix: PrefixKeys, endpoint: Endpoint) -> None:
        """Note that the engine's KV cache will hold this prompt."""
        holders = self.sampled.get(endpoint.role)
        if holders is not None:
            holders.note(prefix, endpoint)

    def expected_delay(self, member: Member) -> float | None:
        """Expected seconds of a request of mean length on this engine now; None if unknown."""
        return self._monitors[member.endpoint.role].expected_delay(member)

    def pool_median(self, role: Role) -> float | None:
        """A pool's median seconds per token (prefill: per prompt token); None if unknown."""
        return self._monitors[role].pool_median

    def incompatible(
        self, role: Role, partner: Endpoint | None, model: str | None
    ) -> frozenset[Endpoint]:
        """The engines of a role that cannot exchange KV caches of a model with `partner`. Without a
        partner: the prefill engines that cannot exchange with any decode engine that may get
        requests."""
        other = None if partner is None else self._members.get(partner)
        if other is None and (partner is not None or role is not Role.PREFILL):
            return frozenset()
        kind = None if other is None else other.kind(model)
        found = self._incompatible.get((role, kind, model))
        if found is None:
            kinds = self._decode_kinds(model) if kind is None else {kind}
            found = pairs.incompatible(self._in_use[role], kinds, model)
            if model is None or model in self.known_models():  # clients can send any model name
                self._incompatible[role, kind, model] = found
        return found

    def _decode_kinds(self, model: str | None) -> set[Kind]:
        """The kinds of the decode engines that may get new requests."""
        return {m.kind(model) for m in self._in_use[Role.DECODE] if m.health.may_serve}

    def models(self) -> dict[str, dict[str, Any]]:
        """The model cards of all engines that may get requests by id; of duplicates the first."""
        return served_models.cards(self._in_use[Role.DECODE])

    def known_models(self) -> frozenset[str]:
        """All models that any decode engine has listed, whether it is usable now or not."""
        if self._known is None:
            self._known = served_models.names(self._pools[Role.DECODE])
        return self._known

    def listed(self, model: str | None) -> str | None:
        """The model, or `UNLISTED` if no decode engine has listed it: the same engines may take any
        of those."""
        return model if model is None or model in self.known_models() else UNLISTED

    def adapters(self) -> frozenset[str]:
        """The models that are LoRA adapters of others."""
        if self._adapters is None:
            self._adapters = served_models.adapters(self._pools[Role.DECODE])
        return self._adapters

    def base_models(self) -> frozenset[str]:
        """The distinct base models; aliases and adapters of a model do not count."""
        return served_models.base_models(self._pools[Role.DECODE])


def _inherit(member: Member, before: Mapping[Endpoint, Member], now: float) -> None:
    """Let a data-parallel rank inherit the health of the engine that it was a part of, and vice
    versa, so that requests need not wait for its first probe."""
    url, rank = split_rank(member.endpoint.url)
    role = member.endpoint.role
    if rank is not None:
        known = before.get(Endpoint(url, role))
    else:
        ranks = (m for e, m in before.items() if e.role is role and e.url.startswith(url + "#"))
        known = next(ranks, None)
    if known is not None and known.identity == member.identity and known.health.is_usable:
        member.health, member.since = known.health, now
        member.cards, member.models, member.roots = known.cards, known.models, known.roots
        member.version = known.version


def _take_over(member: Member, entry: Entry, now: float) -> None:
    """Copy what may change in an engine's entry."""
    member.source = entry.source
    member.leaving_since = entry.leaving_since
    member.kv_events_port = entry.kv_events_port
    member.is_drained = entry.is_draining or entry.leaving_since is not None
    if not member.is_drained:
        member.drained_since = None
    elif member.drained_since is None:
        member.drained_since = now
