"""The client's side of a request: all that the router sends to the client."""

import time
from typing import Final

from router.core.errors import QueueFull, RouterError
from router.core.events import RequestEnded
from router.core.values import MESSAGES, Endpoint, Reply, RouteKind
from router.core.wire import headers as http
from router.core.wire.api_errors import engine_error, engine_error_event
from router.core.wire.jsonspan import redact
from router.core.wire.sse import DONE
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest
from router.net.engine.answer import AnswerHead
from router.net.request.network import Network

__all__ = ["Downstream"]

EARLY_HEAD: Final = b"content-type: text/event-stream; charset=utf-8\r\n"
"""As vLLM's."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""As vLLM's, with its --sse-keep-alive-interval."""


class Downstream:
    """The response to one request: an engine's answer, a reply from the plan, or an error.

    An answer comes in three calls: `start`, `send` as often as needed, `end`. What was sent is
    counted in the record.
    """

    __slots__ = ("_network", "client", "kind", "last", "left", "record", "request", "response")

    def __init__(
        self,
        network: Network,
        client: ClientConnection,
        request: ClientRequest,
        kind: RouteKind,
        record: RequestEnded,
    ) -> None:
        self.client = client
        self.response = client.response
        self.kind = kind
        self.record = record
        self.last = b""
        """The last events that the client has been sent, except [DONE]."""
        self.left: tuple[bytes, ...] = ()
        """URLs of the engines that failed to serve the request, if answers name engines."""
        self._network = network
        self.request = request

    # An engine's answer.

    def start(
        self, head: AnswerHead, endpoint: Endpoint, length: int | None, *, is_stream: bool = False
    ) -> None:
        """Set the head, unless the client has one: an early head, or that of an engine that failed.

        `length`: of the body in bytes, if known.
        """
        response = self.response
        if not response.is_started:
            block = self._headers(head.lines_for_client(), endpoint)
            response.start(head.status, block, length, self.kind if is_stream else None)
        self.record.status = head.status
        if self.client.write_paused and self.request.listener is not None:
            self.request.listener.on_write_paused()

    def send(self, data: bytes) -> None:
        """Send data of the body."""
        self.record.chunks += 1
        self.record.bytes_out += len(data)
        self.response.write(data)

    def send_events(self, data: bytes) -> None:
        """Send events of a stream."""
        if data != DONE:
            self.last = data
        self.record.chunks += 1
        self.record.bytes_out += len(data)
        self.response.write(data)

    def name_engine(self, endpoint: Endpoint) -> None:
        """Name the engine of a stream in an SSE comment, because the head that the client has names
        another engine or none. No effect unless answers name engines."""
        if self._network.names_engines:
            left = b" left " + b", ".join(self.left) if self.left else b""
            comment = b": x-pd-router-endpoint %b%b\n\n"
            self.response.write(comment % (endpoint.url.encode(), left))

    def end(self) -> None:
        """End the response."""
        self.client.end_response()

    def break_off(self, error: RouterError) -> None:
        """End an answer that has begun and will not be completed."""
        self.record.error = error.message
        self.client.fail(self.request, error, last=self.last)

    # What the router itself sends.

    def send_reply(self, reply: Reply, endpoint: Endpoint) -> None:
        """Send an engine's reply that is in memory; behind the head of a stream as an error
        event."""
        record, response = self.record, self.response
        body = redact(reply.body)
        if reply.status >= 400:
            record.error = engine_error(endpoint.role, reply.status, body)
        if not response.is_started:
            lines = http.block(http.end_to_end(reply.headers, http.RESPONSE_ONLY))
            response.start(reply.status, self._headers(lines, endpoint), len(body))
        elif reply.status >= 400:
            body = engine_error_event(reply.status, body, self.kind)
        record.status = record.status or reply.status
        if reply.status == record.status:  # else the client had the head of an engine that failed
            record.first_byte = time.monotonic()
        response.write(body)
        self.client.end_response()

    def keep_alive(self) -> None:
        """Send a comment, because proxies and agents give up on silence. If the client has no head,
        an early one goes first: 200 before any engine's status is known."""
        response = self.response
        if not response.is_started:
            block = EARLY_HEAD + self._id_lines() + self._limit_lines()
            response.start(200, block, None, self.kind)
        response.is_corked = False  # as the answer of an engine that failed may have left it
        response.write(KEEP_ALIVE)

    def fail(self, error: RouterError) -> None:
        """Send an error, if the client is still connected, and record it."""
        client, record = self.client, self.record
        if client.active is not self.request:
            return
        record.status = record.status or error.status
        record.error = record.error or error.message
        block = self._id_lines()
        if not isinstance(error, QueueFull):  # QueueFull says nothing of the key's limits
            block += self._limit_lines()
        client.fail(self.request, error, block, request_id=record.request_id, last=self.last)

    # Header lines.

    def _headers(self, lines: bytes, endpoint: Endpoint) -> bytes:
        """The engine's header `lines` and those that the router adds."""
        network = self._network
        own = self._id_lines()
        if network.names_engines:
            own += b"x-pd-router-endpoint: %b\r\n" % endpoint.url.encode()
            if self.left:
                own += b"x-pd-router-left: %b\r\n" % b", ".join(self.left)
        if network.gateway is not None:
            fields, transport = self.request.head.fields, self.client.transport
            own += network.gateway.lines(fields, transport, network.scheduler.fleet, endpoint)
        if network.api_keys is not None and (limits := self._limit_lines()):
            return http.without_rate_limits(lines) + own + limits
        return lines + own

    def _id_lines(self) -> bytes:
        """Header lines with the request's id. Anthropic's SDKs read `request-id`."""
        request_id = self.record.request_id.encode()
        line = b"x-request-id: %b\r\n" % request_id
        return b"request-id: %b\r\n%b" % (request_id, line) if self.kind is MESSAGES else line

    def _limit_lines(self) -> bytes:
        """Header lines with the rate limits of the request's API key; empty if it has none."""
        keys = self._network.api_keys
        usage = None if keys is None else keys.usages.get(self.record.api_key or "")
        return b"" if usage is None else usage.header_lines(time.monotonic())
