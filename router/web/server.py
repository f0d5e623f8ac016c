"""Runs a router on uvicorn, with its own connections, uvloop, and a shutdown that drains.

No other module of the router uses uvicorn. Outside uvicorn's public interface it uses:
`Server.startup` and `shutdown` (replaced), `capture_signals` and `handle_exit` (replaced),
`lifespan`, `servers`, `started`, `should_exit`, `force_exit`, and `server_state` with its
`connections` and `tasks`. tests/web/test_uvicorn.py states what it relies on.
"""

import asyncio
import contextlib
import gc
import logging
import math
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import uvicorn

from router import __version__
from router.core.speed.tuning import TICK_SECONDS
from router.net.client.client_connection import ClientConnection
from router.net.processes.takeover import Succession
from router.net.watched_files import TLSFiles
from router.settings import Settings
from router.web.admin import AdminListener
from router.web.app import Router
from router.web.dashboard.page import PATH
from router.web.listener import DeadlineSweep, Listener, listening_sockets

__all__ = ["FORCE_STOP", "HAND_OVER", "Server", "tune_process"]

log = logging.getLogger(__name__)

FORCE_STOP = signal.SIGUSR1
"""The signal that ends a draining worker at once. A worker without a handler for it is killed."""

HAND_OVER = signal.SIGUSR2
"""The signal that tells a worker that another router has taken over."""

FLUSH_SECONDS = 1.0
"""Seconds for the last error events to be sent."""

POLL_SECONDS = 0.05


YOUNG, OLD, NEVER = 10_000, 1000, 1 << 30
"""Thresholds of the garbage collector. It examines new objects 10,000 at a time, in a millisecond
or two. Older objects are examined after ten million more: ten thousand open streams have half a
million objects, and examining them stops all streams for 0.3 s."""


