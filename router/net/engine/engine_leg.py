"""One attempt at an engine: it receives the answer and reports the outcome to its listener."""

from typing import Final, Protocol

from router.core.fleet.leg_timer import LegTimer
from router.core.plans.steps import Outcome
from router.core.values import Endpoint, Failure, FailureKind
from router.net.engine.answer import Sink
from router.net.engine.engine_connection import EngineConnection
from router.net.limits.idle_sweep import IdleTimeoutSweep

__all__ = ["MAX_REPLY_BYTES", "NO_ROOM", "EngineLeg", "LegListener"]

MAX_REPLY_BYTES = 256 << 20
"""Largest reply in bytes that is read into memory; a larger one is treated as an engine failure. A
unary reply with logprobs for 100,000 tokens takes less than a third of it, and so does a prefill
engine's with their routed experts."""

NO_ROOM: Final = Failure(FailureKind.NO_ROOM, "The router holds too many answers now.")
TOO_LARGE: Final = Failure(FailureKind.BROKEN, "The engine's reply is too large.")


class LegListener(Protocol):
    """The request's run that makes the attempt."""

    def on_answer(self, status: int) -> Failure | None:
        """The engine's answer has begun. Returns a failure if the status alone is one."""

    def may_keep(self, size: int) -> bool:
        """Whether `size` more bytes of the answer may be kept in memory. If so they are charged to
        the answer budget."""

    def on_first_token(self) -> None:
        """The client has been sent the first content of a stream."""

    def on_leg_end(self, leg: "EngineLeg", outcome: Outcome | None) -> None:
        """The attempt is over. `outcome`: a reply or a failure for the plan, or None if the whole
        answer was sent to the client."""

    def response_headers(self, lines: bytes) -> bytes:
        """The header lines of the client's response: the engine's `lines` and those that the router
        adds."""

    def engine_comment(self) -> bytes:
        """The SSE comment that is sent where an engine answers behind a head that does not name
        it."""

    def may_leave_stalled_engine(self) -> bool:
        """Whether another engine could take the request."""


class EngineLeg(Sink):
    """What all attempts have in common. `close` ends an attempt without a report to the listener.

    `failure` is how the engine failed, also if the client has been told already. `timer` measures
    the engine's speed.
    """

    __slots__ = (
        "_kept",
        "_listener",
        "_sweep",
        "connection",
        "endpoint",
        "failure",
        "status",
        "timer",
    )

    def __init__(
        self, endpoint: Endpoint, timer: LegTimer, sweep: IdleTimeoutSweep, listener: LegListener
    ) -> None:
        # Compiled, attributes lie in memory in this order. What each chunk needs comes first, for
        # with a thousand streams each further cache line that it touches is a miss.
        self._listener: LegListener | None = listener
        """None once the attempt is over."""
        self.endpoint = endpoint
        self.timer = timer
        self.connection: EngineConnection | None = None
        self.failure: Failure | None = None
        self.status = 0
        """HTTP status of the answer, 0 before it begins."""
        self._kept = 0
        """Bytes of the answer that were kept in memory."""
        self._sweep = sweep
        sweep.watch(self)

    def check_idle(self, now: float) -> None:
        """Give up if the engine has timed out. `now` is the event loop's clock, in seconds."""

    def on_write_paused(self, now: float) -> None:
        """The client has stopped reading."""

    def on_write_resumed(self) -> None:
        """The client is reading again."""

    def last_events(self) -> bytes:
        """The last events that the client has been sent, as far as they are kept."""
        return b""

    def close(self, now: float) -> None:
        """Close the engine connection if the attempt is not over."""
        self._sweep.forget(self)
        self.timer.end(now)
        if self._listener is not None:
            self._listener = None
            self._abort()

    def _abort(self) -> None:
        if self.connection is not None:
            self.connection.abort()

    def _settle(self, outcome: Outcome | None) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_leg_end(self, outcome)

    def _give_up(self, failure: Failure) -> None:
        """Close the engine connection and report `failure`."""
        self._abort()
        self.failure = failure
        self._settle(failure)

    def _count_kept(self, size: int, most: int) -> None:
        """Count `size` more bytes as kept. Gives up if this answer has more than `most` bytes, or
        if the answer budget is exhausted."""
        self._kept += size
        if self._kept > most:
            self._give_up(TOO_LARGE)
        elif self._listener is not None and not self._listener.may_keep(size):
            self._give_up(NO_ROOM)
