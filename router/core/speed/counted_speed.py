"""An engine's speed from its own counter of generated tokens, for where SSE events do not show it.

Parsers (of tool calls, reasoning, structured output) may hold tokens back for a minute and send
them as one event: meanwhile the engine generates, but its open streams carry no events. The
difference of `vllm:generation_tokens` between two scrapes, and the gauge of running requests, give
the seconds per token of a sequence. They lag by a second or two, so they are used only where the
events disagree with them. Where both count the same tokens, they show how many an event carries.
"""

from router.core.speed.leg_counts import LegCounts
from router.core.speed.token_counts import EventCounts
from router.core.speed.tuning import (
    AGREED_SCRAPES,
    BLIND_SHARE,
    CALIBRATION_EVENTS,
    COUNTER_DECAY,
    DIFFERED_SCRAPES,
    FRESH_WINDOWS,
    LEAST_SEEN,
    RELIABLE_COUNT,
    SURE_TOKENS,
    TOKENS_PER_REQUEST,
)
from router.core.values import Gauges

__all__ = ["CountedSpeed"]


class CountedSpeed:
    """The counted speed of one engine."""

    __slots__ = (
        "_agreed",
        "_at",
        "_before",
        "_calibrated",
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
        self._calibrated: tuple[int, EventCounts] | None = None
        """The counter at an earlier scrape, with the events counted here up to then; None if it
        counted other tokens too."""
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
        least = max(RELIABLE_COUNT, TOKENS_PER_REQUEST * self._starts)
        if (
            self.agrees
            or (generated < least and (usual is None or seconds < least * usual))
            or now - self._at > FRESH_WINDOWS * self._seconds
        ):
            return None
        return seconds / max(1.0, generated + prompt_share * self._prompts_beside) or None

    def observe(self, gauges: Gauges | None, counts: LegCounts, own: int, now: float) -> bool:
        """Learn from a scrape. `gauges`: None if it failed; `own`: this router's requests there.

        Returns whether the engine has generated many tokens of this router's requests that no event
        has shown: then it is alive although its streams are silent.
        """
        before, self._before = self._before, gauges
        last, self._counts = self._counts, counts.counted
        streams = 0.5 * (self._streams + counts.all_streams)
        requests = 0.5 * (self._own + own)
        self._streams, self._own = counts.all_streams, own
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
        begun = self._counts.begun - last.begun
        computed = self._counts.computed - last.computed
        events = self._counts.events - last.events
        seen = events * counts.calibration.tokens_per_event + begun
        expected = generated * min(1.0, streams / running) if running else 0.0
        self._sequence_seconds = COUNTER_DECAY * self._sequence_seconds + running * self._seconds
        self._generated = COUNTER_DECAY * self._generated + generated
        self._prompts_beside = COUNTER_DECAY * self._prompts_beside + running * computed
        self._expected = COUNTER_DECAY * self._expected + expected
        self._seen = COUNTER_DECAY * self._seen + seen
        self._starts = (
            COUNTER_DECAY * self._starts + begun + (self._counts.untracked - last.untracked)
        )
        own_generated = generated * min(1.0, requests / running) if running else 0.0
        # Nothing was generated: it may be computing the prompts of open streams.
        is_hidden = seen < LEAST_SEEN * own_generated if generated else not counts.all_open
        is_blind = is_hidden and streams < BLIND_SHARE * min(running, requests)
        # Streams that began and ended since the last scrape are in no gauge.
        is_shown = seen >= max(RELIABLE_COUNT, LEAST_SEEN * generated)
        if is_blind or self._expected >= RELIABLE_COUNT:
            self._note(agrees=not is_blind and self._seen >= LEAST_SEEN * self._expected)
        elif is_shown:
            self._note(agrees=True)
        return own_generated - seen > max(SURE_TOKENS, 0.5 * own_generated)

    def calibrate(self, gauges: Gauges, counts: LegCounts, *, others: int, in_flight: int) -> None:
        """Learn tokens per event from the counter, between two scrapes in which the engine
        generated only for this router's streams. `others`: other clients' requests; `in_flight`:
        this router's, with its siblings'."""
        before, generated = self._calibrated, gauges.generated
        self._calibrated = None
        # Tokens of unary answers, and of streams whose clients do not read, are not counted here.
        if generated is None or others or in_flight > counts.all_open:
            return
        now = counts.counted
        self._calibrated = generated, now
        if before is None or now.whole != before[1].whole:
            return
        events = now.events - before[1].events
        if events < CALIBRATION_EVENTS:
            self._calibrated = before  # with few streams it takes several scrapes
            return
        tokens = generated - before[0] - (now.begun - before[1].begun)
        counts.calibration.learn(tokens, events, by_usage=False)
