"""The states in which a leg reads an event stream: before its first content, and from it on.

A token passes as its bytes. Only the events before the first content are parsed, and a last one
that looks like an error.
"""

import asyncio
import time
from typing import Final, Protocol

from router.core.continuation.journal import Journal, bare
from router.core.errors import EngineFailed, Overloaded, RouterError
from router.core.fleet.leg_timer import LegTimer
from router.core.plans.renamed import Renamed
from router.core.plans.steps import Stream
from router.core.retry import BUSY
from router.core.values import Failure, Reply
from router.core.wire.api_errors import DROPPED, engine_error, failed_stream, status_of
from router.core.wire.jsonspan import MARK, has_params, redact
from router.core.wire.sse import (
    ABORTED,
    DONE,
    ERROR,
    FINISHED,
    MAX_EVENT_BYTES,
    PREAMBLE,
    EventSplitter,
    data_events,
    data_of,
    ends_stream,
    error_in,
    event_kind,
    events,
    keep_alive,
)
from router.core.wire.tokens import MIN_BYTES
from router.core.wire.usage import USAGE, generated_tokens, is_usage_only, prompt_tokens
from router.net.engine.answer import AnswerHead
from router.net.request.charges import Charges
from router.net.request.downstream import Downstream
from router.net.request.readers import DELIVERED, INCOMPLETE, NO_ROOM, End, Reader, charge, failed

__all__ = ["END_OF_EVENT", "FREE_TAIL_BYTES", "Events", "Hold"]

MAX_HELD_EVENTS = 64
"""Most events without content that are held back until the first one with content, not counting
comments. /v1/responses begins with four, a chat completion of n choices with n. A token may have
empty text, but not this many in a row."""

MAX_HELD_BYTES = MAX_EVENT_BYTES
"""Most bytes that are held back. The first event can contain the prompt's token ids."""

FREE_TAIL_BYTES: Final = 1 << 16
"""Bytes of an incomplete event that are not charged to the answer budget: a read may end
anywhere."""

END_OF_EVENT: Final = b"}\n\n\r\n"
"""The end of a framed chunk that ends with a JSON event."""

JSON_HEADERS: Final = ((b"content-type", b"application/json"),)


class FirstTokenListener(Protocol):
    """The engine side of the request."""

    def on_first_token(self, now: float) -> None:
        """The first content of a stream is about to be sent to the client. `now`: monotonic
        seconds."""


class Hold(Reader):
    """Comments that keep the client's connection alive are not held back once the head was sent. If
    the step's `hold` is set, the head is held back too."""

    __slots__ = (
        "_charges",
        "_downstream",
        "_head",
        "_journal",
        "_listener",
        "_number",
        "_parts",
        "_size",
        "_splitter",
        "_step",
        "_timer",
    )

    def __init__(
        self,
        head: AnswerHead,
        step: Stream,
        timer: LegTimer,
        downstream: Downstream,
        charges: Charges,
        journal: Journal | None,
        listener: FirstTokenListener,
    ) -> None:
        self.begun = False
        self._head = head
        self._step = step
        self._timer = timer
        self._downstream = downstream
        self._charges = charges
        self._journal = journal
        self._listener = listener
        self._splitter = EventSplitter()
        self._parts: list[bytes] = []
        self._number = 0
        """Events held back, not counting comments."""
        self._size = 0
        """Their bytes."""

    def on_data(self, data: bytes) -> Reader:
        """Hold events back, or release them if one has content or an error for the client."""
        size = len(data)
        data = self._splitter.feed(data)
        found = events(data)
        for event in found:
            sign = event_kind(event if self._journal is None else bare(event))
            if sign is ERROR and (end := self._end_by(event)) is not None:
                return end
            if sign is ABORTED:
                return failed(DROPPED)
            if sign is not PREAMBLE:
                self._parts.append(data)
                return self._release()
        downstream = self._downstream
        has_head = downstream.response.is_started
        if has_head and (alive := b"".join(map(keep_alive, found))):
            downstream.send(alive)
            size -= len(alive)
            data = b"".join(event for event in found if data_of(event))
        self._parts.append(data)
        self._number += sum(1 for event in found if data_of(event))
        self._size += size
        if self._number > MAX_HELD_EVENTS or self._size > MAX_HELD_BYTES:
            return self._release()
        if has_head:
            downstream.response.flush()
        return charge(self._charges, size, self._size, MAX_HELD_BYTES) or self

    def on_end(self) -> End:
        """The stream ends without content: send all of it, unless the engine has broken it off."""
        self._parts.append(self._splitter.rest())
        if not ends_stream(b"".join(self._parts)):
            return failed(INCOMPLETE)
        following = self._release()
        return following if isinstance(following, End) else following.on_end()

    def on_broken(self, error: RouterError, failure: Failure) -> End:
        """The client has been sent at most a head and comments."""
        return failed(failure)

    def _end_by(self, event: bytes) -> End | None:
        """The end by an error event in place of the first token that goes to the plan: with a
        status that the step keeps, or before the head was sent. None if the client gets it."""
        self._timer.end(time.monotonic())  # a failure must not count as a token's time
        status, step = status_of(event), self._step
        if not step.hold and status not in step.keep:
            return None
        is_blamed = status >= 500 and status not in BUSY and not step.is_load_failure(status)
        reply = Reply(status, JSON_HEADERS, data_of(event))
        return End(reply, failed_stream(event) if is_blamed else None)

    def _release(self) -> Reader:
        downstream, held = self._downstream, b"".join(self._parts)
        if self._step.hold:
            downstream.start(self._head, self._step.endpoint, None, is_stream=True)
        if self._timer.feedback is not None:
            self._timer.feedback.begun(held)
        following = Events(
            self._step, self._timer, downstream, self._charges, self._journal, self._splitter
        )
        if not held:
            return following
        now = time.monotonic()
        downstream.record.first_byte = downstream.record.first_byte or now
        self._timer.first_token(now)
        self._listener.on_first_token(now)
        return following.begin(held)


