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

from router.core.ledger import Lease

__all__ = ["TICK_SECONDS", "Counted", "Leg", "Pace", "Shared", "Shown"]

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


CALIBRATION_TOKENS = 16
"""Tokens that tell how many an event carries; before that it is one."""

MAX_TOKENS_PER_EVENT = 64.0
"""More is no sane --stream-interval, but an engine that counts wrong."""

CALIBRATION_MEMORY = 4096
"""Events after which what was learned earlier counts half."""

BEST_PREFILL_DRIFT = 1.0025
"""A tick lets the best prefill speed fade by so much: by half in 70 s."""

WHOLE_TOKENS = 32
"""An answer that is no stream tells of the gap between tokens when it has so many: its prompt and
the way there hardly count then. It must not have waited for a KV cache from elsewhere."""


class _Bucket(NamedTuple):
    tokens: float
    stream_seconds: float
    prompt_work: int
    prompt_seconds: float


class Counted(NamedTuple):
    """What was counted of an endpoint since it joined."""

    events: int = 0
    begun: int = 0
    unheard: int = 0


class Shown(NamedTuple):
    """What a process shows the others of an endpoint: sums since it began, and what it has now."""

    tokens: float = 0.0
    """Events of streams behind their first tokens."""
    whole_tokens: float = 0.0
    begun: float = 0.0
    first_seconds: float = 0.0
    unheard: float = 0.0
    stream_seconds: float = 0.0
    prompt_work: float = 0.0
    prompt_seconds: float = 0.0
    streams: float = 0.0
    open: float = 0.0
    heard_at: float = 0.0
    asked_at: float = 0.0
    waiting_since: float = 0.0
    """0: none waits."""
    waiting_work: float = 0.0

    def plus(self, other: "Shown") -> "Shown":
        """Both together."""
        sums = (one + more for one, more in zip(self, other, strict=True))
        return Shown(*sums).with_moments_of(self, other)

    def since(self, before: "Shown") -> "Shown":
        """What was added after `before`; a process that has started anew added nothing yet."""
        added = (max(0.0, now - was) for now, was in zip(self, before, strict=True))
        return (
            Shown(*added)
            ._replace(streams=self.streams, open=self.open)
            .with_moments_of(self, NOTHING)
        )

    def with_moments_of(self, one: "Shown", other: "Shown") -> "Shown":
        """This, with the moments of two others: the latest ones, and the longest wait."""
        waits = [shown for shown in (one, other) if shown.waiting_since]
        longest = min(waits, key=lambda shown: shown.waiting_since, default=NOTHING)
        return self._replace(
            heard_at=max(one.heard_at, other.heard_at),
            asked_at=max(one.asked_at, other.asked_at),
            waiting_since=longest.waiting_since,
            waiting_work=longest.waiting_work,
        )


NOTHING = Shown()


class Shared(Protocol):
    """Where a process shows what it counted, and finds what the others did."""

    def show(self, shown: Shown) -> None:
        """Show all that has been counted so far."""

    def others(self) -> Shown:
        """What all others have counted since the last time."""


