"""Passes one engine's answer on to the client, or keeps it back as the plan's step demands.

Bytes go from the engine's read callback to the client's transport with no task switch in between.
The current handler of body bytes is the relay's state: keep, hold, events, whole body, or as it
comes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from router.core.engine_error import engine_error
from router.core.errors import EngineFailed, EngineTimedOut, RouterError
from router.core.events import RequestEnded
from router.core.leg_timer import LegTimer
from router.core.plans.steps import Stream
from router.core.redact import MARK, redact
from router.core.sse import (
    DONE,
    MAX_EVENT_BYTES,
    EventKind,
    EventSplitter,
    data_of,
    event_kind,
    events,
    keep_alive,
    status_of,
)
from router.core.token_ratios import MIN_BYTES
from router.core.usage import generated_tokens, is_usage_only, prompt_tokens
from router.core.values import Failure, FailureKind, Reply, RouteKind
from router.net.answer_head import AnswerHead
from router.net.client_connection import ClientConnection
from router.net.client_request import ClientRequest
from router.net.engine_leg import MAX_REPLY_BYTES, EngineLeg, LegListener, reply_too_large
from router.net.idle_sweep import IdleTimeoutSweep

__all__ = ["Patience", "Relay"]

CATCH_UP_SWEEPS: Final = 2
"""Sweeps over silent streams until one whose client did not read is timed again: at least one whole
interval. What has piled up by then comes faster than any engine makes it."""

MAX_HELD_EVENTS = 64
"""Events without content that wait for the first one with some. /v1/responses begins with four, a
chat of n choices with n; a token may have no text of its own, but not so many in a row."""

MAX_HELD_BYTES = MAX_EVENT_BYTES
"""The first of them can hold the prompt's token ids."""

JSON_HEADERS: Final = ((b"content-type", b"application/json"),)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds without a word from an engine until it is given up on."""

    first_byte: float
    """From the request to the first byte of the answer's body."""
    idle: float
    """Between two reads of a stream."""


PASS_THROUGH: Final = RouteKind.PASS_THROUGH
PREAMBLE: Final = EventKind.PREAMBLE
ERROR: Final = EventKind.ERROR


NO_HEAD: Final = AnswerHead(0, [])
"""Of an answer that has not begun."""


class TokenCount(Protocol):
    """Where the tokens of a stream are counted."""

    tokens: int


