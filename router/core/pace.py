"""How fast an engine really is: seconds per token, from the streams that are relayed.

Counts are exact and kept in buckets of time, so that an outage shows at once and in full. A gap
between tokens is measured for all streams of an engine together: the seconds that its streams
were open, first token to now, over the tokens that came. Nothing is timed per token.
"""

import math
from collections import deque
from typing import NamedTuple

from router.core.ledger import Lease

__all__ = ["TICK_SECONDS", "Leg", "Pace"]

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


class Pace:
    """One endpoint's speed. `tokens` is counted up by whoever relays them."""

    __slots__ = (
        "_at",
        "_buckets",
        "_measured_at",
        "_prompt_seconds",
        "_prompt_work",
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

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens since the last tick."""
        self.begun = 0
        """Streams begun since the last tick."""
        self.streams = 0
        """Streams that have had their first token and not their last."""
        self.open = 0
        """Legs there that should say something soon: streams and prefills."""
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
        self._at = 0.0
        self._measured_at = math.inf
        self._buckets: deque[_Bucket] = deque(maxlen=KEPT)

    @property
    def is_warm(self) -> bool:
        """Whether it has ever been heard."""
        return self.per_token is not None or self.per_prompt_token is not None

    def ask(self, now: float) -> None:
        """A stream or a prefill was asked for."""
        if self.open == 0:
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

    def computed(self, tokens: int, seconds: float) -> None:
        """An answer that was no stream took this long to be computed."""
        self.tokens += tokens
        self._stream_seconds += seconds

    def prefilled(self, work: int, seconds: float) -> None:
        """A first token took so long, behind `work` prompt tokens, its own included."""
        self._prompt_work += work + PROMPT_OVERHEAD
        self._prompt_seconds += seconds

    def tick(self, now: float) -> None:
        """Close a bucket and look at the newest ones."""
        self._pass(now)
        has_spoken = self.tokens > 0
        if has_spoken:
            self.heard_at = now
        if self.tokens or self._prompt_work or self.streams:
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
        elif seconds and self.streams:  # not one: it takes at least as long as they have waited
            self.per_token = max(self.per_token or 0.0, seconds / self.streams)
        if work:
            self.per_prompt_token = prompt_seconds / work


class Leg:
    """One attempt at an engine, timed for its pace: to the first token, and on to the end."""

    __slots__ = ("_has_begun", "_is_open", "_lease", "_started", "_work", "pace")

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
        self._is_open = is_heard
        if is_heard:
            pace.ask(now)

    def first(self, now: float) -> None:
        """The first token of a stream came."""
        self._answered(now)
        self._has_begun = self._is_open
        if self._is_open:
            self.pace.begin(now)

    def whole(self, now: float, tokens: int = 0) -> None:
        """The whole answer came at once; `tokens` of it were generated, as far as is known."""
        self._answered(now)
        if tokens >= WHOLE_TOKENS and self._work:
            self.pace.computed(tokens, max(0.0, now - self._started))

    def end(self, now: float) -> None:
        """It is over; doing it again changes nothing."""
        if self._is_open:
            self._is_open = False
            self.pace.end(now, was_stream=self._has_begun)

    def _answered(self, now: float) -> None:
        if self._lease is not None:
            self._lease.prefilled()
        if not self._is_open or not self._work:
            return
        self.pace.heard_at = now
        self.pace.prefilled(self._work, max(0.0, now - self._started))
