"""Estimates an engine's speed, in seconds per token, from the streams that are relayed.

The time per token is measured for all sequences of an engine together: the seconds that they were
open after their first token, divided by the tokens that came, in buckets of 0.25 s. So nothing is
timed per token, and an outage shows at once.

The relay counts stream events. How many tokens an event carries (`--stream-interval`, speculative
decoding, parsers that hold tokens back) is learned per engine (`calibration.py`). A request for
`n` answers counts as `n` sequences, less those that have ended.
"""

import math
from typing import NamedTuple, Protocol

from router.core.speed.answer_times import Answers, AnswerTimes
from router.core.speed.calibration import Calibration
from router.core.speed.interference import Interference
from router.core.speed.pauses import Pauses
from router.core.speed.prompt_costs import LineFit, PromptCosts
from router.core.speed.speed_buckets import MIN_BUCKETS, RELIABLE_TOKENS, Bucket, SpeedBuckets
from router.core.speed.speed_totals import SharedTotals, SpeedTotals

__all__ = ["TICK_SECONDS", "EventCounts", "SpeedEstimator", "TimedLeg"]

TICK_SECONDS = 0.25
"""Length of one bucket, and seconds between ticks."""

FORGET_SECONDS = 60.0
"""Estimates expire after this long without measurements; otherwise an engine that was slow once
might never get requests again."""

SILENT_SECONDS = 1.0
"""Shortest silence after a request that counts as a measurement. Probes that are refused at once
measure nothing."""

PROMPT_OVERHEAD = 64
"""Fixed cost of a prefill, in prompt tokens, until it is measured."""

UNSEEN_PREFILL_FACTOR = 2.0
"""Multiple of the expected time to first token after which a unary request's prompt counts as
computed: its first token is not seen, and the answer may take a hundred times as long."""

USUAL_PREFILL_SECONDS = 0.0001
"""Seconds per prompt token to assume until an engine has streamed an answer to a prompt that it
computed: what a dense 70B model takes on four H100."""

BEST_PREFILL_DRIFT = 1.0025
"""Factor per tick by which the best prefill time grows: it doubles in 70 s."""


class EventCounts(NamedTuple):
    """Counts of an endpoint since it joined."""

    events: int = 0
    begun: int = 0
    untracked: int = 0
    whole_tokens: int = 0
    """Tokens of unary answers and of probes."""
    computed: float = 0.0
    """Prompt tokens that it has computed."""

    @property
    def whole(self) -> tuple[int, int]:
        """Changes when the engine has generated tokens that are not stream events."""
        return self.untracked, self.whole_tokens


class TimedLeg(Protocol):
    """A leg, as `router.core.fleet.leg_timer.LegTimer` times it."""

    started: float
    work: int
    sequences: int
    is_held: bool
    """Whether the engine holds its first token back after its prompt was computed."""

    @property
    def pending(self) -> int:
        """Its prompt tokens while they are still to be computed on this engine, else 0."""

    def prompt_computed(self) -> None:
        """Its prompt is considered computed: its tokens are no longer pending."""


