"""From what was measured of a pool's engines to a verdict for each of them: pure functions.

`members` are engines that share requests. Nothing is changed here: `PoolJudge` calls `assess` at
each tick and applies the verdicts.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from router.core.judge import rules
from router.core.judge.member import Member
from router.core.judge.tuning import (
    AVERAGE_TICKS,
    LASTING_TICKS,
    MAX_NEGLIGIBLE_TOKENS,
    MIN_NEGLIGIBLE_TOKENS,
    MIXED_SHARE,
    NEGLIGIBLE_SECONDS,
    NOISE_SECONDS,
    PREFILL_TOKENS_PER_REQUEST,
    RECOVERED,
    SAME_ANSWERS,
    SAME_PROMPTS,
    SAME_SPEED,
    SLOW,
    SLOW_START_FACTOR,
)
from router.core.judge.verdict import ExclusionConfig, SlowdownHistory, Verdict
from router.core.speed.prompt_costs import LineFit, overhead_of, reliable_answers, seconds_per_token
from router.core.speed.speed_buckets import most_prompt_share, prompt_share_of, window_for
from router.core.speed.speed_estimator import PoolValues
from router.core.speed.tuning import MAX_OVERHEAD
from router.core.values import Role

__all__ = ["Assessment", "assess", "assess_slots", "most_slots"]


class Assessment(NamedTuple):
    """What was found of engines that share requests."""

    verdicts: list[Verdict]
    """One for each engine."""
    values: PoolValues
    """What they have shown together, for the estimates of the next ticks."""
    per_prompt_token: float | None
    """The median of their seconds per prompt token; None if unknown."""
    measured: list[float]
    """The known ones of their seconds per token (prefill: per prompt token)."""


class _Speeds(NamedTuple):
    """Seconds per token (prefill: per prompt token) of each engine; None if unknown."""

    seconds_per_token: list[float | None]
    averages: list[float | None]
    """Moving averages, for prefill engines."""
    noise: float
    """Seconds added to all of them, so that tiny values do not differ."""
    same: float
    """Factor up to which two count as equal."""


class _Slowdowns(NamedTuple):
    """The slowdown of each engine, and whether its measurement is reliable now."""

    slowdowns: list[float]
    reliable: list[bool]


def assess(
    members: Sequence[Member],
    role: Role,
    config: ExclusionConfig,
    answer_tokens: float | None,
    now: float,
) -> Assessment:
    """Judge engines of a role. `answer_tokens`: mean length of an answer; None if unknown."""
    is_prefill = role is Role.PREFILL
    speeds = _prefill_speeds(members) if is_prefill else _decode_speeds(members, now)
    measured = [one for one in speeds.seconds_per_token if one is not None]
    median = rules.median_of(measured)
    costs = [member.speed.per_prompt_token for member in members]
    per_prompt_token = rules.median_of(cost for cost in costs if cost is not None)
    values = _prefill_values(members) if is_prefill else _decode_values(members, per_prompt_token)
    found = _slowdowns(members, speeds, median)
    if not is_prefill:
        found = _by_answers(members, len(measured)) or found
    histories = _histories(members, found)
    pool = _Pool(
        config=config,
        role=role,
        median=median,
        expected_gap=median if is_prefill else _median_of_active(members, speeds),
        per_prompt_token=per_prompt_token,
        prompt_share=values.prompt_share or 0.0,
        prompt_cost=_prompt_cost(role, per_prompt_token, median, answer_tokens),
        negligible_tokens=None if is_prefill else _negligible_tokens(members),
        is_mixed=_is_mixed(histories),
    )
    verdicts = [
        _verdict(member, members, pool, slowdown, history, average, now)
        for member, slowdown, history, average in zip(
            members, found.slowdowns, histories, speeds.averages, strict=True
        )
    ]
    return Assessment(verdicts, values, per_prompt_token, measured)


class _Pool(NamedTuple):
    """What holds for all engines that are judged together."""

    config: ExclusionConfig
    role: Role
    median: float | None
    expected_gap: float | None
    """The median without the silences that last."""
    per_prompt_token: float | None
    prompt_share: float
    prompt_cost: float
    negligible_tokens: float | None
    is_mixed: bool


def _verdict(
    member: Member,
    members: Sequence[Member],
    pool: _Pool,
    slowdown: float,
    history: SlowdownHistory | None,
    average_gap: float | None,
    now: float,
) -> Verdict:
    before, view, speed, median = member.verdict, member.view, member.speed, pool.median
    is_prefill = pool.role is Role.PREFILL
    counted: float | None = None
    lowest = before.lowest_median
    if not is_prefill:  # queues there make the median rise and fall
        lowest = rules.lowest_median(lowest, median)
        counted = member.scrapes.counted_speed.per_token(now, pool.prompt_share, median)
    gap = speed.gap_when_active if counted is None else counted
    stall = rules.stall_after(
        before.stall,
        speed,
        max(gap, pool.expected_gap or 0.0),
        view.load.pending,
        now,
        pool.config.stall_seconds,
    )
    returned_at = now if before.stall.since is not None and stall.since is None else None
    slow_since, unsteady_since = before.slow_since, before.unsteady_since
    least_slots: float | None = None
    if _is_quick(slowdown, median, lowest, history, is_mixed=pool.is_mixed):
        if slow_since is not None:
            if pool.role in pool.config.speed_roles:
                length = SLOW_START_FACTOR * (now - unsteady_since)
                returned_at = now - max(0.0, pool.config.slow_start_seconds - length)
            least_slots = most_slots(other for other in members if other is not member)
            slow_since = None
    elif slow_since is None and slowdown >= SLOW:
        if view.slow_start_weight == 1.0:
            unsteady_since = now
        slow_since = now
    # Evicted prefixes that are requested again have to be computed, which delays a first token.
    weight = member.prompts.sent.evictions.weight
    return Verdict(
        stall,
        slow_since,
        unsteady_since,
        (*before.slowdowns[1 - LASTING_TICKS :], slowdown),
        history,
        average_gap,
        median,
        lowest,
        rules.prompt_slowdown(speed.per_prompt_token, pool.per_prompt_token, slowdown),
        pool.prompt_cost,
        weight * (pool.prompt_cost + view.first_token_weight),
        pool.negligible_tokens,
        returned_at,
        least_slots,
    )


def _is_quick(
    slowdown: float,
    median: float | None,
    lowest: float | None,
    history: SlowdownHistory | None,
    *,
    is_mixed: bool,
) -> bool:
    """Whether an engine is not slow, or no longer: it is about as fast as it was at its best, or
    belongs to slower hardware of a mixed pool."""
    if slowdown * rules.rise(median, lowest) < rules.recovered_below(history):
        return True
    return is_mixed and history is not None and history.best >= RECOVERED


# Speeds.


def _prefill_speeds(members: Sequence[Member]) -> _Speeds:
    """Their averages count where other clients' prompts make the speeds of single ticks useless."""
    current = [
        member.speed.per_prompt_token if member.speed.was_reliable else None for member in members
    ]
    averages = [
        _averaged(member.verdict.average_gap, gap)
        for member, gap in zip(members, current, strict=True)
    ]
    if any(member.view.other_requests for member in members):
        return _Speeds(averages, averages, 0.0, SAME_PROMPTS)
    return _Speeds(current, averages, 0.0, SAME_SPEED)