class Events(Reader):
    """Only whole events are sent, so that a stream that breaks can still end in an error event.

    Whole framed chunks go to `to_client` without passing here while that is not None
    (`EngineLeg.on_chunk`).
    """

    __slots__ = (
        "_charges",
        "_downstream",
        "_is_done",
        "_journal",
        "_sent",
        "_splitter",
        "_step",
        "_tail_charged",
        "_timer",
        "is_rewritten",
        "is_single",
        "passed",
        "passed_bytes",
        "to_client",
    )

    def __init__(
        self,
        step: Stream,
        timer: LegTimer,
        downstream: Downstream,
        charges: Charges,
        journal: Journal | None,
        splitter: EventSplitter,
    ) -> None:
        self.begun = True
        self.to_client: asyncio.Transport | None = None
        self.is_single = timer.sequences == 1
        """Whether each chunk is one event. With several choices a chunk may contain the tokens of
        several."""
        self.is_rewritten = step.splice is not None or journal is not None
        """Whether a splice or the journal rewrites some events."""
        self.passed = 0
        """Chunks that were passed on unchanged."""
        self.passed_bytes = 0
        """Bytes of their data."""
        self._step = step
        self._timer = timer
        self._downstream = downstream
        self._charges = charges
        self._journal = journal
        self._splitter = splitter
        self._sent = 0
        """Events after the first ones that were not passed on unchanged."""
        self._tail_charged = 0
        """Bytes of an incomplete event that are charged to the answer budget."""
        self._is_done = False
        """Whether the stream is complete but for the end of its framing."""

    def begin(self, held: bytes) -> Reader:
        """Send the first events."""
        data, journal = self._clean(held), self._journal
        if journal is not None and journal.reason == "no_ids" and not journal.is_continued:
            journal.give_up()
            self._charges.drop_bytes()
            self._journal, self.is_rewritten = None, self._step.splice is not None
        if data:
            self._is_done = data.endswith(DONE)
            self._downstream.send_events(data)
        return self._checked()

    def on_data(self, data: bytes) -> Reader:
        """Send the events that are complete."""
        splitter = self._splitter
        # Nearly every read is complete events with nothing to redact.
        if (
            self.is_rewritten
            or not splitter.is_empty
            or not data.endswith(b"\n\n")
            or (data.find(MARK) >= 0 and has_params(data))
        ):
            data = splitter.feed(data)
            data = data and self._clean(data)
        downstream = self._downstream
        response = downstream.response
        if data:
            self._is_done = data.endswith(DONE)
            if not response.is_corked:  # the last read usually has no token but usage and [DONE]
                self._count(data)
            downstream.send_events(data)
        if self._journal is not None and (end := self._checked()) is not self:
            return end
        is_whole = splitter.is_empty
        self.to_client = response.chunk_transport() if is_whole and not self._is_done else None
        return self if is_whole and not self._tail_charged else self._charge_tail()

    def rewritten(self, chunk: bytes, size: int) -> bytes:
        """A framed chunk of `size` bytes of data as the client gets it; empty if its events have to
        pass `on_data`."""
        splice = self._step.splice
        if isinstance(splice, Renamed):
            return b""
        if self._journal is not None:
            return self._journal.token(chunk, size)
        is_plain = (
            chunk.endswith(END_OF_EVENT)
            and chunk.find(USAGE) < 0
            and (chunk.find(MARK) < 0 or not has_params(chunk))
        )
        return chunk if is_plain else b""

    def on_end(self) -> End:
        """Send the rest, and compare the counted tokens with the engine's usage. A stream that ends
        without its last event is broken, although its framing is complete."""
        downstream, rest = self._downstream, self._splitter.rest()
        if not self._is_done and not ends_stream(downstream.last + rest):
            return self.on_broken(EngineFailed(INCOMPLETE.message), INCOMPLETE)
        if rest:
            rest = self._clean(rest)
            if not downstream.response.is_corked:
                self._count(rest)
            downstream.send_events(rest)
        self._calibrate()
        if self._timer.feedback is not None:
            self._timer.feedback.ended(downstream.last)
        return self._finish()

    def on_broken(self, error: RouterError, failure: Failure) -> End:
        """End the stream with an error event, unless the journal has what is missing, or another
        engine can go on."""
        journal, downstream = self._journal, self._downstream
        if self._is_done:
            return self._finish()
        if journal is not None and (ending := journal.ending()):
            downstream.send_events(ending)
            downstream.end()
        elif journal is None or not journal.cut(failure):
            downstream.break_off(error)
        else:  # the next engine's first token may take a while
            downstream.response.is_corked = False
            downstream.response.flush()
        return End(None, failure)

    def close(self) -> None:
        """Count in the record what was passed on unchanged. Called once."""
        self._downstream.record.chunks += self.passed
        self._downstream.record.bytes_out += self.passed_bytes

    def count_ended(self, data: bytes) -> None:
        """Count the choices that have ended, so that their tokens are not waited for."""
        if ended := sum(map(data.count, FINISHED)):
            self._timer.sequences_ended(ended, time.monotonic())

    def _count(self, data: bytes) -> None:
        found = data_events(data) - is_usage_only(data)
        self._timer.counter.tokens += found
        self._sent += found
        if not self.is_single:
            self.count_ended(data)

    def _clean(self, data: bytes) -> bytes:
        data = redact(data)
        if self._step.splice is not None:
            data = self._step.splice.events(data)
        return data if self._journal is None else self._journal.events(data)

    def _checked(self) -> Reader:
        """Go on, unless the last events show that the answer will not be whole."""
        journal = self._journal
        if journal is None or journal.failure is None:
            return self
        return self.on_broken(EngineFailed(journal.failure.message), journal.failure)

    def _charge_tail(self) -> Reader:
        """Charge an incomplete event's bytes to the answer budget. If that is exhausted, the stream
        is ended."""
        size = max(0, self._splitter.buffered - FREE_TAIL_BYTES)
        if not self._charges.keep_answer(size - self._tail_charged):
            return self.on_broken(Overloaded(NO_ROOM.message), NO_ROOM)
        self._tail_charged = size
        return self

    def _calibrate(self) -> None:
        """Record the token counts of the engine's usage, and compare them with the counted
        events."""
        last, record, timer = self._downstream.last, self._downstream.record, self._timer
        tokens = record.generated = generated_tokens(last)
        if tokens and record.text_bytes >= MIN_BYTES:
            record.prompt_tokens = prompt_tokens(last)
        is_alone = self._journal is None or not self._journal.is_continued
        if tokens and is_alone and self.is_single and timer.counter is timer.counts.counter:
            passed = self.passed
            if last.endswith(b"\r\n") and is_usage_only(last):
                passed -= 1  # it was passed on unchanged, and is not a token
            timer.calibrate(tokens, 1 + passed + self._sent, time.monotonic())

    def _finish(self) -> End:
        """End the response. The engine has failed if the stream ended with an error event."""
        downstream, failure = self._downstream, None
        event = error_in(downstream.last)
        if event and (status := status_of(event)) >= 500:
            failure = failed_stream(event)
            role = self._step.endpoint.role
            downstream.record.error = engine_error(role, status, data_of(event))
        downstream.end()
        return DELIVERED if failure is None else End(None, failure)
