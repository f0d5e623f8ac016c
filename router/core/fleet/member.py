"""One endpoint of the fleet, with its health, exclusion, speed and gauges."""

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from router.core.candidate import Candidate
from router.core.fleet.stale_gauges import StaleGauges
from router.core.health import Health
from router.core.kv_events import EngineCache, Lookup
from router.core.prefix.held import HeldPrefixes
from router.core.prefix.trust import (
    EVENTS,
    FAR_OFF,
    HISTORY,
    NOTHING,
    KnownBy,
    KnownPrefix,
    PrefixCoverage,
    PrefixTrust,
)
from router.core.request_facts import PrefixKeys
from router.core.speed import stall
from router.core.speed.capacity import Capacity, QueueDetector
from router.core.speed.counted_speed import CountedSpeed
from router.core.speed.leg_counts import EventCounts
from router.core.speed.outlier import Outlier
from router.core.speed.pool_speed import SlowdownHistory
from router.core.speed.speed_estimator import TICK_SECONDS, SpeedEstimator
from router.core.speed.stall import Stall
from router.core.values import Endpoint, Gauges

__all__ = ["Exclusion", "Kind", "Member"]

Kind = tuple[str | None, str | None]
"""An engine's vLLM version, and the root of a model it serves; None if unknown. Engines of one kind
can exchange KV caches."""

LASTING_SECONDS = 2.0
"""Seconds that an engine has to be slow before requests go elsewhere although it holds part of
their prompts: longer than most measurement errors, and short enough that an engine that has become
slow does not keep them. (With `unsteady-chats` of `pd-router simulate`, 1.5 s gives fewer cache
hits and 2.5 s hardly more.)"""

REPEATED_FAILURES = 5
"""Speed probes in a row that have failed when operators learn of it. Each is half as long as the
one before (`probing.py`), so the length is not the cause."""

CALIBRATION_EVENTS = 200
"""Fewest events between two scrapes for calibration, because the engine's counter is some steps
ahead of the relay."""


class Exclusion(StrEnum):
    """Why an engine that is up gets no new requests (ejected, stalled) or few (slow)."""

    EJECTED = "ejected"
    """It fails more often than others (outlier ejection)."""
    STALLED = "stalled"
    """It has open streams and produces no tokens."""
    SLOW = "slow"
    """It takes several times the pool's median time; only used by shortest_expected_delay."""


