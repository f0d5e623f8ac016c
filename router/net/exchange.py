"""Runs a plan: makes its calls, holds its leases, and moves the answer to the client.

One `Exchange` serves one request. However it ends (answered, failed, cancelled because the client
left) its leases are released and the engine connection that was at work is closed.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from router.core import headers as http
from router.core.errors import EngineFailed, RouterError
from router.core.events import (
    Chosen,
    Event,
    FellBack,
    LegAnswered,
    LegDone,
    LegFailed,
    RequestEnded,
)
from router.core.ledger import Lease
from router.core.pace import Leg
from router.core.plans import steps
from router.core.redact import redact
from router.core.retry import ATTEMPTS
from router.core.schedule import Scheduler
from router.core.values import Endpoint, Facts, Failure, FailureKind, Reply, Role, Way
from router.net.client import ClientReply
from router.net.engine_connection import EngineConnection, HeaderList
from router.net.legs import Collector, Relay
from router.net.pool import EnginePool
from router.net.silence import Silence

__all__ = ["Exchange", "Network", "Timeouts"]

DROP_FOR_ENGINE = http.REQUEST_ONLY
# A compressed answer could not be read for errors and KV parameters.
DROP_WHEN_READING = DROP_FOR_ENGINE | {b"accept-encoding"}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds of patience with an engine."""

    prefill: float
    """From the request to the whole reply of a prefill engine."""
    first_byte: float
    """From the request to the first byte of the answer's body."""
    idle: float
    """Between two reads of a stream."""
    kv_ready: float
    """For LMCache's notifications, from the prefill reply on."""


class KVReady(Protocol):
    """Where prefill engines report that a KV cache has been sent."""

    async def wait(self, transfer_id: str, count: int, timeout: float) -> bool:
        """Whether `count` reports for `transfer_id` came within `timeout` seconds."""


@dataclass(slots=True)
class Network:
    """All that exchanges share."""

    scheduler: Scheduler
    pools: dict[Endpoint, EnginePool]
    timeouts: Timeouts
    observe: Callable[[Event], None]
    silence: Silence
    sample: float = 0.0
    """The share of choices that are logged in full."""
    engine_api_key: str | None = None
    kv_ready: KVReady | None = None
    rng: Random = field(default_factory=Random)


