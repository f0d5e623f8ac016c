"""Reads the whole reply of a prefill engine or of a tokenizer into memory."""

import time

from router.core.fleet.leg_timer import LegTimer
from router.core.routing.engine_timeouts import EngineTimeouts, timeout_failure
from router.core.values import Endpoint, Failure, Reply
from router.core.wire.headers import HeaderPairs
from router.net.engine.answer import AnswerHead
from router.net.engine.engine_leg import MAX_REPLY_BYTES, EngineLeg, LegListener
from router.net.limits.idle_sweep import IdleTimeoutSweep

__all__ = ["Collector"]


class Collector(EngineLeg):
    """An attempt whose reply is passed to the plan. `asked_at`: when the plan requested it, in
    seconds on the event loop's clock."""

    __slots__ = ("_asked_at", "_headers", "_parts", "_timeouts")

    def __init__(
        self,
        endpoint: Endpoint,
        timer: LegTimer,
        sweep: IdleTimeoutSweep,
        listener: LegListener,
        timeouts: EngineTimeouts,
        asked_at: float,
    ) -> None:
        super().__init__(endpoint, timer, sweep, listener)
        self._timeouts = timeouts
        self._asked_at = asked_at
        self._headers: HeaderPairs = []
        self._parts: list[bytes] = []

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        """Keep the head."""
        if self._listener is not None:
            self.status = head.status
            self._headers = head.headers
            failure = self._listener.on_answer(head.status)
            if failure is not None:
                self._give_up(failure)

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """Add data to the body."""
        self._parts.append(data)
        self._count_kept(len(data), MAX_REPLY_BYTES)

    def on_chunk(self, _chunk: bytes, _size: int) -> bool:
        """Always False: the body is wanted without its chunk framing."""
        return False

    def on_end(self) -> None:
        """Pass the reply to the plan."""
        body = b"".join(self._parts)
        if self.status < 400:
            self.timer.unary_answer(time.monotonic())
            if (feedback := self.timer.feedback) is not None:
                feedback.begun(body)
                feedback.ended(body)
        self._settle(Reply(self.status, tuple(self._headers), body))

    def on_lost(self, failure: Failure) -> None:
        """Report that there will be no reply."""
        self.failure = failure
        self._settle(failure)

    def check_idle(self, now: float) -> None:
        """Give up when the time-out has passed or the engine has stalled."""
        listener = self._listener
        if listener is None:  # the attempt ended during this sweep
            return
        failure = timeout_failure(
            self._timeouts,
            self._asked_at,
            None,
            now,
            is_stalled=self.timer.speed.is_stalled,
            may_leave=listener.may_leave_stalled_engine,
        )
        if failure is not None:
            self._give_up(failure)