def _averaged(before: float | None, gap: float | None) -> float | None:
    if gap is None or before is None:
        return gap
    return before + (gap - before) / AVERAGE_TICKS


def _decode_speeds(members: Sequence[Member], now: float) -> _Speeds:
    """By the engine's own counter where events do not show the speed; otherwise from the first
    reliable estimate on: with only a few tokens after a start, one slow turn of the event loop
    would make an engine look several times slower than it is."""
    seconds_per_token: list[float | None] = []
    for member in members:
        speed, counted_speed = member.speed, member.scrapes.counted_speed
        gap = counted_speed.per_token(now, speed.prompt_share, member.verdict.median)
        if gap is None and speed.was_reliable:
            gap = speed.per_token
        seconds_per_token.append(gap)
    nothing: list[float | None] = [None] * len(members)
    return _Speeds(seconds_per_token, nothing, NOISE_SECONDS, SAME_SPEED)


def _median_of_active(members: Sequence[Member], speeds: _Speeds) -> float | None:
    """The median of engines at their last tokens: a frozen engine whose pool has no other streams
    would itself be the median, and be allowed any silence."""
    return rules.median_of(
        min(gap, member.speed.gap_when_active or gap)
        for member, gap in zip(members, speeds.seconds_per_token, strict=True)
        if gap is not None
    )


def _slowdowns(members: Sequence[Member], speeds: _Speeds, median: float | None) -> _Slowdowns:
    return _Slowdowns(
        [
            rules.slowdown(gap, median, speeds.noise, speeds.same)
            for gap in speeds.seconds_per_token
        ],
        [member.speed.is_reliable for member in members],
    )


