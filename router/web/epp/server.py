"""The gRPC server that Envoy asks for the endpoints of a request (`--epp-port`).

It is a further listener of the same router, with the fleet, policies, leases, metrics and log of
the HTTP listener.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from typing import Any, Final

from router.net.request.network import Network
from router.settings import SettingsError
from router.web.epp.exchange import Exchange
from router.web.epp.messages import Messages

__all__ = ["EndpointPicker"]

log = logging.getLogger(__name__)

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"

MAX_MESSAGE_SLACK: Final = 1 << 20
"""Bytes for headers and framing, in addition to the largest body."""


KEEPALIVE_MS = 20_000
"""Milliseconds of silence after which Envoy is pinged: a stream may be silent for minutes."""

UNTIL_THEY_END = 1e6
"""Seconds for calls to end, longer than any grace period. Afterwards gRPC would cancel them."""

KEEPALIVE_TIMEOUT_MS = 10_000
"""Milliseconds until an unanswered ping closes the connection, which releases the leases of its
streams."""


class EndpointPicker:
    """Serves Envoy's external processing. Raises SettingsError if the extra is not installed."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        # gRPC's fork handlers end one in seven body processes by SIGSEGV. Nothing here needs them:
        # the router forks only to start another program.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # noqa: TID251 - gRPC's setting
        try:
            import grpc  # noqa: PLC0415 - an extra

            self._messages = Messages()
        except ImportError as error:
            text = f"--epp-port: {error.name or error}: pip install 'pd-router[epp]'"
            raise SettingsError(text) from None
        self._grpc: Any = grpc
        self._network = network
        self._place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._server: Any = None
        self._stopping: asyncio.Future[None] | None = None
        self.port = port

    async def start(self) -> None:
        """Listen. Raises SettingsError if the port cannot be bound."""
        grpc, messages = self._grpc, self._messages
        largest = self._network.limits.body_bytes + MAX_MESSAGE_SLACK
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", largest),
                ("grpc.max_send_message_length", largest),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                # grpcio 1.85 ignores the previous option; without this one it waits for 60 s.
                ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ]
        )
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=messages.parse,
            response_serializer=messages.serialise,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),)
        )
        try:
            self.port = self._server.add_insecure_port(self._place)
        except RuntimeError:
            raise SettingsError(
                f"--epp-port: cannot listen on {self._place}; is it taken?"
            ) from None
        await self._server.start()
        log.info("listening for Envoy", extra={"fields": {"epp_port": self.port}})

    def stop_accepting(self) -> None:
        """Accept no new requests; those in progress continue."""
        if self._server is not None and self._stopping is None:
            self._stopping = asyncio.ensure_future(self._server.stop(UNTIL_THEY_END))

    async def stop(self) -> None:
        """Stop. All requests must have ended or been aborted."""
        self.stop_accepting()
        if self._stopping is not None:
            await self._stopping

    async def _process(self, requests: Any, _context: Any) -> AsyncIterator[Any]:
        task = asyncio.current_task()
        assert task is not None
        exchange = Exchange(self._network, self._messages, task.cancel)
        try:
            async for message in requests:
                for answer in await exchange.on(message):
                    yield answer
        except asyncio.CancelledError:
            if not exchange.is_aborted:
                raise
            # End the call normally, so that Envoy continues alone. Otherwise it would disconnect
            # the client.
            task.uncancel()
        finally:
            exchange.close()
