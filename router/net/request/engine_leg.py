"""One attempt at an engine: time-outs, back-pressure, and how the answer is read.

Data go from the engine's read callback to the client's transport without a task switch.
"""

import time
from typing import Protocol

from router.core.continuation.journal import Journal
from router.core.errors import EngineFailed, EngineTimedOut, RouterError
from router.core.fleet.leg_timer import LegTimer
from router.core.plans.steps import Call, Outcome, Stream
from router.core.routing.engine_timeouts import EngineTimeouts, timeout_failure
from router.core.values import PASS_THROUGH, Failure, FailureKind, Reply
from router.core.wire.jsonspan import MARK, has_params
from router.core.wire.sse import has_data
from router.net.engine.answer import AnswerHead, Sink
from router.net.engine.engine_connection import EngineConnection
from router.net.limits.timers import IdleTimeoutSweep
from router.net.request.charges import Charges
from router.net.request.downstream import Downstream
from router.net.request.event_readers import END_OF_EVENT, Events, Hold
from router.net.request.readers import End, Keep, PassThrough, Reader, Whole, failed

__all__ = ["EngineLeg", "LegListener"]


class LegListener(Protocol):
    """The engine side of the request."""

    def on_answer(self, status: int) -> Failure | None:
        """The engine's answer has begun. Returns a failure if the status alone is one."""

    def on_first_token(self, now: float) -> None:
        """The first content of a stream is about to be sent to the client. `now`: monotonic
        seconds."""

    def on_leg_end(self, leg: "EngineLeg", outcome: Outcome | None) -> None:
        """The attempt is over. `outcome`: a reply or a failure for the plan, or None if the client
        has been sent the answer."""

    def may_leave_stalled_engine(self) -> bool:
        """Whether another engine could take the request."""

    def on_leaving(self) -> None:
        """The stream should go on with another engine."""


