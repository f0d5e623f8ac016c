"""One request for which Envoy asks for endpoints, from its headers to the end of its answer."""

import logging
import re
import time
from collections.abc import Callable
from typing import Any

import orjson

from router.core.errors import (
    BadRequest,
    EngineFailed,
    InternalError,
    MethodNotAllowed,
    NotFound,
    RouterError,
    UnsupportedBody,
)
from router.core.events import MessageIgnored, RequestEnded
from router.core.gateway.endpoint_pick import EndpointPick
from router.core.gateway.protocol import (
    DESTINATION,
    GATEWAY_HEADERS,
    LLM_D_PREFILLER,
    PREFILLER,
    SERVED,
    address_of,
)
from router.core.limits.api_keys import KEY_HEADERS, check_key
from router.core.request_facts import Facts
from router.core.routes import ROUTES
from router.core.routing.large_body import LARGE_BYTES, LIGHT_BYTES, is_large
from router.core.routing.request_run import RequestRun
from router.core.values import DECODE, Endpoint, Route
from router.core.wire import facts as facts_of
from router.core.wire import headers as http
from router.core.wire.api_errors import UNAUTHORIZED, UNAUTHORIZED_STATUSES, error_body
from router.core.wire.facts import check_head, check_size, declared_size
from router.net.engine.pool import RANK_HEADER
from router.net.request.network import Network
from router.web.epp.messages import BUFFERED, FULL_DUPLEX, NO_BODY, Messages, Modes

__all__ = ["Exchange"]

log = logging.getLogger(__name__)

MODELS = "/v1/models"

JSON = {b"content-type": b"application/json"}

_STATUS = re.compile(rb"[0-9]{3}")

WRONG_MODE = (
    "The endpoint picker needs the request's body: set request_body_mode to BUFFERED or "
    "FULL_DUPLEX_STREAMED in Envoy's ext_proc filter."
)


