"""Watches one pool: excludes engines that are slow, stalled or failing, and takes them back.

At each tick it derives from measurements what policies see (`Candidate`). No exclusion is
permanent. If more than `max_excluded` of the pool is stalled or ejected, all engines are used
(panic).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.fleet import pool_measures as measures
from router.core.fleet import served_models
from router.core.fleet.member import Member
from router.core.fleet.outlier_detector import ExclusionLimit, OutlierDetector
from router.core.speed import outlier, pool_speed, stall
from router.core.speed.capacity import QueueDetector, may_wait_for_slot, waits_for_slot
from router.core.speed.speed_estimator import TICK_SECONDS
from router.core.values import Role

__all__ = ["ExclusionConfig", "PoolMonitor"]

DECAY = 0.99
"""Decay per tick of the mean answer length, which thus covers about half a minute."""

LATE_SECONDS = 2 * TICK_SECONDS
"""Seconds since the last tick from which a tick is late. Two workers on one core delay it by up to
a few hundredths of a second."""

SILENT_ENGINES = 2
SILENT_TOKENS = 16
"""If at least this many engines send nothing although together at least this many tokens are due,
the engines are not the cause."""

MIN_SLOW_START_WEIGHT = 0.1
"""Initial weight of slow start; Envoy's min_weight_percent."""

SLOW_START_FACTOR = 4.0
"""Length of the slow start of an engine that was slow, as a multiple of the time that it was slow;
at most `slow_start_seconds`. After a short time it still has most of its requests. (With 2, an
engine that is slow every other second gets too many.)"""

FIRST_TOKEN_WEIGHT = 1 / 32
"""Cost, in requests, of a prompt token that delays a first token on a decode engine. One more
stream hardly slows down the others, but a prompt delays them all. (In `pd-router simulate`, values
from 1/64 to 1/16 make little difference. Measured costs are too low, because gaps grow with
prefills.)"""

PREFILL_TOKENS_PER_REQUEST = 64
"""Fixed cost of a request on a prefill engine, in prompt tokens."""


@dataclass(frozen=True, slots=True)
class ExclusionConfig:
    """When engines are excluded and how they return."""

    stall_seconds: float = 2.0
    """Seconds without a token on any open stream after which an engine is stalled; 0: never."""
    outliers: outlier.OutlierConfig = field(default_factory=outlier.OutlierConfig)
    max_excluded: float = 0.5
    """Share of a pool, 0 to 1, that may be stalled or ejected. If more are, all engines are used
    (panic)."""
    slow_start_seconds: float = 5.0
    """Seconds from an engine's return until it has its full share; 0: at once."""
    speed_roles: frozenset[Role] = frozenset(Role)
    """Roles whose policy avoids slow engines. There, an engine that is fast again gets a slow
    start."""


