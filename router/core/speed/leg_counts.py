"""What the relay has counted of one endpoint since the last tick, and what is open there now.

The time per token is measured for all sequences of an engine together: the seconds that they were
open after their first token, divided by the tokens that came. So nothing is timed per token.

With `shared`, the counts of all worker processes are combined before each tick.
"""

from typing import NamedTuple, Protocol

from router.core.speed.answer_times import Answers, AnswerTimes
from router.core.speed.prompt_costs import LineFit, Samples
from router.core.speed.speed_totals import SharedTotals, SpeedTotals
from router.core.speed.waiting_legs import TimedLeg, WaitingLegs

__all__ = ["PROMPT_OVERHEAD", "EventCounts", "LegCounts", "SiblingPrompts", "TokenCounter"]

PROMPT_OVERHEAD = 64
"""Fixed cost of a prefill, in prompt tokens, until it is measured."""


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


class SiblingPrompts(Protocol):
    """Prompts of sibling replicas on an endpoint, as `core/replicas/peer_loads.py` has them."""

    @property
    def pending(self) -> int:
        """Tokens that it still has to compute."""

    def take_computed(self) -> int:
        """Tokens that it has computed since the last call."""


class TokenCounter:
    """Where the relay counts a stream's tokens, event by event."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0
        """Events since the last tick."""


class LegCounts(TokenCounter):
    """Counts of one endpoint's legs."""

    __slots__ = (
        "_at",
        "_counted",
        "_first_seconds",
        "_others",
        "_prompt_samples",
        "_prompt_seconds",
        "_prompt_work",
        "_published",
        "_shared",
        "_stream_seconds",
        "_whole_tokens",
        "answers",
        "begun",
        "busy_since",
        "computed",
        "is_prefill",
        "last_token_at",
        "open",
        "prompt_overhead",
        "prompts",
        "siblings",
        "streams",
        "surplus",
        "untracked",
        "waiting",
    )

    def __init__(self, shared: SharedTotals | None = None) -> None:
        super().__init__()
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
        self._first_seconds = 0.0
        self._whole_tokens = 0
        self.is_prefill = False
        """Whether it is a prefill engine, whose answers are whole."""
        self.prompts = LineFit()
        """Seconds to the first token by prompt tokens, up to the last tick."""
        self._prompt_samples = Samples()
        self.prompt_overhead = PROMPT_OVERHEAD
        """Fixed cost of a prefill, in prompt tokens; the pool's value."""
        self.answers = AnswerTimes()
        """Durations of short unary answers."""
        self.siblings: SiblingPrompts | None = None
        """Prompts of sibling replicas, which delay streams like own ones; None if unknown."""
        self._counted = EventCounts()
        self._stream_seconds = 0.0
        self._prompt_work = 0
        self._prompt_seconds = 0.0
        self._shared = shared
        self._published = self._others = SpeedTotals()
        self._at = 0.0

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

    def sync(self, now: float) -> None:
        """Publish this process's counts since the last tick, and add the others'."""
        self._pass(now)
        if self.tokens or self._whole_tokens:  # own; others tell when they had theirs
            self.last_token_at = now
        own = self.computed
        if self._shared is not None:
            self._sync_with_workers(self._shared)
        if self.siblings is not None:
            self.computed += self.siblings.take_computed()
        if self.computed > own:
            self.waiting.completed_at = now

    def _sync_with_workers(self, shared: SharedTotals) -> None:
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
        oldest = next(iter(self.waiting.legs), None)
        shared.publish(
            self._published._replace(
                streams=self.streams,
                surplus=self.surplus,
                open=self.open,
                last_token_at=self.last_token_at,
                busy_since=self.busy_since,
                waiting_since=oldest.started if oldest else 0.0,
                waiting_work=oldest.work if oldest else 0.0,
                newest_begun=self.waiting.newest_begun,
            )
        )
        others = self._others = shared.others()
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
        self.waiting.newest_begun = max(self.waiting.newest_begun, others.newest_begun)
        self.computed += int(others.computed_tokens)

    def ignore_stream_time(self) -> None:
        """Do not count the stream seconds since the last tick. Call it after `sync`."""
        self._stream_seconds = 0.0

    def _pass(self, now: float) -> None:
        """Count the stream seconds up to now; none if the clock went backwards."""
        if now > self._at:
            self._stream_seconds += self.streams * (now - self._at)
        self._at = now