class Pace:
    """One endpoint's speed. `tokens` is counted up, event by event, by whoever relays them.

    With `shared` it is the speed that all processes of the host see together, from tick to tick.
    """

    __slots__ = (
        "_at",
        "_buckets",
        "_calibrated_by_usage",
        "_counted",
        "_first_seconds",
        "_known_events",
        "_known_tokens",
        "_measured_at",
        "_newest_begun",
        "_others",
        "_prompt_seconds",
        "_prompt_work",
        "_shared",
        "_shown",
        "_stream_seconds",
        "_waiting",
        "_whole_tokens",
        "asked_at",
        "begun",
        "best_per_prompt_token",
        "has_settled",
        "heard_at",
        "is_settled",
        "is_stalled",
        "open",
        "per_prompt_token",
        "per_token",
        "spoken_gap",
        "streams",
        "tokens",
        "tokens_per_event",
        "unheard",
    )

    def __init__(self, shared: Shared | None = None) -> None:
        self.tokens = 0
        """Events since the last tick."""
        self.tokens_per_event = 1.0
        self.begun = 0
        """Streams begun since the last tick."""
        self.unheard = 0
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
        self.heard_at = 0.0
        """When it last gave a token (to a tick)."""
        self.asked_at = 0.0
        """When it was last asked for one while nothing was open there."""
        self.per_token: float | None = None
        """Seconds between two tokens of one stream; None until there were some."""
        self.spoken_gap = 0.0
        """`per_token` when it spoke last: silence does not count in it."""
        self.per_prompt_token: float | None = None
        """Seconds to a first token per prompt token ahead of it, its own included."""
        self.best_per_prompt_token: float | None = None
        """The same when nothing queued, as far as that was seen."""
        self._first_seconds = 0.0
        self._whole_tokens = 0
        self._waiting: dict[Leg, None] = {}
        """Legs without a first token, in the order in which they were asked."""
        self._newest_begun = 0.0
        """When the youngest of those that have had a first token was asked."""
        self._known_tokens = self._known_events = 0.0
        self._calibrated_by_usage = False
        self._counted = Counted()
        self._stream_seconds = 0.0
        self._prompt_work = 0
        self._prompt_seconds = 0.0
        self._shared = shared
        self._shown = self._others = Shown()
        self._at = 0.0
        self._measured_at = math.inf
        self._buckets: deque[_Bucket] = deque(maxlen=KEPT)

    @property
    def is_warm(self) -> bool:
        """Whether it has ever been heard."""
        return self.per_token is not None or self.per_prompt_token is not None

    @property
    def counted(self) -> Counted:
        """Events, streams and unheard legs up to now; those of other processes up to a tick ago."""
        events, begun, unheard = self._counted
        return Counted(events + self.tokens, begun + self.begun, unheard + self.unheard)

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
        others = self._others
        if mine is not None and not 0 < others.waiting_since < mine.started:
            return mine.started, mine.work
        return (others.waiting_since, others.waiting_work) if others.waiting_since else None

    @property
    def all_open(self) -> int:
        """`open`, with those of the other processes."""
        return self.open + int(self._others.open)

    def ask(self, leg: "Leg", now: float) -> None:
        """A stream or a prefill was asked for."""
        if self.all_open == 0:
            self.asked_at = now
        self.open += leg.sequences
        self._waiting[leg] = None

    def answered(self, leg: "Leg", now: float) -> None:
        """Its first token came, or its whole answer."""
        self.heard_at = now
        self._waiting.pop(leg, None)
        self._newest_begun = max(self._newest_begun, leg.started)
        if leg.work:
            self._prompt_work += leg.work + PROMPT_OVERHEAD
            self._prompt_seconds += max(0.0, now - leg.started)

    def begin(self, leg: "Leg", now: float) -> None:
        """A stream goes on behind its first token."""
        self._pass(now)
        self.begun += 1
        self._first_seconds += max(0.0, now - leg.started)
        self.streams += leg.sequences

    def end(self, leg: "Leg", now: float, *, was_stream: bool) -> None:
        """What was asked for is over, however it ended; `was_stream`: after its first token."""
        self._pass(now)
        self._waiting.pop(leg, None)
        self.open -= leg.sequences
        if was_stream:
            self.streams -= leg.sequences

    def rejoin(self, leg: "Leg", now: float) -> None:
        """A stream whose timing was paused counts again; the engine has said nothing by that."""
        self._pass(now)
        if self.all_open == 0:
            self.asked_at = now
        self.open += leg.sequences
        self.streams += leg.sequences

    def computed(self, tokens: int, seconds: float) -> None:
        """An answer that was no stream took this long to be computed."""
        self._whole_tokens += tokens
        self._stream_seconds += seconds

    def calibrate(self, tokens: float, events: float, *, by_usage: bool) -> None:
        """So many tokens came in so many events.

        `by_usage`: the engine said so of a single answer. Its counter of all generated tokens
        serves until then; it also counts what others asked for.
        """
        if by_usage and not self._calibrated_by_usage:
            self._calibrated_by_usage = True
            self._known_tokens = self._known_events = 0.0
        if events <= 0 or tokens <= 0 or by_usage is not self._calibrated_by_usage:
            return
        self._known_tokens += tokens
        self._known_events += events
        if self._known_tokens >= CALIBRATION_TOKENS:
            measured = self._known_tokens / self._known_events
            self.tokens_per_event = min(max(measured, 1.0), MAX_TOKENS_PER_EVENT)
        if self._known_events > CALIBRATION_MEMORY:
            self._known_tokens /= 2
            self._known_events /= 2

    def gather(self, now: float) -> None:
        """Show the others what was counted since the last tick, and count theirs in."""
        if self._shared is None:
            return
        self._pass(now)
        self._shown = self._shown.plus(
            Shown(
                tokens=self.tokens,
                whole_tokens=self._whole_tokens,
                begun=self.begun,
                first_seconds=self._first_seconds,
                unheard=self.unheard,
                stream_seconds=self._stream_seconds,
                prompt_work=self._prompt_work,
                prompt_seconds=self._prompt_seconds,
            )
        )
        oldest = next(iter(self._waiting), None)
        self._shared.show(
            self._shown._replace(
                streams=self.streams,
                open=self.open,
                heard_at=self.heard_at,
                asked_at=self.asked_at,
                waiting_since=oldest.started if oldest else 0.0,
                waiting_work=oldest.work if oldest else 0.0,
            )
        )
        others = self._others = self._shared.others()
        self.tokens += int(others.tokens)
        self._whole_tokens += int(others.whole_tokens)
        self.begun += int(others.begun)
        self._first_seconds += others.first_seconds
        self.unheard += int(others.unheard)
        self._stream_seconds += others.stream_seconds
        self._prompt_work += int(others.prompt_work)
        self._prompt_seconds += others.prompt_seconds
        self.heard_at = max(self.heard_at, others.heard_at)
        self.asked_at = max(self.asked_at, others.asked_at)

    def tick(self, now: float) -> None:
        """Close a bucket and look at the newest ones."""
        self._pass(now)
        tokens = self.tokens * self.tokens_per_event + self._whole_tokens
        has_spoken = tokens > 0
        if has_spoken:
            self.heard_at = now
        if tokens or self._prompt_work or self.all_streams:
            self._measured_at = now
        elif self.is_warm and now - self._measured_at > FORGET_SECONDS:
            self.forget()
        self._drop_overtaken()
        self._note_best_prefill()
        self._buckets.appendleft(
            _Bucket(tokens, self._stream_seconds, self._prompt_work, self._prompt_seconds)
        )
        self._counted = self.counted
        has_whole = self._whole_tokens > 0
        self.tokens = self._whole_tokens = self.begun = self.unheard = 0
        self._stream_seconds = self._first_seconds = 0.0
        self._prompt_work, self._prompt_seconds = 0, 0.0
        self._measure()
        # A whole answer is measured well by itself.
        self.has_settled = self.has_settled or self.is_settled or has_whole
        if has_spoken:
            self.spoken_gap = self.per_token or 0.0

    def forget(self) -> None:
        """It may be another engine by now: one that has restarted is cold."""
        self.per_token = self.per_prompt_token = self.best_per_prompt_token = None
        self.has_settled = False
        self.tokens_per_event = 1.0
        self._known_tokens = self._known_events = 0.0
        self._calibrated_by_usage = False
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