class EngineLeg(Sink):
    """Receives the answer to the engine request `step`. The answer to a `Call` is kept for the
    plan, that to a `Stream` goes `downstream`, as its head allows. `close` ends an attempt without
    a report to the listener.

    `asked_at`: when the request was sent, in seconds on the event loop's clock.
    """

    __slots__ = (
        "_asked_at",
        "_charges",
        "_downstream",
        "_events",
        "_heard_at",
        "_is_paused",
        "_journal",
        "_listener",
        "_passed_before",
        "_reader",
        "_response",
        "_step",
        "_sweep",
        "_timeouts",
        "connection",
        "failure",
        "status",
        "timer",
    )

    def __init__(
        self,
        step: Call | Stream,
        timer: LegTimer,
        timeouts: EngineTimeouts,
        asked_at: float,
        downstream: Downstream,
        charges: Charges,
        journal: Journal | None,
        sweep: IdleTimeoutSweep,
        listener: LegListener,
    ) -> None:
        self._step = step
        self.timer = timer
        self._timeouts = timeouts
        self._asked_at = asked_at
        self._downstream = downstream
        self._response = downstream.response
        self._charges = charges
        self._journal = journal
        self._listener: LegListener | None = listener
        """None once the attempt is over."""
        self.connection: EngineConnection | None = None
        self.failure: Failure | None = None
        """How the engine failed, also if the client has been sent the error."""
        self.status = 0
        """HTTP status of the answer, 0 before it begins."""
        self._reader: Reader | None = None
        """The state in which the answer is read. None before its head."""
        self._events: Events | None = None
        """The same, once a stream has begun."""
        self._is_paused = False
        """Whether the client does not read."""
        self._heard_at: float | None = None
        """When data other than comments last arrived, on the event loop's clock."""
        self._passed_before = 0
        """Chunks that had been passed on at the last sweep."""
        self._sweep = sweep
        sweep.watch(self)

    # Called by the engine's connection.

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        """Choose how the body is read."""
        if self._listener is None:
            return
        self.status = head.status
        failure = self._listener.on_answer(head.status)
        if failure is not None:
            self._stop(failed(failure))
        elif isinstance(self._step, Call):
            self._reader = Keep(head, self.timer, self._charges)
        else:
            reader = self._reader_of(self._step, head, length, has_body=has_body)
            if isinstance(reader, End):
                self._stop(reader)
            else:
                self._reader = reader

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """Read the body data of one read."""
        reader = self._reader
        if self._listener is None or reader is None:  # the client left in this turn of the loop
            return
        if isinstance(self._step, Stream):
            if not is_last and (not data.startswith(b":") or has_data(data)):
                self._heard_at = self._downstream.client.loop.time()
            self._response.is_corked = is_last
        following = reader.on_data(data)
        if following is reader:
            return
        if isinstance(following, End):
            self._stop(following)
        else:
            self._reader = following
            if isinstance(following, Events):
                self._events = following

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        """Pass on a chunk unchanged if it ends with a complete event and contains nothing to
        redact, nor usage that has to be corrected.

        This is the fast path, which nearly every token takes.
        """
        events = self._events
        if events is None or events.to_client is None:
            return False
        if events.is_rewritten:
            chunk = events.rewritten(chunk, size)
            if not chunk:
                return False
        elif not chunk.endswith(END_OF_EVENT) or (chunk.find(MARK) >= 0 and has_params(chunk)):
            return False
        events.passed += 1
        events.passed_bytes += size
        if events.is_single:
            self.timer.counter.tokens += 1
        else:
            self.timer.counter.tokens += chunk.count(b"\n\n")
            events.count_ended(chunk)
        self._downstream.last = chunk
        events.to_client.write(chunk)
        return True

    def on_end(self) -> None:
        """The answer is complete."""
        if self._listener is not None and self._reader is not None:
            self._settle(self._reader.on_end())

    def on_lost(self, failure: Failure) -> None:
        """The answer will not be completed."""
        self._break_off(EngineFailed(failure.message), failure)

    # Called by the sweep.

    def check_idle(self, now: float) -> None:
        """Give up on an engine that has sent nothing for too long. `now`: on the event loop's
        clock, in seconds."""
        listener, timer, events = self._listener, self.timer, self._events
        if listener is None:  # the attempt ended during this sweep
            return
        if timer.sweeps_to_wait and not self._is_paused:
            timer.catches_up(time.monotonic())
        if self._is_paused:  # the delay is the client's, not the engine's
            self._asked_at = self._heard_at = now
        elif events is not None and events.passed != self._passed_before:
            self._heard_at, self._passed_before = now, events.passed
        journal = self._journal
        # Before the first token the body is in the engine request too.
        if journal is not None and self.has_begun and not self._charges.hold_journal(journal.size):
            journal.give_up()
        reader = self._reader
        failure = timeout_failure(
            self._timeouts,
            self._asked_at,
            None if isinstance(reader, Hold) else self._heard_at,
            now,
            is_stalled=timer.counts.is_stalled and not self.has_begun,
            may_leave=listener.may_leave_stalled_engine,
        )
        if failure is not None:
            self._abort()
            self._break_off(EngineTimedOut(failure.message), failure)
        elif self.should_leave:
            listener.on_leaving()

    # Called by the request.

    def on_write_paused(self, now: float) -> None:
        """The client has stopped reading: stop reading from the engine, unless the answer is for
        the plan. While the client is slow, token times do not show the engine's speed."""
        if isinstance(self._step, Call):
            return
        self._is_paused = True
        self.timer.client_stopped(now)
        if self.connection is not None:
            self.connection.pause_reading()

    def on_write_resumed(self) -> None:
        """The client is reading again. Tokens are timed again once it has kept up for a while."""
        self._is_paused = False
        if self.connection is not None:
            self.connection.resume_reading()

    @property
    def has_begun(self) -> bool:
        """Whether the client has received a part of the answer."""
        return self._reader is not None and self._reader.begun

    @property
    def should_leave(self) -> bool:
        """Whether the stream should go on with another engine, and can: its engine has stalled, or
        hands its streams over."""
        counts, journal = self.timer.counts, self._journal
        return (
            journal is not None
            and (counts.is_stalled or counts.hands_over)
            and self.has_begun
            and journal.reason is None
        )

    def leave(self, failure: Failure | None) -> None:
        """End the attempt, because another engine goes on with the stream."""
        self._stop(End(None, failure))

    def close(self, now: float) -> None:
        """Close the engine connection if the attempt is not over, and count what was passed on.
        Called once."""
        if self._is_paused:
            self.on_write_resumed()
        self._sweep.forget(self)
        self.timer.end(now)
        if self._events is not None:
            self._events.close()
            self._events = None
        if self._listener is not None:
            self._listener = None
            self._abort()

    # The states.

    def _reader_of(
        self, step: Stream, head: AnswerHead, length: int | None, *, has_body: bool
    ) -> Reader:
        """The first state. `has_body`: the body's first data follow immediately."""
        downstream, status = self._downstream, head.status
        has_head = self._response.is_started
        if status in step.keep or (has_head and status >= 400):
            return Keep(head, self.timer, self._charges)
        generates = downstream.kind is not PASS_THROUGH
        is_stream = generates and head.is_event_stream and status < 400
        if head.is_redirect or (generates and head.is_compressed):
            what = "a redirect" if head.is_redirect else "compressed data, not asked for"
            return failed(Failure(FailureKind.BROKEN, f"The engine answered with {what}."))
        if has_head and not (is_stream and status == 200):
            return failed(Failure(FailureKind.BROKEN, "The engine answered with no stream."))
        if is_stream:
            assert self._listener is not None, "it is not over"
            if has_head:
                downstream.name_engine(step.endpoint)
            if not step.hold:
                downstream.start(head, step.endpoint, None, is_stream=True)
                if not has_body:
                    self._response.flush()
            return Hold(
                head,
                step,
                self.timer,
                downstream,
                self._charges,
                self._journal,
                self._listener,
            )
        if generates or status >= 400:  # the whole body of an error is read for the log
            return Whole(head, step, self.timer, downstream, self._charges)
        return PassThrough(head, step.endpoint, length, downstream)

    # The end.

    def _stop(self, end: End) -> None:
        """End an answer whose rest is not wanted."""
        self._abort()
        self._settle(end)

    def _break_off(self, error: RouterError, failure: Failure) -> None:
        if self._listener is not None:
            reader = self._reader
            self._settle(failed(failure) if reader is None else reader.on_broken(error, failure))

    def _settle(self, end: End) -> None:
        """Report the end to the listener."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self.failure, outcome = end.failure, end.outcome
            if isinstance(outcome, Reply):
                self.status = outcome.status
            listener.on_leg_end(self, outcome)

    def _abort(self) -> None:
        if self.connection is not None:
            self.connection.abort()
