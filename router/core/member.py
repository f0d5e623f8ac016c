"""One endpoint of the fleet, and all that is known of it."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from router.core import outlier, stall
from router.core.capacity import Capacity, QueueDetector
from router.core.health import Health
from router.core.outlier import Outlier
from router.core.pool_speed import SlowdownHistory
from router.core.speed_estimator import EventCounts, SpeedEstimator
from router.core.stall import Stall
from router.core.values import Candidate, Endpoint, Gauges

__all__ = ["Exclusion", "Member"]

CALIBRATION_EVENTS = 200
"""Between two scrapes, at least: the engine's counter is some steps ahead of what came here."""


class Exclusion(StrEnum):
    """Why an engine that is up gets nothing new, or next to nothing."""

    EJECTED = "ejected"
    """It answers with errors."""
    STALLED = "stalled"
    """It has open streams and says nothing."""
    SLOW = "slow"
    """It takes several times as long as usual; only shortest_expected_delay minds."""


@dataclass(slots=True)
class Member:
    """An endpoint in its pool. Health, errors, silence and speed are judged apart."""

    view: Candidate
    """What policies see of it."""
    health: Health = field(default_factory=Health)
    outlier: Outlier = outlier.FINE
    stall: Stall = stall.CLEAR
    speed: SpeedEstimator = field(default_factory=SpeedEstimator)
    slow_since: float | None = None
    failing_since: float = -math.inf
    """When the first of its last failures in a row was seen."""
    returned_at: float = -math.inf
    """When it last came back, for slow start."""
    cards: tuple[dict[str, Any], ...] | None = None
    """The entries of its /v1/models; None until it has told."""
    models: frozenset[str] | None = None
    gauges: Gauges | None = None
    gauges_at: float = 0.0
    capacity: Capacity = field(default_factory=Capacity)
    queue: QueueDetector = field(default_factory=QueueDetector)
    history: SlowdownHistory | None = None
    """How fast it usually is against its pool; None until that has been seen."""
    own: int = 0
    """This router's requests there, a tick ago."""
    own_lately: int = 0
    """The most of them at the last two ticks."""
    counted: tuple[int, EventCounts] | None = None
    """The engine's generated tokens at the last scrape, and what was counted here until then; None
    when others had requests there, too."""

    def calibrate(self, gauges: Gauges, others: int) -> None:
        """Learn what an event is worth from the engine's counter of generated tokens, between two
        scrapes in which all that it generated were streams of this router."""
        before, generated = self.counted, gauges.generated
        self.counted = None
        # Unary answers, and streams whose clients do not read, are generated without being counted.
        if generated is None or others or self.view.load.requests > self.speed.all_open:
            return
        now = self.speed.counted
        self.counted = generated, now
        if before is None or now.untracked != before[1].untracked:
            return
        events = now.events - before[1].events
        if events >= CALIBRATION_EVENTS:
            tokens = generated - before[0] - (now.begun - before[1].begun)
            self.speed.calibration.learn(tokens, events, by_usage=False)

    @property
    def endpoint(self) -> Endpoint:
        """Its address and role."""
        return self.view.endpoint

    @property
    def ordinal(self) -> int:
        """Its place in the configuration."""
        return self.view.ordinal

    @property
    def other_requests(self) -> int | None:
        """Requests that others put there, as of `gauges_at`."""
        return self.view.other_requests

    @property
    def is_blocked(self) -> bool:
        """Whether nothing new should go there."""
        return self.outlier.until is not None or self.stall.since is not None

    @property
    def exclusion(self) -> Exclusion | None:
        """Why it is set aside, if it is."""
        if self.outlier.until is not None:
            return Exclusion.EJECTED
        if self.stall.since is not None:
            return Exclusion.STALLED
        return None if self.slow_since is None else Exclusion.SLOW