class SpeedEstimator:
    """One endpoint's speed. The relay adds to `tokens`, event by event.

    With `shared`, the measurements of all worker processes are combined at each tick.
    """

    __slots__ = (
        "_ahead",
        "_at",
        "_computing_since",
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
        "_ticked_at",
        "_waiting",
        "_whole_tokens",
        "answers",
        "begun",
        "best_per_prompt_token",
        "buckets",
        "busy_since",
        "calibration",
        "computed",
        "costs",
        "gap_when_active",
        "interference",
        "is_reliable",
        "is_stalled",
        "is_warm",
        "last_per_prompt_token",
        "last_token_at",
        "open",
        "pauses",
        "per_prompt_token",
        "per_token",
        "prompt_overhead",
        "prompt_seconds",
        "prompt_share",
        "prompts",
        "streams",
        "surplus",
        "tokens",
        "unary",
        "untracked",
        "was_reliable",
    )

    def __init__(self, shared: SharedTotals | None = None) -> None:
        self.tokens = 0
        """Events since the last tick."""
        self.begun = 0
        """Streams begun since the last tick."""
        self.untracked = 0
        """Unary legs since the last tick, whose tokens cannot be counted as they are generated."""
        self.computed = 0
        """Prompt tokens that the engine has computed since the last tick, as estimated."""
        self.unary: dict[TimedLeg, None] = {}
        """Open legs whose first token is not seen, oldest first."""
        self.streams = 0
        """Sequences of this process between their first token and their last."""
        self.surplus = 0
        """How many of `streams` are not the first one of their request: they may still wait in the
        engine."""
        self.open = 0
        """Sequences of this process from which tokens are expected: streams and prefills."""
        self.is_reliable = self.was_reliable = False
        """Whether the estimate is reliable now, or has been since the engine joined."""
        self.is_warm = False
        """Whether it has produced any token since it joined."""
        self.is_stalled = False
        """Whether the pool monitor considers it stalled."""
        self.last_token_at = 0.0
        """When it last produced a token, to the tick."""
        self.busy_since = 0.0
        """When it last got a request while nothing was open there."""
        self.per_token: float | None = None
        """Seconds between two tokens of one stream, less the time for prompts that were computed
        meanwhile; None if not known."""
        self.gap_when_active = 0.0
        """`per_token` at the last tick with tokens, so without any stall."""
        self.per_prompt_token: float | None = None
        """Seconds to the first token per prompt token to compute before it, its own included."""
        self.last_per_prompt_token = 0.0
        """The last measured `per_prompt_token`, even if it has expired."""
        self.best_per_prompt_token: float | None = None
        """The lowest recent `per_prompt_token`: the prefill speed without queueing."""
        self._first_seconds = 0.0
        self._whole_tokens = 0
        self._waiting: dict[TimedLeg, None] = {}
        """Legs without a first token, oldest first."""
        self._newest_begun = 0.0
        """When the newest leg that has had its first token was sent."""
        self.calibration = Calibration()
        self.costs: PromptCosts | None = None
        """How long prompts take there; None where no part of the router uses it."""
        self.prompts: LineFit | None = None
        """Seconds to the first token by prompt tokens, of a prefill engine; None for others."""
        self.prompt_overhead = PROMPT_OVERHEAD
        """Fixed cost of a prefill, in prompt tokens; the pool's value."""
        self.interference = Interference()
        """How much prompts delayed the streams beside them."""
        self.prompt_share = 0.0
        """Tokens of a stream that take as long as one prompt token beside it; the pool's value."""
        self.prompt_seconds = 0.0
        """Seconds to compute one prompt token; the pool's value, 0 if not known."""
        self.buckets = SpeedBuckets()
        """Its measurements in the last ticks."""
        self.pauses = Pauses()
        """Its pauses, which do not count as slowness."""
        self._ahead = 0.0
        """Tokens of an unfinished prompt that have already been counted as computed."""
        self._computing_since = 0.0
        """When a prompt was last completed, to the tick."""
        self.answers = AnswerTimes()
        """Durations of short unary answers."""
        self._counted = EventCounts()
        self._stream_seconds = 0.0
        self._prompt_work = 0
        self._prompt_seconds = 0.0
        self._shared = shared
        self._published = self._others = SpeedTotals()
        self._at = self._ticked_at = 0.0
        self._measured_at = math.inf

    @property
    def counted(self) -> EventCounts:
        """Counts since the engine joined; other processes' up to the last tick."""
        before = self._counted
        return EventCounts(
            before.events + self.tokens,
            before.begun + self.begun,
            before.untracked + self.untracked,
            before.whole_tokens + self._whole_tokens,
            before.computed + self.computed,
        )

    @property
    def all_streams(self) -> int:
        """`streams`, with those of the other processes."""
        return self.streams + int(self._others.streams)

    @property
    def sure_streams(self) -> int:
        """Sequences that certainly run, with those of the other processes."""
        return self.all_streams - self.surplus - int(self._others.surplus)

    @property
    def first_token_seconds(self) -> float | None:
        """The mean time to first token of the streams begun since the last tick."""
        return self._first_seconds / self.begun if self.begun else None

    @property
    def oldest_waiting(self) -> tuple[float, float] | None:
        """When the longest-waiting request was sent, and its pending prompt tokens then.

        Requests overtaken by a later one do not count. None when none waits.
        """
        mine = next(iter(self._waiting), None)
        since, work = self._others.waiting_since, self._others.waiting_work
        if since < self._newest_begun:  # none waits there, or it was overtaken here
            since = 0.0
        if mine is not None and not 0 < since < mine.started:
            return mine.started, mine.work
        return (since, work) if since else None

    @property
    def all_open(self) -> int:
        """`open`, with those of the other processes."""
        return self.open + int(self._others.open)

    def silence(self, now: float) -> float:
        """Seconds without any token while requests are open there; 0 if none is open."""
        return now - max(self.last_token_at, self.busy_since) if self.all_open else 0.0

    def on_request(self, leg: TimedLeg, now: float) -> None:
        """A stream or a prefill was sent."""
        if self.all_open == 0:
            self.busy_since = now
        self.open += leg.sequences
        self._waiting[leg] = None

    def on_first_token(self, leg: TimedLeg, now: float) -> None:
        """The leg's first token arrived, or its whole answer."""
        self.last_token_at = now
        self._waiting.pop(leg, None)
        # Not `max`, here and below: it costs as much as calling a Python function of some lines.
        if leg.started > self._newest_begun:
            self._newest_begun = leg.started
        if leg.work and not leg.is_held:
            seconds = now - leg.started if now > leg.started else 0.0
            self._prompt_work += leg.work + self.prompt_overhead
            self._prompt_seconds += seconds
            if self.prompts is not None:
                self.prompts.add(float(leg.work), seconds)

    def on_stream_start(self, leg: TimedLeg, now: float) -> None:
        """The leg is a stream and has had its first token."""
        self._pass(now)
        self.begun += 1
        if now > leg.started and not leg.is_held:
            self._first_seconds += now - leg.started
        self._run(leg.sequences)

    def on_end(self, leg: TimedLeg, now: float, *, was_stream: bool) -> None:
        """The leg is over, however it ended; `was_stream`: after its first token."""
        self._pass(now)
        self._waiting.pop(leg, None)
        self.open -= leg.sequences
        if was_stream:
            self._run(-leg.sequences)

    def on_sequences_end(self, count: int, now: float) -> None:
        """`count` sequences of a stream are complete; its others go on."""
        self._pass(now)
        self.open -= count
        self.streams -= count
        self.surplus -= count

    def on_resume(self, leg: TimedLeg, now: float) -> None:
        """A paused stream counts again. That is not evidence that the engine is alive."""
        self._pass(now)
        if self.all_open == 0:
            self.busy_since = now
        self.open += leg.sequences
        self._run(leg.sequences)

    def _run(self, sequences: int) -> None:
        """Add `sequences` of one leg to those that run; a negative number removes them."""
        self.streams += sequences
        self.surplus += sequences - 1 if sequences > 0 else sequences + 1

    def on_probe_end(self, tokens: int) -> None:
        """A probe's stream has ended, `tokens` after its first one. They are counted as tokens, not
        as events: tokens per event differ between so short a stream and users' streams."""
        self._whole_tokens += tokens

    def on_unary_answer(self, tokens: int, seconds: float) -> None:
        """A unary answer of `tokens` took `seconds` of sequence time."""
        self._whole_tokens += tokens
        self._stream_seconds += seconds

    def sync(self, now: float) -> None:
        """Publish this process's counts since the last tick, and add the others'."""
        self._pass(now)
        if self._shared is None:
            return
        answers = self.answers.new
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
                answers=answers.number,
                answer_work=answers.work,
                answer_seconds=answers.seconds,
                answer_squares=answers.squares,
                computed_tokens=self.computed,
            )
        )
        oldest = next(iter(self._waiting), None)
        self._shared.publish(
            self._published._replace(
                streams=self.streams,
                surplus=self.surplus,
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
        self.answers.add_others(
            Answers(
                others.answers, others.answer_work, others.answer_seconds, others.answer_squares
            )
        )
        self.last_token_at = max(self.last_token_at, others.last_token_at)
        self.busy_since = max(self.busy_since, others.busy_since)
        self._newest_begun = max(self._newest_begun, others.newest_begun)
        self.computed += int(others.computed_tokens)

    def settle_prompts(self, per_prompt_token: float | None, now: float) -> None:
        """Mark the prompts of unary legs as computed once they should be. `per_prompt_token`: the
        pool's seconds per prompt token, used where this engine's is not known; None if unknown."""
        seconds = self.per_prompt_token or per_prompt_token or USUAL_PREFILL_SECONDS
        while self.unary:
            leg = next(iter(self.unary))
            if now - leg.started < UNSEEN_PREFILL_FACTOR * seconds * leg.work:
                return
            del self.unary[leg]
            leg.prompt_computed()

    def settle_held(self, sent_before: float, now: float) -> None:
        """Mark streams sent before `sent_before` as held back: the engine has generated tokens
        since then and no request waited, so their prompts are computed, unless they are long."""
        seconds = self.best_per_prompt_token or USUAL_PREFILL_SECONDS
        while (leg := next(iter(self._waiting), None)) is not None:
            least = UNSEEN_PREFILL_FACTOR * seconds * leg.work
            if leg.started >= sent_before or now - leg.started < least:
                return
            self._hold(leg)

    def _hold(self, leg: TimedLeg) -> None:
        del self._waiting[leg]
        if self.prompts is None:  # a prefill engine's answers are whole
            leg.is_held = True
            leg.prompt_computed()

    def ignore_stream_time(self) -> None:
        """Do not count the stream seconds since the last tick. Call it after `sync`."""
        self._stream_seconds = 0.0

    def tick(self, now: float) -> None:
        """Close a bucket and update the estimates."""
        self._pass(now)
        tokens = self.tokens * self.calibration.tokens_per_event + self._whole_tokens
        has_tokens = tokens > 0
        if has_tokens:
            self.last_token_at = now
        has_answered = has_tokens or self._prompt_work > 0
        self.is_warm = self.is_warm or has_answered
        if has_answered or self.all_streams or self.silence(now) > SILENT_SECONDS:
            self._measured_at = now
        elif now - self._measured_at > FORGET_SECONDS:
            self._forget()
        self._drop_overtaken()
        self._note_best_prefill()
        computed = self._newly_computed(now)
        seconds, self._ticked_at = now - self._ticked_at, now
        streams = self._stream_seconds / seconds if seconds > 0.0 else 0.0
        self.pauses.tick(
            tokens + self.begun,
            self._stream_seconds,
            seconds,
            self.gap_when_active,
            self.calibration.tokens_per_event,
        )
        self.buckets.add(
            Bucket(
                tokens,
                self._stream_seconds,
                computed * streams,
                self._prompt_work,
                self._prompt_seconds,
                self.pauses.is_silent,
            )
        )
        counted, before = self.counted, self._counted.computed
        self._counted = counted._replace(computed=before + computed)
        has_whole = self._whole_tokens > 0
        if self.costs is not None:
            self.costs.tick(self.computed)
        self.tokens = self._whole_tokens = self.begun = self.untracked = self.computed = 0
        self._stream_seconds = self._first_seconds = 0.0
        self._prompt_work, self._prompt_seconds = 0, 0.0
        self._measure()
        self.answers.tick()
        # A unary answer of enough tokens is reliable by itself.
        self.was_reliable = self.was_reliable or self.is_reliable or has_whole
        if has_tokens:
            self.gap_when_active = self.per_token or 0.0

    def reset(self) -> None:
        """Forget everything: the engine was restarted or replaced."""
        self._forget()
        self.answers.reset()
        self.is_warm = False
        self.last_per_prompt_token = 0.0

    def _forget(self) -> None:
        """Forget the speed, but not `is_warm`: silence of an engine that has produced tokens is a
        stall."""
        self._measured_at = math.inf
        self.per_token = self.per_prompt_token = self.best_per_prompt_token = None
        self.was_reliable = False
        self.calibration.reset()
        if self.costs is not None:
            self.costs.reset()
        if self.prompts is not None:
            self.prompts = LineFit()
        self.interference = Interference()
        self.buckets.clear()
        self.pauses = Pauses()

    def _pass(self, now: float) -> None:
        """Count the stream seconds up to now; none if the clock went backwards."""
        if now > self._at:
            self._stream_seconds += self.streams * (now - self._at)
        self._at = now

    def _newly_computed(self, now: float) -> float:
        """Prompt tokens computed since the last tick. An unfinished prompt is counted in proportion
        to the time that it has taken (at `prompt_seconds` per token); otherwise a long one would
        count as a whole in the tick in which it completes."""
        if self.computed:
            self._computing_since = now
        ahead = 0.0
        first = next(iter(self._waiting or self.unary), None)
        if first is not None and self.prompt_seconds:
            since = max(first.started, self._computing_since)
            ahead = min(float(first.pending), max(0.0, now - since) / self.prompt_seconds)
        before, self._ahead = self._ahead, ahead
        return max(0.0, self.computed + ahead - before)

    def _drop_overtaken(self) -> None:
        """Mark overtaken requests as held back. They do not wait for a slot or for their prefill:
        their tokens are held back, or their KV cache is being loaded."""
        waiting = self._waiting
        while waiting and (first := next(iter(waiting))).started < self._newest_begun:
            self._hold(first)

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
        buckets, pauses = self.buckets, self.pauses
        used, timed = buckets.sums(), buckets.timed
        is_prefill = timed == 0 and used.prompt_work > 0
        self.is_reliable = is_prefill or (used.tokens >= RELIABLE_TOKENS and timed == MIN_BUCKETS)
        if used.tokens and used.stream_seconds:
            self.interference.add(used.tokens, used.prompts_beside, used.stream_seconds)
        if used.prompt_work:
            self.per_prompt_token = used.prompt_seconds / used.prompt_work
            self.last_per_prompt_token = self.per_prompt_token
        if not buckets.are_steady:  # ticks without tokens are normal there
            self._update_gap(used)
        elif not pauses.hides_speed:
            since = pauses.since
            if since is not None and since < buckets.window:  # the pause does not count
                used = buckets.latest(since)
            self._update_gap(used)

    def _update_gap(self, used: Bucket) -> None:
        if used.tokens:
            if used.stream_seconds:
                tokens = used.tokens + self.prompt_share * used.prompts_beside
                measured = used.stream_seconds / tokens
                is_first = self.per_token is None
                weight = 1.0 if is_first else min(1.0, used.tokens / RELIABLE_TOKENS)
                self.per_token = weight * measured + (1 - weight) * (self.per_token or 0.0)
        elif (
            used.stream_seconds and self.all_streams
        ):  # no tokens: the gap is at least the time since then
            least = used.stream_seconds / self.all_streams
            self.per_token = max(self.per_token or 0.0, least)