class Exchange:
    """Responds to Envoy's messages about one request. Always call `close`. `on_abort` is called if
    the router shuts down."""

    def __init__(
        self, network: Network, messages: Messages, on_abort: Callable[[], object]
    ) -> None:
        self._network = network
        self._on_abort = on_abort
        self.is_aborted = False
        self._messages = messages
        self._modes = Modes(NO_BODY, NO_BODY)
        self._fields: dict[bytes, bytes] = {}
        self._route: Route | None = None
        self._query = b""
        self._pieces: list[bytes] = []
        self._held = 0
        self._pick: EndpointPick | None = None
        self._record = RequestEnded("", "", time.monotonic())
        self._error: str | None = None
        self._is_refused = False
        self._has_answer = False
        """Whether the answer's head has been received."""
        self._is_answered = False
        """Whether the end of the answer has been received."""
        network.active.add(self)

    def abort(self) -> None:
        """End the exchange because the router is shutting down. Envoy continues the request without
        it."""
        self.is_aborted = True
        self.close()
        self._on_abort()

    async def on(self, message: Any) -> list[Any]:
        """The responses to a message."""
        kind = message.WhichOneof("request")
        try:
            return await self._answer(kind, message)
        except RouterError as error:
            return [self._refuse(error)]
        except Exception as error:
            log.exception("request %s failed inside the router", self._record.request_id)
            return [self._refuse(InternalError(f"The router failed: {type(error).__name__}."))]

    async def _answer(self, kind: str, message: Any) -> list[Any]:
        if self._is_refused:
            return []
        if self._is_behind_the_end(kind):
            return self._ignore(kind)
        if kind == "request_headers":
            return self._on_head(message)
        if self._route is None or kind is None:
            raise BadRequest("Envoy sent a message before the request's headers, or an empty one.")
        if kind == "request_body":
            return await self._on_body(message.request_body)
        if kind == "request_trailers":
            told = self._messages.go_on(kind)
            is_chosen = self._pick is not None  # a buffered body came whole before
            return [told] if is_chosen else [*await self._on_whole_body(is_last=False), told]
        if kind == "response_headers":
            return self._on_answer(message)
        if kind == "response_body":
            return self._on_answer_body(message.response_body)
        self._on_answer_end()
        return [self._messages.go_on(kind)]

    def _is_behind_the_end(self, kind: str) -> bool:
        """Whether a message repeats what has been received as a whole. Envoy 1.35 and later may
        send the last piece of a body twice (envoy#46237)."""
        if kind in ("request_headers", "request_body"):
            return self._pick is not None
        if kind == "response_headers":
            return self._has_answer
        return kind == "response_body" and self._is_answered

    def _ignore(self, kind: str) -> list[Any]:
        """Envoy waits for a response to every message, except to pieces of a streamed body: what
        responds to these is sent on as a part of it."""
        self._network.observe(MessageIgnored())
        modes = {"request_body": self._modes.request, "response_body": self._modes.response}
        return [] if modes.get(kind) == FULL_DUPLEX else [self._messages.go_on(kind)]

    # The request.

    def _on_head(self, message: Any) -> list[Any]:
        if self._route is not None:
            raise BadRequest("Envoy sent more than one head of the request.")
        network, messages = self._network, self._messages
        self._modes = messages.modes(message)
        self._fields = fields = messages.fields(message.request_headers)
        path, _, query = fields.get(b":path", b"/").partition(b"?")
        text, method = path.decode("latin-1"), fields.get(b":method", b"GET")
        given = http.clean_request_id(fields.get(b"x-request-id"))
        self._record.request_id = given or network.rng.getrandbits(128).to_bytes(16).hex()
        if text in ROUTES:
            self._record.route = text
        if network.api_keys is not None:
            self._record.api_key = check_key(network.api_keys.keys, fields)
        if text == MODELS and method == b"GET":
            return [self._models()]
        self._route, self._query = self._routed(text, method), query
        if self._modes.request not in (BUFFERED, FULL_DUPLEX):
            raise InternalError(WRONG_MODE)
        is_empty = message.request_headers.end_of_stream
        # In HTTP/2 a body needs neither a length nor a transfer coding.
        framed = fields if is_empty else {b"transfer-encoding": b"chunked", **fields}
        check_head(method, text, framed, self._max_bytes())
        if is_empty:
            raise BadRequest("The body is empty.")
        network.byte_budget.check(declared_size(fields))
        if http.content_coding(fields.items()):  # Envoy sends the body on
            raise UnsupportedBody("Compressed bodies are not accepted: engines cannot read them.")
        if self._modes.request == FULL_DUPLEX:  # respond when the body is complete
            return []
        return [messages.go_on("request_headers")]

    def _routed(self, path: str, method: bytes) -> Route:
        route = ROUTES.get(path)
        if route is None:
            raise NotFound(f"{method.decode('latin-1')} {path}: no such route.")
        if method != b"POST":
            raise MethodNotAllowed(f"{method.decode('latin-1')} {path}: method not allowed.")
        return route

    def _models(self) -> Any:
        self._is_refused = True
        cards = list(self._network.scheduler.fleet.models.cards().values())
        return self._messages.answer(200, orjson.dumps({"object": "list", "data": cards}), JSON)

    def _max_bytes(self) -> int:
        assert self._route is not None, "it was routed"
        return min(self._network.limits.body_bytes, self._route.max_body_bytes)

    async def _on_body(self, body: Any) -> list[Any]:
        self._take(body.body)
        is_last = body.end_of_stream or self._modes.request == BUFFERED
        return await self._on_whole_body() if is_last else []

    def _take(self, piece: bytes) -> None:
        size = self._held + len(piece)
        if size > self._max_bytes():
            check_size(size, self._max_bytes())
        self._network.byte_budget.take(len(piece))
        self._held = size
        self._pieces.append(piece)

    async def _on_whole_body(self, *, is_last: bool = True) -> list[Any]:
        """Choose the engines. `is_last`: no trailers follow."""
        pieces, self._pieces = self._pieces, []
        raw = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        facts = await self._read(raw)
        facts.session = self._network.session_of(self._fields)
        self._pick = pick = self._new_pick()
        now = time.monotonic()
        pick.choose(facts, now)
        headers = self._chosen(pick, pick.decodes(now))
        body = b"".join((*facts.lead, facts.raw))
        self._drop_body()
        messages, drop = self._messages, tuple(self._not_for_engines())
        if self._modes.request == FULL_DUPLEX:
            told = messages.with_headers("request_headers", headers, drop=drop)
            return [told, *messages.pieces("request_body", body, is_last=is_last)]
        told = messages.with_headers("request_body", headers, drop=drop)
        if body != raw:  # keys that clients may not set were removed
            messages.replace_body(told, body)
        return [told]

    def _not_for_engines(self) -> frozenset[bytes]:
        """Client headers that are not sent to engines."""
        drop = GATEWAY_HEADERS | {RANK_HEADER}
        return drop if self._network.api_keys is None else drop | KEY_HEADERS

    async def _read(self, raw: bytes) -> Facts:
        assert self._route is not None, "it was routed"
        network, kind = self._network, self._fields.get(b"content-type", b"")
        if len(raw) > LARGE_BYTES or (len(raw) > LIGHT_BYTES and is_large(raw)):
            return await network.body_parser.read(self._route, kind, [raw], self._query)
        return facts_of.read(self._route, kind, raw, self._query, network.image_rules)

    def _new_pick(self) -> EndpointPick:
        network = self._network
        scheduler, observe = network.scheduler, network.observe
        run = RequestRun(scheduler, observe, self._record, network.rng, network.sample)
        is_watched = self._modes.response != NO_BODY
        return EndpointPick(run, scheduler, observe, is_watched=is_watched)

    def _chosen(self, pick: EndpointPick, decodes: tuple[Endpoint, ...]) -> dict[bytes, bytes]:
        """The headers for Envoy and for a sidecar."""
        addresses = dict.fromkeys(map(address_of, decodes))
        headers = {
            DESTINATION: ",".join(addresses).encode(),
            b"x-request-id": self._record.request_id.encode(),
        }
        if pick.prefill is not None:
            headers[PREFILLER] = headers[LLM_D_PREFILLER] = address_of(pick.prefill).encode()
        place = self._network.scheduler.fleet.member(decodes[0]).entry.place
        if place is not None:
            headers[RANK_HEADER] = b"%d" % place
        if (key := self._network.engine_api_key) is not None:
            headers[b"authorization"] = b"Bearer %b" % key.encode()
        return headers

    # The answer.

    def _on_answer(self, message: Any) -> list[Any]:
        pick, kind = self._pick, "response_headers"
        self._has_answer = True
        if pick is None:  # Envoy itself answered before an engine was chosen
            return [self._messages.go_on(kind)]
        fields = self._messages.fields(message.response_headers)
        given = fields.get(b":status", b"0")
        status, now = int(given) if _STATUS.fullmatch(given) else 0, time.monotonic()
        served = self._endpoint(self._messages.served(message), pick)
        pick.on_head(status, served, now)
        if status in UNAUTHORIZED_STATUSES and self._network.withholds_client_keys:
            pick.fail(UNAUTHORIZED, UNAUTHORIZED.message)
            return [self._refuse(EngineFailed(UNAUTHORIZED.message))]
        if message.response_headers.end_of_stream:
            self._on_answer_end()
        headers = {
            SERVED: address_of(pick.decode).encode(),
            b"x-request-id": self._record.request_id.encode(),
        }
        return [self._messages.with_headers(kind, headers)]

    def _endpoint(self, address: str | None, pick: EndpointPick) -> Endpoint | None:
        """The engine at an address, which all ranks of an engine share."""
        if address is None or address_of(pick.decode) == address:
            return None
        pool = self._network.scheduler.fleet.pool(DECODE)
        found = (m.endpoint for m in pool if address_of(m.endpoint) == address)
        return next(found, None)

    def _on_answer_body(self, body: Any) -> list[Any]:
        if self._pick is not None:
            self._pick.on_body(body.body, time.monotonic())
            if body.end_of_stream:
                self._on_answer_end()
        if self._modes.response != FULL_DUPLEX:
            return [self._messages.go_on("response_body")]
        return list(self._messages.pieces("response_body", body.body, is_last=body.end_of_stream))

    def _on_answer_end(self) -> None:
        self._is_answered = True
        if self._pick is not None:
            self._pick.on_end(time.monotonic())

    # The end.

    def _refuse(self, error: RouterError) -> Any:
        self._is_refused = True
        self._error = error.message
        self._record.status = error.status
        target = self._fields.get(b":path", b"")
        body = error_body(error, target, self._record.request_id)
        headers = dict(JSON)
        if error.retry_after is not None:
            headers[b"retry-after"] = b"%d" % error.retry_after
        return self._messages.answer(error.status, body, headers)

    def _drop_body(self) -> None:
        self._network.byte_budget.give(self._held)
        self._held = 0

    def close(self) -> None:
        """End the exchange. Idempotent."""
        if self not in self._network.active:
            return
        self._network.active.discard(self)
        self._drop_body()
        pick, now = self._pick, time.monotonic()
        if pick is not None:
            pick.end(now, self._error, is_aborted=self.is_aborted)
        elif self._record.route:
            record = self._record
            record.outcome, record.error, record.ended = "error", self._error, now
            if self._error is None:
                record.outcome = "aborted" if self.is_aborted else "client_left"
            self._network.observe(record)
