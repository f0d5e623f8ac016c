"""Listening sockets, the connections accepted on them, and the time-outs of their clients.

Many connections are accepted per turn of the event loop. uvloop accepts one, and under load a turn
takes milliseconds: of two thousand clients that connect at once, the last would wait for seconds.
"""

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Collection
from typing import Final, Protocol

from router.net.client.client_connection import Handler
from router.net.exhaustion import EXHAUSTED, remedy
from router.net.watched_files import TLSFiles

__all__ = ["DeadlineSweep", "Listener", "addresses_of", "listening_sockets"]

log = logging.getLogger(__name__)

MAX_PER_TURN: Final = 64
"""Most connections accepted per turn of the event loop; each takes about 30 us."""

PAUSE_SECONDS: Final = 1.0
"""Seconds until the next attempt if the process has run out of file descriptors; asyncio's
value."""

LAST_DATA_RECEIVED: Final = struct.Struct("=52xI")
"""tcpi_last_data_recv of Linux's struct tcp_info: ms since the client's last data, or since the
handshake if it has sent none."""


HANDSHAKE_SECONDS: Final = 10.0
"""Time-out in seconds of a client's TLS handshake, which takes a few round trips."""

LATE_SECONDS: Final = 1.0
"""The same in seconds while the router shuts down."""


SWEEP_SECONDS: Final = 1.0
"""Longest time in seconds between two sweeps; time-outs are tens of seconds."""


BACKLOG: Final = 4096
"""Connections that may wait for accept(). A load test may open 2,048 at once; 4,096 is the kernel's
limit (net.core.somaxconn)."""


class Listener:
    """A non-blocking listening socket. `on_accept` is called with the time in seconds that each
    connection has waited. `tls`: the TLS for new connections, if any."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], object],
        on_accept: Callable[[float], None],
        loop: asyncio.AbstractEventLoop,
        tls: TLSFiles | None = None,
    ) -> None:
        self._tls = tls
        self._socket = listening
        self._protocol = protocol
        self._on_accept = on_accept
        self._loop = loop
        self._connecting: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening socket, as in `asyncio.Server`."""
        return (self._socket,)

    def start(self) -> None:
        """Start to accept connections."""
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stop accepting. Accepted connections continue."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    async def wait_closed(self) -> None:
        """Wait until accepted connections are established. TLS handshakes are aborted after a
        second."""
        if self._connecting:
            _, late = await asyncio.wait(self._connecting, timeout=LATE_SECONDS)
            for connecting in late:
                connecting.cancel()

    def _accept(self) -> None:
        for _ in range(MAX_PER_TURN):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._failed(error)
                return
            self._on_accept(_waited(accepted))
            connecting = self._loop.create_task(self._connect(accepted))
            self._connecting.add(connecting)
            connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        tls = self._tls
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(self._protocol, accepted)  # type: ignore[type-var]
            else:
                await self._loop.connect_accepted_socket(
                    self._protocol,  # type: ignore[type-var]
                    accepted,
                    ssl=tls.context,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
        except ssl.SSLError as error:  # a missing certificate, or a client without TLS
            log.debug("TLS handshake failed: %s", error)
            accepted.close()
        except OSError:  # the client has disconnected
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _failed(self, error: OSError) -> None:
        if error.errno not in EXHAUSTED:
            raise error
        text = "cannot accept connections: %s; %s; trying again in %g s"
        log.error(text, error.strerror, remedy(error), PAUSE_SECONDS)
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)


def _waited(accepted: socket.socket) -> float:
    """Seconds since the client last sent data; 0 if the system does not tell."""
    try:
        info = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA_RECEIVED.size)
        (milliseconds,) = LAST_DATA_RECEIVED.unpack(info)
        return float(milliseconds) / 1000
    except (OSError, AttributeError, struct.error):
        return 0.0


def listening_sockets(host: str, port: int, workers: int) -> list[list[socket.socket]]:
    """Create the sockets of each worker. Raises OSError, for example if the port is in use.

    Each worker has its own (SO_REUSEPORT), and the kernel distributes connections. If a process
    keeps all of them open, the next worker can accept connections that wait in the socket of one
    that died.
    """
    listeners: list[list[socket.socket]] = [[] for _ in range(workers)]
    for family, address in addresses_of(host, port):
        port = _free(family, address, port)
        for mine in listeners:
            mine.append(_bound(family, address, port, share=workers > 1))
    for mine in listeners:
        for listener in mine:
            listener.listen(BACKLOG)
            listener.setblocking(False)
    return listeners


def addresses_of(host: str, port: int) -> list[tuple[int, str]]:
    """The families and addresses to listen on. Raises OSError."""
    flags = socket.AI_PASSIVE | socket.AI_NUMERICSERV
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((each[0], str(each[4][0])) for each in found))


def _free(family: int, address: str, port: int) -> int:
    """Returns the port, or a free one for 0, if no other process listens on it. Raises OSError.

    Without this check, SO_REUSEPORT would share the port, and its clients, with another router.
    """
    with _bound(family, address, port, share=False) as probe:
        probe.listen(1)
        return int(probe.getsockname()[1])


def _bound(family: int, address: str, port: int, *, share: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # :: is for both families, whatever the system's default
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener


class Waiting(Protocol):
    """A connection. `deadline` is infinite while nothing is awaited from its client."""

    deadline: float

    def on_deadline(self) -> None:
        """The deadline has passed."""


class DeadlineSweep:
    """Checks all connections of a handler at intervals. Ten thousand take half a millisecond."""

    def __init__(
        self,
        connections: Collection[Waiting],
        handler: Handler,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connections = connections
        times = handler.body_seconds, handler.stall_seconds, handler.keep_alive_seconds
        self._interval = min(SWEEP_SECONDS, min(times) / 4)
        self._loop = loop
        self._timer = loop.call_later(self._interval, self._sweep)

    def close(self) -> None:
        """Stop."""
        self._timer.cancel()

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._sweep)
        now = self._loop.time()
        for connection in [each for each in self._connections if each.deadline <= now]:
            connection.on_deadline()