class PoolMonitor:
    """Watches one pool."""

    def __init__(self, role: Role, members: Sequence[Member], config: ExclusionConfig) -> None:
        self._role = role
        self._config = config
        self.limit = ExclusionLimit(config.max_excluded)
        self.outliers = OutlierDetector(self.limit, config.outliers)
        self._tokens = self._streams = 0.0
        self._ticked_at = math.inf
        self.pool_median: float | None = None
        """Median seconds per token (prefill: per prompt token) of the pool; None if unknown."""
        self._members: Sequence[Member] = ()
        self._model_groups: list[list[Member]] | None = None
        """Result of `model_groups`; None until it is computed."""
        self.watch(members)

    def configure(self, config: ExclusionConfig) -> None:
        """Set the configuration."""
        self._config = config
        self.limit.max_excluded = config.max_excluded
        self.outliers.rules = config.outliers

    def watch(self, members: Sequence[Member]) -> None:
        """Set the members of the pool."""
        self._members, self._model_groups = members, None
        self.limit.watch(members)
        self.outliers.watch(members)
        for member in members:
            member.speed.is_prefill = self._role is Role.PREFILL
            if self._role is Role.DECODE:  # on prefill engines all work is prompts
                member.view.first_token_weight = FIRST_TOKEN_WEIGHT

    def models_changed(self) -> None:
        """Note that members serve other models than before."""
        self._model_groups = None

    def model_groups(self) -> list[list[Member]]:
        """The members, in groups that share requests. Cached, because grouping a thousand takes
        milliseconds."""
        if self._model_groups is None:
            self._model_groups = served_models.model_groups(self._members)
        return self._model_groups

    @property
    def is_panic(self) -> bool:
        """Whether so many engines are excluded that exclusions are ignored, or none is up, so that
        silent ones are used."""
        return self.limit.is_panic

    @property
    def avoids_slow(self) -> bool:
        """Whether the role's policy keeps requests away from slow engines."""
        return self._role in self._config.speed_roles

    def health_changed(self) -> None:
        """Note that the number of engines that may get new requests has changed."""
        self.limit.health_changed()

    def joined(self, member: Member, now: float) -> None:
        """Reset what was learned about the member: a new engine has come up. It gets a slow start
        if the pool is in use."""
        member.version = None
        member.speed.reset()
        member.speed.is_stalled = False
        member.capacity.reset()
        member.counted_speed.reset()
        member.average_gap = None
        member.failed_speed_probes = 0
        member.forget_cache()
        member.queue, member.counted, member.history = QueueDetector(), None, None
        member.view.other_requests = None
        member.slowdowns.clear()
        member.set_slowdown(1.0)
        member.set_outlier(outlier.Outlier())
        member.stall = stall.CLEAR
        member.has_room()
        self.limit.health_changed()
        if any(other.view.load.requests for other in self._members if other is not member):
            member.returned_at = now
            member.view.slow_start_weight = self._slow_start_weight(member, now)

    def tick(self, now: float) -> None:
        """Update everything. Call it every `TICK_SECONDS`.

        A late tick does not judge stalls and speed: this process was blocked, and what engines sent
        meanwhile has not been read.
        """
        is_late = now - self._ticked_at > LATE_SECONDS
        self._ticked_at = now
        for member in self._members:
            member.speed.sync(now)
        if self._is_pool_silent():
            for member in self._members:
                member.speed.ignore_stream_time()
        measures.assume_calibration(self._members)
        for member in self._members:
            self._count(member, now, is_late=is_late)
        for members in self.model_groups():
            measures.set_slots(members)
        self.outliers.note_interval(now, self.model_groups())
        if not is_late:
            self._judge(now)
        self.outliers.take_back(now)
        for member in self._members:
            member.view.slow_start_weight = self._slow_start_weight(member, now)
        self.limit.tick()

    def _judge(self, now: float) -> None:
        """Judge stalls and slowdowns, in each group of engines that share requests."""
        measured: list[float] = []
        for members in self.model_groups():
            measured += self._judge_group(members, now)
        self.pool_median = pool_speed.pool_median(measured)

    def _judge_group(self, members: Sequence[Member], now: float) -> list[float]:
        """Judge the engines of one group. Returns the known ones of their seconds per token."""
        is_prefill = self._role is Role.PREFILL
        if is_prefill:
            measures.measure_overhead(members)
        gaps = [measures.seconds_of(member, now, is_prefill=is_prefill) for member in members]
        noise, same = pool_speed.NOISE_SECONDS, pool_speed.SAME_SPEED
        if is_prefill:
            noise = 0.0
            averages = [
                measures.averaged(member, gap) for member, gap in zip(members, gaps, strict=True)
            ]
            if any(member.view.other_requests for member in members):
                gaps, same = averages, pool_speed.SAME_PROMPTS
        measured = [gap for gap in gaps if gap is not None]
        median = pool_speed.pool_median(measured)
        computed = [member.speed.per_prompt_token for member in members]
        per_prompt_token = pool_speed.pool_median(cost for cost in computed if cost is not None)
        if not is_prefill:
            measures.measure_interference(members, per_prompt_token or 0.0)
            measures.measure_negligible(members)
            measures.set_windows(members)
        cost = self._prompt_cost(per_prompt_token, median)
        slowdowns = [pool_speed.slowdown(gap, median, noise, same) for gap in gaps]
        reliable = [member.speed.is_reliable for member in members]
        answered = [] if is_prefill else measures.answer_times(members)
        if len(answered) - answered.count(None) > len(measured):
            usual = pool_speed.pool_median(each for each in answered if each is not None)
            same = pool_speed.SAME_ANSWERS
            slowdowns = [pool_speed.slowdown(each, usual, 0.0, same) for each in answered]
            reliable = [each is not None for each in answered]
        is_mixed = measures.is_mixed(members, slowdowns, reliable)
        for member, slowdown in zip(members, slowdowns, strict=True):
            member.median = median
            if not is_prefill:  # queues there make the median rise and fall
                member.lowest_median = pool_speed.lowest_median(member.lowest_median, median)
            counted = None if is_prefill else measures.counted(member, now)
            gap = member.speed.gap_when_active if counted is None else counted
            self._judge_stall(member, max(gap, median or 0.0), now)
            self._judge_speed(member, members, slowdown, now, is_mixed=is_mixed)
            view = member.view
            view.prompt_cost = cost
            # Evicted prefixes that are requested again have to be computed, which delays a first
            # token.
            weight = member.prefixes.evictions.weight
            view.eviction_cost = weight * (cost + view.first_token_weight)
            view.prompt_slowdown = pool_speed.prompt_slowdown(
                member.speed.per_prompt_token, per_prompt_token, slowdown
            )
            member.speed.settle_prompts(per_prompt_token, now)
        return measured

    def expected_delay(self, member: Member) -> float | None:
        """Expected seconds to the last token of a request of mean length; None if unknown."""
        median = member.median
        if median is None:
            return None
        view = member.view
        requests = view.load.requests + (view.other_requests or 0) + 1
        if self._role is Role.PREFILL:
            return median * view.slowdown * (view.load.pending + PREFILL_TOKENS_PER_REQUEST)
        tokens = self._tokens / self._streams if self._streams >= 1 else 1.0
        return median * tokens * view.slowdown * (1 + max(0.0, requests - view.slots) / view.slots)

    def _is_pool_silent(self) -> bool:
        """Whether no engine sent a token since the last tick although many were due. Then the host,
        the network or this process was blocked, not the engines."""
        streaming = [m.speed for m in self._members if m.speed.all_streams]
        if len(streaming) < SILENT_ENGINES or not self.pool_median or self._role is Role.PREFILL:
            return False
        due = sum(speed.all_streams for speed in streaming) * TICK_SECONDS / self.pool_median
        # Streams that have just ended sent tokens too.
        return due >= SILENT_TOKENS and not any(m.speed.tokens for m in self._members)

    def _count(self, member: Member, now: float, *, is_late: bool) -> None:
        speed = member.speed
        requests = member.view.load.requests
        member.own, member.own_recent = requests, max(member.own, requests)
        if self._role is Role.DECODE and not is_late:
            self._judge_capacity(member, now)
        self._tokens = DECAY * self._tokens + speed.tokens * speed.calibration.tokens_per_event
        self._streams = DECAY * self._streams + speed.begun
        speed.tick(now)

    def _judge_capacity(self, member: Member, now: float) -> None:
        speed, view, capacity = member.speed, member.view, member.capacity
        capacity.observe_running(speed.sure_streams, now)
        in_flight = view.load.requests + (member.other_requests or 0)
        # Use gauges only if they are fresh and there are requests whose first tokens are not seen
        # here.
        counts_gauges = view.other_requests is not None and in_flight > speed.all_open
        is_queueing = waits_for_slot(speed, member.queue, now) or (
            counts_gauges and member.queue.is_queueing
        )
        sequences = max(in_flight, speed.all_open)
        capacity.tick(
            sequences,
            speed.first_token_seconds,
            now,
            is_queueing=is_queueing,
            is_delayed=may_wait_for_slot(speed, member.queue, now),
        )

    def _prompt_cost(self, per_prompt_token: float | None, median: float | None) -> float:
        """The cost of a prompt token, in requests of mean length. Arguments: median seconds per
        prompt token and per token."""
        if self._role is Role.PREFILL:
            return 1 / PREFILL_TOKENS_PER_REQUEST
        if per_prompt_token is None or not median or self._streams < 1:
            return 0.0
        return per_prompt_token / (median * max(1.0, self._tokens / self._streams))

    def _judge_stall(self, member: Member, gap: float, now: float) -> None:
        before = member.stall
        after = stall.after(
            before, member.speed, gap, member.view.load.pending, now, self._config.stall_seconds
        )
        if before.since is None and after.since is not None and not self.limit.allows(member):
            after = stall.CLEAR
        if after is not before:
            was_blocked, member.stall = member.is_blocked, after
            self.limit.changed(member, was_blocked=was_blocked)
        if before.since is not None and after.since is None:
            member.returned_at = now
        member.speed.is_stalled = after.since is not None

    def _judge_speed(
        self,
        member: Member,
        members: Sequence[Member],
        slowdown: float,
        now: float,
        *,
        is_mixed: bool,
    ) -> None:
        member.set_slowdown(slowdown)
        history = member.history
        is_born_slow = history is not None and history.best >= pool_speed.RECOVERED
        risen = pool_speed.rise(member.median, member.lowest_median)
        has_recovered = slowdown * risen < pool_speed.recovered_below(history)
        if has_recovered or (is_mixed and is_born_slow):
            if member.slow_since is not None:
                if self.avoids_slow:
                    full = self._config.slow_start_seconds
                    length = SLOW_START_FACTOR * (now - member.unsteady_since)
                    member.returned_at = now - max(0.0, full - length)
                others = (other for other in members if other is not member)
                member.capacity.forget_less_than(measures.most_slots(others))
            member.slow_since = None
        elif member.slow_since is None and slowdown >= pool_speed.SLOW:
            if member.view.slow_start_weight == 1.0:
                member.unsteady_since = now
            member.slow_since = now
        member.view.is_slow = member.slow_since is not None

    def _slow_start_weight(self, member: Member, now: float) -> float:
        since = now - member.returned_at
        full = self._config.slow_start_seconds
        return 1.0 if since >= full else max(MIN_SLOW_START_WEIGHT, since / full)
