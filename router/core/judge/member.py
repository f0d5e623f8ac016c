"""One engine of the fleet: what is known and measured of it, the verdict, and what policies see.

Health, failures, stalls and speed are judged independently.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from router.core.candidate import Candidate
from router.core.events import LegFailed
from router.core.health import Health, HealthSignal, HealthThresholds, State, after
from router.core.judge.known_prompts import KnownPrompts
from router.core.judge.outlier import NEVER_EJECTED, Ejection, Outlier
from router.core.judge.tuning import HANDS_OVER, REPEATED_FAILURES, SAME_CRASH_SECONDS
from router.core.judge.verdict import Exclusion, Verdict
from router.core.membership.entry import Entry
from router.core.speed.capacity import Capacity
from router.core.speed.scrapes import Scrapes
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.values import Endpoint, FailureKind, Gauges, TransferSource

__all__ = ["Kind", "Member"]

Kind = tuple[str | None, str | None, str | None]
"""An engine's vLLM version, the root of a model it serves, and its zone if that matters; None if
unknown. Engines of one kind can exchange KV caches."""


@dataclass(slots=True)
class Member:
    """An engine in one role."""

    view: Candidate
    """The data that policies see."""
    health: Health = field(default_factory=Health)
    since: float | None = None
    """When its health state began; None before the first probe."""
    up_until: float | None = None
    """When it was last up; None if it never was, or is."""
    last_error: str | None = None
    """The last failure with its cause. Kept after a recovery."""
    last_error_at: float = -math.inf

    # According to the roster.

    entry: Entry = field(init=False)
    joined_at: float = -math.inf
    """When it joined the fleet."""
    is_drained: bool = False
    """Whether it gets no new requests, as its source or an operator has ordered, or because no
    source lists it any more. It is removed once it has no requests."""
    drained_since: float | None = None

    # According to its /version and /v1/models.

    version: str | None = None
    """The vLLM version; None if unknown."""
    transfer_source: TransferSource | None = None
    """Where decode engines find it (MooncakeConnector); None if unknown."""
    cards: tuple[dict[str, Any], ...] | None = None
    """The models' entries; None if unknown."""
    models: frozenset[str] | None = None
    roots: dict[str | None, str | None] = field(default_factory=dict)
    """The root of each model that it serves (from its card), and under None the root of its first
    model; None if unknown."""

    # Measured (`core/speed`): only counted.

    speed: SpeedEstimator = field(default_factory=SpeedEstimator)
    capacity: Capacity = field(default_factory=Capacity)
    scrapes: Scrapes = field(init=False)
    prompts: KnownPrompts = field(default_factory=KnownPrompts)
    """The prompt prefixes that its KV cache holds."""
    outlier: Outlier = field(default_factory=Outlier)
    """Its answers and failures, and whether it is ejected."""
    outlier_by_model: dict[str | None, Outlier] = field(default_factory=dict)
    """The same for each of its models, if it serves several."""
    failing_since: float = -math.inf
    """When the first of its current failures in a row was seen."""
    timeouts: int = 0
    """Requests that it has let time out since it last answered one well (encode engines)."""
    full_at: float = -math.inf
    """When it last refused a request because it was full."""
    full_until: float = -math.inf
    """Until when other engines are preferred because it is full. Kept after that time, until it
    accepts a request."""
    shuts_down_until: float = -math.inf
    """Until when it is draining although its health is good, since it has said that it shuts
    down."""
    is_asleep: bool = False
    """Whether it sleeps or is paused: its last answer to /is_sleeping, or a later change of its
    gauge."""
    only_zone: str | None = None
    """The zone whose engines alone it exchanges KV caches with; None: all. (Fleet)"""
    failed_speed_probes: int = 0
    """Speed probes in a row that it refused or broke off."""

    # Judged (`core/judge`).

    verdict: Verdict = field(default_factory=Verdict)
    """That of the last tick; written by `PoolJudge`."""
    ejection: Ejection = NEVER_EJECTED
    """What was found when it was last ejected; written by `OutlierDetector`."""
    returned_at: float = -math.inf
    """When its slow start began."""

    def __post_init__(self) -> None:
        self.entry = Entry(self.view.endpoint)
        self.scrapes = Scrapes(self.view, self.speed, self.capacity)

    def see(
        self, signal: HealthSignal, thresholds: HealthThresholds, now: float, asked_at: float
    ) -> None:
        """Update the health from the result of a probe that was sent at `asked_at`, or of a
        connection."""
        if signal is HealthSignal.OK and now < self.shuts_down_until:
            signal = HealthSignal.UNAVAILABLE
        elif signal in (HealthSignal.OK, HealthSignal.BUSY) and self.is_asleep:
            signal = HealthSignal.ASLEEP
        elif signal is HealthSignal.FAILED:  # the process has ended; the next one is another one
            self.shuts_down_until = -math.inf
            self.is_asleep = self.scrapes.is_asleep = False
            self.transfer_source = None
        before = self.health.state
        if self.since is None:
            self.since = now
        self.health = after(self.health, signal, thresholds, asked_at)
        state = self.health.state
        self.update_hands_over()
        if state is not before:
            self.since = now
            if before is State.UP:
                self.up_until = now
            elif state is State.UP:
                self.up_until = None

    def failed(self, error: str, now: float) -> None:
        """Note a failure."""
        self.last_error, self.last_error_at = error, now

    def is_part_of_crash(self, failure: LegFailed, now: float) -> bool:
        """Whether the failure belongs to the same crash as the first of its current failures in a
        row: when an engine crashes, all its answers break at once. Failures of requests that were
        sent after the crash count separately."""
        return (
            failure.kind in (FailureKind.BROKEN, FailureKind.RESET)
            and now - self.failing_since < SAME_CRASH_SECONDS
            and failure.asked_at <= self.failing_since
        )

    def enter(self, entry: Entry, now: float) -> None:
        """Take over its entry of the roster."""
        self.entry = entry
        self.is_drained = entry.is_draining or entry.leaving_since is not None
        self.update_hands_over()
        if not self.is_drained:
            self.drained_since = None
        elif self.drained_since is None:
            self.drained_since = now

    def update_hands_over(self) -> None:
        """Note whether its streams are to go on with other engines: by an order, because it ends,
        or because it is much slower than the others. A stall counts as a failure instead."""
        is_ending = self.health.state in (State.DRAINING, State.SLEEPING)
        is_slow = self.view.is_slow and self.verdict.stall.since is None
        is_too_slow = is_slow and self.view.lowest_slowdown >= HANDS_OVER
        self.speed.counts.hands_over = self.entry.hands_over or is_ending or is_too_slow

    def inherit(self, known: "Member", now: float) -> None:
        """Take over the health and the models of an engine that it is a part of, or of a part of
        it, so that requests need not wait for its first probe."""
        self.health, self.since = known.health, now
        self.cards, self.models, self.roots = known.cards, known.models, known.roots
        self.version = known.version

    def set_cards(self, cards: tuple[dict[str, Any], ...]) -> None:
        """Set the models that it serves."""
        self.cards = cards
        self.models = frozenset(card["id"] for card in cards)
        self.roots = {card["id"]: _root(card) for card in cards[::-1]}  # the first one counts
        self.roots[None] = _root(cards[0]) if cards else None

    def kind(self, model: str | None) -> Kind:
        """Its kind for a model. It can exchange KV caches of the model with engines of the same
        kind."""
        return self.version, self.roots.get(model), self.only_zone

    def observe_gauges(
        self, gauges: Gauges | None, own: int, now: float, *, has_transfers: bool
    ) -> None:
        """Update from a scrape, as `Scrapes.observe` does."""
        since = self.verdict.stall.since
        self.scrapes.observe(
            gauges, own, now, has_transfers=has_transfers, stalled_since=since or 0.0
        )
        if gauges is not None:
            self.prompts.observe(gauges)

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

    def set_outlier(self, state: Outlier) -> None:
        """Set the state of its ejection. Its answers count anew."""
        self.outlier = state
        self.outlier_by_model.clear()

    @property
    def endpoint(self) -> Endpoint:
        """Its address and role."""
        return self.view.endpoint

    @property
    def ordinal(self) -> int:
        """Number of engines that joined before it."""
        return self.view.ordinal

    @property
    def in_rotation(self) -> bool:
        """Whether it may get new requests: it is up and not drained."""
        return self.health.is_up and not self.is_drained

    @property
    def other_requests(self) -> int | None:
        """Other clients' requests on it, as of the last scrape; damped."""
        others = self.view.other_requests
        return None if others is None else round(others)

    @property
    def speed_probes_fail(self) -> bool:
        """Whether they keep failing although it is up, so that they cannot show its recovery."""
        return self.health.is_up and self.failed_speed_probes >= REPEATED_FAILURES

    @property
    def is_ejected_or_stalled(self) -> bool:
        """Whether it gets no new requests because it is ejected or stalled."""
        return self.outlier.until is not None or self.verdict.stall.since is not None

    @property
    def exclusion(self) -> Exclusion | None:
        """Why it is excluded; None if it is not."""
        if self.outlier.until is not None:
            return Exclusion.EJECTED
        if self.verdict.stall.since is not None:
            return Exclusion.STALLED
        return None if self.verdict.slow_since is None else Exclusion.SLOW


def _root(card: dict[str, Any]) -> str | None:
    root = card.get("root")
    return root if isinstance(root, str) else None
