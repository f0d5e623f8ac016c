"""The engine side of a request: makes the run's engine requests, one at a time.

A request goes out on an idle connection or a new one. If a reused connection turns out to be
closed, it is sent again on a new one, which is no attempt of the plan.
"""

import time
from functools import partial
from typing import Final, Protocol

from router.core.continuation.move_queue import Mover
from router.core.gateway.protocol import GATEWAY_HEADERS
from router.core.limits.api_keys import KEY_HEADERS
from router.core.plans.steps import Call, Outcome
from router.core.routing.engine_timeouts import STALLED
from router.core.routing.request_run import RequestRun
from router.core.values import ENCODE, PASS_THROUGH, Failure, FailureKind, Reply
from router.core.wire import headers as http
from router.core.wire.api_errors import UNAUTHORIZED, UNAUTHORIZED_STATUSES
from router.net.client.client_request import NO_HEAD
from router.net.engine.dial import Dial
from router.net.engine.engine_connection import EngineConnection
from router.net.engine.pool import RANK_HEADER, EnginePool
from router.net.request.charges import Charges
from router.net.request.downstream import Downstream
from router.net.request.engine_leg import EngineLeg
from router.net.request.network import Network, RequestTrace

__all__ = ["Upstream"]

DROP_FOR_ENGINE: Final = http.REQUEST_ONLY | GATEWAY_HEADERS
DROP_WHEN_READING: Final = DROP_FOR_ENGINE | {b"accept-encoding"}
"""Client headers that are also dropped where the router reads the answer: a compressed answer could
not be searched for errors and KV parameters."""

TRACE_CONTEXT: Final = frozenset({b"traceparent", b"tracestate"})
"""W3C trace context headers, which a router that traces replaces with its own."""

GONE: Final = Failure(FailureKind.REFUSED, "The engine has left.", "it has left the fleet")
"""The outcome if an engine is forgotten because all its requests had ended, before this one was
sent."""


