"""How fast an engine really is: seconds per token, from the streams that are relayed.

Counts are exact and kept in buckets of time, so that an outage shows at once and in full. A gap
between tokens is measured for all streams of an engine together: the seconds that its streams
were open, first token to now, over the tokens that came. Nothing is timed per token.
"""

import math
from collections import deque
from typing import NamedTuple, Protocol

from router.core.ledger import Lease

__all__ = ["TICK_SECONDS", "Leg", "Pace", "Shared", "Shown"]

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


WHOLE_TOKENS = 64
"""An answer that is no stream tells of the gap between tokens when it has so many: its prompt and
the way there hardly count then. It must not have waited for a KV cache from elsewhere."""


class _Bucket(NamedTuple):
    tokens: int
    stream_seconds: float
    prompt_work: int
    prompt_seconds: float


class Shown(NamedTuple):
    """What a process shows the others of an endpoint: sums since it began, and what it has now."""

    tokens: float = 0.0
    begun: float = 0.0
    stream_seconds: float = 0.0
    prompt_work: float = 0.0
    prompt_seconds: float = 0.0
    streams: float = 0.0
    open: float = 0.0
    heard_at: float = 0.0

    def plus(self, other: "Shown") -> "Shown":
        """Both together."""
        sums = (one + more for one, more in zip(self, other, strict=True))
        return Shown(*sums)._replace(heard_at=max(self.heard_at, other.heard_at))

    def since(self, before: "Shown") -> "Shown":
        """What was added after `before`; a process that has started anew added nothing yet."""
        added = (max(0.0, now - was) for now, was in zip(self, before, strict=True))
        return Shown(*added)._replace(streams=self.streams, open=self.open, heard_at=self.heard_at)


class Shared(Protocol):
    """Where a process shows what it counted, and finds what the others did."""

    def show(self, shown: Shown) -> None:
        """Show all that has been counted so far."""

    def others(self) -> Shown:
        """What all others have counted since the last time."""


