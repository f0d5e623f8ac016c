"""The front door: inference requests are decided and run here, everything else is FastAPI's.

It checks a request's head and body against its limits, has it decided, starts its plan, and sees to
it that every request ends with one answer and one record, whatever happened. Nothing here awaits:
a request is a chain of calls from the client's last byte to the engine's first.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from random import Random
from typing import Any

from router.core import facts as facts_of
from router.core import headers as http
from router.core.errors import (
    BadRequest,
    BodyTooLarge,
    BodyTooSlow,
    InternalError,
    LengthRequired,
    MethodNotAllowed,
    RouterError,
    ShuttingDown,
    UnsupportedBody,
)
from router.core.events import Event, RequestEnded
from router.core.plans.steps import Plan
from router.core.schedule import Scheduler
from router.core.values import Decision, Facts
from router.net.client import ClientReply
from router.net.exchange import Exchange, Network
from router.net.start_limiter import StartLimiter

__all__ = ["Front", "Limits"]

log = logging.getLogger(__name__)

STARTS_PER_TURN = 32
"""Requests that start at once per 10 ms, and beyond that per turn of the event loop: each takes
35 us, and a new engine connection 100 us in the next turn."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Fields = Mapping[bytes, bytes]
"""Headers by lower-case name; of those that come twice the last one."""
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take."""

    body_bytes: int
    body_seconds: float
    stall_seconds: float


class Front:
    """The ASGI application that the server runs, and the `Door` of its client connections."""

    def __init__(
        self,
        operations: App,
        scheduler: Scheduler,
        network: Network,
        plans: Callable[[Facts, Decision], Plan],
        observe: Callable[[Event], None],
        limits: Limits,
    ) -> None:
        self._operations = operations
        self.scheduler = scheduler
        self.network = network
        self.plans = plans
        self.observe = observe
        self.body_bytes = limits.body_bytes
        self.body_seconds = limits.body_seconds
        self.stall_seconds = limits.stall_seconds
        self.visits: set[Visit] = set()
        """Requests that have begun and not ended."""
        self.start_limiter = StartLimiter(STARTS_PER_TURN)
        self._is_closed = False
        self._random = Random()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what is not inference: operations, and the application's lifespan."""
        await self._operations(scope, receive, send)

    def begin(self, reply: ClientReply) -> None:
        """Take an inference request by its head."""
        fields = dict(reply.headers)
        given = http.clean_request_id(fields.get(b"x-request-id"))
        record = RequestEnded(given or self._new_id(), reply.route.path, time.monotonic())
        visit = Visit(self, reply, fields, record)
        self.visits.add(visit)
        reply.visit = visit
        if self._is_closed:
            visit.abort()
        else:
            visit.check()

    def abort(self) -> int:
        """End everything that is under way, and begin nothing more; returns how much that was."""
        self._is_closed = True
        visits = list(self.visits)
        for visit in visits:
            visit.abort()
        return len(visits)

    def _new_id(self) -> str:
        """Unique, not secret: uuid4 asks the kernel for every one."""
        return f"{self._random.getrandbits(128):032x}"


class Visit:
    """One inference request from its head to its record."""

    __slots__ = ("_exchange", "_fields", "_front", "_record", "_reply")

    def __init__(
        self, front: Front, reply: ClientReply, fields: Fields, record: RequestEnded
    ) -> None:
        self._front = front
        self._reply = reply
        self._fields = fields
        self._record = record
        self._exchange: Exchange | None = None

    # What its connection reports.

    def check(self) -> None:
        """Refuse by the head what need not be read."""
        try:
            _check_head(self._reply, self._fields, self._front.body_bytes)
        except RouterError as error:
            self._end(error)

    def grown(self, size: int) -> None:
        """Refuse a body that is too large as soon as it is."""
        try:
            _check_size(size, self._front.body_bytes)
        except RouterError as error:
            self._end(error)

    def late(self) -> None:
        """Refuse a body that takes too long."""
        seconds = self._front.body_seconds
        self._end(BodyTooSlow(f"The body did not arrive within {seconds:g} s."))

    def whole(self) -> None:
        """Its turn comes now, or when others that came with it have had theirs."""
        self._front.start_limiter.submit(self._reply.loop, self._begin)

    def _begin(self) -> None:
        """Decide, and start the plan."""
        front, reply, record = self._front, self._reply, self._record
        if self not in front.visits:  # the client left, or the router goes
            return
        try:
            raw = reply.body()
            _check_size(len(raw), front.body_bytes)
            kind = self._fields.get(b"content-type", b"")
            facts = facts_of.read(reply.route, kind, raw, reply.query)
            record.model, record.stream, record.tokens = facts.model, facts.stream, facts.tokens
            decision = front.scheduler.decide(facts)
            record.mode, record.reason = decision.mode, decision.reason
            exchange = Exchange(front.network, facts, reply, record, self._end)
            self._exchange = exchange
            exchange.start(front.plans(facts, decision))
        except Exception as error:  # noqa: BLE001 - the one place where all of them are answered
            self._end(error)

    def left(self) -> None:
        """The client is gone: stop working for it."""
        self._record.outcome = "client_left"
        self._stop()

    def abort(self) -> None:
        """The router is going: say so."""
        self._record.outcome = "aborted"
        self._stop()

    # The end.

    def _stop(self) -> None:
        if self._exchange is not None:
            self._exchange.cancel()
        _fail(self._reply, self._record, ShuttingDown("The router is shutting down."))
        self._conclude()

    def _end(self, error: Exception | None) -> None:
        """It was answered, or `error` is to be the answer."""
        if self not in self._front.visits:
            return
        record = self._record
        if error is None:
            is_good = record.error is None and record.status < 400
            record.outcome = "ok" if is_good else "error"
        elif isinstance(error, RouterError):
            _fail(self._reply, record, error)
        else:
            log.error("request %s failed inside the router", record.request_id, exc_info=error)
            text = f"The router failed: {type(error).__name__}."
            _fail(self._reply, record, InternalError(text))
        self._conclude()

    def _conclude(self) -> None:
        self._exchange = None
        self._reply.detach()
        self._front.visits.discard(self)
        self._record.ended = time.monotonic()
        self._front.observe(self._record)


def _check_head(reply: ClientReply, fields: Fields, limit: int) -> None:
    if reply.method != b"POST":
        raise MethodNotAllowed(f"{reply.route.path} takes POST, not {reply.method.decode()}.")
    length = fields.get(b"content-length")
    if length is None and b"transfer-encoding" not in fields:
        raise LengthRequired("A body is required: send Content-Length or chunked encoding.")
    if length is not None:
        if not length.isdigit():
            raise BadRequest("Content-Length is not a number.")
        _check_size(int(length), limit)
    coding = fields.get(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        raise UnsupportedBody("Compressed bodies are not accepted: engines cannot read them.")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise BodyTooLarge(f"The body is larger than {limit} bytes.")


def _fail(reply: ClientReply, record: RequestEnded, error: RouterError) -> None:
    """Tell the client, if it is there, and the record."""
    if not reply.is_gone:
        if not reply.is_started:
            record.status = error.status
        record.error = record.error or error.message
        block = [(b"x-request-id", record.request_id.encode())]
        if error.status == 405:
            block.append((b"allow", b"POST"))
        reply.fail(error, http.block(block))
