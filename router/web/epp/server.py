"""The gRPC server that an Envoy asks which engine a request shall go to (`--epp-port`).

It is another listener of the same router: fleet, policies, leases, metrics and log are those of
the HTTP listener beside it.
"""

import asyncio
import logging
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
"""For headers and framing, beside the largest body."""


KEEPALIVE_MS = 20_000
"""Of silence, until an Envoy is asked whether it is there: a stream may be silent for minutes."""

UNTIL_THEY_END = 1e6
"""Seconds for calls to end: longer than any grace. At its end gRPC would cancel them."""

KEEPALIVE_TIMEOUT_MS = 10_000
"""For its answer; without one its streams end, and with them what they count for in the loads."""


class EndpointPicker:
    """Serves Envoy's external processing. Raises SettingsError when the extra is not installed."""

    def __init__(self, network: Network, host: str, port: int) -> None:
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
        """Listen. Raises SettingsError for a port that cannot be had."""
        grpc, messages = self._grpc, self._messages
        largest = self._network.limits.body_bytes + MAX_MESSAGE_SLACK
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", largest),
                ("grpc.max_send_message_length", largest),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                # grpcio 1.85 ignores the one before; without this one it waits for 60 s.
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
        """Take no new requests; those under way go on."""
        if self._server is not None and self._stopping is None:
            self._stopping = asyncio.ensure_future(self._server.stop(UNTIL_THEY_END))

    async def stop(self) -> None:
        """Stop. All requests must have ended, or be aborted."""
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
            # The call ends well, so Envoy goes on alone. Otherwise it would cut the client off.
            task.uncancel()
        finally:
            exchange.close()
