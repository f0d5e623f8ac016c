"""What becomes of one engine's answer: read into memory, or passed on to the client.

A `Relay` passes bytes from the engine's read callback to the client's transport with no task
switch in between, and tells its asker when the answer is over. Its current handler of body bytes
is its state: keep, hold, events, whole body, or as it comes.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from router.core import headers as http
from router.core.errors import EngineFailed, EngineTimedOut, RouterError
from router.core.events import RequestEnded
from router.core.leg import Leg
from router.core.plans.steps import Outcome, Stream
from router.core.redact import MARK, redact
from router.core.sse import (
    DONE,
    MAX_EVENT_BYTES,
    Cutter,
    First,
    data_of,
    events,
    first_sign,
    keep_alive,
)
from router.core.usage import generated_tokens
from router.core.values import Endpoint, Failure, FailureKind, Reply, RouteKind
from router.net.client import ClientReply
from router.net.engine_connection import EngineConnection, HeaderList
from router.net.silence import Silence

__all__ = ["Collector", "Relay"]

MAX_REPLY_BYTES = 256 << 20
"""The largest reply that is read into memory; more is an engine out of its mind. A unary reply
with logprobs for 100k tokens stays under a third of it."""


CATCH_UP_SWEEPS = 2
"""Sweeps over silent streams until one whose client did not read is timed again: at least one whole
interval. What has piled up by then comes faster than any engine makes it."""

MAX_HELD_EVENTS = 64
"""Events without content that wait for the first one with some. /v1/responses begins with four, a
chat of n choices with n; a token may have no text of its own, but not so many in a row."""

MAX_HELD_BYTES = MAX_EVENT_BYTES
"""The first of them can hold the prompt's token ids."""

JSON_HEADERS = ((b"content-type", b"application/json"),)


class TokenCount(Protocol):
    """Where the tokens of a stream are counted."""

    tokens: int


class Uncounted:
    """Where they are counted while they tell nothing of the engine."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0


class Asker(Protocol):
    """Who waits for what becomes of an answer."""

    def answered(self, status: int) -> None:
        """The answer has begun."""

    def begun(self) -> None:
        """The client has had a first piece of a stream."""

    def settled(self, outcome: Outcome | None) -> None:
        """It is over: a reply or a failure, or None when all went to the client."""

    def headers(self) -> HeaderList:
        """What the router adds to the answer's headers."""

    def moved(self) -> bytes:
        """What the router says where a stream goes on behind the head of another engine."""

    def may_move(self) -> bool:
        """Whether there is another engine to ask."""


class Collector:
    """Reads a whole reply into memory, for `limit` seconds at most."""

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        limit: float,
        silence: Silence,
        leg: Leg,
        asker: Asker,
    ) -> None:
        self.connection: EngineConnection | None = None
        self.failure: Failure | None = None
        self._endpoint = endpoint
        self._deadline = loop.time() + limit
        self._asker: Asker | None = asker
        self._leg = leg
        self._silence = silence
        silence.watch(self)
        self._reply = Reply(0)
        self._parts: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: HeaderList) -> None:
        """Keep the head."""
        if self._asker is not None:
            self._asker.answered(status)
            self._reply = Reply(status, tuple(headers))

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """Keep a piece of body."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > MAX_REPLY_BYTES:
            self._give_up(Failure(FailureKind.BROKEN, "The engine's reply is too large."))

    @property
    def status(self) -> int:
        """The status of the answer, 0 if none has begun."""
        return self._reply.status

    def on_end(self) -> None:
        """The reply is whole."""
        if self._reply.status < 400:
            self._leg.whole(time.monotonic())
        self._settle(Reply(self._reply.status, self._reply.headers, b"".join(self._parts)))

    def check_silence(self, now: float) -> None:
        """Leave an engine that is late, or that has stopped to answer anybody."""
        if now >= self._deadline:
            text = f"The engine at {self._endpoint.url} did not reply in time."
            self._give_up(Failure(FailureKind.TIMEOUT, text))
        elif self._leg.pace.is_stalled:  # there is always another way
            self._give_up(Failure(FailureKind.STALLED, "The engine has stalled."))

    def on_chunk(self, _chunk: bytes, _size: int) -> bool:
        """Body bytes are wanted without their framing."""
        return False

    def on_lost(self, failure: Failure) -> None:
        """There will be no reply."""
        self.failure = failure
        self._settle(failure)

    def close(self) -> None:
        """Stop the engine's work if it is not over. Nobody is told."""
        self._silence.forget(self)
        self._leg.end(time.monotonic())
        if self._asker is not None:
            self._asker = None
            if self.connection is not None:
                self.connection.abort()

    def _give_up(self, failure: Failure) -> None:
        if self.connection is not None:
            self.connection.abort()
        self.on_lost(failure)

    def _settle(self, outcome: Outcome) -> None:
        asker, self._asker = self._asker, None
        if asker is not None:
            asker.settled(outcome)


