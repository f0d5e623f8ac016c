"""Runs a router on uvicorn: its own connections, uvloop, and a shutdown that drains.

No other file of the router uses uvicorn. Of what is not its public interface it uses:
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
from router.core.speed.speed_estimator import TICK_SECONDS
from router.net.client.client_connection import ClientConnection
from router.net.processes.takeover import Succession
from router.net.tls_files import TLSFiles
from router.settings import Settings
from router.web.admin import AdminListener
from router.web.app import Router
from router.web.deadlines import DeadlineSweep
from router.web.listener import Listener
from router.web.sockets import listening_sockets

__all__ = ["FORCE_STOP", "HAND_OVER", "Server", "tune_process"]

log = logging.getLogger(__name__)

FORCE_STOP = signal.SIGUSR1
"""The signal that ends a draining worker at once. It kills one that has no handler yet."""

HAND_OVER = signal.SIGUSR2
"""The signal that tells a worker that another router has taken over."""

FLUSH_SECONDS = 1.0
"""For the last error frames to leave the process."""

POLL_SECONDS = 0.05


YOUNG, OLD, NEVER = 10_000, 1000, 1 << 30
"""The garbage collector looks at new objects 10,000 at a time, in a millisecond or two. Those that
live on it looks at again after ten million more: ten thousand open streams are half a million
objects, and looking at them all stops every stream for a third of a second."""


def tune_process() -> None:
    """What a process that only routes should have: all the files it may open, and a rare collector.

    Each stream holds two sockets, and the usual soft limit of 1024 files is meant for programs that
    use select(). Modules and application live as long as the process, so the collector need not
    visit them; what a request makes dies with it by reference counting.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.freeze()
    gc.set_threshold(YOUNG, OLD, NEVER)