@dataclass(slots=True)
class Member:
    """An endpoint in its pool. Health, failures, stalls and speed are judged independently."""

    view: Candidate
    """The data that policies see."""
    health: Health = field(default_factory=Health)
    since: float | None = None
    """When its health state began; None before the first probe."""
    up_until: float | None = None
    """When it was last up; None if it never was, or is."""
    row: int = 0
    identity: str = ""
    """Identifies the engine, as the roster tells apart engines that had the same URL."""
    source: str = ""
    """The source that lists it."""
    joined_at: float = -math.inf
    """When it joined the fleet."""
    is_drained: bool = False
    """Whether it gets no new requests, as its source or an operator has ordered."""
    drained_since: float | None = None
    leaving_since: float | None = None
    """Since when no source lists it. It is drained, and removed once it has no requests."""
    kv_events_port: int | None = None
    """The port of its KV-cache events, according to its source."""
    full_at: float = -math.inf
    """When it last refused a request because it was full."""
    full_until: float = -math.inf
    """Until when other engines are preferred because it is full. Kept after that time, until it
    accepts a request."""
    last_error: str | None = None
    """The last failure with its cause. Kept after a recovery."""
    last_error_at: float = -math.inf
    version: str | None = None
    """The vLLM version from its /version; None if unknown."""
    outlier: Outlier = field(default_factory=Outlier)
    outlier_by_model: dict[str | None, Outlier] = field(default_factory=dict)
    """The same for each of its models, if it serves several."""
    others_before: Outlier = field(default_factory=Outlier)
    """Answers and failures of the other engines in the interval in which it was ejected."""
    ejected_for: dict[str | None, int] = field(default_factory=dict)
    """Its failures in a row for each model when it was ejected."""
    stall: Stall = stall.CLEAR
    speed: SpeedEstimator = field(default_factory=SpeedEstimator)
    slowdowns: deque[float] = field(
        default_factory=lambda: deque(maxlen=int(LASTING_SECONDS / TICK_SECONDS))
    )
    """Its slowdown at each of the last ticks."""
    average_gap: float | None = None
    """Moving average of a prefill engine's seconds per prompt token; None if unknown."""
    slow_since: float | None = None
    unsteady_since: float = -math.inf
    """When it became slow; if it became slow again during slow start, when it first did."""
    failing_since: float = -math.inf
    """When the first of its current failures in a row was seen."""
    returned_at: float = -math.inf
    """When its slow start began."""
    failed_speed_probes: int = 0
    """Speed probes in a row that it refused or broke off."""
    cards: tuple[dict[str, Any], ...] | None = None
    """The entries of its /v1/models; None if unknown."""
    models: frozenset[str] | None = None
    roots: dict[str | None, str | None] = field(default_factory=dict)
    """The root of each model that it serves (from its card), and under None the root of its first
    model; None if unknown."""
    gauges: Gauges | None = None
    gauges_at: float = 0.0
    scraped_at: float | None = None
    """When its gauges were last read; None if never."""
    unread_since: float | None = None
    """Since when its gauges cannot be read; None if the last scrape succeeded."""
    gauges_error: str | None = None
    """Why its gauges cannot be read."""
    capacity: Capacity = field(default_factory=Capacity)
    queue: QueueDetector = field(default_factory=QueueDetector)
    stale_gauges: StaleGauges = field(default_factory=StaleGauges)
    median: float | None = None
    """Median seconds per token (prefill: per prompt token) of the engines with which it has models
    in common, including itself; None if unknown."""
    lowest_median: float | None = None
    """The lowest that the median has been lately; see `pool_speed.MEDIAN_DRIFT`."""
    history: SlowdownHistory | None = None
    """Its long-term slowdown; None if unknown."""
    counted_speed: CountedSpeed = field(default_factory=CountedSpeed)
    """Its speed according to its own counter of generated tokens."""
    own: int = 0
    """This router's requests on it at the last tick."""
    own_recent: int = 0
    """The larger of `own` at the last two ticks."""
    counted: tuple[int, EventCounts] | None = None
    """Its counter of generated tokens at the last scrape, with the events counted here up to then;
    None if it had requests of other clients."""

    prefixes: HeldPrefixes = field(default_factory=HeldPrefixes)
    """The prompt prefixes that its KV cache is predicted to hold."""
    prefix_trust: PrefixTrust = field(default_factory=PrefixTrust)
    prefix_coverage: PrefixCoverage = field(default_factory=PrefixCoverage)
    cache: EngineCache | None = None
    """The prompt prefixes in its KV cache according to its KV-cache events; None if these are not
    used."""

    def set_outlier(self, state: Outlier) -> None:
        """Set the state of its ejection. Its answers count anew."""
        self.outlier = state
        self.outlier_by_model.clear()

    def set_slowdown(self, slowdown: float) -> None:
        """Set the slowdown that policies see. Call it once per tick."""
        self.slowdowns.append(slowdown)
        view = self.view
        view.slowdown = slowdown
        view.lowest_slowdown, view.highest_slowdown = min(self.slowdowns), max(self.slowdowns)

    def uncached(self, tokens: int, prefix: PrefixKeys, lookup: Lookup | None = None) -> int:
        """How many of a prompt's tokens it would have to compute; at least one."""
        if lookup is not None:
            return self._uncached_by_events(tokens, prefix, lookup)
        held = self.prefixes.match(prefix)
        share = self.prefix_trust.share
        if share < 1.0:
            held = int(share * held)
        return tokens - held if held < tokens else 1

    def _uncached_by_events(self, tokens: int, prefix: PrefixKeys, lookup: Lookup) -> int:
        share = self._trust_in_events
        held = self.held(prefix, lookup)
        return max(1, tokens - int(share * held)) if held else tokens

    def held(self, prefix: PrefixKeys, lookup: Lookup) -> int:
        """Estimated tokens of a prompt that its KV cache holds, or will hold when requests in
        flight have been computed. Known from its events, or else predicted from what was sent
        there."""
        cache, tokens = self.cache, self._held_by_events(lookup)
        if cache is None or tokens is None:
            return self.prefixes.match(prefix)
        prompt = lookup.prompt
        if cache.confirms(prompt, tokens):  # the rest of the prompt may be held too
            return max(prompt.estimated, self.prefixes.match(prefix))
        held = self.prefixes.expected(prefix) if cache.is_whole else self.prefixes.match(prefix)
        return max(prompt.as_estimated(tokens), held)

    def _held_by_events(self, lookup: Lookup) -> int | None:
        """None: its events do not say."""
        cache = self.cache
        return None if cache is None or cache.is_wrong else cache.held(lookup.match)

    def known_by(self, lookup: Lookup | None) -> KnownBy:
        """What tells how much of a prompt it holds."""
        if lookup is None or self._held_by_events(lookup) is None:
            return HISTORY if self.prefix_trust.share >= FAR_OFF else NOTHING
        return EVENTS if self._trust_in_events >= FAR_OFF else NOTHING

    def known_prefix(self, prefix: PrefixKeys, lookup: Lookup | None) -> KnownPrefix:
        """What is known of a prompt there: for explanations."""
        if lookup is None:
            held, trust = self.prefixes.match(prefix), self.prefix_trust.share
        else:
            held, trust = self.held(prefix, lookup), self._trust_in_events
        return KnownPrefix(held, trust, self.known_by(lookup))

    @property
    def _trust_in_events(self) -> float:
        """Share of the predicted tokens that is counted, 0 to 1. If answers confirm the
        predictions, the counters for all requests give no further information."""
        is_believed = self.cache is not None and self.cache.is_believed
        return 1.0 if is_believed else self.prefix_trust.share

    def observe_gauges(
        self, gauges: Gauges | None, own: int, now: float, *, has_transfers: bool
    ) -> None:
        """Update from a scrape; `gauges` is None if it failed. `own`: this router's requests on it
        at that time. `has_transfers`: the engine loads KV caches of others."""
        # An increase since a scrape before the silence may be older than the silence.
        silent_since = max(self.speed.last_token_at, self.stall.since or 0.0)
        self.speed.is_warm = stall.is_warm(self.gauges, gauges, was_warm=self.speed.is_warm)
        if stall.has_generated(self.gauges, gauges):
            if self.gauges_at >= silent_since:
                self.speed.last_token_at = now
            if gauges is not None and gauges.waiting == 0:
                self.speed.settle_held(self.gauges_at, now)
        self.gauges, self.gauges_at = gauges, now
        view = self.view
        self.queue.observe(gauges, now, has_transfers=has_transfers)
        ours = max(own, self.own_recent)
        self.stale_gauges.observe(gauges, is_idle=not ours)
        if gauges is None:
            self.unread_since = now if self.unread_since is None else self.unread_since
        else:
            self.scraped_at, self.unread_since = now, None
            self.observe_cache(gauges)
        running = gauges.running if gauges else None
        if running is None or gauges is None:
            self.counted_speed.observe(None, self.speed, own, now)
            view.other_requests = None
            return
        self.capacity.observe_running(running, now)
        waiting = gauges.waiting or 0
        # Gauges lag by a step, so own requests that have just ended must not count as other
        # clients'.
        others = 0 if self.stale_gauges.are_stale else max(0, running + waiting - ours)
        # Damped: routers that all follow the same outdated gauges would oscillate together. Not
        # rounded: they would also all follow the same small differences.
        before = view.other_requests
        view.other_requests = float(others if before is None else (before + others) / 2)
        if self.counted_speed.observe(gauges, self.speed, own, now):
            self.speed.last_token_at = now
        self.calibrate(gauges, others)

    def observe_cache(self, gauges: Gauges) -> None:
        """Learn the cache's size from a scrape, and compare the predictions with the engine's
        counters."""
        held, trust = self.prefixes, self.prefix_trust
        trust.observe(held.prompt_tokens, held.predicted_tokens, gauges)
        if gauges.cache_tokens is not None:
            held.resize(int(trust.room * gauges.cache_tokens))
        if self.cache is not None:
            self.cache.observe(gauges)

    def forget_cache(self) -> None:
        """Forget what its cache holds, because a new engine has taken its place."""
        self.prefixes.clear()
        self.prefix_trust = PrefixTrust()
        if self.cache is not None:
            self.cache.reset()

    def set_cards(self, cards: tuple[dict[str, Any], ...]) -> None:
        """Set the models that it serves."""
        self.cards = cards
        self.models = frozenset(card["id"] for card in cards)
        self.roots = {card["id"]: _root(card) for card in cards[::-1]}  # the first one counts
        self.roots[None] = _root(cards[0]) if cards else None

    def kind(self, model: str | None) -> Kind:
        """Its kind for a model. It can exchange KV caches of the model with engines of the same
        kind."""
        return self.version, self.roots.get(model)

    def full(self, seconds: float, now: float) -> bool:
        """Note that it reports to be full: others are preferred for `seconds`. Returns False if it
        was already full."""
        was_full = self.is_full(now)
        self.full_at, self.full_until = now, now + seconds
        return not was_full

    def is_full(self, now: float) -> bool:
        """Whether others are preferred because it reports to be full."""
        return self.full_until > now

    def has_room(self) -> None:
        """Note that it is not full: it accepts requests again, or is a new engine."""
        self.full_at = self.full_until = -math.inf

    def failed(self, error: str, now: float) -> None:
        """Note a failure."""
        self.last_error, self.last_error_at = error, now

    def calibrate(self, gauges: Gauges, others: int) -> None:
        """Learn tokens per event from the engine's counter of generated tokens, between two scrapes
        in which it generated only for this router's streams."""
        before, generated = self.counted, gauges.generated
        self.counted = None
        # Tokens of unary answers, and of streams whose clients do not read, are not counted here.
        if generated is None or others or self.view.load.requests > self.speed.all_open:
            return
        now = self.speed.counted
        self.counted = generated, now
        if before is None or now.whole != before[1].whole:
            return
        events = now.events - before[1].events
        if events < CALIBRATION_EVENTS:
            self.counted = before  # with few streams it takes several scrapes
            return
        tokens = generated - before[0] - (now.begun - before[1].begun)
        self.speed.calibration.learn(tokens, events, by_usage=False)

    @property
    def endpoint(self) -> Endpoint:
        """Its address and role."""
        return self.view.endpoint

    @property
    def is_usable(self) -> bool:
        """Whether it may get new requests: it is up and not drained."""
        return self.health.is_usable and not self.is_drained

    @property
    def ordinal(self) -> int:
        """Number of engines that joined before it."""
        return self.view.ordinal

    @property
    def other_requests(self) -> int | None:
        """Other clients' requests on it, as of `gauges_at`; damped."""
        others = self.view.other_requests
        return None if others is None else round(others)

    @property
    def speed_probes_fail(self) -> bool:
        """Whether they keep failing although it is up, so that they cannot show its recovery."""
        return self.health.is_usable and self.failed_speed_probes >= REPEATED_FAILURES

    @property
    def is_blocked(self) -> bool:
        """Whether it gets no new requests because it is ejected or stalled."""
        return self.outlier.until is not None or self.stall.since is not None

    @property
    def exclusion(self) -> Exclusion | None:
        """Why it is excluded; None if it is not."""
        if self.outlier.until is not None:
            return Exclusion.EJECTED
        if self.stall.since is not None:
            return Exclusion.STALLED
        return None if self.slow_since is None else Exclusion.SLOW


def _root(card: dict[str, Any]) -> str | None:
    root = card.get("root")
    return root if isinstance(root, str) else None