class Exchange:
    """One request on its way through the engines."""

    def __init__(
        self,
        network: Network,
        facts: Facts,
        headers: HeaderList,
        reply: ClientReply,
        record: RequestEnded,
    ) -> None:
        self._network = network
        self._facts = facts
        self._client_headers = headers
        self._reply = reply
        self._record = record
        self._leases: dict[Endpoint, Lease] = {}
        self._engine_headers: bytes | None = None
        # A client may use one request id twice at a time; engines must not see that (vllm#10583).
        self._engine_id = f"{record.request_id}-{network.rng.getrandbits(32):08x}"
        self._attempts = 0

    async def run(self, plan: steps.Plan) -> None:
        """Run the plan to its end. Raises the RouterError it ends with, if any."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = await self._do(step)
                except RouterError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration:
            return
        finally:
            for lease in self._leases.values():
                lease.release()
            plan.close()

    async def _do(self, step: steps.Step) -> object:
        match step:
            case steps.Lease():
                return self._lease(step)
            case steps.Call():
                return await self._call(step)
            case steps.Stream():
                return await self._stream(step)
            case steps.AwaitKV():
                return await self._await_kv(step)
            case steps.Release():
                self._leases.pop(step.endpoint).release()
            case steps.Send():
                self._send(step.reply)
            case FellBack():
                self._record.fallbacks.append(step)
                self._network.observe(step)
        return None

    def _lease(self, step: steps.Lease) -> Endpoint:
        network = self._network
        told: tuple[str, ...] = ()
        if network.sample and network.rng.random() < network.sample:
            told = network.scheduler.explained(step.role, self._facts, time.monotonic())
        lease = self._network.scheduler.lease(
            step.role,
            self._facts,
            step.exclude,
            time.monotonic(),
            computes=step.role is Role.PREFILL or self._record.way is Way.DIRECT,
        )
        self._leases[lease.endpoint] = lease
        if told:
            network.observe(Chosen(self._record.request_id, step.role, lease.endpoint, told))
        if step.role is Role.PREFILL:
            self._record.prefill = lease.endpoint
        else:
            self._record.decode = lease.endpoint
        return lease.endpoint

    async def _call(self, step: steps.Call) -> Reply | Failure:
        started = time.monotonic()
        seen = self._seen(step.endpoint)
        outcome: Reply | Failure | None

        def collector() -> Collector:
            leg = self._leg(step.endpoint, is_heard=True)
            return Collector(seen, leg, self._network.silence)

        try:
            async with asyncio.timeout(self._network.timeouts.prefill):
                outcome = await self._ask(step, collector, replay=True)
        except TimeoutError:
            text = f"The engine at {step.endpoint.url} did not reply in time."
            outcome = Failure(FailureKind.TIMEOUT, text)
            self._report(step.endpoint, outcome)
        self._record.prefill_seconds = time.monotonic() - started
        assert outcome is not None  # a collector settles with what it collected
        return outcome

    async def _stream(self, step: steps.Stream) -> Reply | Failure | None:
        timeouts = self._network.timeouts
        # A decode engine that keeps its errors back reports what is its prefill engine's, too.
        seen = self._seen(step.endpoint, is_own_doing=500 not in step.keep)

        def relay() -> Relay:
            return Relay(
                step,
                self._reply,
                self._record,
                kind=self._facts.route.kind,
                extra_headers=self._extra_headers(),
                first_byte_seconds=timeouts.first_byte,
                idle_seconds=timeouts.idle,
                silence=self._network.silence,
                seen=seen,
                leg=self._leg(step.endpoint, is_heard=self._facts.stream),
                may_move=lambda: self._may_move(step.endpoint),
            )

        return await self._ask(step, relay, replay=step.replay)

    async def _ask(
        self,
        step: steps.Call | steps.Stream,
        sink: Callable[[], Collector | Relay],
        *,
        replay: bool,
    ) -> Reply | Failure | None:
        """Send a request on an idle connection or a new one, and wait for what becomes of it.

        An engine closes idle connections when it likes. A reset on one that was reused says
        nothing of the engine, so if `replay` allows it the request goes out once more.
        """
        pool = self._network.pools[step.endpoint]
        if (connection := pool.take(replay=replay)) is not None:
            used = sink()
            outcome = await self._ask_on(connection, pool, step, used)
            is_stale = isinstance(outcome, Failure) and outcome.kind is FailureKind.RESET
            if not (is_stale and replay):
                self._report(step.endpoint, used.failure, used.status)
                return outcome
        fresh = await pool.connect()
        if isinstance(fresh, Failure):
            self._report(step.endpoint, fresh)
            return fresh
        used = sink()
        outcome = await self._ask_on(fresh, pool, step, used)
        self._report(step.endpoint, used.failure, used.status)
        return outcome

    async def _ask_on(
        self,
        connection: EngineConnection,
        pool: EnginePool,
        step: steps.Call | steps.Stream,
        sink: Collector | Relay,
    ) -> Reply | Failure | None:
        sink.connection = connection
        try:
            connection.start(self._head(pool, step.path, len(step.body)), step.body, sink)
            return await sink.outcome
        finally:
            sink.close()

    async def _await_kv(self, step: steps.AwaitKV) -> bool:
        if self._network.kv_ready is None:
            return True
        return await self._network.kv_ready.wait(
            step.transfer_id, step.count, self._network.timeouts.kv_ready
        )

    def _send(self, reply: Reply) -> None:
        if self._reply.is_started:  # with the head of an engine that stalled
            raise EngineFailed(f"A second engine answered with status {reply.status}.")
        body = redact(reply.body)
        passed = http.end_to_end(reply.headers, http.RESPONSE_ONLY)
        self._reply.start(reply.status, http.block([*passed, *self._extra_headers()]), len(body))
        self._record.status = reply.status
        self._record.first_byte = time.monotonic()
        self._reply.write(body)
        self._reply.finish()

    def _extra_headers(self) -> HeaderList:
        return [(b"x-request-id", self._record.request_id.encode())]

    def _head(self, pool: EnginePool, path: str, length: int) -> bytes:
        """The head of a request to an engine; each attempt has an id of its own."""
        if self._engine_headers is None:
            drop = DROP_WHEN_READING if self._facts.route.generates else DROP_FOR_ENGINE
            if self._network.engine_api_key is not None:
                drop = drop | {b"authorization"}
            self._engine_headers = http.block(http.end_to_end(self._client_headers, drop))
            if self._network.engine_api_key is not None:
                key = self._network.engine_api_key.encode()
                self._engine_headers += b"authorization: Bearer %b\r\n" % key
        self._attempts += 1
        return (
            b"POST %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\nx-request-id: %b-%d\r\n\r\n"
        ) % (
            (pool.origin.prefix + path).encode("latin-1"),
            pool.origin.authority.encode(),
            self._engine_headers,
            length,
            self._engine_id.encode(),
            self._attempts,
        )

    def _seen(self, endpoint: Endpoint, *, is_own_doing: bool = True) -> Callable[[int], None]:
        started = time.monotonic()

        def seen(status: int) -> None:
            seconds = time.monotonic() - started
            self._network.observe(LegAnswered(endpoint, status, seconds, is_own_doing))

        return seen

    def _leg(self, endpoint: Endpoint, *, is_heard: bool) -> Leg:
        lease = self._leases[endpoint]
        return self._network.scheduler.leg(lease, time.monotonic(), is_heard=is_heard)

    def _may_move(self, endpoint: Endpoint) -> bool:
        """Whether a request that waits for a stalled engine has somewhere else to go."""
        return self._attempts < ATTEMPTS and self._network.scheduler.has_other(
            endpoint.role, self._facts, endpoint, time.monotonic()
        )

    def _report(self, endpoint: Endpoint, failure: Failure | None, status: int = 0) -> None:
        if failure is not None:
            self._network.observe(LegFailed(endpoint, failure.kind))
        elif status < 500:
            self._network.observe(LegDone(endpoint))
