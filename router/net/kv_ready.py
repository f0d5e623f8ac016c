"""Receives LMCache's notifications that a KV cache has been transferred to its decode engine.

Each tensor-parallel rank of a prefill engine connects to this socket and pushes one message per
transfer, before or after the HTTP reply of the prefill. Messages are therefore counted per
transfer, also before anything waits for them.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

__all__ = ["KVReadySocket"]

log = logging.getLogger(__name__)

MAX_EARLY = 4096
"""Transfers whose early notifications are kept; beyond that the oldest are dropped. Ten times the
prefills that a router has in flight."""

MAX_MESSAGE_BYTES = 4096
"""A notification has about 70 bytes; senders of longer messages are disconnected."""

BATCH = 256
"""Messages that are read per turn of the event loop, so that a flood cannot block the streams."""


@dataclass(slots=True)
class _Wait:
    missing: int
    is_ready: asyncio.Future[bool]


class KVReadySocket:
    """A ZeroMQ PULL socket, which LMCache's settings call pd_proxy_host and pd_proxy_port.

    `received` counts the notifications, `ignored` the messages that were not notifications.
    """

    def __init__(self, address: str) -> None:
        """`address` is like tcp://0.0.0.0:7500. Raises ImportError, whose message names the extra
        to install."""
        try:
            import msgpack  # noqa: PLC0415 - an extra: only LMCache with notifications needs it
            import zmq  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(
                f"KV-ready notifications need {error.name}: pip install 'pd-router[lmcache]'"
            ) from None
        self._zmq = zmq
        self._msgpack = msgpack
        self.address = address
        self.received = self.ignored = 0
        self._early: OrderedDict[str, int] = OrderedDict()
        self._waits: dict[str, _Wait] = {}
        self._context: zmq.Context[Any] | None = None
        self._socket: zmq.Socket[Any] | None = None

    def start(self) -> None:
        """Bind, and listen on the running event loop. Raises OSError if the address cannot be
        bound.

        Sets `address` to the bound one, which differs for port 0 or `*`.
        """
        zmq = self._zmq
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PULL)
        self._socket.linger = 0
        self._socket.ipv6 = "[" in self.address
        self._socket.maxmsgsize = MAX_MESSAGE_BYTES
        try:
            self._socket.bind(self.address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"cannot listen on {self.address}: {error}") from None
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)
        self._read()  # the descriptor does not signal messages that came before

    def close(self) -> None:
        """Stop listening. Waiters get False. Idempotent."""
        for wait in self._waits.values():
            _settle(wait, is_ready=False)
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None

    async def wait(self, transfer_id: str, count: int, timeout: float) -> bool:
        """Wait until `count` ranks have reported `transfer_id`. Returns False after `timeout`
        seconds.

        Call it once per transfer: it removes the count.
        """
        missing = count - self._early.pop(transfer_id, 0)
        if missing <= 0:
            return True
        wait = _Wait(missing, asyncio.get_running_loop().create_future())
        self._waits[transfer_id] = wait
        try:
            async with asyncio.timeout(timeout):
                return await wait.is_ready
        except TimeoutError:
            return False
        finally:
            del self._waits[transfer_id]

    def _read(self) -> None:
        """Read all messages, because the descriptor only signals again after that."""
        for _ in range(BATCH):
            if self._socket is None:
                return
            try:
                frames = self._socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            self._take(frames)
        asyncio.get_running_loop().call_soon(self._read)

    def _take(self, frames: list[bytes]) -> None:
        transfer_id = self._transfer_id(frames)
        if transfer_id is None:
            self.ignored += 1
            log.debug("ignored a message of %d frames on %s", len(frames), self.address)
            return
        self.received += 1
        wait = self._waits.get(transfer_id)
        if wait is None:
            self._keep(transfer_id)
            return
        wait.missing -= 1
        if wait.missing <= 0:
            _settle(wait, is_ready=True)

    def _keep(self, transfer_id: str) -> None:
        self._early[transfer_id] = self._early.pop(transfer_id, 0) + 1
        if len(self._early) > MAX_EARLY:
            self._early.popitem(last=False)

    def _transfer_id(self, frames: list[bytes]) -> str | None:
        """The transfer that a ProxyNotif names; None for any other message."""
        if len(frames) != 1:
            return None
        try:
            message = self._msgpack.unpackb(frames[0])
        except (ValueError, self._msgpack.UnpackException):
            return None
        if not isinstance(message, dict) or message.get("type") != "ProxyNotif":
            return None
        transfer_id = message.get("req_id")
        return transfer_id if isinstance(transfer_id, str) else None


def _settle(wait: _Wait, *, is_ready: bool) -> None:
    if not wait.is_ready.done():
        wait.is_ready.set_result(is_ready)