class Pace:
    """One endpoint's speed. `tokens` is counted up by whoever relays them.

    With `shared` it is the speed that all processes of the host see together, from tick to tick.
    """

    __slots__ = (
        "_at",
        "_buckets",
        "_measured_at",
        "_others",
        "_prompt_seconds",
        "_prompt_work",
        "_shared",
        "_shown",
        "_stream_seconds",
        "begun",
        "heard_at",
        "is_stalled",
        "open",
        "per_prompt_token",
        "per_token",
        "spoken_gap",
        "streams",
        "tokens",
    )

    def __init__(self, shared: Shared | None = None) -> None:
        self.tokens = 0
        """Tokens since the last tick."""
        self.begun = 0
        """Streams begun since the last tick."""
        self.streams = 0
        """Streams of this process that have had their first token and not their last."""
        self.open = 0
        """Legs of this process that should say something soon: streams and prefills."""
        self.is_stalled = False
        """Whether it is thought to have stopped, as the fleet judged last."""
        self.heard_at = 0.0
        """When it last gave a token (to a tick), or was first asked for one."""
        self.per_token: float | None = None
        """Seconds between two tokens of one stream; None until there were some."""
        self.spoken_gap = 0.0
        """`per_token` when it spoke last: silence does not count in it."""
        self.per_prompt_token: float | None = None
        """Seconds to a first token per prompt token ahead of it, its own included."""
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
    def all_streams(self) -> int:
        """`streams`, with those of the other processes."""
        return self.streams + int(self._others.streams)

    @property
    def all_open(self) -> int:
        """`open`, with those of the other processes."""
        return self.open + int(self._others.open)

    def ask(self, now: float) -> None:
        """A stream or a prefill was asked for."""
        if self.all_open == 0:
            self.heard_at = now
        self.open += 1

    def begin(self, now: float) -> None:
        """A stream had its first token."""
        self._pass(now)
        self.heard_at = now
        self.begun += 1
        self.streams += 1

    def end(self, now: float, *, was_stream: bool) -> None:
        """What was asked for is over, however it ended; `was_stream`: after its first token."""
        self._pass(now)
        self.open -= 1
        self.streams -= was_stream

    def rejoin(self, now: float) -> None:
        """A stream whose timing was paused counts again; the engine has said nothing by that."""
        self._pass(now)
        self.streams += 1

    def computed(self, tokens: int, seconds: float) -> None:
        """An answer that was no stream took this long to be computed."""
        self.tokens += tokens
        self._stream_seconds += seconds

    def prefilled(self, work: int, seconds: float) -> None:
        """A first token took so long, behind `work` prompt tokens, its own included."""
        self._prompt_work += work + PROMPT_OVERHEAD
        self._prompt_seconds += seconds

    def gather(self, now: float) -> None:
        """Show the others what was counted since the last tick, and count theirs in."""
        if self._shared is None:
            return
        self._pass(now)
        prompts = (self._prompt_work, self._prompt_seconds)
        counted = self._shown.plus(Shown(self.tokens, self.begun, self._stream_seconds, *prompts))
        self._shown = counted._replace(streams=0.0, open=0.0)
        self._shared.show(
            counted._replace(streams=self.streams, open=self.open, heard_at=self.heard_at)
        )
        others = self._others = self._shared.others()
        self.tokens += int(others.tokens)
        self.begun += int(others.begun)
        self._stream_seconds += others.stream_seconds
        self._prompt_work += int(others.prompt_work)
        self._prompt_seconds += others.prompt_seconds
        self.heard_at = max(self.heard_at, others.heard_at)

    def tick(self, now: float) -> None:
        """Close a bucket and look at the newest ones."""
        self._pass(now)
        has_spoken = self.tokens > 0
        if has_spoken:
            self.heard_at = now
        if self.tokens or self._prompt_work or self.all_streams:
            self._measured_at = now
        elif self.is_warm and now - self._measured_at > FORGET_SECONDS:
            self.forget()
        self._buckets.appendleft(
            _Bucket(self.tokens, self._stream_seconds, self._prompt_work, self._prompt_seconds)
        )
        self.tokens = self.begun = 0
        self._stream_seconds = 0.0
        self._prompt_work, self._prompt_seconds = 0, 0.0
        self._measure()
        if has_spoken:
            self.spoken_gap = self.per_token or 0.0

    def forget(self) -> None:
        """It may be another engine by now: one that has restarted is cold."""
        self.per_token = self.per_prompt_token = None
        self._buckets.clear()

    def _pass(self, now: float) -> None:
        """Count the stream seconds up to now; a clock that went back counts none."""
        self._stream_seconds += self.streams * max(0.0, now - self._at)
        self._at = now

    def _measure(self) -> None:
        tokens, seconds, work, prompt_seconds = 0, 0.0, 0, 0.0
        for place, bucket in enumerate(self._buckets):
            if place >= FIRST and tokens >= ENOUGH:
                break
            tokens += bucket.tokens
            seconds += bucket.stream_seconds
            work += bucket.prompt_work
            prompt_seconds += bucket.prompt_seconds
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

    __slots__ = ("_has_begun", "_is_open", "_is_paused", "_lease", "_started", "_work", "pace")

    def __init__(
        self, pace: Pace, lease: Lease | None, work: int, now: float, *, is_heard: bool
    ) -> None:
        """`work`: prompt tokens to compute until its first token.

        `is_heard`: it says something soon, as a stream or a prefill does.
        """
        self.pace = pace
        self._lease = lease
        self._work = work
        self._started = now
        self._has_begun = False
        self._is_paused = False
        self._is_open = is_heard
        if is_heard:
            pace.ask(now)

    def first(self, now: float) -> None:
        """The first token of a stream came."""
        self._answered(now)
        self._has_begun = self._is_open
        if self._is_open and not self._is_paused:
            self.pace.begin(now)

    def whole(self, now: float, tokens: int = 0) -> None:
        """The whole answer came at once; `tokens` of it were generated, as far as is known."""
        self._answered(now)
        if tokens >= WHOLE_TOKENS and self._work:
            self.pace.computed(tokens, max(0.0, now - self._started))

    def end(self, now: float) -> None:
        """It is over; doing it again changes nothing."""
        if self._is_open:
            self.pause(now)
            self._is_open = False

    def _answered(self, now: float) -> None:
        if self._lease is not None:
            self._lease.prefilled()
        if not self._is_open or not self._work:
            return
        self.pace.heard_at = now
        self.pace.prefilled(self._work, max(0.0, now - self._started))

    # While the client does not read, the engine is not heard: neither its silence nor its speed
    # shows. What was asked before its first token tells nothing of prompts any more either.

    def pause(self, now: float) -> None:
        """Count it no longer as open, nor as a stream; doing it again changes nothing."""
        if self._is_open and not self._is_paused:
            self._is_paused = True
            self._work = 0
            self.pace.end(now, was_stream=self._has_begun)

    def resume(self, now: float) -> None:
        """Count it as before; nothing if it is over or was not paused."""
        if self._is_open and self._is_paused:
            self._is_paused = False
            self.pace.ask(now)
            if self._has_begun:
                self.pace.rejoin(now)
