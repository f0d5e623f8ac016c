"""The I/O of one request: makes the calls that its run asks for, and moves the answer on.

`core/request_run.py` decides; one `Exchange` serves one request. However it ends (answered,
failed, cancelled because the client left) its run is closed, which releases its leases, and the
engine connection that was at work is closed. No task waits for engines: what they say drives the
run on, from the read that brought it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, cast

from router.core import headers as http
from router.core.errors import EngineFailed
from router.core.events import Event, RequestEnded
from router.core.plans import steps
from router.core.plans.steps import Outcome
from router.core.redact import redact
from router.core.request_run import ENGINE_REQUESTS, Action, RequestRun
from router.core.schedule import Scheduler
from router.core.values import Endpoint, Facts, Failure, FailureKind, Reply
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
        "_done",
        "_engine_headers",
        "_engine_id",
        "_is_reused",
        "_left",
        "_network",
        "_reply",
        "_run",
        "_sent",
        "_sink",
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
        self._reply = reply
        self._done: Done | None = done
        self._run = RequestRun(
            network.scheduler,
            network.observe,
            facts,
            record,
            rng=network.rng,
            sample=network.sample,
        )
        self._is_reused = False
        self._sink: Collector | Relay | None = None
        """What takes an engine's answer now."""
        self._waiting: asyncio.Task[Any] | None = None
        """What cannot be had at once: a connection, or word of a KV cache."""
        self._engine_headers: bytes | None = None
        # A client may use one request id twice at a time; engines must not see that (vllm#10583).
        self._engine_id = f"{record.request_id}-{network.rng.getrandbits(32):08x}"
        self._sent = 0
        """Engine requests so far; it numbers their ids."""
        self._left: tuple[bytes, ...] = ()
        """Engines that this request waited for in vain, where answers name engines."""

    def start(self, plan: steps.Plan) -> None:
        """Run the plan, until its end if that comes at once."""
        try:
            action = self._run.start(plan, time.monotonic())
        except Exception as error:  # noqa: BLE001 - whoever asked decides what it means
            self._finish(error)
        else:
            self._perform(action)

    def cancel(self) -> None:
        """Stop working for it."""
        self._done = None
        if self._waiting is not None:
            self._waiting.cancel()
        if self._sink is not None:
            self._sink.close()
        self._run.close()

    def _perform(self, action: Action | None) -> None:
        """Do what the run asks for, up to what takes time or to its end."""
        try:
            while action is not None:
                if isinstance(action, ENGINE_REQUESTS):
                    self._ask()
                    return
                if isinstance(action, steps.Send):
                    self._send(action.reply)
                    action = self._run.answer(None, time.monotonic())
                elif (kv_ready := self._network.kv_ready) is not None:
                    self._await_kv(action, kv_ready)
                    return
                else:  # no notifications: assume that the KV cache is ready
                    action = self._run.answer(True, time.monotonic())
        except Exception as error:  # noqa: BLE001 - as in start
            self._finish(error)
        else:
            self._finish(None)

    def _settle(self, outcome: Outcome | None, failure: Failure | None, status: int) -> None:
        """Report what became of the engine request, and go on."""
        if self._done is None:
            return
        if failure is not None and self._network.names_engines:
            # Nothing waits at an engine that refuses connections.
            waited = failure.kind is not FailureKind.REFUSED
            self._left += (self._run.step.endpoint.url.encode(),) if waited else ()
        try:
            action = self._run.settle(outcome, failure, status, time.monotonic())
        except Exception as error:  # noqa: BLE001 - as in start
            self._finish(error)
        else:
            self._perform(action)

    def _finish(self, error: Exception | None) -> None:
        done, self._done = self._done, None
        if self._sink is not None:
            self._sink.close()
        self._run.close()
        if done is not None:
            done(error)

    # Asking an engine.

    def _ask(self) -> None:
        """Send the run's engine request on an idle connection or a new one."""
        run = self._run
        connection = self._network.pools[run.step.endpoint].take(replay=run.may_replay)
        if connection is not None:
            self._is_reused = True
            self._ask_on(connection)
        else:
            self._connect()

    def _connect(self) -> None:
        pool = self._network.pools[self._run.step.endpoint]
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
            self._settle(fresh, fresh, 0)
        elif self._done is None:  # cancelled in the moment in which it came
            fresh.abort()
        else:
            self._is_reused = False
            try:
                self._ask_on(fresh)
            except Exception as error:  # noqa: BLE001 - as in start
                self._finish(error)

    def _ask_on(self, connection: EngineConnection) -> None:
        step = self._run.step
        pool = self._network.pools[step.endpoint]
        sink = self._sink = (
            self._collector(step) if isinstance(step, steps.Call) else self._relay(step)
        )
        sink.connection = connection
        connection.start(self._head(pool, step.path, len(step.body)), step.body, sink)

    def _collector(self, step: steps.Call) -> Collector:
        now = time.monotonic()
        limit = self._network.timeouts.prefill - (now - self._run.asked_at)
        leg = self._run.leg(now)
        return Collector(step.endpoint, self._reply.loop, limit, self._network.silence, leg, self)

    def _relay(self, step: steps.Stream) -> Relay:
        network = self._network
        return Relay(
            step,
            self._reply,
            self._run.record,
            kind=self._known.route.kind,
            first_byte_seconds=network.timeouts.first_byte,
            idle_seconds=network.timeouts.idle,
            silence=network.silence,
            leg=self._run.leg(time.monotonic()),
            asker=self,
        )

    @property
    def _known(self) -> Facts:
        assert self._run.facts is not None, "the answer has begun"
        return self._run.facts

    # What its sink reports.

    def answered(self, status: int) -> None:
        """The engine's answer begins."""
        self._run.answered(status, time.monotonic())

    def headers(self) -> HeaderList:
        """What the router adds to an answer's headers."""
        own = [(b"x-request-id", self._run.record.request_id.encode())]
        if self._network.names_engines:
            own.append((b"x-pd-router-endpoint", self._run.step.endpoint.url.encode()))
            if self._left:
                own.append((b"x-pd-router-left", b", ".join(self._left)))
        return own

    def moved(self) -> bytes:
        """What the router says in a stream whose head named another engine: a comment, which
        clients of event streams pass over. Nothing where answers do not name engines."""
        if not self._network.names_engines:
            return b""
        named = self._run.step.endpoint.url.encode()
        return b": x-pd-router-endpoint %b left %b\n\n" % (named, b", ".join(self._left))

    def begun(self) -> None:
        """The client has had a first token."""
        self._run.begun()
        self._engine_headers = None

    def settled(self, outcome: Outcome | None) -> None:
        """It is known what became of the answer."""
        sink, self._sink = self._sink, None
        if sink is None:
            return
        sink.close()
        if self._run.replays(outcome, is_reused=self._is_reused):
            self._connect()
        else:
            self._settle(outcome, sink.failure, sink.status)

    def may_move(self) -> bool:
        """Whether a request that waits for a stalled engine has somewhere else to go."""
        return self._run.may_leave_stalled(time.monotonic())

    def _await_kv(self, step: steps.AwaitKV, kv_ready: KVReady) -> None:
        seconds = self._network.timeouts.kv_ready
        waiting = kv_ready.wait(step.transfer_id, step.count, seconds)
        self._waiting = self._reply.loop.create_task(waiting)
        self._waiting.add_done_callback(self._kv_came)

    def _kv_came(self, task: "asyncio.Task[bool]") -> None:
        self._waiting = None
        if task.cancelled() or self._done is None:
            return
        if (error := task.exception()) is not None:
            self._finish(cast("Exception", error))
            return
        try:
            action = self._run.answer(task.result(), time.monotonic())
        except Exception as error:  # noqa: BLE001 - as in start
            self._finish(error)
        else:
            self._perform(action)

    def _send(self, reply: Reply) -> None:
        if self._reply.is_started:  # with the head of an engine that stalled
            raise EngineFailed(f"A second engine answered with status {reply.status}.")
        body = redact(reply.body)
        passed = http.end_to_end(reply.headers, http.RESPONSE_ONLY)
        block = http.block(passed + self.headers())
        self._reply.start(reply.status, block, len(body))
        record = self._run.record
        record.status = reply.status
        record.first_byte = time.monotonic()
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
        self._sent += 1
        return (
            b"POST %b%b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\nx-request-id: %b-%d\r\n\r\n"
        ) % (
            pool.prefix,
            path.encode("latin-1"),
            pool.authority,
            self._engine_headers,
            length,
            self._engine_id.encode(),
            self._sent,
        )
