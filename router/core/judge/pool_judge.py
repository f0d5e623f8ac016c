"""Judges one pool: closes its measurements at each tick, and applies what `assess` finds.

Excludes engines that are slow, stalled or failing, and takes them back. No exclusion is permanent.
If more than `max_excluded` of the pool is stalled or ejected, all engines are used (panic).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from router.core.judge import rules
from router.core.judge.assess import assess, assess_slots
from router.core.judge.member import Member
from router.core.judge.outlier import Outlier
from router.core.judge.outlier_detector import ExclusionLimit, OutlierDetector
from router.core.judge.tuning import (
    FIRST_TOKEN_WEIGHT,
    LATE_SECONDS,
    LENGTH_DECAY,
    MIN_SLOW_START_WEIGHT,
    PREFILL_TOKENS_PER_REQUEST,
    SILENT_ENGINES,
    SILENT_TOKENS,
)
from router.core.judge.verdict import CLEAR, ExclusionConfig, Verdict
from router.core.speed.capacity import may_wait_for_slot, waits_for_slot
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Role

__all__ = ["PoolJudge", "model_groups"]


class PoolJudge:
    """Judges one pool. Alone in writing the verdicts, and what `Candidate` has of them."""

    def __init__(self, role: Role, members: Sequence[Member], config: ExclusionConfig) -> None:
        self._role = role
        self._config = config
        self.limit = ExclusionLimit(self._max_excluded(config))
        self.outliers = OutlierDetector(self.limit, config.outliers)
        self._tokens = self._streams = 0.0
        """Decayed sums: tokens of answers, and streams begun."""
        self._ticked_at = math.inf
        self.pool_median: float | None = None
        """Median seconds per token (prefill: per prompt token) of the pool; None if unknown."""
        self._members: Sequence[Member] = ()
        self._groups: list[list[Member]] | None = None
        """Result of `model_groups`; None until it is computed."""
        self.watch(members)

    def configure(self, config: ExclusionConfig) -> None:
        """Set the configuration."""
        self._config = config
        self.limit.max_excluded = self._max_excluded(config)
        self.outliers.rules = config.outliers

    def watch(self, members: Sequence[Member]) -> None:
        """Set the members of the pool."""
        self._members, self._groups = members, None
        self.limit.watch(members)
        self.outliers.watch(members)
        for member in members:
            member.speed.counts.is_prefill = self._role is Role.PREFILL
            if self._role is Role.DECODE:  # on prefill engines all work is prompts
                member.view.first_token_weight = FIRST_TOKEN_WEIGHT

    def models_changed(self) -> None:
        """Note that members serve other models than before."""
        self._groups = None

    def groups(self) -> list[list[Member]]:
        """The members, in groups that share requests. Cached, because grouping a thousand takes
        milliseconds."""
        if self._groups is None:
            self._groups = model_groups(self._members)
        return self._groups

    @property
    def is_panic(self) -> bool:
        """Whether so many engines are excluded that exclusions are ignored, or none is up, so that
        silent ones are used. Never of encode engines."""
        return self.limit.is_panic and self._role is not Role.ENCODE

    def _max_excluded(self, config: ExclusionConfig) -> float:
        """The share of the pool that may be excluded. All encode engines: requests go on without
        them."""
        return 1.0 if self._role is Role.ENCODE else config.max_excluded

    @property
    def avoids_slow(self) -> bool:
        """Whether the role's policy keeps requests away from slow engines."""
        return self._role in self._config.speed_roles

    def joined(self, member: Member, now: float) -> None:
        """Reset what was learned about the member: a new engine has come up, or one has woken up
        with an empty KV cache. It gets a slow start if the pool is in use."""
        member.speed.reset()
        member.speed.counts.is_stalled = False
        member.capacity.reset()
        member.scrapes.reset()
        member.prompts.forget()
        member.failed_speed_probes = member.timeouts = 0
        member.set_outlier(Outlier())
        member.has_room()
        member.verdict = replace(
            member.verdict,
            stall=CLEAR,
            slow_since=None,
            average_gap=None,
            history=None,
            slowdowns=(1.0,),
        )
        self._publish_slowdown(member)
        self.limit.health_changed()
        if any(other.view.load.requests for other in self._members if other is not member):
            member.returned_at = now
            self._publish_slow_start(member, now)

    def tick(self, now: float) -> None:
        """Measure, judge and publish. Call it every `TICK_SECONDS`.

        A late tick does not judge stalls and speed: this process was blocked, and what engines sent
        meanwhile has not been read.
        """
        is_late = now - self._ticked_at > LATE_SECONDS
        self._ticked_at = now
        self._measure(now, is_late=is_late)
        groups = self.groups()
        for members in groups:
            _publish_slots(members)
        self.outliers.note_interval(now, groups)
        if not is_late:
            measured: list[float] = []
            for members in groups:
                measured += self._judge(members, now)
            self.pool_median = rules.median_of(measured)
        self.outliers.take_back(now)
        for member in self._members:
            self._publish_slow_start(member, now)
        self.limit.tick()

    # Measurements.

    def _measure(self, now: float, *, is_late: bool) -> None:
        """Close the tick's measurements."""
        for member in self._members:
            member.speed.counts.sync(now)
        if self._is_pool_silent():
            for member in self._members:
                member.speed.counts.ignore_stream_time()
        self._assume_calibration()
        for member in self._members:
            member.scrapes.tick()
            if self._role is Role.DECODE and not is_late:
                _measure_capacity(member, now)
            counts = member.speed.counts
            tokens = counts.counter.tokens * counts.calibration.tokens_per_event
            self._tokens = LENGTH_DECAY * self._tokens + tokens
            self._streams = LENGTH_DECAY * self._streams + counts.begun
            member.speed.tick(now)

    def _is_pool_silent(self) -> bool:
        """Whether no engine sent a token since the last tick although many were due. Then the host,
        the network or this process was blocked, not the engines."""
        counts = [member.speed.counts for member in self._members]
        streaming = [one.all_streams for one in counts if one.all_streams]
        if len(streaming) < SILENT_ENGINES or not self.pool_median or self._role is Role.PREFILL:
            return False
        due = sum(streaming) * TICK_SECONDS / self.pool_median
        # Streams that have just ended sent tokens too.
        return due >= SILENT_TOKENS and not any(one.counter.tokens for one in counts)

    def _assume_calibration(self) -> None:
        """Let engines without calibration have as many tokens per event as the others."""
        calibrations = [member.speed.counts.calibration for member in self._members]
        learned = rules.median_of(one.tokens_per_event for one in calibrations if one.is_learned)
        if learned is not None:
            for calibration in calibrations:
                calibration.assume(learned)

    # Verdicts.

    def _judge(self, members: Sequence[Member], now: float) -> list[float]:
        """Judge engines that share requests. Returns their seconds per token, as far as known."""
        found = assess(members, self._role, self._config, self._answer_tokens(), now)
        for member, verdict in zip(members, found.verdicts, strict=True):
            member.speed.adopt(found.values)
            self._apply(member, verdict)
            member.speed.settle_prompts(found.per_prompt_token, now)
        return found.measured

    def _apply(self, member: Member, verdict: Verdict) -> None:
        is_new_stall = member.verdict.stall.since is None and verdict.stall.since is not None
        # An engine that is down gets no new requests anyway, but its streams have to leave it.
        if is_new_stall and member.in_rotation and not self.limit.allows(member):
            verdict = replace(verdict, stall=CLEAR)
        was_excluded, member.verdict = member.is_ejected_or_stalled, verdict
        self.limit.changed(member, was_excluded=was_excluded)
        # Encode engines make no tokens that could stop. What waits for one can do without it.
        hangs = not member.health.is_up or member.outlier.until is not None
        is_silent = member.endpoint.role is Role.ENCODE and hangs
        member.speed.counts.is_stalled = is_silent or verdict.stall.since is not None
        if verdict.returned_at is not None:
            member.returned_at = verdict.returned_at
        if verdict.least_slots is not None:
            member.capacity.forget_less_than(verdict.least_slots)
        self._publish_slowdown(member)
        view = member.view
        view.is_slow = verdict.slow_since is not None
        member.update_hands_over()
        view.prompt_slowdown = verdict.prompt_slowdown
        view.prompt_cost, view.eviction_cost = verdict.prompt_cost, verdict.eviction_cost
        if verdict.negligible_tokens is not None:
            view.negligible_tokens = verdict.negligible_tokens

    def _publish_slowdown(self, member: Member) -> None:
        slowdowns, view = member.verdict.slowdowns, member.view
        view.slowdown = slowdowns[-1]
        view.lowest_slowdown, view.highest_slowdown = min(slowdowns), max(slowdowns)

    def _publish_slow_start(self, member: Member, now: float) -> None:
        since = now - member.returned_at
        full = self._config.slow_start_seconds
        weight = 1.0 if since >= full else max(MIN_SLOW_START_WEIGHT, since / full)
        member.view.slow_start_weight = weight

    def _answer_tokens(self) -> float | None:
        """The mean length of an answer; None if unknown."""
        return self._tokens / self._streams if self._streams >= 1 else None

    def expected_delay(self, member: Member) -> float | None:
        """Expected seconds to the last token of a request of mean length; None if unknown."""
        median = member.verdict.median
        if median is None:
            return None
        view = member.view
        requests = view.load.requests + (view.other_requests or 0) + 1
        if self._role is Role.PREFILL:
            return median * view.slowdown * (view.load.pending + PREFILL_TOKENS_PER_REQUEST)
        length = self._answer_tokens()
        tokens = 1.0 if length is None else length
        return median * tokens * view.slowdown * (1 + max(0.0, requests - view.slots) / view.slots)

    def first_token_delay(self, member: Member, own: int | None, now: float) -> float:
        """Expected seconds to a request's first token, as far as they are known. `own`: tokens of
        its prompt that the engine computes; None: it loads the KV cache."""
        view, seconds = member.view, 0.0
        if own is not None:
            seconds = (member.speed.per_prompt_token or 0.0) * (view.pending(now) + own)
        waiting = view.load.requests + (view.other_requests or 0) + 1 - view.slots
        if self._role is Role.DECODE and waiting > 0:
            seconds += 2 * self.rest_seconds(member) * waiting / view.slots
        return seconds

    def rest_seconds(self, member: Member) -> float:
        """Expected seconds of the rest of an answer: half of one of mean length; 0 if unknown."""
        tokens = (self._answer_tokens() or 0.0) / 2
        return (member.verdict.median or 0.0) * tokens * member.view.slowdown

    def seconds_of_moving(self, member: Member, tokens: int, now: float) -> float:
        """Expected seconds of all users until an engine has computed so many tokens of a stream
        that it takes over, while its other streams wait. Twice, since prompts of new requests wait
        too."""
        others = (member.speed.per_prompt_token or 0.0) * tokens * member.view.load.requests
        return 2 * (self.first_token_delay(member, tokens, now) + others)


