"""What the relay has counted of one engine since the last tick, and what is open there now.

The time per token is measured for all sequences of an engine together: the seconds that they were
open after their first token, divided by the tokens that came. So nothing is timed per token. The
relay counts stream events; how many tokens one carries (`--stream-interval`, speculative decoding,
parsers that hold tokens back) is learned for each engine.

With `shared`, the counts of all worker processes are combined before each tick.
"""

from typing import Protocol

from router.core.speed.prompt_costs import Answers, AnswerTimes, LineFit, PromptCosts, Samples
from router.core.speed.speed_totals import SharedTotals, SpeedTotals, WorkerTotals
from router.core.speed.token_counts import Calibration, EventCounts, TickCounts, TokenCounter
from router.core.speed.tuning import PROMPT_OVERHEAD
from router.core.speed.waiting_legs import TimedLeg, WaitingLegs

__all__ = ["LegCounts", "SiblingPrompts"]


class SiblingPrompts(Protocol):
    """Prompts of sibling replicas on an endpoint, as `core/replicas/peer_loads.py` has them."""

    @property
    def pending(self) -> int:
        """Tokens that it still has to compute."""

    def take_computed(self) -> int:
        """Tokens that it has computed since the last call."""


class LegCounts:
    """Counts of one engine's legs."""

    __slots__ = (
        "_at",
        "_counted",
        "_first_seconds",
        "_others",
        "_prompt_samples",
        "_prompt_seconds",
        "_prompt_work",
        "_stream_seconds",
        "_ticked_at",
        "_whole_tokens",
        "_workers",
        "answers",
        "begun",
        "busy_since",
        "calibration",
        "computed",
        "costs",
        "counter",
        "hands_over",
        "is_prefill",
        "is_stalled",
        "is_warm",
        "last_token_at",
        "open",
        "prompt_overhead",
        "prompt_seconds",
        "prompts",
        "siblings",
        "streams",
        "surplus",
        "untracked",
        "waiting",
    )

    def __init__(self, shared: SharedTotals | None = None) -> None:
        self.counter = TokenCounter()
        """Stream events after the first token, since the last tick."""
        self.begun = 0
        """Streams begun since the last tick."""
        self.untracked = 0
        """Unary legs since the last tick, whose tokens cannot be counted as they are generated."""
        self.computed = 0
        """Prompt tokens that the engine has computed since the last tick, as estimated."""
        self.waiting = WaitingLegs()
        """Legs without a first token."""
        self.streams = 0
        """Sequences of this process between their first token and their last."""
        self.surplus = 0
        """How many of `streams` are not the first one of their request: they may still wait in the
        engine."""
        self.open = 0
        """Sequences of this process from which tokens are expected: streams and prefills."""
        self.last_token_at = 0.0
        """When it last produced a token, to the tick of the process that got it."""
        self.busy_since = 0.0
        """When it last got a request while nothing was open there."""
        self.is_warm = False
        """Whether it has produced any token since its start, as far as known."""
        self.is_prefill = False
        """Whether it is a prefill engine, whose answers are whole."""
        self.is_stalled = False
        """Whether it is stalled, for legs that wait there; written by the judge."""
        self.hands_over = False
        """Whether its streams go on with other engines, if they can; written by `Member`."""
        self.calibration = Calibration()
        self.costs: PromptCosts | None = None
        """How long prompts take there; None where no part of the router uses it."""
        self.prompts = LineFit()
        """Seconds to the first token by prompt tokens, up to the last tick."""
        self.prompt_overhead = int(PROMPT_OVERHEAD)
        """Fixed cost of a prefill, in prompt tokens; the pool's value (`SpeedEstimator.adopt`)."""
        self.prompt_seconds = 0.0
        """Seconds to compute one prompt token; the pool's value, 0 if not known."""
        self.answers = AnswerTimes()
        """Durations of short unary answers."""
        self.siblings: SiblingPrompts | None = None
        """Prompts of sibling replicas, which delay streams like own ones; None if unknown."""
        self._prompt_samples = Samples()
        self._counted = EventCounts()
        self._first_seconds = self._stream_seconds = self._prompt_seconds = 0.0
        self._whole_tokens = self._prompt_work = 0
        self._workers = None if shared is None else WorkerTotals(shared)
        self._others = SpeedTotals()
        self._at = self._ticked_at = 0.0

    @property
    def counted(self) -> EventCounts:
        """Counts since the engine joined; other processes' up to the last tick."""
        before = self._counted
        return EventCounts(
            before.events + self.counter.tokens,
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
        """When the longest-waiting request of all processes was sent, and its pending prompt
        tokens then; None when none waits."""
        return self.waiting.oldest(self._others)

    @property
    def pending_elsewhere(self) -> int:
        """Prompt tokens that the endpoint still has to compute for sibling replicas, and for the
        longest-waiting request of the other processes."""
        others = self._others
        pending = int(others.waiting_work) if others.waiting_since else 0
        return pending if self.siblings is None else pending + self.siblings.pending

    @property
    def all_open(self) -> int:
        """`open`, with those of the other processes."""
        return self.open + int(self._others.open)

    @property
    def has_answered(self) -> bool:
        """Whether anything was answered since the last tick."""
        return bool(self.counter.tokens or self._whole_tokens or self._prompt_work)

    def progress(self, now: float) -> float:
        """Tokens of the prompt in progress that should be computed by now, at the pool's speed."""
        return self.waiting.progress(self.pending_elsewhere, self.prompt_seconds, now)

    def silence(self, now: float) -> float:
        """Seconds without any token while requests are open there; 0 if none is open."""
        return now - max(self.last_token_at, self.busy_since) if self.all_open else 0.0

    def on_request(self, leg: TimedLeg, now: float) -> None:
        """A stream or a prefill was sent."""
        if self.all_open == 0:
            self.busy_since = now
        self.open += leg.sequences
        self.waiting.legs[leg] = None

    def on_first_token(self, leg: TimedLeg, now: float) -> None:
        """The leg's first token arrived, or its whole answer."""
        self.last_token_at = now
        waiting = self.waiting
        waiting.legs.pop(leg, None)
        # Not `max`, here and below: it costs as much as calling a Python function of some lines.
        if leg.started > waiting.newest_begun:
            waiting.newest_begun = leg.started
        if leg.work and not leg.is_held:
            seconds = now - leg.started if now > leg.started else 0.0
            self._prompt_work += leg.work + self.prompt_overhead
            self._prompt_seconds += seconds
            self._prompt_samples.add(float(leg.work), seconds)

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
        self.waiting.legs.pop(leg, None)
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

    def on_probe_tokens(self, tokens: int) -> None:
        """Tokens of a probe's stream have arrived, after its first one. They are counted as tokens,
        not as events: tokens per event differ between so short a stream and users' streams."""
        self._whole_tokens += tokens

    def on_unary_answer(self, tokens: int, seconds: float) -> None:
        """A unary answer of `tokens` took `seconds` of sequence time."""
        self._whole_tokens += tokens
        self._stream_seconds += seconds

    # Once per tick.

    def sync(self, now: float) -> None:
        """Publish this process's counts since the last tick, and add the others'."""
        self._pass(now)
        if self.counter.tokens or self._whole_tokens:  # others publish when they had theirs
            self.last_token_at = now
        own = self.computed
        if self._workers is not None:
            self._add(self._workers.exchange(self._totals()))
        if self.siblings is not None:
            self.computed += self.siblings.take_computed()
        if self.computed > own:
            self.waiting.completed_at = now

    def _totals(self) -> SpeedTotals:
        """This process's counts since the last tick, and its current values."""
        answers = self.answers.new
        oldest = next(iter(self.waiting.legs), None)
        return SpeedTotals(
            tokens=self.counter.tokens,
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
            streams=self.streams,
            surplus=self.surplus,
            open=self.open,
            last_token_at=self.last_token_at,
            busy_since=self.busy_since,
            waiting_since=oldest.started if oldest else 0.0,
            waiting_work=oldest.work if oldest else 0.0,
            newest_begun=self.waiting.newest_begun,
        )

    def _add(self, others: SpeedTotals) -> None:
        """Add what the other processes have counted."""
        self._others = others
        self.counter.tokens += int(others.tokens)
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
        self.waiting.newest_begun = max(self.waiting.newest_begun, others.newest_begun)
        self.computed += int(others.computed_tokens)

    def ignore_stream_time(self) -> None:
        """Do not count the stream seconds since the last tick. Call it after `sync`."""
        self._stream_seconds = 0.0

    def take(self, now: float) -> TickCounts:
        """What was counted since the last tick; the counts begin anew."""
        self._pass(now)
        waiting, counted = self.waiting, self.counted
        waiting.drop_overtaken(is_prefill=self.is_prefill)
        before, completed = self._counted.computed, self.computed
        computed = waiting.newly_computed(
            completed, self.pending_elsewhere, self.prompt_seconds, now
        )
        tokens = self.counter.tokens * self.calibration.tokens_per_event + self._whole_tokens
        tick = TickCounts(
            now - self._ticked_at,
            tokens,
            self._whole_tokens,
            self.begun,
            self._stream_seconds,
            computed,
            self._prompt_work,
            self._prompt_seconds,
        )
        self._ticked_at = now
        self._counted = counted._replace(computed=before + computed)
        self.prompts.add_all(self._prompt_samples.take())
        self.answers.tick()
        if self.costs is not None:
            self.costs.tick(completed)
        self.counter.tokens = self._whole_tokens = self.begun = self.untracked = self.computed = 0
        self._stream_seconds = self._first_seconds = self._prompt_seconds = 0.0
        self._prompt_work = 0
        return tick

    def forget(self) -> None:
        """Forget what was learned of its speed."""
        self.calibration.reset()
        if self.costs is not None:
            self.costs.reset()
        self.prompts = LineFit()

    def _pass(self, now: float) -> None:
        """Count the stream seconds up to now; none if the clock went backwards."""
        if now > self._at:
            self._stream_seconds += self.streams * (now - self._at)
        self._at = now
