"""The I/O of one request in virtual time, as `net/request/served_request.py` does it with sockets.

The decisions are made by `core/routing/request_run.py` in both.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import orjson

from router.core.continuation.move_queue import MoveQueue
from router.core.errors import RouterError
from router.core.fleet.fleet import Fleet
from router.core.plans.prefill import KV_KEY
from router.core.plans.steps import AwaitKV, AwaitMove, BackOff, Call, Outcome, Send, Stream
from router.core.routing.engine_timeouts import timeout_failure
from router.core.routing.request_run import Action, RequestRun
from router.core.values import Failure, FailureKind, Reply
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.engine import VirtualEngine
from router.simulator.virtual.requests import (
    ACCEPTED,
    NO_ANSWER,
    Attempt,
    VirtualRequest,
    events_so_far,
)
from router.simulator.virtual.values import PREFILL_TIMEOUTS, Scenario


class RequestOwner(Protocol):
    """The replica that a request was sent to."""

    number: int
    now: float
    move_queue: MoveQueue
    engines: Sequence[VirtualEngine]
    scenario: Scenario
    agenda: Agenda
    fleet: Fleet
    served: list[int]
    """Answers of each engine, including prefills."""

    def attend(self, request: VirtualRequest, now: float) -> None:
        """Set the current request and time."""

    def note_choice(self, place: int, request: VirtualRequest) -> None:
        """Note that an engine was chosen."""

    def forget(self, exchange: "VirtualExchange") -> None:
        """Remove a request that has ended."""


class VirtualExchange:
    """The engine requests of one request."""

    __slots__ = (
        "_attempt",
        "_begun_at",
        "_behind",
        "_heard_at",
        "_is_cut",
        "_is_paused",
        "_prefilled_by",
        "_silent_since",
        "_status",
        "replica",
        "request",
        "run",
    )

    def __init__(self, replica: RequestOwner, request: VirtualRequest, run: RequestRun) -> None:
        self.request = request
        self.run = run
        self.replica = replica
        self._attempt: Attempt | None = None
        """The current attempt at an engine."""
        self._begun_at: float | None = None
        """When its first token went to the client."""
        self._silent_since: float | None = None
        """The last token of an engine that has failed, until another one goes on."""
        self._prefilled_by: tuple[VirtualEngine, int] | None = None
        """The engine that has its KV cache, and the number of its restarts before."""
        self._is_paused = False
        """Whether its client does not read."""
        self._behind: int | None = None
        """The status with which the answer ended, if the client has not read it to the end."""
        self._heard_at = 0.0
        """The last time at which the answer waited for the client instead of the engine."""
        self._status = 0
        self._is_cut = False
        """Whether its router has died."""

    def perform(self, action: Action | None, now: float) -> None:
        """Perform the run's actions until one takes time or the run ends."""
        self.replica.attend(self.request, now)
        try:
            while action is not None:
                match action:
                    case Call() | Stream():
                        status = self._ask(action, now)
                        if status == ACCEPTED:
                            return
                        action = self._refused(action, status, now)
                    case Send():
                        self._status = action.reply.status
                        action = self.run.answer(None, now)
                    case BackOff():
                        self.replica.agenda.at(now + action.seconds, self._on_back_off_end)
                        return
                    case AwaitKV():
                        action = self.run.answer(True, now)
                    case AwaitMove():
                        self.replica.move_queue.enter(self, is_cut=True)
                        return
        except RouterError:
            self._status = 0
        self.finish(now)

    def _on_back_off_end(self, now: float) -> None:
        if not self._is_cut:
            self._advance(lambda: self.run.answer(None, now), now)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""
        return 0 if self.run.facts is None else self.run.facts.tokens

    def on_move(self) -> None:
        """Its stream may go on with another engine, as `ServedRequest.on_move`."""
        now = self.replica.now
        if self._attempt is None:
            self._advance(lambda: self.run.answer(None, now), now)
        elif not self._leave(self._attempt, now):
            self.replica.move_queue.leave(self)

    def _leave(self, attempt: Attempt, now: float) -> bool:
        """Leave an engine that hands its streams over. Returns False if the stream stays."""
        run, journal = self.run, self.run.journal
        if journal is None or not attempt.leg.counts.hands_over or not run.may_move(now):
            return False
        journal.events(events_so_far(attempt))
        if not run.leave(None, now):
            return False
        engine = self.replica.engines[attempt.place]
        self._silent_since = engine.stepped_at
        engine.abort(attempt)
        attempt.leg.end(now)
        self._attempt = None
        self._go_on(None, None, 0, now)
        return True

    def _ask(self, step: Call | Stream, now: float) -> int:
        """Send a request to an engine. Returns the status, or `NO_ANSWER`."""
        replica, request, is_stream = self.replica, self.request, isinstance(step, Stream)
        place = replica.fleet.member(step.endpoint).ordinal
        if not self.run.record.fallbacks:  # engines that have failed it are no alternative
            replica.note_choice(place, request)
        self._begun_at = None
        attempt = Attempt(
            self,
            replica.number,
            place,
            *self._work(step),
            request.model,
            contents=request.contents,
            is_held=is_stream and (request.is_held or request.is_unary),
            is_poison=request.is_poison,
        )
        if is_stream:
            request.engine = place
            if KV_KEY.encode() in step.body:
                self._bring_cache(attempt)
        status = replica.engines[place].submit(attempt, now)
        if status == ACCEPTED:
            self._attempt = attempt
            attempt.leg = self.run.leg(now)
            if is_stream:
                self.run.answered(status, now)
        return status

    def _work(self, step: Call | Stream) -> tuple[int, int]:
        """The tokens of prompt and answer, for a continued stream as its body has them."""
        request, journal = self.request, self.run.journal
        if journal is None or not journal.is_continued:
            return request.prompt, request.output if isinstance(step, Stream) else 1
        body = orjson.loads(step.body)
        ids = body["prompt"]
        assert ids == list(range(len(ids))), "a token is missing, or comes twice"
        return len(ids), body["max_tokens"]

    def _bring_cache(self, attempt: Attempt) -> None:
        assert self._prefilled_by is not None
        source, life = self._prefilled_by
        attempt.source = lambda: source.is_up and source.life == life
        attempt.left = 0
        scenario = self.replica.scenario
        seconds = attempt.prompt / scenario.transfer_tokens_per_second
        attempt.transfer_seconds = scenario.transfer_seconds + seconds
        self.request.crosses = source.spec.zone != self.replica.engines[attempt.place].spec.zone
        if self.request.crosses:
            attempt.transfer_seconds *= scenario.crossing_factor

    def _refused(self, step: Call | Stream, status: int, now: float) -> Action | None:
        if status == NO_ANSWER:
            failure = Failure(FailureKind.REFUSED, "refused")
            return self.run.settle(failure, failure, 0, now)
        self.run.answered(status, now)
        if isinstance(step, Call) or status in step.keep:
            return self.run.settle(Reply(status), None, status, now)
        self._status = status
        return self.run.settle(None, None, status, now)

    def finish(self, now: float) -> None:
        """The request has ended."""
        self.run.close()
        record = self.run.record
        record.outcome = "ok" if self._status == ACCEPTED else "error"
        record.asked_at = self.run.asked_at
        self.replica.fleet.ended(record)
        self.replica.move_queue.leave(self)
        self.replica.forget(self)
        self.request.is_good = self._status == ACCEPTED
        self.request.done(self.request, now)

    def cut(self, now: float) -> None:
        """The router died: the connections to client and engines break."""
        if self._attempt is not None:
            self.replica.engines[self._attempt.place].abort(self._attempt)
            self._attempt.leg.end(now)
        self._is_cut = True
        self.run.close()

    # The client's behaviour. While it does not read, the engine's connection is not read either:
    # its buffers, and those of the network, hold the rest of the answer.

    def streams_from(self, place: int) -> bool:
        """Whether the client is reading a stream of this engine."""
        attempt = self._attempt
        return (
            attempt is not None
            and attempt.place == place
            and not self._is_unheard
            and not self._is_paused
        )

    def stop_reading(self, now: float) -> None:
        """The client stops reading, as in `EngineLeg.on_write_paused`."""
        attempt = self._attempt
        assert attempt is not None, "it streams"
        self._is_paused = True
        attempt.leg.client_stopped(now)
        self.replica.engines[attempt.place].show(attempt, is_unread=True)

    def read_on(self, now: float) -> None:
        """The client reads again, as in `EngineLeg.on_write_resumed`. What has accumulated arrives
        at once."""
        self._is_paused, behind, attempt = False, self._behind, self._attempt
        if behind is not None and attempt is not None and not self._is_cut:
            self._behind = None
            self.on_end(attempt, behind, now)

    # The engine's behaviour.

    def on_first(self, attempt: Attempt, now: float) -> None:
        """The first token; of a prefill it is the whole answer."""
        request = self.request
        shows_first = not attempt.is_held or (request.shows_first and not request.is_unary)
        if isinstance(self.run.step, Stream) and shows_first:
            self._begin(attempt, now)

    def _begin(self, attempt: Attempt, now: float) -> None:
        attempt.leg.first_token(now)
        self._begun_at = now
        record = self.run.record
        record.first_byte = record.first_byte or now
        if self.request.first is None:
            self.request.first = now
        if self._silent_since is not None:
            self.request.pause = max(self.request.pause, now - self._silent_since)
            self._silent_since = None
        self.run.begun(now)
        self.replica.move_queue.leave(self)
        self.replica.attend(self.request, now)  # others have moved

    def on_end(self, attempt: Attempt, status: int, now: float) -> None:
        """The answer is complete, or the engine has failed."""
        if self._is_paused:
            self._behind = status
        elif status == ACCEPTED:
            self._complete(attempt, now)
        elif status == NO_ANSWER:
            kind = FailureKind.RESET if self._is_unheard else FailureKind.BROKEN
            self._fail(attempt, Failure(kind, "lost"), now)
        else:  # an error as the first event of the stream
            self._attempt = None
            attempt.leg.end(now)
            self._go_on(Reply(status), None, status, now)

    def _complete(self, attempt: Attempt, now: float) -> None:
        replica = self.replica
        replica.attend(self.request, now)
        replica.served[attempt.place] += 1
        self._attempt = None
        if isinstance(self.run.step, Stream):
            self._end_stream(attempt, now)
            attempt.leg.end(now)
            self.request.cached = attempt.cached
            self._status = ACCEPTED
            self._go_on(None, None, ACCEPTED, now)
            return
        engine = replica.engines[attempt.place]
        self._prefilled_by = (engine, engine.life)
        self.run.answered(ACCEPTED, now)
        attempt.leg.unary_answer(now)
        attempt.leg.end(now)
        body = b'{"%b":{"remote_engine":%d}}' % (KV_KEY.encode(), attempt.place)
        self._go_on(Reply(ACCEPTED, (), body), None, ACCEPTED, now)

    def _end_stream(self, attempt: Attempt, now: float) -> None:
        """End a stream, with the tokens that were held back and the usage."""
        request, leg = self.request, attempt.leg
        if request.is_unary:
            request.first = now
            leg.unary_answer(now, attempt.output)
            return
        events = attempt.output
        if self._begun_at is None:
            self._begin(attempt, now)
            events = 1
        elif attempt.is_held:
            leg.counts.counter.tokens += 1
            events = 2
        is_alone = self.run.journal is None or not self.run.journal.is_continued
        if is_alone and not leg.sweeps_to_wait:
            leg.calibrate(attempt.output, events, now)

    @property
    def _is_unheard(self) -> bool:
        """Whether the client has received nothing of the attempt."""
        return isinstance(self.run.step, Call) or self._begun_at is None

    def check_idle(self, now: float) -> None:
        """Apply the idle time-outs as `EngineLeg.check_idle` does."""
        attempt = self._attempt
        if attempt is None:
            return
        engine, is_unheard = self.replica.engines[attempt.place], self._is_unheard
        if self._is_paused:
            self._heard_at = now
        elif attempt.leg.sweeps_to_wait and attempt.leg.catches_up(now):
            engine.show(attempt, is_unread=False)
        if attempt.leg.counts.hands_over and not is_unheard and self.run.journal is not None:
            self.replica.move_queue.enter(self, is_cut=False)
            if self._attempt is not attempt:
                return
        failure = timeout_failure(
            PREFILL_TIMEOUTS if isinstance(self.run.step, Call) else self.replica.scenario.timeouts,
            self.run.asked_at,
            None if is_unheard else max(self._begun_at or 0.0, engine.stepped_at, self._heard_at),
            now,
            is_stalled=attempt.leg.counts.is_stalled
            and (is_unheard or self.run.journal is not None),
            may_leave=lambda: self.run.may_leave_stalled(now),
        )
        if failure is not None:
            engine.abort(attempt)
            self._fail(attempt, failure, now)

    def _fail(self, attempt: Attempt, failure: Failure, now: float) -> None:
        outcome, journal = failure if self._is_unheard else None, self.run.journal
        if outcome is None and journal is not None:
            journal.events(events_so_far(attempt))
            journal.cut(failure)
            self._silent_since = self.replica.engines[attempt.place].stepped_at
        attempt.leg.end(now)
        self._attempt = None
        self._go_on(outcome, failure, 0, now)

    def _go_on(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> None:
        self._advance(lambda: self.run.settle(outcome, failure, status, now), now)

    def _advance(self, advance: Callable[[], Action | None], now: float) -> None:
        """Continue the run, and perform its next action."""
        self.replica.attend(self.request, now)
        try:
            action = advance()
        except RouterError:
            self._status = 0
            self.finish(now)
        else:
            self.perform(action, now)
