"""How fast an engine really is: seconds per token, from the streams that are relayed.

Counts are exact and kept in buckets of time, so that an outage shows at once and in full. A gap
between tokens is measured for all sequences of an engine together: the seconds that they were
open, first token to now, over the tokens that came. Nothing is timed per token.

What is counted on the relay's path are events of a stream. How many tokens an event carries
(`--stream-interval`, speculative decoding, parsers that hold tokens back) is learned for each
engine from what it says of its usage; a request for `n` answers counts as `n` sequences.
"""

import math
from collections import deque
from itertools import islice
from typing import NamedTuple, Protocol

from router.core.calibration import Calibration
from router.core.speed_totals import SharedTotals, SpeedTotals

__all__ = ["TICK_SECONDS", "EventCounts", "SpeedEstimator", "TimedLeg"]

TICK_SECONDS = 0.25
"""One bucket."""

FORGET_SECONDS = 60.0
"""What is older is forgotten: nobody is slow for ever because nobody asks it."""

KEPT = 16
"""Buckets that are looked at, at most: what is older says nothing of now."""

FIRST = 4
"""Buckets that are looked at, at least: a step that also prefills takes several times as long."""

ENOUGH = 8
"""Tokens that settle the matter."""

PROMPT_OVERHEAD = 64
"""What a request costs beyond its prompt, in prompt tokens: a short prompt is not free."""


BEST_PREFILL_DRIFT = 1.0025
"""A tick lets the best prefill speed fade by so much: by half in 70 s."""


class _Bucket(NamedTuple):
    tokens: float
    stream_seconds: float
    prompt_work: int
    prompt_seconds: float


class EventCounts(NamedTuple):
    """What was counted of an endpoint since it joined."""

    events: int = 0
    begun: int = 0
    untracked: int = 0


class TimedLeg(Protocol):
    """An attempt at the endpoint, as `router.core.leg_timer.LegTimer` times it."""

    started: float
    work: int
    sequences: int