def _measure_capacity(member: Member, now: float) -> None:
    speed, counts, view = member.speed, member.speed.counts, member.view
    queue, capacity = member.scrapes.queue, member.capacity
    capacity.observe_running(counts.sure_streams, now)
    in_flight = view.load.requests + (member.other_requests or 0)
    # Use gauges only if they are fresh and there are requests whose first tokens are not seen here.
    counts_gauges = view.other_requests is not None and in_flight > counts.all_open
    is_queueing = waits_for_slot(speed, queue, now) or (counts_gauges and queue.is_queueing)
    capacity.tick(
        max(in_flight, counts.all_open),
        counts.first_token_seconds,
        now,
        is_queueing=is_queueing,
        is_delayed=may_wait_for_slot(speed, queue, now),
    )


def _publish_slots(members: Sequence[Member]) -> None:
    for member, (slots, queue_factor) in zip(members, assess_slots(members), strict=True):
        member.view.slots, member.view.queue_factor = slots, queue_factor


def model_groups(members: Iterable[Member]) -> list[list[Member]]:
    """The engines in groups that have no model in common: all candidates of a request are in one
    group. Engines whose models are unknown form one group."""
    by_models: dict[frozenset[str] | None, list[Member]] = {}
    for member in members:
        by_models.setdefault(member.models, []).append(member)
    linked: dict[str, str] = {}
    """For each model another model of the same group; one model in each group has itself."""
    for models in by_models:
        for model in models or ():
            linked[_last(model, linked)] = _last(next(iter(models or ())), linked)
    groups: dict[str | frozenset[str] | None, list[Member]] = {}
    for models, group in by_models.items():
        groups.setdefault(_last(next(iter(models)), linked) if models else models, []).extend(group)
    return list(groups.values())


def _last(model: str, linked: dict[str, str]) -> str:
    """The model at the end of a chain of links. Shortens the chain on the way (path splitting, as
    in union-find)."""
    after = linked.setdefault(model, model)
    while after != model:
        linked[model] = linked[after]
        model, after = after, linked[after]
    return model
