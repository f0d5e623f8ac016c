"""One request on its way through the router: from its head to its record.

`RequestRun` decides; a `ServedRequest` is that run with sockets. It makes the calls that the run
asks for, hands each answer on, and is the only owner of the request's record, leases, plan and
outcome. Nothing in it awaits: what clients and engines send drives it on, from the very read that
brought it. There is one way in (`on_body_complete`) and one exit (`_end`).
"""

import asyncio
import logging
import time
from functools import partial
from typing import Any, Final, cast

from router.core import facts as facts_of
from router.core import headers as http
from router.core.admission import Ticket
from router.core.api_keys import check_key
from router.core.engine_error import engine_error
from router.core.errors import (
    BodyTooSlow,
    EngineFailed,
    InternalError,
    RouterError,
    ShuttingDown,
)
from router.core.events import RequestEnded
from router.core.large_body import LARGE_BYTES, LIGHT_BYTES, is_large
from router.core.plans.steps import AwaitKV, Call, Outcome, Send, Stream
from router.core.redact import redact
from router.core.request_head import check_head, check_size, declared_size
from router.core.request_run import ENGINE_REQUESTS, Action, RequestRun
from router.core.values import Facts, Failure, FailureKind, Reply, Route
from router.net.admission_gate import AdmissionGate
from router.net.client_connection import ClientConnection
from router.net.client_request import NO_HEAD, ClientRequest, RequestHead
from router.net.collector import Collector
from router.net.engine_connection import EngineConnection
from router.net.engine_leg import EngineLeg
from router.net.network import KVReady, Network
from router.net.pool import EnginePool
from router.net.relay import Relay

__all__ = ["ServedRequest"]

log = logging.getLogger(__name__)

KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})

RATE_LIMIT: Final = b"x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: %ds\r\n"
"""As OpenAI tells when to come again."""

BYTES_PER_START: Final = 2048
"""Of a body, for which its request counts as one more of those that may begin in a turn of the
event loop: of 64 KiB, which take 17 ms at worst, one or two begin."""

DROP_FOR_ENGINE: Final = http.REQUEST_ONLY
DROP_WHEN_READING: Final = DROP_FOR_ENGINE | {b"accept-encoding"}
"""A compressed answer could not be read for errors and KV parameters."""


GONE: Final = Failure(FailureKind.REFUSED, "The engine has left.", "it has left the fleet")
"""Its requests had not ended when it was forgotten; this one had not even been sent."""