class OutcomeListener(Mover, Protocol):
    """The request."""

    def on_outcome(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> None:
        """An engine request has ended, as `RequestRun.settle` describes."""

    def on_error(self, error: Exception) -> None:
        """The router has failed."""


class Upstream:
    """`close` ends an engine request without a report to the listener.

    `request_id`: unique; engines get it with the number of the engine request.
    """

    __slots__ = (
        "_charges",
        "_dial",
        "_downstream",
        "_is_reused",
        "_leg",
        "_listener",
        "_network",
        "_request_id",
        "_run",
        "_sent",
        "_trace",
    )

    def __init__(
        self,
        network: Network,
        run: RequestRun,
        downstream: Downstream,
        charges: Charges,
        trace: RequestTrace | None,
        request_id: bytes,
        listener: OutcomeListener,
    ) -> None:
        self._network = network
        self._run = run
        self._downstream = downstream
        self._charges = charges
        self._trace = trace
        self._request_id = request_id
        self._listener: OutcomeListener | None = listener
        """None once it is closed, which breaks a reference cycle."""
        self._leg: EngineLeg | None = None
        """The current attempt."""
        self._dial: Dial | None = None
        """The connection that is being opened for it."""
        self._is_reused = False
        """Whether the attempt is on a connection that has been used before."""
        self._sent = 0
        """Number of engine requests so far."""

    def ask(self) -> None:
        """Send the run's engine request."""
        step = self._run.step
        if self._trace is not None:
            self._trace.begin_leg(step.endpoint, step.path)
        pool = self._network.pools.get(step.endpoint)
        if pool is not None:
            connection = pool.take(replay=self._run.may_replay())
            if connection is not None:
                self._is_reused = True
                self._send(connection, pool)
                return
        self._connect(pool)

    def pause(self) -> None:
        """The client has stopped reading."""
        if self._leg is not None:
            self._leg.on_write_paused(time.monotonic())

    def resume(self) -> None:
        """The client is reading again."""
        if self._leg is not None:
            self._leg.on_write_resumed()

    def leave(self) -> bool:
        """Let another engine go on with the stream, if one can. Returns False if it stays where it
        is."""
        leg = self._leg
        if leg is None or not leg.has_begun:  # it has left already
            return True
        failure = None if leg.timer.counts.hands_over else STALLED
        if not leg.should_leave or not self._run.leave(failure, time.monotonic()):
            return False
        leg.leave(failure)
        return True

    def close(self) -> None:
        """End the engine request that is in progress. Idempotent."""
        self._listener = None
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        leg, self._leg = self._leg, None
        if leg is not None:
            leg.close(time.monotonic())

    # The request.

    def _connect(self, pool: EnginePool | None) -> None:
        if pool is None:
            self._not_sent(GONE)
        else:
            self._network.start_limiter.charge(pool.connect_cost)
            loop = self._downstream.client.loop
            self._dial = pool.dial(loop, partial(self._on_dialled, pool))

    def _on_dialled(self, pool: EnginePool, fresh: EngineConnection | Failure) -> None:
        self._dial = None
        try:
            if isinstance(fresh, Failure):
                self._not_sent(fresh)
            else:
                self._is_reused = False
                self._send(fresh, pool)
        except Exception as error:  # noqa: BLE001 - the listener answers all of them
            if isinstance(fresh, EngineConnection):
                fresh.abort()
            if self._listener is not None:
                self._listener.on_error(error)

    def _not_sent(self, failure: Failure) -> None:
        if self._trace is not None:
            self._trace.end_leg(0, failure)
        if self._listener is not None:
            self._listener.on_outcome(failure, failure, 0, time.monotonic())

    def _send(self, connection: EngineConnection, pool: EnginePool) -> None:
        run, network, downstream = self._run, self._network, self._downstream
        step, now = run.step, time.monotonic()
        timeouts, asked_at = network.timeouts.stream, downstream.client.loop.time()
        if isinstance(step, Call):  # its time-out includes what led to this attempt
            is_encode, limits = step.endpoint.role is ENCODE, network.timeouts
            timeouts = limits.encode if is_encode else limits.prefill
            asked_at -= now - run.asked_at
        leg = EngineLeg(
            step,
            run.leg(now),
            timeouts,
            asked_at,
            downstream,
            self._charges,
            run.journal,
            network.idle_sweep,
            self,
        )
        self._leg = leg
        leg.connection = connection
        length = len(step.body)
        if step.lead:
            length += sum(map(len, step.lead))
        connection.start(self._head(pool, step.path, length), step.body, leg, step.lead)

    def _head(self, pool: EnginePool, path: str, length: int) -> bytes:
        """The head of an engine request. Its id is unique to this attempt, or to the prefill that
        it belongs to."""
        lines = self._downstream.request.head.engine_lines or self._client_lines()
        if pool.rank_line:  # only the router chooses the rank
            lines = pool.rank_line + http.without(lines, RANK_HEADER)
        if self._trace is not None:
            lines += self._trace.headers()
        step = self._run.step
        if isinstance(step, Call) or not step.keeps_id:
            self._sent += 1
        return (
            b"POST %b%b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\nx-request-id: %b-%d\r\n\r\n"
        ) % (
            pool.prefix,
            path.encode("latin-1"),
            pool.authority,
            lines,
            length,
            self._request_id,
            self._sent,
        )

    def _client_lines(self) -> bytes:
        """The client's header lines that engines get, plus the router's API key if it has one. They
        are kept with the head, which many requests share."""
        head, network = self._downstream.request.head, self._network
        is_read = self._downstream.kind is not PASS_THROUGH
        drop = DROP_WHEN_READING if is_read else DROP_FOR_ENGINE
        if network.api_keys is not None:
            drop |= KEY_HEADERS
        if self._trace is not None:
            drop |= TRACE_CONTEXT
        key = network.engine_api_key
        if key is not None:
            drop |= {b"authorization"}
        lines = http.block(http.end_to_end(head.headers, drop))
        if key is not None:
            lines += b"authorization: Bearer %b\r\n" % key.encode()
        head.engine_lines = lines
        return lines

    # Called by the leg.

    def on_answer(self, status: int) -> Failure | None:
        """Note that the engine's answer has begun. Returns a failure if the engine refuses the
        router's API key."""
        self._run.answered(status, time.monotonic())
        if status in UNAUTHORIZED_STATUSES and self._network.withholds_client_keys:
            return UNAUTHORIZED
        return None

    def on_first_token(self, now: float) -> None:
        """Release what only another attempt would need."""
        if self._trace is not None:
            self._trace.first_token()
        self._run.begun(now)
        if self._run.journal is None:
            self._downstream.request.head = NO_HEAD
            self._charges.drop_bytes()
        else:
            self._charges.drop_answers()
            if self._listener is not None:
                self._network.move_queue.leave(self._listener)

    def on_leg_end(self, leg: EngineLeg, outcome: Outcome | None) -> None:
        """Send the request again on a new connection, or report its outcome."""
        self._leg = None
        now = time.monotonic()
        leg.close(now)
        if isinstance(outcome, Reply):
            self._charges.pass_to_plan()
        elif self._charges.answer:
            self._charges.drop_answer()
        if outcome is not None and self._run.replays(outcome, is_reused=self._is_reused):
            self._connect(self._network.pools.get(self._run.step.endpoint))
            return
        if self._trace is not None:
            self._trace.end_leg(leg.status, leg.failure)
        if self._listener is not None:
            self._listener.on_outcome(outcome, leg.failure, leg.status, now)

    def may_leave_stalled_engine(self) -> bool:
        """Whether another engine could take the request."""
        return self._run.may_leave_stalled(time.monotonic())

    def on_leaving(self) -> None:
        """Let the stream go on with another engine when its turn comes."""
        if self._listener is not None:
            self._network.move_queue.enter(self._listener, is_cut=False)