class Uncounted:
    """Where they are counted while they tell nothing of the engine."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0


class Relay(EngineLeg):
    """An attempt whose answer goes to the client."""

    __slots__ = (
        "_chunks_before",
        "_client",
        "_counter",
        "_events_held",
        "_first_chunk",
        "_forward",
        "_head",
        "_heard_at",
        "_is_done",
        "_is_paused",
        "_is_plain",
        "_is_single",
        "_is_stream",
        "_kind",
        "_last",
        "_on_data",
        "_on_end",
        "_parts",
        "_patience",
        "_record",
        "_request",
        "_response",
        "_sent",
        "_sent_events",
        "_size",
        "_splitter",
        "_started_at",
        "_step",
        "_sweeps_to_wait",
    )

    def __init__(
        self,
        step: Stream,
        kind: RouteKind,
        client: ClientConnection,
        request: ClientRequest,
        record: RequestEnded,
        timer: LegTimer,
        patience: Patience,
        sweep: IdleTimeoutSweep,
        listener: LegListener,
    ) -> None:
        super().__init__(step.endpoint, timer, sweep, listener)
        self._step = step
        self._kind = kind
        self._client = client
        self._request = request
        self._response = client.response
        self._record = record
        self._patience = patience
        self._counter: TokenCount = timer.speed
        self._is_single = timer.sequences == 1
        """Whether a chunk is one event: the tokens of several answers may come in one."""
        self._is_plain = step.splice is None
        self._is_stream = self._is_done = False
        self._is_paused = False
        self._head = NO_HEAD
        self._parts: list[bytes] = []
        self._size = self._events_held = 0
        self._splitter: EventSplitter | None = None
        self._last = b""
        """What was passed on last, but for the terminator: it may hold the usage."""
        self._first_chunk = self._chunks_before = record.chunks
        """Chunks that were passed on before this answer, and up to the last sweep."""
        self._sent = self._sent_events = 0
        """Of `record.chunks`: those that were not passed on as they came, and the events in them
        that were counted as tokens."""
        self._sweeps_to_wait = 0
        """Until the attempt is timed again; 0 while it is."""
        self._forward: Callable[[bytes], None] | None = None
        """Where whole chunks go with their framing, while nothing needs to be done to them."""
        self._started_at = client.loop.time()
        self._heard_at: float | None = None
        # Functions, not methods of this object: a cycle would leave every request, its body
        # included, to the garbage collector.
        self._on_data: Callable[[Relay, bytes], None] = Relay._keep
        self._on_end: Callable[[Relay], None] = Relay._end_kept

    # What the engine's connection calls.

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        """Choose what becomes of the body. `has_body`: its first bytes follow at once."""
        listener = self._listener
        if listener is None:
            return
        status = head.status
        listener.on_answer(status)
        self.status = status
        self._head = head
        if status in self._step.keep:
            return
        generates = self._kind is not PASS_THROUGH
        is_stream = generates and head.is_event_stream
        if self._response.is_started and not (is_stream and status == 200):
            text = f"A second engine answered with status {status} behind the head of a stream."
            self._give_up(Failure(FailureKind.BROKEN, text))
        elif is_stream:
            self._is_stream = True
            if self._response.is_started:
                self._response.write(listener.moved_comment())
            self._splitter = EventSplitter()
            self._on_data = Relay._hold
            self._on_end = Relay._end_events
            if not self._step.hold:
                self._start(None)
                if not has_body:
                    self._response.flush()
        elif generates or status >= 400:  # an error is read for the log
            self._on_end = Relay._end_whole
        else:
            self._start(length)
            self._on_data = Relay._pass
            self._on_end = Relay._end

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """Take one read's worth of body."""
        if self._listener is None:  # the client left in this very turn of the event loop
            return
        if not is_last:
            self._heard_at = self._client.loop.time()
        self._response.is_corked = is_last
        self._on_data(self, data)

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        """Pass on a chunk as it stands: a whole event, with nothing in it to take out.

        The shortest way through the router, and the one that nearly every token takes.
        """
        forward = self._forward
        if forward is None or not chunk.endswith(b"}\n\n\r\n") or chunk.find(MARK) >= 0:
            return False
        if self._listener is not None:
            record = self._record
            record.chunks += 1
            record.bytes_out += size
            self._counter.tokens += 1 if self._is_single else chunk.count(b"\n\n")
            self._last = chunk
            forward(chunk)
        return True

    def on_end(self) -> None:
        """The engine's answer is complete."""
        if self._listener is not None:
            self._on_end(self)

    def on_lost(self, failure: Failure) -> None:
        """The engine broke off: an error frame if the client has seen a stream, else its plan."""
        self._break_off(EngineFailed(failure.message), failure)

    # What the request calls.

    def close(self, now: float) -> None:
        """Stop the engine's work if it is not over."""
        if self._is_paused:
            self.on_write_resumed()
        super().close(now)

    def on_write_paused(self, now: float) -> None:
        """The client reads slower than its engine writes: that says nothing of the engine."""
        self._is_paused = True
        self._sweeps_to_wait = CATCH_UP_SWEEPS
        self._counter = Uncounted()
        self.timer.pause(now)
        if self.connection is not None:
            self.connection.pause_reading()

    def on_write_resumed(self) -> None:
        """The client reads again. It is timed when it has kept up for a while."""
        self._is_paused = False
        if self.connection is not None:
            self.connection.resume_reading()

    # What the sweep calls.

    def check_idle(self, now: float) -> None:
        """Give up on an engine that has been silent for too long."""
        if self._sweeps_to_wait and not self._is_paused:
            self._catch_up()
        chunks = self._record.chunks
        if self._is_paused or chunks != self._chunks_before:
            # It is the client that everybody waits for, or the engine has sent something.
            self._heard_at, self._chunks_before = now, chunks
        if self._heard_at is None:
            limit, since = self._patience.first_byte, self._started_at
        else:
            limit, since = self._patience.idle, self._heard_at
        if now - since < limit:
            self._leave_if_stalled()
            return
        text = f"The engine sent nothing for {limit:g} s."
        self._abort()
        self._break_off(EngineTimedOut(text), Failure(FailureKind.TIMEOUT, text))

    def _catch_up(self) -> None:
        self._sweeps_to_wait -= 1
        if self._sweeps_to_wait == 0:
            self._counter = self.timer.speed
            self.timer.resume(time.monotonic())

    def _leave_if_stalled(self) -> None:
        """A request that has had nothing but a head need not wait for an engine that stopped."""
        if self._record.first_byte is not None or not self.timer.speed.is_stalled:
            return
        if self._listener is not None and self._listener.may_leave_stalled_engine():
            text = "The engine has stalled."
            self._give_up(Failure(FailureKind.STALLED, text))

    # Handlers of body bytes, and of their end.

    def _keep(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > MAX_REPLY_BYTES:
            self._give_up(reply_too_large())

    def _end_kept(self) -> None:
        self._settle(Reply(self.status, tuple(self._head.headers), b"".join(self._parts)))

    def _end_whole(self) -> None:
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self.status < 400:
            self.timer.unary_answer(time.monotonic(), generated_tokens(body))
            if self._record.text_bytes >= MIN_BYTES:
                self._record.prompt_tokens = prompt_tokens(body)
            if (feedback := self.timer.feedback) is not None:
                feedback.begun(body)
                feedback.ended(body)
        body = redact(body)
        if self._step.splice is not None and self.status < 400:
            body = self._step.splice.body(body)
        if self.status >= 400:
            self._record.error = engine_error(self.endpoint.role, self.status, body)
        self._start(len(body))
        self._write(body)
        self._end()

    def _pass(self, data: bytes) -> None:
        self._write(data)

    def _pass_events(self, data: bytes) -> None:
        splitter = self._splitter
        assert splitter is not None
        # Nearly every read is whole events with nothing to take out.
        if not (
            self._is_plain and splitter.is_empty and data.endswith(b"\n\n") and data.find(MARK) < 0
        ):
            data = splitter.feed(data)
            data = data and self._clean(data)
        if data:
            self._is_done = data.endswith(DONE)
            self._write(data)
        is_clear = self._is_plain and not self._is_done and splitter.is_empty
        self._forward = self._response.chunk_writer() if is_clear else None

    def _hold(self, data: bytes) -> None:
        """Keep events back until one has content: up to then another engine can answer instead.

        With the step's `hold` the head waits too; without it the client has had the head, and gets
        comments, which keep its connection alive.
        """
        assert self._splitter is not None
        data = self._splitter.feed(data)
        found = events(data)
        for event in found:
            sign = event_kind(event)
            if sign is ERROR and self._step.hold:
                # It was never shown as a stream: whoever gets it gets it as an error response.
                self._abort()
                self._settle(Reply(status_of(event), JSON_HEADERS, data_of(event)))
                return
            if sign is ERROR:
                self.timer.end(time.monotonic())  # a failure is no token to be timed
            if sign is not PREAMBLE:
                self._parts.append(data)
                self._release_hold()
                return
        if not self._step.hold and (alive := b"".join(map(keep_alive, found))):
            self._send(alive)
            data = b"".join(event for event in found if data_of(event))
        self._parts.append(data)
        self._size += len(data)
        self._events_held += len(found)
        if self._events_held > MAX_HELD_EVENTS or self._size > MAX_HELD_BYTES:
            self._release_hold()
        elif not self._step.hold:
            self._response.flush()

    def _release_hold(self) -> None:
        self._start(None)
        self._on_data = Relay._pass_events
        held, self._parts = b"".join(self._parts), []
        if self.timer.feedback is not None:
            self.timer.feedback.begun(held)
        if held:
            self._is_done = held.endswith(DONE)
            self._write(self._clean(held))

    def _end_events(self) -> None:
        assert self._splitter is not None
        if self._on_data is Relay._hold:
            self._release_hold()
        rest = self._splitter.rest()
        if rest:
            self._write(self._clean(rest))
        self._calibrate()
        if self.timer.feedback is not None:
            self.timer.feedback.ended(self._last)
        self._end()

    def _calibrate(self) -> None:
        """Tell the timer what the engine says that the stream took, beside what was counted."""
        tokens = generated_tokens(self._last)
        if tokens and self._record.text_bytes >= MIN_BYTES:
            self._record.prompt_tokens = prompt_tokens(self._last)
        if tokens and self._is_single and self._counter is self.timer.speed:
            passed = self._record.chunks - self._first_chunk - self._sent
            if self._last.endswith(b"\r\n") and is_usage_only(self._last):
                passed -= 1  # it was passed on as it came, and is no token
            self.timer.calibrate(tokens, 1 + passed + self._sent_events)

    def _end(self) -> None:
        self._client.end_response()
        self._settle(None)

    # What they share.

    def _start(self, length: int | None) -> None:
        response = self._response
        if not response.is_started:  # else by an engine that stalled: this one goes on
            block = self._head.lines_for_client()
            if self._listener is not None:
                block += self._listener.response_headers()
            kind = self._kind if self._is_stream else None
            response.start(self.status, block, length, kind)
            self._record.status = self.status
        if self._client.write_paused:
            self.on_write_paused(time.monotonic())

    def _clean(self, data: bytes) -> bytes:
        data = redact(data)
        return data if self._step.splice is None else self._step.splice.events(data)

    def _write(self, data: bytes) -> None:
        record = self._record
        if record.first_byte is None:
            record.first_byte = time.monotonic()
            if self._is_stream:
                self.timer.first_token(record.first_byte)
                if self._listener is not None:
                    self._listener.on_first_token()
        elif self._is_stream and not self._response.is_corked:
            # What comes with the end is for the most part no token but usage and [DONE].
            found = data.count(b"\n\n")
            self._counter.tokens += found
            self._sent_events += found
        if data != DONE:
            self._last = data
        self._send(data)

    def _send(self, data: bytes) -> None:
        self._sent += 1
        self._record.chunks += 1
        self._record.bytes_out += len(data)
        self._response.write(data)

    def _break_off(self, error: RouterError, failure: Failure) -> None:
        if self._listener is None:
            return
        if self._is_done:  # nothing is missing but the end of the framing
            self._end()
            return
        self.failure = failure
        if not self._response.is_started or self._on_data is Relay._hold:
            self._settle(failure)  # the client has had a head at most: its plan knows what to do
            return
        self._record.error = error.message
        self._client.fail(self._request, error)
        self._settle(None)
