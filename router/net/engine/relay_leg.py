"""An attempt whose answer is sent to the client: time-outs, back-pressure and writing.

`Relay` defines how the answer's data are processed.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from router.core.errors import EngineTimedOut, Overloaded, RouterError
from router.core.events import RequestEnded
from router.core.fleet.leg_timer import MAX_TIMED_SEQUENCES, LegTimer
from router.core.plans.steps import Stream
from router.core.routing.engine_timeouts import EngineTimeouts, timeout_failure
from router.core.speed.leg_counts import TokenCounter
from router.core.values import Failure, FailureKind, Reply, RouteKind
from router.core.wire.sse import DONE, EventSplitter, data_events
from router.core.wire.usage import is_usage_only
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest
from router.net.engine.answer import AnswerHead
from router.net.engine.engine_leg import MAX_REPLY_BYTES, NO_ROOM, EngineLeg, LegListener
from router.net.limits.idle_sweep import IdleTimeoutSweep

__all__ = ["FREE_TAIL_BYTES", "RelayLeg"]

NO_HEAD: Final = AnswerHead(0, [])
"""Placeholder until an answer begins."""


FINISHED: Final = (b'"finish_reason":"', b'"finish_reason": "')
"""Found in the last event of each choice; in other events finish_reason is null. Within text,
quotes are escaped."""


FREE_TAIL_BYTES: Final = 1 << 16
"""Bytes of an incomplete event that are not charged to the answer budget: a read may end
anywhere."""


def counter_of(timer: LegTimer) -> TokenCounter:
    """Where a leg's tokens are counted: for the engine's speed, unless it has too many sequences to
    tell it."""
    return timer.speed if timer.sequences <= MAX_TIMED_SEQUENCES else TokenCounter()


class RelayLeg(EngineLeg):
    """The state of an attempt and everything that does not depend on the kind of answer. (It avoids
    `super()`, which costs as much as the method that it calls.)"""

    __slots__ = (
        "_client",
        "_counter",
        "_events_held",
        "_head",
        "_heard_at",
        "_is_done",
        "_is_paused",
        "_is_plain",
        "_is_single",
        "_is_stream",
        "_kind",
        "_last",
        "_length",
        "_on_data",
        "_on_end",
        "_parts",
        "_passed",
        "_passed_before",
        "_passed_bytes",
        "_record",
        "_request",
        "_response",
        "_sent_events",
        "_splitter",
        "_started_at",
        "_step",
        "_tail_counted",
        "_timeouts",
        "_to_client",
    )

    def __init__(
        self,
        step: Stream,
        kind: RouteKind,
        client: ClientConnection,
        request: ClientRequest,
        record: RequestEnded,
        timer: LegTimer,
        timeouts: EngineTimeouts,
        sweep: IdleTimeoutSweep,
        listener: LegListener,
    ) -> None:
        EngineLeg.__init__(self, step.endpoint, timer, sweep, listener)
        # What each chunk needs, first, as in `EngineLeg`.
        self._to_client: asyncio.Transport | None = None
        """Where whole framed chunks are written. None while data need to be processed."""
        self._is_single = timer.sequences == 1
        """Whether each chunk is one event. With several choices a chunk may contain the tokens of
        several."""
        self._counter: TokenCounter = timer.speed if self._is_single else counter_of(timer)
        self._passed = self._passed_bytes = 0
        """Chunks of this answer that were passed on unchanged, and the bytes of their data.
        `close`, which is called once, counts them in the record."""
        self._last = b""
        """The last data that were passed on, except [DONE]; empty if that was a chunk with the end
        of a token, which contains no usage and no error."""
        self._step = step
        self._kind = kind
        self._client = client
        self._request = request
        self._response = client.response
        self._record = record
        self._timeouts = timeouts
        self._is_plain = step.splice is None
        self._is_stream = self._is_done = False
        self._is_paused = False
        self._head = NO_HEAD
        self._length: int | None = None
        """Content-Length of a body that is passed through, if the engine states it."""
        self._parts: list[bytes] = []
        self._events_held = 0
        self._splitter: EventSplitter | None = None
        self._tail_counted = 0
        """Bytes of the splitter's buffer that are charged to the answer budget, once the first
        token was sent."""
        self._passed_before = 0
        """`_passed` at the last sweep."""
        self._sent_events = 0
        """Events that were not passed on unchanged and were counted as tokens."""
        self._started_at = client.loop.time()
        self._heard_at: float | None = None
        """When data other than comments last arrived, on the event loop's clock."""
        # Functions, not bound methods: a reference cycle would leave every request and its body to
        # the garbage collector.
        self._on_data: Callable[[Any, bytes], None] = RelayLeg._keep
        """The handlers of body data and of the end of the body: the relay's state."""
        self._on_end: Callable[[Any], None] = RelayLeg._end_kept

    # Called by the request's run.

    def last_events(self) -> bytes:
        """The last events that the client has been sent, without the end of a token."""
        return self._last

    def close(self, now: float) -> None:
        """Close the engine connection if the attempt is not over, and count what was passed on."""
        if self._is_paused:
            self.on_write_resumed()
        self._record.chunks += self._passed
        self._record.bytes_out += self._passed_bytes
        EngineLeg.close(self, now)

    def on_write_paused(self, now: float) -> None:
        """Stop reading from the engine. While the client is slow, token times do not tell the
        engine's speed."""
        self._is_paused = True
        self._counter = TokenCounter()  # discarded
        self.timer.client_stopped(now)
        if self.connection is not None:
            self.connection.pause_reading()

    def on_write_resumed(self) -> None:
        """Continue reading from the engine. Tokens are timed again once the client has kept up for
        a while."""
        self._is_paused = False
        if self.connection is not None:
            self.connection.resume_reading()

    # Called by the sweep.

    def check_idle(self, now: float) -> None:
        """Give up on an engine that has sent nothing for too long."""
        listener = self._listener
        if listener is None:  # the attempt ended during this sweep
            return
        timer = self.timer
        if timer.sweeps_to_wait and not self._is_paused and timer.catches_up(time.monotonic()):
            self._counter = counter_of(timer)
        if self._is_paused:  # the delay is the client's, not the engine's
            self._started_at = self._heard_at = now
        elif self._passed != self._passed_before:
            self._heard_at, self._passed_before = now, self._passed
        is_silent = self._record.first_byte is None
        failure = timeout_failure(
            self._timeouts,
            self._started_at,
            None if is_silent and self._is_stream else self._heard_at,
            now,
            is_stalled=is_silent and timer.speed.is_stalled,
            may_leave=listener.may_leave_stalled_engine,
        )
        if failure is None:
            return
        if failure.kind is FailureKind.STALLED:
            self._give_up(failure)
        else:
            self._abort()
            self._break_off(EngineTimedOut(failure.message), failure)

    def _break_off(self, error: RouterError, failure: Failure) -> None:
        """End an answer that will not be completed."""
        raise NotImplementedError

    # An answer that is kept for the plan.

    def _keep(self, data: bytes) -> None:
        parts = self._parts
        parts.append(data)
        if len(parts) > 1 or not self._response.is_corked:  # otherwise it is complete
            self._count_kept(len(data), MAX_REPLY_BYTES)

    def _end_kept(self) -> None:
        self._settle(Reply(self.status, tuple(self._head.headers), b"".join(self._parts)))

    def _count_tail(self, buffered: int) -> None:
        """Charge an incomplete event's bytes to the answer budget. If that is exhausted, the stream
        is ended."""
        listener = self._listener
        counted = max(0, buffered - FREE_TAIL_BYTES)
        more = counted - self._tail_counted
        if more == 0 or listener is None or self._record.first_byte is None:
            return
        if listener.may_keep(more):
            self._tail_counted = counted
        else:
            self._abort()
            self._break_off(Overloaded(NO_ROOM.message), NO_ROOM)

    # Writing.

    def _start(self, length: int | None) -> None:
        response = self._response
        if not response.is_started:  # as after another engine's failure, or an early head
            block = self._head.lines_for_client()
            if self._listener is not None:
                block = self._listener.response_headers(block)
            kind = self._kind if self._is_stream else None
            response.start(self.status, block, length, kind)
        self._record.status = self.status
        if self._client.write_paused:
            self.on_write_paused(time.monotonic())

    def _write(self, data: bytes) -> None:
        record = self._record
        if record.first_byte is None:
            record.first_byte = time.monotonic()
            if self._is_stream:
                self.timer.first_token(record.first_byte)
                if self._listener is not None:
                    self._listener.on_first_token()
        elif self._is_stream and not self._response.is_corked:
            # The last read usually has no token but the usage and [DONE].
            found = data_events(data) - is_usage_only(data)
            self._counter.tokens += found
            self._sent_events += found
            if not self._is_single:
                self._count_ended(data)
        if data != DONE:
            self._last = data
        self._send(data)

    def _count_ended(self, data: bytes) -> None:
        """Count the choices of a stream that have ended, so that their tokens are not waited
        for."""
        if ended := sum(map(data.count, FINISHED)):
            self.timer.sequences_ended(ended, time.monotonic())

    def _send(self, data: bytes) -> None:
        self._record.chunks += 1
        self._record.bytes_out += len(data)
        self._response.write(data)
