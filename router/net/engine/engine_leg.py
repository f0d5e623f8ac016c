"""One attempt at an engine: what takes its answer, and who is told what became of it."""

from typing import Final, Protocol

from router.core.fleet.leg_timer import LegTimer
from router.core.plans.steps import Outcome
from router.core.values import Endpoint, Failure, FailureKind
from router.net.engine.engine_connection import EngineConnection
from router.net.limits.idle_sweep import IdleTimeoutSweep

__all__ = ["MAX_REPLY_BYTES", "NO_ROOM", "EngineLeg", "LegListener"]

MAX_REPLY_BYTES = 256 << 20
"""The largest reply that is read into memory; a larger one is treated as an engine fault. A unary
reply with logprobs for 100k tokens stays under a third of it."""

NO_ROOM: Final = Failure(FailureKind.NO_ROOM, "The router holds too many answers now.")
TOO_LARGE: Final = Failure(FailureKind.BROKEN, "The engine's reply is too large.")


class LegListener(Protocol):
    """The request that an attempt serves."""

    def on_answer(self, status: int) -> Failure | None:
        """The engine's answer has begun. Returns a failure where its status is one, whatever its
        body says."""

    def may_keep(self, size: int) -> bool:
        """Whether `size` bytes more of the answer may be kept in memory; they are counted if so."""

    def on_first_token(self) -> None:
        """The client has had the first content of a stream."""

    def on_leg_end(self, leg: "EngineLeg", outcome: Outcome | None) -> None:
        """It is over: a reply or a failure, or None when all went to the client."""

    def response_headers(self, lines: bytes) -> bytes:
        """The header lines of the answer: the engine's `lines`, and what the router adds."""

    def moved_comment(self) -> bytes:
        """What is written where a stream goes on behind the head of another engine."""

    def may_leave_stalled_engine(self) -> bool:
        """Whether another engine could take the request."""


class EngineLeg:
    """Common to all attempts. `close` ends one from outside; the listener is then told nothing.

    `failure` is how the engine failed, even if the client has been told already. `timer` times the
    attempt for the engine's speed.
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
        self.endpoint = endpoint
        self.timer = timer
        self.connection: EngineConnection | None = None
        self.failure: Failure | None = None
        self.status = 0
        """The status of the answer, 0 if none has begun."""
        self._kept = 0
        """Bytes of the answer that were kept in memory."""
        self._listener: LegListener | None = listener
        """None once the attempt is over."""
        self._sweep = sweep
        sweep.watch(self)

    def check_idle(self, now: float) -> None:
        """Give up on an engine that is late. `now` is the event loop's clock."""

    def on_write_paused(self, now: float) -> None:
        """The client does not read."""

    def on_write_resumed(self) -> None:
        """The client reads again."""

    def close(self, now: float) -> None:
        """Stop the engine's work if it is not over."""
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
        """Enough is known: the engine need not go on."""
        self._abort()
        self.failure = failure
        self._settle(failure)

    def _count_kept(self, size: int, most: int) -> None:
        """Count `size` bytes of the answer that are kept, and give up where this answer has more
        than `most`, or all answers together have too many."""
        self._kept += size
        if self._kept > most:
            self._give_up(TOO_LARGE)
        elif self._listener is not None and not self._listener.may_keep(size):
            self._give_up(NO_ROOM)