def tune_process() -> None:
    """Tune a process that only serves a router: raise the limit of open files, and make the garbage
    collector rare.

    Each stream has two sockets, and the usual soft limit of 1024 files is for programs that use
    select(). Modules and application live as long as the process, so the collector need not visit
    them; the objects of a request are freed by reference counting.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.freeze()
    gc.set_threshold(YOUNG, OLD, NEVER)


class Server(uvicorn.Server):
    """uvicorn's server for one router.

    `lifeline`: the reading end of a pipe, for a worker; it is closed when the parent has died.
    `admin_sockets` are those of the admin listener, if there is one. `on_listening` is called when
    connections are accepted. With `succession` another router may take over.
    `is_preceded`: whether a previous router still serves until connections are accepted.
    """

    def __init__(
        self,
        router: Router,
        lifeline: int | None = None,
        admin_sockets: Sequence[socket.socket] | None = None,
        *,
        on_listening: Callable[[], None] = lambda: None,
        succession: Succession | None = None,
        is_preceded: Callable[[], bool] = lambda: False,
    ) -> None:
        settings: Settings = router.settings
        super().__init__(
            uvicorn.Config(
                router.lifespan,
                host=settings.host,
                port=settings.port,
                loop="uvloop",
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
            )
        )
        self._router = router
        router.lifecycle.on_failed = self._stop
        self._on_listening = on_listening
        self._succession = succession
        self._is_preceded = is_preceded
        self._is_handed_over = False
        self._shutdown_requested = False
        self._lifeline = lifeline
        self._deadlines: DeadlineSweep | None = None
        self._admin_sockets = admin_sockets
        self.admin: AdminListener | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal, with all applications created and this process tuned."""
        self._router.prepare()
        tune_process()
        super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen, and log the address, since the port may be chosen by
        the system."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            self.should_exit = True
            return
        if not self.should_exit:
            await self._until_engines_are_known()
        if self.should_exit:  # a signal came meanwhile: do not accept
            await self.lifespan.shutdown()
            self._router.counts.event_buffer.flush()
            return
        loop = asyncio.get_running_loop()
        handler, state = self._router.handler, self.server_state
        handler.tasks = state.tasks
        listeners = [
            Listener(
                each,
                lambda: ClientConnection(handler, state.connections, loop),
                self._router.metrics.accepted,
                loop,
                self._router.clients.tls,
            )
            for each in sockets or listening_sockets(self.config.host, self.config.port, 1)[0]
        ]
        self._deadlines = DeadlineSweep(state.connections, handler, loop)  # type: ignore[arg-type]
        for listener in listeners:
            listener.start()
        self.servers = listeners  # type: ignore[assignment]
        self.started = True
        router = self._router
        fields = {"url": _url(listeners[0].sockets[0], router.clients.tls), "version": __version__}
        self._start_admin(loop)
        if self.admin is not None:
            fields["admin_url"] = _url(self.admin.socket, router.operators.tls)
        fields["live_page"] = _local(fields.get("admin_url", fields["url"])) + PATH
        log.info("listening", extra={"fields": fields})
        self._on_listening()
        if self._succession is not None:
            self._succession.begin()
            loop.call_later(TICK_SECONDS, self._look_for_successor, loop, self._succession)

    async def _until_engines_are_known(self) -> None:
        """If a previous router still serves, wait until each source has listed its engines, and
        probe them."""
        router = self._router
        if not router.sources or not self._is_preceded():
            return
        if silent := router.silent_sources():
            fields = {"sources": ",".join(silent)}
            log.info("waiting for discovery before taking over", extra={"fields": fields})
        while router.silent_sources():
            if self.should_exit:
                return
            if not self._is_preceded():
                log.warning("the router before this one has ended; not waiting for discovery")
                return
            await asyncio.sleep(POLL_SECONDS)
        await router.engines.prober.probe_all()

    def _start_admin(self, loop: asyncio.AbstractEventLoop) -> None:
        settings = self._router.settings
        if settings.admin_port is None:
            return
        sockets = self._admin_sockets
        if sockets is None:
            [sockets] = listening_sockets(settings.listening_admin_host, settings.admin_port, 1)
        router = self._router
        self.admin = AdminListener(router.operators.handler, sockets, loop, router.operators.tls)

    def _look_for_successor(self, loop: asyncio.AbstractEventLoop, succession: Succession) -> None:
        if self.should_exit:
            return
        if succession.poll():
            self.hand_over()
        else:
            loop.call_later(TICK_SECONDS, self._look_for_successor, loop, succession)

    def hand_over(self) -> None:
        """Stop accepting because another router does now; finish the requests in progress and
        end."""
        self._is_handed_over = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Report the shutdown in /ready, let streams finish within the grace period, then end them
        with an error event."""
        handler, grace = self._router.handler, self._router.settings.shutdown_grace
        if self._succession is not None:
            self._succession.close()
        if self._is_handed_over:
            await self._finish(grace)
        self._router.lifecycle.is_draining = True
        fields = {"requests": len(handler.active), "grace_seconds": grace}
        # Each of several workers has its own requests; their parent has logged the shutdown.
        if self._lifeline is None:
            log.info("shutting down; a second signal ends at once", extra={"fields": fields})
        else:
            log.info("worker draining", extra={"fields": fields})
        await self._stop_listening()
        for listening in sockets or ():
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._end_requests(grace)
        if self._deadlines is not None:
            self._deadlines.close()
        if self.admin is not None:
            await self.admin.close()
        await self.lifespan.shutdown()
        self._router.counts.event_buffer.flush()

    async def _stop_listening(self) -> None:
        if self._router.clients.picker is not None:
            self._router.clients.picker.stop_accepting()
        for listener in self.servers:
            listener.close()
        await asyncio.gather(*(listener.wait_closed() for listener in self.servers))

    async def _end_requests(self, grace: float) -> None:
        """Wait for requests for up to `grace` seconds, then end the rest with an error event."""
        handler = self._router.handler
        await self._ended(grace)
        if ended := handler.abort():
            why = "because of a second signal" if self.force_exit else "when the grace was over"
            log.warning("%d requests were ended %s", ended, why)
        for task in self.server_state.tasks:
            task.cancel()
        await self._ended(FLUSH_SECONDS)

    async def _finish(self, grace: float) -> None:
        """Serve what arrived before another router took over: streams to their end, and one more
        request on each idle connection, for which it has `grace` seconds. A signal ends this."""
        state = self.server_state
        fields = {
            "connections": len(state.connections),
            "requests": len(self._router.handler.active),
        }
        log.info("another router has taken over", extra={"fields": fields})
        await self._stop_listening()
        if self.admin is not None:
            self.admin.drain()
        for connection in list(state.connections):
            connection.drain()  # type: ignore[union-attr]
        loop = asyncio.get_running_loop()
        closes_idle_at = loop.time() + grace
        while (state.connections or state.tasks) and not self._shutdown_requested:
            await asyncio.sleep(POLL_SECONDS)
            if loop.time() >= closes_idle_at:
                closes_idle_at = math.inf
                for connection in list(state.connections):
                    connection.shutdown()

    async def _ended(self, seconds: float | None) -> None:
        """Wait until there are no clients and requests, for up to `seconds`. A second signal ends
        the wait."""
        state, handler = self.server_state, self._router.handler
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await asyncio.sleep(POLL_SECONDS)
                    if self.force_exit or not (state.connections or state.tasks or handler.active):
                        return

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals so that a graceful shutdown ends with status 0; uvicorn would raise the
        signal again."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM, FORCE_STOP)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.add_signal_handler(HAND_OVER, self.hand_over)
        handled = (*signals, signal.SIGHUP, HAND_OVER)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)  # workers start with some blocked
        if self._lifeline is not None:
            loop.add_reader(self._lifeline, self._orphaned, loop, self._lifeline)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A first signal starts the graceful shutdown, a second one ends the process at once.

        For a worker the second one is `FORCE_STOP`, sent by its parent: if a service manager such
        as systemd signals all processes of a service, workers get the first one twice.
        """
        is_second = self._shutdown_requested and self._lifeline is None
        self.force_exit = self.force_exit or is_second or sig == FORCE_STOP
        self.should_exit = self._shutdown_requested = True

    def _hang_up(self) -> None:
        """Read the settings again; the parent of a worker does it for all workers."""
        if self._router.configuration is not None:
            self._router.configuration.reload()

    def _stop(self) -> None:
        self.should_exit = self._shutdown_requested = True

    def _orphaned(self, loop: asyncio.AbstractEventLoop, lifeline: int) -> None:
        loop.remove_reader(lifeline)
        self.should_exit = self._shutdown_requested = True


def _url(listening: socket.socket, tls: TLSFiles | None) -> str:
    host, port = listening.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _local(url: str) -> str:
    """The URL by which a browser on this host reaches a listener on all addresses."""
    return url.replace("//0.0.0.0:", "//localhost:").replace("//[::]:", "//localhost:")
