"""What an engine's own gauges say, as far as they can be believed, and other clients' requests that
they show.

vLLM updates its metrics at each step. When all its requests are aborted there is no next step, and
the gauges count them until the next request (vllm-project/vllm#22545, #29928). A router that relied
on them would never send one.
"""

from router.core.candidate import Candidate
from router.core.speed.capacity import Capacity, QueueDetector
from router.core.speed.counted_speed import CountedSpeed
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import STALE_AFTER
from router.core.values import Gauges

__all__ = ["Scrapes", "StaleGauges"]


class StaleGauges:
    """Detects gauges that an engine does not refresh while this router has no requests on it, as
    opposed to those of an engine with a steady load."""

    __slots__ = ("_before", "_unchanged")

    def __init__(self) -> None:
        self._before: Gauges | None = None
        self._unchanged = 0

    @property
    def are_stale(self) -> bool:
        """Whether the requests that the gauges count have ended."""
        return self._unchanged >= STALE_AFTER

    def observe(self, gauges: Gauges | None, *, is_idle: bool) -> None:
        """Update from a scrape. `is_idle`: this router had no requests on the engine at the last
        ticks. Without a counter of tokens or requests, stale gauges cannot be detected."""
        before, self._before = self._before, gauges
        is_same = (
            before is not None
            and gauges is not None
            and (gauges.generated is not None or gauges.finished is not None)
            and _moving(before) == _moving(gauges)
        )
        self._unchanged = self._unchanged + 1 if is_idle and is_same else 0


def _moving(gauges: Gauges) -> tuple[float | None, ...]:
    """The values that change while an engine has requests."""
    return (
        gauges.running,
        gauges.waiting,
        gauges.kv_usage,
        gauges.generated,
        gauges.cache_queries,
        gauges.preemptions,
        gauges.finished,
    )


class Scrapes:
    """The scrapes of one engine. Alone in writing `Candidate.other_requests`."""

    __slots__ = (
        "_capacity",
        "_own",
        "_own_recent",
        "_speed",
        "_view",
        "attempted_at",
        "counted_speed",
        "error",
        "gauges",
        "is_asleep",
        "queue",
        "scraped_at",
        "stale_gauges",
        "unread_since",
    )

    def __init__(self, view: Candidate, speed: SpeedEstimator, capacity: Capacity) -> None:
        self._view = view
        self._speed = speed
        self._capacity = capacity
        self._own = self._own_recent = 0
        """This router's requests on it at the last tick, and the most at the last two."""
        self.gauges: Gauges | None = None
        """Those of the last scrape; None if it failed."""
        self.attempted_at = 0.0
        """When the last scrape ended, successful or not."""
        self.scraped_at: float | None = None
        """When its gauges were last read; None if never."""
        self.unread_since: float | None = None
        """Since when its gauges cannot be read; None if the last scrape succeeded."""
        self.error: str | None = None
        """Why its gauges cannot be read."""
        self.is_asleep = False
        """Whether it sleeps, by the gauges that were last read."""
        self.queue = QueueDetector()
        self.stale_gauges = StaleGauges()
        self.counted_speed = CountedSpeed()
        """Its speed according to its own counter of generated tokens."""

    def reset(self) -> None:
        """Forget what was learned: a new engine has taken its place."""
        self.counted_speed.reset()
        self.queue = QueueDetector()
        self._view.other_requests = None

    def tick(self) -> None:
        """Note how many requests this router has there now."""
        requests = self._view.load.requests
        self._own, self._own_recent = requests, max(self._own, requests)

    def expire(self) -> None:
        """Ignore gauges that are too old."""
        self._view.other_requests = None

    def observe(
        self,
        gauges: Gauges | None,
        own: int,
        now: float,
        *,
        has_transfers: bool,
        stalled_since: float | None = None,
    ) -> None:
        """Update from a scrape; `gauges` is None if it failed. `own`: this router's requests on it
        at that time. `has_transfers`: the engine loads KV caches of others."""
        speed, counts = self._speed, self._speed.counts
        # An increase since a scrape before the silence may be older than the silence.
        silent_since = max(counts.last_token_at, stalled_since or 0.0)
        counts.is_warm = is_warm(self.gauges, gauges, was_warm=counts.is_warm)
        if has_generated(self.gauges, gauges):
            if self.attempted_at >= silent_since:
                counts.last_token_at = now
            if gauges is not None and gauges.waiting == 0:
                speed.settle_held(self.attempted_at, now)
        self.gauges, self.attempted_at = gauges, now
        self.queue.observe(gauges, now, has_transfers=has_transfers)
        ours = max(own, self._own_recent)
        self.stale_gauges.observe(gauges, is_idle=not ours)
        if gauges is None:
            self.unread_since = now if self.unread_since is None else self.unread_since
        else:
            self.scraped_at, self.unread_since = now, None
            self.is_asleep = gauges.is_asleep
        running = None if gauges is None else gauges.running
        if running is None or gauges is None:
            self.counted_speed.observe(None, counts, own, now)
            self._view.other_requests = None
            return
        self._capacity.observe_running(running, now)
        others = self._others(running, gauges.waiting or 0, ours)
        if self.counted_speed.observe(gauges, counts, own, now):
            counts.last_token_at = now
        in_flight = self._view.load.requests
        self.counted_speed.calibrate(gauges, counts, others=others, in_flight=in_flight)

    def _others(self, running: int, waiting: int, ours: int) -> int:
        """Other clients' requests; their moving average is what policies see."""
        # Gauges lag by a step, so own requests that have just ended must not count as other
        # clients'.
        others = 0 if self.stale_gauges.are_stale else max(0, running + waiting - ours)
        # Damped: routers that all follow the same outdated gauges would oscillate together. Not
        # rounded: they would also all follow the same small differences.
        before = self._view.other_requests
        average = others if before is None else (before + others) / 2
        self._view.other_requests = float(average)
        return others


def has_generated(before: Gauges | None, now: Gauges | None) -> bool:
    """Whether the engine has generated tokens between two scrapes: it is alive, also where a parser
    (of tool calls, say) holds them back."""
    if before is None or now is None or before.generated is None or now.generated is None:
        return False
    return now.generated > before.generated


def is_warm(before: Gauges | None, now: Gauges | None, *, was_warm: bool) -> bool:
    """Whether the engine has generated tokens since its start, when its counter of them is 0.
    `was_warm`: what was known before the scrape `now`."""
    if now is None or now.generated is None:
        return was_warm
    was_restarted = before is not None and (before.generated or 0) > now.generated
    return now.generated > 0 or (was_warm and not was_restarted)
