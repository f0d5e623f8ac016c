"""The states in which a leg reads an engine's answer. Those of event streams: `event_readers.py`.

| state | what it does with the body |
|---|---|
| `Keep` | keeps it for the plan |
| `Whole` | keeps it until its end, because it has to be searched, then sends it |
| `PassThrough` | sends it as it comes |
| `Hold` | holds events back until the first content; until then another engine can answer instead |
| `Events` | sends events from the first content on |
| `End` | the answer is over |

A state is given the body data of each read, and returns the state for the next one: itself, nearly
always. None of them knows of connections and time-outs, which are the leg's part.
"""

import time
from typing import Final

from router.core.errors import RouterError
from router.core.fleet.leg_timer import LegTimer
from router.core.kv_events import PromptFeedback
from router.core.plans.steps import Outcome, Stream
from router.core.values import Endpoint, Failure, FailureKind, Reply
from router.core.wire.api_errors import ABORT, DROPPED, engine_error
from router.core.wire.jsonspan import redact
from router.core.wire.tokens import MIN_BYTES
from router.core.wire.usage import generated_tokens, prompt_tokens
from router.net.engine.answer import AnswerHead
from router.net.request.charges import Charges
from router.net.request.downstream import Downstream

__all__ = [
    "DELIVERED",
    "INCOMPLETE",
    "NO_ROOM",
    "End",
    "Keep",
    "PassThrough",
    "Reader",
    "Whole",
    "charge",
    "failed",
]

MAX_REPLY_BYTES = 256 << 20
"""Largest reply in bytes that is read into memory; a larger one is treated as an engine failure. A
unary reply with logprobs for 100,000 tokens takes less than a third of it, and so does a prefill
engine's with their routed experts."""

NO_ROOM: Final = Failure(FailureKind.NO_ROOM, "The router holds too many answers now.")
TOO_LARGE: Final = Failure(FailureKind.BROKEN, "The engine's reply is too large.")
INCOMPLETE: Final = Failure(
    FailureKind.BROKEN,
    "The engine's answer is incomplete.",
    "it sent an answer that is empty or ends early",
)
"""HTTP's framing does not show this: it is complete, or the body ends with its connection."""


class Reader:
    """A state. `begun`: whether the client has been sent content of this answer."""

    __slots__ = ("begun",)

    begun: bool

    def on_data(self, data: bytes) -> "Reader":
        """Process the body data of one read. Returns the next state; `End` if the rest is not to be
        read."""
        raise NotImplementedError

    def on_end(self) -> "End":
        """Process the end of the body."""
        raise NotImplementedError

    def on_broken(self, error: RouterError, failure: Failure) -> "End":
        """Process the end of an answer that is not complete. `error` is for a client that has been
        sent a part of it; otherwise the plan gets the `failure`."""
        raise NotImplementedError


class End(Reader):
    """`outcome`: a reply or a failure for the plan; None if the client has been sent the answer, or
    what could be sent of it. `failure`: how the engine failed, also if `outcome` is another."""

    __slots__ = ("failure", "outcome")

    def __init__(self, outcome: Outcome | None, failure: Failure | None = None) -> None:
        self.begun = True
        self.outcome = outcome
        self.failure = failure


DELIVERED: Final = End(None)
"""The client has been sent the whole answer."""


def failed(failure: Failure) -> End:
    """The end of an answer of which the client has been sent nothing."""
    return End(failure, failure)


class Keep(Reader):
    """`charges` is charged with all data, because the plan keeps the reply."""

    __slots__ = ("_charges", "_head", "_parts", "_size", "_timer")

    def __init__(self, head: AnswerHead, timer: LegTimer, charges: Charges) -> None:
        self.begun = False
        self._head = head
        self._timer = timer
        self._charges = charges
        self._parts: list[bytes] = []
        self._size = 0

    def on_data(self, data: bytes) -> Reader:
        """Add data, and charge it."""
        self._parts.append(data)
        self._size += len(data)
        return charge(self._charges, len(data), self._size, MAX_REPLY_BYTES) or self

    def on_end(self) -> End:
        """Pass the reply to the plan."""
        status, body = self._head.status, b"".join(self._parts)
        if _is_cut(self._head, body):
            return failed(INCOMPLETE)
        if status < 400:
            self._timer.unary_answer(time.monotonic())
            if self._timer.feedback is not None:
                _learn(self._timer.feedback, body)
        return End(Reply(status, tuple(self._head.headers), body))

    def on_broken(self, error: RouterError, failure: Failure) -> End:
        """There is no reply."""
        return failed(failure)