class ServedRequest(RequestRun):
    """Listens to its client's connection and to its engine leg. Every one ends with one answer,
    unless the client left, and with one record."""

    __slots__ = (
        "_client",
        "_engine_id",
        "_held",
        "_is_over",
        "_is_reused",
        "_left",
        "_leg",
        "_network",
        "_query",
        "_request",
        "_route",
        "_sent",
        "_ticket",
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
        given = http.clean_request_id(request.head.fields.get(b"x-request-id"))
        # Unique, not secret: uuid4 asks the kernel for every one.
        request_id = given or rng.getrandbits(128).to_bytes(16).hex()
        record = RequestEnded(request_id, route.path, time.monotonic())
        super().__init__(network.scheduler, network.observe, record, rng, network.sample)
        self._network = network
        self._client = client
        self._request = request
        self._route = route
        self._query = query
        self._leg: EngineLeg | None = None
        """The attempt at an engine that is under way."""
        self._waiting: asyncio.Task[Any] | None = None
        """What cannot be had at once: a connection, or word of a KV cache."""
        self._is_reused = False
        """Whether the attempt is on a connection that has served others."""
        self._is_over = False
        # A client may use one request id twice at a time; engines must not see that (vllm#10583).
        self._engine_id = b"%b-%08x" % (request_id.encode(), rng.getrandbits(32))
        self._sent = 0
        """Engine requests so far; it numbers their ids."""
        self._held = 0
        """Bytes of body that are taken from the budget."""
        self._ticket: Ticket | None = None
        """Its place among those that are served, or its wait for one; None without a limit."""
        self._left: tuple[bytes, ...] = ()
        """Engines that this request waited for in vain, where answers name engines."""
        network.active.add(self)
        request.listener = self

    # What the client's connection reports.

    def on_head(self) -> None:
        """Refuse by the head what need not be read."""
        head, network = self._request.head, self._network
        try:
            if network.api_keys is not None:
                self.record.api_key = check_key(network.api_keys.keys, head.fields)
            if head.is_accepted:
                return
            check_head(head.method, self._route.path, head.fields, self._max_bytes())
            network.byte_budget.check(declared_size(head.fields))
        except RouterError as error:
            self._finish(error)
        else:
            head.is_accepted = True

    def on_body_progress(self, size: int) -> None:
        """Refuse a body that is too large as soon as it is."""
        try:
            self._hold(size)
        except RouterError as error:
            self._finish(error)

    def on_body_timeout(self) -> None:
        """Refuse a body that takes too long."""
        seconds = self._network.limits.body_seconds
        self._finish(BodyTooSlow(f"The body did not arrive within {seconds:g} s."))

    def on_body_complete(self) -> None:
        """Its turn comes now, or when others that came with it have had theirs."""
        size = self._request.size
        try:
            self._hold(size)
        except RouterError as error:
            self._finish(error)
        else:
            cost = 1 + size // BYTES_PER_START
            self._network.start_limiter.submit(self._client.loop, self._begin, cost)

    def on_write_paused(self) -> None:
        """The client does not read: neither does the leg."""
        if self._leg is not None:
            self._leg.on_write_paused(time.monotonic())

    def on_write_resumed(self) -> None:
        """The client reads again."""
        if self._leg is not None:
            self._leg.on_write_resumed()

    def on_disconnect(self) -> None:
        """The client is gone: stop working for it."""
        self._end("client_left")

    def abort(self) -> None:
        """The router is going: say so."""
        self._stop_leg()
        self._tell(ShuttingDown("The router is shutting down."))
        self._end("aborted")

    # The run.

    def _begin(self) -> None:
        """Decide, and start the plan."""
        if self._is_over:  # the client left, or the router goes
            return
        request = self._request
        try:
            if request.size > LARGE_BYTES:
                self._read_apart(request.take_pieces())
                return
            raw = request.take_body()
            if request.size > LIGHT_BYTES and is_large(raw):
                self._read_apart([raw])
                return
            kind = request.head.fields.get(b"content-type", b"")
            facts = facts_of.read(self._route, kind, raw, self._query)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._start(facts)

    def _start(self, facts: Facts) -> None:
        """It is known what is asked."""
        network, record = self._network, self.record
        try:
            record.model, record.stream, record.tokens = facts.model, facts.stream, facts.tokens
            record.text_bytes = facts.text_bytes
            now = time.monotonic()
            decision = network.scheduler.decide(facts, now)
            if network.admission is not None and not self._enter(facts, network.admission):
                return
            self.decided(decision)
            action = self.start(facts, network.plans(facts, decision), now)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._perform(action)

    # Admission.

    def _enter(self, facts: Facts, gate: AdmissionGate) -> bool:
        """Whether the request is let in; else it waits, or TooManyRequests is raised."""
        if self._ticket is not None:  # it has waited
            return True
        ticket = self._ticket = gate.ticket(facts, self._request.head.fields, self.record.api_key)
        is_in = gate.enter(ticket, self)
        if not is_in:
            self.facts = facts
        return is_in

    def on_turn(self, waited: float) -> None:
        """Begin, after a wait."""
        if self._is_over:
            return
        self.record.queue_seconds = waited
        assert self.facts is not None, "it waited with them"
        self._start(self.facts)  # the engines may have changed

    def on_refused(self, error: RouterError) -> None:
        """End: it waited too long, or had to make room."""
        self._finish(error)

    def _read_apart(self, pieces: list[bytes]) -> None:
        """Have the body read by another process."""
        kind = self._request.head.fields.get(b"content-type", b"")
        reading = self._network.body_parser.read(self._route, kind, pieces, self._query)
        self._waiting = self._client.loop.create_task(reading)
        self._waiting.add_done_callback(self._on_read)

    def _on_read(self, task: "asyncio.Task[Facts]") -> None:
        self._waiting = None
        if task.cancelled() or self._is_over:
            return
        failure = task.exception()
        if failure is not None:
            self._finish(cast("Exception", failure))
        else:
            self._start(task.result())

    # The body's bytes.

    def _max_bytes(self) -> int:
        return min(self._network.limits.body_bytes, self._route.max_body_bytes)

    def _hold(self, size: int) -> None:
        """Take the body's bytes, `size` so far, from the budget. Raises a RouterError."""
        if size > self._route.max_body_bytes or size > self._network.limits.body_bytes:
            check_size(size, self._max_bytes())
        self._network.byte_budget.take(size - self._held)
        self._held = size

    def _drop_body(self) -> None:
        self._network.byte_budget.give(self._held)
        self._held = 0

    # The plan.

    def _perform(self, action: Action | None) -> None:
        """Do what the run asks for, up to what takes time or to its end."""
        try:
            while action is not None:
                if isinstance(action, ENGINE_REQUESTS):
                    self._ask()
                    return
                if isinstance(action, Send):
                    self._send(action.reply)
                    action = self.answer(None, time.monotonic())
                elif (kv_ready := self._network.kv_ready) is not None:
                    self._await_kv(action, kv_ready)
                    return
                else:  # no notifications: assume that the KV cache is ready
                    action = self.answer(True, time.monotonic())
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._finish(None)

    def _go_on(self, answer: Outcome | bool | None) -> None:
        """Answer the run's wait, and do what it asks for next."""
        try:
            action = self.answer(answer, time.monotonic())
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._perform(action)

    def _finish(self, error: Exception | None) -> None:
        """It was answered, or `error` is to be the answer."""
        if self._is_over:
            return
        record = self.record
        if error is None:
            is_good = record.error is None and record.status < 400
            self._end("ok" if is_good else record.failure)
            return
        self._stop_leg()
        if not isinstance(error, RouterError):
            log.error("request %s failed inside the router", record.request_id, exc_info=error)
            error = InternalError(f"The router failed: {type(error).__name__}.")
        self._tell(error)
        self._end(record.failure)

    def _end(self, outcome: str) -> None:
        """The one exit: everything is given back, and the record is observed."""
        if self._is_over:
            return
        self._is_over = True
        self._request.listener = None
        self._stop_leg()
        self.close()
        if self._held:
            self._request.take_pieces()  # it may not have begun
            self._drop_body()
        self._network.active.discard(self)
        record = self.record
        record.outcome = outcome
        record.asked_at = self.asked_at
        record.ended = time.monotonic()
        self._network.observe(record)
        ticket, self._ticket = self._ticket, None
        if ticket is not None and self._network.admission is not None:
            self._network.admission.leave(ticket)

    def _stop_leg(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        leg, self._leg = self._leg, None
        if leg is not None:
            leg.close(time.monotonic())

    def _tell(self, error: RouterError) -> None:
        """Tell the client, if it is there, and the record."""
        client, record = self._client, self.record
        if client.active is self._request:
            if not client.response.is_started:
                record.status = error.status
            record.error = record.error or error.message
            block = b"x-request-id: %b\r\n" % record.request_id.encode()
            if error.status == 401:
                block += b"www-authenticate: Bearer\r\n"
            if error.status == 429:
                block += RATE_LIMIT % (error.retry_after or 1)
            if error.status == 405:
                block += b"allow: POST\r\n"
            client.fail(self._request, error, block)

    # Asking an engine.

    def _ask(self) -> None:
        """Send the run's engine request on an idle connection or a new one."""
        pool = self._network.pools.get(self.step.endpoint)
        connection = None if pool is None else pool.take(replay=self.may_replay())
        if pool is not None and connection is not None:
            self._is_reused = True
            self._ask_on(connection, pool)
        else:
            self._connect()

    def _connect(self) -> None:
        pool = self._network.pools.get(self.step.endpoint)
        if pool is None:
            self._settle(GONE, GONE, 0, time.monotonic())
            return
        self._waiting = self._client.loop.create_task(pool.connect())
        self._waiting.add_done_callback(partial(self._on_connected, pool))

    def _on_connected(
        self, pool: EnginePool, task: "asyncio.Task[EngineConnection | Failure]"
    ) -> None:
        self._waiting = None
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            self._finish(cast("Exception", failure))
            return
        fresh = task.result()
        if self._is_over:  # it ended in the moment in which the connection came
            if not isinstance(fresh, Failure):
                fresh.abort()
        elif isinstance(fresh, Failure):
            self._settle(fresh, fresh, 0, time.monotonic())
        else:
            self._is_reused = False
            try:
                self._ask_on(fresh, pool)
            except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
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
        seconds = self._network.timeouts.prefill - (now - self.asked_at)
        deadline = self._client.loop.time() + seconds
        timer = self.leg(now)
        return Collector(step.endpoint, timer, self._network.idle_sweep, self, deadline=deadline)

    def _head(self, pool: EnginePool, path: str, length: int) -> bytes:
        """The head of a request to an engine; each attempt has an id of its own."""
        client_head = self._request.head
        lines = client_head.engine_lines
        if lines is None:
            lines = client_head.engine_lines = self._engine_lines(client_head)
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

    def _engine_lines(self, head: RequestHead) -> bytes:
        """The client's header lines that go on to engines, and the key for those."""
        key = self._network.engine_api_key
        drop = self._not_for_engines()
        if self._network.api_keys is not None:  # the client's key is for the router
            drop |= KEY_HEADERS
        if key is None:
            return http.block(http.end_to_end(head.headers, drop))
        lines = http.block(http.end_to_end(head.headers, drop | {b"authorization"}))
        return lines + b"authorization: Bearer %b\r\n" % key.encode()

    def _not_for_engines(self) -> frozenset[bytes]:
        """The client's headers that do not go on to engines."""
        return DROP_WHEN_READING if self._route.generates else DROP_FOR_ENGINE

    # What the engine leg reports.

    def on_answer(self, status: int) -> None:
        """The engine's answer begins."""
        self.answered(status, time.monotonic())

    def response_headers(self) -> bytes:
        """The header lines that the router adds to an answer's."""
        own = b"x-request-id: %b\r\n" % self.record.request_id.encode()
        if self._network.names_engines:
            own += b"x-pd-router-endpoint: %b\r\n" % self.step.endpoint.url.encode()
            if self._left:
                own += b"x-pd-router-left: %b\r\n" % b", ".join(self._left)
        return own

    def moved_comment(self) -> bytes:
        """What the router says in a stream whose head named another engine: a comment, which
        clients of event streams ignore. Nothing where answers do not name engines."""
        if not self._network.names_engines:
            return b""
        named = self.step.endpoint.url.encode()
        return b": x-pd-router-endpoint %b left %b\n\n" % (named, b", ".join(self._left))

    def on_first_token(self) -> None:
        """The client has had a first token: what another attempt would take is not needed."""
        self.begun()
        self._request.head = NO_HEAD
        self._drop_body()

    def on_leg_end(self, leg: EngineLeg, outcome: Outcome | None) -> None:
        """It is known what became of the answer."""
        self._leg = None
        now = time.monotonic()
        leg.close(now)
        if self.replays(outcome, is_reused=self._is_reused):
            self._connect()
        else:
            self._settle(outcome, leg.failure, leg.status, now)

    def may_leave_stalled_engine(self) -> bool:
        """Whether another engine could take a request that waits for a stalled one."""
        return self.may_leave_stalled(time.monotonic())

    def _settle(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> None:
        """Report what became of the engine request, and go on."""
        if self._is_over:
            return
        if failure is not None and self._network.names_engines:
            # Nothing waits at an engine that refuses connections.
            waited = failure.kind is not FailureKind.REFUSED
            self._left += (self.step.endpoint.url.encode(),) if waited else ()
        try:
            action = self.settle(outcome, failure, status, now)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._perform(action)

    # The plan's other steps.

    def _await_kv(self, step: AwaitKV, kv_ready: KVReady) -> None:
        seconds = self._network.timeouts.kv_ready
        waiting = kv_ready.wait(step.transfer_id, step.count, seconds)
        self._waiting = self._client.loop.create_task(waiting)
        self._waiting.add_done_callback(self._on_kv_ready)

    def _on_kv_ready(self, task: "asyncio.Task[bool]") -> None:
        self._waiting = None
        if task.cancelled() or self._is_over:
            return
        failure = task.exception()
        if failure is not None:
            self._finish(cast("Exception", failure))
        else:
            self._go_on(task.result())

    def _send(self, reply: Reply) -> None:
        client, record = self._client, self.record
        if client.response.is_started:  # with the head of an engine that stalled
            raise EngineFailed(f"A second engine answered with status {reply.status}.")
        body = redact(reply.body)
        block = http.block(http.end_to_end(reply.headers, http.RESPONSE_ONLY))
        block += self.response_headers()
        client.response.start(reply.status, block, len(body))
        record.status = reply.status
        if reply.status >= 400:
            record.error = engine_error(self.step.endpoint.role, reply.status, body)
        record.first_byte = time.monotonic()
        client.response.write(body)
        client.end_response()
