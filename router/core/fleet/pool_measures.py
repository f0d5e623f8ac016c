"""What a pool's engines are measured by, one at a time and together.

`members` are engines that share requests. Functions without a result set what policies and
estimates read.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from router.core.candidate import STEP_TOKENS
from router.core.fleet.member import Member
from router.core.speed import pool_speed
from router.core.speed.answer_times import reliable_answers
from router.core.speed.interference import most_prompt_share, prompt_share_of
from router.core.speed.prompt_costs import MAX_OVERHEAD, LineFit, overhead_of, seconds_per_token
from router.core.speed.speed_buckets import window_for

__all__ = [
    "answer_times",
    "assume_calibration",
    "averaged",
    "counted",
    "is_mixed",
    "measure_interference",
    "measure_negligible",
    "measure_overhead",
    "most_slots",
    "seconds_of",
    "set_slots",
    "set_windows",
]

AVERAGE_TICKS = 20
"""Ticks (of 0.25 s) that the average of a prefill engine's speed spans, where other clients use it
too: how many of their prompts are computed before one of ours is not known, so that in a few
seconds an engine looks several times slower than it is. One that is eight times slower is noticed
in 2 s still. (In `pd-router simulate`, 60 ticks do no better with three and five routers.)"""

NEGLIGIBLE_SECONDS = 0.08
"""Delay of a first token that is too short to choose an engine by, within these bounds:"""

MIN_NEGLIGIBLE_TOKENS, MAX_NEGLIGIBLE_TOKENS = 1280.0, float(STEP_TOKENS)
"""Pending prompt tokens. (In `pd-router simulate`, with 800 new chats are spread so unevenly that
caches lose prefixes: first tokens of `multi-turn` come 60 % later; with 1,024 still 3 %.)"""


def assume_calibration(members: Iterable[Member]) -> None:
    """Assume that an engine without calibration sends as many tokens per event as the others."""
    calibrations = [member.speed.calibration for member in members]
    learned = pool_speed.pool_median(c.tokens_per_event for c in calibrations if c.is_learned)
    if learned is not None:
        for calibration in calibrations:
            calibration.assume(learned)


def measure_overhead(members: Sequence[Member]) -> None:
    """Estimate the fixed time of a prefill, without which engines that only get short prompts
    would look slow."""
    overhead = overhead_of(_fits(members))
    if overhead is not None:
        for member in members:
            member.speed.prompt_overhead = int(overhead)


def measure_negligible(members: Sequence[Member]) -> None:
    """Set how many pending prompt tokens delay a first token too little to matter."""
    fits = _fits(member for member in members if member.view.prompt_slowdown <= 1.0)
    seconds, tokens = seconds_per_token(fits), MAX_NEGLIGIBLE_TOKENS
    if seconds is not None:
        tokens = min(tokens, max(MIN_NEGLIGIBLE_TOKENS, NEGLIGIBLE_SECONDS / seconds))
    for member in members:
        member.view.negligible_tokens = tokens


def measure_interference(members: Sequence[Member], per_prompt_token: float) -> None:
    """Estimate how much prompts delay streams. Otherwise engines that compute more or longer
    prompts would look slow."""
    usual = [
        member.speed
        for member in members
        if member.counted_speed.agrees and not member.view.is_slow
    ]
    most = most_prompt_share([speed.buckets.sums() for speed in usual])
    share = prompt_share_of([speed.interference for speed in usual], most)
    for member in members:
        member.speed.prompt_share, member.speed.prompt_seconds = share, per_prompt_token


def set_slots(members: Sequence[Member]) -> None:
    """Set the number of sequences that each engine runs concurrently, as policies see it, and
    what a place in its queue costs. Engines whose number is unknown get that of the others."""
    most = most_slots(members)
    for member in members:
        view, slots = member.view, member.capacity.slots
        view.slots = member.capacity.room(most)
        view.queue_factor = 1.0 if slots == math.inf else most / slots


def most_slots(members: Iterable[Member]) -> float:
    """The highest known number of sequences that one of them runs concurrently; infinite if none is
    known."""
    known = (member.capacity.slots for member in members)
    return max((slots for slots in known if slots != math.inf), default=math.inf)


def _fits(members: Iterable[Member]) -> Iterator[LineFit]:
    """The prompt measurements of the engines that are not avoided: those get short prompts only."""
    return (member.speed.prompts for member in members if member.view.slowdown <= 1.0)


def set_windows(members: Sequence[Member]) -> None:
    """Set the number of ticks by which engines are judged, from the median variance of their rates.
    The median ignores single engines whose speed changes."""
    speeds = [member.speed for member in members]
    variances = (speed.buckets.rate_variance(speed.prompt_share) for speed in speeds)
    usual = pool_speed.pool_median(variance for variance in variances if variance is not None)
    if usual is not None:
        window = window_for(usual)
        for speed in speeds:
            speed.buckets.window = window


def seconds_of(member: Member, now: float, *, is_prefill: bool) -> float | None:
    """Seconds per token (prefill: per prompt token). None until the estimate has been reliable
    once.

    With only a few tokens after a start, one slow turn of the event loop would make an engine look
    several times slower than it is.
    """
    speed = member.speed
    if is_prefill:
        return speed.per_prompt_token if speed.was_reliable else None
    by_counter = counted(member, now)
    if by_counter is not None:
        return by_counter
    return speed.per_token if speed.was_reliable else None


def averaged(member: Member, gap: float | None) -> float | None:
    """The moving average of a prefill engine's seconds per prompt token; None if unknown."""
    before = member.average_gap
    if gap is not None and before is not None:
        gap = before + (gap - before) / AVERAGE_TICKS
    member.average_gap = gap
    return gap


def counted(member: Member, now: float) -> float | None:
    """Seconds per token by the engine's own counter, for engines whose events do not show them."""
    return member.counted_speed.per_token(now, member.speed.prompt_share, member.median)


def answer_times(members: Sequence[Member]) -> list[float | None]:
    """Seconds per prompt token of short unary answers, for each member; empty if there were
    none."""
    fits = [member.speed.answers.fit for member in members if member.view.slowdown <= 1.0]
    if not any(fit.sums.samples for fit in fits):
        return []
    overhead = overhead_of(fits) or MAX_OVERHEAD
    least = reliable_answers(member.speed.answers for member in members)
    return [member.speed.answers.per_prompt_token(overhead, least) for member in members]


def is_mixed(
    members: Sequence[Member], slowdowns: Sequence[float], reliable: Sequence[bool]
) -> bool:
    """Whether the engines run on mixed hardware (such as H100 and L40S): a large share of them has
    been slow since they joined. Adds the slowdowns to the members' histories, where `reliable`."""
    for member, slowdown, is_reliable in zip(members, slowdowns, reliable, strict=True):
        if is_reliable:
            member.history = pool_speed.updated_history(member.history, slowdown)
    settled = [member.history for member in members if member.history is not None]
    born_slow = sum(history.best >= pool_speed.RECOVERED for history in settled)
    return born_slow > max(1, pool_speed.MIXED_SHARE * len(settled))
