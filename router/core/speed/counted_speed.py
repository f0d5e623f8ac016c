"""An engine's speed from its own counter of generated tokens, for where SSE events do not show it.

Parsers (of tool calls, reasoning, structured output) may hold tokens back for a minute and send
them as one event: meanwhile the engine generates, but its open streams carry no events. The
difference of `vllm:generation_tokens` between two scrapes, and the gauge of running requests, give
the seconds per token of a sequence. They lag by a second or two, so they are used only where the
events disagree with them.
"""

from router.core.speed.leg_counts import EventCounts
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.values import Gauges

__all__ = ["CountedSpeed"]

DECAY = 0.5
"""Factor by which the sums decay per scrape: a speed spans about two seconds."""

LEAST_SEEN = 0.75
"""Share of the tokens generated for open streams that events must show for them to agree. It is
below 1 because the counter is some steps ahead of the events."""

BLIND_SHARE = 0.25
"""If a smaller share of this router's running requests are streams past their first token, and
events do not show what was generated, they do not show the speed."""

RELIABLE_TOKENS = 32.0
"""Tokens from which the comparison is reliable."""

SURE_TOKENS = 8.0
"""Generated tokens without an event that prove that the engine is alive; at least half of all must
be missing too."""

TOKENS_PER_REQUEST = 16.0
"""Fewest tokens per request: with fewer, the time for the prompt dominates."""

DIFFERED_SCRAPES = 2
"""Scrapes in a row in which events and counter disagree, after which the counter is used. One is
not enough: requests that begin at the same moment look like that."""

AGREED_SCRAPES = 8
"""Scrapes in which events and counter agree, after which the events are used again."""

FRESH_WINDOWS = 3.0
"""Age up to which a speed is used, in intervals between the last two scrapes."""


class CountedSpeed:
    """The counted speed of one engine."""

    __slots__ = (
        "_agreed",
        "_at",
        "_before",
        "_counts",
        "_differed",
        "_expected",
        "_generated",
        "_own",
        "_prompts_beside",
        "_seconds",
        "_seen",
        "_sequence_seconds",
        "_starts",
        "_streams",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: the engine was restarted or replaced."""
        self._before: Gauges | None = None
        self._at = self._seconds = 0.0
        self._counts = EventCounts()
        self._streams = self._own = 0
        self._forget()

    def _forget(self) -> None:
        self._agreed, self._differed = AGREED_SCRAPES, 0
        self._sequence_seconds = self._generated = self._expected = self._seen = 0.0
        self._starts = self._prompts_beside = 0.0

    def _note(self, *, agrees: bool) -> None:
        self._agreed = self._agreed + 1 if agrees else self._agreed
        self._differed = 0 if agrees else self._differed + 1
        if self._differed >= DIFFERED_SCRAPES:
            self._agreed = 0

    @property
    def agrees(self) -> bool:
        """Whether the events show all tokens that are generated."""
        return self._agreed >= AGREED_SCRAPES

    def per_token(
        self, now: float, prompt_share: float = 0.0, usual: float | None = None
    ) -> float | None:
        """Seconds between two tokens of a sequence, without the time that prompts took; None where
        the events show it, or where there are too few tokens or no recent scrape.

        `prompt_share`: output tokens that take as long as one prompt token computed beside them.
        `usual`: seconds per token of the other engines. An engine that is too slow to generate
        enough tokens is measured once the others would have generated them.
        """
        generated, seconds = self._generated, self._sequence_seconds
        least = max(RELIABLE_TOKENS, TOKENS_PER_REQUEST * self._starts)
        if (
            self.agrees
            or (generated < least and (usual is None or seconds < least * usual))
            or now - self._at > FRESH_WINDOWS * self._seconds
        ):
            return None
        return seconds / max(1.0, generated + prompt_share * self._prompts_beside) or None

    def observe(self, gauges: Gauges | None, speed: SpeedEstimator, own: int, now: float) -> bool:
        """Learn from a scrape. `gauges`: None if it failed; `own`: this router's requests there.

        Returns whether the engine has generated many tokens of this router's requests that no event
        has shown: then it is alive although its streams are silent.
        """
        before, self._before = self._before, gauges
        counts, self._counts = self._counts, speed.counted
        streams = 0.5 * (self._streams + speed.all_streams)
        requests = 0.5 * (self._own + own)
        self._streams, self._own = speed.all_streams, own
        self._seconds, self._at = now - self._at, now
        if (
            before is None
            or gauges is None
            or before.generated is None
            or gauges.generated is None
            or before.generated > gauges.generated
        ):
            self._forget()
            return False
        running = 0.5 * ((before.running or 0) + (gauges.running or 0))
        generated = gauges.generated - before.generated
        begun = self._counts.begun - counts.begun
        computed = self._counts.computed - counts.computed
        events = self._counts.events - counts.events
        seen = events * speed.calibration.tokens_per_event + begun
        expected = generated * min(1.0, streams / running) if running else 0.0
        self._sequence_seconds = DECAY * self._sequence_seconds + running * self._seconds
        self._generated = DECAY * self._generated + generated
        self._prompts_beside = DECAY * self._prompts_beside + running * computed
        self._expected = DECAY * self._expected + expected
        self._seen = DECAY * self._seen + seen
        self._starts = DECAY * self._starts + begun + (self._counts.untracked - counts.untracked)
        own_generated = generated * min(1.0, requests / running) if running else 0.0
        # Nothing was generated: it may be computing the prompts of open streams.
        is_hidden = seen < LEAST_SEEN * own_generated if generated else not speed.all_open
        is_blind = is_hidden and streams < BLIND_SHARE * min(running, requests)
        # Streams that began and ended since the last scrape are in no gauge.
        is_shown = seen >= max(RELIABLE_TOKENS, LEAST_SEEN * generated)
        if is_blind or self._expected >= RELIABLE_TOKENS:
            self._note(agrees=not is_blind and self._seen >= LEAST_SEEN * self._expected)
        elif is_shown:
            self._note(agrees=True)
        return own_generated - seen > max(SURE_TOKENS, 0.5 * own_generated)
