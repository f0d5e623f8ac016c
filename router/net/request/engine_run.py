"""A request's run that makes its own engine requests.

`RequestRun` decides which engine is sent what. `EngineRun` sends it, on a pooled connection or a
new one, and reports the outcome. Nothing is awaited: the run continues within the read callback
that received the engine's data.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

from router.core.events import RequestEnded
from router.core.limits.admission import Ticket
from router.core.limits.key_limits import KeyUsage
from router.core.plans.steps import Call, Outcome, Stream
from router.core.routing.request_run import RequestRun
from router.core.values import Failure, FailureKind, Reply, Route
from router.core.wire import headers as http
from router.core.wire.engine_error import UNAUTHORIZED, UNAUTHORIZED_STATUSES
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import NO_HEAD, ClientRequest
from router.net.engine.collector import Collector
from router.net.engine.dial import Dial
from router.net.engine.engine_connection import EngineConnection
from router.net.engine.engine_head import (
    DROP_FOR_ENGINE,
    DROP_WHEN_READING,
    KEY_HEADERS,
    lines_for_engine,
)
from router.net.engine.engine_leg import EngineLeg
from router.net.engine.pool import RANK_HEADER, EnginePool
from router.net.engine.relay import Relay
from router.net.request.network import Network

__all__ = ["EngineRun"]

GONE = Failure(FailureKind.REFUSED, "The engine has left.", "it has left the fleet")
"""The outcome if an engine is forgotten because all its requests had ended, before this one was
sent."""


class EngineRun(RequestRun):
    """A run that is the listener of its engine leg."""

    __slots__ = (
        "_client",
        "_engine_id",
        "_held",
        "_is_over",
        "_is_reused",
        "_kept",
        "_kept_for_plan",
        "_left",
        "_leg",
        "_network",
        "_query",
        "_request",
        "_route",
        "_sent",
        "_silent_since",
        "_ticket",
        "_usage",
        "_waiting",
    )

    def __init__(
        self,
        network: Network,
        client: ClientConnection,
        request: ClientRequest,
        route: Route,
        query: bytes,
    ) -> None:
        rng = network.rng
        given = request.head.fields.get(b"x-request-id")
        request_id = None if given is None else http.clean_request_id(given)
        if request_id:
            # Clients may use an id for two requests at a time, which engines cannot handle
            # (vllm#10583).
            self._engine_id = b"%b-%08x" % (request_id.encode(), rng.getrandbits(32))
        else:  # unique, not secret: uuid4 makes a system call each time
            request_id = rng.getrandbits(128).to_bytes(16).hex()
            self._engine_id = request_id.encode()
        record = RequestEnded(request_id, route.path, time.monotonic())
        # Not super(), which costs as much as the call itself.
        RequestRun.__init__(self, network.scheduler, network.observe, record, rng, network.sample)
        self._network = network
        self._client = client
        self._request = request
        self._route = route
        self._query = query
        self._leg: EngineLeg | None = None
        """The current attempt at an engine."""
        self._waiting: asyncio.Task[Any] | Dial | None = None
        """Whatever the run has to wait for: the facts of a large body, a connection, or a KV
        cache."""
        self._is_reused = False
        """Whether the current attempt is on a connection that has been used before."""
        self._is_over = False
        self._sent = 0
        """Number of engine requests so far; it is part of their ids."""
        self._silent_since: float | None = None
        """When the idle sweep first saw the request, or last sent its client a comment."""
        self._held = 0
        """Bytes of the client's body that are charged to the byte budget."""
        self._kept = 0
        """Bytes of engines' answers that are charged to the answer budget."""
        self._kept_for_plan = 0
        """How many of these bytes have been passed to the plan."""
        self._ticket: Ticket | None = None
        """The request's place in flight or in the queue; None without a limit."""
        self._usage: KeyUsage | None = None
        """The usage of its API key, in which it counts as a stream."""
        self._left: tuple[bytes, ...] = ()
        """URLs of the engines that failed to serve it, if answers name engines."""

    # Implemented by `PlanRunner`.

    def _settle(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> None:
        """Report the outcome of the engine request to the plan, and continue."""
        raise NotImplementedError

    def _finish(self, error: Exception | None) -> None:
        """End the request if it has not ended. `error`: what to answer, or None if it has been
        answered."""
        raise NotImplementedError

    def _await(self, work: Coroutine[Any, Any, Any], then: Callable[[Any], None]) -> None:
        """Run a coroutine and call `then` with its result. It is cancelled when the request ends,
        but a result that is already there is delivered even then."""
        task = self._client.loop.create_task(work)
        task.add_done_callback(partial(self._on_awaited, then))
        self._waiting = task

    def _on_awaited(self, then: Callable[[Any], None], task: "asyncio.Task[Any]") -> None:
        self._waiting = None
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            self._finish(cast("Exception", failure))
            return
        try:
            then(task.result())
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)

    # Engine requests.

    def _ask(self) -> None:
        """Send the plan's engine request on an idle connection or a new one."""
        pool = self._network.pools.get(self.step.endpoint)
        if pool is not None:
            connection = pool.take(replay=self.may_replay())
            if connection is not None:
                self._is_reused = True
                self._ask_on(connection, pool)
                return
        self._connect()

    def _connect(self) -> None:
        pool = self._network.pools.get(self.step.endpoint)
        if pool is None:
            self._settle(GONE, GONE, 0, time.monotonic())
        else:
            self._network.start_limiter.charge(pool.connect_cost)
            self._waiting = pool.dial(self._client.loop, partial(self._on_dialled, pool))

    def _on_dialled(self, pool: EnginePool, fresh: EngineConnection | Failure) -> None:
        self._waiting = None
        try:
            if isinstance(fresh, Failure):
                self._settle(fresh, fresh, 0, time.monotonic())
            else:
                self._is_reused = False
                self._ask_on(fresh, pool)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            if isinstance(fresh, EngineConnection):
                fresh.abort()
            self._finish(error)

    def _ask_on(self, connection: EngineConnection, pool: EnginePool) -> None:
        step, now = self.step, time.monotonic()
        leg = self._relay(step, now) if isinstance(step, Stream) else self._collector(step, now)
        self._leg = leg
        leg.connection = connection
        length = len(step.body)
        if step.lead:
            length += sum(map(len, step.lead))
        connection.start(self._head(pool, step.path, length), step.body, leg, step.lead)

    def _relay(self, step: Stream, now: float) -> Relay:
        network = self._network
        return Relay(
            step,
            self._route.kind,
            self._client,
            self._request,
            self.record,
            self.leg(now),
            network.timeouts.stream,
            network.idle_sweep,
            self,
        )

    def _collector(self, step: Call, now: float) -> Collector:
        network = self._network
        asked_at = self._client.loop.time() - (now - self.asked_at)
        return Collector(
            step.endpoint,
            self.leg(now),
            network.idle_sweep,
            self,
            network.timeouts.prefill,
            asked_at,
        )

    def _head(self, pool: EnginePool, path: str, length: int) -> bytes:
        """The head of an engine request, with an id that is unique to this attempt."""
        client_head = self._request.head
        lines = client_head.engine_lines
        if lines is None:
            drop = self._not_for_engines()
            if self._network.api_keys is not None:
                drop |= KEY_HEADERS
            lines = lines_for_engine(client_head, drop, self._network.engine_api_key)
            client_head.engine_lines = lines
        if pool.rank_line:  # only the router chooses the rank
            lines = pool.rank_line + http.without(lines, RANK_HEADER)
        self._sent += 1
        return (
            b"POST %b%b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\nx-request-id: %b-%d\r\n\r\n"
        ) % (
            pool.prefix,
            path.encode("latin-1"),
            pool.authority,
            lines,
            length,
            self._engine_id,
            self._sent,
        )

    def _not_for_engines(self) -> frozenset[bytes]:
        """Names of the client's headers that are not sent to engines."""
        return DROP_WHEN_READING if self._route.generates else DROP_FOR_ENGINE

    # Called by the engine leg.

    def on_answer(self, status: int) -> Failure | None:
        """Note that the engine's answer has begun. Returns a failure if the engine refuses the
        router's API key."""
        self.answered(status, time.monotonic())
        if status in UNAUTHORIZED_STATUSES and self._network.withholds_client_keys:
            return UNAUTHORIZED
        return None

    def response_headers(self, lines: bytes) -> bytes:
        """The header lines of the client's response: the engine's `lines` and those that the router
        adds."""
        own = b"x-request-id: %b\r\n" % self.record.request_id.encode()
        if self._network.names_engines:
            own += b"x-pd-router-endpoint: %b\r\n" % self.step.endpoint.url.encode()
            if self._left:
                own += b"x-pd-router-left: %b\r\n" % b", ".join(self._left)
        gateway = self._network.gateway
        if gateway is not None:
            fields, transport = self._request.head.fields, self._client.transport
            fleet = self._network.scheduler.fleet
            own += gateway.lines(fields, transport, fleet, self.step.endpoint)
        if self._network.api_keys is not None and (limits := self._limit_lines()):
            return http.without_rate_limits(lines) + own + limits
        return lines + own

    def _limit_lines(self) -> bytes:
        """Header lines with the rate limits of the request's API key; empty if it has none."""
        keys = self._network.api_keys
        usage = None if keys is None else keys.usages.get(self.record.api_key or "")
        return b"" if usage is None else usage.header_lines(time.monotonic())

    def engine_comment(self) -> bytes:
        """The SSE comment for a stream whose head names another engine or none. Empty unless
        answers name engines."""
        if not self._network.names_engines:
            return b""
        left = b" left " + b", ".join(self._left) if self._left else b""
        return b": x-pd-router-endpoint %b%b\n\n" % (self.step.endpoint.url.encode(), left)

    def may_keep(self, size: int) -> bool:
        """Charge `size` bytes to the answer budget. Returns False if it is exhausted."""
        if not self._network.answer_budget.try_take(size):
            return False
        self._kept += size
        return True

    def on_first_token(self) -> None:
        """Release what only another attempt would need: the first token has been sent."""
        self.begun()
        self._request.head = NO_HEAD
        self._drop_body()
        if self._kept:
            self._kept_for_plan = 0
            self._drop_answer()

    def _drop_body(self) -> None:
        self._network.byte_budget.give(self._held)
        self._held = 0

    def _drop_answer(self) -> None:
        """Release the bytes of the last answer, but not of those that were passed to the plan."""
        self._network.answer_budget.give(self._kept - self._kept_for_plan)
        self._kept = self._kept_for_plan

    def on_leg_end(self, leg: EngineLeg, outcome: Outcome | None) -> None:
        """Replay the request on a new connection, or report its outcome to the plan."""
        self._leg = None
        now = time.monotonic()
        leg.close(now)
        if isinstance(outcome, Reply):
            self._kept_for_plan = self._kept
        elif self._kept:
            self._drop_answer()
        if outcome is not None and self.replays(outcome, is_reused=self._is_reused):
            self._connect()
        else:
            self._settle(outcome, leg.failure, leg.status, now)

    def may_leave_stalled_engine(self) -> bool:
        """Whether another engine could take the request."""
        return self.may_leave_stalled(time.monotonic())