class SpeedEstimator:
    """One endpoint's speed. `tokens` is counted up, event by event, by whoever relays them.

    With `shared` it is the speed that all processes of the host see together, from tick to tick.
    """

    __slots__ = (
        "_at",
        "_buckets",
        "_counted",
        "_first_seconds",
        "_measured_at",
        "_newest_begun",
        "_others",
        "_prompt_seconds",
        "_prompt_work",
        "_published",
        "_shared",
        "_stream_seconds",
        "_waiting",
        "_whole_tokens",
        "begun",
        "best_per_prompt_token",
        "busy_since",
        "calibration",
        "gap_when_active",
        "has_settled",
        "is_settled",
        "is_stalled",
        "last_token_at",
        "open",
        "per_prompt_token",
        "per_token",
        "streams",
        "tokens",
        "untracked",
    )

    def __init__(self, shared: SharedTotals | None = None) -> None:
        self.tokens = 0
        """Events since the last tick."""
        self.begun = 0
        """Streams begun since the last tick."""
        self.untracked = 0
        """Legs since the last tick that say nothing before they are over: unary answers."""
        self.streams = 0
        """Sequences of this process that have had their first token and not their last."""
        self.open = 0
        """Sequences of this process that should give a token soon: streams and prefills."""
        self.is_settled = self.has_settled = False
        """Whether the speed was measured over enough tokens and time, now, or ever since it
        joined."""
        self.is_stalled = False
        """Whether it is thought to have stopped, as the fleet judged last."""
        self.last_token_at = 0.0
        """When it last gave a token (to a tick)."""
        self.busy_since = 0.0
        """When it was last asked for one while nothing was open there."""
        self.per_token: float | None = None
        """Seconds between two tokens of one stream; None until there were some."""
        self.gap_when_active = 0.0
        """`per_token` when it spoke last: silence does not count in it."""
        self.per_prompt_token: float | None = None
        """Seconds to a first token per prompt token ahead of it, its own included."""
        self.best_per_prompt_token: float | None = None
        """The same when nothing queued, as far as that was seen."""
        self._first_seconds = 0.0
        self._whole_tokens = 0
        self._waiting: dict[TimedLeg, None] = {}
        """Legs without a first token, in the order in which they were asked."""
        self._newest_begun = 0.0
        """When the youngest of those that have had a first token was asked."""
        self.calibration = Calibration()
        self._counted = EventCounts()
        self._stream_seconds = 0.0
        self._prompt_work = 0
        self._prompt_seconds = 0.0
        self._shared = shared
        self._published = self._others = SpeedTotals()
        self._at = 0.0
        self._measured_at = math.inf
        self._buckets: deque[_Bucket] = deque(maxlen=KEPT)

    @property
    def is_warm(self) -> bool:
        """Whether it has ever been heard."""
        return self.per_token is not None or self.per_prompt_token is not None

    @property
    def counted(self) -> EventCounts:
        """Events, streams and unheard legs up to now; those of other processes up to a tick ago."""
        events, begun, untracked = self._counted
        return EventCounts(events + self.tokens, begun + self.begun, untracked + self.untracked)

    @property
    def all_streams(self) -> int:
        """`streams`, with those of the other processes."""
        return self.streams + int(self._others.streams)

    @property
    def first_token_seconds(self) -> float | None:
        """The mean time to first token of the streams begun since the last tick."""
        return self._first_seconds / self.begun if self.begun else None

    @property
    def oldest_waiting(self) -> tuple[float, float] | None:
        """Since when the request waits that has waited longest for its first token, of those that
        no later one overtook, and the prompt tokens ahead of it then; None when none waits."""
        mine = next(iter(self._waiting), None)
        since, work = self._others.waiting_since, self._others.waiting_work
        if since < self._newest_begun:  # none waits there, or a later one was served here
            since = 0.0
        if mine is not None and not 0 < since < mine.started:
            return mine.started, mine.work
        return (since, work) if since else None

    @property
    def all_open(self) -> int:
        """`open`, with those of the other processes."""
        return self.open + int(self._others.open)

    def on_request(self, leg: TimedLeg, now: float) -> None:
        """A stream or a prefill was asked for."""
        if self.all_open == 0:
            self.busy_since = now
        self.open += leg.sequences
        self._waiting[leg] = None

    def on_first_token(self, leg: TimedLeg, now: float) -> None:
        """Its first token came, or its whole answer."""
        self.last_token_at = now
        self._waiting.pop(leg, None)
        self._newest_begun = max(self._newest_begun, leg.started)
        if leg.work:
            self._prompt_work += leg.work + PROMPT_OVERHEAD
            self._prompt_seconds += max(0.0, now - leg.started)

    def on_stream_start(self, leg: TimedLeg, now: float) -> None:
        """A stream goes on behind its first token."""
        self._pass(now)
        self.begun += 1
        self._first_seconds += max(0.0, now - leg.started)
        self.streams += leg.sequences

    def on_end(self, leg: TimedLeg, now: float, *, was_stream: bool) -> None:
        """What was asked for is over, however it ended; `was_stream`: after its first token."""
        self._pass(now)
        self._waiting.pop(leg, None)
        self.open -= leg.sequences
        if was_stream:
            self.streams -= leg.sequences

    def on_resume(self, leg: TimedLeg, now: float) -> None:
        """A stream whose timing was paused counts again; the engine has said nothing by that."""
        self._pass(now)
        if self.all_open == 0:
            self.busy_since = now
        self.open += leg.sequences
        self.streams += leg.sequences

    def on_unary_answer(self, tokens: int, seconds: float) -> None:
        """An answer that was no stream took this long to be computed."""
        self._whole_tokens += tokens
        self._stream_seconds += seconds

    def sync(self, now: float) -> None:
        """Show the others what was counted since the last tick, and count theirs in."""
        self._pass(now)
        if self._shared is None:
            return
        self._published = self._published.plus(
            SpeedTotals(
                tokens=self.tokens,
                whole_tokens=self._whole_tokens,
                begun=self.begun,
                first_seconds=self._first_seconds,
                untracked=self.untracked,
                stream_seconds=self._stream_seconds,
                prompt_work=self._prompt_work,
                prompt_seconds=self._prompt_seconds,
            )
        )
        oldest = next(iter(self._waiting), None)
        self._shared.publish(
            self._published._replace(
                streams=self.streams,
                open=self.open,
                last_token_at=self.last_token_at,
                busy_since=self.busy_since,
                waiting_since=oldest.started if oldest else 0.0,
                waiting_work=oldest.work if oldest else 0.0,
                newest_begun=self._newest_begun,
            )
        )
        others = self._others = self._shared.others()
        self.tokens += int(others.tokens)
        self._whole_tokens += int(others.whole_tokens)
        self.begun += int(others.begun)
        self._first_seconds += others.first_seconds
        self.untracked += int(others.untracked)
        self._stream_seconds += others.stream_seconds
        self._prompt_work += int(others.prompt_work)
        self._prompt_seconds += others.prompt_seconds
        self.last_token_at = max(self.last_token_at, others.last_token_at)
        self.busy_since = max(self.busy_since, others.busy_since)
        self._newest_begun = max(self._newest_begun, others.newest_begun)

    def ignore_stream_time(self) -> None:
        """The seconds since the last tick say nothing of this engine; call it after `sync`."""
        self._stream_seconds = 0.0

    def tick(self, now: float) -> None:
        """Close a bucket and look at the newest ones."""
        self._pass(now)
        tokens = self.tokens * self.calibration.tokens_per_event + self._whole_tokens
        has_spoken = tokens > 0
        if has_spoken:
            self.last_token_at = now
        if tokens or self._prompt_work or self.all_streams:
            self._measured_at = now
        elif self.is_warm and now - self._measured_at > FORGET_SECONDS:
            self.reset()
        self._drop_overtaken()
        self._note_best_prefill()
        self._buckets.appendleft(
            _Bucket(tokens, self._stream_seconds, self._prompt_work, self._prompt_seconds)
        )
        self._counted = self.counted
        has_whole = self._whole_tokens > 0
        self.tokens = self._whole_tokens = self.begun = self.untracked = 0
        self._stream_seconds = self._first_seconds = 0.0
        self._prompt_work, self._prompt_seconds = 0, 0.0
        self._measure()
        # A whole answer is measured well by itself.
        self.has_settled = self.has_settled or self.is_settled or has_whole
        if has_spoken:
            self.gap_when_active = self.per_token or 0.0

    def reset(self) -> None:
        """It may be another engine by now: one that has restarted is cold."""
        self.per_token = self.per_prompt_token = self.best_per_prompt_token = None
        self.has_settled = False
        self.calibration.reset()
        self._buckets.clear()

    def _pass(self, now: float) -> None:
        """Count the stream seconds up to now; a clock that went back counts none."""
        self._stream_seconds += self.streams * max(0.0, now - self._at)
        self._at = now

    def _drop_overtaken(self) -> None:
        """A request that later ones overtook waits for something of its own, not in the queue."""
        waiting = self._waiting
        while waiting and (first := next(iter(waiting))).started < self._newest_begun:
            del waiting[first]

    def _note_best_prefill(self) -> None:
        best = self.best_per_prompt_token
        if self._prompt_work:
            measured = self._prompt_seconds / self._prompt_work
            if best is None or measured < best:
                self.best_per_prompt_token = measured
                return
        if best is not None:
            self.best_per_prompt_token = best * BEST_PREFILL_DRIFT

    def _measure(self) -> None:
        tokens, seconds, work, prompt_seconds = 0.0, 0.0, 0, 0.0
        for place, bucket in enumerate(self._buckets):
            if place >= FIRST and tokens >= ENOUGH:
                break
            tokens += bucket.tokens
            seconds += bucket.stream_seconds
            work += bucket.prompt_work
            prompt_seconds += bucket.prompt_seconds
        timed = sum(bucket.stream_seconds > 0 for bucket in islice(self._buckets, FIRST))
        is_prefill = timed == 0 and work > 0
        self.is_settled = is_prefill or (tokens >= ENOUGH and timed == FIRST)
        if tokens:
            if seconds:
                measured = seconds / tokens
                weight = min(1.0, tokens / ENOUGH) if self.per_token is not None else 1.0
                self.per_token = weight * measured + (1 - weight) * (self.per_token or 0.0)
        elif seconds and self.all_streams:  # not one: it takes at least as long as they waited
            self.per_token = max(self.per_token or 0.0, seconds / self.all_streams)
        if work:
            self.per_prompt_token = prompt_seconds / work