class Server(uvicorn.Server):
    """uvicorn's server for one router.

    `lifeline` is the reading end of a pipe, for a worker; when it closes, its parent is gone.
    `admin_sockets` listen for operators, where the settings say so. `on_listening` is called when
    connections are accepted, `on_hangup` at SIGHUP; with `succession` another router may take over.
    `is_preceded`: whether a router before this one serves until connections are accepted.
    """

    def __init__(
        self,
        router: Router,
        lifeline: int | None = None,
        admin_sockets: Sequence[socket.socket] | None = None,
        *,
        on_listening: Callable[[], None] = lambda: None,
        on_hangup: Callable[[], None] = lambda: None,
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
        router.on_wrong_configuration = self._stop
        self._on_listening = on_listening
        self._on_hangup = on_hangup
        self._succession = succession
        self._is_preceded = is_preceded
        self._is_handed_over = False
        self._is_told_to_end = False
        self._lifeline = lifeline
        self._deadlines: DeadlineSweep | None = None
        self._admin_sockets = admin_sockets
        self.admin: AdminListener | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal says to stop, with all applications made and this process tuned."""
        self._router.prepare()
        tune_process()
        super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen, and log where: the port may be any free one."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            self.should_exit = True
            return
        if not self.should_exit:
            await self._until_engines_are_known()
        if self.should_exit:  # told to stop in the meantime: do not accept
            await self.lifespan.shutdown()
            self._router.event_buffer.flush()
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
                self._router.tls,
            )
            for each in sockets or listening_sockets(self.config.host, self.config.port, 1)[0]
        ]
        limits = self._router.clients.limits
        self._deadlines = DeadlineSweep(
            state.connections,  # type: ignore[arg-type]
            min(limits.body_seconds, limits.stall_seconds, limits.keep_alive_seconds),
            loop,
        )
        for listener in listeners:
            listener.start()
        self.servers = listeners  # type: ignore[assignment]
        self.started = True
        router = self._router
        fields = {"url": _url(listeners[0].sockets[0], router.tls), "version": __version__}
        self._start_admin(loop)
        if self.admin is not None:
            fields["admin_url"] = _url(self.admin.socket, router.admin_tls)
        log.info("listening", extra={"fields": fields})
        self._on_listening()
        if self._succession is not None:
            self._succession.begin()
            loop.call_later(TICK_SECONDS, self._look_for_successor, loop, self._succession)

    async def _until_engines_are_known(self) -> None:
        """Where a router before this one serves, which knows its engines: wait until each source
        has named them, and probe those."""
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
        self.admin = AdminListener(router.operators.handler, sockets, loop, router.admin_tls)

    def _look_for_successor(self, loop: asyncio.AbstractEventLoop, succession: Succession) -> None:
        if self.should_exit:
            return
        if succession.poll():
            self.hand_over()
        else:
            loop.call_later(TICK_SECONDS, self._look_for_successor, loop, succession)

    def hand_over(self) -> None:
        """Another router accepts connections now: serve what there is, and end."""
        self._is_handed_over = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so in /ready, let streams finish within the grace, then end them with a frame."""
        handler, grace = self._router.handler, self._router.settings.shutdown_grace
        if self._succession is not None:
            self._succession.close()
        if self._is_handed_over:
            await self._finish(grace)
        self._router.lifecycle.is_draining = True
        fields = {"requests": len(handler.active), "grace_seconds": grace}
        # Of several workers each has its own requests; their parent has told of the shutdown.
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
        self._router.event_buffer.flush()

    async def _stop_listening(self) -> None:
        if self._router.clients.picker is not None:
            self._router.clients.picker.stop_accepting()
        for listener in self.servers:
            listener.close()
        await asyncio.gather(*(listener.wait_closed() for listener in self.servers))

    async def _end_requests(self, grace: float) -> None:
        """Wait for them within the grace, then end what is left with a frame."""
        handler = self._router.handler
        await self._ended(grace)
        if ended := handler.abort():
            why = "because of a second signal" if self.force_exit else "when the grace was over"
            log.warning("%d requests were ended %s", ended, why)
        for task in self.server_state.tasks:
            task.cancel()
        await self._ended(FLUSH_SECONDS)

    async def _finish(self, grace: float) -> None:
        """Serve what came before another router took over: streams to their end, and of each other
        connection one more request, for which it has `grace` seconds. A signal ends that."""
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
        while (state.connections or state.tasks) and not self._is_told_to_end:
            await asyncio.sleep(POLL_SECONDS)
            if loop.time() >= closes_idle_at:
                closes_idle_at = math.inf
                for connection in list(state.connections):
                    connection.shutdown()

    async def _ended(self, seconds: float | None) -> None:
        """Wait until no client and no request is left, so long at most; a second signal ends the
        wait."""
        state, handler = self.server_state, self._router.handler
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await asyncio.sleep(POLL_SECONDS)
                    if self.force_exit or not (state.connections or state.tasks or handler.active):
                        return

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End with status 0 after a graceful shutdown; uvicorn would raise the signal again."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM, FORCE_STOP)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        loop.add_signal_handler(HAND_OVER, self.hand_over)
        handled = (*signals, signal.SIGHUP, HAND_OVER)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)  # workers begin with some blocked
        if self._lifeline is not None:
            loop.add_reader(self._lifeline, self._orphaned, loop, self._lifeline)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks for the graceful end, a second one for the end at once.

        For a worker the second one is `FORCE_STOP`, from its parent: workers get the first one
        twice if a service manager (systemd) signals all processes of a service.
        """
        is_second = self._is_told_to_end and self._lifeline is None
        self.force_exit = self.force_exit or is_second or sig == FORCE_STOP
        self.should_exit = self._is_told_to_end = True

    def _stop(self) -> None:
        self.should_exit = self._is_told_to_end = True

    def _orphaned(self, loop: asyncio.AbstractEventLoop, lifeline: int) -> None:
        loop.remove_reader(lifeline)
        self.should_exit = self._is_told_to_end = True


def _url(listening: socket.socket, tls: TLSFiles | None) -> str:
    host, port = listening.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
