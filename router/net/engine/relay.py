"""Relays one engine's answer to the client, or holds it back if the plan's step asks for that.

Data goes from the engine's read callback to the client's transport without a task switch. The
current handler of body data (`_on_data`) is the relay's state: keep, hold, events, whole body, or
pass-through.
"""

import time
from typing import Final

from router.core.errors import EngineFailed, RouterError
from router.core.retry import BUSY
from router.core.values import PASS_THROUGH, Failure, FailureKind, Reply
from router.core.wire.engine_error import ABORT, DROPPED, engine_error, failed_stream, status_of
from router.core.wire.redact import MARK, redact
from router.core.wire.sse import (
    ABORTED,
    DONE,
    ERROR,
    MAX_EVENT_BYTES,
    PREAMBLE,
    EventSplitter,
    data_of,
    error_in,
    event_kind,
    events,
    has_data,
    keep_alive,
)
from router.core.wire.token_ratios import MIN_BYTES
from router.core.wire.usage import USAGE, generated_tokens, is_usage_only, prompt_tokens
from router.net.engine.answer import AnswerHead
from router.net.engine.relay_leg import RelayLeg

__all__ = ["Relay"]

MAX_HELD_EVENTS = 64
"""Most events without content that are held back until the first one with content, not counting
comments. /v1/responses begins with four, a chat completion of n choices with n. A token may have
empty text, but not this many in a row."""

MAX_HELD_BYTES = MAX_EVENT_BYTES
"""Most bytes that are held back. The first event can contain the prompt's token ids."""

END_OF_EVENT: Final = b"}\n\n\r\n"
"""The end of a framed chunk that ends with a JSON event."""

END_OF_TOKEN: Final = b"}]}\n\n\r\n"
"""The end of a framed chunk whose event ends with its choices, as vLLM's tokens do: no usage and no
error. It is not kept, because to free it at the next token, when it is in no cache any more, costs
1 % of the CPU with a thousand streams."""

JSON_HEADERS: Final = ((b"content-type", b"application/json"),)


