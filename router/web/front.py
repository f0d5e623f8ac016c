"""The front door: inference POSTs go to the relay, everything else to the FastAPI application.

It reads a request's body within its limits, has it decided, runs its plan, and sees to it that
every request ends with one answer and one record, whatever happened.
"""

import asyncio
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
from router.core.routes import ROUTES
from router.core.schedule import Scheduler
from router.core.values import Decision, Facts, Route
from router.net.client import REPLY, ClientReply
from router.net.exchange import Exchange, Network

__all__ = ["Front", "Limits"]

log = logging.getLogger(__name__)

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
    """The ASGI application that the server runs."""

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
        self._scheduler = scheduler
        self._network = network
        self._plans = plans
        self._observe = observe
        self._limits = limits
        self._random = Random()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's lifespan."""
        if scope["type"] != "http":
            await self._operations(scope, receive, send)
            return
        # Taken out of the scope: it knows the scope's owner, and a cycle would live on.
        reply: ClientReply = scope["extensions"].pop(REPLY)
        route = ROUTES.get(scope["path"])
        if route is None:
            await self._operations(scope, receive, send)
        else:
            await self._serve(route, scope, receive, reply)

    async def _serve(
        self, route: Route, scope: Scope, receive: Receive, reply: ClientReply
    ) -> None:
        fields = dict(scope["headers"])
        given = http.clean_request_id(fields.get(b"x-request-id"))
        record = RequestEnded(given or self._new_id(), route.path, time.monotonic())
        task = asyncio.current_task(reply.loop)
        assert task is not None
        reply.attach(task, self._limits.stall_seconds)
        try:
            await self._answer(route, scope, fields, receive, reply, record)
            is_good = record.error is None and record.status < 400
            record.outcome = "ok" if is_good else "error"
        except RouterError as error:
            _fail(reply, record, error)
        except asyncio.CancelledError:
            record.outcome = "client_left" if reply.is_gone else "aborted"
            _fail(reply, record, ShuttingDown("The router is shutting down."))
        except Exception as error:
            log.exception("request %s failed inside the router", record.request_id)
            _fail(reply, record, InternalError(f"The router failed: {type(error).__name__}."))
        finally:
            reply.detach()
            record.ended = time.monotonic()
            self._observe(record)

    async def _answer(
        self,
        route: Route,
        scope: Scope,
        fields: Fields,
        receive: Receive,
        reply: ClientReply,
        record: RequestEnded,
    ) -> None:
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{route.path} takes POST, not {scope['method']}.")
        raw = await self._body(fields, receive, reply)
        reply.listen()
        kind = fields.get(b"content-type", b"")
        facts = facts_of.read(route, kind, raw, scope["query_string"])
        record.model, record.stream, record.tokens = facts.model, facts.stream, facts.tokens
        decision = self._scheduler.decide(facts)
        record.way, record.reason = decision.way, decision.reason
        exchange = Exchange(self._network, facts, scope["headers"], reply, record)
        await exchange.run(self._plans(facts, decision))

    def _new_id(self) -> str:
        """Unique, not secret: uuid4 asks the kernel for every one."""
        return f"{self._random.getrandbits(128):032x}"

    async def _body(self, fields: Fields, receive: Receive, reply: ClientReply) -> bytes:
        _check_framing(fields, self._limits.body_bytes)
        if reply.has_whole_body:  # as almost always: there is nothing to wait for
            return await self._read(receive)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await self._read(receive)
        except TimeoutError:
            seconds = self._limits.body_seconds
            raise BodyTooSlow(f"The body did not arrive within {seconds:g} s.") from None

    async def _read(self, receive: Receive) -> bytes:
        limit = self._limits.body_bytes
        parts = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise asyncio.CancelledError
            parts.append(message["body"])
            size += len(message["body"])
            if size > limit:
                raise BodyTooLarge(f"The body is larger than {limit} bytes.")
            more = message["more_body"]
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_framing(fields: Fields, limit: int) -> None:
    """Refuse by the headers what need not be read."""
    length = fields.get(b"content-length")
    if length is None and b"transfer-encoding" not in fields:
        raise LengthRequired("A body is required: send Content-Length or chunked encoding.")
    if length is not None:
        if not length.isdigit():
            raise BadRequest("Content-Length is not a number.")
        if int(length) > limit:
            raise BodyTooLarge(f"The body is larger than {limit} bytes.")
    coding = fields.get(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        raise UnsupportedBody("Compressed bodies are not accepted: engines cannot read them.")


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
