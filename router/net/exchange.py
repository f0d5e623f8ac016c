"""Runs a plan: makes its calls, holds its leases, and moves the answer to the client.

One `Exchange` serves one request. However it ends (answered, failed, cancelled because the client
left) its leases are released and the engine connection that was at work is closed. No task waits
for engines: what they say drives the plan on, from the read that brought it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, cast

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
from router.core.plans.steps import Outcome
from router.core.redact import redact
from router.core.retry import ATTEMPTS
from router.core.schedule import Scheduler
from router.core.values import Endpoint, Facts, Failure, FailureKind, Reply, Role
from router.net.client import ClientReply
from router.net.engine_connection import EngineConnection, HeaderList
from router.net.legs import Collector, Relay
from router.net.pool import EnginePool
from router.net.silence import Silence

__all__ = ["Exchange", "Network", "Timeouts"]

Done = Callable[[Exception | None], None]

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
    names_engines: bool = False
    """Whether answers say which engine gave them."""
    engine_api_key: str | None = None
    kv_ready: KVReady | None = None
    rng: Random = field(default_factory=Random)


class Exchange:
    """One request on its way through the engines.

    `done` is called once with what it failed with, or None: not after `cancel`, which ends it too.
    """

    __slots__ = (
        "_asked_at",
        "_attempts",
        "_done",
        "_engine_headers",
        "_engine_id",
        "_facts",
        "_is_reused",
        "_leases",
        "_network",
        "_plan",
        "_record",
        "_reply",
        "_sink",
        "_step",
        "_waiting",
    )

    def __init__(
        self,
        network: Network,
        facts: Facts,
        reply: ClientReply,
        record: RequestEnded,
        done: Done,
    ) -> None:
        self._network = network
        self._facts: Facts | None = facts
        """None once it is not needed any more."""
        self._reply = reply
        self._record = record
        self._done: Done | None = done
        self._plan: steps.Plan | None = None
        self._leases: dict[Endpoint, Lease] = {}
        self._step: steps.Call | steps.Stream
        self._asked_at = 0.0
        self._is_reused = False
        self._sink: Collector | Relay | None = None
        """What takes an engine's answer now."""
        self._waiting: asyncio.Task[Any] | None = None
        """What cannot be had at once: a connection, or word of a KV cache."""
        self._engine_headers: bytes | None = None
        # A client may use one request id twice at a time; engines must not see that (vllm#10583).
        self._engine_id = f"{record.request_id}-{network.rng.getrandbits(32):08x}"
        self._attempts = 0

    def start(self, plan: steps.Plan) -> None:
        """Run the plan, until its end if that comes at once."""
        self._plan = plan
        self._advance(None)

    def cancel(self) -> None:
        """Stop working for it."""
        self._done = None
        if self._waiting is not None:
            self._waiting.cancel()
        if self._sink is not None:
            self._sink.close()
        self._release()

    def _advance(self, answer: object) -> None:
        """Answer the plan, and take its steps up to one that takes time."""
        plan = self._plan
        if self._done is None:
            return
        if plan is None:
            self._finish(None)
            return
        try:
            while True:
                step = _next(plan, answer)
                if isinstance(step, steps.Stream | steps.Call):
                    self._ask(step)
                    return
                if isinstance(step, steps.AwaitKV) and self._network.kv_ready is not None:
                    self._await_kv(step, self._network.kv_ready)
                    return
                answer = self._do(step)
        except StopIteration:
            self._finish(None)
        except Exception as error:  # noqa: BLE001 - whoever asked decides what it means
            self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        done, self._done = self._done, None
        if self._sink is not None:
            self._sink.close()
        self._release()
        if done is not None:
            done(error)

    def _release(self) -> None:
        for lease in self._leases.values():
            lease.release()
        self._drop_plan()

    @property
    def _known(self) -> Facts:
        assert self._facts is not None, "it has begun"
        return self._facts

    def _drop_plan(self) -> None:
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.close()

    def _do(self, step: steps.Step) -> object:
        """A step that is done at once."""
        match step:
            case steps.Lease():
                try:
                    return self._lease(step)
                except RouterError as error:
                    return error
            case steps.Check():
                try:
                    self._network.scheduler.check(
                        step.role, self._known, step.exclude, time.monotonic()
                    )
                except RouterError as error:
                    return error
            case steps.Release():
                self._leases.pop(step.endpoint).release()
            case steps.Send():
                self._send(step.reply)
            case FellBack():
                self._record.fallbacks.append(step)
                self._network.observe(step)
            case steps.AwaitKV():
                return True  # nobody tells
        return None

    def _lease(self, step: steps.Lease) -> Endpoint:
        network, record, facts = self._network, self._record, self._known
        now = time.monotonic()
        role = step.role
        told: tuple[str, ...] = ()
        if network.sample and network.rng.random() < network.sample:
            told = network.scheduler.explained(role, facts, now)
        lease = network.scheduler.lease(role, facts, step.exclude, now, computes=step.computes)
        endpoint = lease.endpoint
        self._leases[endpoint] = lease
        if told:
            network.observe(Chosen(record.request_id, role, endpoint, told))
        if role is Role.PREFILL:
            record.prefill = endpoint
        else:
            record.decode = endpoint
        return endpoint

    # Asking an engine.

    def _ask(self, step: steps.Call | steps.Stream) -> None:
        """Send a request on an idle connection or a new one.

        An engine closes idle connections when it likes. A reset on one that was reused says
        nothing of the engine, so if the step allows it the request goes out once more.
        """
        self._step = step
        self._asked_at = time.monotonic()
        connection = self._network.pools[step.endpoint].take(replay=_may_replay(step))
        if connection is not None:
            self._is_reused = True
            self._ask_on(connection)
        else:
            self._connect()

    def _connect(self) -> None:
        pool = self._network.pools[self._step.endpoint]
        self._waiting = self._reply.loop.create_task(pool.connect())
        self._waiting.add_done_callback(self._connected)

    def _connected(self, task: "asyncio.Task[EngineConnection | Failure]") -> None:
        self._waiting = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._finish(cast("Exception", error))
            return
        fresh = task.result()
        if isinstance(fresh, Failure):
            self._report(self._step.endpoint, fresh)
            self._answer(fresh)
        elif self._done is None:  # cancelled in the moment in which it came
            fresh.abort()
        else:
            self._is_reused = False
            try:
                self._ask_on(fresh)
            except Exception as error:  # noqa: BLE001 - as in _advance
                self._finish(error)

    def _ask_on(self, connection: EngineConnection) -> None:
        step = self._step
        pool = self._network.pools[step.endpoint]
        sink = self._sink = (
            self._collector(step) if isinstance(step, steps.Call) else self._relay(step)
        )
        sink.connection = connection
        connection.start(self._head(pool, step.path, len(step.body)), step.body, sink)

    def _collector(self, step: steps.Call) -> Collector:
        limit = self._network.timeouts.prefill - (time.monotonic() - self._asked_at)
        leg = self._leg(step.endpoint, is_heard=True)
        return Collector(step.endpoint, self._reply.loop, limit, self._network.silence, leg, self)

    def _relay(self, step: steps.Stream) -> Relay:
        network = self._network
        return Relay(
            step,
            self._reply,
            self._record,
            kind=self._known.route.kind,
            first_byte_seconds=network.timeouts.first_byte,
            idle_seconds=network.timeouts.idle,
            silence=network.silence,
            leg=self._leg(step.endpoint, is_heard=self._known.stream),
            asker=self,
        )

    # What its sink reports.

    def answered(self, status: int) -> None:
        """The engine's answer begins."""
        step = self._step
        # A decode engine that keeps its errors back reports what is its prefill engine's, too.
        is_own_doing = isinstance(step, steps.Call) or 500 not in step.keep
        seconds = time.monotonic() - self._asked_at
        self._network.observe(LegAnswered(step.endpoint, status, seconds, is_own_doing))

    def headers(self) -> HeaderList:
        """What the router adds to an answer's headers."""
        own = [(b"x-request-id", self._record.request_id.encode())]
        if self._network.names_engines:
            own.append((b"x-pd-router-endpoint", self._step.endpoint.url.encode()))
        return own

    def begun(self) -> None:
        """The client has had a first token: there is no other way any more.

        A stream may last for minutes, and its prompt, as bytes and parsed, is most of its memory.
        """
        self._drop_plan()
        self._facts = None
        self._engine_headers = None
        self._step.body = b""

    def settled(self, outcome: Outcome | None) -> None:
        """It is known what became of the answer."""
        sink, self._sink = self._sink, None
        if sink is None:
            return
        sink.close()
        is_stale = isinstance(outcome, Failure) and outcome.kind is FailureKind.RESET
        if is_stale and self._is_reused and _may_replay(self._step):
            self._connect()
            return
        self._report(self._step.endpoint, sink.failure, sink.status)
        self._answer(outcome)

    def may_move(self) -> bool:
        """Whether a request that waits for a stalled engine has somewhere else to go."""
        endpoint = self._step.endpoint
        return self._attempts < ATTEMPTS and self._network.scheduler.has_other(
            endpoint.role, self._known, endpoint, time.monotonic()
        )

    def _answer(self, outcome: Outcome | None) -> None:
        if isinstance(self._step, steps.Call):
            self._record.prefill_seconds = time.monotonic() - self._asked_at
        self._advance(outcome)

    def _await_kv(self, step: steps.AwaitKV, kv_ready: KVReady) -> None:
        seconds = self._network.timeouts.kv_ready
        waiting = kv_ready.wait(step.transfer_id, step.count, seconds)
        self._waiting = self._reply.loop.create_task(waiting)
        self._waiting.add_done_callback(self._kv_came)

    def _kv_came(self, task: "asyncio.Task[bool]") -> None:
        self._waiting = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._finish(cast("Exception", error))
        else:
            self._advance(task.result())

    def _send(self, reply: Reply) -> None:
        if self._reply.is_started:  # with the head of an engine that stalled
            raise EngineFailed(f"A second engine answered with status {reply.status}.")
        body = redact(reply.body)
        passed = http.end_to_end(reply.headers, http.RESPONSE_ONLY)
        block = http.block(passed + self.headers())
        self._reply.start(reply.status, block, len(body))
        self._record.status = reply.status
        self._record.first_byte = time.monotonic()
        self._reply.write(body)
        self._reply.finish()

    def _head(self, pool: EnginePool, path: str, length: int) -> bytes:
        """The head of a request to an engine; each attempt has an id of its own."""
        if self._engine_headers is None:
            drop = DROP_WHEN_READING if self._known.route.generates else DROP_FOR_ENGINE
            if self._network.engine_api_key is not None:
                drop = drop | {b"authorization"}
            self._engine_headers = http.block(http.end_to_end(self._reply.headers, drop))
            if self._network.engine_api_key is not None:
                key = self._network.engine_api_key.encode()
                self._engine_headers += b"authorization: Bearer %b\r\n" % key
        self._attempts += 1
        return (
            b"POST %b%b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\nx-request-id: %b-%d\r\n\r\n"
        ) % (
            pool.prefix,
            path.encode("latin-1"),
            pool.authority,
            self._engine_headers,
            length,
            self._engine_id.encode(),
            self._attempts,
        )

    def _leg(self, endpoint: Endpoint, *, is_heard: bool) -> Leg:
        lease = self._leases[endpoint]
        return self._network.scheduler.leg(lease, time.monotonic(), is_heard=is_heard)

    def _report(self, endpoint: Endpoint, failure: Failure | None, status: int = 0) -> None:
        if failure is not None:
            self._network.observe(LegFailed(endpoint, failure.kind))
        elif status < 500:
            self._network.observe(LegDone(endpoint))


def _next(plan: steps.Plan, answer: object) -> steps.Step:
    """The plan's next step. Raises what ends it."""
    return plan.throw(answer) if isinstance(answer, RouterError) else plan.send(answer)


def _may_replay(step: steps.Call | steps.Stream) -> bool:
    """Whether a request may be sent twice when nothing was heard of the first."""
    return isinstance(step, steps.Call) or step.replay