def _by_answers(members: Sequence[Member], measured: int) -> _Slowdowns | None:
    """The slowdowns by short unary answers, if these show the speed of more engines than the
    number that is `measured` otherwise; else None."""
    fits = [member.speed.counts.answers.fit for member in members if member.view.slowdown <= 1.0]
    if not any(fit.sums.samples for fit in fits):
        return None
    overhead = overhead_of(fits) or MAX_OVERHEAD
    answers = [member.speed.counts.answers for member in members]
    least = reliable_answers(answers)
    seconds = [one.per_prompt_token(overhead, least) for one in answers]
    known = [each for each in seconds if each is not None]
    if len(known) <= measured:
        return None
    usual = rules.median_of(known)
    return _Slowdowns(
        [rules.slowdown(each, usual, 0.0, SAME_ANSWERS) for each in seconds],
        [each is not None for each in seconds],
    )


def _histories(members: Sequence[Member], found: _Slowdowns) -> list[SlowdownHistory | None]:
    """The long-term slowdown of each engine, with that of this tick where it is reliable."""
    return [
        rules.updated_history(member.verdict.history, slowdown)
        if is_reliable
        else member.verdict.history
        for member, slowdown, is_reliable in zip(
            members, found.slowdowns, found.reliable, strict=True
        )
    ]


def _is_mixed(histories: Iterable[SlowdownHistory | None]) -> bool:
    """Whether the engines run on mixed hardware (such as H100 and L40S): a large share of them has
    been slow since they joined."""
    settled = [history for history in histories if history is not None]
    born_slow = sum(history.best >= RECOVERED for history in settled)
    return born_slow > max(1, MIXED_SHARE * len(settled))


# What engines show together.


def _prefill_values(members: Sequence[Member]) -> PoolValues:
    """The fixed time of a prefill, without which engines that only get short prompts would look
    slow."""
    overhead = overhead_of(_fits(members))
    return PoolValues(prompt_overhead=None if overhead is None else int(overhead))


def _decode_values(members: Sequence[Member], per_prompt_token: float | None) -> PoolValues:
    share = _prompt_share(members)
    return PoolValues(None, share, per_prompt_token or 0.0, _window(members, share))


def _prompt_share(members: Sequence[Member]) -> float:
    """How much prompts delay streams. Otherwise engines that compute more or longer prompts would
    look slow."""
    usual = [
        member.speed
        for member in members
        if member.scrapes.counted_speed.agrees and not member.view.is_slow
    ]
    most = most_prompt_share([speed.buckets.sums() for speed in usual])
    return prompt_share_of([speed.interference for speed in usual], most)


def _window(members: Sequence[Member], prompt_share: float) -> int | None:
    """The number of ticks by which engines are judged, from the median variance of their rates; the
    median ignores single engines whose speed changes. None if unknown."""
    variances = (member.speed.buckets.rate_variance(prompt_share) for member in members)
    usual = rules.median_of(variance for variance in variances if variance is not None)
    return None if usual is None else window_for(usual)


def _negligible_tokens(members: Sequence[Member]) -> float:
    """How many pending prompt tokens delay a first token too little to matter."""
    fits = _fits(member for member in members if member.view.prompt_slowdown <= 1.0)
    seconds = seconds_per_token(fits)
    if seconds is None:
        return MAX_NEGLIGIBLE_TOKENS
    return min(MAX_NEGLIGIBLE_TOKENS, max(MIN_NEGLIGIBLE_TOKENS, NEGLIGIBLE_SECONDS / seconds))


def _fits(members: Iterable[Member]) -> Iterator[LineFit]:
    """The prompt measurements of the engines that are not avoided: those get short prompts only."""
    return (member.speed.counts.prompts for member in members if member.view.slowdown <= 1.0)


def _prompt_cost(
    role: Role, per_prompt_token: float | None, median: float | None, answer_tokens: float | None
) -> float:
    """The cost of a prompt token, in requests of mean length."""
    if role is Role.PREFILL:
        return 1 / PREFILL_TOKENS_PER_REQUEST
    if per_prompt_token is None or not median or answer_tokens is None:
        return 0.0
    return per_prompt_token / (median * max(1.0, answer_tokens))


# Sequences side by side.


def assess_slots(members: Sequence[Member]) -> list[tuple[float, float]]:
    """The number of sequences that each engine runs concurrently, and how many times longer a
    request waits in its queue than where the most run. Engines whose number is unknown get that of
    the others."""
    most = most_slots(members)
    return [
        (capacity.room(most), 1.0 if capacity.slots == math.inf else most / capacity.slots)
        for capacity in (member.capacity for member in members)
    ]


def most_slots(members: Iterable[Member]) -> float:
    """The highest known number of sequences that one of them runs concurrently; infinite if none is
    known."""
    known = (member.capacity.slots for member in members)
    return max((slots for slots in known if slots != math.inf), default=math.inf)