class Relay:
    """Passes one engine's answer on to the client, or keeps it back as the step demands."""

    def __init__(
        self,
        step: Stream,
        reply: ClientReply,
        record: RequestEnded,
        *,
        kind: RouteKind,
        first_byte_seconds: float,
        idle_seconds: float,
        silence: Silence,
        leg: Leg,
        asker: Asker,
    ) -> None:
        self._asker: Asker | None = asker
        """None once the answer is over."""
        self.connection: EngineConnection | None = None
        self.failure: Failure | None = None
        """How the engine failed, even if the client has been told already."""
        self._step = step
        self._reply = reply
        self._record = record
        self._kind = kind
        self._idle_seconds = idle_seconds
        self._first_byte_seconds = first_byte_seconds
        self._leg = leg
        self._counter: TokenCount = leg.pace
        self._is_single = leg.sequences == 1
        """Whether a chunk is one event: the tokens of several answers may come in one."""
        self._last = b""
        """What was passed on last, but for the terminator: it may hold the usage."""
        self._first_chunk = record.chunks
        """Chunks that were passed on before this answer."""
        self._sent = self._sent_events = 0
        """Of `record.chunks`: those that were not passed on as they came, and the events in them
        that were counted as tokens."""
        self._sweeps_to_wait = 0
        """Until the leg is timed again; 0 while it is."""
        self._head = Reply(0)
        self._cutter = Cutter()
        self._parts: list[bytes] = []
        self._size = 0
        self._events_held = 0
        self._is_stream = False
        self._is_done = False
        self._is_plain = step.splice is None
        self._forward: Callable[[bytes], None] | None = None
        """Where whole chunks go with their framing, while nothing needs to be done to them."""
        self._asked_at = reply.loop.time()
        self._heard_at: float | None = None
        self._chunks_before = 0
        self._silence = silence
        silence.watch(self)
        # Functions, not methods of this object: a cycle would leave every request, its body
        # included, to the garbage collector.
        self._on_data: Callable[[Relay, bytes], None] = Relay._collect
        self._on_end: Callable[[Relay], None] = Relay._end_kept

    # The engine connection's side.

    def on_head(self, status: int, headers: HeaderList) -> None:
        """Choose what becomes of the body."""
        if self._asker is None:
            return
        self._asker.answered(status)
        self._head = Reply(status, tuple(headers))
        content_type = (http.value(headers, b"content-type") or b"").lower()
        if status in self._step.keep:
            return
        generates = self._kind is not RouteKind.PASS_THROUGH
        is_stream = generates and content_type.startswith(b"text/event-stream")
        if self._reply.is_started and not (is_stream and status == 200):
            text = f"A second engine answered with status {status} behind the head of a stream."
            self.failure = Failure(FailureKind.BROKEN, text)
            self._stop(self.failure)
        elif is_stream:
            self._is_stream = True
            if self._reply.is_started:
                self._reply.write(self._asker.moved())
            self._on_data = Relay._hold
            self._on_end = Relay._end_events
            if not self._step.hold:
                self._start(None)
                self._reply.loop.call_soon(self._flush)
        elif generates:
            self._on_end = Relay._end_whole
        else:
            self._start(_length(headers))
            self._on_data = Relay._pass
            self._on_end = Relay._end

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """Take one read's worth of body."""
        if self._asker is None:  # the client left in this very turn of the event loop
            return
        self._heard_at = self._reply.loop.time()
        self._reply.is_corked = is_last
        self._on_data(self, data)

    @property
    def status(self) -> int:
        """The status of the answer, 0 if none has begun."""
        return self._head.status

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        """Pass on a chunk as it stands: a whole event, with nothing in it to take out.

        The shortest way through the router, and the one that nearly every token takes.
        """
        forward = self._forward
        if forward is None or not chunk.endswith(b"}\n\n\r\n") or MARK in chunk:
            return False
        if self._asker is not None:
            record = self._record
            record.chunks += 1
            record.bytes_out += size
            self._counter.tokens += 1 if self._is_single else chunk.count(b"\n\n")
            self._last = chunk
            forward(chunk)
        return True

    def on_end(self) -> None:
        """The engine's answer is complete."""
        if self._asker is not None:
            self._on_end(self)

    def on_lost(self, failure: Failure) -> None:
        """The engine broke off: an error frame if the client has seen a stream, else its plan."""
        self._break_off(EngineFailed(failure.message), failure)

    def close(self) -> None:
        """Stop the engine's work if it is not over. Nobody is told."""
        self._silence.forget(self)
        self._leg.end(time.monotonic())
        self._reply.unbind()
        if self._asker is not None:
            self._asker = None
            if self.connection is not None:
                self.connection.abort()

    # The client's side.

    def pause_reading(self) -> None:
        """The client reads slower than its engine writes: that says nothing of the engine."""
        self._sweeps_to_wait = CATCH_UP_SWEEPS
        self._counter = Uncounted()
        self._leg.pause(time.monotonic())
        if self.connection is not None:
            self.connection.pause_reading()

    def resume_reading(self) -> None:
        """The client reads again. It is timed when it has kept up for a while."""
        if self.connection is not None:
            self.connection.resume_reading()

    def _catch_up(self) -> None:
        self._sweeps_to_wait -= 1
        if self._sweeps_to_wait == 0:
            self._counter = self._leg.pace
            self._leg.resume(time.monotonic())

    def check_silence(self, now: float) -> None:
        """Give up on an engine that has been silent for too long."""
        if self._sweeps_to_wait and not self._reply.is_paused:
            self._catch_up()
        chunks = self._record.chunks
        if self._reply.is_paused or chunks != self._chunks_before:
            # It is the client that everybody waits for, or the engine has spoken.
            self._heard_at, self._chunks_before = now, chunks
        if self._heard_at is None:
            limit, since = self._first_byte_seconds, self._asked_at
        else:
            limit, since = self._idle_seconds, self._heard_at
        if now - since < limit:
            self._leave_if_stalled()
            return
        text = f"The engine at {self._step.endpoint.url} sent nothing for {limit:g} s."
        if self.connection is not None:
            self.connection.abort()
        self._break_off(EngineTimedOut(text), Failure(FailureKind.TIMEOUT, text))

    def _leave_if_stalled(self) -> None:
        """A request that has had nothing but a head need not wait for an engine that stopped."""
        if self._record.first_byte is not None or not self._leg.pace.is_stalled:
            return
        if self._asker is not None and self._asker.may_move():
            text = f"The engine at {self._step.endpoint.url} has stalled."
            self.failure = Failure(FailureKind.STALLED, text)
            self._stop(self.failure)

    # Handlers of body bytes, and of their end.

    def _collect(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > MAX_REPLY_BYTES:
            self.failure = Failure(FailureKind.BROKEN, "The engine's reply is too large.")
            self._stop(self.failure)

    def _end_kept(self) -> None:
        self._settle(Reply(self._head.status, self._head.headers, b"".join(self._parts)))

    def _end_whole(self) -> None:
        body = b"".join(self._parts)
        if self._head.status < 400:
            self._leg.whole(time.monotonic(), generated_tokens(body))
        body = redact(body)
        if self._step.splice is not None and self._head.status < 400:
            body = self._step.splice.body(body)
        self._start(len(body))
        self._write(body)
        self._end()

    def _pass(self, data: bytes) -> None:
        self._write(data)

    def _pass_events(self, data: bytes) -> None:
        is_whole = self._cutter.is_empty and data.endswith(b"\n\n")
        # Nearly every read is whole events with nothing to take out.
        if not (is_whole and self._is_plain and MARK not in data):
            data = self._cutter.feed(data)
            data = data and self._clean(data)
        if data:
            self._is_done = data.endswith(DONE)
            self._write(data)
        is_clear = self._is_plain and self._cutter.is_empty and not self._is_done
        self._forward = self._reply.chunk_writer() if is_clear else None

    def _hold(self, data: bytes) -> None:
        """Keep events back until one has content: up to then another engine can answer instead.

        With the step's `hold` the head waits too; without it the client has had the head, and gets
        comments, which keep its connection alive.
        """
        data = self._cutter.feed(data)
        found = events(data)
        for event in found:
            sign = first_sign(event)
            if sign is First.ERROR and self._step.hold:
                # It was never shown as a stream: whoever gets it gets it as an error response.
                self._stop(Reply(_status_of(event), JSON_HEADERS, data_of(event)))
                return
            if sign is First.ERROR:
                self._leg.end(time.monotonic())  # a failure is no token to be timed
            if sign is not First.PREAMBLE:
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

    def _release_hold(self) -> None:
        self._start(None)
        self._on_data = Relay._pass_events
        held, self._parts = b"".join(self._parts), []
        if held:
            self._is_done = held.endswith(DONE)
            self._write(self._clean(held))

    def _end_events(self) -> None:
        if self._on_data is Relay._hold:
            self._release_hold()
        rest = self._cutter.rest()
        if rest:
            self._write(self._clean(rest))
        self._calibrate()
        self._end()

    def _calibrate(self) -> None:
        """Tell the leg what the engine says that the stream took, beside what was counted of it."""
        tokens = generated_tokens(self._last)
        if tokens and self._is_single and self._counter is self._leg.pace:
            passed = self._record.chunks - self._first_chunk - self._sent
            self._leg.used(tokens, 1 + passed + self._sent_events)

    def _end(self) -> None:
        self._reply.finish()
        self._settle(None)

    # What they share.

    def _start(self, length: int | None) -> None:
        if self._reply.is_started:  # by an engine that stalled; this one goes on where it was
            self._reply.bind(self)
            return
        passed = http.end_to_end(self._head.headers, http.RESPONSE_ONLY)
        block = http.block(passed + self._asker.headers()) if self._asker is not None else b""
        self._reply.start(
            self._head.status, block, length, stream_of=self._kind if self._is_stream else None
        )
        self._record.status = self._head.status
        self._reply.bind(self)

    def _flush(self) -> None:
        if self._asker is not None:
            self._reply.flush()

    def _clean(self, data: bytes) -> bytes:
        data = redact(data)
        return data if self._step.splice is None else self._step.splice.events(data)

    def _write(self, data: bytes) -> None:
        record = self._record
        if record.first_byte is None:
            record.first_byte = time.monotonic()
            if self._is_stream:
                self._leg.first(record.first_byte)
                if self._asker is not None:
                    self._asker.begun()
        elif self._is_stream and not self._reply.is_corked:
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
        self._reply.write(data)

    def _settle(self, outcome: Outcome | None) -> None:
        self._reply.is_corked = False
        asker, self._asker = self._asker, None
        if asker is not None:
            asker.settled(outcome)

    def _stop(self, outcome: Reply | Failure) -> None:
        """Enough is known: the engine need not go on."""
        if self.connection is not None:
            self.connection.abort()
        self._settle(outcome)

    def _break_off(self, error: RouterError, failure: Failure) -> None:
        if self._asker is None:
            return
        if self._is_done:  # nothing is missing but the end of the framing
            self._end()
            return
        self.failure = failure
        if not self._reply.is_started or self._on_data is Relay._hold:
            self._settle(failure)  # the client has had a head at most: its plan knows what to do
            return
        self._record.error = error.message
        self._reply.fail(error)
        self._settle(None)


def _length(headers: HeaderList) -> int | None:
    length = http.value(headers, b"content-length")
    return int(length) if length is not None and length.isdigit() else None


def _status_of(event: bytes) -> int:
    """The status that an error event stands for: its `code` if that is one, else 500."""
    try:
        document: Any = orjson.loads(data_of(event))
        code = document["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return 500
    return code if isinstance(code, int) and 400 <= code <= 599 else 500