class Relay(RelayLeg):
    """An attempt whose answer is sent to the client."""

    __slots__ = ()

    # Called by the engine's connection.

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        """Choose how the body is processed. `has_body`: its first data follow immediately."""
        listener = self._listener
        if listener is None:
            return
        status = head.status
        failure = listener.on_answer(status)
        self.status = status
        self._head = head
        has_head = self._response.is_started
        if failure is None and (status in self._step.keep or (has_head and status >= 400)):
            return  # for the plan
        generates = self._kind is not PASS_THROUGH
        is_stream = generates and head.is_event_stream
        if head.is_redirect or head.is_compressed or has_head:
            failure = failure or self._unusable(head, generates=generates, is_stream=is_stream)
        if failure is not None:
            self._give_up(failure)
        elif is_stream:
            self._is_stream = True
            if has_head:
                self._response.write(listener.engine_comment())
            self._splitter = EventSplitter()
            self._on_data = Relay._hold
            self._on_end = Relay._end_events
            if not self._step.hold:
                self._start(None)
                if not has_body:
                    self._response.flush()
        elif generates or status >= 400:  # the whole body of an error is read for the log
            self._on_end = Relay._end_whole
        else:
            self._length = length
            self._on_data = Relay._pass_first
            self._on_end = Relay._end_empty

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """Process the body data of one read."""
        if self._listener is None:  # the client left in this turn of the event loop
            return
        if not is_last and (not data.startswith(b":") or has_data(data)):
            self._heard_at = self._client.loop.time()
        self._response.is_corked = is_last
        self._on_data(self, data)

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        """Pass on a chunk unchanged if it ends with a complete event and contains nothing to
        redact, nor usage that has to be corrected.

        This is the fast path, which nearly every token takes.
        """
        to_client = self._to_client
        is_token = chunk.endswith(END_OF_TOKEN)
        if (
            to_client is None
            or not (is_token or (chunk.endswith(END_OF_EVENT) and not self._corrects(chunk)))
            or chunk.find(MARK) >= 0
        ):
            return False
        if self._listener is not None:
            self._passed += 1
            self._passed_bytes += size
            if self._is_single:
                self._counter.tokens += 1
            else:
                self._counter.tokens += chunk.count(b"\n\n")
                self._count_ended(chunk)
            self._last = b"" if is_token else chunk
            to_client.write(chunk)
        return True

    def _corrects(self, chunk: bytes) -> bool:
        """Whether the splice has to see a chunk behind the first content."""
        return not self._is_plain and chunk.find(USAGE) >= 0

    def on_end(self) -> None:
        """The engine's answer is complete."""
        if self._listener is not None:
            self._on_end(self)

    def on_lost(self, failure: Failure) -> None:
        """Report a broken answer: by an error frame if the client has received part of a stream,
        otherwise to the plan."""
        self._break_off(EngineFailed(failure.message), failure)

    def _unusable(self, head: AnswerHead, *, generates: bool, is_stream: bool) -> Failure | None:
        """Why an answer cannot be passed on, judging by its head; None if it can."""
        if head.is_redirect or (generates and head.is_compressed):
            what = "a redirect" if head.is_redirect else "compressed data, not asked for"
            return Failure(FailureKind.BROKEN, f"The engine answered with {what}.")
        if self._response.is_started and not (is_stream and head.status == 200):
            return Failure(FailureKind.BROKEN, "The engine answered with no stream.")
        return None

    # Handlers of body data and of the end of the body.

    def _end_whole(self) -> None:
        parts, now = self._parts, time.monotonic()
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self.status < 400:
            tokens = generated_tokens(body)
            if not tokens and body.find(ABORT) >= 0:
                self.failure = DROPPED
                self._settle(DROPPED)
                return
            self.timer.unary_answer(now, tokens)
            self._record.generated = tokens
            if self._record.text_bytes >= MIN_BYTES:
                self._record.prompt_tokens = prompt_tokens(body)
            if (feedback := self.timer.feedback) is not None:
                feedback.begun(body)
                feedback.ended(body)
        body = redact(body)
        if self.status >= 400:
            self._record.error = engine_error(self.endpoint.role, self.status, body)
        elif self._step.splice is not None:
            body = self._step.splice.body(body)
        self._start(len(body))
        self._record.first_byte = now
        self._send(body)
        self._end()

    def _pass_first(self, data: bytes) -> None:
        """Send the head with the first data: from now on no other engine can answer instead."""
        self._start(self._length)
        self._on_data = Relay._write
        self._on_end = Relay._end
        self._write(data)

    def _end_empty(self) -> None:
        self._start(self._length)
        self._end()

    def _pass_events(self, data: bytes) -> None:
        splitter = self._splitter
        assert splitter is not None
        # Nearly every read is complete events with nothing to redact.
        if not (
            self._is_plain and splitter.is_empty and data.endswith(b"\n\n") and data.find(MARK) < 0
        ):
            data = splitter.feed(data)
            data = data and self._clean(data)
        if data:
            self._is_done = data.endswith(DONE)
            self._write(data)
        is_whole = splitter.is_empty
        is_clear = is_whole and not self._is_done
        self._to_client = self._response.chunk_transport() if is_clear else None
        if not is_whole or self._tail_counted:
            self._count_tail(splitter.buffered)

    def _hold(self, data: bytes) -> None:
        """Hold events back until one has content: until then another engine can answer instead.

        If the step's `hold` is set the head is held back too. Once the head has been sent, the
        client gets comments that keep its connection alive.
        """
        assert self._splitter is not None
        size = len(data)
        data = self._splitter.feed(data)
        found = events(data)
        for event in found:
            sign = event_kind(event)
            if sign is ERROR and self._is_settled_by(event):
                return
            if sign is ABORTED:
                self._give_up(DROPPED)
                return
            if sign is not PREAMBLE:
                self._parts.append(data)
                self._release_hold()
                return
        has_head = self._response.is_started
        if has_head and (alive := b"".join(map(keep_alive, found))):
            self._send(alive)
            size -= len(alive)
            data = b"".join(event for event in found if data_of(event))
        self._parts.append(data)
        self._events_held += sum(1 for event in found if data_of(event))
        if self._events_held > MAX_HELD_EVENTS or self._kept + size > MAX_HELD_BYTES:
            self._release_hold()
            return
        if has_head:
            self._response.flush()
        self._count_kept(size, MAX_HELD_BYTES)

    def _is_settled_by(self, event: bytes) -> bool:
        """Handle an error event that comes in place of the first token. Returns True if it goes to
        the plan: a status that the step keeps, or any error before the head was sent. Otherwise it
        is relayed."""
        self.timer.end(time.monotonic())  # a failure must not count as a token's time
        status, step = status_of(event), self._step
        if step.hold or status in step.keep:
            if status >= 500 and status not in BUSY and not step.is_load_failure(status):
                self.failure = failed_stream(event)
            self._abort()
            self.status = status  # the client or the plan gets it as an error response
            self._settle(Reply(status, JSON_HEADERS, data_of(event)))
            return True
        return False

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
        """Report the token counts of the engine's usage, to be compared with the counted events."""
        tokens = self._record.generated = generated_tokens(self._last)
        if tokens and self._record.text_bytes >= MIN_BYTES:
            self._record.prompt_tokens = prompt_tokens(self._last)
        if tokens and self._is_single and self._counter is self.timer.speed:
            passed = self._passed
            if self._last.endswith(b"\r\n") and is_usage_only(self._last):
                passed -= 1  # it was passed on unchanged, and is not a token
            self.timer.calibrate(tokens, 1 + passed + self._sent_events, time.monotonic())

    def _end(self) -> None:
        if self._is_stream and (event := error_in(self._last)):
            self._note_error(event)
        self._client.end_response()
        self._settle(None)

    def _note_error(self, event: bytes) -> None:
        """Record an error event that ended the stream after tokens had been sent."""
        status = status_of(event)
        if status >= 500:
            self.failure = failed_stream(event)
            self._record.error = engine_error(self.endpoint.role, status, data_of(event))

    def _clean(self, data: bytes) -> bytes:
        data = redact(data)
        return data if self._step.splice is None else self._step.splice.events(data)

    def _break_off(self, error: RouterError, failure: Failure) -> None:
        if self._listener is None:
            return
        if self._is_done:  # only the end of the framing is missing
            self._end()
            return
        self.failure = failure
        if self._record.first_byte is None:
            self._settle(failure)  # the client has at most received a head, so the plan decides
            return
        self._record.error = error.message
        self._client.fail(self._request, error, last=self._last)
        self._settle(None)