class Leg:
    """One attempt at an engine, timed for its pace: to the first token, and on to the end."""

    __slots__ = (
        "_has_begun",
        "_is_open",
        "_is_paused",
        "_lease",
        "pace",
        "sequences",
        "started",
        "work",
    )

    def __init__(
        self,
        pace: Pace,
        lease: Lease | None,
        work: int,
        now: float,
        *,
        is_heard: bool,
        sequences: int = 1,
    ) -> None:
        """`work`: prompt tokens to compute until its first token.

        `is_heard`: it says something soon, as a stream or a prefill does. `sequences`: answers
        that were asked for at once (the request's `n`).
        """
        self.pace = pace
        self.work = work
        self.started = now
        self.sequences = sequences
        self._lease = lease
        self._has_begun = False
        self._is_paused = False
        self._is_open = is_heard
        if is_heard:
            pace.ask(self, now)
        else:
            pace.unheard += 1

    def first(self, now: float) -> None:
        """The first token of a stream came."""
        self._answered(now)
        self._has_begun = self._is_open
        if self._is_open and not self._is_paused:
            self.pace.begin(self, now)

    def whole(self, now: float, tokens: int = 0) -> None:
        """The whole answer came at once; `tokens` of it were generated, as far as is known."""
        self._answered(now)
        if tokens >= WHOLE_TOKENS * self.sequences and self.work:
            self.pace.computed(tokens, self.sequences * max(0.0, now - self.started))

    def used(self, tokens: int, events: int) -> None:
        """The stream is over: the engine says that it had so many tokens, and it was seen as so
        many events. Each sequence's first token came with an event of its own."""
        first = self.sequences
        self.pace.calibrate(tokens - first, events - first, by_usage=True)

    def end(self, now: float) -> None:
        """It is over; doing it again changes nothing."""
        if self._is_open:
            self.pause(now)
            self._is_open = False

    def _answered(self, now: float) -> None:
        if self._lease is not None:
            self._lease.prefilled()
        if self._is_open and not self._is_paused:
            self.pace.answered(self, now)

    # While the client does not read, the engine is not heard: neither its silence nor its speed
    # shows. What was paused before its first token tells nothing of prompts any more either.

    def pause(self, now: float) -> None:
        """Count it no longer as open, nor as a stream; doing it again changes nothing."""
        if self._is_open and not self._is_paused:
            self._is_paused = True
            self.work = 0
            self.pace.end(self, now, was_stream=self._has_begun)

    def resume(self, now: float) -> None:
        """Count it again; nothing if it is over or was not paused."""
        if not self._is_open or not self._is_paused:
            return
        self._is_paused = False
        if self._has_begun:
            self.pace.rejoin(self, now)
        else:
            self.started = now  # as if it were asked for only now: those before it are ahead
            self.pace.ask(self, now)