class Whole(Reader):
    """An answer that is complete in its first read is not charged: it is not kept."""

    __slots__ = ("_charges", "_downstream", "_head", "_parts", "_size", "_step", "_timer")

    def __init__(
        self,
        head: AnswerHead,
        step: Stream,
        timer: LegTimer,
        downstream: Downstream,
        charges: Charges,
    ) -> None:
        self.begun = False
        self._head = head
        self._step = step
        self._timer = timer
        self._downstream = downstream
        self._charges = charges
        self._parts: list[bytes] = []
        self._size = 0

    def on_data(self, data: bytes) -> Reader:
        """Add data, and charge it unless it is the whole body."""
        parts = self._parts
        parts.append(data)
        if len(parts) == 1 and self._downstream.response.is_corked:
            return self
        self._size += len(data)
        return charge(self._charges, len(data), self._size, MAX_REPLY_BYTES) or self

    def on_end(self) -> End:
        """Send the answer, unless the engine has aborted the request or broken its answer off."""
        parts, head, now = self._parts, self._head, time.monotonic()
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        downstream, record = self._downstream, self._downstream.record
        if _is_cut(head, body):
            return failed(INCOMPLETE)
        if head.status < 400:
            tokens = generated_tokens(body)
            if not tokens and body.find(ABORT) >= 0:
                return failed(DROPPED)
            self._timer.unary_answer(now, tokens)
            record.generated = tokens
            if record.text_bytes >= MIN_BYTES:
                record.prompt_tokens = prompt_tokens(body)
            if self._timer.feedback is not None:
                _learn(self._timer.feedback, body)
        body = redact(body)
        if head.status >= 400:
            record.error = engine_error(self._step.endpoint.role, head.status, body)
        elif self._step.splice is not None:
            body = self._step.splice.body(body)
        downstream.start(head, self._step.endpoint, len(body))
        record.first_byte = now
        downstream.send(body)
        downstream.end()
        return DELIVERED

    def on_broken(self, error: RouterError, failure: Failure) -> End:
        """The client has been sent nothing."""
        return failed(failure)


def charge(charges: Charges, size: int, total: int, most: int) -> End | None:
    """Charge `size` more bytes of an answer, of which `total` are kept now. Returns its end if that
    is more than `most`, or if the answer budget is exhausted."""
    if total > most:
        return failed(TOO_LARGE)
    return None if charges.keep_answer(size) else failed(NO_ROOM)


def _is_cut(head: AnswerHead, body: bytes) -> bool:
    """Whether a 200 of a route that generates has no body, or JSON without its end."""
    if head.status != 200 or body.endswith(b"}"):
        return False
    text = body.rstrip()
    is_json = head.fields.get(b"content-type", b"").startswith(b"application/json")
    return not text or (is_json and not text.endswith(b"}"))


def _learn(feedback: PromptFeedback, body: bytes) -> None:
    """Learn from a whole answer what the engine says of the prompt."""
    feedback.begun(body)
    feedback.ended(body)


class PassThrough(Reader):
    """The head is sent with the first data: until then another engine can answer instead."""

    __slots__ = ("_downstream", "_endpoint", "_head", "_length")

    def __init__(
        self, head: AnswerHead, endpoint: Endpoint, length: int | None, downstream: Downstream
    ) -> None:
        """`length`: of the body in bytes, if the engine states it."""
        self.begun = False
        self._head = head
        self._endpoint = endpoint
        self._length = length
        self._downstream = downstream

    def on_data(self, data: bytes) -> Reader:
        """Send data."""
        if not self.begun:
            self._start()
            self._downstream.record.first_byte = time.monotonic()
        self._downstream.send(data)
        return self

    def on_end(self) -> End:
        """End the response."""
        if not self.begun:
            self._start()
        self._downstream.end()
        return DELIVERED

    def on_broken(self, error: RouterError, failure: Failure) -> End:
        """Abort the client's connection if it has been sent the head, so that it does not take the
        body for complete."""
        if not self.begun:
            return failed(failure)
        self._downstream.break_off(error)
        return End(None, failure)

    def _start(self) -> None:
        self.begun = True
        self._downstream.start(self._head, self._endpoint, self._length)
